"""Taps: a PrimFunc that also stores what its tiles hold after each operator, into tensors of its own.

Every operator that stores to a tile (a tile operator, a T.Parallel loop) is a *site*. `Taps` finds them, and
`Taps.tapped` gives the PrimFunc with a parallel loop after each chosen site that copies the tile to a new parameter
[thread blocks, turns of the serial loops around it, *tile].

Loops of a tapped kernel are not pipelined, which does not change what they compute: in a kernel with stages, taps
before a loop held other words than the tiles that the loop read (H200, TileLang 0.1.15, where some warps only copy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Site", "Taps"]

_TILES = ("local.fragment", "shared", "shared.dyn")
_ASYNCHRONOUS = ("async_copy", "tma_copy", "wgmma_gemm")  # what they store is there only after a wait
_SERIAL, _PARALLEL, _UNROLLED = 0, 1, 3
_PIPELINE = ("num_stages", "tl_pipeline_order", "tl_pipeline_stage", "tl_pipeline_group", "tl_pipeline_sync")
_MOST_TURNS = 2**20  # a bound above this is no bound
_INT = "int32"


@dataclass(frozen=True)
class Site:
    """An operator's store to a tile.

    number: in program order; operator: copy, gemm, reduce_max, parallel, ...; where: the source line, FILE:LINE
    shape, dtype: of the tile
    loops:  for each serial loop around it, outermost first, the number of the first site in it
    turns:  the most turns that each of them makes; None: not known before the kernel runs
    grid:   the thread blocks of its launch
    reason: why it cannot be tapped, or "" when it can
    fused:  its product is fused with a later addition; a tap reads it, so that it would be rounded instead
    """

    number: int
    operator: str
    buffer: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    loops: tuple[int, ...]
    turns: tuple[int | None, ...]
    grid: int
    reason: str = ""
    fused: bool = False

    def __str__(self) -> str:
        return f"{self.buffer} after {self.operator}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class _Spot:
    """Where a site is: its tile, and the variables, starts and extents of the loops around it."""

    buffer: Any
    operator: str
    reason: str
    fused: bool
    grid: tuple[tuple[Any, Any], ...]
    loops: tuple[tuple[int, Any, Any, int | None], ...]  # first site, variable, start, turns


class Taps:
    """The sites of a PrimFunc. sizes: the numbers that its symbolic sizes and scalar parameters have, by name."""

    def __init__(self, pf: Any, sizes: dict[str, int], fast_math: bool):
        from sim.primfunc.contraction import Contraction

        self.prim_func = pf
        self.numbers = _numbers(pf, sizes)
        self.contraction = Contraction(pf.body, fast_math)
        self.sites: list[Site] = []
        _Walk(self, self._note).statement(pf.body)

    def _note(self, spot: _Spot, number: int, line: str) -> None:
        name, dtype = str(spot.buffer.name), str(spot.buffer.dtype)
        shape = tuple(self.number(extent) for extent in spot.buffer.shape)
        loops, turns = tuple(loop[0] for loop in spot.loops), tuple(loop[3] for loop in spot.loops)
        grid = math.prod(self.number(extent) for _, extent in spot.grid)
        reason = spot.reason or _unmodelled(dtype)
        site = Site(number, spot.operator, name, line, shape, dtype, loops, turns, grid, reason, spot.fused)
        self.sites.append(site)

    def number(self, e: Any) -> int:
        """A size that is known before the kernel runs."""
        return int(_substituted(e, self.numbers))

    def shape(self, site: Site, blocks: int, turns: int) -> tuple[int, ...]:
        """The shape of a site's tap for that many thread blocks and at most `turns` turns of each loop."""
        return (min(blocks, site.grid), *(min(turns, n or turns) for n in site.turns), *site.shape)

    def tapped(self, sites: Iterable[int], blocks: Sequence[int], turns: int) -> Any:
        """The PrimFunc with a tap after each of `sites`, by number; the taps are its last parameters, in that order.

        blocks: the thread blocks that store, ascending; turns: of each serial loop, the first that are stored.
        """
        from tilelang import tvm

        tir, chosen = tvm.tirx, sorted(sites)
        buffers = {n: self._buffer(self.sites[n], blocks, turns) for n in chosen}

        def tap(spot: _Spot, number: int, line: str) -> Any:
            return _tap(spot, buffers[number], blocks, turns, self.sites[number]) if number in buffers else None

        pf = self.prim_func
        body = _Walk(self, tap).statement(pf.body)
        handles = [tir.Var(f"{buffers[n].name}_handle", "handle") for n in chosen]
        buffer_map = dict(pf.buffer_map.items()) | {h: buffers[n] for h, n in zip(handles, chosen, strict=True)}
        return tir.PrimFunc([*pf.params, *handles], body, pf.ret_type, buffer_map, pf.attrs)

    def _buffer(self, site: Site, blocks: Sequence[int], turns: int) -> Any:
        from tilelang import tvm

        shape = self.shape(site, sum(b < site.grid for b in blocks), turns)
        strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        return tvm.tirx.decl_buffer(shape, site.dtype, f"tap_{site.number}_{site.buffer}", strides=strides)


class _Walk:
    """Rebuilds a PrimFunc's body; tap(spot, number, line) gives what comes after a site, or None.

    The same order on each walk, so that a site's number names it.
    """

    def __init__(self, taps: Taps, tap: Callable[[_Spot, int, str], Any]):
        from tilelang import tvm

        self.taps, self.tap, self.tir = taps, tap, tvm.tirx
        self.analyzer = tvm.arith.Analyzer()
        self.range = tvm.ir.Range
        self.count = 0
        self.grid: tuple[Any, ...] = ()
        self.loops: tuple[Any, ...] = ()
        self.line = ""

    def statement(self, s: Any) -> Any:
        method = getattr(self, "_" + type(s).__name__.lower(), None)
        self.line = _line(s, self.line)
        return s if method is None else method(s)

    def _seqstmt(self, s: Any) -> Any:
        return self.tir.SeqStmt([self.statement(part) for part in s.seq])

    def _sblockrealize(self, s: Any) -> Any:
        return self.tir.SBlockRealize(s.iter_values, s.predicate, self._sblock(s.block))

    def _sblock(self, s: Any) -> Any:
        body = self.statement(s.body)
        return self.tir.SBlock(s.iter_vars, s.reads, s.writes, s.name_hint, body, s.init, s.alloc_buffers,
                               s.match_buffers, s.annotations)  # fmt: skip

    def _attrstmt(self, s: Any) -> Any:
        return self.tir.AttrStmt(s.node, s.attr_key, s.value, self.statement(s.body))

    def _ifthenelse(self, s: Any) -> Any:
        other = None if s.else_case is None else self.statement(s.else_case)
        return self.tir.IfThenElse(s.condition, self.statement(s.then_case), other)

    def _bind(self, s: Any) -> Any:
        if str(s.var.dtype).startswith("int"):
            self.analyzer.bind(s.var, _substituted(s.value, self.taps.numbers), True)
        return s

    def _for(self, s: Any) -> Any:
        kind = int(s.kind)
        if kind == _PARALLEL:
            return self._after(s, _stored(s), "parallel")
        if s.thread_binding is None and kind not in (_SERIAL, _UNROLLED):
            return s
        grid, loops = self.grid, self.loops
        if s.thread_binding is not None:
            self.grid = (*grid, (s.loop_var, s.extent))
        else:
            self.loops = (*loops, (self.count, s.loop_var, s.min, self._turns(s)))
        extent = _substituted(s.extent, self.taps.numbers)
        if s.thread_binding is not None or self.loops[-1][3] is not None:
            self.analyzer.bind(s.loop_var, self.range.from_min_extent(s.min, extent), True)
        body = self.statement(s.body)
        self.grid, self.loops = grid, loops
        annotations = {k: v for k, v in s.annotations.items() if k not in _PIPELINE}
        return self.tir.For(s.loop_var, s.min, s.extent, s.kind, body, s.thread_binding, annotations, s.step)

    def _turns(self, s: Any) -> int | None:
        """The most turns of a serial loop."""
        bound = self.analyzer.const_int_bound(_substituted(s.extent, self.taps.numbers)).max_value
        return max(int(bound), 1) if bound < _MOST_TURNS else None

    def _evaluate(self, s: Any) -> Any:
        name = getattr(getattr(s.value, "op", None), "name", "")
        if not name.startswith("tl.tileop."):
            return s
        operator = name.removeprefix("tl.tileop.")
        targets = [a.args[0].buffer for a in s.value.args if _region(a) & 2]
        if operator == "reduce":
            operator = f"reduce_{s.value.args[2].value}"
        return self._after(s, targets, operator, s.value)

    def _after(self, s: Any, targets: Sequence[Any], operator: str, call: Any = None) -> Any:
        """The statement and what comes after it for each tile that it stores to."""
        added = []
        for buffer in targets:
            if buffer.scope() not in _TILES:
                continue
            stores = [call] if operator == "copy" else [each for each in _stores(s) if each.buffer.same_as(buffer)]
            fused = any(self.taps.contraction.keeps(each) for each in stores)
            reason = "what it stores is there only after a wait" if operator in _ASYNCHRONOUS else ""
            spot = _Spot(buffer, operator, reason, fused, self.grid, self.loops)
            new, self.count = self.tap(spot, self.count, self.line), self.count + 1
            added += [] if new is None else [new]
        return self.tir.SeqStmt([s, *added]) if added else s


def _tap(spot: _Spot, tap: Any, blocks: Sequence[int], turns: int, site: Site) -> Any:
    """A T.Parallel loop that copies a tile to its place in a tap."""
    from tilelang import tvm

    tir = tvm.tirx
    axes = [tir.Var(f"tap_{n}", _INT) for n in range(len(site.shape))]
    slot, tests = _slot(spot.grid, [b for b in blocks if b < site.grid], site.grid)
    counts = [variable - start for _, variable, start, _ in spot.loops]
    tests += [count < turns for count, most in zip(counts, site.turns, strict=True) if most is None or most > turns]
    value = tir.BufferLoad(spot.buffer, axes)
    body = tir.BufferStore(tap, value, [slot, *counts, *axes])
    for test in reversed(tests):
        body = tir.IfThenElse(test, body, None)
    for axis, extent in reversed(list(zip(axes, site.shape, strict=True))):
        body = tir.For(axis, tir.IntImm(_INT, 0), tir.IntImm(_INT, extent), tir.ForKind.PARALLEL, body)
    return body


def _slot(grid: Sequence[tuple[Any, Any]], blocks: Sequence[int], count: int) -> tuple[Any, list[Any]]:
    """Which of the chosen thread blocks this one is, and the tests that it is one. The last blockIdx is the fastest."""
    from tilelang import tvm

    tir, number = tvm.tirx, tvm.tirx.IntImm(_INT, 0)
    for variable, extent in grid:
        number = number * extent + variable
    first, last = blocks[0], blocks[-1]
    if list(blocks) == list(range(first, last + 1)):
        tests = ([number >= first] if first else []) + ([number <= last] if last + 1 < count else [])
        return number - first, tests
    slot = tir.IntImm(_INT, 0)
    for n, block in enumerate(blocks):
        slot = tir.Select(number == block, tir.IntImm(_INT, n), slot)
    one_of = number == first
    for block in blocks[1:]:
        one_of = tir.Or(one_of, number == block)
    return slot, [one_of]


def _stores(s: Any) -> list[Any]:
    """The stores in a statement, in program order."""
    from tvm.tirx import stmt_functor

    found: list[Any] = []
    stmt_functor.post_order_visit(s, lambda node: found.append(node) if type(node).__name__ == "BufferStore" else None)
    return found


def _stored(s: Any) -> list[Any]:
    """The buffers that a statement stores to, each once."""
    found: list[Any] = []
    for store in _stores(s):
        if not any(store.buffer.same_as(each) for each in found):
            found.append(store.buffer)
    return found


def _region(argument: Any) -> int:
    """What a tile operator does with an argument's region: 1 read, 2 write; 0 when it is no region."""
    of_region = type(argument).__name__ == "Call" and getattr(argument.op, "name", "") == "tl.region"
    return int(argument.args[1]) if of_region else 0


def _unmodelled(dtype: str) -> str:
    """Why words of a dtype cannot be compared, or ""."""
    from sim.formats import dtype_named

    try:
        dtype_named(dtype)
    except ValueError:
        return f"dtype {dtype} is not modelled"
    return ""


def _line(s: Any, before: str) -> str:
    """A statement's source line, FILE:LINE; of what TileLang's own macros make, the last line before it."""
    import tilelang
    from tilelang.ir import get_stmt_span

    span = get_stmt_span(s)
    if span is None:
        return before
    if span.source_name.name.startswith(str(Path(tilelang.__file__).parent)):
        return before if before.startswith("after") or not before else f"after {before}"
    return f"{Path(span.source_name.name).name}:{span.line}"


def _numbers(pf: Any, sizes: dict[str, int]) -> dict[Any, Any]:
    """The symbolic sizes and scalar parameters of a PrimFunc that have a number."""
    from tilelang import tvm

    found = {p: tvm.tirx.IntImm(p.dtype, sizes[str(p.name)]) for p in pf.params if str(p.name) in sizes}
    for buffer in pf.buffer_map.values():
        for extent in buffer.shape:
            if type(extent).__name__ == "Var" and str(extent.name) in sizes:
                found[extent] = tvm.tirx.IntImm(extent.dtype, sizes[str(extent.name)])
    return found


def _substituted(e: Any, numbers: dict[Any, Any]) -> Any:
    from tilelang import tvm

    if isinstance(e, int):
        return e
    replaced = tvm.tirx.stmt_functor.substitute(e, numbers) if numbers else e
    return tvm.arith.Analyzer().simplify(replaced)
