"""Harm that leaves no NaN or infinity: what a function of the machine loses of good operands. Words only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .births import nonfinite
from .formats import FP32, Format, values

__all__ = ["Damage", "done", "in_convert"]

Damage = tuple[str, np.ndarray, Any, list[Any]]  # kind, where, the result and the operands as (words, Format)


def done(function: str, words: np.ndarray, operands: Sequence[np.ndarray], fmt: Format) -> Iterator[Damage]:
    """What an arithmetic function did: words [lanes or 1, ...] of its operands."""
    if function in ("exp2", "exp") and words.ndim > 2:
        yield from _flushed(words, operands[0], fmt)
    elif function in ("mul", "mul_add") and fmt is FP32:
        yield from _rescaled(function, words, operands[0], operands[1], fmt)
    elif function == "add" and fmt.bits == 16:
        yield from _stuck(words, operands[0], operands[1], fmt)


def _flushed(words: np.ndarray, x: np.ndarray, fmt: Format) -> Iterator[Damage]:
    """Rows of weights that are all 0 though not all of their scores are -inf."""
    flushed = ~words.any(axis=-1)
    if flushed.any():
        flushed &= (x != fmt.word.type(fmt.inf | fmt.sign)).any(axis=-1)
        if nonfinite(x, fmt) is not None:
            flushed &= ~(fmt.is_nan(x) | (x == fmt.word.type(fmt.inf))).any(axis=-1)
        if flushed.any():
            greatest = np.take_along_axis(x, values(x, fmt).argmax(axis=-1)[..., None], axis=-1)[..., 0]
            yield "weights_flushed", flushed, (words[..., 0], fmt), [(greatest, fmt)]


def _rescaled(function: str, words: np.ndarray, x: np.ndarray, factor: np.ndarray, fmt: Format) -> Iterator[Damage]:
    """A factor of each row that is 0 or subnormal, of something that is finite and not 0."""
    by_row = x.ndim > 2 and factor.ndim == x.ndim and factor.shape[-1] == 1 < x.shape[-1]
    if not (by_row or function == "mul_add" and x.ndim == factor.ndim == 2):
        return
    magnitude = fmt.word.type(fmt.sign - 1)
    small = (factor & magnitude) < fmt.word.type(fmt.min_normal)
    if small.any():
        lost = small & ((x & magnitude) != 0) & ((x & magnitude) < fmt.word.type(fmt.inf))
        if lost.any():
            yield "rescaled_to_zero", lost, (words, fmt), [(x, fmt), (factor, fmt)]


def _stuck(words: np.ndarray, total: np.ndarray, addend: np.ndarray, fmt: Format) -> Iterator[Damage]:
    """A sum of 16 bits that does not move though the addend is at least a quarter of its last place."""
    stuck = (words == total) & ((addend & fmt.word.type(fmt.sign - 1)) != 0)
    if stuck.any():
        a, b = (np.abs(values(v, fmt)) for v in np.broadcast_arrays(total, addend))
        stuck &= (b >= a * 2.0 ** -(fmt.fraction_bits + 2)) & np.isfinite(a)
        if stuck.any():
            yield "saturated_sum", stuck, (words, fmt), [(total, fmt), (addend, fmt)]


def in_convert(words: np.ndarray, x: np.ndarray, src: Format, dst: Format) -> Iterator[Damage]:
    """Finite values that became the greatest one of a narrower format though they are greater."""
    if dst.bits >= src.bits or not words.size:
        return
    top = (words & dst.word.type(dst.sign - 1)) == dst.word.type(dst.max_finite)
    if top.any():
        size, most = np.abs(values(x, src)), float(values(np.asarray(dst.max_finite, dst.word), dst))
        over = top & (size > most * (1 + 2.0 ** -(dst.fraction_bits + 1))) & np.isfinite(size)
        if over.any():
            yield "saturated_convert", over, (words, dst), [(x, src)]
