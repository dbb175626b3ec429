"""An attention sink that joins the row sum after the last block, and never the maximum.

exp2(sink - maximum) overflows where the scores are low, and the row sum and its logarithm with it.
"""

from typing import Any

import tilelang.language as T
from online_softmax import LOG2E, step, tile_of

F16, F32 = "float16", "float32"


def attention(rows: int = 16, keys: int = 32, D: int = 32, block: int = 16, mended: bool = False) -> Any:
    """One head. mended: the maximum starts at the sink, and the row sum at its weight of 1."""
    tile, scale, blocks = tile_of(block), D**-0.5 * LOG2E, -(-keys // block)
    joined = step(16, tile, scale, keep=True)

    @T.prim_func
    def main(
        Q: T.Tensor((rows, D), F16),
        K: T.Tensor((keys, D), F16),
        V: T.Tensor((keys, D), F16),
        Sink: T.Tensor((1,), F32),
        Output: T.Tensor((rows, D), F16),
        Lse: T.Tensor((rows,), F32),
    ):
        with T.Kernel(T.ceildiv(rows, 16), threads=32) as bx:
            q_shared = T.alloc_shared((16, D), F16)
            k_shared = T.alloc_shared((tile, D), F16)
            v_shared = T.alloc_shared((tile, D), F16)
            acc_s = T.alloc_fragment((16, tile), F32)
            p = T.alloc_fragment((16, tile), F16)
            acc_o = T.alloc_fragment((16, D), F32)
            scores_max = T.alloc_fragment((16,), F32)
            scores_max_prev = T.alloc_fragment((16,), F32)
            scores_scale = T.alloc_fragment((16,), F32)
            scores_sum = T.alloc_fragment((16,), F32)
            logsum = T.alloc_fragment((16,), F32)
            T.copy(Q[bx * 16 : (bx + 1) * 16, :], q_shared)
            T.clear(acc_o)
            if mended:
                T.fill(logsum, 1)
                T.fill(scores_max, Sink[0] * (LOG2E / scale))
            else:
                T.clear(logsum)
                T.fill(scores_max, -T.infinity(F32))
            for k in T.serial(blocks):
                T.copy(K[k * block : k * block + tile, :], k_shared)
                T.copy(V[k * block : k * block + tile, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(16, tile):
                    acc_s[i, j] = T.if_then_else((j < block) & (k * block + j < keys), acc_s[i, j], -T.infinity(F32))
                joined(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(16, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            if not mended:
                for i in T.Parallel(16):
                    logsum[i] += T.exp2(Sink[0] * LOG2E - scores_max[i] * scale)
            for i, j in T.Parallel(16, D):
                acc_o[i, j] /= logsum[i]
            for i in T.Parallel(16):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            T.copy(acc_o, Output[bx * 16 : (bx + 1) * 16, :])
            T.copy(logsum, Lse[bx * 16 : (bx + 1) * 16])

    return main
