"""The proof is sound: what a kernel stores lies in what the intervals say, and within proved bounds nothing is bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from enclosing import campaign, enclosures, inputs, outside, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.intervals
from sim import VARIANTS, Schedule, flash_attention
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, Format, values
from sim.prove import Bounds, Proof, prove
from sim.rounding import rounded


def proof(variant: str, causal: bool, score: float | None, v: float, seq: int = 128, block_M: int = 64,
          block_N: int = 64, dim: int = 64, qk: float = 65504.0, fast_math: bool = True) -> Proof:  # fmt: skip
    one = np.zeros((1, seq, 1, dim), np.float16)
    schedule = Schedule.variant(variant, block_M=block_M, block_N=block_N, causal=causal, fast_math=fast_math)
    bounds = Bounds({"Q": qk, "K": qk, "V": v}, score)
    return prove(lambda machine: flash_attention(one, one, one, schedule, machine=machine), bounds)


# soundness


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_random_schedule_stores_is_enclosed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule, seq, dim = schedule_of(rng)
    qk, v = float(rng.choice([0.5, 3, 30, 300, 65504])), float(rng.choice([1, 100, 65504]))
    one = np.zeros((1, seq, 1, dim), np.float16)
    held = enclosures(lambda m: flash_attention(one, one, one, schedule, machine=m), Bounds({"Q": qk, "K": qk, "V": v}))
    for _ in range(3):
        q, k, w = (inputs(rng, one.shape, bound) for bound in (qk, qk, v))
        assert outside(lambda m, q=q, k=k, w=w: flash_attention(q, k, w, schedule, machine=m), held) == []


@pytest.mark.parametrize("seed", [3, 13, 17])
def test_within_a_proved_bound_no_input_is_bad(seed: int) -> None:
    """Seed 13 found that an accumulator which may overflow was still bounded by its sum."""
    count, bad = campaign(seed, heads=32)
    assert count and not bad


def test_an_unsound_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a score is at most its row's maximum, taken for a score and another row's maximum as well."""

    def anything(self: Any, x: np.ndarray, m: np.ndarray) -> np.ndarray:
        return (x != 0) & (m != 0)

    monkeypatch.setattr(sim.intervals.Intervals, "_at_most", anything)
    assert any(campaign(seed, heads=32)[1] for seed in range(12))


def test_an_envelope_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncation moves a sum of tensor-core products: without its envelope a score leaves its interval."""
    monkeypatch.setattr(sim.intervals.Intervals, "_envelope", lambda self, most, *_: (0.0, 0 * most, most < 0))
    rng, found = np.random.default_rng(1), []
    for _ in range(20):
        q, k = (rng.uniform(-1, 1, (1, 16, 1, 16)).astype(np.float16) for _ in range(2))

        def run(machine: Any, q: np.ndarray = q, k: np.ndarray = k) -> Any:
            return flash_attention(q, k, k, Schedule(block_M=16, block_N=16), machine=machine)

        held = enclosures(run, Bounds({}))  # the inputs themselves: every interval is a point and its envelope
        found += outside(run, held)
    assert any("acc_s" in x for x in found)


@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3, E5M2], ids=lambda f: f.name)
@settings(max_examples=200, deadline=None)
@given(x=st.floats(-1e39, 1e39))
def test_rounding_to_a_format_gives_its_nearest_number(fmt: Format, x: float) -> None:
    """Against the format's own numbers, or NumPy's cast where these are too many."""
    got = float(rounded(np.asarray(x), fmt))
    if fmt.bits > 16:
        with np.errstate(over="ignore"):
            assert got == float(np.float32(x))
        return
    numbers = values(np.arange(1 << fmt.bits, dtype=fmt.word), fmt)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    nearest = numbers[np.abs(numbers - x) == np.abs(numbers - x).min()]
    assert got in nearest or abs(got) == np.inf and abs(x) > numbers.max()


# what is proved


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fast_math", [True, False])
def test_square_blocks_are_safe_at_ordinary_bounds(variant: str, causal: bool, fast_math: bool) -> None:
    assert proof(variant, causal, 100.0, 1000.0, fast_math=fast_math).proved


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wholly_masked_block_is_refuted_by_the_mask_alone_where_the_maximum_is_lost(variant: str) -> None:
    """Sequence 4, blocks of 4 by 2, causal: rows 0 and 1 see no key of the second key block."""
    found = proof(variant, True, 1.0, 1.0, seq=4, block_M=4, block_N=2, dim=16)
    if "block_max" in variant:
        rows = found.certain["Output"].any(axis=(0, 2, 3))
        assert rows.tolist() == [True, True, False, False]
    else:
        assert found.proved


def test_block_max_is_proved_up_to_where_64_equal_maxima_make_the_sum_overflow() -> None:
    """122 / (2 * scale) is 338.26: logsum is 64 * 2^(2 * |score| * scale)."""
    assert proof("block_max", False, 338.0, 1.0).proved and not proof("block_max", False, 338.3, 1.0).proved
    first, place = proof("block_max", False, 338.3, 1.0).stuck[0]
    assert (first, place.buffer, place.iteration) == ("mul_add", "logsum", (1,))


def test_block_max_with_great_values_is_proved_up_to_where_the_accumulator_overflows() -> None:
    """(128 - log2(64 * 65400)) / (2 * scale) is 293.9; values above 65461 overflow the output at any score."""
    assert proof("block_max", False, 293.5, 65400.0).proved and not proof("block_max", False, 294.1, 65400.0).proved
    assert not proof("block_max", False, 1.0, 65504.0).proved


@pytest.mark.parametrize("causal", [False, True])
def test_running_max_is_proved_up_to_scores_of_2_to_the_28_and_values_near_the_greatest(causal: bool) -> None:
    scale = 1.44269504 / 8
    assert proof("running_max", causal, 2.0**27.9 / scale, 1.0).proved
    assert not proof("running_max", causal, 2.0**28.1 / scale, 1.0).proved
    assert proof("running_max", causal, 100.0, 65440.0).proved
    assert not proof("running_max", causal, 100.0, 65504.0).proved
