"""Small kernels in the forms that a user may write one, for tests of the command line."""

import tilelang
import tilelang.language as T

rows = T.dynamic("rows")


@tilelang.jit
def eager(X, Y, factor: float = 2.0):
    """An eager kernel: sizes are T.const, Y is a parameter that is only written."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], T.float16]
    Y: T.Tensor[[M, N], T.float16]
    with T.Kernel(T.ceildiv(M, 8), threads=128) as bx:
        for i, j in T.Parallel(8, N):
            Y[bx * 8 + i, j] = X[bx * 8 + i, j] * factor


@tilelang.jit(out_idx=[-1])
def lazy(n, dtype="float16"):
    """A builder that returns a PrimFunc; the call makes Y."""

    @T.prim_func
    def main(X: T.Tensor((n, 16), dtype), Y: T.Tensor((n, 16), dtype)):
        with T.Kernel(T.ceildiv(n, 8), threads=128) as bx:
            for i, j in T.Parallel(8, 16):
                Y[bx * 8 + i, j] = X[bx * 8 + i, j] + X[bx * 8 + i, j]

    return main


def plain(n):
    """A plain function that returns a PrimFunc."""
    return lazy.get_tir(n)


@T.prim_func
def gather(
    X: T.Tensor((rows, 4), "float32"),
    Index: T.Tensor((8,), "int32"),
    Y: T.Tensor((8, 4), "float32"),
    Next: T.Tensor((8,), "int32"),
):
    """A PrimFunc with a symbolic size, indices, and an output of integers."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 4):
            Y[i, j] = X[Index[i], j]
        for i in T.Parallel(8):
            Next[i] = Index[i] + 1


@T.prim_func
def in_place(X: T.Tensor((16, 16), "bfloat16")):
    """Reads and writes its one tensor."""
    with T.Kernel(2, threads=128) as bx:
        for i, j in T.Parallel(8, 16):
            X[bx * 8 + i, j] = X[bx * 8 + i, j] + X[bx * 8 + i, j]


@T.prim_func
def shifted(X: T.Tensor((16, 16), "int8"), n: T.int32, Y: T.Tensor((16, 16), "int8")):
    """Moves rows by a scalar parameter; rows that X lacks are 0."""
    with T.Kernel(2, threads=128) as bx:
        for i, j in T.Parallel(8, 16):
            Y[bx * 8 + i, j] = X[bx * 8 + i + n, j]


@T.prim_func
def half_written(X: T.Tensor((16, 16), "float16"), Y: T.Tensor((16, 16), "float16")):
    """Leaves the last 8 rows of Y as they are."""
    with T.Kernel(1, threads=128):
        T.copy(X[0:8, 0:16], Y[0:8, 0:16])


@T.prim_func
def reads_only(X: T.Tensor((16, 16), "float16")):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((16, 16), "float16")
        T.copy(X, x)


@T.prim_func
def with_threads(X: T.Tensor((8, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
    """What the simulator refuses."""
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        Y[tx % 8, tx // 8] = X[tx % 8, tx // 8]


def broken(n):
    raise ValueError(f"{n} is not\na size")


def number(n):
    return n


@T.prim_func
def adds(X: T.Tensor((4, 16), "float32"), Y: T.Tensor((2, 16), "float32")):
    """Two thread blocks add to each row of Y."""
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(16):
            T.atomic_add(Y[bx % 2, i], X[bx, i])


@T.prim_func
def half_known(X: T.Tensor((4, 16), "float32"), Y: T.Tensor((4, 16), "float32")):
    """Each thread block stores a row, of which half is what nobody wrote."""
    with T.Kernel(4, threads=32) as bx:
        x = T.alloc_shared((16,), "float32")
        for i in T.Parallel(8):
            x[i] = X[bx, i]
        T.copy(x, Y[bx, 0])


@T.prim_func
def conflicting(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float32")):
    """Its T.Parallel loop wants two layouts of one fragment."""
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((64, 64), "float16")
        y = T.alloc_fragment((64, 64), "float32")
        most = T.alloc_fragment((64,), "float32")
        T.copy(X, x)
        T.clear(y)
        T.gemm(x, x, y)
        T.reduce_sum(y, most, dim=1)
        for i, j in T.Parallel(64, 64):
            y[i, j] = y[i, j] - most[j]
        T.copy(y, Y)
