"""The tapped runs of a kernel: which taps, the GPU's words of them, the simulator's, and where these differ first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpu
import sim
from gpu.taps import Site, Taps
from sim.formats import Integer, dtype_named

from .diff import Diff, diff
from .flags import UsageError
from .job import Job, Output, words_of
from .run_kernel import as_json, refusal
from .text import count, list_of

__all__ = [
    "Found",
    "Measured",
    "Plan",
    "Run",
    "Tapped",
    "alone",
    "compare",
    "kernel_of",
    "make_plan",
    "measure",
    "outputs_alone",
    "tapped",
]

MIB = 2**20
TURNS = 16  # of a loop whose turns nobody knows before the kernel runs
UNSTORED = 0xA5  # each byte of a tap before the GPU's kernel runs


@dataclass(frozen=True)
class Plan:
    """Which sites are tapped, by which thread blocks, for how many turns of each loop, and what is left out and why."""

    taps: Taps
    sites: tuple[int, ...]
    blocks: tuple[int, ...]
    turns: int
    left_out: tuple[str, ...]

    def with_sites(self, sites: Sequence[int]) -> Plan:
        return Plan(self.taps, tuple(sorted(sites)), self.blocks, self.turns, self.left_out)

    def blocks_of(self, site: Site) -> list[int]:
        """The thread blocks that store at a site."""
        return [b for b in self.blocks if b < site.grid]

    def shape(self, number: int) -> tuple[int, ...]:
        site = self.taps.sites[number]
        return self.taps.shape(site, len(self.blocks_of(site)), self.turns)

    def describe(self, number: int) -> dict[str, Any]:
        """A tapped site as JSON types, but for its source line."""
        site = self.taps.sites[number]
        about = {"number": number, "operator": site.operator, "buffer": site.buffer, "dtype": site.dtype}
        return about | {"shape": list(self.shape(number)), "loops": list(site.loops)}

    def bytes(self) -> int:
        return sum(math.prod(self.shape(n)) * _bytes(self.taps.sites[n].dtype) for n in self.sites)

    def prim_func(self) -> Any:
        return self.taps.tapped(self.sites, self.blocks, self.turns)

    @property
    def chosen(self) -> list[int] | None:
        """The thread blocks to simulate; None: all."""
        grid = max((site.grid for site in self.taps.sites), default=0)
        return list(self.blocks) if self.blocks and len(self.blocks) != grid else None


@dataclass(frozen=True)
class Run:
    """One run of a tapped kernel on the GPU whose outputs are those of the kernel itself; taps: words by site."""

    taps: dict[int, np.ndarray]


@dataclass(frozen=True)
class Measured:
    """The GPU's words. name: of the GPU, or of the capture; outputs: of the kernel without taps.

    left_out: sentences about taps that change the outputs, or do not compile
    """

    name: str
    outputs: list[np.ndarray]
    runs: list[Run]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tapped:
    """A tapped kernel in the simulator. taps: words, and flags of those that cannot be known, by site.

    changed: the outputs that the taps change
    """

    taps: dict[int, tuple[np.ndarray, np.ndarray]]
    changed: list[str]


@dataclass(frozen=True)
class Found:
    """A site where words differ: in which thread block, in which turns of the loops around it, how many of the tile's.

    words, unknown: the simulator's tile, and flags of what cannot be known; there: the GPU's
    """

    site: Site
    block: int
    turns: tuple[int, ...]
    words: np.ndarray
    unknown: np.ndarray
    there: np.ndarray

    @property
    def order(self) -> tuple[tuple[int, ...], int]:
        """Sorts as the operators run: at each loop its place and its turn, then the site; then the thread block."""
        loops = zip(self.site.loops, self.turns, strict=True)
        return (*(n for loop in loops for n in loop), self.site.number), self.block

    @property
    def different(self) -> np.ndarray:
        return (self.words != self.there) & ~self.unknown

    @property
    def unstored(self) -> int:
        """How many of them the GPU did not store at all."""
        fmt = dtype_named(self.site.dtype)
        return 0 if isinstance(fmt, Integer) else int((self.different & (self.there == _unstored((), fmt))).sum())

    def diff(self) -> Diff:
        """The difference of the tile."""
        fmt = dtype_named(self.site.dtype)
        return diff((np.where(self.unknown, self.there, self.words), fmt), (self.there, fmt))


# which taps


def make_plan(
    taps: Taps, names: list[str] | None, operators: list[str] | None, blocks: list[int] | None, turns: int | None,
    limit: int,
) -> Plan:  # fmt: skip
    """The sites that are tapped: those of the named tiles and operators, else all that a tap does not change.

    blocks, turns: None: as many as fit in `limit` MiB. Raises UsageError.
    """
    _check("--taps", "tile", names, [s.buffer for s in taps.sites])
    _check("--operators", "operator", operators, [s.operator for s in taps.sites])
    sites, left_out = [], []
    for site in taps.sites:
        if (names and site.buffer not in names) or (operators and site.operator not in operators):
            continue
        fused = site.fused and not names
        reason = site.reason or ("its product is fused with a later sum, and a tap would round it" if fused else "")
        left_out += [f"{site}: {reason}"] if reason else []
        sites += [] if reason else [site.number]
    if not sites:
        return Plan(taps, (), tuple(blocks or ()), 1, tuple(left_out))
    return _fitted(taps, sites, blocks, turns, limit, left_out)


def _check(flag: str, what: str, names: list[str] | None, known: list[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UsageError(f"{flag} must name {what}s that the kernel stores to with operators, "
                             f"{list_of(sorted({*known}), 'or')}, not {name}")  # fmt: skip


def _fitted(
    taps: Taps, sites: list[int], blocks: list[int] | None, turns: int | None, limit: int, left_out: list[str]
) -> Plan:
    """As many thread blocks as fit, and where one does not, as many turns."""
    most, grid = _most_turns(taps, sites), max(taps.sites[n].grid for n in sites)
    if blocks and blocks[-1] >= grid:
        raise UsageError(f"--blocks must be numbers of thread blocks, 0 to {grid - 1}, not {blocks[-1]}")
    given = tuple(blocks or range(grid))
    plan = Plan(taps, tuple(sites), given, turns or most, ())
    while blocks is None and len(plan.blocks) > 1 and plan.bytes() > limit * MIB:
        fewer = min(len(plan.blocks) - 1, len(plan.blocks) * limit * MIB // plan.bytes())
        plan = Plan(taps, plan.sites, given[: max(fewer, 1)], plan.turns, ())
    while plan.turns > 1 and plan.bytes() > limit * MIB:
        plan = Plan(taps, plan.sites, plan.blocks, plan.turns // 2, ())
    if plan.bytes() > limit * MIB:
        size = f"{count(len(plan.blocks), 'thread block')} of {-(-plan.bytes() // MIB)} MiB for one turn"
        raise UsageError(f"--limit {limit} MiB is too small: --taps and --blocks ask for {size}")
    if len(plan.blocks) < len(given):
        left_out.append(f"thread blocks {len(plan.blocks)} to {grid - 1}: --blocks chooses, --limit allows more")
    if plan.turns < most or any(n is None for s in sites for n in taps.sites[s].turns):
        left_out.append(f"turns of a loop after the first {plan.turns}: --iterations and --limit allow more")
    return Plan(taps, plan.sites, plan.blocks, plan.turns, tuple(left_out))


def _most_turns(taps: Taps, sites: list[int]) -> int:
    return max((n or TURNS for s in sites for n in taps.sites[s].turns), default=1)


def _bytes(dtype: str) -> int:
    return max(1, dtype_named(dtype).bits // 8)


# the GPU


def kernel_of(job: Job, pf: Any, plan: Plan | None = None) -> gpu.Kernel:
    """A request for the job's kernel, or for the tapped one: its outputs, then its taps."""
    given = {each.parameter.number: each.argument() for each in job.inputs}
    made = {p.number: (np.zeros(p.shape or (), p.dtype.word), p.dtype.name) for p in job.outputs if job.made}
    arguments = [(given | made)[p.number] for p in job.parameters]
    outputs = [p.number for p in job.outputs]
    if plan is not None:
        for n in plan.sites:
            fmt = dtype_named(plan.taps.sites[n].dtype)
            outputs.append(len(arguments))
            arguments.append((_unstored(plan.shape(n), fmt), fmt.name))
    return gpu.Kernel(
        as_json(pf), tuple(arguments), tuple(outputs), False, job.kernel.pass_configs, job.kernel.compile_flags
    )


def _unstored(shape: tuple[int, ...], fmt: Any) -> np.ndarray:
    byte = 0 if fmt.name == "bool" else UNSTORED
    return np.full(math.prod(shape) * fmt.word.itemsize, byte, np.uint8).view(fmt.word).reshape(shape)


Step = Callable[[str], None]


def measure(job: Job, plan: Plan, known: list[np.ndarray], device: str, timeout: int, step: Step) -> Measured:
    """The GPU's words without taps and with them, where these do not change the outputs.

    known: for each output flags of the words that can be known. Raises UsageError when the kernel itself does not run.
    """
    step(f"compiling and running on the {device}, without taps and with all")
    if not plan.sites:
        return outputs_alone(job, device, timeout)
    plain, whole = _on_gpu([kernel_of(job, job.prim_func()), kernel_of(job, plan.prim_func(), plan)], timeout)
    if isinstance(plain, gpu.KernelError):
        raise UsageError(f"the kernel gives no words on the GPU: {plain}")
    same = _harmless(job, plan, plain, whole, known)
    if isinstance(same, Run):
        return Measured(device, plain, [same])
    buffers = list(dict.fromkeys(plan.taps.sites[n].buffer for n in plan.sites))
    if len(buffers) == 1:
        return Measured(device, plain, [], (f"the taps of {buffers[0]}: {same}",))
    found = Measured(device, plain, [], (f"all taps at once: {same}",))
    return _one_by_one(job, plan, known, found, timeout, step)


def outputs_alone(job: Job, device: str, timeout: int) -> Measured:
    """The GPU's outputs without taps."""
    (plain,) = _on_gpu([kernel_of(job, job.prim_func())], timeout)
    if isinstance(plain, gpu.KernelError):
        raise UsageError(f"the kernel gives no words on the GPU: {plain}")
    return Measured(device, plain, [])


def _one_by_one(job: Job, plan: Plan, known: list[np.ndarray], found: Measured, timeout: int, step: Step) -> Measured:
    """Each tile's taps alone, for they change the outputs together; then those together that are harmless alone."""
    step(f"compiling and running on the {found.name}, one tapped tile at a time")
    plain, sites = found.outputs, {}  # type: list[np.ndarray], dict[str, list[int]]
    for n in plan.sites:
        sites.setdefault(plan.taps.sites[n].buffer, []).append(n)
    plans = [plan.with_sites(each) for each in sites.values()]
    answers = _on_gpu([kernel_of(job, each.prim_func(), each) for each in plans], timeout)
    runs = [_harmless(job, p, plain, a, known) for p, a in zip(plans, answers, strict=True)]
    why = [f"the taps of {b}: {r}" for b, r in zip(sites, runs, strict=True) if isinstance(r, str)]
    alone = [r for r in runs if isinstance(r, Run)]
    if why and len(alone) > 1:
        step(f"compiling and running on the {found.name}, with the taps that change nothing")
        rest = plan.with_sites([n for run in alone for n in run.taps])
        (answer,) = _on_gpu([kernel_of(job, rest.prim_func(), rest)], timeout)
        together = _harmless(job, rest, plain, answer, known)
        if isinstance(together, Run):
            return Measured(found.name, plain, [together], tuple(why))
    return Measured(found.name, plain, alone, tuple(why) or found.left_out)


def alone(job: Job, plan: Plan, found: Measured, known: list[np.ndarray], timeout: int) -> Run | None:
    """The run with the plan's taps alone, whose outputs without taps are `found`'s; None when it gives nothing."""
    (answer,) = _on_gpu([kernel_of(job, plan.prim_func(), plan)], timeout)
    run = _harmless(job, plan, found.outputs, answer, known)
    return run if isinstance(run, Run) else None


def _on_gpu(kernels: list[gpu.Kernel], timeout: int) -> list[list[np.ndarray] | gpu.KernelError]:
    try:
        return gpu.run_kernels(kernels, timeout=timeout)
    except gpu.GpuUnavailable as error:
        raise UsageError(str(error)) from error


def _harmless(
    job: Job, plan: Plan, plain: list[np.ndarray], answer: list[np.ndarray] | gpu.KernelError, known: list[np.ndarray]
) -> Run | str:
    """The run of a tapped kernel, or what is wrong with it."""
    if isinstance(answer, gpu.KernelError):
        return f"no words ({answer})"
    outputs, taps = answer[: len(plain)], answer[len(plain) :]
    for p, before, after, sure in zip(job.outputs, plain, outputs, known, strict=True):
        different = int(((before != after) & sure).sum())
        if different:
            return f"they change {count(different, 'word')} of the GPU's {p.name}"
    return Run(dict(zip(plan.sites, taps, strict=True)))


# the simulator


def tapped(job: Job, plan: Plan, outputs: list[Output]) -> Tapped:
    """The taps of the simulator, and which outputs they change. outputs: without taps."""
    first = len(job.parameters)
    made = [p.number for p in job.outputs] if job.made else []
    pf = plan.prim_func().with_attr("tilelang_out_idx", [*made, *range(first, first + len(plan.sites))])
    arrays = {each.parameter.name: each.array() for each in job.inputs}
    try:
        result = sim.simulate(
            pf, *arrays.values(), arch=job.arch, pass_configs=job.kernel.pass_configs, blocks=job.blocks
        )
    except Exception as error:
        raise refusal(job, error) from error
    found = dict(zip(result.names, zip(result.outputs, result.undetermined, strict=True), strict=True))
    arrays |= {name: array for name, (array, _) in found.items()}
    changed = [o.parameter.name for o in outputs
               if ((words_of(arrays[o.parameter.name], o.dtype) != o.words) & o.known).any()]  # fmt: skip
    taps = {}
    for n in plan.sites:
        array, unknown = found[f"tap_{n}_{plan.taps.sites[n].buffer}"]
        words = words_of(array, dtype_named(plan.taps.sites[n].dtype))
        taps[n] = words, np.zeros(words.shape, bool) if unknown is None else unknown
    return Tapped(taps, changed)


# the comparison


def compare(plan: Plan, ours: Tapped, theirs: Run) -> list[Found]:
    """Where the words differ, in the order in which the operators run."""
    found = [f for n in theirs.taps for f in _of_site(plan, plan.taps.sites[n], *ours.taps[n], theirs.taps[n])]
    return sorted(found, key=lambda f: f.order)


def _of_site(plan: Plan, site: Site, words: np.ndarray, unknown: np.ndarray, there: np.ndarray) -> Iterator[Found]:
    lead = words.shape[: words.ndim - len(site.shape)]
    different = ((words != there) & ~unknown).reshape(*lead, -1).any(axis=-1)
    for slot, *turns in np.argwhere(different).tolist():
        at = (slot, *turns)
        yield Found(site, plan.blocks_of(site)[slot], tuple(turns), words[at], unknown[at], there[at])
