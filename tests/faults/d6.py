"""D6: a masked weight of 0 meets an infinity of the next packed sequence.

Sequences of 32 and 40 tokens lie behind one another, and a key block of 64 reads into the second one. Its weights
there are 0, but 0 * inf is NaN. TileLang's variable-length examples; flash-attention issues 1745 and 2374. Wrong: one
inf in V of sequence 1 makes one column of sequence 0 NaN. Right: V rows behind the sequence become 0 by a select;
clean: block_N 32, or finite V.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32, normal
from kernels.flash import LOG2E, LOWEST, softmax_step

from .case import Case

CU_SEQLENS = np.array([0, 32, 72], np.int32)
TOTAL, BATCH, LONGEST, D, COLUMN = 72, 2, 40, 32, 5


def kernel(select: bool, block_N: int = 64) -> Any:
    """select: rows of V behind the sequence are replaced by 0 before the product."""
    block_M, scale = 64, D**-0.5 * LOG2E
    step = softmax_step(block_M, block_N, scale)

    @T.prim_func
    def main(
        Q: T.Tensor((TOTAL, D), F16),
        K: T.Tensor((TOTAL, D), F16),
        V: T.Tensor((TOTAL, D), F16),
        cu_seqlens: T.Tensor((BATCH + 1,), "int32"),
        Output: T.Tensor((TOTAL, D), F16),
    ):
        with T.Kernel(T.ceildiv(LONGEST, block_M), BATCH, threads=128) as (bx, by):
            q_shared = T.alloc_shared((block_M, D), F16)
            k_shared = T.alloc_shared((block_N, D), F16)
            v_shared = T.alloc_shared((block_N, D), F16)
            acc_s = T.alloc_fragment((block_M, block_N), F32)
            p = T.alloc_fragment((block_M, block_N), F16)
            acc_o = T.alloc_fragment((block_M, D), F32)
            scores_max = T.alloc_fragment((block_M,), F32)
            scores_max_prev = T.alloc_fragment((block_M,), F32)
            scores_scale = T.alloc_fragment((block_M,), F32)
            scores_sum = T.alloc_fragment((block_M,), F32)
            logsum = T.alloc_fragment((block_M,), F32)
            start = cu_seqlens[by]
            length = cu_seqlens[by + 1] - start
            T.copy(Q[start + bx * block_M : start + (bx + 1) * block_M, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, LOWEST)
            for k in T.serial(T.ceildiv(length, block_N)):
                T.copy(K[start + k * block_N : start + (k + 1) * block_N, :], k_shared)
                T.copy(V[start + k * block_N : start + (k + 1) * block_N, :], v_shared)
                if select:
                    for i, j in T.Parallel(block_N, D):
                        v_shared[i, j] = T.if_then_else(k * block_N + i < length, v_shared[i, j], T.float16(0))
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.if_then_else(k * block_N + j < length, acc_s[i, j], -T.infinity(F32))
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(block_M, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, D):
                if bx * block_M + i < length:
                    Output[start + bx * block_M + i, j] = acc_o[i, j] / logsum[i]

    return main


def _v_with_infinity(n: int) -> Any:
    words, fmt = normal(TOTAL, D)(n)
    words[40, COLUMN] = 0x7C00
    return words, fmt


FLAT = normal(TOTAL, D, scale=0.5)  # no weight of sequence 1 vanishes, so that its own rows are inf
FINITE = [FLAT, normal(TOTAL, D), normal(TOTAL, D), CU_SEQLENS]
GIVEN = [FLAT, normal(TOTAL, D), _v_with_infinity, CU_SEQLENS]
CASES = {
    "d6_product": Case(Kernel(lambda: kernel(False), GIVEN), nan=np.s_[0:32, COLUMN]),
    "d6_select": Case(Kernel(lambda: kernel(True), GIVEN)),
    "d6_block_32": Case(Kernel(lambda: kernel(False, 32), GIVEN)),
    "d6_finite": Case(Kernel(lambda: kernel(False), FINITE)),
}
