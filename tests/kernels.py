"""TileLang kernels of our own from several families, to hold the walk of a PrimFunc to a GPU's words.

Each entry of KERNELS is (PrimFunc maker, shapes and dtypes of its inputs); the output is the last parameter.
Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from collections.abc import Callable
from typing import Any

import tilelang.language as T

M, N = 96, 128  # rows and columns of most inputs


def rms_norm() -> Any:
    """x / sqrt(mean(x^2)): the squares are fused into the sum that reads them."""
    rows = 4

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            squares = T.alloc_fragment((rows, N), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows : (bx + 1) * rows, :], x)
            for i, j in T.Parallel(rows, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, total, dim=1)
            for i in T.Parallel(rows):
                total[i] = T.rsqrt(total[i] / N + 1e-6)
            for i, j in T.Parallel(rows, N):
                x[i, j] = x[i, j] * total[i]
            T.copy(x, Y[bx * rows : (bx + 1) * rows, :])

    return main


def softmax() -> Any:
    """exp2(x - max) / sum, by rows of float16."""
    rows = 8

    @T.prim_func
    def main(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            top = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows : (bx + 1) * rows, :], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.exp2(x[i, j] * 1.44269504 - top[i] * 1.44269504)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * rows : (bx + 1) * rows, :])

    return main


def log_sum_exp() -> Any:
    """log2(sum(exp2(x - max))) + max, the log-sum-exp of attention kernels."""
    rows = 16

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            top = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows : (bx + 1) * rows, :], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.exp2(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i in T.Parallel(rows):
                total[i] = T.log2(total[i]) + top[i]
            T.copy(total, Y[bx * rows : (bx + 1) * rows])

    return main


def gemm(dtype: str, block_K: int = 64, transpose_B: bool = True, out: str = "float32") -> Callable[[], Any]:
    """A @ B.T or A @ B in 64x64 blocks, with a ragged edge in M."""
    K = 2 * block_K

    def make() -> Any:
        b_shape, b_tile = ((N, K), (64, block_K)) if transpose_B else ((K, N), (block_K, 64))

        @T.prim_func
        def main(A: T.Tensor((M, K), dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((M, N), out)):
            with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
                A_shared = T.alloc_shared((64, block_K), dtype)
                B_shared = T.alloc_shared(b_tile, dtype)
                acc = T.alloc_fragment((64, 64), "float32")
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                    T.copy(A[by * 64, k * block_K], A_shared)
                    if transpose_B:
                        T.copy(B[bx * 64, k * block_K], B_shared)
                    else:
                        T.copy(B[k * block_K, bx * 64], B_shared)
                    T.gemm(A_shared, B_shared, acc, transpose_B=transpose_B)
                T.copy(acc, C[by * 64, bx * 64])

        return main

    return make


def cast_fp8() -> Any:
    """Per-row scaling to float8: absmax, clamp, division."""
    rows = 8

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float8_e4m3fn")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            top = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows : (bx + 1) * rows, :], x)
            T.reduce_absmax(x, top, dim=1)
            for i in T.Parallel(rows):
                top[i] = T.max(top[i], 1e-4) / 448.0
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.clamp(x[i, j] / top[i], -448.0, 448.0)
            T.copy(x, Y[bx * rows : (bx + 1) * rows, :])

    return main


def masked_bias() -> Any:
    """A select that hides NaN, an exp, and a sum of columns in float16."""
    rows = 16

    @T.prim_func
    def main(X: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float16")
            T.copy(X[bx * rows : (bx + 1) * rows, :], x)
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.if_then_else(bx * rows + i >= j, x[i, j] + B[j], T.float16(0))
            T.copy(x, Y[bx * rows : (bx + 1) * rows, :])

    return main


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


F16, F32, BF16 = "float16", "float32", "bfloat16"
KERNELS: dict[str, tuple[Callable[[], Any], list[tuple[tuple[int, ...], str]]]] = {
    "rms_norm": (rms_norm, [((M, N), F32)]),
    "softmax": (softmax, [((M, N), F16)]),
    "log_sum_exp": (log_sum_exp, [((M, N), F32)]),
    "gemm_float16": (gemm(F16), [((M, 128), F16), ((N, 128), F16)]),
    "gemm_float16_nn": (gemm(F16, transpose_B=False, out=F16), [((M, 128), F16), ((128, N), F16)]),
    "gemm_bfloat16": (gemm(BF16), [((M, 128), BF16), ((N, 128), BF16)]),
    "gemm_tf32": (gemm(F32, 32), [((M, 64), F32), ((N, 64), F32)]),
    "gemm_e4m3": (gemm("float8_e4m3fn"), [((M, 128), "float8_e4m3fn"), ((N, 128), "float8_e4m3fn")]),
    "gemm_e5m2": (gemm("float8_e5m2"), [((M, 128), "float8_e5m2"), ((N, 128), "float8_e5m2")]),
    "cast_fp8": (cast_fp8, [((M, N), F32)]),
    "masked_bias": (masked_bias, [((M, N), F16), ((N,), F16)]),
    "chunk_state": (chunk_state, [((192, 64), BF16), ((192, 64), BF16)]),
}


def inputs(name: str) -> list[tuple[Any, Any]]:
    """Words and format of the inputs of a kernel: about normal, and the same on every machine."""
    import numpy as np

    from sim.arith import convert
    from sim.formats import FP32, format_named

    made = []
    for n, (shape, dtype) in enumerate(KERNELS[name][1]):
        bits = np.random.PCG64(np.random.SeedSequence([948, n]))
        raw = bits.random_raw(int(np.prod(shape)) * 3).reshape(-1, 3)
        parts = (raw[..., None] >> (np.uint64(16) * np.arange(4, dtype=np.uint64))) & np.uint64(0xFFFF)
        total = parts.astype(np.int64).reshape(-1, 12).sum(axis=1) - 12 * 65535 // 2
        words = np.ldexp(total.astype(np.float64), -15).astype(np.float32).view(np.uint32).reshape(shape)
        fmt = format_named(dtype)
        made.append((convert(words, FP32, fmt), fmt))
    return made
