"""D6 in attention of variable length: sequences lie behind one another, and a key block reads into the next one.

The weights there are 0, but 0 times an infinity in V is NaN.
"""

from typing import Any

import tilelang.language as T
from online_softmax import LOG2E, LOWEST, step, tile_of

F16, F32 = "float16", "float32"


def attention(total: int = 24, batch: int = 2, longest: int = 16, D: int = 32, block: int = 16,
              mended: bool = False) -> Any:  # fmt: skip
    """mended: rows of V behind the sequence are replaced by 0 before the product."""
    tile, scale = tile_of(block), D**-0.5 * LOG2E
    joined = step(16, tile, scale, keep=True)

    @T.prim_func
    def main(
        Q: T.Tensor((total, D), F16),
        K: T.Tensor((total, D), F16),
        V: T.Tensor((total, D), F16),
        cu_seqlens: T.Tensor((batch + 1,), "int32"),
        Output: T.Tensor((total, D), F16),
    ):
        with T.Kernel(T.ceildiv(longest, 16), batch, threads=32) as (bx, by):
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
            start = cu_seqlens[by]
            length = cu_seqlens[by + 1] - start
            T.copy(Q[start + bx * 16 : start + (bx + 1) * 16, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, LOWEST)
            for k in T.serial(T.ceildiv(length, block)):
                T.copy(K[start + k * block : start + k * block + tile, :], k_shared)
                T.copy(V[start + k * block : start + k * block + tile, :], v_shared)
                if mended:
                    for i, j in T.Parallel(tile, D):
                        inside = (i < block) & (k * block + i < length)
                        v_shared[i, j] = T.if_then_else(inside, v_shared[i, j], T.float16(0))
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(16, tile):
                    acc_s[i, j] = T.if_then_else((j < block) & (k * block + j < length), acc_s[i, j], -T.infinity(F32))
                joined(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(16, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(16, D):
                if bx * 16 + i < length:
                    Output[start + bx * 16 + i, j] = acc_o[i, j] / logsum[i]

    return main
