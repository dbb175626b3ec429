"""Float64 attention to measure errors against; no part of the exact path, so it may use the host's exp and matmul."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.formats import Format, values

__all__ = ["Errors", "attention", "errors"]

BLOCK_BYTES = 32 << 20  # float64 scores of one block of query rows


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    fmt: Format,
    causal: bool = False,
    step: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """softmax(q k^T / sqrt(dim)) v in float64, [batch, seq_q, heads, dim].

    q [batch, seq_q, heads, dim], k and v [batch, seq_kv, heads_kv, dim]: words of `fmt`; query head h reads key head
    h // (heads // heads_kv). causal: the last query sees the last key. `step` is called after each block of rows.
    """
    batches, seq_q, heads, dim = q.shape
    seq_kv, group = k.shape[1], heads // k.shape[2]
    out = np.empty((batches, seq_q, heads, dim))
    rows = max(1, BLOCK_BYTES // (8 * max(seq_kv, 1)))
    for batch in range(batches):
        for head in range(heads):
            keys = values(k[batch, :, head // group], fmt)
            vals = values(v[batch, :, head // group], fmt)
            for start in range(0, seq_q, rows):
                block = values(q[batch, start : start + rows, head], fmt)
                last = np.arange(start, start + len(block)) + (seq_kv - seq_q) if causal else None
                out[batch, start : start + rows, head] = _rows(block, keys, vals, last)
                step()
    return out


def _rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """Attention of query rows [rows, dim] over keys [keys, dim]; `last` is the last key that each row sees."""
    with np.errstate(all="ignore"):
        scores = (q @ k.T) / np.sqrt(q.shape[1])
        if last is not None:
            scores[np.arange(len(k))[None, :] > last[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        unseen = np.zeros(v.shape, bool) if last is None else ~np.isfinite(v)
        if not unseen.any():
            return (weights @ v) / weights.sum(axis=1, keepdims=True)
        return _seen_only(weights, v, last) / weights.sum(axis=1, keepdims=True)


def _seen_only(weights: np.ndarray, v: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """weights @ v where an infinite or NaN value that a row does not see takes no part (0 * inf would be NaN)."""
    out = weights @ np.where(np.isfinite(v), v, 0.0)
    for key, column in np.argwhere(~np.isfinite(v)):
        seen = slice(None) if last is None else last >= key
        out[seen, column] += weights[seen, key] * v[key, column]
    return out


@dataclass(frozen=True)
class Errors:
    """How far an output is from float64, over the elements where both are finite.

    size, compared:   elements, and those where both are finite
    max_abs, mean_abs: absolute error
    max_ulp, mean_ulp: error in units of the output format's spacing at the reference value; 0.5 is a perfect rounding
    worst:            index of the largest error in ULP, None if nothing was compared
    nan, nan_reference, nan_both: NaN in the output, in the reference, in both
    infinite, infinite_reference: infinities in the output, in the reference
    """

    size: int
    compared: int
    max_abs: float
    mean_abs: float
    max_ulp: float
    mean_ulp: float
    worst: tuple[int, ...] | None
    nan: int
    nan_reference: int
    nan_both: int
    infinite: int
    infinite_reference: int

    def to_json(self) -> dict[str, Any]:
        """The record as JSON types."""
        return asdict(self) | {"worst": None if self.worst is None else list(self.worst)}


def errors(words: np.ndarray, fmt: Format, reference: np.ndarray) -> Errors:
    """The error of output `words` of `fmt` against float64 `reference`, same shape; NaN is left out and counted."""
    out = values(words, fmt)
    nan, nan_reference = np.isnan(out), np.isnan(reference)
    both = np.isfinite(out) & np.isfinite(reference)
    absolute = np.where(both, np.abs(np.where(both, out, 0.0) - np.where(both, reference, 0.0)), 0.0)
    ulp = absolute / _spacing(np.where(both, reference, 0.0), fmt)
    compared = int(both.sum())
    worst = tuple(int(i) for i in np.unravel_index(int(ulp.argmax()), ulp.shape)) if compared else None
    return Errors(
        size=out.size,
        compared=compared,
        max_abs=float(absolute.max(initial=0.0)),
        mean_abs=float(absolute.sum() / max(compared, 1)),
        max_ulp=float(ulp.max(initial=0.0)),
        mean_ulp=float(ulp.sum() / max(compared, 1)),
        worst=worst,
        nan=int(nan.sum()),
        nan_reference=int(nan_reference.sum()),
        nan_both=int((nan & nan_reference).sum()),
        infinite=int(np.isinf(out).sum()),
        infinite_reference=int(np.isinf(reference).sum()),
    )


def _spacing(reference: np.ndarray, fmt: Format) -> np.ndarray:
    """The distance between neighbouring values of `fmt` at `reference`."""
    exponent = np.frexp(np.abs(reference))[1] - 1
    exponent = np.where(reference == 0, fmt.emin, exponent)
    return np.ldexp(1.0, np.clip(exponent, fmt.emin, fmt.emax) - fmt.fraction_bits)
