"""Is there an input within bounds that makes a bad output? Directed inputs first, then a seeded search.

Every one that is found has been run by the exact simulator, and comes with its trace. Not found is no proof: that is
`sim.prove`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from .arch import arch as find_arch
from .candidates import (
    Array,
    Candidate,
    Flash,
    Tensor,
    flash_candidates,
    flash_random,
    tensor_candidates,
    tensor_random,
)
from .flash import Schedule, flash_attention
from .formats import BF16, FP16, Format, format_named, to_words
from .machine import Exact
from .rounding import greatest
from .trace import Trace, follow

__all__ = ["Counterexample", "Tensor", "bad_outputs", "find", "search_kernel", "search_schedule"]

Run = Callable[[Callable[..., Any]], Any]  # simulates a kernel with a machine


@dataclass(frozen=True)
class Counterexample:
    """Inputs that make a bad output: by name as (words, Format), what they are in words, and what happened."""

    what: str
    arrays: dict[str, Array]
    trace: Trace

    @property
    def q(self) -> Array:
        return self.arrays["q"]

    @property
    def k(self) -> Array:
        return self.arrays["k"]

    @property
    def v(self) -> Array:
        return self.arrays["v"]


def find(run_of: Callable[[dict[str, Array]], Run], candidates: Iterable[Candidate],
         bad: Callable[[Any], bool]) -> Counterexample | None:  # fmt: skip
    """The first candidate whose run is `bad` and has a cause in the kernel; None when there is none.

    run_of: its arrays -> a function that simulates the kernel on them with a machine, as sim.trace.follow takes it
    bad: of what such a run returned
    """
    for candidate in candidates:
        run = run_of(candidate.arrays)
        if bad(run(Exact)):
            trace = follow(run)
            if trace.causes:
                return Counterexample(candidate.what, candidate.arrays, trace)
    return None


def search_schedule(schedule: Schedule, seq: int = 128, dim: int = 64, *, score_bound: float | None = None,
                    qk_bound: float | None = None, v_bound: float | None = None, dtype: str = "float16",
                    arch: str = "sm_90", seq_kv: int | None = None, hints: Sequence[str] = (), tries: int = 0,
                    seed: int = 0) -> Counterexample | None:  # fmt: skip
    """Inputs q, k, v of one head that make the flash loop's output NaN or infinite; None when none was found.

    score_bound: of |q . k| before the scale; qk_bound: of each |q| and |k|; v_bound: of each |v|; None: any finite
    hints: buffers that a proof could not bound: what drives them is tried first
    tries: random inputs after the directed ones, from `seed` on
    """
    fmt = format_named(dtype)
    if fmt not in (FP16, BF16):
        raise ValueError(f"dtype must be float16 or bfloat16, not {dtype!r}")
    most = greatest(fmt)
    bounds = {"score_bound": score_bound, "qk_bound": qk_bound, "v_bound": v_bound}
    for name, bound in bounds.items():
        if bound is not None and not bound >= 0:
            raise ValueError(f"{name} must be a number of at least 0, not {bound!r}")
    score = np.inf if score_bound is None else score_bound
    qk, v = (most if bound is None else min(bound, most) for bound in (qk_bound, v_bound))
    flash = Flash(schedule, find_arch(arch), fmt, seq, seq_kv or seq, dim, score, qk, v)
    tiles = [(tile, 0, 0) for tile in _tiles(flash)]
    found = find(
        lambda arrays: _flash_run(flash, arrays, tiles),
        flash_candidates(flash, hints),
        lambda output: _is_bad(_rows(output, flash, tiles), fmt),
    )
    return found or find(
        lambda arrays: _flash_run(flash, arrays), (flash_random(flash, seed + n) for n in range(tries)), bad_outputs
    )


def _flash_run(flash: Flash, arrays: dict[str, Array], blocks: Any = None) -> Run:
    q, k, v = (arrays[name] for name in "qkv")
    return lambda machine: flash_attention(q, k, v, flash.schedule, flash.arch.name, blocks, machine)


def _tiles(flash: Flash) -> list[int]:
    """The query tiles that are enough, for rows that are the same: of each phase of the mask the last one and the
    last one without padding.
    """
    size, count = flash.schedule.block_M, -(-flash.seq // flash.schedule.block_M)
    if not flash.schedule.causal:
        return [count - 1]
    whole = range(max(1, flash.seq // size))
    past = flash.seq_kv - flash.seq
    phases = {(past + tile * size) % flash.schedule.block_N: tile for tile in whole}
    return sorted({*phases.values(), count - 1})


def _rows(output: Any, flash: Flash, tiles: list[tuple[int, int, int]]) -> np.ndarray:
    """The output words of these tiles."""
    size = flash.schedule.block_M
    return np.concatenate([to_words(output)[0][:, tile * size : (tile + 1) * size] for tile, _, _ in tiles], axis=1)


def search_kernel(run_of: Callable[[dict[str, Array]], Run], tensors: dict[str, Tensor], *, hints: Sequence[str] = (),
                  tries: int = 16, seed: int = 0, outputs: Sequence[str] = ()) -> Counterexample | None:  # fmt: skip
    """Inputs of any kernel within the bounds of its float tensors that make an output bad; None when none was found.

    run_of: {name: (words, Format)} of these tensors -> a function that simulates the kernel with a machine
    hints: tensors to vary first; tries: random inputs after the directed ones, from `seed` on
    outputs: names of those that are judged, all by default. Where a bound is infinite only NaN is bad.
    """
    infinite = any(np.isinf(t.bound) for t in tensors.values())
    candidates = chain(tensor_candidates(tensors, hints), (tensor_random(tensors, seed + n) for n in range(tries)))
    return find(run_of, candidates, lambda result: bad_outputs(result, infinite, outputs))


def bad_outputs(result: Any, only_nan: bool = False, names: Sequence[str] = ()) -> bool:
    """Whether a run gave NaN, or an infinity, in a word that can be known; `names`: in these outputs alone."""
    if not hasattr(result, "outputs"):
        return _is_bad(*to_words(result), only_nan)
    for name, output, unknown in zip(result.names, result.outputs, result.undetermined, strict=True):
        if (names and name not in names) or (isinstance(output, np.ndarray) and output.dtype.kind in "iub"):
            continue
        words, fmt = to_words(output)
        if _is_bad(words if unknown is None else words[~unknown], fmt, only_nan):
            return True
    return False


def _is_bad(words: np.ndarray, fmt: Format, only_nan: bool = False) -> bool:
    return bool((fmt.is_nan(words) if only_nan else fmt.is_nan(words) | fmt.is_inf(words)).any())
