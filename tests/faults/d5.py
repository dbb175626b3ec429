"""D5: absmax and clamp meet NaN and infinity in a per-row cast to float8 e4m3.

reduce_absmax drops NaN, and what clamp makes of NaN depends on TileLang's version: 0.1.15 keeps it. An infinity makes
the scale of its row inf, so that every other element of the row becomes 0 and its own inf / inf NaN. TileLang issue
3024 and the per-token cast example. Wrong: rows [1, -2, NaN, 4] and [1, -2, inf, 4]. Right: the scale from the finite
elements; the infinity is clamped to 448, NaN stays NaN, and no other element is hurt.
"""

from typing import Any

import numpy as np
import tilelang.language as T
from kernels import Kernel
from kernels.entry import E4M3, F32

from .case import Case

ROWS, COLUMNS = 16, 64
GREATEST = 2.0**100  # of a finite element


def kernel(finite: bool) -> Any:
    """finite: only finite elements take part in the scale."""
    rows = 8

    @T.prim_func
    def main(X: T.Tensor((ROWS, COLUMNS), F32), Scale: T.Tensor((ROWS,), F32), Y: T.Tensor((ROWS, COLUMNS), E4M3)):
        with T.Kernel(ROWS // rows, threads=128) as bx:
            x = T.alloc_fragment((rows, COLUMNS), F32)
            taken = T.alloc_fragment((rows, COLUMNS), F32)
            scale = T.alloc_fragment((rows,), F32)
            T.copy(X[bx * rows, 0], x)
            for i, j in T.Parallel(rows, COLUMNS):
                taken[i, j] = T.if_then_else(T.abs(x[i, j]) < GREATEST, x[i, j], 0) if finite else x[i, j]
            T.reduce_absmax(taken, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.max(scale[i], 1e-4) / 448.0
            for i, j in T.Parallel(rows, COLUMNS):
                x[i, j] = T.clamp(x[i, j] / scale[i], -448.0, 448.0)
            T.copy(scale, Scale[bx * rows])
            T.copy(x, Y[bx * rows, 0])

    return main


def given() -> list[Any]:
    """Row 0 is 1, -2, NaN, 4 and row 1 is 1, -2, inf, 4, then zeros; the other rows are 1, -2, 3, 4, then zeros."""
    from sim.formats import FP32

    x = np.zeros((ROWS, COLUMNS), np.float32)
    x[:, :4] = 1, -2, 3, 4
    words = x.view(np.uint32)
    words[0, 2], words[1, 2] = 0x7FC00000, 0x7F800000
    return [(words, FP32)]


_BOTH = (np.array([0, 1]), np.array([2, 2]))
CASES = {
    "d5_all": Case(Kernel(lambda: kernel(False), given(), made=2), nan=_BOTH),
    "d5_finite": Case(Kernel(lambda: kernel(True), given(), made=2), nan=np.s_[0, 2]),
}
