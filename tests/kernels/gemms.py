"""Matrix products of our own: formats, split K, quantised operands, a convolution, sizes that are not known before.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from collections.abc import Callable
from typing import Any

import tilelang.language as T

from .entry import BF16, E4M3, E5M2, F16, F32, Kernel, normal, words_of, zeros

M, N = 96, 128  # rows and columns of most products


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


def integers(M: int = 80, N: int = 64, K: int = 128) -> Any:
    """int8 by int8 into int32; the last block has 16 rows of 64."""
    block_K = 64

    @T.prim_func
    def main(A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K), "int8"), C: T.Tensor((M, N), "int32")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, block_K), "int8")
            b = T.alloc_shared((64, block_K), "int8")
            acc = T.alloc_fragment((64, 64), "int32")
            T.clear(acc)
            for k in T.Pipelined(K // block_K, num_stages=2):
                T.copy(A[by * 64, k * block_K], a)
                T.copy(B[bx * 64, k * block_K], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    return main


def split_k(M: int = 64, N: int = 64, K: int = 256, splits: int = 2) -> Any:
    """Two blocks for each part of C, each over half of K: two atomic additions to a zero, the same in any order."""
    block_K, part = 32, K // splits

    @T.prim_func
    def main(A: T.Tensor((M, K), F16), B: T.Tensor((K, N), F16), C: T.Tensor((M, N), F32)):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), splits, threads=128) as (bx, by, bz):
            a = T.alloc_shared((64, block_K), F16)
            b = T.alloc_shared((block_K, 64), F16)
            acc = T.alloc_fragment((64, 64), F32)
            T.clear(acc)
            for k in T.Pipelined(part // block_K, num_stages=2):
                T.copy(A[by * 64, bz * part + k * block_K], a)
                T.copy(B[bz * part + k * block_K, bx * 64], b)
                T.gemm(a, b, acc)
            for i, j in T.Parallel(64, 64):
                T.atomic_add(C[by * 64 + i, bx * 64 + j], acc[i, j])

    return main


def bytes_weight(M: int = 48, N: int = 64, K: int = 128, group: int = 32) -> Any:
    """float16 by int8 weights that are converted and scaled, one scale for 32 of K, before the product."""
    block_K = 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), F16),
        B: T.Tensor((N, K), "int8"),
        Scale: T.Tensor((N, K // group), F16),
        C: T.Tensor((M, N), F16),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            a = T.alloc_shared((32, block_K), F16)
            packed = T.alloc_shared((64, block_K), "int8")
            b = T.alloc_shared((64, block_K), F16)
            acc = T.alloc_fragment((32, 64), F32)
            T.clear(acc)
            for k in T.serial(K // block_K):
                T.copy(A[by * 32, k * block_K], a)
                T.copy(B[bx * 64, k * block_K], packed)
                for i, j in T.Parallel(64, block_K):
                    b[i, j] = T.cast(packed[i, j], F16) * Scale[bx * 64 + i, (k * block_K + j) // group]
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 32, bx * 64])

    return main


def nibbles_weight(M: int = 48, N: int = 64, K: int = 128) -> Any:
    """bfloat16 by unsigned 4-bit weights, two in a byte: shift, mask, subtract 8, times 1/8."""
    block_K = 64

    @T.prim_func
    def main(A: T.Tensor((M, K), BF16), B: T.Tensor((N, K // 2), "uint8"), C: T.Tensor((M, N), F32)):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            a = T.alloc_shared((32, block_K), BF16)
            packed = T.alloc_shared((64, block_K // 2), "uint8")
            b = T.alloc_shared((64, block_K), BF16)
            acc = T.alloc_fragment((32, 64), F32)
            T.clear(acc)
            for k in T.serial(K // block_K):
                T.copy(A[by * 32, k * block_K], a)
                T.copy(B[bx * 64, k * (block_K // 2)], packed)
                for i, j in T.Parallel(64, block_K):
                    nibble = (T.cast(packed[i, j // 2], "int32") >> ((j % 2) * 4)) & 15
                    b[i, j] = T.cast(T.cast(nibble - 8, F32) * 0.125, BF16)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 32, bx * 64])

    return main


def convolution(height: int = 8, width: int = 8, channels: int = 16, filters: int = 64) -> Any:
    """A 3x3 convolution bordered by zeros: gathered copies of the image, a product for each place of the filter."""
    pixels = height * width

    @T.prim_func
    def main(
        X: T.Tensor((2, height, width, channels), F16),
        W: T.Tensor((3, 3, channels, filters), F16),
        Y: T.Tensor((2, height, width, filters), F16),
    ):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_shared((pixels, channels), F16)
            w = T.alloc_shared((channels, filters), F16)
            acc = T.alloc_fragment((pixels, filters), F32)
            T.clear(acc)
            for tap in T.serial(9):
                for i, c in T.Parallel(pixels, channels):
                    row = i // width + tap // 3 - 1
                    column = i % width + tap % 3 - 1
                    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                    x[i, c] = T.if_then_else(inside, X[bx, row, column, c], T.float16(0))
                T.copy(W[tap // 3, tap % 3, :, :], w)
                T.gemm(x, w, acc)
            for i, f in T.Parallel(pixels, filters):
                Y[bx, i // width, i % width, f] = acc[i, f]

    return main


def scaled(N: int = 64) -> Any:
    """alpha * A @ B + C where the rows, K and the integer alpha are not known before the call."""
    rows, K = T.dynamic("rows"), T.dynamic("K")

    @T.prim_func
    def main(
        A: T.Tensor((rows, K), F16),
        B: T.Tensor((K, N), F16),
        C: T.Tensor((rows, N), F32),
        alpha: T.int32,
        Y: T.Tensor((rows, N), F32),
    ):
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as bx:
            a = T.alloc_shared((32, 32), F16)
            b = T.alloc_shared((32, N), F16)
            acc = T.alloc_fragment((32, N), F32)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=1):
                T.copy(A[bx * 32, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, acc)
            for i, j in T.Parallel(32, N):
                if bx * 32 + i < rows:
                    Y[bx * 32 + i, j] = acc[i, j] * T.cast(alpha, F32) + C[bx * 32 + i, j]

    return main


def weighted_scores(dtype: str, halves: bool) -> Callable[[], Any]:
    """Scores of an index: relu(k . q_h) * weight_h summed over the heads, the accumulator seen as a 3-D tile.

    The products lie in an accumulator that the next gemm clears. halves: the heads lie on two warp groups.
    """
    heads, keys, threads = 32, 128, 256 if halves else 128

    @T.prim_func
    def main(
        Q: T.Tensor((2 * heads, 64), dtype), K: T.Tensor((3 * keys, 64), dtype), W: T.Tensor((2, heads), F32),
        Scale: T.Tensor((3 * keys,), F32), Y: T.Tensor((3 * keys, 2), F32),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            q = T.alloc_shared((2 * heads, 64), dtype)
            k = T.alloc_shared((keys, 64), dtype)
            s = T.alloc_fragment((keys, 2 * heads), F32)
            by_head = T.reshape(s, (keys, 2, heads))
            scale = T.alloc_fragment((keys,), F32)
            total = T.alloc_fragment((keys, 2), F32)
            weight = T.alloc_fragment((2, heads), F32)
            T.copy(Q, q)
            T.copy(W, weight)
            for n in T.serial(3):
                T.copy(K[n * keys, 0], k)
                T.copy(Scale[n * keys], scale)
                T.gemm(k, q, s, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
                for i, b, h in T.Parallel(keys, 2, heads):
                    by_head[i, b, h] = T.max(by_head[i, b, h] * scale[i], 0) * weight[b, h]
                T.reduce_sum(by_head, total, dim=-1)
                T.copy(total, Y[n * keys, 0])

    return lambda: main


def _pair(dtype: str, K: int = 128) -> list[Any]:
    return [normal(M, K, dtype=dtype), normal(N, K, dtype=dtype)]


def _scores(dtype: str) -> list[Any]:
    return [normal(64, 64, dtype=dtype), normal(384, 64, dtype=dtype), normal(2, 32, dtype=F32), normal(384, dtype=F32)]


KERNELS = {
    "gemm_float16": Kernel(gemm(F16), _pair(F16)),
    "gemm_float16_nn": Kernel(gemm(F16, transpose_B=False, out=F16), [normal(M, 128), normal(128, N)]),
    "gemm_bfloat16": Kernel(gemm(BF16), _pair(BF16)),
    "gemm_tf32": Kernel(gemm(F32, 32), _pair(F32, 64)),
    "gemm_e4m3": Kernel(gemm(E4M3), _pair(E4M3)),
    "gemm_e5m2": Kernel(gemm(E5M2), _pair(E5M2)),
    "gemm_int8": Kernel(integers, [words_of(80, 128, dtype="int8"), words_of(64, 128, dtype="int8")]),
    "gemm_split_k": Kernel(split_k, [normal(64, 256), normal(256, 64), zeros(64, 64)], made=0),
    "gemm_int8_weight": Kernel(bytes_weight, [normal(48, 128), words_of(64, 128, dtype="int8"), normal(64, 4)]),
    "gemm_uint4_weight": Kernel(nibbles_weight, [normal(48, 128, dtype=BF16), words_of(64, 64, dtype="uint8")]),
    "convolution_gathered": Kernel(convolution, [normal(2, 8, 8, 16), normal(3, 3, 16, 64)]),
    "weighted_scores_e4m3": Kernel(weighted_scores(E4M3, True), _scores(E4M3)),
    "weighted_scores_float16": Kernel(weighted_scores(F16, False), _scores(F16)),
    "gemm_dynamic": Kernel(scaled, [normal(72, 80), normal(80, 64), normal(72, 64, dtype=F32), 3]),
}
