"""MUFU: the GPU's approximate exp2, log2, reciprocal and roots, words in and words out; CUDA's functions around them.

A quadratic in the low mantissa bits, with coefficients from a table by the leading bits and a truncated squarer
(Oberman & Siu, ARITH-17, 2005). The tables are recovered from H200 words of every mantissa (tools/recover_mufu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps

import numpy as np

from . import arith
from .formats import FP32

__all__ = [
    "divide",
    "ex2",
    "exp2f",
    "expf",
    "lg2",
    "log2f",
    "log10f",
    "logf",
    "rcp",
    "rsqrt",
    "rsqrtf",
    "sqrt",
    "sqrtf",
]

Words = np.ndarray
_BLOCK = 1 << 14  # words per pass, so that the temporaries stay in the cache
_FRACTION = np.int32(FP32.fraction_mask)
_NAN, _INF, _SIGN, _ONE = np.uint32(FP32.nan), np.uint32(FP32.inf), np.uint32(FP32.sign), np.uint32(0x3F800000)
_KEPT_OF_FLOAT64 = ~np.uint64((1 << 29) - 1)  # the bits that float32 has too
_LOG2_E, _LN_2, _LOG10_2, _LOG10_E = (np.array(w, np.uint32) for w in (0x3FB8AA3B, 0x3F317218, 0x3E9A209B, 0x3EDE5BD9))
_LOG2_E_LOW, _LOG2_E_252 = (np.array(w, np.uint32) for w in (0x32A57060, 0x3BBB989D))  # log2(e)-_LOG2_E, log2(e)/252
# Of CUDA's precise logarithms, highest power first (PTX of nvcc 13.0): p(r) with log(1 + r) = r*b + r**2 * p(r).
_LOG2F = (0x3DC6B27F, 0xBE2C7F30, 0x3E2FCF2A, 0xBE374E43, 0x3E520BF4, 0xBE763C8B, 0x3E93BF99, 0xBEB8AA49, 0x3EF6384A,
          0xBF38AA3B)  # fmt: skip
_LOGF = (0xBE055027, 0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9, 0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000)


def _in_blocks(operator: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """`operator` over a flat block of uint32 words, made to take an array of any shape."""

    @wraps(operator)
    def over_any_shape(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.uint32)
        flat, out = np.ravel(x), np.empty(x.size, np.uint32)
        for start in range(0, x.size, _BLOCK):
            out[start : start + _BLOCK] = operator(flat[start : start + _BLOCK])
        return out.reshape(x.shape)

    return over_any_shape


def _word(value: float | np.ndarray) -> np.ndarray:
    """fp32 words of a value, rounded to nearest even."""
    return np.asarray(value, np.float32).view(np.uint32)


@cache
def _squares() -> np.ndarray:
    """The squarer, uint16 [2**17]: each partial product of x loses its bits below 2**18, the sum its last bit."""
    x = np.arange(1 << 17)
    total = np.zeros_like(x)
    for bit in range(17):
        total += ((x >> bit) & 1) * (x >> (18 - bit))
    return (total >> 1).astype(np.uint16)


@cache
def _rows(name: str, c0_shift: int, bias: int, c2_shift: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The table of one function, [rows] each: (C0 << c0_shift) + bias and C1 int64, C2 << c2_shift int32."""
    from . import mufu_tables

    c0, c1, c2 = np.array(getattr(mufu_tables, name), np.int64).T
    return (c0 << c0_shift) + bias, c1.copy(), (c2 << c2_shift).astype(np.int32)


def _interpolate(rows: Sequence[np.ndarray], row: np.ndarray, x: np.ndarray, doubled: int = 0) -> np.ndarray:
    """C0 + C1*x + C2*sq(x << doubled) with the coefficients of `row`, int64."""
    c0, c1, c2 = rows
    row, x = row.astype(np.int64), x.astype(np.int64)
    total = c1.take(row, mode="clip")  # nothing is out of range: clip only spares the check
    total *= x
    total += c0.take(row, mode="clip")
    total += c2.take(row, mode="clip") * _squares().take(x << doubled if doubled else x, mode="clip")
    return total


@_in_blocks
def ex2(x: np.ndarray) -> np.ndarray:
    """2**x, `ex2.approx.ftz.f32`: fp32 words, any shape. NaN gives 0x7fffffff; a result below 2**-126 is +0.

    |x| is truncated to 23 fraction bits; a negative x that keeps a fraction takes its one's complement.
    Source: H200, every mantissa and 32768 words of any size.
    """
    value = x.view(np.float32)
    ordinary = (value >= -126) & (value < 128)
    all_ordinary = ordinary.all()
    kept = value if all_ordinary else np.where(ordinary, value, np.float32(0))
    fixed = (kept * np.float32(1 << 23)).astype(np.int32)  # the product is exact, then truncated
    negative = fixed >> 31
    fixed += negative
    fixed -= negative * ((fixed & _FRACTION) == _FRACTION)  # no fraction: -I, not the complement
    significand = _interpolate(_rows("EX2", 13, 0x77E2, 0), (fixed >> 17) & 63, fixed & 0x1FFFF) >> 15
    word = ((((fixed >> 23) + 126) << 23) + significand.astype(np.int32)).view(np.uint32)
    if all_ordinary:
        return word
    return np.where(ordinary, word, np.where(value >= 128, _INF, np.where(value < -126, np.uint32(0), _NAN)))


@_in_blocks
def rcp(x: np.ndarray) -> np.ndarray:
    """1/x, `rcp.approx.ftz.f32`: fp32 words, any shape. NaN gives 0x7fffffff.

    +-0 and subnormals give +-inf; |x| > 2**126 gives +-0, because the result would be subnormal.
    Source: H200, every mantissa and 32768 words of any size.
    """
    sign, x = x & _SIGN, (x & ~_SIGN).view(np.int32)
    significand = _interpolate(_rows("RCP", 13, 0x47E7, 0), (x >> 16) & 127, x & 0xFFFF, doubled=1) >> 15
    word = ((252 - (x >> 23)) << 23) + significand.astype(np.int32)
    if x.min() >= FP32.min_normal and x.max() <= 253 << 23:
        return word.view(np.uint32) | sign
    word[x > 253 << 23] = 0
    word[x < FP32.min_normal] = FP32.inf
    return np.where(x > FP32.inf, _NAN, word.view(np.uint32) | sign)


@_in_blocks
def rsqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x), `rsqrt.approx.ftz.f32`: fp32 words, any shape. x < 0 and NaN give 0x7fffffff.

    +-0 and subnormals give +-inf; a power of four is exact.
    Source: H200, every mantissa of [1, 4) and 32768 words of any size.
    """
    magnitude = (x & ~_SIGN).view(np.int32)
    scaled = magnitude - (127 << 23)
    significand = _interpolate(_rows("RSQRT", 14, 0x7FFF, 2), (scaled >> 17) & 127, scaled & 0x1FFFF) >> 16
    significand[(scaled & 0xFFFFFF) == 0] = 1 << 24
    word = (((125 - (scaled >> 24)) << 23) + significand.astype(np.int32)).view(np.uint32)
    if x.min() >= FP32.min_normal and x.max() < FP32.inf:
        return word
    subnormal = magnitude < FP32.min_normal
    word[subnormal] = _INF | (x[subnormal] & _SIGN)
    word[x == _INF] = 0
    word[(x > _INF) & ~subnormal] = _NAN
    return word


@_in_blocks
def sqrt(x: np.ndarray) -> np.ndarray:
    """The square root of x, `sqrt.approx.ftz.f32`: fp32 words, any shape. x < 0 and NaN give 0x7fffffff.

    +-0 and subnormals give +-0.
    Source: H200, every mantissa of [1, 4) and 32768 words of any size.
    """
    magnitude = (x & ~_SIGN).view(np.int32)
    scaled = magnitude - (127 << 23)
    significand = _interpolate(_rows("SQRT", 15, 0x7FFF, 1), (scaled >> 17) & 127, scaled & 0x1FFFF) >> 17
    word = (((126 + (scaled >> 24)) << 23) + significand.astype(np.int32)).view(np.uint32)
    if x.min() >= FP32.min_normal and x.max() < FP32.inf:
        return word
    subnormal = magnitude < FP32.min_normal
    word[subnormal] = x[subnormal] & _SIGN
    word[x == _INF] = _INF
    word[(x > _INF) & ~subnormal] = _NAN
    return word


@_in_blocks
def lg2(x: np.ndarray) -> np.ndarray:
    """log2(x), `lg2.approx.ftz.f32`: fp32 words, any shape. x < 0 and NaN give 0x7fffffff.

    The exponent and the mantissa's logarithm, 36 fraction bits, are added; a negative sum takes its one's complement;
    what is left is cut to 24 bits. 1 gives +0; +-0 and subnormals give -inf.
    Source: H200, every mantissa of [0.5, 2), every 64th at eight other exponents and 32768 words of any size.
    """
    exponent = (x >> 23).astype(np.int64) - 127
    total = _interpolate(_rows("LG2", 12, 0x3345, 1), (x >> 17) & 63, x & 0x1FFFF) >> 2
    total += exponent << 36
    negative = total >> 63
    cut = (total ^ negative).astype(np.float64).view(np.uint64) & _KEPT_OF_FLOAT64
    word = (cut.view(np.float64) * 2.0**-36).astype(np.float32).view(np.uint32) | (negative.astype(np.uint32) & _SIGN)
    word[x == _ONE] = 0
    if x.min() >= FP32.min_normal and x.max() < FP32.inf:
        return word
    subnormal = (x & ~_SIGN) < FP32.min_normal
    word[subnormal] = _INF | _SIGN
    word[x == _INF] = _INF
    word[(x > _INF) & ~subnormal] = _NAN
    return word


def rsqrtf(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's rsqrtf on fp32 words, any shape: `rsqrt` under fast math.

    Precise: `rsqrt.approx.f32`, which scales a subnormal x by 2**24 and its root by 2**12.
    Source: SASS of sm_90a; H200.
    """
    if fast_math:
        return rsqrt(x)
    x = np.asarray(x, np.uint32)
    subnormal = (x & ~_SIGN) < FP32.min_normal
    root = rsqrt(np.where(subnormal, arith.mul(x, _word(2.0**24)), x))
    return np.where(subnormal, arith.mul(root, _word(2.0**12)), root)


def sqrtf(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's sqrtf on fp32 words, any shape: `sqrt` under fast math, else IEEE. Source: SASS of sm_90a; H200."""
    return sqrt(x) if fast_math else arith.sqrt(x)


def exp2f(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's exp2f on fp32 words, any shape: `ex2` under fast math.

    Precise: for x < -126 it is ex2(x/2) squared, which keeps subnormals; else ex2.
    Source: H200, 16384 words each, fast and precise.
    """
    if fast_math:
        return ex2(x)
    x = np.asarray(x, np.uint32)
    small = (x > np.uint32(_SIGN | 0x42FC0000)) & (x < np.uint32(_SIGN | _INF))  # finite and below -126
    result = ex2(np.where(small, x - np.uint32(1 << 23), x))  # halved: one off the exponent, which is far from its end
    return np.where(small, arith.mul(result, result), result)


def expf(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's expf on fp32 words, any shape: `ex2(x * log2(e))` under fast math, the product rounded with ftz.

    Precise: with k the integer below x*log2(e), within [-126, 126], it is 2**k * ex2(x*log2(e) - k), the
    difference by two fma with log2(e) in two parts. Source: PTX of nvcc 13.0; H200.
    """
    if fast_math:
        return ex2(arith.mul(x, _LOG2_E, ftz=True))
    x = np.asarray(x, np.uint32)
    position = arith.fma(x, _LOG2_E_252, _word(0.5)).view(np.float32)
    position = np.fmin(np.fmax(position, 0), 1).astype(np.float64)  # of k in its range; NaN gives 0
    k = np.floor(position * 252) - 126  # an fma toward -inf in the kernel
    rest = arith.fma(x, _LOG2_E_LOW, arith.fma(x, _LOG2_E, _word(-k)))
    return arith.mul(ex2(rest), ((k.astype(np.int32) + 127) << 23).view(np.uint32))


def _logarithm(
    x: np.ndarray, least: int, polynomial: Sequence[int], sum_up: Callable[[Words, Words, Words], Words]
) -> Words:
    """A precise logarithm of x = 2**e * (1 + r), the word of 1 + r at or above `least`: sum_up(e, r, p(r))."""
    x = np.asarray(x, np.uint32)
    small = x.view(np.float32) < np.float32(2.0**-126)  # negative ones too
    x = np.where(small, arith.mul(x, _word(2.0**23)), x)
    exponent = (x - np.uint32(least)).view(np.int32) >> 23
    r = arith.sub(x - (exponent << 23).view(np.uint32), _word(1.0))
    p, *rest = (np.array(w, np.uint32) for w in polynomial)
    for coefficient in rest:
        p = arith.fma(p, r, coefficient)
    result = sum_up(_word(exponent - 23 * small), r, p)
    result = np.where(x < _INF, result, arith.fma(x, _word(np.inf), _word(np.inf)))
    return np.where((x & ~_SIGN) == 0, _INF | _SIGN, result)


def log2f(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's log2f on fp32 words, any shape: `lg2` under fast math.

    Precise: a polynomial of degree 11 in r, 1 + r from sqrt(1/2) to sqrt(2). Source: PTX of nvcc 13.0; H200.
    """
    if fast_math:
        return lg2(x)
    mul, fma = arith.mul, arith.fma
    return _logarithm(x, 0x3F3504F3, _LOG2F, lambda e, r, p: arith.add(e, fma(r, _LOG2_E, mul(r, mul(r, p)))))


def logf(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's logf on fp32 words, any shape: `lg2(x) * ln(2)` under fast math, the product rounded with ftz.

    Precise: a polynomial of degree 10 in r, 1 + r from 2/3 to 4/3. Source: PTX of nvcc 13.0; H200.
    """
    if fast_math:
        return arith.mul(lg2(x), _LN_2, ftz=True)
    mul, fma = arith.mul, arith.fma
    return _logarithm(x, 0x3F2AAAAB, _LOGF, lambda e, r, p: fma(e, _LN_2, fma(mul(r, p), r, r)))


def log10f(x: np.ndarray, fast_math: bool) -> np.ndarray:
    """CUDA's log10f on fp32 words, any shape: `lg2(x) * log10(2)` with ftz under fast math, else logf(x) * log10(e).

    Source: PTX of nvcc 13.0; H200.
    """
    return arith.mul(lg2(x), _LOG10_2, ftz=True) if fast_math else arith.mul(logf(x, False), _LOG10_E)


def divide(a: np.ndarray, b: np.ndarray, fast_math: bool) -> np.ndarray:
    """a/b on fp32 words, shapes broadcast: `a * rcp(b)` with ftz under fast math (so 0 for |b| > 2**126), else IEEE.

    Source: H200, 16384 words each, fast and precise.
    """
    return arith.mul(a, rcp(b), ftz=True) if fast_math else arith.div(a, b)
