"""What a kernel of the tests is: its maker, its inputs as words that are the same on every machine, its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arith import convert
from sim.formats import FP32, Integer, dtype_named, to_words

__all__ = ["E4M3", "E5M2", "BF16", "F16", "F32", "Kernel", "normal", "positive", "words_of", "zeros"]

F16, F32, BF16, E4M3, E5M2 = "float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"
Input = Callable[[int], Any]  # the number of the parameter -> (words, Format), an array of integers or a scalar


@dataclass(frozen=True)
class Kernel:
    """A kernel of ours.

    make:   builds its PrimFunc
    given:  the inputs, one for each parameter in order: made by `normal` and its like, or the array itself
    made:   how many of the last parameters are outputs that the call makes; with 0 the outputs are those of `given`
            that the kernel writes
    """

    make: Callable[[], Any]
    given: list[Any]
    made: int = 1

    def inputs(self, special: bool = False) -> list[Any]:
        """What is passed: (words, Format), arrays of integers, Python scalars. special: with infinities and NaN."""
        made = [x(n) if callable(x) else x for n, x in enumerate(self.given)]
        return [_with_special(x) if special and isinstance(x, tuple) else x for x in made]

    def prim_func(self) -> Any:
        """The PrimFunc, with the outputs that the call makes marked."""
        pf, count = self.make(), len(self.given) + self.made
        return pf.with_attr("tilelang_out_idx", list(range(len(self.given), count))) if self.made else pf

    def formats(self) -> list[Any]:
        """The formats or integer dtypes of the outputs."""
        from sim.primfunc.kernel import written

        pf = self.make()
        outputs = range(len(self.given), len(pf.params)) if self.made else written(pf)
        return [dtype_named(str(pf.buffer_map[pf.params[i]].dtype)) for i in outputs]

    @staticmethod
    def outputs(result: Any) -> list[Any]:
        """The outputs of a simulation as (words, Format), or arrays of integers."""
        return [x if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else to_words(x) for x in result.outputs]


def _with_special(array: Any) -> Any:
    """A few words of an input become NaN, infinities, the greatest number, -0 and subnormals; zeros stay zeros."""
    words, fmt = array[0].copy(), array[1]
    if not words.any() or words.size < 32:
        return words, fmt
    magnitudes = [fmt.nan, fmt.max_finite, 1, fmt.min_normal - 1, 0] + ([fmt.inf] if fmt.infinities else [])
    special = [m | sign for m in magnitudes for sign in (0, fmt.sign)]
    places = (np.arange(len(special)) * words.size) // len(special) + 5
    words.reshape(-1)[places] = np.array(special, fmt.word)
    return words, fmt


def normal(*shape: int, dtype: str = F16, scale: float = 1.0) -> Input:
    """About normal, deviation 2 * scale: sums of twelve 16-bit integers from the raw words of a fixed generator."""

    def make(n: int) -> Any:
        bits = np.random.PCG64(np.random.SeedSequence([948, n]))
        raw = bits.random_raw(int(np.prod(shape)) * 3).reshape(-1, 3)
        parts = (raw[..., None] >> (np.uint64(16) * np.arange(4, dtype=np.uint64))) & np.uint64(0xFFFF)
        total = parts.astype(np.int64).reshape(-1, 12).sum(axis=1) - 12 * 65535 // 2
        values = (np.ldexp(total.astype(np.float64), -15) * scale).astype(np.float32)
        return _typed(values.reshape(shape), dtype)

    return make


def positive(*shape: int, dtype: str = F32, scale: float = 1.0) -> Input:
    """Uniform in (0, scale), from the raw words of a fixed generator."""

    def make(n: int) -> Any:
        raw = np.random.PCG64(np.random.SeedSequence([949, n])).random_raw(int(np.prod(shape)))
        values = np.ldexp((raw >> np.uint64(40)).astype(np.float64) + 0.5, -24) * scale
        return _typed(values.astype(np.float32).reshape(shape), dtype)

    return make


def words_of(*shape: int, dtype: str) -> Input:
    """Integers of any value, from the raw words of a fixed generator."""
    kind = dtype_named(dtype)

    def make(n: int) -> np.ndarray:
        raw = np.random.PCG64(np.random.SeedSequence([950, n])).random_raw(int(np.prod(shape)))
        return (raw >> np.uint64(13)).astype(kind.word).view(kind.value_type).reshape(shape)

    return make


def zeros(*shape: int, dtype: str = F32) -> Input:
    """An output that the kernel adds to."""
    if isinstance(dtype_named(dtype), Integer):
        return lambda n: np.zeros(shape, dtype)
    return lambda n: _typed(np.zeros(shape, np.float32), dtype)


def _typed(values: np.ndarray, dtype: str) -> Any:
    fmt = dtype_named(dtype)
    return convert(values.view(np.uint32), FP32, fmt), fmt
