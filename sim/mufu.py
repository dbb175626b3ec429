"""MUFU: the GPU's approximate exp2, reciprocal and reciprocal square root, words in and words out.

A quadratic in the low mantissa bits, with coefficients from a table by the leading bits and a truncated squarer
(Oberman & Siu, ARITH-17, 2005). The tables are recovered from H200 words of every mantissa (tools/recover_mufu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps

import numpy as np

from . import arith
from .formats import FP32

__all__ = ["divide", "ex2", "exp2f", "rcp", "rsqrt"]

_BLOCK = 1 << 14  # words per pass, so that the temporaries stay in the cache
_FRACTION = np.int32(FP32.fraction_mask)
_NAN, _INF, _SIGN = np.uint32(FP32.nan), np.uint32(FP32.inf), np.uint32(FP32.sign)


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


def divide(a: np.ndarray, b: np.ndarray, fast_math: bool) -> np.ndarray:
    """a/b on fp32 words, shapes broadcast: `a * rcp(b)` with ftz under fast math (so 0 for |b| > 2**126), else IEEE.

    Source: H200, 16384 words each, fast and precise.
    """
    return arith.mul(a, rcp(b), ftz=True) if fast_math else arith.div(a, b)
