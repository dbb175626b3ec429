"""Inputs that break a schedule: found where there is one, within the bounds, and not found where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_gpu
import numpy as np
import pytest

from crosscheck.cli import main
from sim import Schedule, flash_attention
from sim.arch import arch
from sim.candidates import Flash, Tensor, flash_candidates, flash_random, tensor_candidates, tensor_random, toward_zero
from sim.formats import BF16, FP16, values
from sim.search import bad_outputs, search_schedule

SCALE = 64**-0.5 * 1.44269504


def broken(variant: str, **bounds: Any) -> tuple[str, str] | None:
    """Kind and buffer of the first cause of what is found at 64x64 blocks, 128 rows and dim 64."""
    found = search_schedule(Schedule.variant(variant), 128, 64, **bounds)
    if found is None:
        return None
    assert bad_outputs(flash_attention(found.q, found.k, found.v, Schedule.variant(variant)))
    return found.trace.causes[0].kind, found.trace.causes[0].place.buffer


# schedules


@pytest.mark.parametrize("seq", [128, 130, 256])
def test_masks_alone_break_a_lost_maximum_where_query_tiles_are_taller_than_key_tiles(seq: int) -> None:
    schedule = Schedule.variant("block_max", block_M=128, block_N=64, causal=True)
    found = search_schedule(schedule, seq, 64, score_bound=0, v_bound=0)
    assert found is not None and found.what == "zeros" and not any(words.any() for words, _ in found.arrays.values())


@pytest.mark.parametrize(
    ("least", "v", "cause"),
    [(122 / SCALE / 2, 1, ("overflow_mul", "logsum")), (106 / SCALE / 2, 65504, ("overflow_mul", "acc_o"))],
)
def test_a_falling_block_maximum_breaks_from_the_least_bound_that_64_equal_maxima_need(
    least: float, v: float, cause: tuple[str, str]
) -> None:
    assert broken("block_max", score_bound=least * 0.999, v_bound=v) is None
    assert broken("block_max", score_bound=least * 1.002, v_bound=v) == cause


def test_a_running_maximum_breaks_where_a_score_and_its_rounded_maximum_are_16_apart() -> None:
    """exp2(16) is no float16: the product is rounded in the maximum and not in the score."""
    assert broken("running_max", score_bound=2.0**28 / SCALE, v_bound=1) is None
    assert broken("running_max", score_bound=2.0**28 * 1.02 / SCALE, v_bound=1) == ("overflow_convert", "acc_s_cast")


def test_a_running_maximum_breaks_earlier_where_the_factor_of_many_blocks_is_above_1() -> None:
    schedule = Schedule.variant("running_max", block_M=16, block_N=16)
    found = search_schedule(schedule, 16, 64, seq_kv=512, score_bound=2.0**27.1 / SCALE, v_bound=1)
    assert found is not None and found.trace.causes[0].place.buffer in ("logsum", "acc_o")
    assert broken("running_max", score_bound=2.0**27.1 / SCALE, v_bound=1) is None


def test_weights_rounded_up_break_the_greatest_value_and_no_smaller_one() -> None:
    assert broken("running_max", score_bound=1, v_bound=65504) == ("overflow_convert", "O_shared")
    assert broken("running_max", score_bound=1, v_bound=65472) is None


def test_hints_come_first() -> None:
    flash = Flash(Schedule(), arch("sm_90"), FP16, 128, 128, 64, 100.0, 65504.0, 1.0)
    assert next(flash_candidates(flash)).what == "zeros"
    assert next(flash_candidates(flash, ["O_shared"])).what == "weights that are rounded up"


# what is tried keeps its bounds


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(("score", "qk", "v"), [(1e-3, 65504.0, 0.3), (338.3, 65504.0, 7.0), (np.inf, 0.7, 1.0)])
def test_scores_and_elements_stay_within_their_bounds_and_reach_them(
    fmt: Any, score: float, qk: float, v: float
) -> None:
    flash = Flash(Schedule(block_N=16), arch("sm_90"), fmt, 32, 48, 16, score, qk, v)
    greatest = 0.0
    for candidate in [*flash_candidates(flash), *(flash_random(flash, seed) for seed in range(8))]:
        q, k, values_of_v = (values(*candidate.arrays[name]) for name in "qkv")
        products = np.abs(q[0, :, 0] @ k[0, :, 0].T)  # of few bits: exact in float64
        assert max(np.abs(q).max(), np.abs(k).max()) <= qk and np.abs(values_of_v).max() <= v
        assert products.max() <= flash.reach
        greatest = max(greatest, products.max())
    assert greatest >= flash.reach * 0.9999


def test_toward_zero_is_the_nearest_value_that_is_not_greater() -> None:
    x = np.array([0.1, -0.1, 65504, 70000, 1e-9, -1e-9, 1 + 2.0**-11])
    found = values(toward_zero(x, FP16), FP16)
    assert (np.abs(found) <= np.abs(x)).all()
    assert found.tolist() == [0.0999755859375, -0.0999755859375, 65504, 65504, 0, 0, 1]


def test_tensors_of_any_kernel_stay_within_their_bounds_and_infinities_need_an_infinite_one() -> None:
    tensors = {"A": Tensor((16, 4), FP16, 3.3), "B": Tensor((3,), BF16, np.inf), "S": Tensor((), FP16, 0.5)}
    infinite = False
    for candidate in [*tensor_candidates(tensors), *(tensor_random(tensors, seed) for seed in range(16))]:
        for name, (words, fmt) in candidate.arrays.items():
            assert words.shape == tensors[name].shape and words.dtype == fmt.word
            assert (np.abs(values(words, fmt)) <= tensors[name].bound).all()
        infinite |= bool(BF16.is_inf(candidate.arrays["B"][0]).any())
    assert infinite


# the verb

FALLS = ["search", "--variant", "block_max", "--seq", "128", "--dim", "64", "--v-bound", "1", "--tries", "1"]


def test_the_verb_says_what_was_found_keeps_it_and_run_gives_it_again(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "found.npz"
    assert main([*FALLS, "--score-bound", "340", "--gpu", "off", "--out", str(out)]) == 1
    assert "FOUND: the block maximum falls, with |q.k| <= 340 and |v| <= 1" in capsys.readouterr().out
    assert main(["explain", "--variant", "block_max", "--inputs", str(out)]) == 1


def test_the_verb_ends_with_3_when_nothing_was_found(capsys: Any) -> None:
    assert main([*FALLS, "--score-bound", "300", "--gpu", "off"]) == 3
    assert "not found" in capsys.readouterr().out


@pytest.mark.parametrize(("flip", "said"), [(0, "all words as simulated"), (1, "words differ")])
def test_a_gpu_confirms_what_was_found_or_does_not(monkeypatch: Any, capsys: Any, flip: int, said: str) -> None:
    fake_gpu.install(monkeypatch, flip=flip)
    assert main([*FALLS, "--score-bound", "340", "--json"]) == 1
    gpu = json.loads(capsys.readouterr().out)["gpu"]
    assert "8192 words are NaN or infinite on the NVIDIA H200" in gpu and said in gpu


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--inputs", "normal"], "--inputs are of one run"),
        (["--bound", "Q=1"], "--bound is of a kernel's inputs"),
        (["--score-bound", "inf"], "--score-bound must be a finite number"),
        (["--output", "O"], "--output is of a kernel"),
        (["--out", "found.txt"], "--out must be the name of a .npz file"),
    ],
)
def test_mistakes_are_one_sentence(capsys: Any, flags: list[str], said: str) -> None:
    assert main(["search", *flags]) == 2
    assert said in capsys.readouterr().err
