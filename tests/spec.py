"""The specification: float words with plain Python integers and fractions, one element at a time.

Slow and obvious. Of a format it reads the facts (field widths, infinities, the NaN word) and nothing that is derived
from them; it shares no code with sim. Every operator here takes and returns words.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache
from math import isqrt, prod
from typing import Literal, NamedTuple

from sim.formats import Format


class Kind(Enum):
    """What a word stands for; FINITE is not zero."""

    ZERO = "zero"
    FINITE = "finite"
    INF = "inf"
    NAN = "nan"


ZERO, FINITE, INF, NAN = Kind


class Number(NamedTuple):
    """A real number, exactly, with a sign that zero has too; or an infinity; or NaN."""

    sign: int  # +1 or -1
    magnitude: Fraction | Kind  # at least 0, or INF, or NAN


PLUS_ZERO, NOT_A_NUMBER = Number(+1, Fraction(0)), Number(+1, NAN)


# words and numbers


def unpack(word: int, fmt: Format) -> tuple[int, int, int]:
    """Sign (+1 or -1), exponent field and fraction field."""
    rest, fraction = divmod(int(word) >> fmt.unused_bits, 2**fmt.fraction_bits)
    sign, exponent = divmod(rest, 2**fmt.exponent_bits)
    return (-1 if sign else +1), exponent, fraction


def min_exponent(fmt: Format) -> int:
    """Exponent of the smallest normal value, and of every subnormal one."""
    return 2 - 2 ** (fmt.exponent_bits - 1)


def scientific(word: int, fmt: Format) -> tuple[int, int]:
    """(significand, exponent) of a finite word: its magnitude is significand * 2^(exponent - fraction_bits)."""
    _, exponent, fraction = unpack(word, fmt)
    if exponent == 0:
        return fraction, min_exponent(fmt)
    return fraction + 2**fmt.fraction_bits, exponent - 1 + min_exponent(fmt)


def kind(word: int, fmt: Format) -> Kind:
    """What a word stands for."""
    _, exponent, fraction = unpack(word, fmt)
    if fmt.infinities and exponent == 2**fmt.exponent_bits - 1:
        return NAN if fraction else INF
    if not fmt.infinities and (exponent, fraction) == unpack(fmt.nan, fmt)[1:]:
        return NAN
    return FINITE if exponent or fraction else ZERO


@lru_cache(maxsize=1 << 17)
def decode(word: int, fmt: Format) -> Number:
    """The number that a word stands for."""
    sign, what = unpack(word, fmt)[0], kind(word, fmt)
    if what in (INF, NAN):
        return Number(sign, what)
    significand, exponent = scientific(word, fmt)
    return Number(sign, significand * power_of_two(exponent - fmt.fraction_bits))


def round_(
    number: Number,
    fmt: Format,
    mode: Literal["rne", "rz"] = "rne",
    overflow: Literal["inf", "saturate"] = "inf",
) -> int:
    """The word nearest to a number (rne, ties to even), or the nearest one that is not larger in magnitude (rz).

    overflow: what follows the largest finite value, in both modes: infinity ("inf"), or that value again ("saturate").
    """
    sign, magnitude = number
    if magnitude is NAN:
        return fmt.nan
    infinity = (2**fmt.exponent_bits - 1) << fmt.fraction_bits
    max_finite = infinity - 1 if fmt.infinities else (fmt.nan >> fmt.unused_bits) - 1
    if magnitude is INF:
        word = max_finite + 1
    else:
        # Neighbouring words are neighbouring values: count the steps, one exponent after the other.
        exponent = max(floor_log2(magnitude), min_exponent(fmt)) if magnitude else min_exponent(fmt)
        steps = round_integer(magnitude / power_of_two(exponent - fmt.fraction_bits), mode)
        word = steps + ((exponent - min_exponent(fmt)) << fmt.fraction_bits)
    if word > max_finite:
        if overflow == "inf" and not fmt.infinities:
            raise ValueError(f"{fmt.name} has no infinity")
        word = infinity if overflow == "inf" else max_finite
    sign_bit = 1 << (fmt.exponent_bits + fmt.fraction_bits)
    return (word + (sign_bit if sign < 0 else 0)) << fmt.unused_bits


def round_integer(value: Fraction, mode: Literal["rne", "rz"]) -> int:
    """An integer near a value that is not negative: the nearest, ties to even (rne), or the one below (rz)."""
    numerator, denominator = value.as_integer_ratio()
    below, rest = divmod(numerator, denominator)
    up = mode == "rne" and (2 * rest > denominator or (2 * rest == denominator and below % 2 == 1))
    return below + up


@cache
def power_of_two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def floor_log2(magnitude: Fraction) -> int:
    """Exponent of the leading bit of a value above 0."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if magnitude >= power_of_two(guess) else guess - 1


# exact arithmetic on numbers


def negate(x: Number) -> Number:
    return Number(-x.sign, x.magnitude)


def plus(x: Number, y: Number) -> Number:
    """x + y. Zero is negative only when both are negative zeros."""
    if x.magnitude is NAN or y.magnitude is NAN:
        return NOT_A_NUMBER
    if x.magnitude is INF or y.magnitude is INF:
        if x.magnitude is y.magnitude and x.sign != y.sign:
            return NOT_A_NUMBER
        return x if x.magnitude is INF else y
    total = x.sign * x.magnitude + y.sign * y.magnitude
    if total == 0:
        return x if x == y else PLUS_ZERO
    return Number(+1 if total > 0 else -1, abs(total))


def times(x: Number, y: Number) -> Number:
    """x * y. Infinity times zero is NaN."""
    if x.magnitude is NAN or y.magnitude is NAN:
        return NOT_A_NUMBER
    if x.magnitude is INF or y.magnitude is INF:
        return NOT_A_NUMBER if 0 in (x.magnitude, y.magnitude) else Number(x.sign * y.sign, INF)
    return Number(x.sign * y.sign, x.magnitude * y.magnitude)


def over(x: Number, y: Number) -> Number:
    """x / y. Infinity over infinity and zero over zero are NaN; anything else over zero is an infinity."""
    if x.magnitude is NAN or y.magnitude is NAN:
        return NOT_A_NUMBER
    if x.magnitude is INF or y.magnitude == 0:
        return NOT_A_NUMBER if x.magnitude == y.magnitude else Number(x.sign * y.sign, INF)
    return Number(x.sign * y.sign, Fraction(0) if y.magnitude is INF else x.magnitude / y.magnitude)


def root(x: Number) -> Number:
    """A number that rounds as the root of x does: cut 200 bits after the point and, if that cuts, half a bit more."""
    if x.magnitude is NAN or x.magnitude == 0:
        return x
    if x.sign < 0:
        return NOT_A_NUMBER
    if x.magnitude is INF:
        return x
    square = x.magnitude * 4**200
    assert square.denominator == 1
    below = isqrt(square.numerator)
    return Number(+1, Fraction(below if below**2 == square else below + Fraction(1, 2)) / 2**200)


# flush to zero

# When a result is too small for ftz to keep (H200, mul and fma: "after"):
#   "before"     the exact result is below the smallest normal value
#   "after"      it still is when rounded to the format's precision with an exponent that has no lower end
#   "delivered"  the word that rounding without ftz delivers is subnormal
Tininess = Literal["before", "after", "delivered"]
TININESS: Tininess = "after"


def is_tiny(number: Number, fmt: Format, tininess: Tininess = TININESS) -> bool:
    """Whether ftz turns this result into a zero of its sign."""
    if number.magnitude is INF or number.magnitude is NAN or number.magnitude == 0:
        return False
    smallest_normal = power_of_two(min_exponent(fmt))
    if tininess == "before":
        return number.magnitude < smallest_normal
    if tininess == "delivered":
        return unpack(round_(number, fmt), fmt)[1] == 0
    ulp = power_of_two(floor_log2(number.magnitude) - fmt.fraction_bits)
    return round_integer(number.magnitude / ulp, "rne") * ulp < smallest_normal


def flush(word: int, fmt: Format) -> int:
    """A subnormal word becomes a zero of its sign, every other word stays."""
    sign, exponent, fraction = unpack(word, fmt)
    return round_(Number(sign, Fraction(0)), fmt) if exponent == 0 and fraction else int(word)


def operand_number(word: int, fmt: Format, ftz: bool) -> Number:
    """The number of an operand; with ftz a subnormal one is a zero of its sign."""
    return decode(flush(word, fmt) if ftz else word, fmt)


def result_word(number: Number, fmt: Format, ftz: bool) -> int:
    """The word of a result; with ftz a tiny one is a zero of its sign."""
    return round_(Number(number.sign, Fraction(0)) if ftz and is_tiny(number, fmt) else number, fmt)


# scalar operators


def add(a: int, b: int, fmt: Format, ftz: bool = False) -> int:
    return result_word(plus(operand_number(a, fmt, ftz), operand_number(b, fmt, ftz)), fmt, ftz)


def sub(a: int, b: int, fmt: Format, ftz: bool = False) -> int:
    return result_word(plus(operand_number(a, fmt, ftz), negate(operand_number(b, fmt, ftz))), fmt, ftz)


def mul(a: int, b: int, fmt: Format, ftz: bool = False) -> int:
    return result_word(times(operand_number(a, fmt, ftz), operand_number(b, fmt, ftz)), fmt, ftz)


def fma(a: int, b: int, c: int, fmt: Format, ftz: bool = False) -> int:
    """a * b + c, rounded once."""
    product = times(operand_number(a, fmt, ftz), operand_number(b, fmt, ftz))
    return result_word(plus(product, operand_number(c, fmt, ftz)), fmt, ftz)


def div(a: int, b: int, fmt: Format) -> int:
    return round_(over(decode(a, fmt), decode(b, fmt)), fmt)


def sqrt(a: int, fmt: Format) -> int:
    return round_(root(decode(a, fmt)), fmt)


def fmax(a: int, b: int, fmt: Format, ftz: bool = False) -> int:
    """The larger operand; +0 is above -0; an operand that is NaN loses; two make the NaN word."""
    return _larger(a, b, fmt, ftz, +1)


def fmin(a: int, b: int, fmt: Format, ftz: bool = False) -> int:
    """The smaller operand; -0 is below +0; an operand that is NaN loses; two make the NaN word."""
    return _larger(a, b, fmt, ftz, -1)


def _larger(a: int, b: int, fmt: Format, ftz: bool, direction: int) -> int:
    def rank(number: Number) -> tuple[int, Fraction, int]:
        """Sorts by value, infinities at the ends, then by the sign of zero."""
        infinite = number.magnitude is INF
        value = Fraction(0) if infinite else number.sign * number.magnitude
        return direction * number.sign * infinite, direction * value, direction * number.sign

    numbers = [operand_number(word, fmt, ftz) for word in (a, b)]
    return round_(max((x for x in numbers if x.magnitude is not NAN), key=rank, default=NOT_A_NUMBER), fmt)


def convert(word: int, src: Format, dst: Format) -> int:
    """The value in another format, to nearest even. Above the largest finite value: infinity, but fp8 stays there.

    bfloat16 to float32 is a shift, which keeps the bits of a NaN.
    """
    if src == dst:
        return int(word)
    if (src.name, dst.name) == ("bfloat16", "float32"):
        return int(word) << 16
    fp8 = 1 + dst.exponent_bits + dst.fraction_bits == 8
    return round_(decode(word, src), dst, overflow="saturate" if fp8 else "inf")


# the tensor core's dot product

# What a step's exact sum is rounded to: the format, laid out in the accumulator's word, and the rounding.
OUT: dict[str, tuple[Format, Literal["rne", "rz"]]] = {
    "rz_fp32": (Format("float32", 8, 23, nan=0x7FFFFFFF), "rz"),
    "rne_fp16": (Format("float16", 5, 10, nan=0x7FFF), "rne"),
    "rz_e8m13": (Format("e8m13 in a float32 word", 8, 13, nan=0x7FFFFFFF, unused_bits=10), "rz"),
}


def dot(
    a: list[int],
    b: list[int],
    c: int,
    L: int,
    F: int,
    out: str,
    floor: int | None,
    operand: Format,
    accumulator: Format,
) -> int:
    """sum(a * b) + c in steps of L products, K ascending; a step's result is the c of the next."""
    for start in range(0, len(a), L):
        c = dot_step(a[start : start + L], b[start : start + L], c, F, out, floor, operand, accumulator)
    return c


def dot_step(
    a: list[int],
    b: list[int],
    c: int,
    F: int,
    out: str,
    floor: int | None,
    operand: Format,
    accumulator: Format,
) -> int:
    """One step: truncate every term to a multiple of 2^(E - F), add exactly, round once.

    A term is a product of factors (c is a product of one). Its exponent is the sum of theirs: it is not renormalised.
    """
    fmt, mode = OUT[out]
    infinities: set[int] = set()
    terms: list[tuple[int, int, int]] = []  # signed significand, exponent of the term, exponent of its last bit
    for factors in [((x, operand), (y, operand)) for x, y in zip(a, b, strict=True)] + [((c, accumulator),)]:
        kinds = [kind(*factor) for factor in factors]
        sign = prod(unpack(*factor)[0] for factor in factors)
        if NAN in kinds or (INF in kinds and ZERO in kinds):
            return fmt.nan
        if INF in kinds:
            infinities.add(sign)
        elif ZERO not in kinds:
            parts = [scientific(*factor) for factor in factors]
            significand, exponent = prod(s for s, _ in parts), sum(e for _, e in parts)
            terms.append((sign * significand, exponent, exponent - sum(f.fraction_bits for _, f in factors)))
    if infinities:
        return fmt.nan if len(infinities) == 2 else round_(Number(infinities.pop(), INF), fmt)
    E = max([exponent for _, exponent, _ in terms] + ([] if floor is None else [floor]), default=0)
    total = sum(truncate(significand, last - (E - F)) for significand, _, last in terms)
    word = round_(Number(-1 if total < 0 else +1, abs(total) * power_of_two(E - F)), fmt, mode)
    return 0 if kind(word, fmt) is ZERO else word  # a zero is +0, also what a negative sum underflows to


def truncate(significand: int, shift: int) -> int:
    """significand * 2^shift as an integer, what is left over cut off toward zero."""
    magnitude = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
    return magnitude if significand >= 0 else -magnitude
