"""Every value that a kernel stores lies in what sim.intervals says of it: two runs of one kernel, store by store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from sim.flash import VARIANTS, Schedule, flash_attention
from sim.formats import Format, values
from sim.intervals import Bounds, Intervals
from sim.machine import Exact
from sim.prove import prove

Run = Callable[[Callable[..., Any]], Any]


class Stores(Exact):
    """Keeps what every tile operator stored."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.seen: list[tuple[str, str, np.ndarray]] = []

    def wrote(self, operator: str, buffer: str, iteration: Any, x: np.ndarray, fmt: Any) -> None:
        if isinstance(fmt, Format):
            self.seen.append((operator, buffer, values(x, fmt)))


class Enclosures(Intervals):
    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.seen: list[tuple[str, str, np.ndarray]] = []

    def wrote(self, operator: str, buffer: str, iteration: Any, x: np.ndarray, fmt: Any) -> None:
        super().wrote(operator, buffer, iteration, x, fmt)
        if isinstance(fmt, Format):
            self.seen.append((operator, buffer, x.copy()))


def enclosures(run: Run, bounds: Bounds) -> list[tuple[str, str, np.ndarray]]:
    """What every store can be, for all inputs within the bounds."""
    made: list[Enclosures] = []
    run(lambda *a: made.append(Enclosures(*a, bounds)) or made[-1])
    return made[-1].seen


def outside(run: Run, held: list[tuple[str, str, np.ndarray]]) -> list[str]:
    """The stores of a run of which a value is not enclosed, and the value."""
    made: list[Stores] = []
    run(lambda *a: made.append(Stores(*a)) or made[-1])
    assert len(made[-1].seen) == len(held)
    found = []
    for (operator, buffer, x), (_, _, e) in zip(made[-1].seen, held, strict=True):
        nan = np.isnan(x)
        with np.errstate(invalid="ignore"):
            inside = ((e["lo"] <= x[..., None]) & (x[..., None] <= e["hi"])).any(axis=-1)
        fine = np.where(nan, e["nan"].any(axis=-1), inside)
        if not fine.all():
            at = tuple(np.argwhere(~fine)[0])
            box = np.broadcast_to(e, fine.shape)[at]
            found.append(
                f"{operator} {buffer}{at}: {np.broadcast_to(x, fine.shape)[at]!r} not in {box['lo']}, {box['hi']}"
            )
    return found


def schedule_of(rng: np.random.Generator) -> tuple[Schedule, int, int]:
    """A random small schedule, a sequence length and a head dimension."""
    block_M, block_N = (int(rng.choice([2, 4, 8, 16])) for _ in range(2))
    schedule = Schedule.variant(
        str(rng.choice(list(VARIANTS))), block_M=block_M, block_N=block_N, causal=bool(rng.integers(2)),
        fast_math=bool(rng.integers(2)),
    )  # fmt: skip
    return schedule, int(rng.integers(2, 25)), int(rng.choice([4, 8, 16]))


def inputs(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> np.ndarray:
    """float16 within a bound: each head another mixture of the bound itself, falls, equal values and small numbers."""
    batch, seq, heads, _ = shape
    kind = rng.integers(5, size=(batch, 1, heads, 1))
    falls = np.where(
        np.arange(seq)[None, :, None, None] < rng.integers(1, seq + 1, size=(batch, 1, heads, 1)), 1.0, -1.0
    )
    choices = [
        rng.uniform(-1, 1, shape), rng.choice([-1.0, 1.0], shape), np.broadcast_to(falls, shape), np.ones(shape),
        rng.standard_normal(shape) / 50,
    ]  # fmt: skip
    x = np.select([kind == n for n in range(5)], choices)
    found = (np.clip(x, -1, 1) * bound).astype(np.float16)
    return np.where(np.abs(found.astype(np.float64)) > bound, np.nextafter(found, np.float16(0)), found)


def campaign(seed: int, heads: int = 64) -> tuple[int, int]:
    """Inputs within a bound that is proved, near the greatest one: how many, and how many of them gave a bad output."""
    rng = np.random.default_rng(seed)
    schedule, seq, dim = schedule_of(rng)
    value = float(rng.choice([1.0, 1000.0, 60000.0, 65400.0]))
    one = np.zeros((1, seq, 1, dim), np.float16)

    def proved(bound: float) -> bool:
        bounds = Bounds({"Q": bound, "K": bound, "V": value})
        return prove(lambda m: flash_attention(one, one, one, schedule, machine=m), bounds).proved

    low, high = 0.0, float(rng.choice([8.0, 64.0, 1024.0, 65504.0]))
    if proved(high):
        low = high
    else:
        for _ in range(5):
            middle = (low + high) / 2
            low, high = (middle, high) if proved(middle) else (low, middle)
    if not low:
        return 0, 0
    shape = (2, seq, heads, dim)
    q, k, v = inputs(rng, shape, low), inputs(rng, shape, low), inputs(rng, shape, value)
    out = flash_attention(q, k, v, schedule)
    return 2 * heads, int((~np.isfinite(out.astype(np.float64))).any(axis=(1, 3)).sum())


def main() -> None:
    """python tests/enclosing.py FIRST LAST: the campaigns of these seeds."""
    done = broken = 0
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        count, bad = campaign(seed)
        if bad:
            print(f"seed {seed}: {bad} of {count} inputs within a proved bound are bad", flush=True)
        done, broken = done + count, broken + bad
    print(f"{done} inputs of seeds {sys.argv[1]} to {sys.argv[2]} within proved bounds, {broken} bad")


if __name__ == "__main__":
    main()
