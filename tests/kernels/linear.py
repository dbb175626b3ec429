"""Linear attention kernels of ours: a state carried over chunks, with decay, and a scan of chunks with gates.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import tilelang.language as T

from .entry import BF16, F16, F32, Kernel, normal, positive

CHUNK, D, SEQ = 64, 64, 128


def chunk_state() -> Any:
    """A linear-attention state: S = S * decay + K^T V over chunks, in bfloat16."""
    chunk, D = 64, 64

    @T.prim_func
    def main(K: T.Tensor((192, D), "bfloat16"), V: T.Tensor((192, D), "bfloat16"), S: T.Tensor((D, D), "float32")):
        with T.Kernel(1, threads=128):
            k_shared = T.alloc_shared((chunk, D), "bfloat16")
            v_shared = T.alloc_shared((chunk, D), "bfloat16")
            state = T.alloc_fragment((D, D), "float32")
            T.clear(state)
            for c in T.Pipelined(192 // chunk, num_stages=1):
                T.copy(K[c * chunk, 0], k_shared)
                T.copy(V[c * chunk, 0], v_shared)
                for i, j in T.Parallel(D, D):
                    state[i, j] = state[i, j] * 0.75
                T.gemm(k_shared, v_shared, state, transpose_A=True)
            T.copy(state, S)

    return main


def chunked(heads: int = 2) -> Any:
    """Causal attention without a softmax: (Q K^T masked) V + Q S, then S += K^T V, chunk by chunk."""

    @T.prim_func
    def main(
        Q: T.Tensor((SEQ, heads, D), F16),
        K: T.Tensor((SEQ, heads, D), F16),
        V: T.Tensor((SEQ, heads, D), F16),
        Output: T.Tensor((SEQ, heads, D), F16),
    ):
        with T.Kernel(heads, threads=128) as bx:
            q_shared = T.alloc_shared((CHUNK, D), F16)
            k_shared = T.alloc_shared((CHUNK, D), F16)
            v_shared = T.alloc_shared((CHUNK, D), F16)
            s_shared = T.alloc_shared((CHUNK, CHUNK), F16)
            state_shared = T.alloc_shared((D, D), F16)
            state = T.alloc_fragment((D, D), F32)
            s = T.alloc_fragment((CHUNK, CHUNK), F32)
            o = T.alloc_fragment((CHUNK, D), F32)
            T.clear(state)
            for c in T.serial(SEQ // CHUNK):
                T.copy(Q[c * CHUNK : (c + 1) * CHUNK, bx, :], q_shared)
                T.copy(K[c * CHUNK : (c + 1) * CHUNK, bx, :], k_shared)
                T.copy(V[c * CHUNK : (c + 1) * CHUNK, bx, :], v_shared)
                for i, j in T.Parallel(CHUNK, D):
                    q_shared[i, j] = q_shared[i, j] * T.float16(0.125)
                T.gemm(q_shared, k_shared, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(CHUNK, CHUNK):
                    s_shared[i, j] = T.if_then_else(i >= j, s[i, j], 0)
                T.copy(state, state_shared)
                T.gemm(s_shared, v_shared, o, clear_accum=True)
                T.gemm(q_shared, state_shared, o)
                T.gemm(k_shared, v_shared, state, transpose_A=True)
                T.copy(o, Output[c * CHUNK : (c + 1) * CHUNK, bx, :])

    return main


def retention(heads: int = 2) -> Any:
    """The same with a decay for each head: 2**(log_decay * distance) within a chunk, and across chunks."""

    @T.prim_func
    def main(
        Q: T.Tensor((heads, SEQ, D), BF16),
        K: T.Tensor((heads, SEQ, D), BF16),
        V: T.Tensor((heads, SEQ, D), BF16),
        Output: T.Tensor((heads, SEQ, D), F32),
    ):
        with T.Kernel(heads, threads=128) as bx:
            q_shared = T.alloc_shared((CHUNK, D), BF16)
            k_shared = T.alloc_shared((CHUNK, D), BF16)
            v_shared = T.alloc_shared((CHUNK, D), BF16)
            s_shared = T.alloc_shared((CHUNK, CHUNK), BF16)
            state_shared = T.alloc_shared((D, D), BF16)
            state = T.alloc_fragment((D, D), F32)
            s = T.alloc_fragment((CHUNK, CHUNK), F32)
            o = T.alloc_fragment((CHUNK, D), F32)
            k_local = T.alloc_fragment((CHUNK, D), BF16)
            decay = T.alloc_var(F32)
            decay = -0.03125 / T.cast(bx + 1, F32)
            T.clear(state)
            for c in T.serial(SEQ // CHUNK):
                T.copy(Q[bx, c * CHUNK, 0], q_shared)
                T.copy(K[bx, c * CHUNK, 0], k_shared)
                T.copy(V[bx, c * CHUNK, 0], v_shared)
                T.copy(state, state_shared)
                T.clear(s)
                T.gemm(q_shared, k_shared, s, transpose_B=True)
                for i, j in T.Parallel(CHUNK, CHUNK):
                    s_shared[i, j] = T.if_then_else(i >= j, s[i, j] * T.exp2(T.cast(i - j, F32) * decay), 0)
                T.clear(o)
                T.gemm(q_shared, state_shared, o)
                for i, j in T.Parallel(CHUNK, D):
                    o[i, j] = o[i, j] * T.exp2(T.cast(i + 1, F32) * decay)
                T.gemm(s_shared, v_shared, o)
                T.copy(k_shared, k_local)
                for i, j in T.Parallel(CHUNK, D):
                    k_local[i, j] = k_local[i, j] * T.exp2(T.cast(CHUNK - 1 - i, F32) * decay)
                T.copy(k_local, k_shared)
                for i, j in T.Parallel(D, D):
                    state[i, j] = state[i, j] * T.exp2(CHUNK * decay)
                T.gemm(k_shared, v_shared, state, transpose_A=True)
                T.copy(o, Output[bx, c * CHUNK, 0])

    return main


def chunk_scan(chunks: int = 2, state_D: int = 32, P: int = 32) -> Any:
    """The scan of a state-space model: chunk products gated by exp of a cumulative sum, the old state, and D * x."""
    log2e = 1.44269504

    @T.prim_func
    def main(
        CB: T.Tensor((chunks, CHUNK, CHUNK), F16),
        X: T.Tensor((chunks * CHUNK, P), F16),
        dt: T.Tensor((chunks, CHUNK), F32),
        dA: T.Tensor((chunks, CHUNK), F32),
        C: T.Tensor((chunks * CHUNK, state_D), F16),
        State: T.Tensor((chunks, P, state_D), F16),
        Skip: T.Tensor((1,), F32),
        Output: T.Tensor((chunks * CHUNK, P), F32),
    ):
        with T.Kernel(chunks, threads=128) as bx:
            cb = T.alloc_fragment((CHUNK, CHUNK), F32)
            cb_cast = T.alloc_fragment((CHUNK, CHUNK), F16)
            x_shared = T.alloc_shared((CHUNK, P), F16)
            c_shared = T.alloc_shared((CHUNK, state_D), F16)
            state_shared = T.alloc_shared((P, state_D), F16)
            dt_shared = T.alloc_shared((CHUNK,), F32)
            dA_shared = T.alloc_shared((CHUNK,), F32)
            o = T.alloc_fragment((CHUNK, P), F32)
            T.copy(dt[bx, :], dt_shared)
            T.copy(dA[bx, :], dA_shared)
            T.copy(C[bx * CHUNK, 0], c_shared)
            T.copy(State[bx, :, :], state_shared)
            T.copy(X[bx * CHUNK, 0], x_shared)
            T.clear(o)
            T.gemm(c_shared, state_shared, o, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(CHUNK, P):
                o[i, j] *= T.exp2(dA_shared[i] * log2e)
            T.copy(CB[bx, :, :], cb)
            for i, j in T.Parallel(CHUNK, CHUNK):
                cb[i, j] *= T.exp2(dA_shared[i] * log2e - dA_shared[j] * log2e)
            for i, j in T.Parallel(CHUNK, CHUNK):
                cb[i, j] *= dt_shared[j]
            for i, j in T.Parallel(CHUNK, CHUNK):
                cb_cast[i, j] = T.if_then_else(i >= j, cb[i, j], 0)
            T.gemm(cb_cast, x_shared, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(CHUNK, P):
                o[i, j] += T.cast(x_shared[i, j], F32) * Skip[0]
            T.copy(o, Output[bx * CHUNK, 0])

    return main


KERNELS = {
    "chunk_state": Kernel(chunk_state, [normal(192, 64, dtype=BF16), normal(192, 64, dtype=BF16)]),
    "linear_chunked": Kernel(chunked, [normal(SEQ, 2, D) for _ in range(3)]),
    "linear_retention": Kernel(retention, [normal(2, SEQ, D, dtype=BF16) for _ in range(3)]),
    "linear_chunk_scan": Kernel(
        chunk_scan,
        [
            normal(2, 64, 64),
            normal(128, 32),
            positive(2, 64),
            normal(2, 64, dtype=F32, scale=0.25),
            normal(128, 32),
            normal(2, 32, 32),
            normal(1, dtype=F32),
        ],
    ),
}
