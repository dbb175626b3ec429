"""TIR statements as Python functions of a frame: loops, branches, stores and tile operators of a PrimFunc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..formats import dtype_named
from ..tile import Block, Index, Tensor, Tile, Value, rows
from .expressions import Evaluate, Translator, condition
from .frame import Frame, Unsupported
from .operators import OPERATORS, Access

__all__ = ["Program", "Statements"]

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


class Program:
    """A translated kernel launch: `run(frame)` for blocks in step; grid: the blockIdx variables and their extents."""

    def __init__(self) -> None:
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


class Uses:
    """How often a kernel's text reads each buffer and variable: a product with one use may be fused with it."""

    def __init__(self, body: Any = None):
        self.reads: Counter[Any] = Counter()
        self.variables: Counter[Any] = Counter()
        if body is not None:
            self._walk(body)

    def _walk(self, node: Any) -> None:
        """Visit a node each time that it occurs, not once as TVM's visitors do."""
        self._visit(node)
        for name in _CHILDREN.get(type(node).__name__, ("a", "b")):
            child = getattr(node, name, None)
            if child is not None:
                for each in child if name in ("seq", "args", "indices") else [child]:
                    self._walk(each)

    def _visit(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "BufferLoad":
            self.reads[node.buffer.data] += 1
        elif kind == "Var":
            self.variables[node] += 1
        elif kind == "Call" and getattr(node.op, "name", "") == "tl.region" and int(node.args[1]) == 2:
            self.reads[node.args[0].buffer.data] -= 1  # the load inside a region that is only written


class Statements:
    """Translates the statements of one PrimFunc; tensors: global memory by the data variable of its buffer."""

    def __init__(self, tensors: dict[Any, Tensor], sizes: dict[Any, int] | None = None):
        self.tensors, self.sizes = tensors, sizes or {}
        self.storage: dict[Any, Any] = {}  # data variable -> the Buffer that was allocated with it
        self.programs: list[Program] = []
        self.uses = Uses()
        self.reductions = 0  # reduce operators seen so far, in program order
        self.translator = Translator(self.load)
        self._program: Program | None = None

    # buffers

    def access(self, buffer: Any) -> Access:
        """How a buffer is reached at run time: itself, or a view of the memory that its data variable names."""
        data, shape, fmt = buffer.data, self.shape(buffer.shape), dtype_named(str(buffer.dtype))
        if data in self.tensors:
            tensor = self.tensors[data]
            own = tensor if (shape, fmt) == (tensor.words.shape, tensor.fmt) else tensor.view(shape, fmt)
            return Access(str(buffer.name), shape, fmt, lambda frame: own)
        if data not in self.storage:
            raise Unsupported(f"buffer {buffer.name} in scope {buffer.scope()!r} that is not allocated here", buffer)
        if (shape, fmt) == self.storage[data]:
            return Access(str(buffer.name), shape, fmt, lambda frame: frame.tiles[data])
        return Access(str(buffer.name), shape, fmt, lambda frame: frame.tiles[data].view(shape, fmt))

    def size(self, e: Any, what: str = "a size") -> int:
        """An integer that is known before the kernel runs. Raises Unsupported when it is not."""
        if type(e).__name__ == "IntImm":
            return int(e.value)
        if isinstance(e, int):
            return e
        frame = Frame(Block(None, 1, 1))  # type: ignore[arg-type]
        for variable, value in self.sizes.items():
            frame.bind(variable, value)
        try:
            found = self.translator.expression(e)(frame)
        except Unsupported as error:
            raise Unsupported(f"{what} that is not known before the kernel runs", e) from error
        return int(found)

    def shape(self, sizes: Any) -> tuple[int, ...]:
        return tuple(self.size(n, "a buffer's size") for n in sizes)

    def load(self, e: Any) -> Evaluate:
        """The function of a BufferLoad."""
        access, key = self.access(e.buffer), [self.translator.expression(i) for i in e.indices]

        def read(frame: Frame) -> Any:
            where, source = tuple(k(frame) for k in key), access.get(frame)
            if isinstance(source, Tensor):
                return source.load(where, frame.block)
            guard = None if frame.guarded is None else frame.guarded.at
            return source.load(where, guard)

        return read

    # statements

    def statement(self, s: Any) -> Run:
        """The function that runs `s`. Raises Unsupported by name."""
        kind = type(s).__name__
        method = getattr(self, "_" + kind.lower(), None)
        if method is None:
            raise Unsupported(f"statement {kind}", s)
        run: Run = method(s)
        return run

    def _seqstmt(self, s: Any) -> Run:
        parts = [self.statement(x) for x in s.seq]

        def run(frame: Frame) -> None:
            for part in parts:
                part(frame)

        return run

    def _sblockrealize(self, s: Any) -> Run:
        return self._sblock(s.block)

    def _sblock(self, s: Any) -> Run:
        threads = s.annotations.get("tl.launch_threads")
        if threads is not None and self._program is not None:
            self._program.threads = int(np.prod([int(t) for t in threads]))
        for buffer in s.alloc_buffers:
            if buffer.scope() not in _LOCAL:
                raise Unsupported(f"buffer {buffer.name} in scope {buffer.scope()!r}", buffer)
            self.storage[buffer.data] = self.shape(buffer.shape), dtype_named(str(buffer.dtype))
        allocated = [(b.data, b.name, b.scope(), *self.storage[b.data]) for b in s.alloc_buffers]
        body = self.statement(s.body)

        def run(frame: Frame) -> None:
            for data, name, scope, shape, fmt in allocated:
                frame.tiles[data] = Tile(frame.block, name, scope, shape, fmt)
            body(frame)

        return run

    def _for(self, s: Any) -> Run:
        if s.thread_binding is not None:
            return self._launch(s)
        kind = int(s.kind)
        if kind == 1:
            return self._parallel(s)
        start, extent = self.translator.expression(s.min), self.translator.expression(s.extent)
        body, variable = self.statement(s.body), s.loop_var

        def run(frame: Frame) -> None:
            first, count = start(frame), extent(frame)
            if isinstance(count, Index) and count.at.ndim > 1:
                raise Unsupported("a serial loop whose extent differs between elements of a parallel loop", s)
            counts = np.broadcast_to(count.at if isinstance(count, Index) else np.asarray(count), (frame.lanes.count,))
            outer, before = frame.lanes, frame.block.iteration
            for k in range(int(counts.max(initial=0))):
                with frame.running(outer if k < int(counts.min()) else outer.where(counts > k)):
                    frame.bind(variable, _shift(first, k, outer, frame))
                    frame.block.iteration = k
                    body(frame)
            frame.block.iteration = before

        return run

    def _parallel(self, s: Any) -> Run:
        variables, extents = [], []
        while type(s).__name__ == "For" and int(s.kind) == 1:
            variables.append(s.loop_var)
            extents.append(self.size(s.extent, "the extent of a T.Parallel loop"))
            s = s.body
        body = self.statement(s)

        def run(frame: Frame) -> None:
            block, outer = frame.block, frame.block.parallel_extents
            if outer:
                raise Unsupported("a T.Parallel loop inside another one", s)
            indices = block.Parallel(*extents)
            for variable, index in zip(variables, indices, strict=True):
                frame.bind(variable, index)
            body(frame)
            block.parallel_extents = outer

        return run

    def _launch(self, s: Any) -> Run:
        """The loops over blockIdx and what they launch."""
        program = self._program = Program()
        while type(s).__name__ == "For" and s.thread_binding is not None:
            tag = str(s.thread_binding.thread_tag)
            if not tag.startswith("blockIdx"):
                raise Unsupported(f"a loop bound to {tag}", s)
            program.grid.append((s.loop_var, tag, self.translator.expression(s.extent)))
            s = s.body
        program.run = self.statement(s)
        self.programs.append(program)
        self._program = None
        return lambda frame: None

    def _ifthenelse(self, s: Any) -> Run:
        test, then = self.translator.expression(s.condition), self.statement(s.then_case)
        other = self.statement(s.else_case) if s.else_case is not None else None

        def run(frame: Frame) -> None:
            taken = condition(test(frame))
            if isinstance(taken, bool):
                (then if taken else other or _nothing)(frame)
            elif taken.at.ndim > 1:
                for side, body in ((taken, then), (taken.apply(_not, 0), other)):
                    if body is not None and side.at.any():
                        with frame.guard(side):
                            body(frame)
            else:
                chosen, outer = np.broadcast_to(taken.at, (frame.lanes.count,)), frame.lanes
                for these, body in ((chosen, then), (~chosen, other)):
                    if body is not None and these.any():
                        with frame.running(outer.where(these)):
                            body(frame)

        return run

    def _while(self, s: Any) -> Run:
        test, body = self.translator.expression(s.condition), self.statement(s.body)

        def run(frame: Frame) -> None:
            outer = frame.lanes
            running = outer
            while running.count:
                with frame.running(running):
                    goes = condition(test(frame))
                    if isinstance(goes, Index) and goes.at.ndim > 1:
                        raise Unsupported("a while loop inside a T.Parallel loop", s)
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
        self.translator.forget(s.buffer.data)
        keep = self.uses.reads.get(s.buffer.data) == 1 and s.buffer.scope() in ("local.fragment", "local")

        def run(frame: Frame) -> None:
            result, where = value(frame), tuple(k(frame) for k in key)
            access.store(frame, where, result, keep_product=keep)

        return run

    def _bind(self, s: Any) -> Run:
        if getattr(getattr(s.value, "op", None), "name", "") == "tl.launch_thread_idx":
            return _nothing
        value, variable, once = self.translator.expression(s.value), s.var, self.uses.variables.get(s.var) == 1

        def run(frame: Frame) -> None:
            result = value(frame)
            frame.bind(variable, result.rounded() if isinstance(result, Value) and not once else result)

        return run

    def _attrstmt(self, s: Any) -> Run:
        if s.attr_key not in ("threadblock_swizzle_pattern", "pragma_import_c", "warp_specialize"):
            raise Unsupported(f"attribute {s.attr_key}", s)
        return self.statement(s.body)

    def _evaluate(self, s: Any) -> Run:
        if type(s.value).__name__ != "Call":
            return _nothing
        name = s.value.op.name
        if name in _IGNORED:
            return _nothing
        if name not in OPERATORS:
            raise Unsupported(f"operator {name}", s.value)
        return OPERATORS[name](self, s.value)


def _not(x: np.ndarray, _: Any) -> np.ndarray:
    return np.logical_not(x)


def _nothing(frame: Frame) -> None:
    pass


def _shift(first: Any, k: int, outer: Any, frame: Frame) -> Any:
    """The loop variable: first + k."""
    if not isinstance(first, Index):
        return first + k
    return Index(rows(first.at, frame.lanes.among(outer)) + k)
