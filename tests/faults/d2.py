"""D2: no mask at all, but the maximum falls from one key block to the next.

Where a block's own maximum replaces the running one, the old output is scaled by exp2((m_prev - m) * scale). Raw
scores of +4096 and then -4096 at D 64 make that inf, and the output inf / inf. TileLang's native sparse and block-
sparse attention examples. Wrong: every row is NaN. Right: the running maximum; clean: the blocks in the other order,
one block, a fall of 200. The smallest fall: exp2 itself overflows at fall * scale >= 128 (709.8 at D 64), but the row
sum that it multiplies overflows earlier, with n equal maxima in the first block at (128 - log2 n) / scale (676.5 for
n = 64). Fast math is wrong before that without any NaN: a / b is 0 for finite a and |b| > 2^126.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32
from kernels.flash import LOG2E

from .case import Case

ROWS, BLOCK, D = 64, 64, 64
SCALE = D**-0.5 * LOG2E


def kernel(keep: bool, blocks: int = 2) -> Any:
    """keep: the running maximum stays; otherwise each block's own replaces it."""

    @T.prim_func
    def main(
        Q: T.Tensor((ROWS, D), F16),
        K: T.Tensor((blocks * BLOCK, D), F16),
        V: T.Tensor((blocks * BLOCK, D), F16),
        Output: T.Tensor((ROWS, D), F16),
    ):
        with T.Kernel(1, threads=128):
            q_shared = T.alloc_shared((ROWS, D), F16)
            k_shared = T.alloc_shared((BLOCK, D), F16)
            v_shared = T.alloc_shared((BLOCK, D), F16)
            acc_s = T.alloc_fragment((ROWS, BLOCK), F32)
            p = T.alloc_fragment((ROWS, BLOCK), F16)
            acc_o = T.alloc_fragment((ROWS, D), F32)
            scores_max = T.alloc_fragment((ROWS,), F32)
            scores_max_prev = T.alloc_fragment((ROWS,), F32)
            scores_scale = T.alloc_fragment((ROWS,), F32)
            scores_sum = T.alloc_fragment((ROWS,), F32)
            logsum = T.alloc_fragment((ROWS,), F32)
            T.copy(Q, q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for k in T.serial(blocks):
                T.copy(K[k * BLOCK, 0], k_shared)
                T.copy(V[k * BLOCK, 0], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=not keep)
                for i in T.Parallel(ROWS):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * SCALE - scores_max[i] * SCALE)
                for i, j in T.Parallel(ROWS, BLOCK):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * SCALE - scores_max[i] * SCALE)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(ROWS):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                for i, j in T.Parallel(ROWS, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(ROWS, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output)

    return main


def _words(values: np.ndarray) -> Any:
    from sim.formats import FP16

    return values.astype(np.float16).view(np.uint16), FP16


def scores(*blocks: float, maxima: int = BLOCK) -> list[Any]:
    """Q, K and V whose raw scores are one number for each block: q is 8 in two places, V is 1.

    maxima: so many keys of the first block have its score, the others are 1024 lower.
    """
    q, k = np.zeros((ROWS, D)), np.zeros((len(blocks) * BLOCK, D))
    q[:, :2] = 8
    for n, score in enumerate(blocks):
        k[n * BLOCK : (n + 1) * BLOCK, 0] = score // 8
        k[n * BLOCK : (n + 1) * BLOCK, 1] = score % 8 / 8
    k[maxima:BLOCK, 0] -= 128
    return [_words(q), _words(k), _words(np.ones(k.shape))]


EVERY_ROW = np.s_[:]
CASES = {
    "d2_replaced": Case(Kernel(lambda: kernel(False), scores(4096, -4096)), nan=EVERY_ROW),
    "d2_kept": Case(Kernel(lambda: kernel(True), scores(4096, -4096))),
    "d2_reversed": Case(Kernel(lambda: kernel(False), scores(-4096, 4096))),
    "d2_one_block": Case(Kernel(lambda: kernel(False, 1), scores(4096))),
    "d2_fall_200": Case(Kernel(lambda: kernel(False), scores(100, -100))),
    "d2_sum_below": Case(Kernel(lambda: kernel(False), scores(676.5, 0))),
    "d2_sum_above": Case(Kernel(lambda: kernel(False), scores(676.5625, 0)), nan=EVERY_ROW),
    "d2_exp2_below": Case(Kernel(lambda: kernel(False), scores(709.75, 0, maxima=1))),
    "d2_exp2_above": Case(Kernel(lambda: kernel(False), scores(709.8125, 0, maxima=1)), nan=EVERY_ROW),
}
