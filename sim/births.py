"""Where a function of the machine makes a bad value of good operands, and which kind of fault that is. Words only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .formats import Format, values

__all__ = ["fresh", "kind_of", "nonfinite"]

Typed = tuple[np.ndarray, Format]  # words and what they are

_OVERFLOW = {"add": "overflow_add", "sub": "overflow_add", "sum": "overflow_add", "dot": "overflow_add",
             "mul": "overflow_mul", "div": "overflow_div", "convert": "overflow_convert", "exp2": "overflow_exp2",
             "exp": "overflow_exp2", "reciprocal": "division_by_zero"}  # fmt: skip
_FUSED = {"mul_add": (1, 1), "mul_sub": (1, -1), "sub_mul": (-1, 1)}  # signs of the product and of the addend


def _limit(fmt: Format) -> int:
    """The least word of a positive value that is not finite."""
    return fmt.inf if fmt.infinities else fmt.nan


def nonfinite(words: np.ndarray, fmt: Format) -> np.ndarray | None:
    """Where words are NaN or infinite; None when nowhere."""
    if not words.size or not _any_nonfinite(words, fmt):
        return None
    magnitude = words & fmt.word.type(fmt.sign - 1)
    return np.asarray(magnitude >= fmt.word.type(_limit(fmt)))


def _any_nonfinite(words: np.ndarray, fmt: Format) -> bool:
    """Two passes over the words: as integers with and without sign, the greatest of each kind is not finite."""
    limit = _limit(fmt)
    signed = words.view(f"i{words.itemsize}")
    return bool(signed.max() >= limit) or bool(words.max() >= limit + fmt.sign)


def fresh(words: np.ndarray, fmt: Format, operands: Sequence[Typed]) -> np.ndarray | None:
    """Where a result is bad although no operand had to be; None when nowhere.

    NaN always is. An infinity is not when an operand has one that leads there: -inf of any, +inf only of a +inf; a
    finite number minus a -inf is +inf, and bad.
    """
    bad = nonfinite(words, fmt)
    if bad is None:
        return None
    if fmt.infinities:
        positive, negative = words == fmt.word.type(fmt.inf), words == fmt.word.type(fmt.inf | fmt.sign)
        for x, own in operands:
            if not own.infinities:
                continue
            up, down = x == own.word.type(own.inf), x == own.word.type(own.inf | own.sign)
            bad = bad & ~(positive & up | negative & (up | down))
    return np.asarray(bad) if bad.any() else None


def kind_of(function: str, word: Typed, operands: Sequence[Typed]) -> np.ndarray:
    """The kind of each birth: words [n] of the results and of each operand [n]."""
    result, x = values(*word), [values(*o) for o in operands]
    if function in _FUSED:
        return _fused_kind(result, x, *_FUSED[function])
    infinite = np.zeros(result.shape, bool)
    for v in x:
        infinite |= np.isinf(v)
    nan = np.isnan(result)
    kinds = np.full(result.shape, _OVERFLOW.get(function, "domain"), dtype="U18")
    kinds[infinite & ~nan] = "minus_inf_operand"
    if function in ("add", "sub", "sum", "dot"):
        kinds[nan] = "inf_minus_inf"
    elif function == "mul":
        kinds[nan] = "zero_times_inf"
    elif function == "div":
        kinds = _quotient_kind(kinds, nan, x[0], x[1], word[1])
    for v in x:
        kinds[np.isnan(v)] = "input"
    return kinds


def _quotient_kind(kinds: np.ndarray, nan: np.ndarray, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
    """Fast division multiplies with a reciprocal: of a subnormal it is infinite, as of 0."""
    zero = np.abs(b) < values(np.asarray(fmt.min_normal, fmt.word), fmt)
    kinds[~nan & zero & np.isfinite(a)] = "division_by_zero"
    kinds[nan] = np.where(np.isinf(a[nan]) & np.isinf(b[nan]), "inf_over_inf", "zero_over_zero")
    return kinds


def _fused_kind(result: np.ndarray, x: list[np.ndarray], product: int, addend: int) -> np.ndarray:
    a, b, c = x
    with np.errstate(invalid="ignore"):
        exact = product * a * b  # float32 factors: cannot overflow in float64
    c = addend * c
    kinds = np.full(result.shape, "overflow_add", dtype="U18")
    kinds[np.abs(exact) >= 2.0**128] = "overflow_mul"
    kinds[np.isinf(exact) | np.isinf(c)] = "minus_inf_operand"
    nan = np.isnan(result)
    kinds[nan] = np.where(np.isnan(exact[nan]), "zero_times_inf", "inf_minus_inf")
    for v in (a, b, c):
        kinds[np.isnan(v)] = "input"
    return kinds
