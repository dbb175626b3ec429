"""A control: an infinity above the diagonal that a select removes, and a product does not.

Attention without a softmax: the scores above the diagonal are put out, then multiplied with V. One key that no row
may see has an infinity, so that every score with it is infinite. A select gives a finite output; a product with a
mask of 0 and 1 makes inf * 0 = NaN of it in every row.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32, normal

from .case import Case

ROWS, KEYS, D = 64, 128, 64


def kernel(select: bool) -> Any:
    """select: the mask is a select, otherwise a product."""

    @T.prim_func
    def main(
        Q: T.Tensor((ROWS, D), F16),
        K: T.Tensor((KEYS, D), F16),
        V: T.Tensor((KEYS, D), F16),
        Output: T.Tensor((ROWS, D), F32),
    ):
        with T.Kernel(1, threads=128):
            q_shared = T.alloc_shared((ROWS, D), F16)
            k_shared = T.alloc_shared((64, D), F16)
            v_shared = T.alloc_shared((64, D), F16)
            s = T.alloc_fragment((ROWS, 64), F32)
            p = T.alloc_fragment((ROWS, 64), F16)
            o = T.alloc_fragment((ROWS, D), F32)
            T.copy(Q, q_shared)
            T.clear(o)
            for k in T.serial(KEYS // 64):
                T.copy(K[k * 64, 0], k_shared)
                T.copy(V[k * 64, 0], v_shared)
                T.clear(s)
                T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(ROWS, 64):
                    if select:
                        s[i, j] = T.if_then_else(i >= k * 64 + j, s[i, j], 0)
                    else:
                        s[i, j] = s[i, j] * T.if_then_else(i >= k * 64 + j, T.float32(1), T.float32(0))
                T.copy(s, p)
                T.gemm(p, v_shared, o, policy=T.GemmWarpPolicy.FullRow)
            T.copy(o, Output)

    return main


def _k_with_infinity(n: int) -> Any:
    words, fmt = normal(KEYS, D)(n)
    words[100, 7] = 0x7C00
    return words, fmt


GIVEN = [normal(ROWS, D), _k_with_infinity, normal(KEYS, D)]
CASES = {
    "masked_inf_select": Case(Kernel(lambda: kernel(True), GIVEN)),
    "masked_inf_product": Case(Kernel(lambda: kernel(False), GIVEN), nan=np.s_[:]),
}
