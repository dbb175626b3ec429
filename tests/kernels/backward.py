"""The backward pass of attention: delta, dK and dV by key blocks, dQ by query blocks, and dQ by atomic additions.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import tilelang.language as T

from .entry import F16, F32, Kernel, normal, zeros

SEQ, D, BLOCK = 128, 32, 64
SCALE = D**-0.5
SCALE2 = SCALE * 1.44269504


def preprocess() -> Any:
    """delta = the sum over a row of o * do, in blocks of 32 rows."""
    rows = 32

    @T.prim_func
    def main(Output: T.Tensor((SEQ, D), F16), dO: T.Tensor((SEQ, D), F16), Delta: T.Tensor((SEQ,), F32)):
        with T.Kernel(T.ceildiv(SEQ, rows), threads=128) as bx:
            o = T.alloc_fragment((rows, D), F16)
            do = T.alloc_fragment((rows, D), F16)
            product = T.alloc_fragment((rows, D), F32)
            delta = T.alloc_fragment((rows,), F32)
            T.copy(Output[bx * rows, 0], o)
            T.copy(dO[bx * rows, 0], do)
            for i, j in T.Parallel(rows, D):
                product[i, j] = T.cast(o[i, j], F32) * T.cast(do[i, j], F32)
            T.reduce_sum(product, delta, dim=1)
            T.copy(delta, Delta[bx * rows])

    return main


def key_blocks(seq: int = SEQ, atomic: bool = False) -> Any:
    """dK and dV of one key block: a loop over the query blocks that see it. atomic: adds its share of dQ, too."""
    dq_shape = (seq, D) if atomic else (1, 1)

    @T.prim_func
    def main(
        Q: T.Tensor((seq, D), F16),
        K: T.Tensor((seq, D), F16),
        V: T.Tensor((seq, D), F16),
        dO: T.Tensor((seq, D), F16),
        Lse: T.Tensor((seq,), F32),
        Delta: T.Tensor((seq,), F32),
        dQ: T.Tensor(dq_shape, F32),
        dK: T.Tensor((seq, D), F32),
        dV: T.Tensor((seq, D), F32),
    ):
        with T.Kernel(T.ceildiv(seq, BLOCK), threads=128) as bx:
            k_shared = T.alloc_shared((BLOCK, D), F16)
            v_shared = T.alloc_shared((BLOCK, D), F16)
            q_shared = T.alloc_shared((BLOCK, D), F16)
            do_shared = T.alloc_shared((BLOCK, D), F16)
            ds_shared = T.alloc_shared((BLOCK, BLOCK), F16)
            lse = T.alloc_shared((BLOCK,), F32)
            delta = T.alloc_shared((BLOCK,), F32)
            s = T.alloc_fragment((BLOCK, BLOCK), F32)  # keys by queries
            dp = T.alloc_fragment((BLOCK, BLOCK), F32)
            p_cast = T.alloc_fragment((BLOCK, BLOCK), F16)
            ds_cast = T.alloc_fragment((BLOCK, BLOCK), F16)
            dk = T.alloc_fragment((BLOCK, D), F32)
            dv = T.alloc_fragment((BLOCK, D), F32)
            dq = T.alloc_fragment((BLOCK, D), F32)
            T.copy(K[bx * BLOCK, 0], k_shared)
            T.copy(V[bx * BLOCK, 0], v_shared)
            T.clear(dk)
            T.clear(dv)
            for n in T.serial(T.ceildiv(seq, BLOCK) - bx):
                first = (bx + n) * BLOCK
                T.copy(Q[first, 0], q_shared)
                T.copy(dO[first, 0], do_shared)
                T.copy(Lse[first], lse)
                T.copy(Delta[first], delta)
                T.clear(s)
                T.gemm(k_shared, q_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    s[i, j] = T.exp2(s[i, j] * SCALE2 - lse[j])
                for i, j in T.Parallel(BLOCK, BLOCK):
                    s[i, j] = T.if_then_else(bx * BLOCK + i <= first + j, s[i, j], 0)
                T.clear(dp)
                T.gemm(v_shared, do_shared, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(s, p_cast)
                T.gemm(p_cast, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    ds_cast[i, j] = s[i, j] * (dp[i, j] - delta[j]) * SCALE
                T.gemm(ds_cast, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
                if atomic:
                    T.copy(ds_cast, ds_shared)
                    T.clear(dq)
                    T.gemm(ds_shared, k_shared, dq, transpose_A=True)
                    for i, j in T.Parallel(BLOCK, D):
                        T.atomic_add(dQ[first + i, j], dq[i, j])
            T.copy(dk, dK[bx * BLOCK, 0])
            T.copy(dv, dV[bx * BLOCK, 0])

    return main


def query_blocks() -> Any:
    """dQ of one query block: a loop over the key blocks that it sees, no atomics."""

    @T.prim_func
    def main(
        Q: T.Tensor((SEQ, D), F16),
        K: T.Tensor((SEQ, D), F16),
        V: T.Tensor((SEQ, D), F16),
        dO: T.Tensor((SEQ, D), F16),
        Lse: T.Tensor((SEQ,), F32),
        Delta: T.Tensor((SEQ,), F32),
        dQ: T.Tensor((SEQ, D), F32),
    ):
        with T.Kernel(T.ceildiv(SEQ, BLOCK), threads=128) as bx:
            q_shared = T.alloc_shared((BLOCK, D), F16)
            k_shared = T.alloc_shared((BLOCK, D), F16)
            v_shared = T.alloc_shared((BLOCK, D), F16)
            do_shared = T.alloc_shared((BLOCK, D), F16)
            s = T.alloc_fragment((BLOCK, BLOCK), F32)
            dp = T.alloc_fragment((BLOCK, BLOCK), F32)
            ds_cast = T.alloc_fragment((BLOCK, BLOCK), F16)
            dq = T.alloc_fragment((BLOCK, D), F32)
            lse = T.alloc_fragment((BLOCK,), F32)
            delta = T.alloc_fragment((BLOCK,), F32)
            T.copy(Q[bx * BLOCK, 0], q_shared)
            T.copy(dO[bx * BLOCK, 0], do_shared)
            T.copy(Lse[bx * BLOCK], lse)
            T.copy(Delta[bx * BLOCK], delta)
            T.clear(dq)
            for n in T.Pipelined(bx + 1, num_stages=1):
                T.copy(K[n * BLOCK, 0], k_shared)
                T.copy(V[n * BLOCK, 0], v_shared)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    s[i, j] = T.if_then_else(bx * BLOCK + i >= n * BLOCK + j, 0, -T.infinity(F32))
                T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.clear(dp)
                T.gemm(do_shared, v_shared, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    ds_cast[i, j] = T.exp2(s[i, j] * SCALE2 - lse[i]) * (dp[i, j] - delta[i])
                T.gemm(ds_cast, k_shared, dq, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BLOCK, D):
                dQ[bx * BLOCK + i, j] = dq[i, j] * SCALE

    return main


def _given(seq: int) -> list[Any]:
    """Q, K, V, dO, the logarithm of the row sums and delta."""
    return [*(normal(seq, D, scale=0.4) for _ in range(4)), normal(seq, dtype=F32), normal(seq, dtype=F32, scale=0.5)]


def additions(blocks: int) -> Kernel:
    """dQ by atomic additions of `blocks` key blocks: the last rows get one addition from each of them."""
    seq = blocks * BLOCK
    return Kernel(lambda: key_blocks(seq, True), [*_given(seq), *(zeros(seq, D) for _ in range(3))], made=0)


KERNELS = {
    "backward_preprocess": Kernel(preprocess, [normal(SEQ, D), normal(SEQ, D)]),
    "backward_key_blocks": Kernel(key_blocks, [*_given(SEQ), zeros(1, 1)], made=2),
    "backward_query_blocks": Kernel(query_blocks, _given(SEQ)),
    "backward_two_additions": additions(2),
}
