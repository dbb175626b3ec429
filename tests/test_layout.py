"""Fragment layouts and the order of reductions: what TileLang's own compiler writes for the flash loop."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sim.flash import Schedule
from sim.layout import accumulator, row_reduction


def test_a_row_is_walked_as_numerics_section_4_says() -> None:
    """Lane t takes the columns 8n + 2t for n ascending, then the columns 8n + 2t + 1."""
    order = row_reduction(64, 64, 128).columns
    expected = [[8 * n + 2 * t + p for t in range(4)] for p in (0, 1) for n in range(8)]
    assert order.tolist() == expected


@pytest.mark.parametrize("N", [1, 2, 7, 8, 9, 24, 64, 100])
def test_every_column_is_taken_once(N: int) -> None:
    taken = row_reduction(16, N, 128).columns.ravel()
    assert sorted(taken[taken < N].tolist()) == list(range(N))


@pytest.mark.parametrize(("M", "N", "threads"), [(64, 64, 128), (128, 64, 128), (128, 128, 256)])
def test_no_two_elements_share_a_register(M: int, N: int, threads: int) -> None:
    fragment = accumulator(M, N, threads)
    places = fragment.forward_thread * (M * N) + fragment.forward_index
    assert np.unique(places).size == M * N and fragment.forward_thread.max() < threads
    assert fragment.forward_index.max() + 1 == M * N // threads


def registers_summed(source: str) -> list[list[int]]:
    """The registers of acc_s that reduce_sum visits in generated CUDA, in order: one list for each row of a lane."""
    loop = re.search(
        r"for \(int (i\w*) = 0; \1 < (\d+); \+\+\1\) \{\s+scores_sum\[\1\] = 0x0p.*?for \(int (rv\w*) = 0; \3 < (\d+);"
        r".*?acc_s\[(.*?)\]\);",
        source,
        re.S,
    )
    assert loop, "no reduction of acc_s into scores_sum"
    row, rows, rv, steps, index = loop.groups()
    return [[eval(index, {}, {row: i, rv: r}) for r in range(int(steps))] for i in range(int(rows))]


def generated_cuda(schedule: Schedule, arch: str) -> str:
    """The CUDA that TileLang writes for the flash loop: two key blocks, D 64, float16."""
    from tilelang import tvm
    from tilelang.backend.target import determine_target
    from tilelang.engine.lower import lower

    from gpu.flash import flash_attention_kernel, pass_configs

    kernel = flash_attention_kernel(schedule, 1, 1, 1, schedule.block_M, 2 * schedule.block_N, 64, "float16")
    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    with target, tvm.transform.PassContext(opt_level=3, config=pass_configs(schedule)):
        return str(lower(kernel, target=target, enable_device_compile=False).kernel_source)


@pytest.mark.parametrize(
    ("arch", "block_M", "block_N", "threads"),
    [
        ("sm_90a", 64, 64, 128),
        ("sm_90a", 128, 32, 128),
        ("sm_90a", 128, 128, 256),
        ("sm_80", 64, 128, 128),
        ("sm_120a", 64, 64, 128),
    ],
)
def test_the_compiler_sums_a_row_in_our_order(arch: str, block_M: int, block_N: int, threads: int) -> None:
    """Breaks when TileLang changes the accumulator's layout, its reduction loop or the lanes that it joins."""
    pytest.importorskip("tilelang", reason="the generated reduction is TileLang's own")
    source = generated_cuda(Schedule(block_M=block_M, block_N=block_N, threads=threads), arch)
    assert "AllReduce<tl::SumOp, 4, 1," in source

    fragment, order = accumulator(block_M, block_N, threads), row_reduction(block_M, block_N, threads)
    visited = registers_summed(source)
    for t in range(4):
        mine = fragment.forward_thread == t  # lane t of the first warp
        for row in np.unique(np.nonzero(mine)[0]):
            expected = [int(fragment.forward_index[row, column]) for column in order.columns[:, t]]
            assert expected in visited
