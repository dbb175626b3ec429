"""Input words by family: each family aims at one way in which arithmetic can go wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim import arith, mufu
from sim.formats import BF16, E4M3, FP16, FP32, Format

__all__ = ["SCALAR", "TENSOR", "operands", "tiles"]

Words = np.ndarray
Shape = tuple[int, ...]


def compose(rng: np.random.Generator, fmt: Format, low: int | Words, high: int | Words, shape: Shape) -> Words:
    """Words with exponent fields in [low, high] (clipped to the format), any sign, half of them with edge fractions."""
    bits = rng.integers(0, 1 << 63, shape, np.int64)  # cut up: a draw for each part would take most of the time
    mask = (1 << fmt.fraction_bits) - 1
    edges = np.array([0, 1, 2, mask, mask - 1, mask >> 1, (mask >> 1) + 1, (mask >> 1) + 2])
    fraction = np.where(bits & 1, bits >> 1 & mask, edges.take(bits >> 24 & 7))
    field = np.clip(
        low + ((bits >> 32 & 0xFFFFF) * (np.asarray(high) - low + 1) >> 20), 0, (1 << fmt.exponent_bits) - 1
    )
    sign = (bits >> 52 & 1) << (fmt.bits - 1)
    return (sign | ((field << fmt.fraction_bits | fraction) << fmt.unused_bits)).astype(fmt.word)


def finite(words: Words, fmt: Format) -> Words:
    """NaN and infinity replaced by the largest finite value of their sign."""
    sign = words & fmt.word.type(fmt.sign)
    return np.where(fmt.is_nan(words) | fmt.is_inf(words), sign | fmt.word.type(fmt.max_finite), words)


def negated(words: Words, fmt: Format) -> Words:
    return words ^ fmt.word.type(fmt.sign)


def nudged(rng: np.random.Generator, words: Words, fmt: Format, reach: int = 2) -> Words:
    """Finite words moved by up to `reach` units in the last place."""
    step = rng.integers(-reach, reach + 1, words.shape) << fmt.unused_bits
    magnitude = np.clip((words & fmt.word.type(fmt.sign - 1)).astype(np.int64) + step, 0, fmt.max_finite)
    return (words & fmt.word.type(fmt.sign)) | magnitude.astype(fmt.word)


# ---- operands of scalar instructions: (rng, format, how many operands, count) -> that many arrays --------------------


def _any(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    return [rng.integers(0, 1 << fmt.bits, count, dtype=np.uint64).astype(fmt.word) for _ in range(arity)]


def _within(low: float, high: float) -> Callable[[np.random.Generator, Format, int, int], list[Words]]:
    """Exponents in a part of the format's range: low and high in units of all its exponents."""

    def family(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
        top = (1 << fmt.exponent_bits) - 1
        return [compose(rng, fmt, round(low * top), round(high * top), (count,)) for _ in range(arity)]

    return family


def _near(where: str) -> Callable[[np.random.Generator, Format, int, int], list[Words]]:
    """a*b near underflow or overflow, and c there too."""

    def family(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
        top, slack = (1 << fmt.exponent_bits) - 1, fmt.fraction_bits
        low, high = (-slack - 4, 4) if where == "underflow" else (top - 3, top + 1)
        total = rng.integers(low, high + 1, count) + fmt.bias  # exponent field of a plus that of b
        first = rng.integers(np.maximum(total - top + 1, 0), np.clip(total, 0, top - 1) + 1)
        a = compose(rng, fmt, first, first, (count,))
        b = compose(rng, fmt, total - first, total - first, (count,))
        return [a, b, compose(rng, fmt, max(low, 0), high, (count,))][:arity]

    return family


def _cancelling(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    """b close to -a, c close to -a*b (with three operands b is free)."""
    a = finite(compose(rng, fmt, 0, (1 << fmt.exponent_bits) - 1, (count,)), fmt)
    if arity < 3:
        return [a, nudged(rng, negated(a, fmt), fmt)][:arity]
    b = compose(rng, fmt, fmt.bias - 4, fmt.bias + 4, (count,))
    return [a, b, nudged(rng, finite(negated(arith.mul(a, b, fmt), fmt), fmt), fmt)]


def _distant(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    """Sums whose lesser term reaches just to the last place of the greater one, or below it."""
    top = (1 << fmt.exponent_bits) - 1
    field = rng.integers(0, top, count)
    a = compose(rng, fmt, field, field, (count,))
    low = field - rng.integers(0, fmt.fraction_bits + 4, count)
    b = compose(rng, fmt, low, low, (count,))
    if arity < 3:
        return [a, b][:arity]
    # a*b against c: b near 1, c far below or above a
    return [a, compose(rng, fmt, fmt.bias - 1, fmt.bias + 1, (count,)), b]


def _edge_words(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    """Zeros, infinities, NaN payloads, ends of the ranges, 1 and its neighbours, in any combination."""
    one, least = fmt.bias << fmt.fraction_bits, fmt.min_normal
    nans = [fmt.inf + 1, fmt.inf + (least >> 1), fmt.inf + (least >> 1) + 1, fmt.nan] if fmt.infinities else [fmt.nan]
    ends = [0, 1, 2, least - 1, least, least + 1, 2 * least, fmt.max_finite, fmt.max_finite - 1, one, one - 1, one + 1]
    pool = np.array(ends + nans + ([fmt.inf] if fmt.infinities else []), np.uint64)
    pool = np.concatenate([pool, pool | np.uint64(fmt.sign)]).astype(fmt.word)
    return [rng.choice(pool, count) for _ in range(arity)]


def _border(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    """a*b (or a*rcp(b), or a*b + c) a fraction of a unit around the least normal value."""
    bits = fmt.fraction_bits + 1
    b = compose(rng, fmt, 30 if fmt is not FP16 else 8, fmt.bias + 2, (count,))
    factor = b
    if fmt is FP32:  # half of the pairs are for a / b
        divide = rng.random(count) < 0.5
        b = np.where(divide, compose(rng, fmt, fmt.bias + 1, 2 * fmt.bias - 2, (count,)), b)
        factor = np.where(divide, mufu.rcp(b), b)
    significand = ((factor & fmt.word.type(least := fmt.min_normal - 1)) | fmt.word.type(least + 1)).astype(np.int64)
    quotient = (1 << (2 * bits - 1)) // significand + rng.integers(-1, 2, count)
    quotient = np.clip(quotient, 1 << (bits - 1), (1 << bits) - 1)
    exponent = ((factor & fmt.word.type(fmt.exponent_mask)) >> fmt.word.type(fmt.fraction_bits)).astype(np.int64)
    field = np.clip(fmt.bias - exponent + rng.integers(-1, 2, count), 1, 2 * fmt.bias)
    sign = rng.integers(0, 2, count) << (fmt.bits - 1)
    a = (sign | (field << fmt.fraction_bits) | (quotient & (fmt.min_normal - 1))).astype(fmt.word)
    c = np.where(
        rng.random(count) < 0.5, compose(rng, fmt, 0, 1, (count,)), rng.choice(np.array([0, 1], fmt.word), count)
    )
    return [a, b, c][:arity]


def _large_divisor(rng: np.random.Generator, fmt: Format, arity: int, count: int) -> list[Words]:
    top = (1 << fmt.exponent_bits) - 1
    a = compose(rng, fmt, 0, top, (count,))
    return [a, *(compose(rng, fmt, top - 3, top, (count,)) for _ in range(arity - 1))]


SCALAR = {
    "any": _any,
    "ordinary": _within(0.46, 0.54),
    "wide": _within(0.25, 0.75),
    "top": _within(0.97, 1.0),
    "bottom": _within(0.0, 0.03),
    "near underflow": _near("underflow"),
    "near overflow": _near("overflow"),
    "cancelling": _cancelling,
    "distant": _distant,
    "edge words": _edge_words,
    "border": _border,
    "large divisor": _large_divisor,
}


def operands(family: str, fmt: Format, arity: int, count: int, rng: np.random.Generator) -> list[Words]:
    """`arity` arrays of `count` words of `fmt`."""
    return SCALAR[family](rng, fmt, arity, count)


# ---- tiles of tensor-core operands: a [tiles, M, K], b [tiles, N, K], c [tiles, M, N] --------------------------------

Tiles = tuple[Words, Words, Words]


def _normal_words(rng: np.random.Generator, fmt: Format, shape: Shape, scale: float = 1.0) -> Words:
    words = (rng.standard_normal(shape, np.float32) * np.float32(scale)).view(np.uint32)
    if fmt.name == "tfloat32":
        return words  # with its 13 ignored bits, which are not zero
    return arith.convert(words, FP32, fmt)


def _normal(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    return (
        _normal_words(rng, fmt, a),
        _normal_words(rng, fmt, b),
        _normal_words(rng, acc, c, rng.choice([0, 1, 4, 100])),
    )


def _wide(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Any finite operands; accumulators of any size that products have."""
    top = (1 << fmt.exponent_bits) - 1
    span = 2 * fmt.bias + 4
    x, y = (finite(compose(rng, fmt, 0, top, s), fmt) for s in (a, b))
    return x, y, finite(compose(rng, acc, acc.bias - span, acc.bias + span, c), acc)


def _spread(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Exponents that differ by about as many places as the sum keeps, so that most terms are cut somewhere."""
    reach = min(fmt.bias - 1, int(rng.integers(2, 12)))
    x, y = (finite(compose(rng, fmt, fmt.bias - reach, fmt.bias + reach, s), fmt) for s in (a, b))
    return x, y, finite(compose(rng, acc, acc.bias - 2 * reach - 4, acc.bias + 2 * reach + 4, c), acc)


def _zeros(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Signed zeros in half of the operands, or in nearly all of them; in half of the accumulators."""

    def zeroed(words: Words, f: Format, part: float) -> Words:
        return np.where(rng.random(words.shape) < part, words & f.word.type(f.sign), words)

    x, y, z = _spread(rng, fmt, acc, a, b, c)
    part = rng.choice([0.3, 0.5, 0.9, 0.97])
    return zeroed(x, fmt, part), zeroed(y, fmt, part), zeroed(z, acc, 0.5)


def _faint(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Nearly all products zero, of operands of any size, and accumulators smaller than everything else."""
    x, y = (finite(compose(rng, fmt, 0, (1 << fmt.exponent_bits) - 1, s), fmt) for s in (a, b))
    z = finite(compose(rng, acc, 0, acc.bias, c), acc)
    return np.where(rng.random(a) < 0.98, x & fmt.word.type(fmt.sign), x), y, z


def _subnormal(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Subnormal operands, and products and accumulators about the accumulator's subnormal range."""
    if fmt.exponent_bits == 8:
        middle = int(rng.integers(20, 90)) if rng.random() < 0.7 else 0  # of a's exponent field; 0: a is subnormal
        other = 2 * fmt.bias + acc.emin - int(rng.integers(0, 30)) - max(middle, 1)
        x = compose(rng, fmt, max(middle - 6, 0), middle + (6 if middle else 1), a)
        y = compose(rng, fmt, max(other - 6, 0), other + 6, b)
        return x, y, finite(compose(rng, acc, 0, int(rng.integers(0, 24)), c), acc)
    x, y = compose(rng, fmt, 0, 2, a), compose(rng, fmt, 0, int(rng.integers(1, 4)), b)
    least = 2 * (fmt.emin - fmt.fraction_bits) + acc.bias
    z = compose(rng, acc, max(least - 6, 0), max(least + 20, 3), c)
    return x, y, np.where(rng.random(c) < 0.3, compose(rng, acc, 0, 1, c), finite(z, acc))


def _special(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """A few infinities, NaN and zeros among ordinary operands; -inf, inf and NaN accumulators."""

    def salted(words: Words, f: Format, part: float) -> Words:
        pool = [0, f.sign, f.nan, f.nan | f.sign]
        if f.infinities:
            pool += [f.inf, f.inf | f.sign, f.inf | f.sign, f.inf + f.min_normal // 2, f.inf + (1 << f.unused_bits)]
        return np.where(rng.random(words.shape) < part, rng.choice(np.array(pool, f.word), words.shape), words)

    x, y, z = _normal(rng, fmt, acc, a, b, c)
    part = rng.choice([0.002, 0.01, 0.05])
    return salted(x, fmt, part), salted(y, fmt, part), salted(z, acc, rng.choice([0.02, 0.3]))


def _cancel(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Products that cancel in pairs, exactly or but for a last place."""
    x, y, z = _spread(rng, fmt, acc, a, b, c)
    x[..., 1::2] = x[..., ::2]
    mirrored = negated(y[..., ::2], fmt)
    y[..., 1::2] = np.where(rng.random(mirrored.shape) < 0.3, nudged(rng, mirrored, fmt, 1), mirrored)
    order = rng.permutation(x.shape[-1])
    small = finite(compose(rng, acc, acc.bias - 40 if acc is FP32 else 0, acc.bias - 8, c), acc)
    return x[..., order], y[..., order], np.where(rng.random(c) < 0.5, small, z)


def _edges(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Significands of all ones or a single one, few exponents: carries through the whole sum."""

    def ends(f: Format, shape: Shape, fields: list[int]) -> Words:
        mask = (1 << f.fraction_bits) - 1
        fraction = rng.choice(np.array([0, mask, mask, 1, mask >> 1]), shape)
        field = rng.choice(np.array(fields), shape)
        sign = (rng.random(shape) < rng.choice([0.0, 0.1, 0.5])).astype(np.int64) << (f.bits - 1)
        return finite((sign | (((field << f.fraction_bits) | fraction) << f.unused_bits)).astype(f.word), f)

    close, apart = [fmt.bias - 1, fmt.bias, fmt.bias + 1], [0, 1, fmt.bias, 2 * fmt.bias, 2 * fmt.bias + 1]
    fields = close if rng.random() < 0.6 else apart
    sums = [acc.bias - 12, acc.bias - 1, acc.bias, acc.bias + 1, acc.bias + 4, acc.bias + 5, 0, 2 * acc.bias]
    return ends(fmt, a, fields), ends(fmt, b, fields), ends(acc, c, sums)


def _overflow(rng: np.random.Generator, fmt: Format, acc: Format, a: Shape, b: Shape, c: Shape) -> Tiles:
    """Products and accumulators about the accumulator's largest value, of both signs."""
    most = (1 << acc.exponent_bits) - 2
    if fmt.exponent_bits == 8:
        middle = int(rng.integers(fmt.bias, 2 * fmt.bias))
        other = 2 * fmt.bias + acc.emax - middle - int(rng.integers(-2, 6))
        x, y = compose(rng, fmt, middle - 2, middle + 2, a), compose(rng, fmt, other - 2, other + 2, b)
    else:
        middle = fmt.bias + acc.emax // 2 - 1 if acc.exponent_bits == fmt.exponent_bits else 2 * fmt.bias
        x, y = compose(rng, fmt, middle - 3, middle + 1, a), compose(rng, fmt, middle - 3, middle + 1, b)
    return finite(x, fmt), finite(y, fmt), finite(compose(rng, acc, most - 6, most, c), acc)


TENSOR = {
    "normal": _normal,
    "wide": _wide,
    "spread": _spread,
    "zeros": _zeros,
    "faint": _faint,
    "subnormal": _subnormal,
    "special": _special,
    "cancelling": _cancel,
    "edges": _edges,
    "overflow": _overflow,
}


def tiles(family: str, fmt: Format, acc: Format, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Tiles:
    """Words a [tiles, M, K], b [tiles, N, K] of `fmt` and c [tiles, M, N] of `acc`, shape = (tiles, M, N, K).

    Every 16th tile or so is drawn anew, so that a family's own choices vary within a call.
    """
    count, m, n, k = shape
    parts = [min(16, count - start) for start in range(0, count, 16)]
    made = [TENSOR[family](rng, fmt, acc, (t, m, k), (t, n, k), (t, m, n)) for t in parts]
    a, b, c = (np.concatenate([part[i] for part in made]) for i in range(3))
    return a, b, c


assert BF16.exponent_bits == 8 and not E4M3.infinities  # what the families above take for granted
