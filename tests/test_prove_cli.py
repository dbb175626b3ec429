"""The verb `prove`: proved, refuted with an input, open; the bracket; mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crosscheck.cli import main

SMALL = ["--dim", "64", "--seq", "128", "--gpu", "off"]


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["prove", *argv])
    found = capsys.readouterr()
    return code, found.out + found.err


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(["prove", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_safe_schedule_is_proved(capsys: Any) -> None:
    code, text = said(capsys, *SMALL, "--variant", "running_max", "--score-bound", "1000", "--v-bound", "65000")
    assert code == 0 and "PROVED: no input with |q.k| <= 1000" in text


def test_a_schedule_that_breaks_is_refuted_with_an_input_and_its_first_cause(capsys: Any) -> None:
    code, found = asked(capsys, *SMALL, "--variant", "block_max", "--score-bound", "340", "--v-bound", "1")
    assert code == 1 and found["verdict"] == "refuted"
    assert (found["counterexample"]["kind"], found["counterexample"]["buffer"]) == ("overflow_mul", "logsum")
    assert found["stuck"][0]["buffer"] == "logsum"


def test_a_wholly_masked_block_is_refuted_by_the_mask_alone(capsys: Any) -> None:
    flags = [
        "--variant",
        "block_max",
        "--mask",
        "causal",
        "--block-M",
        "4",
        "--block-N",
        "2",
        "--seq",
        "4",
        "--dim",
        "16",
    ]
    code, text = said(capsys, *flags, "--score-bound", "1", "--v-bound", "1", "--gpu", "off")
    assert code == 1 and "masks alone decide it" in text and "minus_inf_operand" in text


def test_the_bracket_of_block_max_is_where_the_sum_of_64_equal_maxima_overflows(capsys: Any) -> None:
    """122 / (2 * scale) = 338.26 with |V| <= 1."""
    code, found = asked(capsys, *SMALL, "--bracket", "--variant", "block_max", "--v-bound", "1")
    assert code == 0 and found["proved"] < found["broken"] < 1.001 * found["proved"]
    assert abs(found["proved"] / (122 / (2 * 1.44269504 / 8)) - 1) < 1e-4


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--v-bound", "-1"], "--v-bound must be a finite number of at least 0, not '-1'"),
        (["--bound", "Q=1"], "--bound is of a kernel's inputs"),
        (["--inputs", "normal"], "--inputs are of one run"),
        (["--bracket", "--score-bound", "1"], "leave that one out"),
        (["--args", "1"], "--args is of a kernel"),
        (["--tuner", "--bracket"], "--tuner is a table of the flash loop by itself"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_flag(capsys: Any, flags: list[str], sentence: str) -> None:
    code, text = said(capsys, *flags)
    assert code == 2 and sentence in text and len(text.strip().splitlines()) == 1


def test_a_kernel_of_ones_own_is_proved_or_refuted(capsys: Any, tmp_path: Any) -> None:
    pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    kernel = "examples/rms_norm.py:rms_norm"
    code, found = asked(capsys, kernel, "--args", "64, 128", "--bound", "X=50", "--gpu", "off")
    assert (code, found["verdict"]) == (0, "proved")
