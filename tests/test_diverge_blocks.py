"""`crosscheck diverge`: the thread blocks that a PrimFunc's stores name are those that store there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="a kernel is TileLang's")

import fake_gpu

import gpu
import sim
from crosscheck import diverge_blocks
from crosscheck.cli import main
from crosscheck.diverge_blocks import Stored, blocks_of
from crosscheck.job import make_job
from gpu.taps import Taps
from sim.captures import save_arrays
from sim.formats import FP32, to_words

FILE = str(Path(__file__).parent / "stored_kernels.py")
BLOCKS, SHAPE = 6, (48, 32)


def stored(name: str, *inputs: str) -> Stored:
    """The thread blocks of Y."""
    flags = {"args": None, "size": None, "inputs": list(inputs), "pass_config": None, "fast_math": None}
    job = make_job(argparse.Namespace(kernel=f"{FILE}:{name}", arch=None, seed=None, blocks=None, **flags))
    return blocks_of(job, Taps(job.kernel.prim_func, {}, False).numbers)["Y"]


def simulated(name: str, *more: np.ndarray) -> np.ndarray:
    """Flags [thread blocks, *Y] of the elements that each thread block changes when it runs alone."""
    import stored_kernels

    kernel, found = getattr(stored_kernels, name), []
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype(np.float32)
    for block in range(BLOCKS):
        y = np.zeros(SHAPE, np.float32)
        sim.simulate(kernel, x, *more, y, blocks=[block])
        found.append(y != 0)
    return np.array(found)


@pytest.mark.parametrize("name", ["tiles", "elements", "shared_rows"])
def test_the_blocks_are_those_that_change_the_element_in_the_simulator(name: str) -> None:
    """The simulator runs one thread block at a time; an index, a guard or a loop read wrongly moves an element."""
    ran, found, numbers = simulated(name), stored(name), np.arange(BLOCKS)[:, None, None]
    assert ran.any(axis=(1, 2)).all()
    assert (found.last == np.where(ran, numbers, -1).max(axis=0)).all()
    assert (found.first[found.last >= 0] == np.where(ran, numbers, BLOCKS).min(axis=0)[found.last >= 0]).all()


def test_an_index_from_memory_is_its_whole_axis() -> None:
    """The columns still tell y, and no thread block is missing."""
    rows = np.array([5, 0, 40, 7, 7, 1], np.int32)
    ran, found = simulated("gathered", rows), stored("gathered", "rows=zeros")
    for block, *at in np.argwhere(ran).tolist():
        assert found.first[*at] <= block <= found.last[*at]
    assert (found.first[:, :24].reshape(48, 3, 8) == np.array([0, 1, 2])[:, None]).all()
    assert (found.last[:, :24].reshape(48, 3, 8) == np.array([3, 4, 5])[:, None]).all()
    assert (found.last[:, 24:] == -1).all()


def test_threads_are_walked() -> None:
    """The simulator refuses threadIdx; the kernel's rows are 8 to a thread block."""
    found = stored("threads")
    assert (found.first == np.arange(48)[:, None] // 8).all() and (found.last == found.first).all()


def test_what_gets_a_pointer_may_store_anywhere() -> None:
    found = stored("passed_on")
    assert (found.first == 0).all() and (found.last == BLOCKS - 1).all()


def test_too_many_elements_are_any_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverge_blocks, "MOST", 8 * 32 * BLOCKS - 1)
    found = stored("threads")
    assert (found.first == 0).all() and (found.last == BLOCKS - 1).all()


def test_the_report_names_the_thread_blocks_of_a_refused_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    words = to_words(np.ones(SHAPE, np.float32))[0]
    monkeypatch.setattr(gpu, "run_kernels", lambda kernels, timeout: [[words.copy()] for _ in kernels])
    save_arrays(tmp_path / "y.npz", {"Y": (words, FP32)})
    argv = ["diverge", f"{FILE}:threads", "--reference", str(tmp_path / "y.npz")]
    words[15:17, 3] ^= 1
    words[40, 3] ^= 1
    assert main(argv) == 1
    assert "in rows 15-16 and 40, stored by thread blocks 1-2 and 5" in capsys.readouterr().out
    assert main([*argv, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["outputs"]["Y"]
    assert (found["blocks"], found["by_several_blocks"], found["by_no_block"]) == ([1, 2, 5], 0, 0)


def test_the_report_counts_what_cannot_be_told() -> None:
    first, last = np.array([0, 1, 0, 9, 3]), np.array([0, 1, 2, -1, 3])
    found, flags = Stored(first, last, 4), np.array([True, False, True, True, True])
    said = "stored by thread blocks 0 and 3; 1 word by any of several; 1 word by no thread block"
    assert found.phrase(flags) == said
    assert found.to_json(flags) == {"blocks": [0, 3], "by_several_blocks": 1, "by_no_block": 1}
