"""Kernels of our own for single operators: scans, reductions into another dtype, im2col, memory of the whole grid.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from collections.abc import Callable
from typing import Any

import tilelang.language as T

from .entry import BF16, E4M3, F16, F32, Kernel, normal, words_of, zeros

M, N = 64, 80  # a scan's last segment of 32 is not full


def cumsum(dim: int, reverse: bool, dtype: str = F32) -> Callable[[], Any]:
    """Running sums of a tile along an axis."""

    def make() -> Any:
        @T.prim_func
        def main(X: T.Tensor((2 * M, N), dtype), Y: T.Tensor((2 * M, N), dtype)):
            with T.Kernel(2, threads=128) as bx:
                x = T.alloc_shared((M, N), dtype)
                T.copy(X[bx * M, 0], x)
                T.cumsum(x, dim=dim, reverse=reverse)
                T.copy(x, Y[bx * M, 0])

        return main

    return make


def transposed_running_max() -> Any:
    """A tile transposed in shared memory, then running maxima along its rows, NaN and all."""

    @T.prim_func
    def main(X: T.Tensor((2 * M, 64), "float16"), Y: T.Tensor((2, 64, M), "float16")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_shared((M, 64), "float16")
            y = T.alloc_shared((64, M), "float16")
            T.copy(X[bx * M, 0], x)
            T.transpose(x, y)
            T.cummax(y, dim=1)
            T.copy(y, Y[bx, 0, 0])

    return main


def max_with_nan() -> Any:
    """nan_propagate: NaN is not dropped."""

    @T.prim_func
    def main(X: T.Tensor((2 * M, 128), "bfloat16"), Y: T.Tensor((2 * M,), "bfloat16")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_fragment((M, 128), "bfloat16")
            top = T.alloc_fragment((M,), "bfloat16")
            T.copy(X[bx * M, 0], x)
            T.reduce_max(x, top, dim=1, nan_propagate=True)
            T.copy(top, Y[bx * M])

    return main


def histogram() -> Any:
    """Counts of values by atomics on integers, and the greatest value: in any order the same."""

    @T.prim_func
    def main(X: T.Tensor((4 * M, 128), "int32"), Y: T.Tensor((64,), "int32"), Z: T.Tensor((1,), "int32")):
        with T.Kernel(4, threads=128) as bx:
            for i, j in T.Parallel(M, 128):
                T.atomic_add(Y[X[bx * M + i, j] & 63], 1)
                T.atomic_max(Z[0], X[bx * M + i, j] & 1023)

    return main


def reduce_into_float32(op: str, dtype: str, dim: int) -> Callable[[], Any]:
    """A reduction of narrow values into float32, over columns or over rows, onto what the target holds."""
    kept = 128 if dim == 0 else M

    def make() -> Any:
        @T.prim_func
        def main(X: T.Tensor((2 * M, 128), dtype), Y: T.Tensor((2, kept), "float32")):
            with T.Kernel(2, threads=128) as bx:
                x = T.alloc_fragment((M, 128), dtype)
                out = T.alloc_fragment((kept,), "float32")
                T.copy(X[bx * M, 0], x)
                T.fill(out, 0.5)
                getattr(T, "reduce_" + op)(x, out, dim=dim, **({} if op == "abssum" else {"clear": False}))
                T.copy(out, Y[bx, 0])

        return main

    return make


def best_index() -> Any:
    """The greatest of each row and the last of its columns: a reduction of integers."""

    @T.prim_func
    def main(X: T.Tensor((2 * M, 128), "float32"), Y: T.Tensor((2 * M,), "int32")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_fragment((M, 128), "float32")
            top = T.alloc_fragment((M,), "float32")
            column = T.alloc_fragment((M, 128), "int32")
            best = T.alloc_fragment((M,), "int32")
            T.copy(X[bx * M, 0], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(M, 128):
                column[i, j] = T.if_then_else(x[i, j] == top[i], j, -1)
            T.reduce_max(column, best, dim=1)
            T.copy(best, Y[bx * M])

    return main


def convolution() -> Any:
    """3x3 weights over an image with padding 1 and stride 2: im2col, then a gemm."""
    batch, size, channels, filters, block_K = 2, 16, 32, 64, 32
    out = size // 2
    rows = batch * out * out

    @T.prim_func
    def main(
        X: T.Tensor((batch, size, size, channels), "float16"),
        W: T.Tensor((9 * channels, filters), "float16"),
        Y: T.Tensor((rows, filters), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 64), threads=128) as bx:
            x = T.alloc_shared((64, block_K), "float16")
            w = T.alloc_shared((block_K, filters), "float16")
            acc = T.alloc_fragment((64, filters), "float32")
            T.clear(acc)
            for k in T.Pipelined(9 * channels // block_K, num_stages=2):
                T.im2col(X, x, bx, k, 3, 2, 1, 1)
                T.copy(W[k * block_K, 0], w)
                T.gemm(x, w, acc)
            T.copy(acc, Y[bx * 64, 0])

    return main


def gated() -> Any:
    """x * sigmoid(x), in float32."""

    @T.prim_func
    def main(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_fragment((M // 2, 128), "float32")
            T.copy(X[bx * (M // 2), 0], x)
            for i, j in T.Parallel(M // 2, 128):
                x[i, j] = x[i, j] * T.sigmoid(x[i, j] * 8.0)
            T.copy(x, Y[bx * (M // 2), 0])

    return main


def two_launches() -> Any:
    """Partial sums of columns in memory of the whole grid, joined by a second launch."""

    @T.prim_func
    def main(X: T.Tensor((4 * M, 128), "float16"), Y: T.Tensor((128,), "float32")):
        parts = T.alloc_global((4, 128), "float32")
        with T.Kernel(4, threads=128) as bx:
            x = T.alloc_fragment((M, 128), "float32")
            out = T.alloc_fragment((128,), "float32")
            T.copy(X[bx * M, 0], x)
            T.reduce_sum(x, out, dim=0)
            T.copy(out, parts[bx, 0])
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((4, 128), "float32")
            out = T.alloc_fragment((128,), "float32")
            T.copy(parts, x)
            T.reduce_sum(x, out, dim=0)
            T.copy(out, Y)

    return main


def launch_after_a_smaller_one() -> Any:
    """A first launch of two thread blocks stores to a tensor that is given; the second, of 32, reads it."""

    @T.prim_func
    def main(X: T.Tensor((32, 64), "float32"), Sums: T.Tensor((2,), "float32"), Y: T.Tensor((32, 64), "float32")):
        with T.Kernel(2, threads=64) as bx:
            x = T.alloc_fragment((1, 16 * 64), "float32")
            out = T.alloc_fragment((1,), "float32")
            for _i, j in T.Parallel(1, 16 * 64):
                x[_i, j] = X[bx * 16 + j // 64, j % 64]
            T.reduce_sum(x, out, dim=1)
            for i in T.Parallel(1):
                Sums[bx + i] = out[i]
        with T.Kernel(32, threads=64) as bx:
            for j in T.Parallel(64):
                Y[bx, j] = X[bx, j] + Sums[bx % 2]

    return main


def variables() -> Any:
    """A variable of each thread inside T.Parallel, and a loop whose extent differs between elements."""

    @T.prim_func
    def main(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_fragment((M // 2, 128), "float32")
            T.copy(X[bx * (M // 2), 0], x)
            for i, j in T.Parallel(M // 2, 128):
                total = T.alloc_var("float32")
                total = 0.0
                for k in T.serial(i % 4 + 1):
                    total = total + X[bx * (M // 2) + i, (j + k) % 128]
                x[i, j] = total
            T.copy(x, Y[bx * (M // 2), 0])

    return main


def tfloat32() -> Any:
    """float32 stored as tfloat32 in shared memory, multiplied, and read back as float32."""

    @T.prim_func
    def main(X: T.Tensor((M, 64), "float32"), W: T.Tensor((64, 64), T.tfloat32), Y: T.Tensor((M, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((M, 64), "float32")
            x_shared = T.alloc_shared((M, 64), T.tfloat32)
            w_shared = T.alloc_shared((64, 64), T.tfloat32)
            acc = T.alloc_fragment((M, 64), "float32")
            T.copy(X, x)
            T.copy(x, x_shared)
            T.copy(W, w_shared)
            T.clear(acc)
            T.gemm(x_shared, w_shared, acc, transpose_B=True)
            for i, j in T.Parallel(M, 64):
                acc[i, j] = T.max(acc[i, j], T.Cast("float32", x_shared[i, j]))
            T.copy(acc, Y)

    return main


KERNELS: dict[str, Kernel] = {
    "cumsum_columns": Kernel(cumsum(1, False), [normal(2 * M, N, dtype=F32)]),
    "cumsum_columns_reverse": Kernel(cumsum(1, True), [normal(2 * M, N, dtype=F32)]),
    "cumsum_rows_float16": Kernel(cumsum(0, False, F16), [normal(2 * M, N, dtype=F16)]),
    "reduce_sum_e4m3": Kernel(reduce_into_float32("sum", E4M3, 0), [normal(2 * M, 128, dtype=E4M3)]),
    "reduce_sum_bfloat16": Kernel(reduce_into_float32("sum", BF16, 1), [normal(2 * M, 128, dtype=BF16)]),
    "reduce_absmax_bfloat16": Kernel(reduce_into_float32("absmax", BF16, 1), [normal(2 * M, 128, dtype=BF16)]),
    "reduce_abssum_float16": Kernel(reduce_into_float32("abssum", F16, 1), [normal(2 * M, 128, dtype=F16)]),
    "transposed_running_max": Kernel(transposed_running_max, [normal(2 * M, 64)]),
    "max_with_nan": Kernel(max_with_nan, [normal(2 * M, 128, dtype=BF16)]),
    "histogram": Kernel(
        histogram, [words_of(4 * M, 128, dtype="int32"), zeros(64, dtype="int32"), zeros(1, dtype="int32")], 0
    ),
    "best_index": Kernel(best_index, [normal(2 * M, 128, dtype=F32)]),
    "convolution": Kernel(convolution, [normal(2, 16, 16, 32), normal(9 * 32, 64)]),
    "gated": Kernel(gated, [normal(M, 128, dtype=F32)]),
    "two_launches": Kernel(two_launches, [normal(4 * M, 128)]),
    "launch_after_a_smaller_one": Kernel(
        launch_after_a_smaller_one, [normal(32, 64, dtype=F32), zeros(2), zeros(32, 64)], made=0
    ),
    "tfloat32": Kernel(tfloat32, [normal(M, 64, dtype=F32), normal(64, 64, dtype=F32)]),
    "variables": Kernel(variables, [normal(M, 128, dtype=F32)]),
}
