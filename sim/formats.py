"""Float formats: a format is a few facts, everything else is derived.

A *word* is the bits of a value, an unsigned integer of the format's storage width. The exact path works on words only;
`values` turns them into float64 for people to read. Names are TileLang's dtype names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = [
    "BF16",
    "DType",
    "E4M3",
    "E5M2",
    "FORMATS",
    "FP16",
    "FP32",
    "TF32",
    "Format",
    "INTEGERS",
    "Integer",
    "dtype_named",
    "format_named",
    "from_words",
    "to_words",
    "values",
]


@dataclass(frozen=True)
class Format:
    """A binary float format.

    name:           TileLang's dtype name
    exponent_bits, fraction_bits: field widths; a word is sign, exponent, fraction, then `unused_bits` ignored bits
    infinities:     whether an all-ones exponent means infinity and NaN (IEEE); otherwise only `nan` (and its negative)
                    is NaN and every other word is finite (e4m3fn)
    nan:            the NaN word that NVIDIA's instructions write to this format (H200 captures)
    unused_bits:    low bits of the storage word that the hardware ignores (tf32: 13)
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    nan: int
    infinities: bool = True
    unused_bits: int = 0

    @cached_property
    def bits(self) -> int:
        """Storage width in bits."""
        return 1 + self.exponent_bits + self.fraction_bits + self.unused_bits

    @cached_property
    def word(self) -> np.dtype:
        """NumPy's unsigned integer type of one word."""
        return np.dtype(f"u{self.bits // 8}")

    @cached_property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal value, and of every subnormal one."""
        return 1 - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return self.bias + (0 if self.infinities else 1)

    @cached_property
    def sign(self) -> int:
        """The word of -0."""
        return 1 << (self.bits - 1)

    @cached_property
    def fraction_mask(self) -> int:
        return ((1 << self.fraction_bits) - 1) << self.unused_bits

    @cached_property
    def exponent_mask(self) -> int:
        return self.sign - 1 - self.fraction_mask - ((1 << self.unused_bits) - 1)

    @cached_property
    def inf(self) -> int:
        """The word of +inf. Raises ValueError for a format that has none."""
        if not self.infinities:
            raise ValueError(f"{self.name} has no infinity")
        return self.exponent_mask

    @cached_property
    def max_finite(self) -> int:
        """The word of the largest finite value."""
        return (self.exponent_mask if self.infinities else self.nan) - (1 << self.unused_bits)

    @cached_property
    def min_normal(self) -> int:
        """The word of the smallest positive normal value."""
        return 1 << (self.fraction_bits + self.unused_bits)

    def is_nan(self, words: np.ndarray) -> np.ndarray:
        magnitude = words & self.word.type(self.exponent_mask | self.fraction_mask)
        if not self.infinities:
            return np.asarray(magnitude == self.word.type(self.nan))
        return np.asarray(magnitude > self.word.type(self.exponent_mask))

    def is_inf(self, words: np.ndarray) -> np.ndarray:
        if not self.infinities:
            return np.zeros(np.shape(words), bool)
        magnitude = words & self.word.type(self.exponent_mask | self.fraction_mask)
        return np.asarray(magnitude == self.word.type(self.exponent_mask))


FP32 = Format("float32", 8, 23, nan=0x7FFFFFFF)
TF32 = Format("tfloat32", 8, 10, nan=0x7FFFFFFF, unused_bits=13)
FP16 = Format("float16", 5, 10, nan=0x7FFF)
BF16 = Format("bfloat16", 8, 7, nan=0x7FFF)
E4M3 = Format("float8_e4m3fn", 4, 3, nan=0x7F, infinities=False)
E5M2 = Format("float8_e5m2", 5, 2, nan=0x7F)
FORMATS = {f.name: f for f in (FP32, TF32, FP16, BF16, E4M3, E5M2)}


@dataclass(frozen=True)
class Integer:
    """An integer dtype of TIR: its name, width and sign; bool is an Integer of 8 bits that holds 0 and 1."""

    name: str
    bits: int
    signed: bool

    @cached_property
    def word(self) -> np.dtype:
        """NumPy's unsigned integer type of one word."""
        return np.dtype(f"u{self.bits // 8}")

    @cached_property
    def value_type(self) -> np.dtype:
        """NumPy's type of the value."""
        return np.dtype(f"{'i' if self.signed else 'u'}{self.bits // 8}")


INTEGERS = {i.name: i for b in (8, 16, 32, 64) for i in (Integer(f"int{b}", b, True), Integer(f"uint{b}", b, False))}
INTEGERS["bool"] = Integer("bool", 8, False)
DType = Any  # Format or Integer, told apart where it matters

_NUMPY = {FP32: np.float32, FP16: np.float16}


def dtype_named(name: str) -> DType:
    """The format or integer dtype of a TIR dtype name. Raises ValueError that lists the names."""
    if name in INTEGERS:
        return INTEGERS[name]
    return format_named({"float8_e4m3": E4M3.name, "custom[tfloat32]": TF32.name}.get(name, name))


def format_named(name: str) -> Format:
    """The format of a TileLang dtype name. Raises ValueError that lists the names."""
    if name not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name]


def values(words: np.ndarray, fmt: Format) -> np.ndarray:
    """The float64 values of `words`, exact (NaN words give NaN); same shape."""
    words = np.asarray(words, fmt.word)
    if fmt in _NUMPY:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return words.view(_NUMPY[fmt]).astype(np.float64)
    negative = (words & fmt.word.type(fmt.sign)) != 0
    exponent = (
        (words & fmt.word.type(fmt.exponent_mask)) >> fmt.word.type(fmt.fraction_bits + fmt.unused_bits)
    ).astype(np.int64)
    fraction = ((words & fmt.word.type(fmt.fraction_mask)) >> fmt.word.type(fmt.unused_bits)).astype(np.int64)
    significand = fraction + ((exponent > 0).astype(np.int64) << fmt.fraction_bits)
    result = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - fmt.bias - fmt.fraction_bits)
    result = np.where(fmt.is_inf(words), np.inf, np.where(fmt.is_nan(words), np.nan, result))
    return np.where(negative, -result, result)


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _pair(words: Any, fmt: Format, name: str) -> tuple[np.ndarray, Format]:
    """Words that come with their format, checked."""
    words = np.array(words, order="C")
    if fmt is TF32:
        raise TypeError(f"{name} must not be {fmt.name}, whose words have ignored bits: use {FP32.name}")
    if words.dtype.kind not in "iu" or words.dtype.itemsize != fmt.word.itemsize:
        raise TypeError(f"{name} must be words of {fmt.bits} bits for {fmt.name}, not {words.dtype}")
    return words.view(fmt.word), fmt


def to_words(array: Any, name: str = "array") -> tuple[np.ndarray, Format]:
    """Words and format of a NumPy (float16, float32, ml_dtypes) array, a torch tensor, or a pair (words, Format).

    Always a fresh array of the same shape. `name` is the argument's name for the error. Raises TypeError when the array
    has no format of FORMATS.
    """
    if isinstance(array, tuple) and len(array) == 2 and isinstance(array[1], Format):
        return _pair(*array, name)
    if _is_torch(array):
        dtype = str(array.dtype).removeprefix("torch.")
    else:
        dtype = array.dtype.name if isinstance(array, np.ndarray | np.generic) else type(array).__name__
    fmt = FORMATS.get(dtype)
    if fmt is None or fmt is TF32:
        accepted = ", ".join(n for n in FORMATS if n != TF32.name)
        raise TypeError(f"{name} must be a NumPy, ml_dtypes or torch array of {accepted}, not {dtype}")
    if _is_torch(array):
        import torch

        signed = {8: torch.int8, 16: torch.int16, 32: torch.int32}[fmt.bits]
        array = array.detach().cpu().contiguous().view(signed).numpy()
    native = np.array(array, array.dtype.newbyteorder("="), order="C")
    return native.view(fmt.word), fmt


def from_words(words: np.ndarray, fmt: Format, like: Any = None) -> Any:
    """The array whose words are `words`: of the kind of `like` (a torch tensor on its device, a pair), else NumPy.

    Formats that NumPy lacks need ml_dtypes; raises ImportError that says so.
    """
    words = np.ascontiguousarray(words, fmt.word)
    if isinstance(like, tuple):
        return words, fmt
    if _is_torch(like):
        import torch

        return torch.from_numpy(words.view(f"i{fmt.bits // 8}")).view(getattr(torch, fmt.name)).to(like.device)
    if fmt in _NUMPY:
        return words.view(_NUMPY[fmt])
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"a {fmt.name} array needs the package ml_dtypes: pip install ml_dtypes") from error
    return words.view(getattr(ml_dtypes, fmt.name))
