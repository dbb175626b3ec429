"""Inputs q, k, v by the name of a family and a seed: the same words on every machine.

The random bits are the raw stream of PCG64, which NumPy promises to keep; they become numbers by integer sums and
powers of two, exact in float32, and one rounding to the format. Nothing here calls a function whose last bit depends on
the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from sim.arith import convert
from sim.formats import BF16, FP16, FP32, Format

__all__ = [
    "FAMILIES",
    "Shape",
    "bits_of",
    "check_family",
    "make",
    "normal_array",
    "parts",
    "rounded",
    "tiny_array",
    "uniform16",
]


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention: q [batch, seq_q, heads, dim], k and v [batch, seq_kv, heads_kv, dim]."""

    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    seq_q: int = 256
    seq_kv: int = 256
    dim: int = 128

    @property
    def q(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_q, self.heads, self.dim

    @property
    def kv(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_kv, self.heads_kv, self.dim


_PART = 1 << 16  # elements made at a time; the first elements do not depend on how many follow

QKV = tuple[np.ndarray, np.ndarray, np.ndarray]


def make(family: str, shape: Shape, fmt: Format, seed: int = 0) -> QKV:
    """Words of `fmt` for q, k, v. family: a name of FAMILIES, or const:C with a number C.

    Raises ValueError for another family, or a C that is not finite in `fmt`.
    """
    check_family(family)
    if family.startswith("const:"):
        return _const(family, shape, fmt)
    return FAMILIES[family](shape, fmt, seed)


def check_family(family: str) -> None:
    """Raise ValueError unless `family` is a name of FAMILIES or const:C."""
    if family in FAMILIES:
        return
    if family.startswith("const:"):
        number = family.removeprefix("const:")
        with suppress(ValueError):
            if set(number) <= set("0123456789.eE+-") and math.isfinite(float(number)):
                return
        raise ValueError(f"inputs const:C must have a finite number C, not {family.removeprefix('const:')!r}")
    raise ValueError(f"inputs must be one of {', '.join(FAMILIES)}, const:C or a FILE.npz, not {family!r}")


def bits_of(seed: int, stream: int) -> np.random.PCG64:
    """The raw bits for one array; q, k, v are streams 0, 1, 2, so that changing one shape leaves the others."""
    return np.random.PCG64(np.random.SeedSequence([seed, stream]))


def uniform16(bits: np.random.PCG64, size: int) -> np.ndarray:
    """`size` integers of 0 .. 65535."""
    raw = np.atleast_1d(bits.random_raw(-(-size // 4)))
    quarters = raw[:, None] >> (np.uint64(16) * np.arange(4, dtype=np.uint64))
    return (quarters & np.uint64(0xFFFF)).astype(np.int64).reshape(-1)[:size]


def parts(size: int) -> list[slice]:
    """Where `size` elements are made, part by part."""
    return [slice(at, min(at + _PART, size)) for at in range(0, size, _PART)]


def gaussian(bits: np.random.PCG64, size: int) -> np.ndarray:
    """`size` integers with mean 0 and standard deviation 65536: each the sum of twelve uniform 16-bit integers.

    They are below 2**24, so that float32 holds them.
    """
    out = np.empty(size, np.float32)
    for part in parts(size):
        uniform = uniform16(bits, 12 * (part.stop - part.start)).reshape(-1, 12)
        out[part] = uniform.sum(axis=1) - 12 * 65535 // 2
    return out


def rounded(integers: np.ndarray, exponents: int | np.ndarray, fmt: Format) -> np.ndarray:
    """Words of integers * 2**exponents; the product must be exact in float32, so that `fmt` rounds once."""
    out, exponents = np.empty(integers.size, fmt.word), np.broadcast_to(np.asarray(exponents, np.int16), integers.shape)
    for part in parts(integers.size):
        exact = np.ldexp(integers[part].astype(np.float64), exponents[part]).astype(np.float32)
        out[part] = convert(exact.view(np.uint32), FP32, fmt)
    return out


def normal_array(shape: tuple[int, ...], fmt: Format, seed: int, stream: int, exponent: int = 0) -> np.ndarray:
    """About normal, standard deviation 2**exponent."""
    return rounded(gaussian(bits_of(seed, stream), math.prod(shape)), exponent - 16, fmt).reshape(shape)


def _normal(shape: Shape, fmt: Format, seed: int) -> QKV:
    """q, k, v about normal with unit variance."""
    q, k, v = (normal_array(s, fmt, seed, i) for i, s in enumerate((shape.q, shape.kv, shape.kv)))
    return q, k, v


def _large(shape: Shape, fmt: Format, seed: int) -> QKV:
    """q and k 16 times as large: scores differ by hundreds, so exp2 underflows, and overflows without a running max."""
    q, k = (normal_array(s, fmt, seed, i, exponent=4) for i, s in enumerate((shape.q, shape.kv)))
    return q, k, normal_array(shape.kv, fmt, seed, 2)


def tiny_array(shape: tuple[int, ...], fmt: Format, seed: int, stream: int) -> np.ndarray:
    """About normal times 2**e: half of the e among the format's least exponents, half from -25 to -10."""
    bits, size = bits_of(seed, stream), math.prod(shape)
    integers = gaussian(bits, size)
    draw = np.concatenate([uniform16(bits, part.stop - part.start).astype(np.int32) for part in parts(size)])
    least = (
        fmt.emin - fmt.fraction_bits
    )  # the smallest subnormal is 2**least; -133 for bfloat16, so that 2**(least - 16) is float32's
    near_least = least + draw // 2 % 16
    moderate = -10 - draw // 2 % 16
    return rounded(integers, np.where(draw % 2 == 0, near_least, moderate) - 16, fmt).reshape(shape)


def _tiny(shape: Shape, fmt: Format, seed: int) -> QKV:
    """Subnormal and small values: scores vanish, products reach the tensor core's least exponents."""
    q, k, v = (tiny_array(s, fmt, seed, i) for i, s in enumerate((shape.q, shape.kv, shape.kv)))
    return q, k, v


def _special(shape: Shape, fmt: Format, seed: int) -> QKV:
    """Normal with, in each batch and head, one infinity in k and two infinities or NaNs in q and in v, and some -0.

    A NaN in k would make every row NaN; an infinite key gives +inf to about half the rows (NaN) and -inf to the others.
    """
    q, k, v = _normal(shape, fmt, seed)
    inf, sign, nan = fmt.inf, fmt.sign, fmt.nan
    words = np.array([inf, sign | inf, nan, inf | 1, sign | nan], fmt.word)
    for stream, array, each in ((3, q, words), (4, k, words[:2]), (5, v, words)):
        bits, (batches, seq, heads, dim) = bits_of(seed, stream), array.shape
        for place in np.ndindex(batches, heads):
            draw = uniform16(bits, 12).tolist()
            for n in range(4):
                array[place[0], draw[3 * n] % seq, place[1], draw[3 * n + 1] % dim] = fmt.sign
            for n in range(1 if stream == 4 else 2):
                array[place[0], draw[3 * n] % seq, place[1], draw[3 * n + 1] % dim] = each[draw[3 * n + 2] % len(each)]
    return q, k, v


def _const(family: str, shape: Shape, fmt: Format) -> QKV:
    """The inputs of the issue: q is C, the first half of the keys C and the rest -C, v is 1.0 and then 2.0."""
    with np.errstate(over="ignore"):
        exact = np.array([float(family.removeprefix("const:")), 1.0, 2.0]).astype(np.float32)
    c, one, two = convert(exact.view(np.uint32), FP32, fmt).tolist()
    if fmt.is_inf(np.array(c, fmt.word)):
        raise ValueError(f"inputs {family} must be finite in {fmt.name}")
    q, k, v = np.full(shape.q, c, fmt.word), np.full(shape.kv, c, fmt.word), np.full(shape.kv, one, fmt.word)
    k[:, shape.seq_kv // 2 :] ^= fmt.word.type(fmt.sign)
    v[:, shape.seq_kv // 2 :] = two
    return q, k, v


FAMILIES: dict[str, Callable[[Shape, Format, int], QKV]] = {
    "normal": _normal,
    "large": _large,
    "tiny": _tiny,
    "special": _special,
}
DTYPES = {f.name: f for f in (FP16, BF16)}
