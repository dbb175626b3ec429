"""The walk of a PrimFunc: the hand-written loop's words for the seed, what cannot be known, refusals by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crosscheck.diff import assert_same_words
from sim import Schedule, Undetermined, flash_attention
from sim.formats import FP16, to_words

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")

import tilelang.language as T

from sim import Unsupported, run, simulate


def made_here(pf: Any) -> Any:
    """`pf` with its last parameter as the output that the call makes."""
    return pf.with_attr("tilelang_out_idx", [len(pf.params) - 1])


SCHEDULES = [
    Schedule(block_M=64, block_N=64, causal=True, num_stages=2),
    Schedule.variant("block_max", block_M=128, block_N=64, causal=True),
    Schedule.variant("clear_true", block_M=64, block_N=32, fast_math=False),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_walked_seed_kernel_gives_the_words_of_the_loop(schedule: Schedule) -> None:
    from gpu.flash import flash_attention_kernel, pass_configs

    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 150, 2, 64)).astype(np.float16) for _ in range(3))
    pf = made_here(flash_attention_kernel(schedule, 1, 2, 2, 150, 150, 64, "float16"))
    made = run(pf, q, k, v, pass_configs=pass_configs(schedule))
    assert_same_words(made, flash_attention(q, k, v, schedule))


def copied_uninitialised() -> Any:
    @T.prim_func
    def main(X: T.Tensor((8, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((8, 16), "float16")
            y = T.alloc_fragment((8, 16), "float16")
            T.copy(X, x)
            for i, j in T.Parallel(8, 16):
                x[i, j] = T.if_then_else(i < 4, x[i, j], y[i, j])
            T.copy(x, Y)

    return main


def test_what_depends_on_a_fragment_that_nobody_wrote_is_undetermined() -> None:
    x = np.ones((8, 16), np.float16)
    pf = made_here(copied_uninitialised())
    result = simulate(pf, x)
    assert result.undetermined[0].tolist() == [[i >= 4] * 16 for i in range(8)]  # type: ignore[union-attr]
    assert (result.outputs[0][:4] == 1).all()
    with pytest.raises(Undetermined, match="64 outputs"):
        run(pf, x)


def shifted() -> Any:
    @T.prim_func
    def main(X: T.Tensor((8, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
        with T.Kernel(2, threads=128) as bx:
            for i, j in T.Parallel(8, 16):
                Y[i, j + bx * 8] = X[i + 6, j]

    return main


def test_global_loads_out_of_bounds_give_zero_and_stores_are_dropped() -> None:
    """Two blocks store different words to columns 8 to 15: a race, which is no word."""
    x = np.arange(128, dtype=np.float16).reshape(8, 16)
    result = simulate(made_here(shifted()), x)
    mask, out = result.undetermined[0], result.outputs[0]
    assert mask is not None and mask[:2, 8:].all() and not mask[:, :8].any() and not mask[2:].any()
    assert (out[:2, :8] == x[6:, :8]).all() and (out[2:] == 0).all()
    assert ("race", "Y", "parallel") in [(event.kind, event.buffer, event.operator) for event in result.events]


def dynamic() -> Any:
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, 16), "float16"), Y: T.Tensor((rows, 16), "float16")):
        with T.Kernel(T.ceildiv(rows, 8), threads=128) as bx:
            x = T.alloc_fragment((8, 16), "float16")
            T.copy(X[bx * 8, 0], x)
            for i, j in T.Parallel(8, 16):
                x[i, j] = x[i, j] + x[i, j]
            T.copy(x, Y[bx * 8, 0])

    return main


def test_symbolic_sizes_come_from_the_arrays() -> None:
    x = np.arange(20 * 16, dtype=np.float16).reshape(20, 16)
    np.testing.assert_array_equal(to_words(run(made_here(dynamic()), x))[0], (x + x).view(np.uint16))


def test_chosen_blocks_leave_the_rest_undetermined() -> None:
    x = np.ones((20, 16), np.float16)
    mask = simulate(made_here(dynamic()), x, blocks=[1]).undetermined[0]
    assert mask is not None and mask[:8].all() and not mask[8:16].any() and mask[16:].all()


def with_threads() -> Any:
    @T.prim_func
    def main(X: T.Tensor((8, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            Y[tx % 8, tx // 8] = X[tx % 8, tx // 8]

    return main


def test_what_is_not_supported_is_refused_by_name() -> None:
    x = np.zeros((8, 16), np.float16)
    with pytest.raises(Unsupported, match="not supported"):
        simulate(made_here(with_threads()), x)
    with pytest.raises(TypeError, match="kernel must be a PrimFunc"):
        simulate(3, x)
    with pytest.raises(TypeError, match="X must be float16, not float32"):
        simulate(made_here(shifted()), x.astype(np.float32))
    with pytest.raises(ValueError, match=r"X must have shape \[8, 16\], not \[8, 8\]"):
        simulate(made_here(shifted()), (np.zeros((8, 8), np.uint16), FP16))
