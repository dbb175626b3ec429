"""Sparse attention kernels of ours: a mask of blocks that skips work, and blocks chosen by indices from a tensor.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import numpy as np
import tilelang.language as T

from .entry import F16, F32, Kernel, normal
from .flash import LOG2E, LOWEST, softmax_step

SEQ, HEADS, D, BLOCK = 192, 2, 32, 64
SCALE = D**-0.5 * LOG2E
MASK = np.array([[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 0, 0], [0, 0, 0], [1, 0, 1]]], np.int8)


def masked_blocks() -> Any:
    """Blocks whose mask is 0 are skipped; head 1 has a row of blocks with none, whose result is 0."""
    step = softmax_step(BLOCK, BLOCK, SCALE)

    @T.prim_func
    def main(
        Q: T.Tensor((HEADS, SEQ, D), F16),
        K: T.Tensor((HEADS, SEQ, D), F16),
        V: T.Tensor((HEADS, SEQ, D), F16),
        Mask: T.Tensor((HEADS, SEQ // BLOCK, SEQ // BLOCK), "int8"),
        Output: T.Tensor((HEADS, SEQ, D), F32),
    ):
        with T.Kernel(SEQ // BLOCK, HEADS, threads=128) as (bx, by):
            q_shared = T.alloc_shared((BLOCK, D), F16)
            k_shared = T.alloc_shared((BLOCK, D), F16)
            v_shared = T.alloc_shared((BLOCK, D), F16)
            acc_s = T.alloc_fragment((BLOCK, BLOCK), F32)
            p = T.alloc_fragment((BLOCK, BLOCK), F16)
            acc_o = T.alloc_fragment((BLOCK, D), F32)
            scores_max = T.alloc_fragment((BLOCK,), F32)
            scores_max_prev = T.alloc_fragment((BLOCK,), F32)
            scores_scale = T.alloc_fragment((BLOCK,), F32)
            scores_sum = T.alloc_fragment((BLOCK,), F32)
            logsum = T.alloc_fragment((BLOCK,), F32)
            T.copy(Q[by, bx * BLOCK : (bx + 1) * BLOCK, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, LOWEST)
            for k in T.serial(bx + 1):
                if Mask[by, bx, k] != 0:
                    T.copy(K[by, k * BLOCK : (k + 1) * BLOCK, :], k_shared)
                    T.copy(V[by, k * BLOCK : (k + 1) * BLOCK, :], v_shared)
                    for i, j in T.Parallel(BLOCK, BLOCK):
                        acc_s[i, j] = T.if_then_else(bx * BLOCK + i >= k * BLOCK + j, 0, -T.infinity(F32))
                    T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                    for i, j in T.Parallel(BLOCK, D):
                        acc_o[i, j] *= scores_scale[i]
                    T.copy(acc_s, p)
                    T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BLOCK, D):
                acc_o[i, j] = T.if_then_else(logsum[i] == 0, 0, acc_o[i, j] / logsum[i])
            T.copy(acc_o, Output[by, bx * BLOCK : (bx + 1) * BLOCK, :])

    return main


TOKENS, GROUP, CHOSEN, SMALL = 8, 16, 3, 32
COUNTS = np.array([1, 1, 2, 2, 2, 3, 3, 2], np.int32)
CHOICE = np.stack([[(t * 5 + n * 7 + 3) % 3 for n in range(CHOSEN)] for t in range(TOKENS)]).astype(np.int32)


def chosen_blocks(length: int = 96) -> Any:
    """Each token has blocks of keys of its own, by indices and a count from tensors; 16 query heads share them."""
    step = softmax_step(GROUP, SMALL, 0.125 * LOG2E)

    @T.prim_func
    def main(
        Q: T.Tensor((TOKENS, GROUP, 64), F16),
        K: T.Tensor((length, 64), F16),
        V: T.Tensor((length, 64), F16),
        Choice: T.Tensor((TOKENS, CHOSEN), "int32"),
        Counts: T.Tensor((TOKENS,), "int32"),
        Output: T.Tensor((TOKENS, GROUP, 64), F32),
    ):
        with T.Kernel(TOKENS, threads=32) as bx:
            q_shared = T.alloc_shared((GROUP, 64), F16)
            k_shared = T.alloc_shared((SMALL, 64), F16)
            v_shared = T.alloc_shared((SMALL, 64), F16)
            acc_s = T.alloc_fragment((GROUP, SMALL), F32)
            p = T.alloc_fragment((GROUP, SMALL), F16)
            acc_o = T.alloc_fragment((GROUP, 64), F32)
            scores_max = T.alloc_fragment((GROUP,), F32)
            scores_max_prev = T.alloc_fragment((GROUP,), F32)
            scores_scale = T.alloc_fragment((GROUP,), F32)
            scores_sum = T.alloc_fragment((GROUP,), F32)
            logsum = T.alloc_fragment((GROUP,), F32)
            T.copy(Q[bx, :, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for n in T.serial(Counts[bx]):
                first = Choice[bx, n] * SMALL
                T.copy(K[first : first + SMALL, :], k_shared)
                T.copy(V[first : first + SMALL, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(GROUP, 64):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(GROUP, 64):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bx, :, :])

    return main


KERNELS = {
    "sparse_masked_blocks": Kernel(masked_blocks, [*(normal(HEADS, SEQ, D) for _ in range(3)), MASK]),
    "sparse_chosen_blocks": Kernel(
        chosen_blocks, [normal(TOKENS, GROUP, 64), normal(96, 64), normal(96, 64), CHOICE, COUNTS]
    ),
}
