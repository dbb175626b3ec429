"""Products in sums, word for word against the order that compiled code has (read in SASS, seen on an H200)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tilelang")

from kernels import gemms, rows

import sim
from sim.arith import add, fma, mul
from sim.formats import FP32

ZERO = np.zeros((), np.uint32)


def words(kernel) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The words of a kernel's inputs and outputs, without fast math."""
    given = kernel.inputs()
    result = sim.simulate(kernel.prim_func(), *given, pass_configs={})
    assert all(mask is None for mask in result.undetermined)
    return [x[0] for x in given], [x[0] for x in kernel.outputs(result)]


def test_an_unrolled_sum_fuses_the_product_that_it_starts_from() -> None:
    (a, b, c, d), (y,) = words(rows.KERNELS["mixed_streams"])
    c, d = c[:, :, None], d[:, None, :]
    want = fma(c, d, mul(a[:, 0, :, None], b[:, 0, None], FP32), FP32)
    other = fma(a[:, 0, :, None], b[:, 0, None], mul(c, d, FP32), FP32)
    for k in range(1, 4):
        want, other = (fma(a[:, k, :, None], b[:, k, None], x, FP32) for x in (want, other))
    np.testing.assert_array_equal(y, want)
    assert (want != other).any()  # the inputs tell the two apart


def test_products_of_two_sums_are_rounded_once_for_both() -> None:
    (a, b), (in_rows, _) = words(rows.KERNELS["sums_both_ways"])
    p = mul(a, b, FP32)  # lane t of a quad adds columns 4t .. 4t+3, then t with t^2, then with t^1

    def by_quad(step) -> np.ndarray:
        total = np.zeros((8, 16, 4), np.uint32)
        for k in range(4):
            total = step(total, k)
        total = add(total, total[..., [2, 3, 0, 1]], FP32)
        return add(total, total[..., [1, 0, 3, 2]], FP32)[..., 0]

    rounded = by_quad(lambda total, k: add(total, p[..., k::4], FP32))
    fused = by_quad(lambda total, k: fma(a[..., k::4], b[..., k::4], total, FP32))
    np.testing.assert_array_equal(in_rows, rounded)
    assert (rounded != fused).any()


def test_an_accumulator_that_the_next_gemm_clears_is_fused_up_to_the_first_all_reduce() -> None:
    from sim.primfunc.contraction import Contraction

    loop = gemms.KERNELS["weighted_scores_float16"].prim_func()
    contraction = Contraction(loop.body)
    sums = [s for s in contraction._stores if getattr(getattr(s, "op", None), "name", "") == "tl.tileop.reduce"]
    assert [contraction.keeps(s) and contraction.keeps_first(s) for s in sums] == [True]
