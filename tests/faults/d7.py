"""D7: a copy into a fragment that TileLang gives to the producer's warps alone.

TileLang 0.1.15 splits a pipelined loop on Hopper into warps that load and warps that compute, and counts the copy of
`scale`, from global memory into registers, as a load: the computing warps read registers that nobody wrote. Wrong: no
word of the output can be known. Right: the same loop without stages, or the copy through shared memory.
"""

from typing import Any

import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32, normal

from .case import Case

M, N, BLOCK = 64, 512, 128


def kernel(stages: int, shared: bool = False) -> Any:
    """The rows of X times the scale of their column, summed over blocks of columns."""

    @T.prim_func
    def main(X: T.Tensor((M, N), F16), Scale: T.Tensor((N,), F32), Y: T.Tensor((M, BLOCK), F32)):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((M, BLOCK), F16)
            scale = T.alloc_shared((BLOCK,), F32) if shared else T.alloc_fragment((BLOCK,), F32)
            total = T.alloc_fragment((M, BLOCK), F32)
            T.clear(total)
            for n in T.Pipelined(N // BLOCK, num_stages=stages):
                T.copy(X[0, n * BLOCK], x)
                T.copy(Scale[n * BLOCK], scale)
                for i, j in T.Parallel(M, BLOCK):
                    total[i, j] = total[i, j] + T.Cast(F32, x[i, j]) * scale[j]
            T.copy(total, Y)

    return main


GIVEN = [normal(M, N), normal(N, dtype=F32)]
CASES = {
    "d7_producer_alone": Case(Kernel(lambda: kernel(2), GIVEN), undetermined="scale"),
    "d7_without_stages": Case(Kernel(lambda: kernel(0), GIVEN)),
    "d7_through_shared": Case(Kernel(lambda: kernel(2, shared=True), GIVEN)),
}
