"""One element of an output, step by step: what its thread block stored until it was made.

`made(run, output, index)` finds the store that made it, `steps(run, maker)` lists the stores of that thread block, each
with the values of the element's row. `run(machine)` simulates a kernel with that machine, as in sim.trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arch import Arch
from .formats import DType, Integer, values
from .tracer import Listener, Place

__all__ = ["Maker", "Shown", "Step", "launches", "made", "steps"]

Run = Callable[[Callable[..., Any]], Any]


@dataclass(frozen=True)
class Maker:
    """What made an element of an output.

    block: the thread block's number; launch: in which of the kernel's `launches`, from 1 (0: any)
    element, extents: the element of the tile (or loop) that was stored, and the tile's extents
    """

    block: int
    launch: int
    launches: int
    element: tuple[int, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """A value that stands for a row or a tile: what it is ("", "column 3", "greatest", "all 64", ...) and its word."""

    what: str
    word: int
    fmt: DType

    @property
    def value(self) -> float:
        word = np.asarray(self.word, self.fmt.word)
        if isinstance(self.fmt, Integer):
            return int(word.view(self.fmt.value_type))
        return float(values(word, self.fmt))

    @property
    def bad(self) -> bool:
        """NaN or +inf; -inf is what masks and maxima start from."""
        return bool(np.isnan(self.value) or self.value == np.inf)


@dataclass(frozen=True)
class Step:
    """A store: where, whether of what was loaded from global memory, and what it stored in the element's row.

    whole: it has no such row, and the whole tile is meant
    """

    place: Place
    loaded: bool
    whole: bool
    shown: tuple[Shown, ...]

    @property
    def bad(self) -> bool:
        return any(each.bad for each in self.shown)


class _Counting(Listener):
    """Counts launches: in each the thread blocks run in the order of their numbers."""

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.launch = 0
        self._last: Any = None

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: DType) -> None:
        super().wrote(operator, buffer, iteration, x, fmt)
        if self._block is not self._last:
            again = self._last is None or self._block.numbers[0] <= self._last.numbers[-1]
            self.launch, self._last = self.launch + again, self._block


class _Finder(_Counting):
    """Notes the last store to one element: (block, launch, element, extents); None where that is not known."""

    output, flat = "", 0
    found: tuple[int, int, tuple[int, ...], tuple[int, ...]] | None = None

    def stored(self, tensor: Any, at: np.ndarray, x: np.ndarray, kept: np.ndarray | None = None) -> None:
        super().stored(tensor, at, x, kept)
        here = np.flatnonzero(at == self.flat) if tensor.name == self.output else at[:0]
        if here.size and kept is None:
            self.found = None
        elif here.size and kept is not None:
            lane, *element = np.unravel_index(np.flatnonzero(kept)[here[-1]], kept.shape)
            block = int(self._block.running()[lane])
            self.found = block, self.launch, tuple(int(i) for i in element), kept.shape[1:]


class _Recorder(_Counting):
    """Keeps what one launch of one thread block stores."""

    maker: Maker

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.steps: list[Step] = []
        self._loaded = False

    def loaded(self, tensor: Any, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        self._loaded = True
        return super().loaded(tensor, at, words)

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: DType) -> None:
        super().wrote(operator, buffer, iteration, x, fmt)
        loaded, self._loaded = self._loaded and operator == "copy", False
        running = self._block.running()
        lane = np.flatnonzero(running == self.maker.block)
        if lane.size and self.maker.launch in (0, self.launch):
            x = x[lane[0]] if x.ndim and x.shape[0] == len(running) > 1 else x[0] if x.shape[:1] == (1,) else x
            row = None if loaded else _row(x, self.maker)
            shown = _span(x, fmt) if row is None else _of_row(row, x.shape, self.maker, fmt)
            self.steps.append(Step(self._here(operator, buffer), loaded, row is None, tuple(shown)))


def made(run: Run, output: str, index: tuple[int, ...], shape: tuple[int, ...]) -> Maker | None:
    """What made `output[index]`; None where nothing stored it, or several thread blocks added to it."""
    machines: list[_Finder] = []

    def finder(*arguments: Any) -> _Finder:
        machines.append(_Finder(*arguments))
        machines[-1].output, machines[-1].flat = output, int(np.ravel_multi_index(index, shape))
        return machines[-1]

    run(finder)
    if machines[-1].found is None:
        return None
    block, launch, element, extents = machines[-1].found
    return Maker(block, launch, machines[-1].launch, element, extents)


def launches(run: Run) -> int:
    """How many launches a kernel has."""
    machines: list[_Counting] = []

    def counting(*arguments: Any) -> _Counting:
        machines.append(_Counting(*arguments))
        return machines[-1]

    run(counting)
    return machines[-1].launch


def steps(run: Run, maker: Maker) -> list[Step]:
    """Every store of the thread block, in order."""
    machines: list[_Recorder] = []

    def recorder(*arguments: Any) -> _Recorder:
        machines.append(_Recorder(*arguments))
        machines[-1].maker = maker
        return machines[-1]

    run(recorder)
    return machines[-1].steps


def _row(x: np.ndarray, maker: Maker) -> np.ndarray | None:
    """The element's row of a tile; None where the tile has another count of rows."""
    if x.size == 1:
        return x.reshape(())
    if x.ndim > 1 and x.shape[0] == 1:  # the same for all rows
        return np.asarray(x[0])
    if not x.ndim or not maker.extents or x.shape[0] != maker.extents[0]:
        return None
    return np.asarray(x[maker.element[0]])


def _of_row(row: np.ndarray, shape: tuple[int, ...], maker: Maker, fmt: DType) -> list[Shown]:
    """What stands for a row: its element of the output's column where the tile is as wide as the output's, else all."""
    if not row.ndim:
        return [Shown("", int(row), fmt)]
    if shape != maker.extents or (row == row.flat[0]).all():
        return _span(row, fmt)
    column = maker.element[1:]
    own = Shown(f"column {', '.join(map(str, column))}", int(row[column]), fmt)
    return [own] + [s for s in _first_bad(row, fmt) if s.word != own.word]


def _span(x: np.ndarray, fmt: DType) -> list[Shown]:
    """The greatest and the least of some words, and the first bad one; one where all are the same."""
    if x.size == 1 or (x == x.flat[0]).all():
        return [Shown(f"all {x.size}" if x.size > 1 else "", int(x.flat[0]), fmt)]
    flat = np.ascontiguousarray(x).reshape(-1)
    numbers = flat.view(fmt.value_type) if isinstance(fmt, Integer) else values(flat, fmt)
    known = np.flatnonzero(~np.isnan(numbers))
    ends = []
    if known.size:
        of = numbers[known]
        ends = [("greatest", known[of.argmax()]), ("least", known[of.argmin()])]
    return [Shown(what, int(flat[at]), fmt) for what, at in ends] + _first_bad(x, fmt)


def _first_bad(x: np.ndarray, fmt: DType) -> list[Shown]:
    """The first NaN, or else the first +inf."""
    if isinstance(fmt, Integer):
        return []
    for mask in (fmt.is_nan(x), (x & fmt.word.type(fmt.sign) == 0) & fmt.is_inf(x)):
        if mask.any():
            at = np.argwhere(mask)[0].tolist()
            return [Shown(f"first bad {at}", int(x[tuple(at)]), fmt)]
    return []
