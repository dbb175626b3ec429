"""The order of sums that TileLang's compiler gives is kept on disk, and a bad file costs only time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="lowering is TileLang's")

from kernels import KERNELS

import sim
from sim.primfunc import lowering

KERNEL = KERNELS["rms_norm"]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TILEWORDS_CACHE", str(tmp_path / "plans"))
    return tmp_path / "plans"


def words() -> Any:
    return KERNEL.outputs(sim.simulate(KERNEL.prim_func(), *KERNEL.inputs(), pass_configs={}))[0][0]


def not_again(*_: Any) -> Any:
    raise AssertionError("lowered again")


def test_a_kernel_is_lowered_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = words()
    monkeypatch.setattr(lowering, "lower", not_again)
    np.testing.assert_array_equal(words(), first)
    with pytest.raises(AssertionError, match="lowered again"):  # another target is another lowering
        sim.simulate(KERNEL.prim_func(), *KERNEL.inputs(), pass_configs={}, arch="sm_80")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 and nothing more"])
def test_a_damaged_file_is_made_again(cache: Path, content: bytes) -> None:
    first = words()
    (kept,) = cache.glob("*.npz")
    whole = kept.read_bytes()
    kept.write_bytes(content)
    np.testing.assert_array_equal(words(), first)
    assert kept.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_only_time(cache: Path) -> None:
    first = words()
    for each in cache.iterdir():
        each.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    np.testing.assert_array_equal(words(), first)


def test_runs_at_the_same_time_leave_one_whole_file(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: lowering._keep(cache / "x.npz", {"0": np.arange(10000)}), range(16)))
    assert len(plans) == 16 and [each.name for each in cache.iterdir()] == ["x.npz"]
    np.testing.assert_array_equal(np.load(cache / "x.npz")["0"], np.arange(10000))
