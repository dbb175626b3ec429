"""Attention kernels of ours: grouped heads, packed sequences, an attention sink, a mask of blocks of tokens.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import numpy as np
import tilelang.language as T

from .entry import BF16, F16, F32, Kernel, normal

LOG2E = 1.44269504
LOWEST = -(2.0**30)  # where a running maximum starts: a row that is wholly masked stays finite


def softmax_step(rows: int, columns: int, scale: float) -> Any:
    """A macro: one block of scores joins the running maximum, the row sums and the output's rescaling.

    acc_s leaves as exp2((s - max) * scale); scores_scale is what the older blocks must be multiplied with.
    """

    @T.macro
    def step(acc_s: Any, scores_max: Any, scores_max_prev: Any, scores_scale: Any, scores_sum: Any, logsum: Any):
        T.copy(scores_max, scores_max_prev)
        T.reduce_max(acc_s, scores_max, dim=1, clear=False)
        for i in T.Parallel(rows):
            scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
        for i, j in T.Parallel(rows, columns):
            acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
        T.reduce_sum(acc_s, scores_sum, dim=1)
        for i in T.Parallel(rows):
            logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]

    return step


def grouped(seq: int = 80, heads: int = 4, heads_kv: int = 2, D: int = 32) -> Any:
    """Causal attention, two query heads for each key head, a last block of 16 rows of 64."""
    block, groups = 64, heads // heads_kv
    scale = D**-0.5 * LOG2E
    step = softmax_step(block, block, scale)

    @T.prim_func
    def main(
        Q: T.Tensor((seq, heads, D), F16),
        K: T.Tensor((seq, heads_kv, D), F16),
        V: T.Tensor((seq, heads_kv, D), F16),
        Output: T.Tensor((seq, heads, D), F32),
    ):
        with T.Kernel(T.ceildiv(seq, block), heads, threads=128) as (bx, by):
            q_shared = T.alloc_shared((block, D), F16)
            k_shared = T.alloc_shared((block, D), F16)
            v_shared = T.alloc_shared((block, D), F16)
            acc_s = T.alloc_fragment((block, block), F32)
            p = T.alloc_fragment((block, block), F16)
            acc_o = T.alloc_fragment((block, D), F32)
            scores_max = T.alloc_fragment((block,), F32)
            scores_max_prev = T.alloc_fragment((block,), F32)
            scores_scale = T.alloc_fragment((block,), F32)
            scores_sum = T.alloc_fragment((block,), F32)
            logsum = T.alloc_fragment((block,), F32)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            T.copy(Q[bx * block : (bx + 1) * block, by, :], q_shared)
            for k in T.Pipelined(bx + 1, num_stages=2):
                T.copy(K[k * block : (k + 1) * block, by // groups, :], k_shared)
                T.copy(V[k * block : (k + 1) * block, by // groups, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block, block):
                    acc_s[i, j] = T.if_then_else(bx * block + i >= k * block + j, acc_s[i, j], -T.infinity(F32))
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(block, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bx * block : (bx + 1) * block, by, :])

    return main


CU_SEQLENS = np.array([0, 40, 112], np.int32)  # packed: 40 and 72 tokens


def packed(total: int = 112, longest: int = 72, heads: int = 2, D: int = 32) -> Any:
    """Sequences of several lengths behind one another; a block reads rows of the next one and masks them."""
    block, batch = 64, 2
    scale = D**-0.5 * LOG2E
    step = softmax_step(block, block, scale)

    @T.prim_func
    def main(
        Q: T.Tensor((total, heads, D), F16),
        K: T.Tensor((total, heads, D), F16),
        V: T.Tensor((total, heads, D), F16),
        cu_seqlens: T.Tensor((batch + 1,), "int32"),
        Output: T.Tensor((total, heads, D), F32),
    ):
        with T.Kernel(T.ceildiv(longest, block), heads, batch, threads=128) as (bx, by, bz):
            q_shared = T.alloc_shared((block, D), F16)
            k_shared = T.alloc_shared((block, D), F16)
            v_shared = T.alloc_shared((block, D), F16)
            acc_s = T.alloc_fragment((block, block), F32)
            p = T.alloc_fragment((block, block), F16)
            acc_o = T.alloc_fragment((block, D), F32)
            scores_max = T.alloc_fragment((block,), F32)
            scores_max_prev = T.alloc_fragment((block,), F32)
            scores_scale = T.alloc_fragment((block,), F32)
            scores_sum = T.alloc_fragment((block,), F32)
            logsum = T.alloc_fragment((block,), F32)
            start = cu_seqlens[bz]
            length = cu_seqlens[bz + 1] - start
            first = start + bx * block
            T.copy(Q[first : first + block, by, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, LOWEST)
            for k in T.Pipelined(T.ceildiv(length, block), num_stages=1):
                T.copy(K[start + k * block : start + (k + 1) * block, by, :], k_shared)
                for i, j in T.Parallel(block, block):
                    acc_s[i, j] = T.if_then_else(k * block + j < length, 0, -T.infinity(F32))
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(block, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.copy(V[start + k * block : start + (k + 1) * block, by, :], v_shared)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, d in T.Parallel(block, D):
                if bx * block + i < length:
                    Output[first + i, by, d] = acc_o[i, d] / logsum[i]

    return main


def sink(seq: int = 80, heads: int = 2, D: int = 32) -> Any:
    """A learned logit for each head joins the row sums after the last block; bfloat16, no mask but the tail's."""
    block = 64
    scale = D**-0.5 * LOG2E
    step = softmax_step(block, block, scale)

    @T.prim_func
    def main(
        Q: T.Tensor((heads, seq, D), BF16),
        K: T.Tensor((heads, seq, D), BF16),
        V: T.Tensor((heads, seq, D), BF16),
        Sink: T.Tensor((heads,), F32),
        Output: T.Tensor((heads, seq, D), BF16),
        Lse: T.Tensor((heads, seq), F32),
    ):
        with T.Kernel(T.ceildiv(seq, block), heads, threads=128) as (bx, by):
            q_shared = T.alloc_shared((block, D), BF16)
            k_shared = T.alloc_shared((block, D), BF16)
            v_shared = T.alloc_shared((block, D), BF16)
            acc_s = T.alloc_fragment((block, block), F32)
            p = T.alloc_fragment((block, block), BF16)
            acc_o = T.alloc_fragment((block, D), F32)
            scores_max = T.alloc_fragment((block,), F32)
            scores_max_prev = T.alloc_fragment((block,), F32)
            scores_scale = T.alloc_fragment((block,), F32)
            scores_sum = T.alloc_fragment((block,), F32)
            logsum = T.alloc_fragment((block,), F32)
            T.copy(Q[by, bx * block : (bx + 1) * block, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for k in T.Pipelined(T.ceildiv(seq, block), num_stages=1):
                T.copy(K[by, k * block : (k + 1) * block, :], k_shared)
                T.copy(V[by, k * block : (k + 1) * block, :], v_shared)
                for i, j in T.Parallel(block, block):
                    acc_s[i, j] = T.if_then_else(k * block + j < seq, 0, -T.infinity(F32))
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(block, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(block):
                logsum[i] += T.exp2(Sink[by] * LOG2E - scores_max[i] * scale)
            for i, j in T.Parallel(block, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[by, bx * block : (bx + 1) * block, :])
            for i in T.Parallel(block):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            T.copy(logsum, Lse[by, bx * block : (bx + 1) * block])

    return main


def block_causal(seq: int = 128, D: int = 64, group: int = 16) -> Any:
    """A token sees its own group of 16 and all earlier ones; the product with 1 / row sum, not a division."""
    block = 64
    step = softmax_step(block, block, 0.125 * LOG2E)

    @T.prim_func
    def main(
        Q: T.Tensor((seq, D), F16),
        K: T.Tensor((seq, D), F16),
        V: T.Tensor((seq, D), F16),
        Output: T.Tensor((seq, D), F32),
    ):
        with T.Kernel(T.ceildiv(seq, block), threads=128) as bx:
            q_shared = T.alloc_shared((block, D), F16)
            k_shared = T.alloc_shared((block, D), F16)
            v_shared = T.alloc_shared((block, D), F16)
            acc_s = T.alloc_fragment((block, block), F32)
            p = T.alloc_fragment((block, block), F16)
            acc_o = T.alloc_fragment((block, D), F32)
            scores_max = T.alloc_fragment((block,), F32)
            scores_max_prev = T.alloc_fragment((block,), F32)
            scores_scale = T.alloc_fragment((block,), F32)
            scores_sum = T.alloc_fragment((block,), F32)
            logsum = T.alloc_fragment((block,), F32)
            T.copy(Q[bx * block, 0], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for k in T.serial(bx + 1):
                T.copy(K[k * block, 0], k_shared)
                T.copy(V[k * block, 0], v_shared)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block, block):
                    if (bx * block + i) // group < (k * block + j) // group:
                        acc_s[i, j] = -T.infinity(F32)
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(block, D):
                    acc_o[i, j] = acc_o[i, j] * scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o)
            for i in T.Parallel(block):
                logsum[i] = 1.0 / logsum[i]
            for i, j in T.Parallel(block, D):
                acc_o[i, j] = acc_o[i, j] * logsum[i]
            T.copy(acc_o, Output[bx * block, 0])

    return main


KERNELS = {
    "flash_grouped": Kernel(grouped, [normal(80, 4, 32), normal(80, 2, 32), normal(80, 2, 32)]),
    "flash_packed": Kernel(packed, [normal(112, 2, 32), normal(112, 2, 32), normal(112, 2, 32), CU_SEQLENS]),
    "flash_sink": Kernel(
        sink, [*(normal(2, 80, 32, dtype=BF16) for _ in range(3)), normal(2, dtype=F32, scale=2.0)], made=2
    ),
    "flash_block_causal": Kernel(block_causal, [normal(128, 64), normal(128, 64), normal(128, 64)]),
}
