"""Kernels over rows of our own: norms, softmax, float8 casts, the greatest elements, a running sum.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import tilelang.language as T

from .entry import BF16, E4M3, F32, Kernel, normal

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


def layer_norm(M: int = 50, N: int = 96) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias of bfloat16; the last block has 2 rows of 8."""
    rows = 8

    @T.prim_func
    def main(
        X: T.Tensor((M, N), BF16), Weight: T.Tensor((N,), BF16), Bias: T.Tensor((N,), BF16), Y: T.Tensor((M, N), F32)
    ):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), F32)
            squares = T.alloc_fragment((rows, N), F32)
            mean = T.alloc_fragment((rows,), F32)
            variance = T.alloc_fragment((rows,), F32)
            T.copy(X[bx * rows, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(rows):
                mean[i] = mean[i] / N
            for i, j in T.Parallel(rows, N):
                squares[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
            T.reduce_sum(squares, variance, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = (x[i, j] - mean[i]) / T.sqrt(variance[i] / N + 1e-5) * Weight[j] + Bias[j]
            T.copy(x, Y[bx * rows, 0])

    return main


def online_softmax(M: int = 40, N: int = 200) -> Any:
    """Softmax of rows that come in blocks of 64 columns: two passes, the running sum in natural exponentials."""
    rows, block = 8, 64

    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((M, N), F32)):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, block), F32)
            top = T.alloc_fragment((rows,), F32)
            before = T.alloc_fragment((rows,), F32)
            part = T.alloc_fragment((rows,), F32)
            total = T.alloc_fragment((rows,), F32)
            T.fill(top, -T.infinity(F32))
            T.clear(total)
            for k in T.serial(T.ceildiv(N, block)):
                for i, j in T.Parallel(rows, block):
                    x[i, j] = T.if_then_else(k * block + j < N, X[bx * rows + i, k * block + j], -T.infinity(F32))
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i, j in T.Parallel(rows, block):
                    x[i, j] = T.exp(x[i, j] - top[i])
                T.reduce_sum(x, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp(before[i] - top[i]) + part[i]
            for k in T.serial(T.ceildiv(N, block)):
                T.copy(X[bx * rows : (bx + 1) * rows, k * block : (k + 1) * block], x)
                for i, j in T.Parallel(rows, block):
                    x[i, j] = T.exp(x[i, j] - top[i]) / total[i]
                T.copy(x, Y[bx * rows : (bx + 1) * rows, k * block : (k + 1) * block])

    return main


def cast_fp8_token(M: int = 20, N: int = 256, group: int = 128) -> Any:
    """bfloat16 rows in groups of 128 to float8 e4m3, with the scale of each group."""
    rows = 8

    @T.prim_func
    def main(X: T.Tensor((M, N), BF16), Y: T.Tensor((M, N), E4M3), Scale: T.Tensor((M, N // group), F32)):
        with T.Kernel(T.ceildiv(M, rows), N // group, threads=128) as (bx, by):
            x = T.alloc_fragment((rows, group), F32)
            top = T.alloc_fragment((rows,), F32)
            scale = T.alloc_fragment((rows,), F32)
            y = T.alloc_fragment((rows, group), E4M3)
            T.copy(X[bx * rows : (bx + 1) * rows, by * group : (by + 1) * group], x)
            T.reduce_absmax(x, top, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.max(top[i], 1e-4) * (1.0 / 448.0)
            for i, j in T.Parallel(rows, group):
                y[i, j] = T.clamp(x[i, j] / scale[i], -448.0, 448.0)
            T.copy(y, Y[bx * rows : (bx + 1) * rows, by * group : (by + 1) * group])
            for i in T.Parallel(rows):
                if bx * rows + i < M:
                    Scale[bx * rows + i, by] = scale[i]

    return main


def top_k(M: int = 40, N: int = 64, k: int = 3) -> Any:
    """The greatest three of each row and where they are: the maximum, its last place, then it is put out."""
    rows = 16

    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Values: T.Tensor((M, k), F32), Places: T.Tensor((M, k), "int32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), F32)
            at = T.alloc_fragment((rows, N), F32)
            top = T.alloc_fragment((rows,), F32)
            place = T.alloc_fragment((rows,), F32)
            T.copy(X[bx * rows, 0], x)
            for n in T.serial(k):
                T.reduce_max(x, top, dim=1)
                for i, j in T.Parallel(rows, N):
                    at[i, j] = T.if_then_else(x[i, j] == top[i], T.cast(j, F32), -1.0)
                T.reduce_max(at, place, dim=1)
                for i, j in T.Parallel(rows, N):
                    x[i, j] = T.if_then_else(T.cast(j, F32) == place[i], -T.infinity(F32), x[i, j])
                for i in T.Parallel(rows):
                    if bx * rows + i < M:
                        Values[bx * rows + i, n] = top[i]
                        Places[bx * rows + i, n] = T.cast(place[i], "int32")

    return main


def running_sum(M: int = 96, N: int = 48) -> Any:
    """The running sum of each row by hand: a row for each element of the loop, one column after another."""
    rows = 32

    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((M, N), F32)):
        with T.Kernel(T.ceildiv(M, rows), threads=32) as bx:
            total = T.alloc_fragment((rows,), F32)
            T.clear(total)
            for j in T.serial(N):
                for i in T.Parallel(rows):
                    total[i] = total[i] + X[bx * rows + i, j]
                for i in T.Parallel(rows):
                    Y[bx * rows + i, j] = total[i]

    return main


def columns(M: int = 64, N: int = 96) -> Any:
    """Sums, sums of magnitudes and least elements over rows: reductions along the first axis."""
    block = 32

    @T.prim_func
    def main(
        X: T.Tensor((M, N), F32), Sum: T.Tensor((N,), F32), Magnitude: T.Tensor((N,), F32), Least: T.Tensor((N,), F32)
    ):
        with T.Kernel(N // block, threads=64) as bx:
            x = T.alloc_fragment((M, block), F32)
            total = T.alloc_fragment((block,), F32)
            magnitude = T.alloc_fragment((block,), F32)
            least = T.alloc_fragment((block,), F32)
            T.copy(X[:, bx * block : (bx + 1) * block], x)
            T.reduce_sum(x, total, dim=0)
            T.reduce_abssum(x, magnitude, dim=0)
            T.reduce_min(x, least, dim=0)
            T.copy(total, Sum[bx * block : (bx + 1) * block])
            T.copy(magnitude, Magnitude[bx * block : (bx + 1) * block])
            T.copy(least, Least[bx * block : (bx + 1) * block])

    return main


def sums_both_ways() -> Any:
    """Products summed over rows and then over columns, each into shared memory: rounded once for both sums."""
    high, wide = 16, 16

    @T.prim_func
    def main(
        A: T.Tensor((8, high, wide), "float32"), B: T.Tensor((8, high, wide), "float32"),
        Rows: T.Tensor((8, high), "float32"), Columns: T.Tensor((8, wide), "float32"),
    ):  # fmt: skip
        with T.Kernel(8, threads=32) as bx:
            a, b, p = (T.alloc_fragment((1, high, wide), "float32") for _ in range(3))
            rows = T.alloc_shared((1, high), "float32")
            columns = T.alloc_shared((1, wide), "float32")
            T.copy(A[bx : bx + 1, :, :], a)
            T.copy(B[bx : bx + 1, :, :], b)
            for n, i, j in T.Parallel(1, high, wide):
                p[n, i, j] = a[n, i, j] * b[n, i, j]
            T.reduce_sum(p, rows, dim=-1)
            T.reduce_sum(p, columns, dim=-2)
            T.copy(rows, Rows[bx : bx + 1, :])
            T.copy(columns, Columns[bx : bx + 1, :])

    return main


def mixed_streams() -> Any:
    """A sum of products that starts from a product: that one is fused in the first turn of the unrolled loop."""
    streams = 4

    @T.prim_func
    def main(
        A: T.Tensor((M, streams, streams), "float32"), B: T.Tensor((M, streams, N), "float32"),
        C: T.Tensor((M, streams), "float32"), D: T.Tensor((M, N), "float32"),
        Y: T.Tensor((M, streams, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(M, threads=32) as bx:
            a = T.alloc_fragment((streams, streams), "float32")
            b, o = T.alloc_fragment((streams, N), "float32"), T.alloc_fragment((streams, N), "float32")
            c, d = T.alloc_fragment((streams,), "float32"), T.alloc_fragment((N,), "float32")
            T.copy(A[bx, 0, 0], a)
            T.copy(B[bx, 0, 0], b)
            T.copy(C[bx, 0], c)
            T.copy(D[bx, 0], d)
            for i, j in T.Parallel(streams, N):
                o[i, j] = c[i] * d[j]
                for k in T.serial(streams):
                    o[i, j] += a[k, i] * b[k, j]
            T.copy(o, Y[bx, 0, 0])

    return main


KERNELS = {
    "sums_both_ways": Kernel(sums_both_ways, [normal(8, 16, 16, dtype=F32), normal(8, 16, 16, dtype=F32)], made=2),
    "mixed_streams": Kernel(
        mixed_streams,
        [normal(M, 4, 4, dtype=F32), normal(M, 4, N, dtype=F32), normal(M, 4, dtype=F32), normal(M, N, dtype=F32)],
    ),
    "rms_norm": Kernel(rms_norm, [normal(M, N, dtype=F32)]),
    "softmax": Kernel(softmax, [normal(M, N)]),
    "log_sum_exp": Kernel(log_sum_exp, [normal(M, N, dtype=F32)]),
    "cast_fp8": Kernel(cast_fp8, [normal(M, N, dtype=F32)]),
    "masked_bias": Kernel(masked_bias, [normal(M, N), normal(N)]),
    "layer_norm": Kernel(layer_norm, [normal(50, 96, dtype=BF16), normal(96, dtype=BF16), normal(96, dtype=BF16)]),
    "online_softmax": Kernel(online_softmax, [normal(40, 200, dtype=F32, scale=3.0)]),
    "cast_fp8_token": Kernel(cast_fp8_token, [normal(20, 256, dtype=BF16)], made=2),
    "top_k": Kernel(top_k, [normal(40, 64, dtype=F32)], made=2),
    "columns": Kernel(columns, [normal(64, 96, dtype=F32)], made=3),
    "running_sum": Kernel(running_sum, [normal(96, 48, dtype=F32)]),
}
