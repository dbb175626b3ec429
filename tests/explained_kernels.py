"""Small kernels whose bad values go different ways, for tests of `explain`."""

import tilelang.language as T


@T.prim_func
def capped(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16, 32), "float32")):
    """Squares overflow, and the least of them and 1 hides it."""
    with T.Kernel(2, threads=32) as bx:
        x = T.alloc_fragment((8, 32), "float32")
        T.copy(X[bx * 8, 0], x)
        for i, j in T.Parallel(8, 32):
            x[i, j] = x[i, j] * x[i, j]
        for i, j in T.Parallel(8, 32):
            x[i, j] = T.min(x[i, j], 1.0)
        T.copy(x, Y[bx * 8, 0])


@T.prim_func
def two_launches(
    X: T.Tensor((4, 32), "float32"),
    Sum: T.Tensor((4,), "float32"),
    Y: T.Tensor((4, 32), "float32"),
):
    """The second launch, of more thread blocks, divides by what the first one summed: a row of zeros gives NaN."""
    with T.Kernel(2, threads=32) as bx:
        x = T.alloc_fragment((2, 32), "float32")
        total = T.alloc_fragment((2,), "float32")
        T.copy(X[bx * 2, 0], x)
        T.reduce_sum(x, total, dim=1)
        T.copy(total, Sum[bx * 2])
    with T.Kernel(4, threads=32) as bx:
        y = T.alloc_fragment((1, 32), "float32")
        total = T.alloc_fragment((1,), "float32")
        T.copy(X[bx, 0], y)
        for i in T.Parallel(1):
            total[i] = Sum[bx + i]
        for i, j in T.Parallel(1, 32):
            y[i, j] = y[i, j] / total[i]
        T.copy(y, Y[bx, 0])
