"""The verb `explain` for kernels of a file: what swallows a bad value, launches, words that cannot be known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from explaining import flat, said, told

pytest.importorskip("tilelang", reason="a kernel is TileLang's")

from crosscheck.cli import main

TESTS = Path(__file__).parent
KERNELS, OWN = str(TESTS / "explained_kernels.py"), str(TESTS / "own_kernels.py")


def test_a_bad_value_that_is_swallowed_reaches_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explain", f"{KERNELS}:capped", "--inputs", "X=value:1e30"]
    data = told(capsys, *argv, code=0)
    assert data["causes"] == [] and sum(each["count"] for each in data["swallowed"]) == 16 * 32
    assert {(e["kind"], e["swallowed_by"]["function"]) for e in data["swallowed"]} == {("overflow_mul", "min")}
    assert "512 bad values were born and swallowed on the way" in flat(said(capsys, *argv, code=0))


def test_a_timeline_of_a_second_launch_has_what_all_thread_blocks_of_the_first_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    x = np.ones((4, 32), np.float32)
    x[2] = 0
    np.save(tmp_path / "x.npy", x)
    data = told(capsys, "explain", f"{KERNELS}:two_launches", "--inputs", f"X=@{tmp_path / 'x.npy'}", "--at", "3,5")
    assert [c["rows"] for c in data["causes"]] == [[[2, 2]]] and data["causes"][0]["kind"] == "zero_over_zero"
    steps = data["timeline"]["steps"]
    assert data["timeline"]["block"] == 3 and [s["buffer"] for s in steps] == ["y", "total", "y", "Y"]
    assert [s["values"][0]["value"] for s in steps] == [1, 32, 1 / 32, 1 / 32]  # a row beside the bad one
    text = said(capsys, "explain", f"{KERNELS}:two_launches", "--inputs", f"X=@{tmp_path / 'x.npy'}")
    assert "How Y[2, 0] was made" in text and "of launch 2 of 2" in text
    assert "before   total = 0 0x00000000" in text


def test_words_that_cannot_be_known_give_3_and_the_place_that_decides(capsys: pytest.CaptureFixture[str]) -> None:
    text = flat(said(capsys, "explain", f"{OWN}:half_known", code=3))
    assert "32 words of Y cannot be known: memory that nobody wrote" in text
    text = said(capsys, "explain", f"{OWN}:lazy", "--args", "16", "--blocks", "0", code=0)
    assert "No bad value reaches an output." in text  # what other thread blocks decide does not count


def test_a_given_value_is_named_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x = np.ones((16, 32), np.float32)
    x[11, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    text = flat(said(capsys, "explain", f"{KERNELS}:two_launches", "--inputs", "X=value:nan"))
    assert "a given value of X" in text and "X[0, 0] = NaN" in text
    text = flat(said(capsys, "explain", f"{KERNELS}:capped", "--inputs", f"X=@{tmp_path / 'x.npy'}", code=0))
    assert "X[11, 3] = NaN" in text and "swallowed by min" in text


def test_an_element_that_several_thread_blocks_make_has_no_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{OWN}:adds", "--inputs", "Y=zeros", "--at", "0,0"]) == 2
    assert "--at Y[0, 0] has no timeline" in capsys.readouterr().err
