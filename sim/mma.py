"""The tensor core's dot product: L products and the accumulator, aligned, truncated, added exactly, rounded once a step.

    product      exact; its exponent is the sum of the operands' exponents, so that its significand lies in [0, 4); a
                 subnormal operand has its format's least exponent; a zero product takes no part
    E            the greatest of the exponents of the nonzero products, the exponent of c (c != 0) and `floor`
    terms        each product and c, truncated toward zero to a multiple of 2^(E-F)
    result       the exact sum of the terms, rounded by `out`; an exact zero is +0
    special      any NaN, inf * 0 or inf - inf in a step gives the accumulator's NaN word; otherwise infinity stays

K is walked in steps of L in ascending order; a step's result is the next step's c. Sources: NUMERICS section 1 and the
records of sim.arch. Here a step is a handful of NumPy calls on a [L, rows, N] block that stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arch import DotProduct
from .formats import FP16, FP32, TF32, Format, values

__all__ = ["dot"]

_BLOCK = 1 << 16  # products of one step that are worked on together: float32 and int32 copies stay in a 1 MiB cache
_NONE = -500  # the exponent of a term that takes no part


@dataclass
class _Operand:
    """One operand, K first: float32 values without specials, exponents, and the places of infinities and NaN."""

    value: np.ndarray
    exponent: np.ndarray
    special: np.ndarray | None  # float32 with infinities and NaN, or None when there are none

    def rows(self, part: slice) -> _Operand:
        special = None if self.special is None else self.special[:, part]
        return _Operand(self.value[:, part], self.exponent[:, part], special)


def _decode(words: np.ndarray, fmt: Format, pad: int) -> _Operand:
    """Operand words [M, K] as [K + pad, M] values and exponents; a zero has half of the exponent type's minimum."""
    words = np.pad(words.T, ((0, pad), (0, 0))) & fmt.word.type(~((1 << fmt.unused_bits) - 1) & ((1 << fmt.bits) - 1))
    if fmt is FP16:
        value = words.view(np.float16).astype(np.float32)
    elif fmt is TF32:
        value = words.view(np.float32)
    else:
        value = values(words, fmt).astype(np.float32)
    field = ((words & fmt.word.type(fmt.exponent_mask)) >> fmt.word.type(fmt.fraction_bits + fmt.unused_bits)).astype(np.int16)
    exponent = np.maximum(field, 1) - np.int16(fmt.bias)
    special = fmt.is_nan(words) | fmt.is_inf(words)
    has_special = bool(special.any())
    finite = np.where(special, np.float32(0), value) if has_special else value
    small = fmt.exponent_bits <= 5
    exponent = np.where(finite == 0, np.int16(-64 if small else _NONE // 2), exponent)
    return _Operand(finite, exponent.astype(np.int8 if small else np.int16), value if has_special else None)


def _power_of_two(exponent: np.ndarray, dtype: type) -> np.ndarray:
    """2^exponent as float32 or float64, for exponents of normal values."""
    if dtype is np.float32:
        return ((exponent.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def _fits_float32(a: _Operand, b: _Operand) -> bool:
    """Whether every product and every aligned product is exact in float32."""
    if a.exponent.dtype == np.int8:
        return True
    low = [int(x.exponent.min(where=x.value != 0, initial=200)) for x in (a, b)]
    high = [int(x.exponent.max(where=x.value != 0, initial=-200)) for x in (a, b)]
    return sum(low) >= -100 and sum(high) <= 125


class _Step:
    """The buffers and the arithmetic of one step on a [L, rows, N] block."""

    def __init__(self, unit: DotProduct, rows: int, columns: int, dtype: type, exponent: np.dtype):
        shape = (unit.L, rows, columns)
        self.unit, self.dtype = unit, dtype
        self.products, self.terms = np.empty(shape, dtype), np.empty(shape, np.int32)
        self.exponents = np.empty(shape, exponent)

    def alignment(self, a: _Operand, b: _Operand, c: np.ndarray) -> np.ndarray:
        """E of each output: int16 [rows, N]. c is float64 without specials."""
        np.add(a.exponent[:, :, None], b.exponent[:, None, :], out=self.exponents)
        E = self.exponents.max(axis=0).astype(np.int16)
        if self.exponents.dtype == np.int8:
            E[E < -40] = _NONE
        field = ((c.view(np.int64) >> 52) & 0x7FF).astype(np.int16) - np.int16(1023)
        least = np.int16(self.unit.accumulator.emin)
        E = np.maximum(E, np.where(c == 0, np.int16(_NONE), np.maximum(field, least)))
        return E if self.unit.floor is None else np.maximum(E, np.int16(self.unit.floor))

    def __call__(self, a: _Operand, b: _Operand, c: np.ndarray) -> np.ndarray:
        """c + a . b of one step for finite operands; float64 [rows, N], exact values of accumulator words."""
        E = self.alignment(a, b, c)
        F = self.unit.F
        np.multiply(a.value[:, :, None], b.value[:, None, :], out=self.products, dtype=self.dtype)
        least = -100 if self.dtype is np.float32 else _NONE
        self.products *= _power_of_two(F - np.maximum(E, np.int16(least)), self.dtype)
        np.copyto(self.terms, self.products, casting="unsafe")  # toward zero
        total = np.add.reduce(self.terms, axis=0, dtype=np.int32).astype(np.float64)
        total += np.trunc(c * _power_of_two(F - E, np.float64))
        return _round(total, E - np.int16(F), self.unit)


def _round(total: np.ndarray, exponent: np.ndarray, unit: DotProduct) -> np.ndarray:
    """total * 2^exponent rounded by the unit's `out`; total holds integers below 2^34 in float64."""
    if unit.out == "rne_fp16":
        return (total * _power_of_two(exponent, np.float64)).astype(np.float16).astype(np.float64)
    drop = 52 - (23 if unit.out == "rz_fp32" else 13)
    result = (total.view(np.int64) & np.int64(-1 << drop)).view(np.float64) * _power_of_two(exponent, np.float64)
    if exponent.min() < FP32.emin:  # fp32 keeps subnormals: toward zero there as well
        tiny = np.abs(result) < 2.0**FP32.emin
        result[tiny] = np.trunc(result[tiny] * 2.0**149) * 2.0**-149
    return result.astype(np.float32).astype(np.float64)


def _special(a: _Operand, b: _Operand, c: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """A step's results where infinities and NaN take part; `c` with them, `finite` the results without."""
    nan, plus, minus = np.isnan(c), c == np.inf, c == -np.inf
    if a.special is not None or b.special is not None:
        x = a.value if a.special is None else a.special
        y = b.value if b.special is None else b.special
        p = np.multiply(x[:, :, None], y[:, None, :], dtype=np.float64)
        nan, plus, minus = nan | np.isnan(p).any(0), plus | (p == np.inf).any(0), minus | (p == -np.inf).any(0)
    result = np.where(plus, np.inf, np.where(minus, -np.inf, finite))
    return np.where(nan | (plus & minus), np.nan, result)


def _block(a: _Operand, b: _Operand, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """c + a . b for some rows: a [K, rows], b [K, N], c float64 [rows, N]; K a multiple of L."""
    dtype = np.float32 if _fits_float32(a, b) else np.float64
    step = _Step(unit, a.value.shape[1], b.value.shape[1], dtype, a.exponent.dtype)
    for k in range(0, a.value.shape[0], unit.L):
        part = slice(k, k + unit.L)
        ak, bk = (_Operand(x.value[part], x.exponent[part], None if x.special is None else x.special[part]) for x in (a, b))
        finite = np.isfinite(c)
        if finite.all() and ak.special is None and bk.special is None:
            c = step(ak, bk, c)
        else:
            c = _special(ak, bk, c, step(ak, bk, np.where(finite, c, 0.0)))
    return c


def _matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """Words of c + a . b for one [M, K], [N, K], [M, N]."""
    pad = -a.shape[1] % unit.L
    x, y = _decode(a, unit.operand, pad), _decode(b, unit.operand, pad)
    accumulator = unit.accumulator
    result = values(c, accumulator)
    rows = max(1, _BLOCK // (unit.L * b.shape[0]))
    for m in range(0, a.shape[0], rows):
        part = slice(m, m + rows)
        result[part] = _block(x.rows(part), y, result[part], unit)
    words = result.astype(np.float16 if accumulator is FP16 else np.float32).view(accumulator.word)
    nan = np.isnan(result)
    if nan.any():
        words[nan] = accumulator.nan
    return words


def dot(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """The words of c + a @ b.T as the tensor core gives them.

    a [..., M, K], b [..., N, K]: words of unit.operand; c [..., M, N]: words of unit.accumulator. Leading axes
    broadcast; K is padded with zeros to a multiple of unit.L (zero products take no part). Returns words [..., M, N].
    Raises ValueError when the shapes do not fit.
    """
    if a.shape[-1] != b.shape[-1] or c.shape[-2:] != (a.shape[-2], b.shape[-2]):
        raise ValueError(f"a [M, K], b [N, K] and c [M, N] do not fit: {a.shape}, {b.shape}, {c.shape}")
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    a, b, c = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b, c))
    result = np.empty(c.shape, unit.accumulator.word)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*lead):
            result[index] = _matrix(a[index], b[index], c[index], unit)
    return result
