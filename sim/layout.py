"""Which thread and register hold which element of a fragment, and the order of reductions that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["Fragment", "Reduction", "accumulator", "row_reduction"]


@dataclass(frozen=True, eq=False)
class Fragment:
    """A fragment [M, N]: the thread and the register (local index) of each element, int arrays [M, N]."""

    forward_thread: np.ndarray
    forward_index: np.ndarray


@dataclass(frozen=True, eq=False)
class Reduction:
    """How a row is reduced: each lane takes its own columns in order, then an XOR butterfly joins the lanes.

    columns: int [steps, lanes], the column a lane takes at a step; N where it has none (it then takes the identity)
    """

    columns: np.ndarray

    @property
    def lanes(self) -> int:
        return self.columns.shape[1]


@cache
def accumulator(M: int, N: int, threads: int) -> Fragment:
    """The accumulator of mma.sync m16n8 and of wgmma, its rows split over the warps (GemmWarpPolicy.FullRow).

    A warp holds 16 rows; its lane (row % 8) * 4 + (column % 8) // 2 holds columns 8n + 2t and 8n + 2t + 1 of the rows
    r and r + 8. Source: PTX ISA, matrix fragments; TileLang's layout inference gives the same for every schedule of the
    flash loop that it compiles (tests/test_layout.py lowers them). For other M and N the same formula is used.
    """
    i, j = np.meshgrid(np.arange(M), np.arange(N), indexing="ij")
    warps = max(1, threads // 32)
    thread = (i // 16 % warps) * 32 + i % 8 * 4 + j % 8 // 2
    index = (i // 16 // warps) * (-(-N // 8) * 4) + j // 8 * 4 + i % 16 // 8 * 2 + j % 2
    return Fragment(thread, index)


@cache
def row_reduction(M: int, N: int, threads: int) -> Reduction:
    """The order of a reduction over the columns of an accumulator fragment.

    The literal loop that TileLang writes walks a lane's registers 8-column group by group, first the even and then the
    odd ones: rv -> acc[(rv % (N/8)) * 4 + row half * 2 + rv / (N/8)]. It is the same for every row.
    """
    fragment = accumulator(M, N, threads)
    lanes, register = fragment.forward_thread[0] % 4, fragment.forward_index[0]
    order = [sorted(np.flatnonzero(lanes == t), key=lambda j: (register[j] % 4, register[j] // 4)) for t in range(4)]
    columns = np.full((max(map(len, order)), 4), N)
    for t, own in enumerate(order):
        columns[: len(own), t] = own
    return Reduction(columns)
