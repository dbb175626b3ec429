"""Small kernels for tests of which thread block stores what: 6 blocks [2, 3] and a Y [48, 32] that starts as zeros."""

import tilelang.language as T


@T.prim_func
def tiles(X: T.Tensor((48, 32), "float32"), Y: T.Tensor((48, 32), "float32")):
    """A copy of tiles [34, 12] that hang over both edges of Y."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        x = T.alloc_shared((34, 12), "float32")
        T.copy(X[bx * 34, by * 12], x)
        T.copy(x, Y[bx * 34, by * 12])


@T.prim_func
def elements(X: T.Tensor((48, 32), "float32"), Y: T.Tensor((48, 32), "float32")):
    """A guard of two tests, a bound expression, an if with an else."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        for turn in T.serial(8):
            row = (bx * 3 + by) * 8 + turn
            for i in T.Parallel(32):
                if i <= turn and row != 11:
                    Y[row, i] = X[row, i] + 1.0
            if turn < 4:
                for i in T.Parallel(4):
                    Y[row, 31 - i] = 2.0
            else:
                for i in T.Parallel(2):
                    Y[row, 20 + i] = 3.0


@T.prim_func
def shared_rows(X: T.Tensor((48, 32), "float32"), Y: T.Tensor((48, 32), "float32")):
    """Atomic sums: thread blocks of the same y add to the same elements."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        for i, j in T.Parallel(16, 32):
            T.atomic_add(Y[by * 16 + i, j], X[bx * 16 + i, j])


@T.prim_func
def gathered(X: T.Tensor((48, 32), "float32"), rows: T.Tensor((6,), "int32"), Y: T.Tensor((48, 32), "float32")):
    """Rows that memory tells: any thread block may store to each, but only to its own columns."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        for j in T.Parallel(8):
            Y[rows[bx * 3 + by], by * 8 + j] = X[bx, j] + 1.0


@T.prim_func
def threads(X: T.Tensor((48, 32), "float32"), Y: T.Tensor((48, 32), "float32")):
    """What the simulator refuses: each thread stores two elements."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        tx = T.get_thread_binding()
        row = (bx * 3 + by) * 8
        for turn in T.serial(2):
            Y[row + turn * 4 + tx // 32, tx % 32] = X[row + turn * 4 + tx // 32, tx % 32]


@T.prim_func
def passed_on(X: T.Tensor((48, 32), "float32"), Y: T.Tensor((48, 32), "float32")):
    """A function that gets a pointer may store anywhere."""
    with T.Kernel(2, 3, threads=128) as (bx, by):
        T.call_extern("handle", "store", T.address_of(Y[bx * 24, by]))
