"""Which thread block stores each element of an output, from the PrimFunc alone.

Each store to global memory (an assignment, a tile operator's region, an atomic operation on one element) is evaluated
for every thread block, with every turn of the loops around it and every thread. What the PrimFunc alone does not tell
counts as anything: an index that is read from memory is its whole axis, a pointer that is passed on the whole tensor.
So an element's thread blocks are never fewer than those that store to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .job import Job
from .rows import phrase
from .text import count

__all__ = ["Stored", "blocks_of"]

MOST = 2**28  # elements that one store may visit; beyond them any thread block may store to all of the tensor

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Div": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
    "Mod": np.fmod,
    "Max": np.maximum,
    "Min": np.minimum,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Select": np.where,
    "tirx.if_then_else": np.where,
    "tirx.likely": np.asarray,
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}
_DTYPES = ("bool", "int32", "int64")  # what fits int64, and is taken not to overflow
_ONE_ELEMENT = re.compile(r"tl\.atomic_[a-z]+_elem_op")  # the vectors' names have a digit: tl.atomic_addx2_elem_op


class _Unknown(Exception):
    """A value that the PrimFunc alone does not tell."""


@dataclass(frozen=True)
class Stored:
    """Of each element the first and the last thread block that may store to it, by number; last: -1 where none does."""

    first: np.ndarray
    last: np.ndarray
    grid: int

    def phrase(self, flags: np.ndarray) -> str:
        """Who stores the flagged elements: "stored by thread blocks 1 and 3-4; 5 words by any of several"."""
        numbers, several, none = self.counts(flags)
        texts = [f"by {phrase(np.isin(np.arange(self.grid), numbers), 'thread block')}"] if numbers else []
        texts += [f"{count(several, 'word')} by any of several"] if several else []
        texts += [f"{count(none, 'word')} by no thread block"] if none else []
        return f"stored {'; '.join(texts)}"

    def to_json(self, flags: np.ndarray) -> dict[str, Any]:
        """The thread blocks of the flagged elements, how many of these several may store, and how many none does."""
        return dict(zip(("blocks", "by_several_blocks", "by_no_block"), self.counts(flags), strict=True))

    def counts(self, flags: np.ndarray) -> tuple[list[int], int, int]:
        first, last = self.first[flags], self.last[flags]
        numbers = np.unique(first[first == last]).tolist()
        return numbers, int(((first != last) & (last >= 0)).sum()), int((last < 0).sum())


def blocks_of(job: Job, numbers: dict[Any, Any]) -> dict[str, Stored]:
    """The thread blocks of each output, by its name. numbers: of the symbolic sizes and scalar parameters."""
    pf, found = job.kernel.prim_func, {}
    for p in job.outputs:
        walk = _Walk(pf.buffer_map[pf.params[p.number]])
        walk.statement(pf.body)
        shape = p.shape or ()
        stored = Stored(np.full(shape, np.iinfo(np.int64).max), np.full(shape, -1), _most_blocks(walk, numbers))
        for store in walk.stores:
            _mark(stored, store, walk, numbers)
        found[p.name] = stored
    return found


def _most_blocks(walk: _Walk, numbers: dict[Any, Any]) -> int:
    return max((_grid(store, walk, numbers)[0] for store in walk.stores), default=1)


@dataclass(frozen=True)
class _Store:
    """A store: the start of each axis and how many elements of it, and the tests that it happens, with their outcome.

    starts: None: anywhere in the tensor
    grid, loops: the blockIdx variables with their extents, and the variables of the loops around it, outermost first
    """

    buffer: Any
    starts: tuple[Any, ...] | None
    extents: tuple[Any, ...]
    tests: tuple[tuple[Any, bool], ...]
    grid: tuple[tuple[Any, Any], ...]
    loops: tuple[Any, ...]
    threads: tuple[Any, ...]


class _Walk:
    """The stores to an output, and what its variables are: of a loop its start and extent, else an expression."""

    def __init__(self, output: Any):
        from tvm.tirx import stmt_functor

        self.output, self.visit = output, stmt_functor.post_order_visit
        self.stores: list[_Store] = []
        self.bound: dict[Any, Any] = {}
        self.tests: tuple[tuple[Any, bool], ...] = ()
        self.grid: tuple[tuple[Any, Any], ...] = ()
        self.loops: tuple[Any, ...] = ()
        self.threads: tuple[Any, ...] = ()

    def statement(self, s: Any) -> None:
        getattr(self, "_" + type(s).__name__.lower(), self._other)(s)

    def _seqstmt(self, s: Any) -> None:
        for part in s.seq:
            self.statement(part)

    def _sblockrealize(self, s: Any) -> None:
        self.statement(s.block)

    def _sblock(self, s: Any) -> None:
        self.threads = tuple(s.annotations.get("tl.launch_threads", self.threads))
        self.statement(s.body)

    def _attrstmt(self, s: Any) -> None:
        self.expression(s.value)
        self.statement(s.body)

    def _while(self, s: Any) -> None:
        self.expression(s.condition)
        self.statement(s.body)

    def _for(self, s: Any) -> None:
        grid, loops = self.grid, self.loops
        if s.thread_binding is not None and str(s.thread_binding.thread_tag).startswith("blockIdx"):
            self.grid = (*grid, (s.loop_var, s.extent))
        else:
            self.bound[s.loop_var] = (s.min, s.extent, s.step)
            self.loops = (*loops, s.loop_var)
        self.statement(s.body)
        self.grid, self.loops = grid, loops

    def _ifthenelse(self, s: Any) -> None:
        self.expression(s.condition)
        tests = self.tests
        self.tests = (*tests, *((each, True) for each in _conjuncts(s.condition)))
        self.statement(s.then_case)
        self.tests = (*tests, (s.condition, False))
        if s.else_case is not None:
            self.statement(s.else_case)
        self.tests = tests

    def _bind(self, s: Any) -> None:
        self.expression(s.value)
        self.bound[s.var] = s.value

    def _evaluate(self, s: Any) -> None:
        self.expression(s.value)

    def _bufferstore(self, s: Any) -> None:
        for e in (s.value, *s.indices):
            self.expression(e)
        if self._is_element(s):
            self.note(s.buffer, s.indices, (1,) * len(s.indices))

    def _other(self, s: Any) -> None:
        """A statement of another kind: what it stores to may be anywhere."""
        found: list[Any] = []
        self.visit(s, found.append)
        if any(each.same_as(self.output.data) or self._is_element(each) for each in found):
            self.note(self.output, None, ())

    def expression(self, e: Any) -> None:
        """Note what the calls in an expression store to."""
        found: list[Any] = []
        self.visit(e, found.append)
        calls = [each for each in found if type(each).__name__ == "Call"]
        single = [each.args[0] for each in calls if _ONE_ELEMENT.fullmatch(_name(each))]
        for call in calls:
            self._call(call, any(call.same_as(each) for each in single))
        if any(each.same_as(self.output.data) for each in found):
            self.note(self.output, None, ())

    def _call(self, call: Any, single: bool) -> None:
        name, loads = _name(call), [each for each in call.args if self._is_element(each)]
        if not loads or (name.startswith("tirx.") and name not in ("tirx.address_of", "tirx.call_extern")):
            return
        load = loads[0]
        if name == "tl.region":
            if int(call.args[1]) & 2:
                self.note(load.buffer, load.indices, tuple(call.args[2:]))
        else:
            self.note(load.buffer, load.indices if single else None, (1,) * len(load.indices))

    def _is_element(self, e: Any) -> bool:
        """Whether it loads or stores an element of the output."""
        return type(e).__name__ in ("BufferLoad", "BufferStore") and bool(e.buffer.data.same_as(self.output.data))

    def note(self, buffer: Any, starts: Any, extents: tuple[Any, ...]) -> None:
        starts = None if starts is None else tuple(starts)
        self.stores.append(_Store(buffer, starts, extents, self.tests, self.grid, self.loops, self.threads))


def _conjuncts(e: Any) -> list[Any]:
    return [*_conjuncts(e.a), *_conjuncts(e.b)] if type(e).__name__ == "And" else [e]


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def _grid(store: _Store, walk: _Walk, numbers: dict[Any, Any]) -> tuple[int, list[int]]:
    """The thread blocks of a store's launch: how many, and the extents of blockIdx, the last the fastest."""
    values = _Values(walk, store, numbers)
    extents = [int(values.of(extent)) for _, extent in store.grid]
    return math.prod(extents), extents


def _mark(stored: Stored, store: _Store, walk: _Walk, numbers: dict[Any, Any]) -> None:
    """Add a store's thread blocks to the elements that it may store to."""
    blocks, extents = _grid(store, walk, numbers)
    first, last = stored.first.reshape(-1), stored.last.reshape(-1)
    for number in range(blocks):
        at = np.unravel_index(number, extents) if extents else ()
        index = {variable: int(n) for (variable, _), n in zip(store.grid, at, strict=True)}
        elements = _elements(_Values(walk, store, numbers | index), store, first.size, MOST // blocks)
        if elements is None:  # any, and of every thread block
            np.minimum(first, 0, out=first)
            np.maximum(last, blocks - 1, out=last)
            return
        first[elements] = np.minimum(first[elements], number)
        last[elements] = np.maximum(last[elements], number)


def _elements(values: _Values, store: _Store, size: int, most: int) -> np.ndarray | None:
    """The flat numbers of the elements that one thread block's store may reach; None: any."""
    try:
        shape = [int(values.of(extent)) for extent in store.buffer.shape]
    except _Unknown:
        return None
    if store.starts is None or math.prod(shape) != size:
        return None
    axes = [values.axis(*each) for each in zip(store.starts, store.extents, shape, strict=True)]
    inside = [(axis >= 0) & (axis < extent) for axis, extent in zip(axes, shape, strict=True)]
    flags = [*inside, *values.tests(axes)]
    full = np.broadcast_shapes(*(each.shape for each in [*axes, *flags]))
    if math.prod(full) > most:
        return None
    flat = np.zeros(full, np.int64)
    for axis, extent in zip(axes, shape, strict=True):
        flat = flat * extent + axis
    chosen = np.ones(full, bool)
    for each in flags:
        chosen &= each
    return np.asarray(flat[chosen])


class _Values:
    """Integer expressions at a store: arrays with an axis for each loop, each threadIdx and each axis of the region."""

    def __init__(self, walk: _Walk, store: _Store, numbers: dict[Any, Any]):
        self.walk, self.store = walk, store
        self.rank = len(store.loops) + 3 + len(store.extents)
        self.known = {variable: np.asarray(int(n), np.int64) for variable, n in numbers.items()}
        self.turns: list[np.ndarray] = []  # flags of the turns that loops make
        self.walked = len(store.loops) + 3

    def axis(self, start: Any, extent: Any, size: int) -> np.ndarray:
        """The indices of one axis of a region; all of it where they are not known."""
        self.walked += 1
        try:
            begin, count = self.of(start), int(self.of(extent))
        except (_Unknown, TypeError):
            return self._along(self.walked - 1, np.arange(size))
        return np.asarray(begin + self._along(self.walked - 1, np.arange(count)))

    def tests(self, axes: list[np.ndarray]) -> list[np.ndarray]:
        """Flags of where the tests hold; what a test has of loops that the indices lack may be any turn of them."""
        found = []
        for test, outcome in self.store.tests:
            try:
                value = np.asarray(self.of(test), bool)
            except _Unknown:
                continue
            found.append(value if outcome else ~value)
        full = np.broadcast_shapes(*(axis.shape for axis in axes)) if axes else ()
        used = np.array([1] * (self.rank - len(full)) + [*full]) > 1
        return [self._anywhere(flags, used) for flags in [*found, *self.turns]]

    def _anywhere(self, flags: np.ndarray, used: np.ndarray) -> np.ndarray:
        flags = flags.reshape((1,) * (self.rank - flags.ndim) + flags.shape)
        return np.asarray(flags.any(axis=tuple(np.flatnonzero(~used).tolist()), keepdims=True))

    def of(self, e: Any) -> np.ndarray:
        """The values of an expression. Raises _Unknown."""
        kind = type(e).__name__
        if kind == "int" or kind == "IntImm":
            return np.asarray(int(e), np.int64)
        if kind == "Var":
            return self._variable(e)
        if str(getattr(e, "dtype", "")) not in _DTYPES:
            raise _Unknown
        name = _name(e) if kind == "Call" else kind
        if name == "tl.launch_thread_idx":
            return self._thread(int(e.args[0]))
        if name == "Cast":
            return self.of(e.value).astype(bool if str(e.dtype) == "bool" else np.int64)
        if name not in _OPERATIONS:
            raise _Unknown
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(_OPERATIONS[name](*map(self.of, _operands(e, kind))))

    def _variable(self, variable: Any) -> np.ndarray:
        if variable not in self.known:
            bound = self.walk.bound.get(variable)
            if bound is None:
                raise _Unknown
            self.known[variable] = self._loop(variable, *bound) if isinstance(bound, tuple) else self.of(bound)
        return self.known[variable]

    def _loop(self, variable: Any, start: Any, extent: Any, step: Any) -> np.ndarray:
        """Every value of a loop's variable, of all turns of the loops around it."""
        places = [n for n, each in enumerate(self.store.loops) if each.same_as(variable)]
        if not places or (step is not None and int(step) != 1):
            raise _Unknown
        first = self.of(start)
        end = first + self.of(extent)
        if not end.size or int(end.max()) - int(first.min()) > MOST:
            raise _Unknown
        values = self._along(places[0], np.arange(int(first.min()), int(end.max())))
        self.turns.append((values >= first) & (values < end))
        return values

    def _thread(self, axis: int) -> np.ndarray:
        if not self.store.threads:
            raise _Unknown
        return self._along(len(self.store.loops) + axis, np.arange(int(self.store.threads[axis])))

    def _along(self, axis: int, values: np.ndarray) -> np.ndarray:
        shape = [1] * self.rank
        shape[axis] = -1
        return values.reshape(shape)


def _operands(e: Any, kind: str) -> list[Any]:
    if kind == "Call":
        return list(e.args)
    if kind == "Select":
        return [e.condition, e.true_value, e.false_value]
    return [e.a] if kind == "Not" else [e.a, e.b]
