"""What TileLang's own compiler decides, asked on the CPU: the order in which a reduction adds.

The PrimFunc is lowered for the target without compiling device code. After layout inference the block's layout_map
tells which thread and register hold an element; after tl.LowerTileOp a reduction is a literal loop over registers and a
call of tl::AllReduce<Op, threads, scale, ...>.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..captures import save_arrays
from ..formats import Format
from ..machine import Exact
from ..tile import Block
from ..values import Index
from .expressions import Translator
from .frame import Frame, Unsupported

__all__ = ["Plan", "Plans", "cache_folder", "held_record", "lower", "placed"]


_VERSION = "tilelang 0.1.15, plans 4"  # what a kept plan was made by


@dataclass
class Plan:
    """The order of a sum: int [outputs, steps, lanes], the flat source element a lane adds at a step; -1 for none.

    first: bool [outputs], which of them a thread sums before its first all-reduce
    """

    index: np.ndarray
    first: np.ndarray

    def sum(self, machine: Exact, data: np.ndarray, fmt: Format) -> np.ndarray:
        """data [lanes or 1, *source] summed: [lanes or 1, outputs]."""
        return machine.sum_lanes(self._steps(data), fmt)

    def sum_products(
        self, machine: Exact, a: np.ndarray, b: np.ndarray, fmt: Format, first_only: bool = False
    ) -> np.ndarray:
        """The same of the products a * b, each fused with its addition; first_only: but for outputs after the first."""
        if first_only and not self.first.all():
            fused, rounded = self.sum_products(machine, a, b, fmt), self.sum(machine, machine.mul(a, b, fmt), fmt)
            return np.where(self.first, fused, rounded)
        x, y = self._steps(a), self._steps(b)
        total = np.zeros(x.shape[1:], x.dtype)
        for step in range(x.shape[0]):
            total = machine.mul_add(x[step], y[step], total, fmt)
        return machine.join_lanes(total, fmt)

    def _steps(self, data: np.ndarray) -> np.ndarray:
        """data [lanes or 1, *source] as [steps, lanes or 1, outputs, lanes of the reduction]."""
        flat = data.reshape(data.shape[0], -1)
        flat = np.concatenate([flat, np.zeros((flat.shape[0], 1), flat.dtype)], axis=1)  # -1 takes the identity
        return np.ascontiguousarray(np.moveaxis(flat[:, self.index], 2, 0))


def lower(pf: Any, arch: str, pass_configs: dict[str, Any]) -> tuple[Any, Any]:
    """The functions after tl.LayoutInference and after tl.LowerTileOp. Raises Unsupported with TileLang's reason."""
    from tilelang import tvm
    from tilelang.backend.target import determine_target
    from tilelang.engine.lower import lower as lower_all

    class Spy:
        def __init__(self) -> None:
            self.seen: dict[str, Any] = {}

        def run_after_pass(self, mod: Any, info: Any) -> None:
            if info.name in ("tl.LayoutInference", "tl.LowerTileOp"):
                self.seen[info.name] = mod

    spy = tvm.instrument.pass_instrument(Spy)()
    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    try:
        with target, tvm.transform.PassContext(opt_level=3, config=pass_configs, instruments=[spy]):
            lower_all(pf, target=target, enable_device_compile=False)
    except Exception as error:
        raise Unsupported(f"a kernel that TileLang does not lower for {arch} ({_reason(error)})") from error
    name = str(pf.attrs["global_symbol"])
    return tuple(_function(spy.seen[k], name) for k in ("tl.LayoutInference", "tl.LowerTileOp"))


def _reason(error: Exception) -> str:
    """What TileLang says first, in one line; a traceback before it does not count."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    starts = [n for n, line in enumerate(lines) if re.match(r"(\w+\.)*\w*Error: ", line)]
    said = lines[starts[0] if starts else 0].rstrip(":") if lines else type(error).__name__
    return said if len(said) <= 200 else said[:197] + "..."


def lost_copies(pf: Any, arch: str, pass_configs: dict[str, Any], names: list[str]) -> list[int]:
    """Which copies into fragments, by the names of these, TileLang 0.1.15 gives to the producer's warps alone.

    In a pipelined loop that it splits into a producer and consumers, the producer copies into a clone of the fragment
    (NAME_producer_ws, src/cuda/transform/producer_consumer_ws.cc), and the consumers read their own.
    """
    try:
        inferred, _ = lower(pf, arch, pass_configs)
    except Unsupported:  # nothing is run, or with a serial loop
        return []
    before, (after, read) = _copied(pf.body)[0], _copied(inferred.body)
    lost = []
    for n, name in enumerate(names):
        if after[f"{name}_producer_ws"] and after[name] < before[name] and name in read:
            if after[name]:
                raise Unsupported(f"fragment {name}, which the producer's warps fill alone in some places")
            lost.append(n)
    return lost


def _copied(body: Any) -> tuple[Counter[str], set[str]]:
    """How often something is copied into each buffer, and the buffers that are read."""
    from tvm.tirx import stmt_functor

    copied: Counter[str] = Counter()
    read: set[str] = set()

    def note(node: Any) -> None:
        kind, name = type(node).__name__, getattr(getattr(node, "op", None), "name", "")
        if kind == "Call" and name in ("tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.tma_copy"):
            copied[str(node.args[1].args[0].buffer.name)] += 1
        if kind == "BufferLoad":
            read.add(str(node.buffer.name))

    stmt_functor.post_order_visit(body, note)
    return copied, read


def _function(module: Any, name: str) -> Any:
    for variable, function in module.functions.items():
        if variable.name_hint == name:
            return function
    return next(iter(module.functions.values()))


def reduction_plans(
    pf: Any, arch: str, pass_configs: dict[str, Any], count: int
) -> list[tuple[Any, Any, dict[Any, Any]]]:
    """For each of the `count` reductions in program order: its call, its loop (`_reduction_loops`), the layout map.

    Where TileLang does not lower a loop with stages, or unrolls its first and last turns, it is asked for a serial one:
    stages change neither layouts nor the order of a sum.
    """
    try:
        return _reduction_plans(pf, arch, pass_configs, count)
    except Unsupported as error:
        single = _single_stage(pf)
        if single is None:
            raise
        try:
            return _reduction_plans(single, arch, pass_configs, count)
        except Unsupported:
            raise error from None


def _single_stage(pf: Any) -> Any:
    """The PrimFunc with its pipelined loops serial; None when none has stages."""
    from tvm import tirx

    changed = []

    def one(loop: Any) -> Any:
        if int(loop.annotations.get("num_stages", 0)) < 1:
            return None
        changed.append(loop)
        kept = {k: v for k, v in loop.annotations.items() if not str(k).startswith(("num_stages", "tl_pipeline"))}
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, kept)

    body = tirx.stmt_functor.ir_transform(pf.body, None, one, ["tirx.For"])
    return pf.with_body(body) if changed else None


def _reduction_plans(
    pf: Any, arch: str, pass_configs: dict[str, Any], count: int
) -> list[tuple[Any, Any, dict[Any, Any]]]:
    from tvm.tirx import stmt_functor

    inferred, lowered = lower(pf, arch, pass_configs)
    layouts: dict[Any, Any] = {}  # data variable -> Fragment

    def note_layout(node: Any) -> None:
        if type(node).__name__ == "SBlock" and "layout_map" in node.annotations:
            for buffer, layout in node.annotations["layout_map"].items():
                layouts[buffer.data] = layout

    stmt_functor.post_order_visit(inferred.body, note_layout)
    reduces: list[Any] = []

    def note_reduce(node: Any) -> None:
        if type(node).__name__ == "Call" and getattr(node.op, "name", "") == "tl.tileop.reduce":
            reduces.append(node)

    stmt_functor.post_order_visit(inferred.body, note_reduce)
    loops = _reduction_loops(lowered.body)
    if not len(reduces) == len(loops) == count:
        raise Unsupported(f"{count} reductions that became {len(loops)} loops")
    return [(call, loop, layouts) for call, loop in zip(reduces, loops, strict=True)]


def _reduction_loops(body: Any) -> list[tuple[Any, list[Any], list[str]]]:
    """The reductions of a lowered body in order: the rv loop, the loops around it, the AllReduces that follow it.

    Two follow where the columns lie on the lanes of a quad and on several warps: one across warps, then one within.
    """
    found: list[tuple[Any, list[Any], list[str]]] = []

    def walk(node: Any, around: list[Any]) -> None:
        kind = type(node).__name__
        if kind == "For":
            if str(node.loop_var.name).startswith("rv") and type(node.body).__name__ == "BufferStore":
                found.append((node, around, []))
                return
            walk(node.body, [*around, node])
        elif kind == "SeqStmt":
            for part in node.seq:
                before = len(found)
                walk(part, around)
                text = _all_reduce(part)
                if text and len(found) == before and found:
                    found[-1][2].append(text)
        elif kind in ("SBlockRealize",):
            walk(node.block.body, around)
        elif kind in ("SBlock", "AttrStmt"):
            walk(node.body, around)
        elif kind == "IfThenElse":
            walk(node.then_case, around)
            if node.else_case is not None:
                walk(node.else_case, around)

    walk(body, [])
    return found


def _all_reduce(node: Any) -> str | None:
    """The tl::AllReduce that a store calls, if it does."""
    if type(node).__name__ != "BufferStore" or type(node.value).__name__ != "Call":
        return None
    text = str(node.value)
    return text if "tl::AllReduce<" in text else None


def make_plan(call: Any, loop: tuple[Any, list[Any], list[str]], layouts: dict[Any, Any], evaluate: Any) -> Plan:
    """The plan of one reduction. evaluate(expr, {var: array}) gives an integer expression's values."""
    rv_loop, around, all_reduces = loop
    store = rv_loop.body
    source, target = call.args[0].args[0].buffer, call.args[1].args[0].buffer
    offsets = [offset for text in all_reduces for offset in _offsets(text)]
    src, dst = (_Layout(_found(layouts, buffer), evaluate) for buffer in (source, target))
    to, (frm, pack) = store.indices[0], _source_index(store.value)
    mine = [f for f in around if _uses(to, f.loop_var) or _uses(frm, f.loop_var)] + [rv_loop]
    extents = [int(f.extent) for f in mine]
    values = dict(zip((f.loop_var for f in mine), np.indices(extents).reshape(len(extents), -1), strict=True))
    thread = [v for v in _variables(to) | _variables(frm) if v not in values]
    if thread:
        values[thread[0]] = _consumer(to, frm, thread, values, (dst, src), evaluate)
    shape = (int(np.prod(extents[:-1])), extents[-1])
    targets, sources = (np.broadcast_to(evaluate(e, values), int(np.prod(extents))).reshape(shape) for e in (to, frm))
    order = dict(zip(targets[:, 0].tolist(), sources, strict=True))  # target register -> source registers in order
    first = np.asarray(dst.register == targets[0, 0]) | (not offsets)
    return Plan(_index(src, dst, order, offsets, extents[-1], pack), first)


def _consumer(
    to: Any, frm: Any, thread: list[Any], values: dict[Any, Any], layouts: tuple[_Layout, _Layout], evaluate: Any
) -> np.ndarray:
    """The first thread of the warp group that reduces, where registers are written in terms of threadIdx.

    After warp specialisation the consumers' threads start at a multiple of 128; only there are the registers in range.
    """
    count = next(iter(values.values())).size
    for first in range(0, 1024, 128):
        found = []
        for e in (to, frm):
            known = {v: np.repeat(x, 128) for v, x in values.items()} | {
                t: np.tile(np.arange(first, first + 128), count) for t in thread
            }
            found.append(np.broadcast_to(evaluate(e, known), count * 128).reshape(count, 128))
        if all(0 <= x.min() and x.max() < layout.registers for x, layout in zip(found, layouts, strict=True)):
            if len(thread) > 1 or any((x != x[:, :1]).any() for x in found):
                break
            return np.full(count, first)
    raise Unsupported("a reduction whose registers differ between threads")


def _found(layouts: dict[Any, Any], buffer: Any) -> Any:
    """The layout of a fragment that a reduction reads or writes."""
    if buffer.data not in layouts:
        raise Unsupported(f"a reduction of {buffer.name}, which is in scope {buffer.scope()!r}")
    return layouts[buffer.data]


def _source_index(value: Any) -> tuple[Any, int]:
    """Which register a step adds, and how many neighbours at once: the load itself, its cast, or its magnitude.

    Contiguous half-precision registers, and fp32 ones on sm_100 and newer, are added in pairs (tl.add2).
    """
    from tvm.tirx import stmt_functor

    packed = type(value).__name__ == "Call"
    loads: list[Any] = []
    stmt_functor.post_order_visit(
        value.args[1] if packed else value.b,
        lambda n: loads.append(n) if type(n).__name__ == "BufferLoad" else None,
    )
    index = loads[0].indices[0]
    return (index.base, int(index.lanes)) if type(index).__name__ == "Ramp" else (index, 1)


class _Layout:
    """A Fragment as tables: thread and register of each element (first replica), and back.

    holds: int [threads, registers], the flat element that a register of a thread holds; -1 for none
    """

    def __init__(self, fragment: Any, evaluate: Any):
        shape = tuple(int(n) for n in fragment.get_input_shape())
        grid = np.indices(shape).reshape(len(shape), -1)
        replica = [v for v in fragment.get_forward_vars() if v.name == "_rep"]
        variables = [v for v in fragment.get_forward_vars() if v.name != "_rep"]
        names = dict(zip(variables, grid, strict=True))
        self.registers = int(np.prod([int(n) for n in fragment.get_output_shape()]))
        places = []
        for copy in range(int(fragment.replicate_size)):
            values = names | {v: np.full(grid.shape[1], copy) for v in replica}
            thread = np.broadcast_to(evaluate(fragment.forward_thread, values), grid.shape[1:])
            places.append((thread, np.broadcast_to(_flat(fragment, values, evaluate), grid.shape[1:])))
        self.thread, self.register = places[0]
        self.holds = np.full((1 + max(int(t.max()) for t, _ in places), self.registers), -1)
        for place in places:
            self.holds[place] = np.arange(grid.shape[1])

    def held(self, thread: np.ndarray, register: np.ndarray) -> np.ndarray:
        """The elements in registers of threads; -1 where there is none."""
        there = (thread < self.holds.shape[0]) & (register >= 0) & (register < self.registers)
        return np.where(there, self.holds[np.where(there, thread, 0), np.where(there, register, 0)], -1)


def _flat(fragment: Any, values: dict[Any, np.ndarray], evaluate: Any) -> np.ndarray:
    sizes = [int(n) for n in fragment.get_output_shape()]
    total: Any = 0
    for index, size in zip(fragment.forward_index, sizes, strict=True):
        total = total * size + evaluate(index, values)
    return np.asarray(total)


def _index(
    src: _Layout, dst: _Layout, order: dict[int, np.ndarray], offsets: list[int], steps: int, pack: int
) -> np.ndarray:
    """Plan.index; lane 0b10 of two offsets is the thread that the first one reaches: it is joined first.

    The accumulators of a pair come first of all, so that they are joined before threads are.
    """
    lanes = [
        sum(offset for bit, offset in enumerate(reversed(offsets)) if n >> bit & 1) for n in range(1 << len(offsets))
    ]
    steps_of = np.full((dst.registers, steps), -1)
    for register, sources in order.items():
        steps_of[register] = sources
    thread = (dst.thread[:, None] ^ np.array(lanes))[:, None, None, :]
    register = steps_of[dst.register][:, :, None, None] + np.arange(pack)[:, None]
    return src.held(thread, register).reshape(len(dst.thread), steps, pack * len(lanes))


def _offsets(text: str) -> list[int]:
    """The XOR distances of a tl::AllReduce<Op, threads, scale, ...> in its order: threads/2 down to scale."""
    found = re.search(r"AllReduce<[\w:]+, (\d+), (\d+)", text)
    if found is None:
        raise Unsupported(f"the reduction {text[:60]}")
    threads, scale = int(found.group(1)), int(found.group(2))
    return [scale << n for n in reversed(range((threads // scale).bit_length() - 1))]


def _variables(e: Any) -> set[Any]:
    from tvm.tirx import stmt_functor

    found: set[Any] = set()
    stmt_functor.post_order_visit(e, lambda n: found.add(n) if type(n).__name__ == "Var" else None)
    return found


def _uses(e: Any, variable: Any) -> bool:
    return variable in _variables(e)


class Plans:
    """The orders of a kernel's sums, asked of the compiler once and kept on disk (see `cache_folder`)."""

    def __init__(self, pf: Any, target: str, configs: dict[str, Any], count: int):
        self.pf, self.target, self.configs, self.count = pf, target, configs, count
        self.made: dict[int, Plan] = {}
        self.lost: set[int] = set()  # copies in pipelined loops that the consumers do not see

    def prepare(self, sums: list[int]) -> None:
        """Make the plans of the reductions with these numbers. Raises Unsupported."""
        if not sums:
            return
        path = cache_folder() / f"{self._key()}.npz"
        try:
            with np.load(path) as kept:
                self.made = {int(n): Plan(kept[n], kept[f"{n}_first"]) for n in kept.files if n.isdigit()}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            self.made = {}
        if set(sums) <= set(self.made):
            return
        found = reduction_plans(self.pf, self.target, self.configs, self.count)
        self.made = {number: make_plan(*found[number], evaluate) for number in sums}
        _keep(path, {str(number): _smallest(plan.index) for number, plan in self.made.items()}
              | {f"{number}_first": plan.first for number, plan in self.made.items()})  # fmt: skip

    def ask_copies(self, names: list[str]) -> None:
        """Find the copies in pipelined loops, into the fragments of these names, that the consumers do not see."""
        if not names:
            return
        path = cache_folder() / f"{self._key('copies 1')}.npz"
        try:
            with np.load(path) as kept:
                self.lost = set(kept["lost"].tolist())
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            self.lost = set(lost_copies(self.pf, self.target, self.configs, names))
            _keep(path, {"lost": np.array(sorted(self.lost), np.int32)})

    def _key(self, what: str = _VERSION) -> str:
        configs = {k: v for k, v in self.configs.items() if k != "tl.enable_fast_math"}  # nvcc's alone
        return _digest(what, self.pf, self.target, configs)

    def __call__(self, number: int) -> Plan:
        return self.made[number]


def _digest(what: str, pf: Any, target: str, configs: dict[str, Any]) -> str:
    """A name for a kernel and how it is lowered; which outputs the call makes does not matter."""
    pf = pf.without_attr("tilelang_out_idx") if pf.attrs else pf
    facts = [what, target, sorted((k, str(v)) for k, v in configs.items())]
    return hashlib.sha256((repr(facts) + str(pf.script(show_meta=True))).encode()).hexdigest()[:32]


def held_record(pf: Any, target: str, configs: dict[str, Any]) -> Path:
    """The file that exists when the rule of contraction has held against this kernel's compiled code."""
    return cache_folder() / f"{_digest('contraction held 1', pf, target, configs)}.held"


def cache_folder() -> Path:
    """Where plans are kept: TILEWORDS_CACHE, else tilewords in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("TILEWORDS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewords"


def _keep(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays whole or not at all; a cache that cannot be written costs only time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(path, {}, arrays)


def _smallest(x: np.ndarray) -> np.ndarray:
    return x.astype(np.min_scalar_type(-max(1, int(x.max(initial=0)))))


def placed(layout: Any, shape: tuple[int, ...]) -> Callable[[tuple[np.ndarray, ...]], np.ndarray]:
    """Where a tl.Layout puts the elements of a tensor: index arrays -> flat places."""
    from tilelang import tvm

    variables, exprs = list(layout.get_forward_vars()), list(layout.get_forward_index())
    # A layout that was loaded from a file knows neither its own extents nor its variables but by name.
    named: dict[str, Any] = {}
    for e in exprs:
        tvm.tirx.stmt_functor.post_order_visit(e, lambda n: named.update({n.name: n} if _is_var(n) else {}))
    variables = [named.get(str(v.name), v) for v in variables]
    analyzer = tvm.arith.Analyzer()
    for variable, size in zip(variables, shape, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, size))
    sizes = [int(analyzer.const_int_bound(e).max_value) + 1 for e in exprs]
    if np.prod(sizes) != np.prod(shape):
        raise Unsupported(f"an annotated layout of {list(shape)} as {sizes}")

    def places(indices: tuple[np.ndarray, ...]) -> np.ndarray:
        values = dict(zip(variables, indices, strict=True))
        flat: Any = 0
        for e, size in zip(exprs, sizes, strict=True):
            flat = flat * size + evaluate(e, values)
        return np.asarray(flat)

    return places


def _is_var(node: Any) -> bool:
    return type(node).__name__ == "Var"


def evaluate(e: Any, values: dict[Any, np.ndarray]) -> np.ndarray:
    """An integer expression's values for arrays of its variables."""

    def refuse(load: Any) -> Any:
        raise Unsupported("a load in a layout")

    frame = Frame(Block(None, 1, 1))  # type: ignore[arg-type]
    for variable, array in values.items():
        frame.bind(variable, Index(np.asarray(array)[None]))
    found = Translator(refuse).expression(e)(frame)
    return found.at[0] if isinstance(found, Index) else np.asarray(found)
