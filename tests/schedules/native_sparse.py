"""D2 in native sparse attention: each token has blocks of keys of its own, and no mask makes a row empty.

The maximum of a block replaces the running one: where it falls, exp2 of the difference overflows.
"""

from typing import Any

import tilelang.language as T
from online_softmax import LOG2E, step, tile_of

F16, F32 = "float16", "float32"


def attention(tokens: int = 4, heads: int = 16, keys: int = 64, D: int = 32, block: int = 16, chosen: int = 2,
              mended: bool = False) -> Any:  # fmt: skip
    """Heads of a token share its blocks, which `Choice` names. mended: the running maximum stays."""
    tile, scale = tile_of(block), D**-0.5 * LOG2E
    joined = step(heads, tile, scale, keep=mended)

    @T.prim_func
    def main(
        Q: T.Tensor((tokens, heads, D), F16),
        K: T.Tensor((keys, D), F16),
        V: T.Tensor((keys, D), F16),
        Choice: T.Tensor((tokens, chosen), "int32"),
        Output: T.Tensor((tokens, heads, D), F16),
    ):
        with T.Kernel(tokens, threads=32) as bx:
            q_shared = T.alloc_shared((heads, D), F16)
            k_shared = T.alloc_shared((tile, D), F16)
            v_shared = T.alloc_shared((tile, D), F16)
            acc_s = T.alloc_fragment((heads, tile), F32)
            p = T.alloc_fragment((heads, tile), F16)
            acc_o = T.alloc_fragment((heads, D), F32)
            scores_max = T.alloc_fragment((heads,), F32)
            scores_max_prev = T.alloc_fragment((heads,), F32)
            scores_scale = T.alloc_fragment((heads,), F32)
            scores_sum = T.alloc_fragment((heads,), F32)
            logsum = T.alloc_fragment((heads,), F32)
            T.copy(Q[bx, :, :], q_shared)
            T.clear(acc_o)
            T.clear(logsum)
            T.fill(scores_max, -T.infinity(F32))
            for n in T.serial(chosen):
                first = Choice[bx, n] * block
                T.copy(K[first : first + tile, :], k_shared)
                T.copy(V[first : first + tile, :], v_shared)
                T.clear(acc_s)
                T.gemm(q_shared, k_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(heads, tile):
                    acc_s[i, j] = T.if_then_else((j < block) & (first + j < keys), acc_s[i, j], -T.infinity(F32))
                joined(acc_s, scores_max, scores_max_prev, scores_scale, scores_sum, logsum)
                for i, j in T.Parallel(heads, D):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(acc_s, p)
                T.gemm(p, v_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(heads, D):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bx, :, :])

    return main
