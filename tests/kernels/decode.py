"""Decoding kernels of ours: split keys and their combination, latent attention with shared keys and values.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import tilelang.language as T

from .entry import BF16, F16, F32, Kernel, normal
from .flash import LOG2E, softmax_step

BATCH, HEADS, D, SEQ, SPLITS, BLOCK = 2, 16, 64, 160, 2, 64
SCALE = D**-0.5 * LOG2E
LENGTH = 96  # keys of a split; the last one has 64


def split_part() -> Any:
    """A macro: one split of one batch entry, its output and the base-2 logarithm of its row sums."""
    step = softmax_step(HEADS, BLOCK, SCALE)

    @T.macro
    def part(Q: Any, K: Any, V: Any, Partial: Any, Lse: Any):
        with T.Kernel(SPLITS, BATCH, threads=128) as (bx, by):
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
            stop = T.min((bx + 1) * LENGTH, SEQ)
            for k in T.Pipelined(T.ceildiv(stop - bx * LENGTH, BLOCK), num_stages=2):
                first = bx * LENGTH + k * BLOCK
                T.copy(K[by, first : first + BLOCK, :], k_shared)
                T.copy(V[by, first : first + BLOCK, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(HEADS, BLOCK):
                    acc_s[i, j] = T.if_then_else(first + j < stop, acc_s[i, j], -T.infinity(F32))
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(HEADS, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p_shared)
                T.gemm(p_shared, v_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(HEADS, D):
                acc_o[i, j] /= logsum[i]
            for i in T.Parallel(HEADS):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * SCALE
            T.copy(acc_o, Partial[by, bx, :, :])
            T.copy(logsum, Lse[by, bx, :])

    return part


def combine_part() -> Any:
    """A macro: the splits of one head, weighted by 2**(lse - the greatest lse)."""

    @T.macro
    def part(Partial: Any, Lse: Any, Output: Any):
        with T.Kernel(HEADS, BATCH, threads=64) as (bx, by):
            o = T.alloc_fragment((D,), F32)
            top = T.alloc_var(F32)
            total = T.alloc_var(F32)
            weight = T.alloc_var(F32)
            T.clear(o)
            top = Lse[by, 0, bx]
            for s in T.serial(1, SPLITS):
                top = T.max(top, Lse[by, s, bx])
            total = 0.0
            for s in T.serial(SPLITS):
                total = total + T.exp2(Lse[by, s, bx] - top)
            for s in T.serial(SPLITS):
                weight = T.exp2(Lse[by, s, bx] - top) / total
                for j in T.Parallel(D):
                    o[j] += weight * Partial[by, s, bx, j]
            for j in T.Parallel(D):
                Output[by, bx, j] = o[j]

    return part


Q_SHAPE, KV_SHAPE = (BATCH, HEADS, D), (BATCH, SEQ, D)
PARTIAL_SHAPE, LSE_SHAPE = (BATCH, SPLITS, HEADS, D), (BATCH, SPLITS, HEADS)


def both() -> Any:
    """Split and combine, one launch after the other in one PrimFunc."""
    split, combine = split_part(), combine_part()

    @T.prim_func
    def main(
        Q: T.Tensor(Q_SHAPE, F16),
        K: T.Tensor(KV_SHAPE, F16),
        V: T.Tensor(KV_SHAPE, F16),
        Partial: T.Tensor(PARTIAL_SHAPE, F32),
        Lse: T.Tensor(LSE_SHAPE, F32),
        Output: T.Tensor(Q_SHAPE, F32),
    ):
        split(Q, K, V, Partial, Lse)
        combine(Partial, Lse, Output)

    return main


def split_alone() -> Any:
    """The first of the two launches."""
    split = split_part()

    @T.prim_func
    def main(
        Q: T.Tensor(Q_SHAPE, F16),
        K: T.Tensor(KV_SHAPE, F16),
        V: T.Tensor(KV_SHAPE, F16),
        Partial: T.Tensor(PARTIAL_SHAPE, F32),
        Lse: T.Tensor(LSE_SHAPE, F32),
    ):
        split(Q, K, V, Partial, Lse)

    return main


def combine_alone() -> Any:
    """The second of the two launches."""
    combine = combine_part()

    @T.prim_func
    def main(Partial: T.Tensor(PARTIAL_SHAPE, F32), Lse: T.Tensor(LSE_SHAPE, F32), Output: T.Tensor(Q_SHAPE, F32)):
        combine(Partial, Lse, Output)

    return main


def latent(heads: int = 32, latent_D: int = 64, rope: int = 16, seq: int = 80) -> Any:
    """Latent attention: scores from a part without position and a part with; the keys are the values too."""
    scale = (latent_D + rope) ** -0.5 * LOG2E
    step = softmax_step(heads, BLOCK, scale)

    @T.prim_func
    def main(
        Q: T.Tensor((BATCH, heads, latent_D), BF16),
        Q_rope: T.Tensor((BATCH, heads, rope), BF16),
        KV: T.Tensor((BATCH, seq, latent_D), BF16),
        K_rope: T.Tensor((BATCH, seq, rope), BF16),
        Output: T.Tensor((BATCH, heads, latent_D), F32),
    ):
        with T.Kernel(BATCH, threads=128) as bx:
            q_shared = T.alloc_shared((heads, latent_D), BF16)
            q_rope = T.alloc_shared((heads, rope), BF16)
            kv_shared = T.alloc_shared((BLOCK, latent_D), BF16)
            k_rope = T.alloc_shared((BLOCK, rope), BF16)
            p_shared = T.alloc_shared((heads, BLOCK), BF16)
            acc_s = T.alloc_fragment((heads, BLOCK), F32)
            acc_o = T.alloc_fragment((heads, latent_D), F32)
            scores_max = T.alloc_fragment((heads,), F32)
            scores_max_prev = T.alloc_fragment((heads,), F32)
            scores_scale = T.alloc_fragment((heads,), F32)
            scores_sum = T.alloc_fragment((heads,), F32)
            logsum = T.alloc_fragment((heads,), F32)
            T.copy(Q[bx, :, :], q_shared)
            T.copy(Q_rope[bx, :, :], q_rope)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for k in T.Pipelined(T.ceildiv(seq, BLOCK), num_stages=1):
                T.copy(KV[bx, k * BLOCK : (k + 1) * BLOCK, :], kv_shared)
                T.copy(K_rope[bx, k * BLOCK : (k + 1) * BLOCK, :], k_rope)
                T.gemm(q_shared, kv_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
                T.gemm(q_rope, k_rope, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(heads, BLOCK):
                    acc_s[i, j] = T.if_then_else(k * BLOCK + j < seq, acc_s[i, j], -T.infinity(F32))
                step(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                T.copy(acc_s, p_shared)
                for i, j in T.Parallel(heads, latent_D):
                    acc_o[i, j] *= scores_scale[i]
                T.gemm(p_shared, kv_shared, acc_o, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(heads, latent_D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bx, :, :])

    return main


_Q_K_V = [normal(*Q_SHAPE), normal(*KV_SHAPE), normal(*KV_SHAPE)]
KERNELS = {
    "decode": Kernel(both, _Q_K_V, made=3),
    "decode_split": Kernel(split_alone, _Q_K_V, made=2),
    "decode_combine": Kernel(combine_alone, [normal(*PARTIAL_SHAPE, dtype=F32), normal(*LSE_SHAPE, dtype=F32)]),
    "decode_latent": Kernel(
        latent,
        [normal(*shape, dtype=BF16) for shape in ((2, 32, 64), (2, 32, 16), (2, 80, 64), (2, 80, 16))],
    ),
}
