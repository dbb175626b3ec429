"""Scalar float arithmetic of NVIDIA GPUs: the exact result, rounded once to nearest even. Words in, words out.

Arrays are unsigned words of the format and broadcast. A NaN that an operator makes is the format's `nan` word, whatever
its operands were. With `ftz` subnormal operands and results become zero of the same sign. Source: docs/NUMERICS.md,
section 3 (H200).

Formats: float32, float16, bfloat16. How each is done with host arithmetic that rounds otherwise:

* a product of two words is exact in float64; a sum of float32 values is not, so it is rounded to odd in float64 first
  (Boldo & Melquiond 2008: rounding to odd with two spare bits makes the second rounding harmless);
* a quotient or square root in float64 rounds a second time harmlessly, because 53 >= 2 * 24 + 2 (Figueroa 1995).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

__all__ = [
    "add",
    "convert",
    "div",
    "flush",
    "fma",
    "fmax",
    "fmin",
    "from_order_key",
    "mul",
    "neg",
    "order_key",
    "sqrt",
    "sub",
]

Words = np.ndarray
_FLOAT = {FP32: np.float32, FP16: np.float16}
_HALF_BIT, _LOW_BITS = np.uint64(1 << 28), np.uint64((1 << 29) - 1)  # of a float64 that is rounded to float32


def flush(a: Words, fmt: Format = FP32) -> Words:
    """`a` with every subnormal word replaced by zero of its sign."""
    subnormal = (a & fmt.word.type(fmt.exponent_mask)) == 0
    return np.where(subnormal, a & fmt.word.type(fmt.sign), a)


def neg(a: Words, fmt: Format = FP32) -> Words:
    """-a: the sign bit flipped, NaN included, as an operand modifier does."""
    return a ^ fmt.word.type(fmt.sign)


def _wide(a: Words, fmt: Format, ftz: bool) -> np.ndarray:
    """Operands as float32 values, which hold every word of the three formats exactly."""
    a = flush(a, fmt) if ftz else np.asarray(a, fmt.word)
    if fmt is FP32:
        return a.view(np.float32)
    if fmt is BF16:
        return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return a.view(np.float16).astype(np.float32)


def _finish(r: Words, fmt: Format, ftz: bool = False, exact: Callable[[], np.ndarray] | None = None) -> Words:
    """Results with the format's own NaN word, flushed under ftz.

    A result is flushed when it is subnormal after rounding to the full number of fraction bits: one that only the
    coarser subnormal grid rounds up to the least normal value is flushed too (H200: mul and fma). `exact` gives the
    results in float64, exact or rounded to odd, to tell those.
    """
    nan = fmt.is_nan(r)
    if nan.any():
        r = np.where(nan, fmt.word.type(fmt.nan), r)
    if not ftz:
        return r
    r = flush(r, fmt)
    least = (r & fmt.word.type(fmt.sign - 1)) == fmt.word.type(fmt.min_normal)
    if exact is None or not least.any():
        return r
    tiny = np.abs(exact()) < 2.0**fmt.emin - 2.0 ** (fmt.emin - fmt.fraction_bits - 2)
    return np.where(least & tiny, r & fmt.word.type(fmt.sign), r)


def _round_odd(s: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Float64 sums rounded to odd, from the sum rounded to nearest and its exact error."""
    bits = s.view(np.int64)
    move = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
    away = (error > 0) == (s > 0)  # the exact sum lies farther from zero than s
    return (bits + np.where(move, np.where(away, 1, -1), 0)).view(np.float64)


def _sum_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b of float64 operands, rounded to odd: the rounded sum and its exact error (Knuth's two-sum)."""
    s = np.asarray(a + b)
    t = s - a
    return _round_odd(s, (a - (s - t)) + (b - t))


def _narrow(s: np.ndarray, fmt: Format) -> Words:
    """Float64 values (exact or rounded to odd) rounded to nearest even in `fmt`; overflow gives infinity."""
    with np.errstate(all="ignore"):
        if fmt in _FLOAT:
            return s.astype(_FLOAT[fmt]).view(fmt.word)
        # bfloat16: float32 has bits to spare, so round to odd once more on the way
        return _fp32_to_bf16(_round_odd32(s.astype(np.float32), s).view(np.uint32))


def _round_odd32(f: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Float32 roundings of `exact` changed to roundings to odd."""
    error = exact - f
    bits = f.view(np.int32)
    move = (error != 0) & ((bits & 1) == 0) & np.isfinite(f)
    away = (error > 0) == ((f > 0) | ((f == 0) & (exact > 0)))
    return (bits + np.where(move, np.where(away, np.int32(1), np.int32(-1)), np.int32(0))).view(np.float32)


def _add_exact(a: np.ndarray, b: np.ndarray, fmt: Format) -> Words:
    """a + b of float64 operands, each exact, rounded once to `fmt`."""
    s = np.asarray(a + b)
    if fmt is FP32:
        # a second rounding can only go wrong where the first one landed on a tie, or where the result is subnormal
        bits = s.view(np.uint64)
        risky = ((bits & _LOW_BITS) == _HALF_BIT) | (np.abs(s) < 2.0**-125)
        if not risky.any():
            return s.astype(np.float32).view(np.uint32)
    return _narrow(_sum_odd(a, b), fmt)


def add(a: Words, b: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """a + b."""
    x, y = _wide(a, fmt, ftz), _wide(b, fmt, ftz)
    with np.errstate(all="ignore"):
        if fmt is FP32:
            r = np.asarray(x + y).view(np.uint32)
        else:
            r = _add_exact(x.astype(np.float64), y.astype(np.float64), fmt)
    return _finish(r, fmt, ftz)  # no sum of two normal words lies between the subnormal grid and the least normal


def sub(a: Words, b: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """a - b."""
    return add(a, neg(np.asarray(b, fmt.word), fmt), fmt, ftz)


def mul(a: Words, b: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """a * b."""
    x, y = _wide(a, fmt, ftz), _wide(b, fmt, ftz)
    with np.errstate(all="ignore"):
        if fmt is FP32:
            r = np.asarray(x * y).view(np.uint32)
        else:
            r = _narrow(np.multiply(x, y, dtype=np.float64), fmt)
        return _finish(r, fmt, ftz, exact=lambda: np.multiply(x, y, dtype=np.float64))


def fma(a: Words, b: Words, c: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """a * b + c, rounded once."""
    x, y, z = _wide(a, fmt, ftz), _wide(b, fmt, ftz), _wide(c, fmt, ftz)
    with np.errstate(all="ignore"):
        product, addend = np.multiply(x, y, dtype=np.float64), z.astype(np.float64)
        r = _add_exact(product, addend, fmt)
        return _finish(r, fmt, ftz, exact=lambda: _sum_odd(product, addend))


def div(a: Words, b: Words, fmt: Format = FP32) -> Words:
    """a / b, IEEE (the precise division of CUDA, `div.rn`)."""
    with np.errstate(all="ignore"):
        q = np.divide(_wide(a, fmt, False), _wide(b, fmt, False), dtype=np.float64)
    return _finish(_narrow(np.asarray(q), fmt), fmt)


def sqrt(a: Words, fmt: Format = FP32) -> Words:
    """The square root, IEEE (`sqrt.rn`)."""
    with np.errstate(all="ignore"):
        return _finish(_narrow(np.sqrt(_wide(a, fmt, False).astype(np.float64)), fmt), fmt)


def order_key(a: Words, fmt: Format) -> np.ndarray:
    """Signed integers that order words (but NaN) as the hardware does: -0 below +0."""
    signed = np.asarray(a).view(f"i{fmt.bits // 8}")
    return signed ^ ((signed >> (fmt.bits - 1)) & signed.dtype.type(fmt.sign - 1))


def from_order_key(key: np.ndarray, fmt: Format) -> Words:
    """The words of `order_key`'s integers: the same map, its own inverse."""
    return order_key(key, fmt).view(fmt.word)


def _pick(a: Words, b: Words, fmt: Format, ftz: bool, greater: bool) -> Words:
    a, b = np.broadcast_arrays(np.asarray(a, fmt.word), np.asarray(b, fmt.word))
    if ftz:
        a, b = flush(a, fmt), flush(b, fmt)
    x, y = order_key(a, fmt), order_key(b, fmt)
    r = np.where((x > y) if greater else (x < y), a, b)
    nan_a, nan_b = fmt.is_nan(a), fmt.is_nan(b)
    if nan_a.any() or nan_b.any():
        r = np.where(nan_a, np.where(nan_b, fmt.word.type(fmt.nan), b), np.where(nan_b, a, r))
    return r


def fmax(a: Words, b: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """The greater operand (fmaxf): an operand that is not NaN wins, +0 is above -0."""
    return _pick(a, b, fmt, ftz, greater=True)


def fmin(a: Words, b: Words, fmt: Format = FP32, ftz: bool = False) -> Words:
    """The lesser operand (fminf): an operand that is not NaN wins, -0 is below +0."""
    return _pick(a, b, fmt, ftz, greater=False)


def _fp32_to_bf16(a: Words) -> Words:
    """Round float32 words (no NaN) to bfloat16, nearest even."""
    return ((a + np.uint32(0x7FFF) + ((a >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _fp32_to_fp8(a: Words, dst: Format) -> Words:
    """Round float32 words to an 8-bit format, nearest even, saturating at its largest finite value (satfinite)."""
    x = np.abs(a.view(np.float32).astype(np.float64))
    exponent = np.maximum(np.frexp(np.where(np.isfinite(x) & (x > 0), x, 2.0**dst.emin))[1] - 1, dst.emin)
    units = np.rint(np.ldexp(x, dst.fraction_bits - exponent))  # the significand in units of the last place
    # a significand that rounds up to the next power of two carries into the exponent field by itself
    word = units + ((exponent - dst.emin) * 2.0**dst.fraction_bits)
    word = np.minimum(word, dst.max_finite).astype(np.uint8)
    return word | ((a >> np.uint32(24)) & np.uint32(0x80)).astype(np.uint8)


def _widen_table(src: Format) -> Words:
    """Float32 words of all words of an 8- or 16-bit format other than float16."""
    from .formats import values

    return values(np.arange(1 << src.bits, dtype=src.word), src).astype(np.float32).view(np.uint32)


_TABLES: dict[Format, Words] = {}


def _widen(a: Words, src: Format) -> Words:
    if src in (FP32, TF32):
        return a
    if src is FP16:
        return a.view(np.float16).astype(np.float32).view(np.uint32)
    if src is BF16:
        return a.astype(np.uint32) << np.uint32(16)
    if src not in _TABLES:
        _TABLES[src] = _widen_table(src)
    return _TABLES[src][a]


def _to_fp16(a: Words) -> Words:
    with np.errstate(all="ignore"):
        return a.view(np.float32).astype(np.float16).view(np.uint16)


_NARROW: dict[Format, Callable[[Words], Words]] = {
    FP32: lambda a: a,
    FP16: _to_fp16,
    BF16: _fp32_to_bf16,
    E4M3: lambda a: _fp32_to_fp8(a, E4M3),
    E5M2: lambda a: _fp32_to_fp8(a, E5M2),
}


def _to_tf32(a: Words) -> Words:
    """Half a unit is added to what is finite, and the unused bits stay: the tensor core ignores them, casts clear them.

    Source: cutlass/tfloat32.h, which TileLang 0.1.15 compiles (round_half_ulp_truncate); H200, tests/kernels.
    """
    finite = (a & np.uint32(FP32.inf)) != np.uint32(FP32.inf)
    return np.where(finite, a + np.uint32(0x1000), a)


def convert(words: Words, src: Format, dst: Format) -> Words:
    """`words` of `src` as words of `dst`, through float32, rounded to nearest even.

    float16 and bfloat16 overflow to infinity; float8 saturates at the largest finite value (infinity too). NaN becomes
    the NaN word of `dst`, but bfloat16 to float32 is a shift that keeps it, and to and from tfloat32 its bits stay. To
    the same format it is a move.
    Source: docs/NUMERICS.md, section 3 (H200).
    """
    words = np.asarray(words, src.word)
    if src is dst:
        return words
    if dst is TF32:
        return _to_tf32(convert(words, src, FP32))
    if src is TF32:
        words, src = words & np.uint32(0xFFFFE000), FP32
        if dst is FP32:
            return words
    wide = _widen(words, src)
    if dst not in _NARROW:
        raise ValueError(f"no conversion to {dst.name} is modelled")
    with np.errstate(all="ignore"):
        result = _NARROW[dst](wide)
    if src is BF16 and dst is FP32:
        return wide
    nan = src.is_nan(words)
    return np.where(nan, dst.word.type(dst.nan), result) if nan.any() else result
