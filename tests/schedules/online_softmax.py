"""What the kernels here share: one block of scores joins the row sums.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import tilelang.language as T

LOG2E = 1.44269504
LOWEST = -(2.0**30)  # finite, and below every score


def tile_of(block: int) -> int:
    """The keys that a tile has for a block of so many: the tensor core takes 16 at a time."""
    return -(-block // 16) * 16


def step(rows: int, columns: int, scale: float, keep: bool) -> Any:
    """A macro; keep: the running maximum stays, otherwise each block's own replaces it."""

    @T.macro
    def joined(acc_s: Any, scores_max: Any, scores_max_prev: Any, scores_scale: Any, scores_sum: Any, logsum: Any):
        T.copy(scores_max, scores_max_prev)
        T.reduce_max(acc_s, scores_max, dim=1, clear=not keep)
        for i in T.Parallel(rows):
            scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
        for i, j in T.Parallel(rows, columns):
            acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
        T.reduce_sum(acc_s, scores_sum, dim=1)
        for i in T.Parallel(rows):
            logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]

    return joined
