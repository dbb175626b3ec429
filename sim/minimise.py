"""A failing input shrinks to the smallest one that still fails in the same way.

The same way: the first cause of a bad output has the same kind, operator and buffer. Sizes shrink first, then elements
become 0, then values become simpler; no element grows in magnitude, so that bounds of the input still hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .flash import Schedule, flash_attention
from .formats import Format, values
from .trace import Cause, Trace, follow

__all__ = ["Case", "Minimised", "first_cause", "minimise", "minimise_schedule", "signature"]

Run = Callable[[Callable[..., Any]], Any]  # simulates a kernel with a machine
_MOST_VALUES = 64  # that are made simpler one by one
_ROUNDS = 4


@dataclass(frozen=True)
class Case:
    """A kernel's sizes, and its inputs by name: (words, Format), an array of integers, or a number."""

    sizes: dict[str, Any]
    arrays: dict[str, Any]

    def with_array(self, name: str, array: Any) -> Case:
        return replace(self, arrays=self.arrays | {name: array})


@dataclass(frozen=True)
class Minimised:
    """The smallest case that was found, what happens in it, and how many cases were run."""

    case: Case
    trace: Trace
    runs: int


def first_cause(trace: Trace, outputs: Sequence[str] = ()) -> Cause | None:
    """The first cause that reaches an output, or one of `outputs`."""
    return next((c for c in trace.causes if not outputs or set(outputs) & set(c.reached)), None)


def signature(trace: Trace, outputs: Sequence[str] = ()) -> tuple[str, ...] | None:
    """How a run fails: kind, operator and buffer of the first cause; of a bad input also where it first makes NaN."""
    cause = first_cause(trace, outputs)
    if cause is None:
        return None
    found = (cause.kind, cause.place.operator, cause.place.buffer)
    if cause.kind != "input":
        return found
    return found + next(((p.operator, p.buffer) for p, what in cause.carried if what == "NaN"), ())


def minimise(case: Case, run_of: Callable[[Case], Run], smaller: Callable[[Case], Iterator[Case]],
             outputs: Sequence[str] = (), progress: Callable[[int], None] | None = None) -> Minimised:  # fmt: skip
    """The smallest case that fails as `case` does.

    run_of: a case -> a function that simulates it with a machine; what raises ValueError, TypeError or
    NotImplementedError is no case
    smaller: cases of smaller sizes, the smallest steps last; outputs: those that count, all by default
    progress: called with the number of runs. Raises ValueError when `case` makes no bad output.
    """
    return _Shrinking(case, run_of, smaller, outputs, progress).shrunk()


class _Shrinking:
    """The smallest case up to now."""

    def __init__(self, case: Case, run_of: Callable[[Case], Run], smaller: Callable[[Case], Iterator[Case]],
                 outputs: Sequence[str], progress: Callable[[int], None] | None):  # fmt: skip
        self.case, self.run_of, self.smaller, self.outputs, self.progress = case, run_of, smaller, outputs, progress
        self.trace, self.runs = follow(run_of(case)), 1
        self.wanted = signature(self.trace, outputs)
        if self.wanted is None:
            raise ValueError("the inputs make no bad output: there is nothing to minimise")

    def takes(self, case: Case) -> bool:
        """Whether a case fails in the same way; then it is the smallest one."""
        self.runs += 1
        if self.progress is not None:
            self.progress(self.runs)
        try:
            trace = follow(self.run_of(case))
        except (ValueError, TypeError, NotImplementedError):
            return False
        if signature(trace, self.outputs) != self.wanted:
            return False
        self.case, self.trace = case, trace
        return True

    def shrunk(self) -> Minimised:
        for _ in range(_ROUNDS):
            before = self.case
            while any(self.takes(case) for case in self.smaller(self.case)):
                pass
            for name, array in self.case.arrays.items():
                if isinstance(array, tuple):
                    self._fewer(name)
                    self._simpler(name)
                else:
                    self._lower(name)
            if self.case is before:
                break
        return Minimised(self.case, self.trace, self.runs)

    def _words(self, name: str) -> tuple[np.ndarray, Format]:
        words, fmt = self.case.arrays[name]
        return words, fmt

    def _takes_words(self, name: str, words: np.ndarray) -> bool:
        return self.takes(self.case.with_array(name, (words, self._words(name)[1])))

    def _fewer(self, name: str) -> None:
        """Fewest elements that are not 0: whole slices along each axis, the last one first, then single elements."""
        words, _ = self._words(name)
        for axis in reversed(range(words.ndim)):
            places = np.arange(words.shape[axis]).reshape([-1 if a == axis else 1 for a in range(words.ndim)])
            self._put_out(name, np.broadcast_to(places, words.shape))
        self._put_out(name, np.arange(words.size).reshape(words.shape))

    def _put_out(self, name: str, group: np.ndarray) -> None:
        """Fewest groups of elements that are not 0, `group` [*shape] their numbers: ever smaller runs of them go."""
        words, _ = self._words(name)
        kept = np.unique(group[words != 0])
        size = len(kept)
        while size:
            start = 0
            while start < len(kept):
                words, _ = self._words(name)
                gone = np.isin(group, kept[start : start + size])
                if self._takes_words(name, np.where(gone, words.dtype.type(0), words)):
                    kept = np.delete(kept, np.s_[start : start + size])
                else:
                    start += size
            size = min(size // 2, len(kept))

    def _simpler(self, name: str) -> None:
        """Every value 1 or with fewer bits: all at once, then one value after another."""
        words, fmt = self._words(name)
        if any(self._takes_words(name, trial) for trial in _with_less(words, fmt, words != 0)):
            words, _ = self._words(name)
        distinct = np.unique(words[words != 0])
        for word in distinct if len(distinct) <= _MOST_VALUES else ():
            words, _ = self._words(name)
            any(self._takes_words(name, trial) for trial in _with_less(words, fmt, words == word))

    def _lower(self, name: str) -> None:
        """Integers toward 0; those that ascend go on ascending."""
        moved = True
        while moved:
            array = np.asarray(self.case.arrays[name])
            moved = any(self.takes(self.case.with_array(name, trial)) for trial in _lowered(array))


def _with_less(words: np.ndarray, fmt: Format, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """`words` with those of `chosen` made simpler: 1 where they are greater, or only their highest bits."""
    magnitude = fmt.word.type(fmt.sign - 1)
    one = fmt.word.type(fmt.bias << fmt.fraction_bits << fmt.unused_bits)
    finite = chosen & ~fmt.is_nan(words) & ~fmt.is_inf(words)
    ones = finite & (np.abs(values(words, fmt)) > 1)
    trials = [np.where(ones, words & ~magnitude | one, words)]
    for bits in (0, 1, 3, 6):
        low = fmt.word.type((1 << fmt.unused_bits << max(0, fmt.fraction_bits - bits)) - 1)
        trials.append(np.where(finite & (words & magnitude >= fmt.word.type(fmt.min_normal)), words & ~low, words))
    yield from (trial.astype(fmt.word) for trial in trials if (trial != words).any())


def _lowered(array: np.ndarray) -> Iterator[Any]:
    """Each element 0, half, or one less; a number stays a number."""
    ascending = array.ndim == 1 and array.size > 1 and bool((np.diff(array) >= 0).all())
    for at in range(array.size if array.size <= _MOST_VALUES else 0):
        own = int(array.reshape(-1)[at])
        for value in dict.fromkeys((0, own // 2, own - 1)):
            if 0 <= value < own:
                trial = array.copy()
                trial.reshape(-1)[at] = value
                if not ascending or (np.diff(trial) >= 0).all():
                    yield trial if array.ndim else int(trial)


def minimise_schedule(schedule: Schedule, q: Any, k: Any, v: Any, arch: str = "sm_90", least: int = 2,
                      progress: Callable[[int], None] | None = None) -> tuple[Schedule, Minimised]:  # fmt: skip
    """The smallest schedule and inputs of the flash loop that fail as these do; q, k, v are pairs (words, Format).

    least: the smallest side of a tile. Sizes are halved, so that tiles keep powers of two.
    """
    sizes = {"block_M": schedule.block_M, "block_N": schedule.block_N, "num_stages": schedule.num_stages}

    def run_of(case: Case) -> Run:
        own, (q, k, v) = replace(schedule, **case.sizes), (case.arrays[name] for name in "qkv")
        return lambda machine: flash_attention(q, k, v, own, arch=arch, machine=machine)

    found = minimise(
        Case(sizes, {"q": q, "k": k, "v": v}), run_of, lambda case: _smaller(case, schedule.causal, least), (), progress
    )
    return replace(schedule, **found.case.sizes), found


def _smaller(case: Case, causal: bool, least: int) -> Iterator[Case]:
    """Smaller cases of the flash loop: fewer heads, all of them halved, tiles, rows and keys, the dimension."""
    yield from _one_head(case)
    sizes = case.sizes
    if sizes["num_stages"]:
        yield replace(case, sizes=sizes | {"num_stages": 0})
    half = {name: sizes[name] // 2 for name in ("block_M", "block_N") if sizes[name] // 2 >= least}
    together = ("qkv",) if causal else ("qkv", "q", "kv")
    every = np.s_[:, ::2]
    if len(half) == 2:
        yield _cut(replace(case, sizes=sizes | half), "qkv", every)
    for name, names in (("block_M", "q"), ("block_N", "kv")):
        if name in half:
            smaller = replace(case, sizes=sizes | {name: half[name]})
            if not causal:
                yield _cut(smaller, names, every)
            rows = case.arrays[names[0]][0].shape[1]
            if -(-rows // half[name]) == -(-rows // sizes[name]):  # no more blocks than before
                yield smaller
    for names in together:
        middle = min(case.arrays[name][0].shape[1] for name in names) // 2
        for rows in (np.s_[:, :middle], np.s_[:, middle:], every) if middle else ():
            yield _cut(case, names, rows)
    dim = case.arrays["q"][0].shape[3]
    for part in (4, 2):  # by 4 the scale stays the same but for a power of two
        if dim % part == 0:
            yield _cut(_cut(case, "qk", np.s_[..., : dim // part]), "v", np.s_[..., : dim // part])


def _one_head(case: Case) -> Iterator[Case]:
    """One batch entry and one head of several."""
    batch, _, heads, _ = case.arrays["q"][0].shape
    groups = heads // case.arrays["k"][0].shape[2]
    if batch * heads > 1:
        for b, h in np.ndindex(batch, heads):
            one = _cut(case, "q", np.s_[b : b + 1, :, h : h + 1])
            yield _cut(one, "kv", np.s_[b : b + 1, :, h // groups : h // groups + 1])


def _cut(case: Case, names: str, part: Any) -> Case:
    arrays = {n: (case.arrays[n][0][part].copy(), case.arrays[n][1]) for n in names}
    return replace(case, arrays=case.arrays | arrays)
