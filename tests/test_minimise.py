"""What fails becomes small, still fails in the same way, and is written as a test that passes once it is mended."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosscheck.cli import main
from sim import Schedule
from sim.formats import FP16, values
from sim.minimise import Case, _lowered, minimise, minimise_schedule, signature
from sim.search import search_schedule

SCHEDULES = Path(__file__).parent / "schedules"


def run_test(path: Path) -> None:
    """The one test of a written file."""
    (test,) = (value for name, value in runpy.run_path(str(path)).items() if name.startswith("test_"))
    test()


# schedules


def shrunk(schedule: Schedule, least: int = 2, **bounds: float) -> tuple[Schedule, Any]:
    found = search_schedule(schedule, 128, 64, **bounds)
    assert found is not None
    small, result = minimise_schedule(schedule, found.q, found.k, found.v, least=least)
    assert signature(result.trace) == signature(found.trace)
    for name, (words, fmt) in result.case.arrays.items():
        assert np.abs(values(words, fmt)).max() <= np.abs(values(*found.arrays[name])).max()
    return small, result


@pytest.mark.parametrize(("least", "rows", "block_N"), [(2, 4, 2), (16, 32, 16)])
def test_a_wholly_masked_tile_needs_no_more_than_one_query_tile_over_two_key_tiles(
    least: int, rows: int, block_N: int
) -> None:
    schedule = Schedule.variant("block_max", block_M=128, block_N=64, causal=True, num_stages=2)
    small, result = shrunk(schedule, least, score_bound=0, v_bound=0)
    assert (small.block_M, small.block_N, small.num_stages) == (rows, block_N, 0)
    assert {name: words.shape for name, (words, _) in result.case.arrays.items()} == dict.fromkeys(
        "qkv", (1, rows, 1, 1)
    )


def test_a_falling_maximum_needs_one_row_and_a_key_in_each_of_two_blocks() -> None:
    small, result = shrunk(Schedule.variant("block_max"), score_bound=4096, v_bound=1)
    (q, _), (k, _), (v, _) = (result.case.arrays[name] for name in "qkv")
    assert (small.block_M, small.block_N) == (2, 2) and q.shape[1] == 1 and k.shape[1] <= 4
    assert np.count_nonzero(k) <= 2 and not v.any()


def test_a_rounded_maximum_needs_one_row_and_one_key() -> None:
    _, result = shrunk(Schedule(), score_bound=2.0**28.1 / (64**-0.5 * 1.44269504), v_bound=1)
    assert result.case.arrays["q"][0].shape[1] == result.case.arrays["k"][0].shape[1] == 1


def test_one_head_of_several_is_kept() -> None:
    q, k, v = (np.zeros((2, 8, heads, 4), np.uint16) for heads in (4, 2, 2))
    k[1, 3, 1, 2] = FP16.inf
    q[...] = 0x3C00
    _, result = minimise_schedule(Schedule(4, 4), (q, FP16), (k, FP16), (v, FP16))
    assert result.case.arrays["q"][0].shape[2] == result.case.arrays["k"][0].shape[2] == 1
    assert np.count_nonzero(result.case.arrays["k"][0]) == 1


def test_what_does_not_fail_is_refused() -> None:
    zero = (np.zeros((1, 4, 1, 4), np.uint16), FP16)
    with pytest.raises(ValueError, match="no bad output"):
        minimise_schedule(Schedule(), zero, zero, zero)


def test_integers_go_toward_zero_and_go_on_ascending() -> None:
    assert [trial.tolist() for trial in _lowered(np.array([0, 1, 2]))] == [[0, 0, 2], [0, 1, 1]]
    assert [trial.tolist() for trial in _lowered(np.array([2, 1]))] == [[0, 1], [1, 1], [2, 0]]
    assert list(_lowered(np.array(3))) == [0, 1, 2]


# the verb


def test_a_schedule_becomes_a_test_that_fails_until_the_maximum_is_merged(tmp_path: Path, capsys: Any) -> None:
    test = tmp_path / "test_lost.py"
    flags = ["--variant", "block_max", "--mask", "causal", "--block-M", "128", "--seq", "128", "--dim", "32"]
    assert main(["minimise", *flags, "--out", str(test)]) == 1
    assert "block_M 4, block_N 2" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="NaN or an infinity"):
        run_test(test)
    test.write_text(test.read_text().replace("merge_max=False", "merge_max=True"))
    run_test(test)


def test_inputs_that_do_not_fail_are_a_mistake(tmp_path: Path, capsys: Any) -> None:
    assert main(["minimise", "--seq", "16", "--dim", "16", "--out", str(tmp_path / "test_x.py")]) == 2
    assert "there is nothing to minimise" in capsys.readouterr().err and not list(tmp_path.iterdir())


# kernels of a file: what its arguments are, its integers, the bounds, the first cause, and the tensor of keys

FAULTS = {
    "native_sparse": (
        "keys=4, block=2, tokens=1", {"Choice": np.array([[0, 1]], np.int32)}, ["Q=64", "K=64", "V=1"],
        ("overflow_exp2", "scores_scale"), "K",
    ),
    "block_sparse": (
        "keys=4, block=2", {"Mask": np.ones((1, 2), np.int8)}, ["Q=64", "K=64", "V=1"],
        ("overflow_exp2", "scores_scale"), "K",
    ),
    "mla_split": (
        "keys=2, block=2, splits=2", {}, ["Q=4", "Q_rope=4", "KV=4", "K_rope=4"], ("zero_over_zero", "acc_o"), "KV",
    ),
    "sink": ("keys=2, block=1", {}, ["Q=8", "K=8", "V=1", "Sink=100"], ("overflow_exp2", "logsum"), "K"),
    "variable_length": (
        "total=4", {"cu_seqlens": np.array([0, 2, 4], np.int32)}, ["Q=1", "K=1", "V=inf"], ("input", "V"), "K",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_kernel_is_found_and_becomes_a_test_that_passes_on_the_mended_kernel(
    name: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    pytest.importorskip("tilelang", reason="a kernel of a file is TileLang's")
    arguments, integers, bounds, cause, keys = FAULTS[name]
    monkeypatch.chdir(tmp_path)
    for file in (f"{name}.py", "online_softmax.py"):
        shutil.copy(SCHEDULES / file, tmp_path)
    given = []
    for tensor, array in integers.items():
        np.save(f"{tensor}.npy", array)
        given += [f"{tensor}=@{tensor}.npy"]
    kernel = [f"{name}.py:attention", "--args", arguments]
    search = ["--bound", *bounds, "--tries", "2", *(["--inputs", *given] if given else [])]
    assert main(["search", *kernel, *search, "--gpu", "off", "--out", "found.npz"]) == 1
    names = [n for n in np.load("found.npz").files if not n.endswith("__dtype")]
    found = [f"{n}=@found.npz:{n}" for n in names if n not in ("Partial", "Lse", "Output")]
    capsys.readouterr()
    assert main(["minimise", *kernel, "--inputs", *found, "--out", "test_small.py", "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["cause"]
    assert (first["kind"], first["buffer"]) == cause
    assert np.load("test_small.npz")[keys].shape[0] <= 8
    with pytest.raises(AssertionError, match="an output has NaN"):
        run_test(tmp_path / "test_small.py")
    source = tmp_path / f"{name}.py"
    source.write_text(source.read_text().replace("mended: bool = False", "mended: bool = True"))
    run_test(tmp_path / "test_small.py")
    assert main(["search", *kernel, *search, "--gpu", "off"]) == 3


def test_minimise_keeps_the_first_cause() -> None:
    """An infinity of V and one of K: the key's makes the first bad value, and without it the other one would."""
    arrays = {n: (np.full((1, 4, 1, 2), 0x3C00, np.uint16), FP16) for n in "qkv"}
    arrays["k"][0][0, 1, 0, 0] = arrays["v"][0][0, 2, 0, 1] = FP16.inf

    def run_of(case: Case) -> Any:
        from sim import flash_attention

        q, k, v = (case.arrays[n] for n in "qkv")
        return lambda machine: flash_attention(q, k, v, Schedule(4, 4), machine=machine)

    result = minimise(Case({}, arrays), run_of, lambda case: iter(()))
    assert np.count_nonzero(result.case.arrays["k"][0]) == 1
