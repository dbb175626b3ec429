"""Bounds of rounded results: reals in float64, rounded to a format as the device rounds, outward where in doubt."""

from __future__ import annotations

import numpy as np

from .formats import Format

__all__ = ["greatest", "outward", "rounded"]


def greatest(fmt: Format) -> float:
    """The greatest finite value."""
    top = 2.0 - 2.0**-fmt.fraction_bits if fmt.infinities else 2.0 - 2.0 ** (1 - fmt.fraction_bits)
    return float(top * 2.0**fmt.emax)


def rounded(x: np.ndarray, fmt: Format, ftz: bool = False) -> np.ndarray:
    """x rounded to nearest even in `fmt`, as float64; too great is infinite, or the greatest where there is none.

    Rounding is monotone, so that a bound of an exact result becomes a bound of the rounded one.
    """
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, fmt.emin)
        unit = np.ldexp(1.0, exponent - fmt.fraction_bits)
        result = np.where(np.isfinite(x), np.rint(x / unit) * unit, x)
        top = greatest(fmt)
        result = np.where(np.abs(result) > top, np.copysign(np.inf if fmt.infinities else top, result), result)
        if ftz:
            result = np.where(np.abs(result) < 2.0**fmt.emin, 0.0, result)
    return np.asarray(result)


def outward(low: np.ndarray, high: np.ndarray, relative: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Bounds computed in float64 moved out by its rounding, and by a relative error of the function.

    Zeros and infinities are exact.
    """
    with np.errstate(all="ignore"):
        return _moved(low, -1.0, relative), _moved(high, 1.0, relative)


def _moved(x: np.ndarray, sign: float, relative: float) -> np.ndarray:
    step = np.abs(x) * (relative + 2.0**-52)
    return np.asarray(np.where(np.isfinite(x) & (x != 0), x + sign * step, x))
