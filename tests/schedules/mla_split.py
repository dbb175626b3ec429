"""D3 in latent attention for decoding: splits deal the key blocks in turn, and a split may get none.

Its row sum is 0, its partial result 0 / 0 and its logarithm -inf: the combination multiplies NaN by a weight of 0. Keys
are values too, and have a part with positions beside them.
"""

from typing import Any

import tilelang.language as T
from online_softmax import LOG2E, LOWEST, step, tile_of

F16, F32 = "float16", "float32"


def attention(keys: int = 32, splits: int = 4, D: int = 32, rope: int = 16, block: int = 16,
              mended: bool = False) -> Any:  # fmt: skip
    """16 heads. mended: a split without keys stores 0 and a logarithm that is low and finite."""
    heads, tile, scale = 16, tile_of(block), (D + rope) ** -0.5 * LOG2E
    blocks = -(-keys // block)
    joined = step(heads, tile, scale, keep=True)

    @T.prim_func
    def main(
        Q: T.Tensor((heads, D), F16),
        Q_rope: T.Tensor((heads, rope), F16),
        KV: T.Tensor((keys, D), F16),
        K_rope: T.Tensor((keys, rope), F16),
        Partial: T.Tensor((splits, heads, D), F32),
        Lse: T.Tensor((splits, heads), F32),
        Output: T.Tensor((heads, D), F16),
    ):
        with T.Kernel(splits, threads=32) as bx:
            q_shared = T.alloc_shared((heads, D), F16)
            k_shared = T.alloc_shared((tile, D), F16)
            q_rope = T.alloc_shared((heads, rope), F16)
            k_rope = T.alloc_shared((tile, rope), F16)
            acc_s = T.alloc_fragment((heads, tile), F32)
            p = T.alloc_fragment((heads, tile), F16)
            acc_o = T.alloc_fragment((heads, D), F32)
            scores_max = T.alloc_fragment((heads,), F32)
            scores_max_prev = T.alloc_fragment((heads,), F32)
            scores_scale = T.alloc_fragment((heads,), F32)
            scores_sum = T.alloc_fragment((heads,), F32)
            logsum = T.alloc_fragment((heads,), F32)
            T.copy(Q, q_shared)
            T.copy(Q_rope, q_rope)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for n in T.serial((blocks - bx + splits - 1) // splits):
                first = (bx + n * splits) * block
                T.copy(KV[first : first + tile, :], k_shared)
                T.copy(K_rope[first : first + tile, :], k_rope)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(q_rope, k_rope, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(heads, tile):
                    acc_s[i, j] = T.if_then_else((j < block) & (first + j < keys), acc_s[i, j], -T.infinity(F32))
                joined(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(heads, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, k_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(heads, D):
                if mended:
                    acc_o[i, j] = T.if_then_else(logsum[i] == 0, 0, acc_o[i, j] / logsum[i])
                else:
                    acc_o[i, j] /= logsum[i]
            for i in T.Parallel(heads):
                if mended:
                    logsum[i] = T.if_then_else(logsum[i] == 0, LOWEST, T.log2(logsum[i]) + scores_max[i] * scale)
                else:
                    logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            T.copy(acc_o, Partial[bx, :, :])
            T.copy(logsum, Lse[bx, :])
        with T.Kernel(1, threads=32):
            lse = T.alloc_fragment((heads, splits), F32)
            o = T.alloc_fragment((heads, D), F32)
            top = T.alloc_fragment((heads,), F32)
            total = T.alloc_fragment((heads,), F32)
            for i, s in T.Parallel(heads, splits):
                lse[i, s] = Lse[s, i]
            T.reduce_max(lse, top, dim=1)
            for i, s in T.Parallel(heads, splits):
                lse[i, s] = T.exp2(lse[i, s] - top[i])
            T.reduce_sum(lse, total, dim=1)
            T.clear(o)
            for s in T.serial(splits):
                for i, j in T.Parallel(heads, D):
                    o[i, j] += T.exp2(Lse[s, i] - top[i]) * Partial[s, i, j]
            for i, j in T.Parallel(heads, D):
                Output[i, j] = o[i, j] / total[i]

    return main
