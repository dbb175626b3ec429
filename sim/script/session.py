"""One call of a simulated kernel: its cost, its limit, its words, and what is noted of it."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..formats import from_words, to_words
from ..primfunc import Result, Unsupported, simulate
from ..primfunc.kernel import Kernel, sizes_of, written
from .births import Births

__all__ = ["Call", "Notes", "Session", "TooLong"]

_SAMPLE = 8  # thread blocks of the larger of the two samples that an estimate rests on
_STEP = 64  # thread blocks that run in step
_PATIENCE = 10  # seconds after which, and between which, the progress of a kernel is told


class TooLong(RuntimeError):
    """A kernel takes longer than --limit."""


class _Alarm(BaseException):
    """The limit is over; no Exception, so that nobody on the way takes it for theirs."""


@dataclass
class Call:
    """What is known of the calls of one kernel."""

    name: str
    where: str
    runs: int = 0
    simulated: int = 0  # thread blocks of the last run
    blocks: int = 0  # of so many
    seconds: float = 0
    nan: int = 0
    infinities: int = 0
    undetermined: int = 0
    born: int = 0
    first: str = ""
    refused: str = ""
    events: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.where})" if self.where else self.name


@dataclass
class Notes:
    """What a program did, for the summary."""

    calls: dict[tuple[str, str], Call] = field(default_factory=dict)
    measurements: dict[str, int] = field(default_factory=dict)
    tuned: list[str] = field(default_factory=list)

    def measured(self, what: str) -> float:
        """Count a measurement that a program asks for. NaN: nothing was measured."""
        self.measurements[what] = self.measurements.get(what, 0) + 1
        return math.nan

    def call(self, name: str, where: str) -> Call:
        return self.calls.setdefault((name, where), Call(name, where))


@dataclass
class Session:
    """How kernels are simulated.

    limit: seconds that one call may take, None for any; blocks: of each launch so many thread blocks, None for all
    """

    arch: str = "sm_90"
    limit: float | None = None
    blocks: int | None = None
    notes: Notes = field(default_factory=Notes)

    def run(self, prim_func: Any, configs: dict[str, Any], where: str, tensors: list[Any]) -> Result:
        """Simulate a call of a kernel; its tensors are written in place. Raises Unsupported, TooLong."""
        note, start = self.notes.call(str(prim_func.attrs["global_symbol"]), where), time.monotonic()
        try:
            with _alarm(self.limit, note.title):
                result, machine, blocks = self._simulated(prim_func, configs, tensors, note)
        except (Unsupported, TooLong) as error:
            note.refused = note.refused or str(error).removeprefix(f"{note.title} ")
            raise error.with_traceback(None) from None  # where in the simulator is nobody's concern
        note.seconds += time.monotonic() - start
        note.runs += 1
        note.simulated, note.blocks = blocks
        _add(note, result, machine)
        return result

    def _simulated(
        self, prim_func: Any, configs: dict[str, Any], tensors: list[Any], note: Call
    ) -> tuple[Result, Births, tuple[int, int]]:
        grids = launches(prim_func, tensors)
        chosen = None if self.blocks is None else spread(max(grids), self.blocks)
        run = sum(grids) if chosen is None else sum(sum(b < grid for b in chosen) for grid in grids)
        kernel = _Timed(prim_func, configs, self.arch, note.title)
        if self.limit is not None and chosen is None and run > _SAMPLE * len(grids):
            cost = kernel.cost(tensors, grids)
            if cost > self.limit:
                raise TooLong(f"{note.title} would take about {cost:.0f} s, more than --limit {self.limit:g} s")
        result = kernel(tensors, chosen, told=True)
        return result, kernel.machine, (run, sum(grids))


class _Timed:
    """A kernel, and how long its thread blocks took the last time."""

    machine: Births

    def __init__(self, prim_func: Any, configs: dict[str, Any], arch: str, title: str):
        self.prim_func, self.configs, self.arch, self.title = prim_func, configs, arch, title
        self.start = self.last = time.monotonic()
        self.told = False

    def __call__(self, tensors: list[Any], blocks: list[int] | None, told: bool = False) -> Result:
        self.told = told
        return simulate(self.prim_func, *tensors, arch=self.arch, pass_configs=self.configs, blocks=blocks,
                        progress=self._progress, machine=self._machine)  # fmt: skip

    def cost(self, tensors: list[Any], grids: list[int]) -> float:
        """Seconds that all thread blocks may take: a sample of one and one of eight, which run in step as all do."""
        changed = set(written(self.prim_func))
        copies = [t.clone() if i in changed and hasattr(t, "clone") else t for i, t in enumerate(self._all(tensors))]
        inputs = [t for t in copies if t is not None]
        seconds = []
        for count in (1, _SAMPLE):
            self(inputs, spread(max(grids), count))
            seconds.append(self.last - self.start)
        count = min(_SAMPLE, max(grids))
        block = max(0.0, (seconds[1] - seconds[0]) / max(1, count - 1))
        return sum(math.ceil(g / _STEP) for g in grids) * max(0.0, seconds[0] - block) + sum(grids) * block

    def _all(self, tensors: list[Any]) -> list[Any]:
        """The tensors by parameter, None for those that the kernel returns."""
        given = iter(tensors)
        returned = returns(self.prim_func)
        return [None if i in returned else next(given) for i in range(len(self.prim_func.params))]

    def _machine(self, *arguments: Any) -> Births:
        self.start = self.last = self.since = time.monotonic()
        self.machine = Births(*arguments)
        return self.machine

    def _progress(self, done: int, total: int) -> None:
        self.last = now = time.monotonic()
        if self.told and done < total and now - self.since > _PATIENCE:
            self.since, taken = now, now - self.start
            left = taken * (total - done) / done
            print(f"{self.title}: {done} of {total} thread blocks in {taken:.0f} s, about {left:.0f} s to go",
                  file=sys.stderr, flush=True)  # fmt: skip


def returns(prim_func: Any) -> list[int]:
    """The parameters that a kernel returns."""
    return Kernel(prim_func, None, {}).outputs()


def launches(prim_func: Any, tensors: list[Any]) -> list[int]:
    """The number of thread blocks of each launch. Raises Unsupported where the arguments do not tell."""
    from tilelang import tvm

    returned = returns(prim_func)
    given = dict(zip([i for i in range(len(prim_func.params)) if i not in returned], tensors, strict=True))
    sizes, analyzer = sizes_of(prim_func, given), tvm.arith.Analyzer()
    found: list[dict[str, int]] = []

    def note(node: Any) -> None:
        if type(node).__name__ != "For" or node.thread_binding is None:
            return
        tag = str(node.thread_binding.thread_tag)
        size = analyzer.simplify(tvm.tirx.stmt_functor.substitute(node.extent, sizes))
        if not isinstance(size, tvm.tirx.IntImm):
            raise Unsupported("a grid whose extent is not a number")
        if not found or tag in found[-1]:
            found.append({})
        found[-1][tag] = int(size) if tag.startswith("blockIdx") else 1

    tvm.tirx.stmt_functor.post_order_visit(prim_func.body, note)
    return [math.prod(grid.values()) for grid in found] or [1]


def spread(count: int, chosen: int) -> list[int]:
    """So many numbers below `count`, evenly spread."""
    chosen = min(count, chosen)
    return [i * count // chosen for i in range(chosen)]


@contextlib.contextmanager
def _alarm(limit: float | None, title: str) -> Iterator[None]:
    """Raise TooLong when the block takes longer than `limit` seconds; outside the main thread it may."""
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _Alarm

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    except _Alarm:
        raise TooLong(f"{title} takes more than --limit {limit:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _add(note: Call, result: Result, machine: Births) -> None:
    """Count what a run gave."""
    for array, mask, left in zip(result.outputs, result.undetermined, result.left_out, strict=True):
        known = np.ones(tuple(array.shape), bool) if mask is None else ~mask
        nan, infinite = _bad(array, known)
        note.nan, note.infinities = note.nan + nan, note.infinities + infinite
        if mask is not None:
            note.undetermined += int((mask if left is None else mask & ~left).sum())
    note.born += machine.count
    note.first = note.first or machine.first
    note.events += [str(e) for e in result.events if str(e) not in note.events]


def _bad(array: Any, known: np.ndarray) -> tuple[int, int]:
    """How many known elements are NaN, and how many infinite."""
    if array.dtype.is_floating_point if hasattr(array.dtype, "is_floating_point") else array.dtype.kind not in "iub":
        words, fmt = to_words(array)
        infinite = fmt.is_inf(words) if fmt.infinities else np.zeros(words.shape, bool)
        return int((fmt.is_nan(words) & known).sum()), int((infinite & known).sum())
    return 0, 0


def as_torch(array: Any) -> Any:
    """An output as a torch tensor."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray) and array.dtype.kind in "iub":
        return torch.from_numpy(array)
    return from_words(*to_words(array), like=torch.empty(0))
