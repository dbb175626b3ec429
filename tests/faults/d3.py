"""D3: more splits than key blocks.

Split decoding deals the key blocks to the splits in turn. A split that gets none divides 0 by a row sum of 0: its
partial result is NaN, the logarithm of its row sum is -inf. The combination gives it the weight 0, and 0 * NaN is
NaN. TileLang's paged latent-attention decode example. Wrong: 64 keys in blocks of 64 over 4 splits, NaN everywhere.
Right: as many splits as blocks, by fewer splits or by more keys; a split without blocks that stores 0.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32, normal
from kernels.flash import LOG2E, softmax_step

from .case import Case

BATCH, HEADS, D, BLOCK = 2, 16, 64, 64
SCALE = D**-0.5 * LOG2E


def kernel(splits: int, keys: int = 64, guarded: bool = False) -> Any:
    """splits: how many share the keys. guarded: a row sum of 0 gives 0."""
    step, blocks = softmax_step(HEADS, BLOCK, SCALE), keys // BLOCK

    @T.prim_func
    def main(
        Q: T.Tensor((BATCH, HEADS, D), F16),
        K: T.Tensor((BATCH, keys, D), F16),
        V: T.Tensor((BATCH, keys, D), F16),
        Partial: T.Tensor((BATCH, splits, HEADS, D), F32),
        Lse: T.Tensor((BATCH, splits, HEADS), F32),
        Output: T.Tensor((BATCH, HEADS, D), F16),
    ):
        with T.Kernel(splits, BATCH, threads=128) as (bx, by):
            q_shared = T.alloc_shared((HEADS, D), F16)
            k_shared = T.alloc_shared((BLOCK, D), F16)
            v_shared = T.alloc_shared((BLOCK, D), F16)
            p_shared = T.alloc_shared((HEADS, BLOCK), F16)
            acc_s = T.alloc_fragment((HEADS, BLOCK), F32)
            acc_o = T.alloc_fragment((HEADS, D), F32)
            scores_max = T.alloc_fragment((HEADS,), F32)
            scores_max_prev = T.alloc_fragment((HEADS,), F32)
            scores_scale = T.alloc_fragment((HEADS,), F32)
            scores_sum = T.alloc_fragment((HEADS,), F32)
            logsum = T.alloc_fragment((HEADS,), F32)
            T.copy(Q[by, :, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for n in T.serial((blocks - bx + splits - 1) // splits):
                first = (bx + n * splits) * BLOCK
                T.copy(K[by, first : first + BLOCK, :], k_shared)
                T.copy(V[by, first : first + BLOCK, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(HEADS, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p_shared)
                T.gemm(p_shared, v_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(HEADS, D):
                if guarded:
                    acc_o[i, j] = T.if_then_else(logsum[i] == 0, 0, acc_o[i, j] / logsum[i])
                else:
                    acc_o[i, j] /= logsum[i]
            for i in T.Parallel(HEADS):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * SCALE
            T.copy(acc_o, Partial[by, bx, :, :])
            T.copy(logsum, Lse[by, bx, :])
        with T.Kernel(HEADS, BATCH, threads=64) as (bx, by):
            o = T.alloc_fragment((D,), F32)
            top = T.alloc_var(F32)
            total = T.alloc_var(F32)
            T.clear(o)
            top = -T.infinity(F32)
            for s in T.serial(splits):
                top = T.max(top, Lse[by, s, bx])
            total = 0.0
            for s in T.serial(splits):
                total = total + T.exp2(Lse[by, s, bx] - top)
            for s in T.serial(splits):
                for j in T.Parallel(D):
                    o[j] += T.exp2(Lse[by, s, bx] - top) * Partial[by, s, bx, j]
            for j in T.Parallel(D):
                Output[by, bx, j] = o[j] / total

    return main


def given(keys: int = 64) -> list[Any]:
    """Q, K and V."""
    return [normal(BATCH, HEADS, D), normal(BATCH, keys, D), normal(BATCH, keys, D)]


CASES = {
    "d3_four_splits": Case(Kernel(lambda: kernel(4), given(), made=3), nan=np.s_[:]),
    "d3_one_split": Case(Kernel(lambda: kernel(1), given(), made=3)),
    "d3_guarded": Case(Kernel(lambda: kernel(4, guarded=True), given(), made=3)),
    "d3_four_blocks": Case(Kernel(lambda: kernel(4, 256), given(256), made=3)),
}
