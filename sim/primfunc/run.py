"""Run a TileLang kernel on the CPU: `run` gives the outputs, `simulate` all that is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arch import Arch
from ..arch import arch as find_arch
from ..machine import Exact
from ..memory import Tensor
from ..report import Report, Undetermined
from ..tile import Block
from ..values import Index, either
from .contraction import Contraction
from .frame import Frame, Lost, Unsupported
from .kernel import Kernel, Tensors, as_array, kernel_of, stores
from .lowering import Plans, held_record
from .statements import Need, Program, Statements

__all__ = ["Result", "run", "simulate", "support"]

_TARGET = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}
_STEP = 64  # thread blocks that run in step
_FAST = "tl.enable_fast_math"
_UNSAFE = "tl.disable_safe_memory_legalize"
_CAUSES = {
    "uninitialised",
    "race",
    "atomic_order",
    "division_by_zero",
    "producer_only",
}  # why an output cannot be known

Progress = Callable[[int, int], None]
Watch = Callable[[np.ndarray, int, Any], None]


@dataclass
class Result:
    """What a kernel gave.

    outputs:      the output tensors, in the order of the parameters
    undetermined: for each output a bool mask of the elements that cannot be known, or None
    left_out:     of these, the ones that may be known once the thread blocks run that `blocks` leaves out, or None
    events:       what a kernel should not do: accesses out of bounds, races, reads of what nobody wrote, an order of
                  float atomics that matters, failed assertions, copies that TileLang gives to the wrong warps
    basis:        what the words rest on, one line
    names:        the outputs' parameter names
    """

    outputs: list[Any]
    undetermined: list[np.ndarray | None]
    events: list[Report] = field(default_factory=list)
    basis: str = ""
    names: list[str] = field(default_factory=list)
    left_out: list[np.ndarray | None] = field(default_factory=list)


def run(kernel: Any, *arrays: Any, arch: str = "sm_90", args: tuple = (), kwargs: dict | None = None,
        pass_configs: dict | None = None, blocks: Iterable[int] | None = None,
        watch: dict[str, Watch] | None = None, progress: Progress | None = None) -> Any:  # fmt: skip
    """The outputs of `kernel`: one array, or a list of them. Raises Undetermined where a word cannot be known.

    Arguments as of `simulate`; the exception's `result` is what `simulate` returns.
    """
    result = simulate(kernel, *arrays, arch=arch, args=args, kwargs=kwargs, pass_configs=pass_configs, blocks=blocks,
                      watch=watch, progress=progress)  # fmt: skip
    unknown = sum(int(mask.sum()) for mask in result.undetermined if mask is not None)
    if unknown:
        why = [str(event) for event in result.events]
        error = Undetermined(
            f"{unknown} outputs cannot be known" + (f": {', '.join(why)}" if why else "") or "", result
        )
        raise error
    return result.outputs[0] if len(result.outputs) == 1 else result.outputs


def simulate(kernel: Any, *arrays: Any, arch: str = "sm_90", args: tuple = (), kwargs: dict | None = None,
             pass_configs: dict | None = None, blocks: Iterable[int] | None = None,
             watch: dict[str, Watch] | None = None, progress: Progress | None = None,
             machine: Callable[[Arch, bool], Exact] = Exact) -> Result:  # fmt: skip
    """Run `kernel` (a PrimFunc, a @tilelang.jit function or a compiled kernel) on the CPU, word for word.

    arrays: the tensors of the PrimFunc without those that it returns (out_idx, an eager kernel's `return`): NumPy,
    ml_dtypes or torch arrays, or pairs (words, Format). Those that the kernel stores to are written in place.
    args, kwargs: a jit function's builder arguments; for an eager kernel those beside the tensors.
    pass_configs: instead of the kernel's own.
    blocks: only these thread blocks of each launch, by their number in the grid (the last blockIdx fastest); what
    depends on the others is undetermined.
    watch: {buffer name: callback(values, block, iteration)} called after each store to a tile of that name, for each
    thread block; iteration is the number of the innermost serial loop's turn, or None.
    progress: callback(thread blocks done, thread blocks in all).
    machine: what computes, called with the architecture and fast_math (sim.machine.Exact, Recorder, ...).
    Raises Unsupported by name and source line before anything is computed.
    """
    own = kernel_of(kernel, arrays, args, kwargs)
    configs = own.pass_configs if pass_configs is None else dict(pass_configs)
    if configs.get(_UNSAFE):
        raise Unsupported(f"pass configuration {_UNSAFE}: what it reads out of bounds cannot be known")
    record, tensors = find_arch(arch), Tensors(own, arrays)
    fast = bool(configs.get(_FAST, False))
    statements = _translated(own, tensors.by_data(), tensors.sizes, fast)
    plans = Plans(own.prim_func, target_of(record), configs, statements.reductions)
    plans.prepare(statements.sums)
    plans.ask_copies(statements.staged)
    for missing in _dots(record, statements):
        raise missing
    launches = _Launches(statements, machine(record, fast), plans, tensors, blocks)
    launches.watch, launches.progress = _watched(watch or {}, statements.names), progress
    launches.run()
    like = arrays[0] if arrays else None
    result = Result(
        [as_array(t, like) for t in tensors.found],
        [_unknown(t) for t in tensors.found],
        launches.reports(),
        _basis(own, record, configs, statements.translator.contraction.questions),
        [t.name for t in tensors.found],
        [launches.left_out(t) for t in tensors.found],
    )
    tensors.write_back()
    return result


def _watched(watch: dict[str, Watch], names: set[str]) -> dict[str, Watch]:
    for name, callback in watch.items():
        if not callable(callback):
            raise TypeError(f"watch must map tiles to functions of (values, block, iteration), not to {callback!r}")
        if name not in names:
            raise ValueError(f"watch must name tiles of the kernel, one of {', '.join(sorted(names))}, not {name!r}")
    return watch


def support(kernel: Any, arch: str = "sm_90", args: tuple = (), kwargs: dict | None = None,
            pass_configs: dict | None = None) -> list[Need]:  # fmt: skip
    """What `kernel` uses, in program order, and what of it the simulator does not run. Nothing is computed.

    Symbolic sizes need no value; an eager kernel's shape constants go into kwargs by name.
    """
    own = kernel_of(kernel, (), args, kwargs)
    configs = own.pass_configs if pass_configs is None else pass_configs
    statements = _translated(own, None, {}, bool(configs.get(_FAST, False)), collect=True)
    record, missing = find_arch(arch), list(_dots(find_arch(arch), statements))
    if all(need.supported for need in statements.needs):
        try:
            target = target_of(record)
            Plans(own.prim_func, target, configs, statements.reductions).prepare(statements.sums)
        except Unsupported as error:
            missing.append(error)
    return statements.needs + [Need(error.what, error.where, False) for error in missing]


def target_of(record: Arch) -> str:
    """TileLang's name of an architecture."""
    return _TARGET.get(record.name, record.name)


def _dots(record: Any, statements: Statements) -> Iterator[Unsupported]:
    """The gemms whose dot product is not modelled on this architecture."""
    for operand, accumulator, where in statements.gemms:
        try:
            record.dot(operand, accumulator)
        except ValueError as error:
            yield Unsupported(f"a gemm: {error}", where)


def _translated(
    kernel: Kernel, tensors: Any, sizes: dict[Any, Any], fast_math: bool, collect: bool = False
) -> Statements:
    pf = kernel.prim_func
    statements = Statements(tensors or {}, sizes, collect)
    if tensors is None:
        statements.outline(pf)
    statements.translator.contraction = Contraction(pf.body, fast_math)
    statements.statement(pf.body)
    return statements


def _basis(kernel: Kernel, record: Arch, configs: dict[str, Any], questions: list[str]) -> str:
    """What the words rest on: arithmetic that was measured or is literature, and how well contraction is known."""
    held = held_record(kernel.prim_func, target_of(record), configs).exists()
    known = f"{'measured' if record.measured else 'literature'} arithmetic of {record.name}; contraction by rule"
    known += ", held against this kernel's compiled code" if held else ""
    return known + (f", open: {'; '.join(questions)}" if questions and not held else "")


def _numbers(blocks: Any) -> list[int]:
    """The chosen thread blocks, ascending. Raises ValueError."""
    found = list(blocks) if isinstance(blocks, Iterable) and not isinstance(blocks, str) else [blocks]
    if not all(isinstance(b, int | np.integer) and not isinstance(b, bool) and b >= 0 for b in found):
        raise ValueError(f"blocks must be numbers of thread blocks, 0 or greater, not {blocks!r}")
    return sorted({int(b) for b in found})


class _Launches:
    """The launches of a kernel, one after another, the thread blocks of each some of them in step."""

    def __init__(self, statements: Statements, machine: Exact, plans: Plans, tensors: Tensors, blocks: Any):
        self.machine, self.plans, self.tensors = machine, plans, tensors
        self.watch: dict[str, Watch] = {}
        self.progress: Progress | None = None
        self.events: dict[tuple[str, ...], Report] = {}
        self.first_unknown: Report | None = None
        self.sources = statements.sources
        self.lost: set[int] = set()  # thread blocks of this launch whose words cannot be known
        self.by_data = dict(statements.tensors)  # all global memory, T.alloc_global's too
        self.partial, self.forgot = blocks is not None, False
        chosen = None if blocks is None else _numbers(blocks)
        self.work = []  # of each launch its program, blockIdx [axes, thread blocks] and their numbers in the grid
        for program in statements.programs:
            grid = self._grid(program)
            numbers = np.arange(grid.shape[1])
            self.work.append((program, grid, numbers if chosen is None else numbers[np.isin(numbers, chosen)]))
        most = max(grid.shape[1] for _, grid, _ in self.work)
        if chosen and chosen[-1] >= most:
            raise ValueError(f"blocks must be numbers of thread blocks, 0 to {most - 1}, not {chosen[-1]}")
        for tensor in self.by_data.values() if self.partial else ():
            tensor.memory.ask()

    def _grid(self, program: Program) -> np.ndarray:
        """blockIdx [axes, thread blocks] of a whole launch."""
        empty = Frame(Block(self.machine, 1, program.threads))
        empty.define(self.tensors.sizes)
        extents = [extent(empty) for _, _, extent in program.grid]
        if any(isinstance(e, Index) for e in extents):
            raise Unsupported("a grid whose extent is not a number")
        return np.indices([int(e) for e in extents]).reshape(len(extents), -1)

    def reports(self) -> list[Report]:
        """What the kernel should not have done, in a fixed order; where an output cannot be known and nothing else says
        why, the first read of something that cannot be known.
        """
        found = dict(self.events)
        lost = any(t.memory.poison is not None and t.memory.poison.any() for t in self.tensors.found)
        if self.first_unknown is not None and lost and not {e.kind for e in found.values()} & _CAUSES:
            found["first",] = self.first_unknown
        return sorted(found.values(), key=lambda e: (e.kind, e.buffer, e.operator, e.where))

    def run(self) -> None:
        total, done = sum(len(numbers) for _, _, numbers in self.work), 0
        for launch, (program, grid, numbers) in enumerate(self.work):
            self.lost = set()
            changed = stores(program.body)
            for data, tensor in self.by_data.items():
                tensor.memory.launched(data in changed)
            if launch and self.partial:
                self._forget(self.work[launch - 1][0])
            for first in range(0, len(numbers), _STEP):
                chosen = numbers[first : first + _STEP]
                self._step(program, grid[:, chosen], chosen)
                done += len(chosen)
                if self.progress is not None:
                    self.progress(done, total)
            for tensor in self.by_data.values() if self.lost else ():
                tensor.memory.lose_of(self.lost)

    def left_out(self, tensor: Tensor) -> np.ndarray | None:
        """The elements that cannot be known, and may be when all thread blocks run; None: all do.

        Where a later launch reads what the first one has not stored, all of them, when nothing else is the cause.
        """
        memory, unknown = tensor.memory, _unknown(tensor)
        if memory.stored is None or memory.left_out is None or unknown is None:
            return None
        if self.forgot and not {e.kind for e in self.events.values()} & _CAUSES:
            return unknown
        return unknown & tensor.whole(~memory.stored | memory.left_out)

    def _forget(self, program: Program) -> None:
        """Blocks that were not chosen, be it all, may have stored anything: a later launch cannot know it."""
        for data in stores(program.body):
            memory = self.by_data[data].memory if data in self.by_data else None
            if memory is not None and memory.stored is not None:
                memory.poison, self.forgot = either(memory.poison, ~memory.stored), True

    def _step(self, program: Program, grid: np.ndarray, numbers: np.ndarray) -> None:
        frame = Frame(Block(self.machine, len(numbers), program.threads))
        frame.block.numbers, frame.block.watch, frame.plans = numbers, self.watch, self.plans
        frame.block.sources = self.sources
        frame.define(self.tensors.sizes)
        for (variable, _, _), at in zip(program.grid, grid, strict=True):
            frame.bind(variable, int(at[0]) if (at == at[0]).all() else Index(at.copy()))
        try:
            program.run(frame)
        except Lost as lost:
            frame.block.where = lost.where
            frame.block.report("uninitialised", "a condition", "for")
            for tensor in self.by_data.values():
                tensor.memory.lose()
        self.events = frame.block.reports | self.events  # the first one counts
        self.first_unknown = self.first_unknown or frame.block.first_unknown
        self.lost |= frame.block.lost


def _unknown(tensor: Tensor) -> np.ndarray | None:
    """The elements that cannot be known: poison, and what the chosen blocks did not write."""
    stored = tensor.memory.stored
    mask = either(tensor.poison, None if stored is None else tensor.whole(~stored))
    return mask if mask is not None and mask.any() else None
