"""D2 in block-sparse attention: a mask of blocks says which keys 16 query rows see.

The maximum of a block replaces the running one: where it falls, exp2 of the difference overflows.
"""

from typing import Any

import tilelang.language as T
from online_softmax import LOG2E, step, tile_of

F16, F32 = "float16", "float32"


def attention(rows: int = 16, keys: int = 64, D: int = 32, block: int = 16, mended: bool = False) -> Any:
    """mended: the running maximum stays."""
    tile, scale, blocks = tile_of(block), D**-0.5 * LOG2E, -(-keys // block)
    joined = step(16, tile, scale, keep=mended)

    @T.prim_func
    def main(
        Q: T.Tensor((rows, D), F16),
        K: T.Tensor((keys, D), F16),
        V: T.Tensor((keys, D), F16),
        Mask: T.Tensor((T.ceildiv(rows, 16), blocks), "int8"),
        Output: T.Tensor((rows, D), F16),
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
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for k in T.serial(blocks):
                if Mask[bx, k] != 0:
                    T.copy(K[k * block : k * block + tile, :], k_shared)
                    T.copy(V[k * block : k * block + tile, :], v_shared)
                    T.clear(acc_s)
                    T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                    for i, j in T.Parallel(16, tile):
                        acc_s[i, j] = T.if_then_else(
                            (j < block) & (k * block + j < keys), acc_s[i, j], -T.infinity(F32)
                        )
                    joined(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                    for i, j in T.Parallel(16, D):
                        acc_o[i, j] *= scores_scale[i]
                    T.copy(acc_s, p)
                    T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(16, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bx * 16 : (bx + 1) * 16, :])

    return main
