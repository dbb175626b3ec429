"""Words to test with, in families by name, and a comparison that shows the simplest difference.

A family is a function that makes operands from a random generator; what is drawn by hypothesis is a family and a seed,
so that one example is an array of words. Operands of scalar operators come as triples (a, b, c); add looks at a and b.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

import numpy as np
import spec
from hypothesis import strategies as st

from sim.arch import DotProduct
from sim.formats import Format

Triple = tuple[int, int, int]

seeds = st.integers(0, 2**32 - 1)


def assert_same(got: np.ndarray, want: np.ndarray, fmt: Format, **operands: np.ndarray) -> None:
    """Fails with the simplest of the elements that differ: those with the fewest bits set. Words in hexadecimal."""
    got, want = np.asarray(got), np.asarray(want, fmt.word)
    assert got.dtype == fmt.word and got.shape == want.shape, f"{got.dtype} {got.shape}, not {fmt.word} {want.shape}"
    arrays = {name: np.broadcast_to(array, want.shape) for name, array in operands.items()}
    wrong = sorted(zip(*np.nonzero(got != want)), key=lambda at: sum(int(w[at]).bit_count() for w in arrays.values()))
    lines = [
        ", ".join(f"{name} {int(array[at]):#x}" for name, array in arrays.items())
        + f": got {int(got[at]):#x}, want {int(want[at]):#x}"
        for at in wrong[:5]
    ]
    assert not wrong, f"{len(wrong)} of {want.size} words differ\n" + "\n".join(lines)


# single words


@lru_cache
def edges(fmt: Format) -> dict[str, list[int]]:
    """Words at the edges of an IEEE format, both signs, by name."""
    one, top, ulp = fmt.bias << fmt.fraction_bits, 1 << (fmt.fraction_bits - 1), 1
    exponents = [fmt.emin, fmt.emin + 1, -fmt.fraction_bits - 1, -1, 0, 1, fmt.emax - 1, fmt.emax]
    powers = [(exponent + fmt.bias) << fmt.fraction_bits for exponent in exponents]
    positive = {
        "zero": [0],
        "subnormal": [1, 2, 3, top, fmt.min_normal - 2, fmt.min_normal - 1],
        "around the smallest normal": [fmt.min_normal, fmt.min_normal + 1, 2 * fmt.min_normal - 1, 2 * fmt.min_normal],
        "power of two": powers,
        "all-ones fraction": [power | fmt.fraction_mask for power in powers],
        "around one": [one - ulp, one + ulp, one + 2 * ulp, one + top, one + top + ulp],
        "largest finite": [fmt.max_finite - 1, fmt.max_finite],
        "infinity": [fmt.inf],
        "NaN": [fmt.inf + 1, fmt.inf + top, fmt.inf + top + 1, fmt.nan],
    }
    return {name: words + [word | fmt.sign for word in words] for name, words in positive.items()}


def all_edges(fmt: Format) -> list[int]:
    return sorted({word for words in edges(fmt).values() for word in words})


def word(fmt: Format) -> st.SearchStrategy[int]:
    """Any word of an IEEE format, an edge about as often as not."""
    return st.sampled_from(all_edges(fmt)) | st.integers(0, 2**fmt.bits - 1)


def arrays(fmt: Format, count: int, min_size: int = 1) -> st.SearchStrategy[list[np.ndarray]]:
    """`count` arrays of any words, of one length."""
    rows = st.lists(st.tuples(*[word(fmt)] * count), min_size=min_size, max_size=64)
    return rows.map(lambda rows: [np.array(column, fmt.word) for column in zip(*rows)])


def every(fmt: Format) -> np.ndarray:
    """Every word of an 8- or 16-bit format."""
    return np.arange(1 << fmt.bits, dtype=fmt.word)


def finite(rng: Random, fmt: Format, low: int = -4, high: int = 4) -> int:
    """A normal word with its exponent in [low, high], cut to what the format has; often with few ones or few zeros."""
    field = min(max(rng.randint(low, high), fmt.emin), fmt.bias) + fmt.bias
    bits = rng.getrandbits(fmt.fraction_bits)
    some = 1 << rng.randrange(fmt.fraction_bits)
    fraction = rng.choice([bits, bits, 0, some, some - 1, fmt.fraction_mask, fmt.fraction_mask - some])
    return rng.getrandbits(1) * fmt.sign | field << fmt.fraction_bits | fraction


def neighbour(rng: Random, word: int, fmt: Format, most: int = 2) -> int:
    """A word at most `most` away with the same sign, not above infinity."""
    magnitude = (word & (fmt.sign - 1)) + rng.randint(-most, most)
    return word & fmt.sign | min(max(magnitude, 0), fmt.inf)


def near_power(rng: Random, fmt: Format, exponent: int) -> tuple[int, int]:
    """Two words with a product at, just below, or just above 2^exponent, often closer to it than any word is."""
    k = rng.randint(max(fmt.emin, exponent - fmt.bias), min(fmt.bias, exponent - fmt.emin))
    step = rng.choice([0, 1, 1, 1, 2, 3, rng.randrange(1 << (fmt.fraction_bits // 2))])
    above = ((k + fmt.bias) << fmt.fraction_bits) + step
    other = (exponent - k + fmt.bias) << fmt.fraction_bits
    below = max(other + rng.choice([-2 * step, -2 * step, -2 * step, -2 * step - 1, step]), 0)
    pair = [above | rng.getrandbits(1) * fmt.sign, below | rng.getrandbits(1) * fmt.sign]
    rng.shuffle(pair)
    return pair[0], pair[1]


def exponent_of(word: int, fmt: Format) -> int:
    return max((word & fmt.exponent_mask) >> fmt.fraction_bits, 1) - fmt.bias


# families of triples


def any_words(rng: Random, fmt: Format) -> Triple:
    return rng.getrandbits(fmt.bits), rng.getrandbits(fmt.bits), rng.getrandbits(fmt.bits)


def edge_words(rng: Random, fmt: Format) -> Triple:
    a, b, c = (rng.choice(rng.choice(list(edges(fmt).values()))) for _ in range(3))
    return a, b, c


def edge_and_any(rng: Random, fmt: Format) -> Triple:
    triple = [*edge_words(rng, fmt)[:2], finite(rng, fmt, -300, 300)]
    rng.shuffle(triple)
    return triple[0], triple[1], triple[2]


def ordinary(rng: Random, fmt: Format) -> Triple:
    return finite(rng, fmt), finite(rng, fmt), finite(rng, fmt)


def subnormal(rng: Random, fmt: Format) -> Triple:
    """Exponents at the bottom, most words subnormal."""
    low = [rng.getrandbits(fmt.fraction_bits + rng.choice([0, 0, 2])) for _ in range(3)]
    a, b, c = (word | rng.getrandbits(1) * fmt.sign for word in low)
    return rng.choice([a, finite(rng, fmt)]), b, c


def cancelling_sum(rng: Random, fmt: Format) -> Triple:
    """b is -a or a few words beside it."""
    a = finite(rng, fmt, *rng.choice([(-4, 4), (fmt.emin, fmt.emin + 3), (fmt.bias - 1, fmt.bias)]))
    return a, neighbour(rng, a ^ fmt.sign, fmt), finite(rng, fmt)


def cancelling_product(rng: Random, fmt: Format) -> Triple:
    """c is -(a * b) or a few words beside it."""
    a, b = finite(rng, fmt), finite(rng, fmt, *rng.choice([(-4, 4), (fmt.emin, fmt.emin + 8)]))
    return a, b, neighbour(rng, spec.mul(a, b, fmt) ^ fmt.sign, fmt)


def tie(rng: Random, fmt: Format) -> Triple:
    """b is half an ulp of a, or a word beside it."""
    a = finite(rng, fmt, fmt.emin + fmt.fraction_bits + 1, fmt.bias)
    half_ulp = (exponent_of(a, fmt) - fmt.fraction_bits - 1 + fmt.bias) << fmt.fraction_bits
    return a, neighbour(rng, max(half_ulp, 1) | rng.getrandbits(1) * fmt.sign, fmt, 1), finite(rng, fmt)


def short(rng: Random, fmt: Format) -> Triple:
    """a * b has one bit more than a word holds, or two: ties. c may stand anywhere in the product's way."""
    cut = rng.randint(0, fmt.fraction_bits - 1)
    other = max(fmt.fraction_bits - 1 - cut, 0)
    odd = [((finite(rng, fmt) >> n) | 1) << n for n in (cut, other)]
    return odd[0], odd[1], finite(rng, fmt, -fmt.fraction_bits, 4)


def double_rounding(rng: Random, fmt: Format) -> Triple:
    """a * b is half an ulp of c, or nearer to it than twice the precision shows."""
    normal = finite(rng, fmt, *rng.choice([(-4, 4), (fmt.emin, fmt.emin + 2), (fmt.bias, fmt.bias)]))
    c = rng.choice([normal, normal, subnormal(rng, fmt)[1]])
    return *near_power(rng, fmt, exponent_of(c, fmt) - fmt.fraction_bits - rng.choice([0, 1, 1, 1, 2])), c


def underflow(rng: Random, fmt: Format) -> Triple:
    """a * b around the smallest normal value or below it; a / c as well."""
    if rng.getrandbits(1):
        a, b = near_power(rng, fmt, fmt.emin - rng.choice([0, 0, 0, 1, fmt.fraction_bits, fmt.fraction_bits + 1]))
    else:
        a = finite(rng, fmt, 0, 8)
        b = neighbour(rng, spec.div(rng.choice([fmt.min_normal, rng.getrandbits(fmt.fraction_bits)]), a, fmt), fmt)
    return a, b, rng.choice([0, fmt.sign, 1, fmt.sign | 1, rng.getrandbits(fmt.fraction_bits)])


def overflow(rng: Random, fmt: Format) -> Triple:
    """a * b around the largest finite value, or half an ulp of it beside c, the largest finite value."""
    c = rng.choice([0, fmt.max_finite, fmt.max_finite | fmt.sign])
    if rng.getrandbits(1):
        return *near_power(rng, fmt, fmt.bias + 1 - rng.choice([0, 0, fmt.fraction_bits + 1, fmt.fraction_bits + 2])), c
    a = finite(rng, fmt, -8, 8)
    return a, neighbour(rng, spec.div(fmt.max_finite, a, fmt), fmt), c


def quotient(rng: Random, fmt: Format) -> Triple:
    """a / b near a word, also a subnormal one; the root of c near a word."""
    b, q = finite(rng, fmt), rng.choice([finite(rng, fmt), rng.getrandbits(fmt.fraction_bits + 1)])
    return neighbour(rng, spec.mul(b, q, fmt), fmt), b, neighbour(rng, spec.mul(q, q, fmt), fmt)


FAMILIES: dict[str, Callable[[Random, Format], Triple]] = {
    f.__name__: f
    for f in (any_words, edge_words, edge_and_any, ordinary, subnormal, cancelling_sum, cancelling_product, tie, short)
    + (double_rounding, underflow, overflow, quotient)
}


def triples(family: str, seed: int, fmt: Format, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`size` triples of a family as three arrays of words."""
    rng = Random(seed)
    a, b, c = zip(*(FAMILIES[family](rng, fmt) for _ in range(size)))
    return np.array(a, fmt.word), np.array(b, fmt.word), np.array(c, fmt.word)


# families of matrices for the dot product: a [M, K], b [N, K], c [M, N]

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
M, N = 3, 5


def matrix(
    rng: np.random.Generator,
    fmt: Format,
    shape: tuple[int, ...],
    low: int | np.ndarray,
    high: int | np.ndarray,
    fractions: list[int] | None = None,
) -> np.ndarray:
    """Finite words with exponents in [low, high], cut to what the format has; emin - 1 stands for subnormal words.

    fractions: what the fraction field is drawn from; None for anything.
    """
    field = np.clip(rng.integers(low, high + 1, shape), fmt.emin - 1, fmt.emax) + fmt.bias
    fraction = rng.integers(0, 2**fmt.fraction_bits, shape) if fractions is None else rng.choice(fractions, shape)
    magnitude = (field << fmt.fraction_bits | fraction) << fmt.unused_bits
    ignored = rng.integers(0, 2**fmt.unused_bits, shape)
    return (np.minimum(magnitude, fmt.max_finite) | ignored | rng.integers(0, 2, shape) * fmt.sign).astype(fmt.word)


def sprinkle(rng: np.random.Generator, words: np.ndarray, odds: float, specials: list[int]) -> np.ndarray:
    """Some words replaced by special ones."""
    return np.where(rng.random(words.shape) < odds, rng.choice(specials, words.shape), words).astype(words.dtype)


def specials(fmt: Format) -> list[int]:
    positive = [0, fmt.nan, *([fmt.inf, fmt.inf + fmt.min_normal // 2] if fmt.infinities else [])]
    return positive + [word | fmt.sign for word in positive]


def normal(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    a, b = matrix(rng, unit.operand, (M, K), -4, 1), matrix(rng, unit.operand, (N, K), -4, 1)
    return a, b, matrix(rng, unit.accumulator, (M, N), -6, 4)


def wide(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Exponents from end to end."""
    emin, emax = unit.operand.emin, unit.operand.emax
    a, b = matrix(rng, unit.operand, (M, K), emin - 1, emax), matrix(rng, unit.operand, (N, K), emin - 1, emax)
    return a, b, matrix(rng, unit.accumulator, (M, N), 2 * emin - 1, 2 * emax)


def zeros(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Many zeros of both signs; some rows have nothing else."""
    a, b, c = normal(rng, unit, K)
    a[0], c[0] = sprinkle(rng, a[0], 1, [0, unit.operand.sign]), sprinkle(rng, c[0], 0.7, [0, unit.accumulator.sign])
    both = [0, unit.operand.sign]
    return sprinkle(rng, a, 0.5, both), sprinkle(rng, b, 0.5, both), sprinkle(rng, c, 0.5, [0, unit.accumulator.sign])


def subnormals(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Subnormal operands against large and small ones; c subnormal or small."""
    emin, emax = unit.operand.emin, unit.operand.emax
    a = matrix(rng, unit.operand, (M, K), emin - 1, emin)
    b = matrix(rng, unit.operand, (N, K), *[(emin - 1, emin), (0, 3), (emax - 2, emax)][rng.integers(3)])
    return a, b, matrix(rng, unit.accumulator, (M, N), unit.accumulator.emin - 1, max(unit.accumulator.emin, emin))


def special(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Infinities, NaNs and zeros among ordinary words; accumulators that a mask has set to -inf."""
    a, b, c = normal(rng, unit, K)
    a, b = (sprinkle(rng, words, 0.4 / K, specials(unit.operand)) for words in (a, b))
    c = sprinkle(rng, c, 0.3, [unit.accumulator.inf | unit.accumulator.sign])
    return a, b, sprinkle(rng, c, 0.2, specials(unit.accumulator))


def cancelling(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Products in pairs that cancel, or nearly; c small, or minus the product itself."""
    a, b, c = normal(rng, unit, K)
    half = K // 2
    a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], b[:, :half] ^ b.dtype.type(unit.operand.sign)
    a = sprinkle(rng, a, 0.5 / K, [1 << unit.operand.unused_bits])
    b = sprinkle(rng, b, 0.5 / K, [unit.operand.min_normal])
    c[0] = matrix(rng, unit.accumulator, (N,), -40, -8)
    c[1] = spec_dot(a[1:2], b, np.zeros_like(c), unit)[0] ^ c.dtype.type(unit.accumulator.sign)
    order = rng.permutation(K)
    return a[:, order], b[:, order], c


def edge(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Fractions of no ones or all ones, exponents at both ends: products beyond fp32 that may cancel."""
    fmt, acc, half = unit.operand, unit.accumulator, K // 2
    ends = [(fmt.emax, fmt.emax), (fmt.emax - 1, fmt.emax), (fmt.emin - 1, fmt.emin), (0, 1)]
    acc_ends = [(acc.emax, acc.emax), (acc.emin - 1, acc.emin), (-2, 2)]
    a, b = (matrix(rng, fmt, (rows, K), *ends[rng.integers(4)], [0, 0, 1, 2**fmt.fraction_bits - 1]) for rows in (M, N))
    a[:, half : 2 * half] = np.where(rng.random((M, half)) < 0.8, a[:, :half], a[:, half : 2 * half])
    opposite = b[:, :half] ^ b.dtype.type(fmt.sign)
    b[:, half : 2 * half] = np.where(rng.random((N, half)) < 0.5, opposite, b[:, half : 2 * half])
    return a, b, matrix(rng, acc, (M, N), *acc_ends[rng.integers(3)], [0, 2**acc.fraction_bits - 1])


def piled_up(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Products that are as large as one exponent allows, all of one sign: the largest sum a step can have."""
    exponent, ones = int(rng.integers(-3, 4)), [2**unit.operand.fraction_bits - 1]
    a, b = (matrix(rng, unit.operand, (rows, K), exponent, exponent, ones) for rows in (M, N))
    a, b = a & a.dtype.type(unit.operand.sign - 1), b & b.dtype.type(unit.operand.sign - 1)
    a[0] |= a.dtype.type(unit.operand.sign)
    c_ones = [2**unit.accumulator.fraction_bits - 1]
    return a, b, matrix(rng, unit.accumulator, (M, N), 2 * exponent, 2 * exponent + 1, c_ones)


def scaled(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Every exponent within a few of one that lies anywhere in the range."""
    at = int(rng.integers(unit.operand.emin, unit.operand.emax + 1))
    a, b = matrix(rng, unit.operand, (M, K), at - 2, at + 1), matrix(rng, unit.operand, (N, K), at - 2, at + 1)
    return a, b, sprinkle(rng, matrix(rng, unit.accumulator, (M, N), 2 * at - 4, 2 * at + 4), 0.3, [0])


def floor(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Some products under the least exponent that terms are aligned to, some under the last bit that it keeps."""
    at = unit.floor if unit.floor is not None else unit.accumulator.emin - 7
    exponents = np.where(rng.random(K) < 0.5, at - rng.integers(-1, 12, K), at - unit.F - rng.integers(-2, 8, K))
    half, few = exponents // 2, [0, 1, 2 ** (unit.operand.fraction_bits - 1)]
    a = matrix(rng, unit.operand, (M, K), half, half, few)
    b = matrix(rng, unit.operand, (N, K), exponents - half, exponents - half, few)
    c = matrix(rng, unit.accumulator, (M, N), unit.accumulator.emin - 1, unit.accumulator.emin)
    a = sprinkle(rng, a, 1 - 4 / K, [0, unit.operand.sign])
    return a, b, sprinkle(rng, c, 0.9, [0, unit.accumulator.sign])


def faint(rng: np.random.Generator, unit: DotProduct, K: int) -> Matrices:
    """Nearly all products zero, of operands of any size, and an accumulator that is smaller than all the others."""
    emin, emax = unit.operand.emin, unit.operand.emax
    a, b = matrix(rng, unit.operand, (M, K), emin, emax), matrix(rng, unit.operand, (N, K), emin, emax)
    c = matrix(rng, unit.accumulator, (M, N), unit.accumulator.emin - 1, 0)
    return sprinkle(rng, a, 1 - 0.3 / K, [0, unit.operand.sign]), b, c


DOT_FAMILIES: dict[str, Callable[[np.random.Generator, DotProduct, int], Matrices]] = {
    f.__name__: f for f in (normal, wide, zeros, subnormals, special, cancelling, edge, piled_up, scaled, floor, faint)
}


def matrices(family: str, seed: int, unit: DotProduct, K: int) -> Matrices:
    """Operands a [M, K], b [N, K] and accumulator c [M, N] of a family, as words."""
    return DOT_FAMILIES[family](np.random.default_rng(seed), unit, K)


def spec_dot(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> np.ndarray:
    """The specification's dot products of every row of a with every row of b."""
    facts = (unit.L, unit.F, unit.out, unit.floor, unit.operand, unit.accumulator)
    rows = [[spec.dot(x, y, z, *facts) for y, z in zip(b.tolist(), cs)] for x, cs in zip(a.tolist(), c.tolist())]
    return np.array(rows, unit.accumulator.word)
