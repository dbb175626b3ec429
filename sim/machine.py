"""The machine that tile operators compute through. A new reading of a kernel is a new machine.

A machine's values are NumPy arrays of a dtype that the machine chooses: tile operators index, reshape and broadcast
them and do nothing else with them. `Exact` holds words and gives the GPU's; `Recorder` is the same and listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import arith, mma, mufu
from .arch import Arch
from .formats import FP32, DType, Format, Integer, values
from .layout import Reduction

__all__ = ["Event", "Exact", "Recorder"]


_COMPARE = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
            "GE": np.greater_equal}  # fmt: skip


class Exact:
    """Exact words: every method gives the words that the GPU's instruction gives.

    arch: the architecture; fast_math: TL_ENABLE_FAST_MATH (approximate division, exp2 by MUFU alone, ftz).
    """

    listens = False  # to what is stored to global memory

    def __init__(self, arch: Arch, fast_math: bool):
        self.arch, self.fast_math = arch, fast_math

    def _ftz(self, fmt: Format) -> bool:
        """Fast math flushes subnormal numbers of float32; packed 16-bit arithmetic keeps them."""
        return self.fast_math and fmt is FP32

    def dtype(self, fmt: Format) -> np.dtype:
        """The NumPy dtype of values of `fmt`."""
        return fmt.word

    def from_words(self, words: np.ndarray, fmt: Format) -> np.ndarray:
        return words

    def to_words(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return x

    def readable(self, x: np.ndarray, fmt: DType) -> np.ndarray:
        """Values as numbers for people: floats in float64, integers as they are."""
        if isinstance(fmt, Integer):
            return x.view(fmt.value_type).copy()
        return values(self.to_words(x, fmt), fmt)

    def constant(self, value: float, fmt: Format) -> np.ndarray:
        """A Python float as the kernel's constant: rounded to float32 once, then to `fmt`."""
        with np.errstate(over="ignore"):
            word = np.float32(value).view(np.uint32)
        return arith.convert(np.asarray(word), FP32, fmt)

    def convert(self, x: np.ndarray, src: Format, dst: Format) -> np.ndarray:
        return arith.convert(x, src, dst)

    def add(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.add(a, b, fmt, self._ftz(fmt))

    def sub(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.sub(a, b, fmt, self._ftz(fmt))

    def mul(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.mul(a, b, fmt, self._ftz(fmt))

    def mul_add(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        """a * b + c as the compiler contracts it: one fma on every architecture here."""
        return arith.fma(a, b, c, fmt, self._ftz(fmt))

    def mul_sub(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        """a * b - c as the compiler contracts it: one fma, but for fast math where pairs are packed."""
        if self.fast_math and self.arch.splits_mul_sub:
            return arith.sub(self.mul(a, b, fmt), c, fmt, ftz=False)
        return arith.fma(a, b, arith.neg(c, fmt), fmt, self._ftz(fmt))

    def sub_mul(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        """c - a * b as the compiler contracts it: one fma of -a (H200, probes; not read where pairs are packed)."""
        return arith.fma(arith.neg(a, fmt), b, c, fmt, self._ftz(fmt))

    def div(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        if fmt is not FP32:
            raise ValueError(f"division of {fmt.name} is not modelled, only float32")
        return mufu.divide(a, b, self.fast_math)

    def reciprocal(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        """The factor that a division by `a` is with fast math."""
        return mufu.rcp(a)

    def neg(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.neg(a, fmt)

    def max(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.fmax(a, b, fmt, self._ftz(fmt))

    def min(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return arith.fmin(a, b, fmt, self._ftz(fmt))

    def abs(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return a & fmt.word.type(fmt.sign - 1)

    def exp2(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("exp2f", x, fmt)

    def clamp(self, x: np.ndarray, low: np.ndarray, high: np.ndarray, fmt: Format) -> np.ndarray:
        """T.clamp of TileLang 0.1.15: min(max(x, low), high), but NaN stays NaN (docs/NUMERICS.md, section 3)."""
        result = self.min(self.max(x, low, fmt), high, fmt)
        nan = self.classified("isnan", x, fmt)
        return self.select(nan, self.add(x, x, fmt), result) if nan.any() else result

    def compare(self, name: str, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        """A comparison (EQ, NE, LT, LE, GT or GE) as the numbers compare: false with NaN, but for NE."""
        x, y = values(self.to_words(a, fmt), fmt), values(self.to_words(b, fmt), fmt)
        return np.asarray(_COMPARE[name](x, y))

    def classified(self, name: str, x: np.ndarray, fmt: Format) -> np.ndarray:
        """Where values are NaN ("isnan") or infinite ("isinf")."""
        words = self.to_words(x, fmt)
        return fmt.is_nan(words) if name == "isnan" else fmt.is_inf(words)

    def _function(self, name: str, x: np.ndarray, fmt: Format) -> np.ndarray:
        """A CUDA function of float32, fast math or not."""
        if fmt is not FP32:
            raise NotImplementedError(f"{name} of {fmt.name} is not modelled, only float32")
        result: np.ndarray = getattr(mufu, name)(x, self.fast_math)
        return result

    def exp(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("expf", x, fmt)

    def log(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("logf", x, fmt)

    def log2(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("log2f", x, fmt)

    def rsqrt(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("rsqrtf", x, fmt)

    def sqrt(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._function("sqrtf", x, fmt)

    def _rounded(self, function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, fmt: Format) -> np.ndarray:
        """A rounding to an integer, exact in float64; NaN becomes the format's."""
        with np.errstate(invalid="ignore"):
            whole = function(values(x, fmt)).astype(np.float32).view(np.uint32)
        return arith.convert(np.where(np.isnan(whole.view(np.float32)), np.uint32(FP32.nan), whole), FP32, fmt)

    def floor(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._rounded(np.floor, x, fmt)

    def ceil(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._rounded(np.ceil, x, fmt)

    def trunc(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._rounded(np.trunc, x, fmt)

    def nearbyint(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._rounded(np.rint, x, fmt)

    def select(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition, a, b)

    def dot(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, operand: Format, accumulator: Format) -> np.ndarray:
        """c + a @ b.T on the tensor core: a [blocks, M, K], b [blocks, N, K], c [blocks, M, N]."""
        return mma.dot(a, b, c, self.arch.dot(operand, accumulator))

    def reduce(self, op: str, x: np.ndarray, order: Reduction | None, fmt: Format) -> np.ndarray:
        """x [..., N] reduced over its last axis; op is "max", "min" (in any order) or "sum" (in `order`)."""
        if op != "sum":
            return _extreme(x, fmt, op == "max", self._ftz(fmt))
        assert order is not None
        x = np.concatenate([x, np.zeros(x.shape[:-1] + (1,), x.dtype)], axis=-1)[..., order.columns]
        return self.sum_lanes(np.moveaxis(x, -2, 0), fmt)

    def spread_nan(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """The NaN word for each row of x [..., N] that has a NaN, else 0."""
        return np.where(fmt.is_nan(x).any(axis=-1), fmt.word.type(fmt.nan), fmt.word.type(0))

    def sum_lanes(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """x [steps, ..., lanes]: each lane adds its steps in order, then an XOR butterfly adds the lanes."""
        return self.join_lanes(self._sum_in_order(np.ascontiguousarray(x), fmt), fmt)

    def join_lanes(self, total: np.ndarray, fmt: Format) -> np.ndarray:
        """total [..., lanes] added by the XOR butterfly of tl::AllReduce: offsets from half the lanes down to 1."""
        lanes = np.arange(total.shape[-1])
        offset = len(lanes) // 2
        while offset:
            total = self.add(total, total[..., lanes ^ offset], fmt)
            offset //= 2
        return total[..., 0]

    def _sum_in_order(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """x[0] + x[1] + ... from +0. Where no step can meet a subnormal, host sums do and NaN is mended at the end."""
        plain = fmt is FP32 and not self.fast_math
        if fmt is FP32 and self.fast_math:
            plain = not ((x > 0) & (x < FP32.min_normal) | (x > FP32.sign)).any()  # then sums only grow
        total = np.zeros(x.shape[1:], x.dtype)
        if not plain:
            for step in x:
                total = self.add(total, step, fmt)
            return total
        with np.errstate(all="ignore"):
            for step in x:
                np.add(total.view(np.float32), step.view(np.float32), out=total.view(np.float32))
        nan = fmt.is_nan(total)
        total[nan] = fmt.nan
        return total

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: Format) -> None:
        """A tile operator stored `x` in `buffer`; for machines that listen."""

    def started(self, block: Any) -> None:
        """Thread blocks (a sim.tile.Block) that run in step begin; for machines that listen."""

    def loaded(self, tensor: Any, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Values of words of global memory, read at flat places of a sim.memory.Tensor."""
        return self.from_words(words, tensor.fmt)

    def differ(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        """Where two values have, or may have, different words."""
        return np.asarray(self.to_words(a, fmt) != self.to_words(b, fmt))

    def kept(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """The words that values leave in global memory."""
        return self.to_words(x, fmt)

    def stored(self, tensor: Any, at: np.ndarray, x: np.ndarray, kept: np.ndarray | None = None) -> None:
        """Values `x` were stored to global memory at flat places; for machines that listen.

        kept: bool [lanes, *extents], the elements of the loop that these are; None: atomic additions
        """

    def through_memory(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """What is read back after a store to shared memory: the same; for machines that know where values come from."""
        return x


def _extreme(x: np.ndarray, fmt: Format, greatest: bool, ftz: bool) -> np.ndarray:
    """fmaxf or fminf over the last axis from -inf or +inf, in any order: they order -0 below +0 and drop NaN."""
    order = arith.order_key(x, fmt)
    limits = np.iinfo(order.dtype)
    nan = fmt.is_nan(x)
    if nan.any():
        order = np.where(nan, limits.min if greatest else limits.max, order)
    best = order.max(axis=-1) if greatest else order.min(axis=-1)
    empty = best == (limits.min if greatest else limits.max)
    identity = fmt.word.type(fmt.inf | (fmt.sign if greatest else 0))
    result = np.where(empty, identity, arith.from_order_key(best, fmt))
    return arith.flush(result, fmt) if ftz else result


@dataclass
class Event:
    """One tile operator's store: what wrote which buffer in which iteration, through which machine functions.

    nan, infinite, total: elements of the stored tile that are NaN, are infinite, and all of them
    """

    operator: str
    buffer: str
    iteration: int | None
    functions: tuple[str, ...]
    nan: int
    infinite: int
    total: int


class Recorder(Exact):
    """The exact machine with a recorder: `events` lists what every tile operator stored, in order."""

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.events: list[Event] = []
        self._functions: list[str] = []

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: Format) -> None:
        words = self.to_words(x, fmt)
        nan, infinite = int(fmt.is_nan(words).sum()), int(fmt.is_inf(words).sum())
        self.events.append(Event(operator, buffer, iteration, tuple(self._functions), nan, infinite, words.size))
        self._functions = []


def _listened(name: str) -> Callable[..., np.ndarray]:
    """Exact's method `name`, which also notes its name for the next event."""

    def method(self: Recorder, *arguments: Any) -> np.ndarray:
        self._functions.append(name)
        result: np.ndarray = getattr(Exact, name)(self, *arguments)
        return result

    return method


for _name in (
    "convert",
    "add",
    "sub",
    "mul",
    "mul_add",
    "mul_sub",
    "sub_mul",
    "div",
    "max",
    "min",
    "abs",
    "exp2",
    "exp",
    "log",
    "log2",
    "rsqrt",
    "sqrt",
    "floor",
    "ceil",
    "trunc",
    "nearbyint",
    "select",
    "dot",
    "reduce",
):
    setattr(Recorder, _name, _listened(_name))
