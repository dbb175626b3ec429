"""Machines that listen: `Watcher` runs until the first bad value, `Tracer` says of each where it comes from.

Both give the words of `Exact`. A Watcher's values are plain words, so that a clean run pays little; a Tracer's are
carriers (sim.origins).
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .arch import Arch
from .births import fresh, kind_of, nonfinite
from .damage import Damage, done, in_convert
from .formats import FP32, DType, Format, Integer, values
from .layout import Reduction
from .machine import Exact
from .origins import CARRIER, Origins, code, codes, has_codes, hidden, hide, is_hidden, pack, word

__all__ = ["Bad", "Event", "Listener", "Place", "Tracer", "Watcher"]

_COMPUTES = ("add", "sub", "mul", "mul_add", "mul_sub", "sub_mul", "div", "reciprocal", "exp2", "exp", "log", "log2",
             "rsqrt", "sqrt")  # fmt: skip
_SCORES = ("add", "sub", "mul", "mul_add", "mul_sub")  # what is masked in the first operand stays so
_LOWEST = -1e4  # a finite mask is lower
_MOVES = ("neg", "abs", "floor", "ceil", "trunc", "nearbyint")  # what is bad stays bad, nothing becomes so


class Bad(Exception):
    """Something bad, or damage, exists: the run is worth tracing."""


@dataclass(frozen=True)
class Place:
    """Where in a kernel: a tile operator's store to a buffer, its source line, and the turns of the loops around it.

    operator: copy, fill, gemm, reduce_max, parallel (a store in T.Parallel), ...; buffer: what it stored to
    file, line, text: the source line, "" and 0 where it is not known
    iteration: the turns of the serial loops around it, outermost first
    """

    operator: str
    buffer: str
    file: str = ""
    line: int = 0
    text: str = ""
    iteration: tuple[int, ...] = ()


@dataclass(eq=False)
class Event:
    """Births of one kind by one call of a machine's function in one thread block: ids `first` to `first + count`.

    rows: of each birth the row of `extents` that it stands for; elements: int [n, rank], all elements that were born
    """

    kind: str
    function: str
    block: int | None
    first: int
    elements: np.ndarray
    extents: tuple[int, ...]
    operands: tuple[int, ...]
    formats: tuple[str, ...]
    word: int
    format: str
    call: tuple[int, int]  # how many stores came before it, and how many results since the last one
    place: Place
    carried: list[tuple[Place, str]] = field(default_factory=list)
    dropped: tuple[Place, str] | None = None  # where it was first swallowed, and by which function


class Listener(Exact):
    """The exact machine, which knows the statement that runs."""

    listens = True

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.exact = Exact(arch, fast_math)
        self.events: list[Event] = []
        self.damage: list[Event] = []
        self.tensors: dict[int, Any] = {}  # global memory that was stored to, by its identity
        self._block: Any = None
        self._pending: list[Event] = []  # born in the expression that runs now
        self.stores = self.calls = self.ids = 0

    def started(self, block: Any) -> None:
        self._block = block

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: DType) -> None:
        for event in self._pending:
            event.place = self._here(operator, buffer)
        self._pending = []
        self.stores, self.calls = self.stores + 1, 0

    def stored(self, tensor: Any, at: np.ndarray, x: np.ndarray, kept: np.ndarray | None = None) -> None:
        self.tensors.setdefault(id(tensor.memory), tensor)

    def _here(self, operator: str = "", buffer: str = "") -> Place:
        """The place that runs; a loop written by hand is found among the callers."""
        block = self._block
        if block.sources is None:
            name, line = _caller()
        else:
            where, _, number = block.where.removeprefix("after ").rpartition(":")
            name, line = block.sources.get(where, where), int(number or 0)
        text = linecache.getline(name, line).strip()
        return Place(operator, buffer, Path(name).name, line, text, tuple(block.turns))

    def _note(
        self, function: str, mask: np.ndarray, word: tuple[np.ndarray, Format], operands: Sequence[Any], kind: str = ""
    ) -> np.ndarray:
        """Births (or with `kind` damage) where `mask` [lanes or 1, *extents] holds. The ids of `mask`'s elements."""
        mask = mask if mask.ndim else mask.reshape(1)
        extents, lanes = mask.shape[1:], mask.shape[0]
        at = np.argwhere(mask)
        words = np.broadcast_to(word[0], mask.shape)[mask]
        given = [(_at(x, mask), fmt) for x, fmt in operands]
        kinds = np.full(len(at), kind, "U18") if kind else kind_of(function, (words, word[1]), given)
        row = _row(at, extents)
        ids = np.zeros(len(at), np.int64)
        numbers = self._block.running() if self._block is not None else np.zeros(1, int)
        shared = lanes == 1 and len(numbers) > 1
        names, number = np.unique(kinds, return_inverse=True)
        classes = word[1].is_nan(words) + 2 * ((words & word[1].word.type(word[1].sign)) != 0)
        group = (at[:, 0] * len(names) + number.reshape(-1)) * 4 + classes
        for n in np.unique(group):
            chosen = np.flatnonzero(group == n)
            rows, own = np.unique(row[chosen], return_inverse=True)
            ids[chosen] = self.ids + own.reshape(-1)
            first = chosen[0]
            event = Event(
                str(kinds[first]), function, None if shared else int(numbers[at[first, 0]]), self.ids,
                at[chosen, 1:], tuple(extents), tuple(int(x[first]) for x, _ in given),
                tuple(fmt.name for _, fmt in given), int(words[first]), word[1].name, (self.stores, self.calls),
                self._here(),
            )  # fmt: skip
            self._pending.append(event)
            (self.damage if kind else self.events).append(event)
            if not kind:
                self.ids += len(rows)
        return ids

    def _damaged(self, function: str, found: Iterator[Damage]) -> None:
        for kind, mask, result, operands in found:
            self._note(function, mask, result, operands, kind)


def _at(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The elements of an operand that go with those of a result."""
    if x.ndim and x.ndim < mask.ndim:
        x = x.reshape(x.shape + (1,) * (mask.ndim - x.ndim))
    return np.broadcast_to(x, mask.shape)[mask]


def _row(at: np.ndarray, extents: tuple[int, ...]) -> np.ndarray:
    """The row of each element: all but the last axis, or the only one."""
    if len(extents) < 2:
        return at[:, -1] if len(extents) else at[:, 0] * 0
    row = at[:, 1]
    for axis in range(1, len(extents) - 1):
        row = row * extents[axis] + at[:, axis + 1]
    return row


_NAMES = ("intervals", "tracer", "trace_steps", "machine", "values", "tile", "memory", "births")
_CORE = {str(Path(__file__).parent / f"{name}.py") for name in _NAMES}


def _caller() -> tuple[str, int]:
    """The file and line of the loop that called the tile operator."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in _CORE:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_mask(x: np.ndarray) -> bool:
    """Whether a constant of float32 is a finite mask of scores."""
    value = float(x.astype(np.uint32).view(np.float32).reshape(-1)[0])
    return -np.inf < value < _LOWEST


class Watcher(Listener):
    """Runs as Exact does and raises Bad at the first bad value or damage."""

    _masks = False  # some select put a finite mask in place of scores

    def _check(self, function: str, words: np.ndarray, fmt: Format, operands: Sequence[Any]) -> np.ndarray:
        if fresh(words, fmt, operands) is not None:
            raise Bad(function)
        return words

    def _note(self, function: str, *_: Any) -> np.ndarray:
        raise Bad(function)

    def from_words(self, words: np.ndarray, fmt: Format) -> np.ndarray:
        return self._check("load", words, fmt, ())

    def loaded(self, tensor: Any, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        return self._check("load", words, tensor.fmt, ())

    def convert(self, x: np.ndarray, src: Format, dst: Format) -> np.ndarray:
        words = self.exact.convert(x, src, dst)
        self._damaged("convert", in_convert(words, x, src, dst))
        return self._check("convert", words, dst, [(x, src)])

    def constant(self, value: float, fmt: Format) -> np.ndarray:
        return self.exact.constant(value, fmt)

    def select(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self._masks = self._masks or any(x.dtype == np.uint32 and x.size == 1 and _is_mask(x) for x in (a, b))
        return self.exact.select(condition, a, b)

    def dot(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, operand: Format, accumulator: Format) -> np.ndarray:
        words = self.exact.dot(a, b, c, operand, accumulator)
        return self._check("dot", words, accumulator, [(c, accumulator)])

    def reduce(self, op: str, x: np.ndarray, order: Reduction | None, fmt: Format) -> np.ndarray:
        words = self.exact.reduce(op, x, order, fmt)
        if self._masks and op == "max" and fmt is FP32 and (words.view(np.float32) < _LOWEST).any():
            raise Bad("a row whose maximum is masked")
        return self._check("sum", words, fmt, [(_infinite(x, fmt), fmt)]) if op == "sum" else words

    def sum_lanes(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        words = self.exact.sum_lanes(x, fmt)
        return self._check("sum", words, fmt, [(_infinite(_flat(x), fmt), fmt)])

    def join_lanes(self, total: np.ndarray, fmt: Format) -> np.ndarray:
        words = self.exact.join_lanes(total, fmt)
        return self._check("sum", words, fmt, [(_infinite(total, fmt), fmt)])


def _flat(x: np.ndarray) -> np.ndarray:
    """[steps, ..., lanes] as [..., steps * lanes]."""
    return np.moveaxis(x, 0, -1).reshape(*x.shape[1:-1], -1)


def _infinite(x: np.ndarray, fmt: Format) -> np.ndarray:
    """For each row of the last axis an infinity that it has, -inf before +inf; else 0."""
    zero = np.zeros(x.shape[:-1], fmt.word)
    if nonfinite(x, fmt) is None or not fmt.infinities:
        return zero
    for infinity in (fmt.inf, fmt.inf | fmt.sign):
        zero[(x == fmt.word.type(infinity)).any(axis=-1)] = infinity
    return zero


class Tracer(Listener):
    """Follows every bad value: its values are carriers."""

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.origins = Origins()
        self.starts: list[int] = []  # the first id of each event
        self.shadows: dict[tuple[int, int], np.ndarray] = {}  # codes of global memory, by its identity and width
        self._kept: list[Any] = []  # so that identities stay
        self._rounded_up: list[Event] = []  # rows of weights that were rounded up

    # values

    def dtype(self, fmt: DType) -> np.dtype:
        return fmt.word if isinstance(fmt, Integer) else CARRIER

    def to_words(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return word(x, fmt)

    def from_words(self, words: np.ndarray, fmt: Format) -> np.ndarray:
        return self._packed("load", words, fmt, (), None)

    def constant(self, value: float, fmt: Format) -> np.ndarray:
        return pack(self.exact.constant(value, fmt))

    def _packed(
        self, function: str, words: np.ndarray, fmt: Format, operands: Sequence[Any], codes: np.ndarray | None
    ) -> np.ndarray:
        """A result, with the codes of its operands where it is bad; where those have none it is born here."""
        self.calls += 1
        bad = nonfinite(words, fmt)
        if codes is not None and not codes.any():
            codes = None
        if codes is not None:
            codes = np.broadcast_to(codes, words.shape)
            gone = codes != 0 if bad is None else (codes != 0) & ~bad
            if gone.any():
                self._swallowed(function, codes[gone])
                codes = np.where(gone, 0, codes)
        if bad is None:
            return pack(words)
        born = fresh(words, fmt, operands)
        if born is not None and codes is not None:
            born = born & (codes == 0)
        if born is not None and born.any():
            own = np.zeros(words.shape, np.int64) if codes is None else codes.copy()
            own[born] = self._bear(function, born, (words, fmt), operands)
            codes = own
        return pack(words, codes)

    def _bear(self, function: str, born: np.ndarray, result: Any, operands: Sequence[Any]) -> np.ndarray:
        """New births; their codes."""
        first, before = self.ids, len(self.events)
        ids = self._note(function, born, result, operands)
        start = self.origins.born(first, self.ids - first)
        self.starts += [e.first for e in self.events[before:]]
        return ids - first + start

    def numbers(self, codes: np.ndarray) -> list[int]:
        """The numbers of the events of some codes, first born first."""
        members = {m for c in np.unique(codes) for m in self.origins.members[c]}
        return [int(n) for n in np.unique(np.searchsorted(self.starts, sorted(members), side="right") - 1)]

    def _events(self, codes: np.ndarray) -> list[Event]:
        return [self.events[n] for n in self.numbers(codes)]

    def _swallowed(self, function: str, codes: np.ndarray) -> None:
        for event in self._events(codes):
            taken = function == "select" and event.call[0] == self.stores  # the side of a choice that nobody evaluates
            if event.dropped is None and not taken:
                event.dropped = (self._here(), function)

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: DType) -> None:
        super().wrote(operator, buffer, iteration, x, fmt)
        if isinstance(fmt, Integer) or x.dtype != CARRIER or not has_codes(x):
            return
        own, words = codes(x), word(x, fmt)
        nan, negative = fmt.is_nan(words), words >= fmt.word.type(fmt.sign)
        here = self._here(operator, buffer)
        for what, chosen in (("NaN", nan), ("+inf", ~nan & ~negative), ("-inf", ~nan & negative)):
            for event in self._events(own[chosen & (own != 0)]):
                if not any((p.operator, p.buffer, p.line) == (operator, buffer, here.line) for p, _ in event.carried):
                    event.carried.append((here, what))

    def _watch_rounding(self, words: np.ndarray, x: np.ndarray, src: Format, dst: Format) -> None:
        """Damage: rows of weights that were rounded up, in sum, where an output overflows by no more than that."""
        near = dst.is_inf(words) & (np.abs(values(x, src)) < 2.0 ** (dst.emax + 1) * (1 + 2.0**-dst.fraction_bits))
        if near.any():
            for lane, rows in enumerate(near.any(axis=-1)):
                mine = [
                    e for e in self._rounded_up if e.block == self._block.running()[lane] and e.extents == rows.shape
                ]
                self.damage += [e for e in mine if rows[e.elements[:, 0]].any() and e not in self.damage]
        elif words.max(initial=0) <= dst.max_finite:  # weights are not negative
            up = values(words, dst).sum(axis=-1) > values(x, src).sum(axis=-1)
            if up.any():
                before = len(self.damage)
                self._note("convert", up, (words.max(axis=-1), dst), [(x.max(axis=-1), src)], "rounded_up")
                self._rounded_up += self.damage[before:]
                del self.damage[before:]

    def _seen(self, function: str, weights: np.ndarray, scores: np.ndarray, fmt: Format) -> None:
        """Damage: a masked score whose weight is not 0."""
        masked = is_hidden(scores)
        if masked is not None:
            words = word(weights, fmt)
            left = masked & (words != 0)
            if left.any():
                self._note(function, left, (words, fmt), [(word(scores, fmt), fmt)], "masked_weight")

    # global memory

    def _shadow(self, tensor: Any) -> np.ndarray:
        """The codes of a tensor's memory, made when there are none: 0: as given, -1: stored and good."""
        key = id(tensor.memory), tensor.fmt.bits
        if key not in self.shadows:
            self.shadows[key] = np.zeros(tensor._flat.size, np.int64)
            self._kept.append(tensor.memory)
        return self.shadows[key]

    def loaded(self, tensor: Any, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        bad = nonfinite(words, tensor.fmt)
        if bad is None:
            return pack(words)
        shadow = self._shadow(tensor)
        given = np.unique(np.broadcast_to(at, bad.shape)[bad & (shadow[at] == 0)])
        if given.size:
            shadow[given] = self._bear_input(tensor, given)
        return pack(words, np.where(bad, np.maximum(shadow[at], 0), 0))

    def _bear_input(self, tensor: Any, at: np.ndarray) -> np.ndarray:
        """Births of what was given in global memory at flat places; their codes."""
        words, before = tensor._flat, len(self.events)
        mask = np.zeros(words.size, bool)
        mask[at] = True
        shape = tensor.shape if int(np.prod(tensor.shape)) == words.size else words.shape
        pending, self._pending = self._pending, []
        codes = self._bear("load", mask.reshape(1, *shape), (words.reshape(1, *shape), tensor.fmt), ())
        self._pending = pending
        for event in self.events[before:]:
            event.kind, event.block, event.place = "input", None, Place("input", tensor.name)
        return codes

    def stored(self, tensor: Any, at: np.ndarray, x: np.ndarray, kept: np.ndarray | None = None) -> None:
        super().stored(tensor, at, x)
        if not isinstance(tensor.fmt, Integer):
            own = codes(x)
            self._shadow(tensor)[at] = np.where(own == 0, -1, own)

    # functions

    def convert(self, x: np.ndarray, src: Format, dst: Format) -> np.ndarray:
        words = word(x, src)
        result = self.exact.convert(words, src, dst)
        self._damaged("convert", in_convert(result, words, src, dst))
        if src is FP32 and dst.bits == 16 and words.ndim == 3:
            self._watch_rounding(result, words, src, dst)
        return hide(self._packed("convert", result, dst, [(words, src)], code(x)), x)

    def max(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._extreme("max", a, b, fmt)

    def min(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._extreme("min", a, b, fmt)

    def _extreme(self, name: str, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        """The codes of the operand that was taken; the other one's are dropped."""
        words = [word(v, fmt) for v in (a, b)]
        result = getattr(self.exact, name)(*words, fmt)
        codes = None
        for w, own in zip(words, (code(a), code(b)), strict=True):
            if own is not None:
                lost = (own != 0) & (w != result) & ~(fmt.is_nan(w) & fmt.is_nan(result))
                if lost.any():
                    self._swallowed(name, np.broadcast_to(own, lost.shape)[lost])
                codes = self.origins.join(codes, np.where(lost, 0, own))
        return pack(result, codes)

    def select(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype == CARRIER:
            a, b = (hidden(x) if x.size == 1 and _is_mask(word(x, FP32)) else x for x in (a, b))
            for lost, x in ((~condition, a), (condition, b)):
                codes = code(x)
                if codes is not None:
                    gone = (codes != 0) & lost
                    if gone.any():
                        self._swallowed("select", np.broadcast_to(codes, gone.shape)[gone])
        return np.where(condition, a, b)

    def dot(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, operand: Format, accumulator: Format) -> np.ndarray:
        x, y, z = word(a, operand), word(b, operand), word(c, accumulator)
        result = self.exact.dot(x, y, z, operand, accumulator)
        rows, columns = (self.origins.gather(code(v), -1) for v in (a, b))
        codes = self.origins.join(
            None if rows is None else rows[:, :, None], None if columns is None else columns[:, None, :]
        )
        codes = self.origins.join(codes, code(c))
        return hide(self._packed("dot", result, accumulator, [(z, accumulator)], codes), c)

    def reduce(self, op: str, x: np.ndarray, order: Reduction | None, fmt: Format) -> np.ndarray:
        words = word(x, fmt)
        result = self.exact.reduce(op, words, order, fmt)
        if op == "sum":
            return self._packed("sum", result, fmt, [(_infinite(words, fmt), fmt)], self.origins.gather(code(x), -1))
        codes = code(x)
        if codes is not None:
            lost = (codes != 0) & (words != result[..., None])
            if lost.any():
                self._swallowed(f"reduce_{op}", codes[lost])
            codes = self.origins.gather(np.where(lost, 0, codes), -1)
        return pack(result, codes)

    def spread_nan(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        words = word(x, fmt)
        codes = code(x)
        found = None if codes is None else self.origins.gather(np.where(fmt.is_nan(words), codes, 0), -1)
        return pack(self.exact.spread_nan(words, fmt), found)

    def sum_lanes(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        words = word(x, fmt)
        result, codes = self.exact.sum_lanes(words, fmt), code(x)
        if codes is not None:
            codes = self.origins.gather(_flat(codes), -1)
        return self._packed("sum", result, fmt, [(_infinite(_flat(words), fmt), fmt)], codes)

    def join_lanes(self, total: np.ndarray, fmt: Format) -> np.ndarray:
        words = word(total, fmt)
        result, codes = self.exact.join_lanes(words, fmt), self.origins.gather(code(total), -1)
        return self._packed("sum", result, fmt, [(_infinite(words, fmt), fmt)], codes)


def _watched(name: str) -> Callable[..., np.ndarray]:
    def method(self: Watcher, *arguments: Any) -> np.ndarray:
        *operands, fmt = arguments
        words: np.ndarray = getattr(self.exact, name)(*operands, fmt)
        self._damaged(name, done(name, words, operands, fmt))
        return self._check(name, words, fmt, [(x, fmt) for x in operands])

    return method


def _traced(name: str) -> Callable[..., np.ndarray]:
    def method(self: Tracer, *arguments: Any) -> np.ndarray:
        *operands, fmt = arguments
        words = [word(x, fmt) for x in operands]
        result = getattr(self.exact, name)(*words, fmt)
        self._damaged(name, done(name, result, words, fmt))
        codes = None
        for x in operands:
            codes = self.origins.join(codes, code(x))
        found = self._packed(name, result, fmt, [(w, fmt) for w in words], codes)
        if name in ("exp2", "exp"):
            self._seen(name, found, operands[0], fmt)
            return found
        return hide(found, operands[0]) if name in _SCORES else found

    return method


def _moved(name: str) -> Callable[..., np.ndarray]:
    def method(self: Tracer, x: np.ndarray, fmt: Format) -> np.ndarray:
        return pack(getattr(self.exact, name)(word(x, fmt), fmt), code(x))

    return method


for _name in _COMPUTES:
    setattr(Watcher, _name, _watched(_name))
    setattr(Tracer, _name, _traced(_name))
for _name in _MOVES:
    setattr(Tracer, _name, _moved(_name))
