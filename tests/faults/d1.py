"""D1: a later key block is wholly masked for some rows, and the running maximum was lost.

Causal attention with block_M 128 over block_N 64: the last key block hides the first 64 rows of the query tile. Where
the maximum is that of the block alone, it is -inf there: the old output is scaled by exp2(m_prev - -inf) = inf and
the new weights are exp2(-inf - -inf) = NaN. TileLang issue 948 and pull requests 1148 and 1269. Wrong: rows 0-63 are
NaN. Right, and clean: the maximum of the older blocks stays; square blocks, where no row is wholly masked; a maximum
that starts at -2^30, even where the first block is wholly masked.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32, normal
from kernels.flash import LOG2E

from .case import Case

SEQ, D = 128, 64
SCALE = D**-0.5 * LOG2E


def kernel(keep: bool, block_M: int = 128, start: float = -float("inf"), hidden: int = 0) -> Any:
    """keep: the running maximum stays, by reduce_max(clear=False) without a refill. start: where it starts.

    hidden: so many key blocks at the beginning are masked for every row, as padding on the left is.
    """
    block_N = 64

    @T.prim_func
    def main(
        Q: T.Tensor((SEQ, D), F16),
        K: T.Tensor((SEQ, D), F16),
        V: T.Tensor((SEQ, D), F16),
        Output: T.Tensor((SEQ, D), F16),
    ):
        with T.Kernel(SEQ // block_M, threads=128) as bx:
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
            T.copy(Q[bx * block_M, 0], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, start)
            for k in T.serial((bx + 1) * block_M // block_N):
                T.copy(K[k * block_N, 0], k_shared)
                T.copy(V[k * block_N, 0], v_shared)
                for i, j in T.Parallel(block_M, block_N):
                    visible = bx * block_M + i >= k * block_N + j
                    acc_s[i, j] = T.if_then_else(visible & (k >= hidden) if hidden else visible, 0, -T.infinity(F32))
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                if not keep:
                    T.fill(scores_max, -T.infinity(F32))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * SCALE - scores_max[i] * SCALE)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * SCALE - scores_max[i] * SCALE)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                for i, j in T.Parallel(block_M, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, D):
                acc_o[i, j] = T.if_then_else(logsum[i] == 0, 0, acc_o[i, j] / logsum[i])
            T.copy(acc_o, Output[bx * block_M, 0])

    return main


GIVEN = [normal(SEQ, D) for _ in range(3)]
LOWEST = -(2.0**30)
CASES = {
    "d1_lost": Case(Kernel(lambda: kernel(False), GIVEN), nan=np.s_[0:64]),
    "d1_kept": Case(Kernel(lambda: kernel(True), GIVEN)),
    "d1_square": Case(Kernel(lambda: kernel(False, block_M=64), GIVEN)),
    "d1_hidden_from_infinity": Case(Kernel(lambda: kernel(True, hidden=1), GIVEN), nan=np.s_[:]),
    "d1_hidden_from_lowest": Case(Kernel(lambda: kernel(True, start=LOWEST, hidden=1), GIVEN)),
}
