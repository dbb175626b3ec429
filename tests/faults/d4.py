"""D4: a gemm into an accumulator that nobody cleared.

The product adds to whatever the registers hold. TileLang issue 2936. Wrong: no word of the output can be known, and
the simulator names the fragment; it never gives a number. Right: T.clear before it, or clear_accum: 16 ones give 16.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import F16, F32

from .case import Case

M, N, K = 64, 64, 16


def kernel(cleared: str) -> Any:
    """cleared: "no", "before" (T.clear) or "by_gemm" (clear_accum)."""

    @T.prim_func
    def main(A: T.Tensor((M, K), F16), B: T.Tensor((N, K), F16), C: T.Tensor((M, N), F32)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, K), F16)
            b = T.alloc_shared((N, K), F16)
            acc = T.alloc_fragment((M, N), F32)
            T.copy(A, a)
            T.copy(B, b)
            if cleared == "before":
                T.clear(acc)
            T.gemm(a, b, acc, transpose_B=True, clear_accum=cleared == "by_gemm")
            T.copy(acc, C)

    return main


def ones(*shape: int) -> Any:
    """float16 words of 1."""
    from sim.formats import FP16

    return np.full(shape, 0x3C00, np.uint16), FP16


GIVEN = [ones(M, K), ones(N, K)]
CASES = {
    "d4_not_cleared": Case(Kernel(lambda: kernel("no"), GIVEN), undetermined="acc"),
    "d4_cleared_before": Case(Kernel(lambda: kernel("before"), GIVEN)),
    "d4_cleared_by_gemm": Case(Kernel(lambda: kernel("by_gemm"), GIVEN)),
}
