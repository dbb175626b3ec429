"""TIR statements as Python functions of a frame: loops, branches, stores and tile operators of a PrimFunc."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..memory import Memory, Tensor
from ..tile import Block, Private, Tile
from ..values import Index, rows
from .conflicts import Turns, shared_places
from .expressions import Evaluate, Translator, as_index, condition
from .frame import Frame, Unsupported, dtype_of
from .leaving import Leaving
from .lowering import placed
from .operators import OPERATORS
from .region import Access

__all__ = ["Need", "Program", "Statements"]

Run = Callable[[Frame], None]
_IGNORED = {  # calls that do not change what is computed
    "tirx.assume",
    "tl.no_set_max_nreg",
    "tl.set_max_nreg",
    "tl.annotate_producer_reg_dealloc",
    "tl.annotate_consumer_reg_alloc",
    "tirx.tvm_storage_sync",
    "tl.fence_proxy_async",
}
_LOCAL = ("local.fragment", "shared.dyn", "shared", "local", "local.var")
_NEEDS = {"IfThenElse": "if", "While": "while", "SBlock": "T.Kernel's tiles"}  # statements that `needs` lists
_UNKNOWN = 384  # stands for a size that nobody gave
_PRIVATE = ("local", "local.var")  # each thread has its own


@dataclass(frozen=True)
class Need:
    """Something that a kernel uses: what, the source line of its statement, and whether the simulator runs it."""

    what: str
    where: str
    supported: bool


class Program:
    """A translated kernel launch: `run(frame)` for blocks in step; grid: the blockIdx variables and their extents.

    body: the statement that it was translated from
    """

    def __init__(self) -> None:
        self.body: Any = None
        self.grid: list[tuple[Any, str, Evaluate]] = []
        self.threads = 1
        self.run: Run = lambda frame: None


_CHILDREN = {  # where the nodes below a node are; a and b otherwise
    "SeqStmt": ("seq",),
    "For": ("min", "extent", "body"),
    "While": ("condition", "body"),
    "IfThenElse": ("condition", "then_case", "else_case"),
    "SBlockRealize": ("block",),
    "SBlock": ("body",),
    "AttrStmt": ("body",),
    "Bind": ("value",),
    "Evaluate": ("value",),
    "BufferStore": ("value", "indices"),
    "BufferLoad": ("indices",),
    "Cast": ("value",),
    "Not": ("a",),
    "Call": ("args",),
    "Select": ("condition", "true_value", "false_value"),
    "Var": (),
    "IntImm": (),
    "FloatImm": (),
    "StringImm": (),
}


def _not_known(load: Any) -> Evaluate:
    raise Unsupported("a load")


def _walk(node: Any, visit: Callable[[Any], None]) -> None:
    """Visit a node each time that it occurs, not once as TVM's visitors do."""
    visit(node)
    for name in _CHILDREN.get(type(node).__name__, ("a", "b")):
        child = getattr(node, name, None)
        if child is not None:
            for each in child if name in ("seq", "args", "indices") else [child]:
                _walk(each, visit)


class Statements:
    """Translates the statements of one PrimFunc; tensors: global memory by the data variable of its buffer.

    needs: what the kernel uses. collect: go on after what is not supported, so that `needs` has all of it.
    """

    def __init__(self, tensors: dict[Any, Tensor], sizes: dict[Any, int] | None = None, collect: bool = False):
        self.tensors, self.sizes, self.collect = tensors, sizes or {}, collect
        self.needs: list[Need] = []
        self.where = ""  # the source line of the statement that is translated
        self.inside: list[Any] = []  # the T.Parallel loops around it
        self.loops: list[tuple[bool, bool]] = []  # the serial loops around it: in a T.Parallel one, with stages
        self.leaves = 0  # break and continue statements so far that leave a loop around it
        self.storage: dict[Any, Any] = {}  # data variable -> the Buffer that was allocated with it
        self.programs: list[Program] = []
        self.reductions = 0  # reduce operators seen so far, in program order
        self.gemms: list[tuple[Any, Any, str]] = []  # operand and accumulator formats, and the source line
        self.staged: list[str] = []  # fragments that a loop with stages copies to from global memory, for each copy
        self.sums: list[int] = []  # those whose order matters
        self.names: set[str] = set()  # the tiles
        self.threads: set[Any] = set()  # variables that are a thread's index
        self.translator = Translator(self.load, self.need)
        self._program: Program | None = None
        self.sources: dict[str, str] = {}  # the path of each source file, by its name

    def outline(self, pf: Any) -> None:
        """Global memory of a kernel that is translated and not run: unknown sizes are some number."""
        for p in pf.params:
            if p in pf.buffer_map:
                buffer = pf.buffer_map[p]
                for symbol in buffer.shape:
                    if type(symbol).__name__ == "Var":
                        self.sizes.setdefault(symbol, _UNKNOWN)
            else:
                self.sizes[p] = _UNKNOWN
        for buffer in pf.buffer_map.values():
            try:
                fmt = dtype_of(buffer)
            except Unsupported as error:
                self.needs.append(Need(error.what, "", False))
                continue
            shape = self.shape(buffer.shape)
            nothing = [np.broadcast_to(np.zeros(1, fmt.word), n) for n in (shape, int(np.prod(shape)))]
            self.tensors[buffer.data] = Tensor(str(buffer.name), nothing[0], fmt, Memory(nothing[1], fmt.bits))

    # buffers

    def access(self, buffer: Any) -> Access:
        """How a buffer is reached at run time: itself, or a view of the memory that its data variable names."""
        data, shape, fmt = buffer.data, self.shape(buffer.shape), dtype_of(buffer)
        if data in self.tensors:
            tensor = self.tensors[data]
            if tensor.layout is not None and (shape, fmt) != (tensor.shape, tensor.fmt):
                raise Unsupported(f"a view of {buffer.name}, which has an annotated layout")
            own = tensor if (shape, fmt) == (tensor.shape, tensor.fmt) else tensor.view(shape, fmt)
            return Access(buffer, shape, fmt, lambda frame: own, True)
        if data not in self.storage:
            raise Unsupported(f"buffer {buffer.name} in scope {buffer.scope()!r}")
        if (shape, fmt) == self.storage[data]:
            return Access(buffer, shape, fmt, lambda frame: frame.tiles[data], False)
        return Access(buffer, shape, fmt, lambda frame: frame.tiles[data].view(shape, fmt), False)

    def size(self, e: Any, what: str = "a size") -> int:
        """An integer that is known before the kernel runs. Raises Unsupported when it is not."""
        if type(e).__name__ == "IntImm":
            return int(e.value)
        if isinstance(e, int):
            return e
        frame = Frame(Block(None, 1, 1))  # type: ignore[arg-type]
        frame.define(self.sizes)
        try:
            return int(Translator(_not_known).expression(e)(frame))
        except Unsupported as error:
            raise Unsupported(f"{what} that is not known before the kernel runs") from error

    def shape(self, sizes: Any) -> tuple[int, ...]:
        return tuple(self.size(n, "a buffer's size") for n in sizes)

    def load(self, e: Any) -> Evaluate:
        """The function of a BufferLoad."""
        access, key = self.access(e.buffer), [self.translator.expression(i) for i in e.indices]

        return lambda frame: access.load(frame, tuple(k(frame) for k in key))

    # statements

    def statement(self, s: Any) -> Run:
        """The function that runs `s`. Raises Unsupported by name and source line."""
        kind = type(s).__name__
        self._at(s)
        try:
            method = getattr(self, "_" + kind.lower(), None)
            if method is None:
                raise Unsupported(f"statement {kind}")
            if kind in _NEEDS:
                self.need(_NEEDS[kind])
            run: Run = method(s)
            return _at_line(run, self.where) if kind in ("BufferStore", "Evaluate") and run is not _nothing else run
        except Unsupported as error:
            self._missing(error)
            return _nothing

    def _at(self, s: Any) -> None:
        """Remember the source line of a statement; of what TileLang's own macros make, the last line before it."""
        found = _line(s, self.sources)
        if found is None:
            self.where = self.where if self.where.startswith("after") or not self.where else f"after {self.where}"
        elif found:
            self.where = found

    def _missing(self, error: Unsupported) -> None:
        """Raise what is not supported, with its source line, or note it and go on."""
        error.where = error.where or self.where
        if not self.collect:
            raise error
        self.needs.append(Need(error.what, error.where, False))

    def need(self, what: str) -> None:
        """Note something that the kernel uses and that is supported."""
        self.needs.append(Need(what, self.where, True))

    def _seqstmt(self, s: Any) -> Run:
        parts: list[tuple[Run, bool]] = []
        for x in s.seq:
            before = self.leaves
            run_part = self.statement(x)
            parts.append((run_part, self.leaves > before))

        def run(frame: Frame, first: int = 0) -> None:
            for n, (part, leaves) in enumerate(parts[first:], first):
                part(frame)
                if leaves:
                    with frame.leaving[-1].staying(frame) as some:
                        if some:
                            run(frame, n + 1)
                    return

        return run

    def _sblockrealize(self, s: Any) -> Run:
        return self._sblock(s.block)

    def _sblock(self, s: Any) -> Run:
        threads = s.annotations.get("tl.launch_threads")
        if threads is not None and self._program is not None:
            self._program.threads = int(np.prod([int(t) for t in threads]))
        for buffer in s.alloc_buffers:
            try:
                self._allocate(buffer)
            except Unsupported as error:
                self._missing(error)
        mine = [b for b in s.alloc_buffers if b.data in self.storage]
        allocated = [(b.data, b.name, b.scope(), *self.storage[b.data]) for b in mine]
        outer = self.tensors
        self.tensors = outer | dict(self._laid_out(s.annotations))
        body = self.statement(s.body)
        self.tensors = outer | {data: t for data, t in self.tensors.items() if data not in outer}

        def run(frame: Frame) -> None:
            for data, name, scope, shape, fmt in allocated:
                frame.tiles[data] = Tile(frame.block, name, scope, shape, fmt)
            body(frame)

        return run

    def _laid_out(self, annotations: Any) -> Iterator[tuple[Any, Tensor]]:
        """Tensors whose elements T.annotate_layout moves inside this block; tiles' layouts do not change a word."""
        for data, layout in annotations.get("layout_map", {}).items():
            tensor = self.tensors.get(data)
            if tensor is not None:
                moved = tensor.view(tensor.shape, tensor.fmt)
                moved.layout = placed(layout, tensor.shape)
                yield data, moved

    def _allocate(self, buffer: Any) -> None:
        """A tile of each thread block, or with T.alloc_global memory that all of them share."""
        scope, shape, fmt = buffer.scope(), self.shape(buffer.shape), dtype_of(buffer)
        self.need(f"buffer in scope {scope}")
        self.names.add(str(buffer.name))
        if scope == "global":
            self.tensors[buffer.data] = Tensor.unwritten(str(buffer.name), shape, fmt)
        elif scope in _LOCAL:
            self.storage[buffer.data] = shape, fmt
        else:
            raise Unsupported(f"buffer {buffer.name} in scope {scope!r}")

    def _for(self, s: Any) -> Run:
        if s.thread_binding is not None:
            return self._launch(s)
        kind = int(s.kind)
        if kind == 1:
            return self._parallel(s)
        start, extent = self.translator.expression(s.min), self.translator.expression(s.extent)
        where, elements = self.where, self.inside[:]
        (body, leaves), variable = self._turn(s, "num_stages" in s.annotations), s.loop_var

        def run(frame: Frame) -> None:
            first, count = frame.known(start(frame), where), frame.known(extent(frame), where)
            turns = frame.block.turns
            if leaves:
                frame.leaving.append(Leaving(frame, bool(elements)))
            if isinstance(count, Index) and count.at.ndim > 1:
                for k in range(int(count.at.max(initial=0))):
                    frame.block.turns = (*turns, k)
                    with frame.guard(count > k):
                        frame.bind(variable, first + k)
                        body(frame)
            else:
                _lanes_turns(frame, body, variable, first, count)
            if leaves:
                frame.leaving.pop()
            frame.block.turns = turns

        return run

    def _turn(self, s: Any, stages: bool = False) -> tuple[Run, bool]:
        """The body of a serial loop, and whether a break or continue leaves it."""
        before = self.leaves
        self.loops.append((bool(self.inside), stages))
        body = self.statement(s.body)
        self.loops.pop()
        if self.leaves == before:
            return body, False
        self.leaves = before

        def run(frame: Frame) -> None:
            leaving = frame.leaving[-1]
            leaving.next()
            with leaving.staying(frame) as some:
                if some:
                    body(frame)

        return run, True

    def stage(self, source: Access, target: Access) -> int | None:
        """The number of a copy from global memory into registers in a loop with stages; None for another one."""
        if not any(stages for _, stages in self.loops) or not source.is_global or target.scope != "local.fragment":
            return None
        self.staged.append(target.name)
        return len(self.staged) - 1

    def _leave(self, name: str) -> Run:
        """break, or continue."""
        inside, stages = self.loops[-1] if self.loops else (False, True)
        if inside is not bool(self.inside) or stages:
            raise Unsupported(f"a {name} out of a " + ("T.Pipelined" if stages else "T.Parallel") + " loop")
        self.leaves += 1
        self.need(name)
        where = self.where
        return lambda frame: frame.leaving[-1].leave(frame, name == "break", where)

    def _parallel(self, s: Any) -> Run:
        if self.inside:
            raise Unsupported("a T.Parallel loop inside another one")
        variables, extents = [], []
        while type(s).__name__ == "For" and int(s.kind) == 1:
            variables.append(s.loop_var)
            extents.append(self.size(s.extent, "the extent of a T.Parallel loop"))
            s = s.body
        walked = [v for v, extent in zip(variables, extents, strict=True) if extent > 1]
        private, meet = _private(s), shared_places(s, walked, _walk, _PRIVATE)
        self.inside.append(s)
        body = self.statement(s)
        self.inside.pop()

        def run(frame: Frame) -> None:
            indices = frame.block.Parallel(*extents)
            for variable, index in zip(variables, indices, strict=True):
                frame.bind(variable, index)
            shared = {data: frame.tiles[data] for data in private}
            frame.tiles |= {data: Private(tile, indices) for data, tile in shared.items()}
            frame.turns = Turns(frame, meet) if meet else None
            body(frame)
            if frame.turns is not None:
                frame.turns.close()
                frame.turns = None
            frame.block.parallel_extents = ()
            for data, tile in shared.items():
                frame.tiles[data].close(tile)
            frame.tiles |= shared

        return run

    def _launch(self, s: Any) -> Run:
        """The loops over blockIdx and what they launch."""
        program = self._program = Program()
        while type(s).__name__ == "For" and s.thread_binding is not None:
            tag = str(s.thread_binding.thread_tag)
            if not tag.startswith("blockIdx"):
                raise Unsupported(f"a loop bound to {tag}")
            program.grid.append((s.loop_var, tag, self.translator.expression(s.extent)))
            s = s.body
        program.body, program.run = s, self.statement(s)
        self.programs.append(program)
        self._program = None
        return lambda frame: None

    def _ifthenelse(self, s: Any) -> Run:
        if self._by_one_thread(s):
            return self.statement(s.then_case)
        where, test = self.where, self.translator.expression(s.condition)
        then = self.statement(s.then_case)
        other = self.statement(s.else_case) if s.else_case is not None else None

        def run(frame: Frame) -> None:
            taken = condition(test(frame))
            if isinstance(taken, bool):
                (then if taken else other or _nothing)(frame)
                return
            unknown, sides = frame.unknown(taken), (taken, taken.apply(_not, 0))
            with contextlib.ExitStack() as stack:
                if unknown is not None:  # both sides, in doubt
                    frame.block.where = where
                    frame.block.report("uninitialised", "a condition", "if")
                    stack.enter_context(frame.doubting(unknown))
                    sides = (sides[0].apply(np.logical_or, unknown), sides[1].apply(np.logical_or, unknown))
                for side, body in zip(sides, (then, other), strict=True):
                    if body is not None and side.at.any():
                        with frame.taking(Index(side.at)):
                            body(frame)

        return run

    def _by_one_thread(self, s: Any) -> bool:
        """Whether one thread of each block runs this for all of them, and it is a T.print."""
        test, calls = s.condition, []
        _walk(s.then_case, lambda node: calls.append(_extern(node)) if type(node).__name__ == "Evaluate" else None)
        one = type(test).__name__ == "EQ" and test.a in self.threads and s.else_case is None
        return one and all(name.startswith("debug_print") for name in calls)

    def _while(self, s: Any) -> Run:
        where, test = self.where, self.translator.expression(s.condition)
        body, leaves = self._turn(s)
        if self.inside:
            return lambda frame: _while_elements(frame, test, body, where, leaves)

        def run(frame: Frame) -> None:
            leaving = Leaving(frame, False)
            frame.leaving.append(leaving)
            turns(frame, leaving)
            frame.leaving.pop()

        def turns(frame: Frame, leaving: Leaving) -> None:
            running = frame.lanes
            while running.count:
                running = running.where(~leaving.loop[running.places()]) if leaves else running
                with frame.running(running):
                    goes = frame.known(condition(test(frame)), where)
                    if goes is False:
                        return
                    chosen = np.broadcast_to(goes.at if isinstance(goes, Index) else np.ones(1, bool), (running.count,))
                    running = running if chosen.all() else running.where(chosen)
                if running.count:
                    with frame.running(running):
                        body(frame)

        return run

    def _bufferstore(self, s: Any) -> Run:
        access, value = self.access(s.buffer), self.translator.expression(s.value)
        key = [self.translator.expression(i) for i in s.indices]
        keep = self.translator.contraction.keeps(s)

        def run(frame: Frame) -> None:
            result, where = value(frame), tuple(k(frame) for k in key)
            access.store(frame, where, result, keep_product=keep)

        return run

    def _bind(self, s: Any) -> Run:
        if getattr(getattr(s.value, "op", None), "name", "") == "tl.launch_thread_idx":
            self.threads.add(s.var)
            self.translator.refused[s.var] = f"a thread's own index ({s.var.name})"
            return _nothing
        value, variable = self.translator.expression(s.value), s.var

        def run(frame: Frame) -> None:
            frame.bind(variable, value(frame))

        return run

    def _attrstmt(self, s: Any) -> Run:
        if s.attr_key not in ("threadblock_swizzle_pattern", "pragma_import_c", "warp_specialize"):
            raise Unsupported(f"attribute {s.attr_key}")
        return self.statement(s.body)

    def _evaluate(self, s: Any) -> Run:
        if type(s.value).__name__ != "Call":
            return _nothing
        name = s.value.op.name
        if name in _IGNORED or _extern(s).startswith("TL_IKET_"):  # marks for a profiler
            return _nothing
        if name in ("tirx.break_loop", "tirx.continue_loop"):
            return self._leave(name[5:-5])
        if _extern(s).startswith("debug_print"):
            return self._print(s.value.args[1:])
        if name not in OPERATORS:
            raise Unsupported(f"operator {name}")
        if self.inside and "tileop" in name:
            raise Unsupported(f"operator {name} inside a T.Parallel loop")
        self.need(name)
        return OPERATORS[name](self, s.value)

    def _print(self, args: Any) -> Run:
        """T.print: a line for each thread block that runs, with the message, the name and index if any, the value."""
        message, *rest = args
        name = str(rest[0].value) if len(rest) > 1 else ""
        values = [self.translator.expression(e) for e in rest[1 if name else 0 :]]

        def run(frame: Frame) -> None:
            found = [frame.shown(value(frame)) for value in values]
            for place, lane in enumerate(frame.lanes.places()):
                shown = [x[place if len(x) > 1 else 0] for x in found]
                what = f"{name}[{int(shown[0])}] = {shown[1]}" if name else " ".join(map(str, shown))
                print(f"{message.value} (block {frame.block.numbers[lane]}): {what}")

        return run


def _extern(s: Any) -> str:
    """The name of the function of an Evaluate that calls a call_extern, else ""."""
    call = s.value
    if type(call).__name__ != "Call" or call.op.name != "tirx.call_extern":
        return ""
    return str(call.args[0].value)


def _at_line(run: Run, where: str) -> Run:
    """`run`, whose reports name their source line."""

    def located(frame: Frame) -> None:
        frame.block.where = where
        run(frame)

    return located


@cache
def _own_folder() -> str:
    """Where TileLang's own macros are."""
    import tilelang

    return str(Path(tilelang.__file__).parent)


def _line(s: Any, sources: dict[str, str]) -> str | None:
    """The source line of a statement; "" where it has none (a loaded kernel), None in TileLang's own macros.

    sources: the path of each file, by its name; this one is added
    """
    from tilelang.ir import get_stmt_span

    span = get_stmt_span(s)
    if span is None:
        return ""
    if span.source_name.name.startswith(_own_folder()):
        return None
    path = Path(span.source_name.name)
    sources[path.name] = str(path)
    return f"{path.name}:{span.line}"


def _private(body: Any) -> list[Any]:
    """The local buffers that a T.Parallel loop stores to: each element has its own, when threads share the loop."""
    stored, scopes = {}, set()

    def visit(node: Any) -> None:
        if type(node).__name__ in ("BufferStore", "BufferLoad"):
            scopes.add(node.buffer.scope())
        if type(node).__name__ == "BufferStore" and node.buffer.scope() in _PRIVATE:
            stored[node.buffer.data] = True

    _walk(body, visit)
    return list(stored) if scopes - set(_PRIVATE) else []


def _lanes_turns(frame: Frame, body: Run, variable: Any, first: Any, count: Any) -> None:
    """The turns of a serial loop whose count may differ between thread blocks."""
    counts = np.broadcast_to(count.at if isinstance(count, Index) else np.asarray(count), (frame.lanes.count,))
    outer, before, turns = frame.lanes, frame.block.iteration, frame.block.turns
    for k in range(int(counts.max(initial=0))):
        with frame.running(outer if k < int(counts.min()) else outer.where(counts > k)):
            frame.bind(variable, _shift(first, k, outer, frame))
            frame.block.iteration, frame.block.turns = k, (*turns, k)
            body(frame)
    frame.block.iteration = before


def _while_elements(frame: Frame, test: Evaluate, body: Run, where: str, leaves: bool) -> None:
    """A while loop inside a T.Parallel loop: each element goes on as long as its condition holds."""
    running: Index | None = None
    frame.leaving.append(leaving := Leaving(frame, True))
    while running is None or running.at.any():
        if leaves and running is not None:
            running = running.apply(np.logical_and, Index(~leaving.loop[frame.lanes.places()]))
        with contextlib.ExitStack() as stack:
            if running is not None:
                stack.enter_context(frame.guard(running))
            goes = frame.known(as_index(condition(test(frame))), where)
            running = goes if running is None else running.apply(np.logical_and, goes)
        if running.at.any():
            with frame.guard(running):
                body(frame)
    frame.leaving.pop()


def _not(x: np.ndarray, _: Any) -> np.ndarray:
    return np.logical_not(x)


def _nothing(frame: Frame) -> None:
    pass


def _shift(first: Any, k: int, outer: Any, frame: Frame) -> Any:
    """The loop variable: first + k."""
    if not isinstance(first, Index):
        return first + k
    return Index(rows(first.at, frame.lanes.among(outer)) + k)
