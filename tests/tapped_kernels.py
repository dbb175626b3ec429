"""Small kernels for tests of taps: a product that a sum fuses, and a loop in a loop."""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def squares():
    @T.prim_func
    def main(X: T.Tensor((32, 64), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(2, threads=32) as bx:
            x = T.alloc_fragment((16, 64), "float32")
            squares = T.alloc_fragment((16, 64), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(X[bx * 16, 0], x)
            for i, j in T.Parallel(16, 64):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, total, dim=1)
            T.copy(total, Y[bx * 16])

    return main


@tilelang.jit(out_idx=[-1])
def nested():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((32,), "float32")
            y = T.alloc_fragment((32,), "float32")
            T.copy(X, x)
            for _m in T.serial(2):
                for i in T.Parallel(32):
                    x[i] = x[i] + 1.0
                for _n in T.serial(3):
                    for i in T.Parallel(32):
                        x[i] = x[i] * 2.0
                T.copy(x, y)
            for i in T.Parallel(32):
                x[i] = x[i] + y[i]
            T.copy(x, Y)

    return main
