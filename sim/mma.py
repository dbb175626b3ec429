"""The tensor core's dot product: in each step L products and the accumulator are aligned, truncated and added.

    product      exact; its exponent is the sum of the operands' exponents, so that its significand lies in [0, 4); a
                 subnormal operand has its format's least exponent; a zero product takes no part
    E            the greatest of the exponents of the nonzero products, the exponent of c (c != 0) and `floor`
    terms        each product and c, truncated toward zero to a multiple of 2^(E-F)
    result       the exact sum of the terms, rounded by `out`; a zero is +0, also one that a negative sum underflows to
    special      any NaN, inf * 0 or inf - inf in a step gives the accumulator's NaN word; otherwise infinity stays

K is walked in steps of L in ascending order; a step's result is the next step's c. Sources: the records of sim.arch.

A step is a handful of NumPy calls on a [L, rows, columns] block that stays in the cache. `_narrow_step` works in
float32 and int32 where every aligned term is exact there, `_wide_step` in float64 for any exponents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arch import DotProduct
from .formats import FP16, FP32, TF32, Format, values

__all__ = ["dot"]

_BLOCK = 1 << 16  # products of one step that are worked on together: their float32 and int32 copies stay in the cache
_ABSENT = -1000  # the exponent of a zero, which takes no part
_LOWEST = -500  # below every exponent of a term; keeps the scales of the wide step normal
_LEAST = -74  # least exponent of a product in the narrow step; then c is 0 or at least 2^-100 after every step


@dataclass
class _Operand:
    """One operand, K first: float32 values [K, rows] with 0 for specials, exponents, and the values with specials."""

    value: np.ndarray
    exponent: np.ndarray
    special: np.ndarray | None

    def part(self, *index: slice) -> _Operand:
        special = None if self.special is None else self.special[index]
        if special is not None and np.isfinite(special).all():
            special = None
        return _Operand(self.value[index], self.exponent[index], special)


def _decode(words: np.ndarray, fmt: Format, pad: int) -> _Operand:
    """Operand words [rows, K] as [K + pad, rows]. Five exponent bits fit int8, where -64 marks a zero."""
    used = fmt.word.type(fmt.sign | fmt.exponent_mask | fmt.fraction_mask)
    words = np.ascontiguousarray(np.pad(words.T, ((0, pad), (0, 0)))) & used
    if fmt is FP16:
        value = words.view(np.float16).astype(np.float32)
    else:
        value = words.view(np.float32) if fmt is TF32 else values(words, fmt).astype(np.float32)
    field = ((words & fmt.word.type(fmt.exponent_mask)) >> fmt.word.type(fmt.fraction_bits + fmt.unused_bits)).astype(
        np.int16
    )
    exponent = np.maximum(field, 1) - np.int16(fmt.bias)
    finite = np.where(np.isfinite(value), value, np.float32(0))
    kind, absent = (np.int8, -64) if fmt.exponent_bits <= 5 else (np.int16, _ABSENT)
    exponent = np.where(finite == 0, kind(absent), exponent.astype(kind))
    return _Operand(finite, exponent, None if np.isfinite(value).all() else value)


def _narrow_enough(a: _Operand, b: _Operand, c: np.ndarray) -> bool:
    """Whether the narrow step is exact: every product lies in [2^-74, 2^126) and c is 0 or at least 2^-100."""
    magnitude = (c & np.uint32(0x7FFFFFFF)) - np.uint32(1)  # zero becomes the largest
    if int(magnitude.min()) < ((127 - 100) << 23) - 1:
        return False
    if a.exponent.dtype == np.int8:
        return True
    low = sum(int(x.exponent.min(where=x.value != 0, initial=127)) for x in (a, b))
    high = sum(int(x.exponent.max(where=x.value != 0, initial=-127)) for x in (a, b))
    return low >= _LEAST and high <= 125


@dataclass
class _Buffers:
    """Working space of a step on a [L, rows, columns] block."""

    products: np.ndarray
    terms: np.ndarray
    exponents: np.ndarray
    total: type

    @classmethod
    def make(cls, unit: DotProduct, outputs: tuple[int, ...], exponent: np.dtype, wide: bool) -> _Buffers:
        shape, total = (unit.L, *outputs), np.int32 if unit.L << (unit.F + 2) <= 1 << 31 else np.int64
        return cls(
            np.empty(shape, np.float64 if wide else np.float32),
            np.empty(shape, np.int32),
            np.empty(shape, exponent),
            total,
        )


def _sum_products(a: _Operand, b: _Operand, scale: np.ndarray, work: _Buffers) -> np.ndarray:
    """The sum of the products times `scale`, each truncated to an integer: int32 where L products of 2^(F+2) fit."""
    np.multiply(a.value[:, :, None], b.value[:, None, :], out=work.products, dtype=work.products.dtype)
    np.multiply(work.products, scale, out=work.products)
    np.copyto(work.terms, work.products, casting="unsafe")  # toward zero
    return np.add.reduce(work.terms, axis=0, dtype=work.total)


def _product_exponent(a: _Operand, b: _Operand, work: _Buffers) -> np.ndarray:
    """The greatest exponent of the nonzero products, far below every exponent where there is none."""
    np.add(a.exponent[:, :, None], b.exponent[:, None, :], out=work.exponents)
    greatest = np.maximum.reduce(work.exponents, axis=0).astype(np.int32)
    # a zero's mark plus the other operand's exponent is no exponent: products are at least 2^-28 in the int8 formats
    greatest[greatest < (-40 if work.exponents.dtype == np.int8 else -500)] = _ABSENT
    return greatest


def _narrow_step(a: _Operand, b: _Operand, c: np.ndarray, unit: DotProduct, work: _Buffers) -> np.ndarray:
    """One step on finite words, rounded toward zero: float32 words [rows, columns] in and out."""
    E = np.maximum(_product_exponent(a, b, work), -127)
    E += 127  # biased, in the place of an exponent field; the clamp keeps both scales normal and, by _narrow_enough,
    E <<= 23  # never binds where a term is not zero
    np.maximum(E, c.view(np.int32) & np.int32(FP32.inf), out=E)
    np.maximum(E, 27 << 23, out=E)
    scale = (np.uint32((254 + unit.F) << 23) - E.view(np.uint32)).view(np.float32)
    total = _sum_products(a, b, scale, work).astype(np.float64)
    total += np.trunc(c.view(np.float32) * scale)
    bits = total.view(np.int64)
    bits &= np.int64(-1 << (52 - (23 if unit.out == "rz_fp32" else 13)))
    result = total.astype(np.float32)
    result *= (E - np.int32(unit.F << 23)).view(np.float32)
    return result.view(np.uint32)


def _power_of_two(exponent: np.ndarray) -> np.ndarray:
    """2^exponent in float64."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def _wide_step(a: _Operand, b: _Operand, c: np.ndarray, unit: DotProduct, work: _Buffers) -> np.ndarray:
    """One step on finite words of any exponents: words of unit.accumulator [rows, columns] in and out."""
    value, accumulator = values(c, unit.accumulator), unit.accumulator
    E = _product_exponent(a, b, work).astype(np.int64)
    exponent = np.maximum(np.frexp(value)[1] - 1, accumulator.emin)
    E = np.maximum(E, np.where(value == 0, _ABSENT, exponent))
    E = np.maximum(E, _LOWEST if unit.floor is None else unit.floor)
    scale = _power_of_two(unit.F - E)
    total = _sum_products(a, b, scale, work) + np.trunc(value * scale)
    return _round(total, E - unit.F, unit)


def _round(total: np.ndarray, exponent: np.ndarray, unit: DotProduct) -> np.ndarray:
    """Words of total * 2^exponent rounded by unit.out; total holds integers below 2^34."""
    scale = _power_of_two(exponent)
    if unit.out == "rne_fp16":
        return _plus_zero((total * scale).astype(np.float16).view(np.uint16), unit.accumulator)
    keep = 23 if unit.out == "rz_fp32" else 13
    result = (total.view(np.int64) & np.int64(-1 << (52 - keep))).view(np.float64) * scale
    tiny = np.abs(result) < 2.0**FP32.emin  # fp32 keeps subnormals: toward zero there as well
    result[tiny] = np.trunc(result[tiny] * 2.0**149) * 2.0**-149
    return _plus_zero(result.astype(np.float32).view(np.uint32), unit.accumulator)


def _plus_zero(words: np.ndarray, fmt: Format) -> np.ndarray:
    """`words` with -0 made +0."""
    words[words == fmt.word.type(fmt.sign)] = 0
    return words


def _special(a: _Operand, b: _Operand, c: np.ndarray, finite: np.ndarray, fmt: Format) -> np.ndarray:
    """A step's words where infinities and NaN take part: `c` with them, `finite` the step's words without."""
    nan, infinite, negative = fmt.is_nan(c), fmt.is_inf(c), (c & fmt.word.type(fmt.sign)) != 0
    plus, minus = infinite & ~negative, infinite & negative
    if a.special is not None or b.special is not None:
        x, y = (o.value if o.special is None else o.special for o in (a, b))
        p = np.multiply(x[:, :, None], y[:, None, :], dtype=np.float64)
        nan, plus, minus = nan | np.isnan(p).any(0), plus | (p == np.inf).any(0), minus | (p == -np.inf).any(0)
    result = np.where(plus, fmt.word.type(fmt.inf), np.where(minus, fmt.word.type(fmt.inf | fmt.sign), finite))
    return np.where(nan | (plus & minus), fmt.word.type(fmt.nan), result)


def _block(a: _Operand, b: _Operand, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """Words of c + a . b: a [K, rows], b [K, columns], c [rows, columns]; K a multiple of L."""
    fmt = unit.accumulator
    usable = np.where((c & fmt.word.type(fmt.exponent_mask)) == fmt.word.type(fmt.exponent_mask), fmt.word.type(0), c)
    narrow = fmt is FP32 and _narrow_enough(a, b, usable)
    step = _narrow_step if narrow else _wide_step
    work = _Buffers.make(unit, c.shape, a.exponent.dtype, wide=not narrow)
    for k in range(0, a.value.shape[0], unit.L):
        ak, bk = (x.part(slice(k, k + unit.L)) for x in (a, b))
        field = c & fmt.word.type(fmt.exponent_mask)
        if ak.special is None and bk.special is None and int(field.max()) < fmt.exponent_mask:
            c = step(ak, bk, c, unit, work)
        else:
            top = field == fmt.word.type(fmt.exponent_mask)
            c = _special(ak, bk, c, step(ak, bk, np.where(top, fmt.word.type(0), c), unit, work), fmt)
    return c


def _matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """Words of c + a . b for one [M, K], [N, K], [M, N]. The longer side is the inner axis, which NumPy likes."""
    if a.shape[0] > b.shape[0]:
        return _matrix(b, a, c.T, unit).T
    pad = -a.shape[1] % unit.L
    x, y = _decode(a, unit.operand, pad), _decode(b, unit.operand, pad)
    columns = min(b.shape[0], _BLOCK // unit.L)
    rows = max(1, _BLOCK // (unit.L * columns))
    result = np.empty(c.shape, unit.accumulator.word)
    for m in range(0, a.shape[0], rows):
        for n in range(0, b.shape[0], columns):
            part = slice(m, m + rows), slice(n, n + columns)
            block = np.ascontiguousarray(c[part])
            result[part] = _block(x.part(slice(None), part[0]), y.part(slice(None), part[1]), block, unit)
    return result


def dot(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """The words of c + a @ b.T as the tensor core gives them.

    a [..., M, K], b [..., N, K]: words of unit.operand; c [..., M, N]: words of unit.accumulator. Leading axes
    broadcast; K is padded with zeros to a multiple of unit.L (zero products take no part). Returns words [..., M, N].
    Raises ValueError when the shapes do not fit.
    """
    if a.shape[-1] != b.shape[-1] or c.shape[-2:] != (a.shape[-2], b.shape[-2]):
        raise ValueError(f"a [M, K], b [N, K] and c [M, N] do not fit: {a.shape}, {b.shape}, {c.shape}")
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    if lead and b.shape[:-2] == (1,) * len(lead):  # one b for all: more rows of a
        a, c = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, c))
        rows = dot(a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:]), c.reshape(-1, c.shape[-1]), unit)
        return rows.reshape(c.shape)
    a, b, c = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b, c))
    result = np.empty(c.shape, unit.accumulator.word)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*lead):
            result[index] = _matrix(a[index], b[index], c[index], unit)
    return result
