"""Root mean square norm of the rows of a matrix: a row of zeros, as padding has, gives NaN.

python -m crosscheck run examples/rms_norm_fault.py:rms_norm --args "64, 256" --inputs X=zeros
"""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1], pass_configs={"tl.enable_fast_math": True})
def rms_norm(rows, columns, block=4):
    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            squares = T.alloc_fragment((block, columns), "float32")
            scale = T.alloc_fragment((block,), "float32")
            T.copy(X[bx * block, 0], x)
            for i, j in T.Parallel(block, columns):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block):
                scale[i] = T.rsqrt(scale[i] / columns)
            for i, j in T.Parallel(block, columns):
                x[i, j] = x[i, j] * scale[i]
            T.copy(x, Y[bx * block, 0])

    return main
