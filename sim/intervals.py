"""A machine whose values are intervals: what a kernel can compute from all inputs within bounds.

An *enclosure* of an element holds every word that it can have: an interval, whether NaN is possible, and what is known
of it beside that. Masks, indices and loop bounds stay concrete. Every rounding is outward.

lo, hi     bounds for two cases; without a `guard` both are the same. An infinity as a bound is a possible value. Where
           lo > hi the case is impossible. nan: NaN is possible
guard      the number of a maximum m = max(a, b), of which case 0 is m == a, and case 1 m == b
var        a number for the value itself, so that relations can be known of it; 0: none
base, factor    it is the rounded product of the value `base` and the constant `factor`
src, top, peak  it is a function of the element `src` of a row, whose maximum is `top`: in the row's place where the
           maximum is attained, this function is at least peak (of the two cases). src < 0: an input's element
ratio, of, part    its magnitude is at most ratio times the sum `of`, or (part) times the rescaled old sum inside `of`
pot, rate, level   its magnitude is at most 2^(pot - rate * m), m the value of the maximum `level`
lead, slack        it is, within a factor 2^slack, 2^(rate * (x - m)), x the value `lead`

The relations are those of a softmax over blocks: an element is at most its row's maximum; the maximum is one of the
two that it was made from; a sum of weights holds the weight of the maximum; an accumulator is at most the greatest |V|
times its sum of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arch import Arch
from .formats import DType, Format, Integer, values
from .layout import Reduction
from .rounding import greatest, outward, rounded
from .tracer import Listener, Place

__all__ = ["ENCLOSURE", "Bounds", "Intervals", "Open"]

ENCLOSURE = np.dtype(
    [("lo", "f8", (2,)), ("hi", "f8", (2,)), ("nan", "?", (2,)), ("guard", "i8"), ("var", "i8"), ("base", "i8"),
     ("factor", "f8"), ("src", "i8"), ("top", "i8"), ("peak", "f8", (2,)), ("ratio", "f8"), ("of", "i8"),
     ("part", "?"), ("pot", "f8"), ("rate", "f8"), ("level", "i8"), ("lead", "i8"), ("slack", "f8")]
)  # fmt: skip
_POTENTIAL = ("pot", "rate", "level", "lead", "slack")
_FEW = 4096  # results of so many elements are told apart by number, where nothing else asks for it
_FUNCTION = 2.0**-20  # relative error of an elementary function; they are measured to a few units of 2^-23
_TINY, _LEAST = 2.0**-130, 2.0**-100  # the absolute error of a sum's rounding and truncation; the least sum beside it


class Open(Exception):
    """The proof ends here: what could not be bounded."""


class Bounds:
    """What is assumed of the inputs.

    tensors: {name: greatest magnitude}; score: the greatest magnitude of a word of a dot product of two tensors that
    are named in `scored`, None: what follows from their own bounds
    """

    def __init__(self, tensors: dict[str, float], score: float | None = None, scored: Sequence[str] = ("Q", "K")):
        self.tensors, self.score, self.scored = dict(tensors), score, tuple(scored)


def _join(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bounds and NaN of both cases together, each [...]."""
    return x["lo"].min(axis=-1), x["hi"].max(axis=-1), np.asarray(x["nan"].any(axis=-1))


def _cases(x: np.ndarray, guard: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bounds and NaN [..., 2] under the cases of `guard`: both together where the value knows another one."""
    lo, hi, nan = x["lo"], x["hi"], x["nan"]
    other = (x["guard"] != guard)[..., None]
    if other.any():
        low, high, any_nan = _join(x)
        lo, hi, nan = (np.where(other, both[..., None], own) for both, own in ((low, lo), (high, hi), (any_nan, nan)))
    return lo, hi, nan


def _newest(operands: Sequence[np.ndarray]) -> np.ndarray:
    guard = operands[0]["guard"]
    for x in operands[1:]:
        guard = np.maximum(guard, x["guard"])
    return guard


class Intervals(Listener):
    """What a kernel can compute from all inputs within `bounds`.

    births: the first places where a bad value becomes possible of operands that cannot be bad, with the function
    """

    def __init__(self, arch: Arch, fast_math: bool, bounds: Bounds):
        super().__init__(arch, fast_math)
        self.bounds = bounds
        self.births: list[tuple[str, Place]] = []
        self.memories: dict[int, tuple[Any, np.ndarray]] = {}
        self._new = 1
        self._tables: dict[str, np.ndarray] = {}
        self._born: list[str] = []

    # what is known of values by their number

    def _number(self, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        found = np.arange(self._new, self._new + count).reshape(shape)
        self._new += count
        return found

    def _table(self, name: str, kind: Any = np.int64) -> np.ndarray:
        table = self._tables.get(name)
        if table is None or table.size < self._new:
            grown = np.zeros(max(1024, 2 * self._new), kind)
            if table is not None:
                grown[: table.size] = table
            self._tables[name] = table = grown
        return table

    def _at_most(self, x: np.ndarray, m: np.ndarray) -> np.ndarray:
        """Where the value x is known to be at most the value m."""
        above = self._table("above")
        found = (x == m) & (x != 0)
        for _ in range(4):
            x = above[x]
            found = found | (x == m) & (x != 0)
        return found

    def _equal(self, x: np.ndarray, m: np.ndarray) -> np.ndarray:
        """[..., 2]: where x is known to be m, in each case of m as a guard."""
        same = ((x == m) & (x != 0))[..., None]
        one, two = self._table("first_operand")[m], self._table("second_operand")[m]
        known = (x != 0) & (m != 0)
        return same | np.stack([(one == x) & known, (two == x) & known], axis=-1)

    # values

    def dtype(self, fmt: DType) -> np.dtype:
        return fmt.word if isinstance(fmt, Integer) else ENCLOSURE

    def _made(
        self, function: str, fmt: Format, lo: np.ndarray, hi: np.ndarray, nan: np.ndarray, guard: np.ndarray,
        operands: Sequence[np.ndarray], ftz: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """A result of exact bounds [..., 2], rounded to `fmt`."""
        possible = lo <= hi
        lo, hi = rounded(lo, fmt, ftz), rounded(hi, fmt, ftz)
        lo, hi = np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi)
        if not fmt.infinities:
            top = greatest(fmt)
            lo, hi = np.clip(lo, -top, top), np.clip(hi, -top, top)
        result = np.zeros(lo.shape[:-1], ENCLOSURE)
        result["lo"], result["hi"] = np.where(possible, lo, np.inf), np.where(possible, hi, -np.inf)
        result["nan"], result["guard"] = nan, guard
        if result.size <= _FEW:
            result["var"] = self._number(result.shape)
        self._watch(function, result, operands)
        return result

    def _watch(self, function: str, result: np.ndarray, operands: Sequence[np.ndarray]) -> None:
        """Note the function where a bad value becomes possible of operands that cannot be bad."""
        bad = _can_be_bad(result)
        if not bad.any():
            return
        before = np.zeros((), bool)
        for x in operands:
            before = before | _can_be_bad(x)
        if (bad & ~before).any():
            self._born.append(function)

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: DType) -> None:
        if self._born:
            self.births.append((self._born[0], self._here(operator, buffer)))
            self._born = []
        super().wrote(operator, buffer, iteration, x, fmt)

    def _point(self, number: np.ndarray) -> np.ndarray:
        """Enclosures of known numbers (float64)."""
        result = np.zeros(np.shape(number), ENCLOSURE)
        nan = np.isnan(number)
        result["lo"] = np.where(nan, np.inf, number)[..., None]
        result["hi"] = np.where(nan, -np.inf, number)[..., None]
        result["nan"] = nan[..., None]
        return result

    def constant(self, value: float, fmt: Format) -> np.ndarray:
        return self._point(values(self.exact.constant(value, fmt), fmt))

    def from_words(self, words: np.ndarray, fmt: Format) -> np.ndarray:
        return self._point(values(words, fmt))

    def to_words(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        raise Open(f"the words of a {fmt.name} value, which decide what is computed")

    def compare(self, name: str, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        """A comparison whose outcome is the same for all inputs. Raises Open for another one."""
        (la, ha, na), (lb, hb, nb) = _join(a), _join(b)
        always, never = {
            "EQ": ((la == hb) & (ha == lb), (ha < lb) | (hb < la)),
            "NE": ((ha < lb) | (hb < la), (la == hb) & (ha == lb)),
            "LT": (ha < lb, la >= hb),
            "LE": (ha <= lb, la > hb),
            "GT": (la > hb, ha <= lb),
            "GE": (la >= hb, ha < lb),
        }[name]
        if not (always | never).all() or np.any(na | nb):
            raise Open(f"a comparison of {fmt.name} values that inputs decide")
        return np.asarray(always)

    def classified(self, name: str, x: np.ndarray, fmt: Format) -> np.ndarray:
        """isnan or isinf, where all inputs give the same."""
        lo, hi, nan = _join(x)
        never = ~nan if name == "isnan" else np.isfinite(lo) & np.isfinite(hi)
        always = nan & (lo > hi) if name == "isnan" else (lo == hi) & np.isinf(lo) & ~nan
        if not (always | never).all():
            raise Open(f"{name} of {fmt.name} values that inputs decide")
        return np.asarray(always)

    def clamp(self, x: np.ndarray, low: np.ndarray, high: np.ndarray, fmt: Format) -> np.ndarray:
        result = self.min(self.max(x, low, fmt), high, fmt)
        result["nan"] = np.asarray(x["nan"].any(axis=-1))[..., None]
        return result

    def spread_nan(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        raise Open("a maximum that keeps NaN")

    def differ(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        same = (a["lo"] == b["lo"]).all(axis=-1) & (a["hi"] == b["hi"]).all(axis=-1) & (a["var"] == b["var"])
        exact = (a["lo"] == a["hi"]).all(axis=-1) & ~a["nan"].any(axis=-1)
        return np.asarray(~(same & (exact | (a["var"] != 0))))

    def kept(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """Words that stand for values in global memory: no two alike."""
        return (np.arange(x.size) + 1).astype(fmt.word).reshape(x.shape)

    def readable(self, x: np.ndarray, fmt: DType) -> np.ndarray:
        raise Open("a value that is shown")

    def loaded(self, tensor: Any, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        known = self.memories.get(id(tensor.memory))
        if known is not None:
            return np.asarray(known[1][at])
        if tensor.name not in self.bounds.tensors:
            return self.from_words(words, tensor.fmt)
        bound = float(rounded(np.asarray(self.bounds.tensors[tensor.name]), tensor.fmt))
        if bound > self.bounds.tensors[tensor.name]:  # the greatest word within the bound
            bound = float(np.nextafter(bound, 0))
        result = np.zeros(np.shape(words), ENCLOSURE)
        result["lo"], result["hi"] = -bound, bound
        result["src"] = -1 - list(self.bounds.tensors).index(tensor.name)
        result["var"] = self._number(result.shape)
        return result

    def stored(self, tensor: Any, at: np.ndarray, x: np.ndarray, kept: np.ndarray | None = None) -> None:
        super().stored(tensor, at, x, kept)
        if not isinstance(tensor.fmt, Integer):
            key = id(tensor.memory)
            if key not in self.memories:
                self.memories[key] = (tensor, self._before(tensor))
            self.memories[key][1][at] = x

    def _before(self, tensor: Any) -> np.ndarray:
        """What a tensor holds before anything is stored to it."""
        if tensor.name in self.bounds.tensors:
            return self.loaded(tensor, np.arange(tensor._flat.size), tensor._flat)
        return np.zeros(tensor._flat.size, ENCLOSURE)

    # arithmetic

    def _flushed(self, lo: np.ndarray, hi: np.ndarray, fmt: Format) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of operands of which fast math takes subnormal ones for 0."""
        if not self._ftz(fmt):
            return lo, hi
        least = 2.0**fmt.emin
        return np.where((lo > 0) & (lo < least), 0.0, lo), np.where((hi < 0) & (hi > -least), 0.0, hi)

    def _operands(self, fmt: Format, *operands: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        operands = tuple(np.broadcast_arrays(*operands))
        guard = _newest(operands)
        found = []
        for x in operands:
            lo, hi, nan = _cases(x, guard)
            found.append((*self._flushed(lo, hi, fmt), nan))
        return guard, found

    def convert(self, x: np.ndarray, src: Format, dst: Format) -> np.ndarray:
        lo, hi, nan = x["lo"], x["hi"], x["nan"]
        if not dst.infinities:
            nan = nan | (np.abs(lo) == np.inf) | (np.abs(hi) == np.inf)
        result = self._made("convert", dst, lo, hi, nan, x["guard"], [x])
        exact = dst.fraction_bits >= src.fraction_bits and dst.exponent_bits >= src.exponent_bits
        for name in ("src", "top", "rate", "level"):
            result[name] = x[name]
        if exact:
            for name in ("var", "peak", "ratio", "of", "part", "pot", "lead", "slack"):
                result[name] = x[name]
        else:  # a ratio is lost: the absolute error of subnormal results is not followed
            result["peak"] = rounded(x["peak"], dst)
            result["pot"] = x["pot"] + 1  # rounding at most doubles
        return result

    def add(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        guard, (x, y) = self._operands(fmt, a, b)
        result = self._sum("add", x, y, fmt, guard, [a, b])
        if result.ndim == 2:
            result["var"] = number = self._number(result.shape)
            for own, other in zip(np.broadcast_arrays(a, b), np.broadcast_arrays(b, a), strict=True):
                take = (other["lo"].min(axis=-1) >= 0) & (own["var"] != 0)
                self._table("holds")[np.where(take, number, 0)] = own["var"]
        return result

    def sub(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        guard, (x, (lo, hi, nan)) = self._operands(fmt, a, b)
        result = self._sum("sub", x, (-hi, -lo, nan), fmt, guard, [a, b])
        a, b = np.broadcast_arrays(a, b)
        self._related(result, a["var"], b["var"], np.zeros(a.shape), guard)
        products = (a["base"] != 0) & (b["base"] != 0) & (a["factor"] == b["factor"]) & (a["factor"] > 0)
        if products.any():
            self._related(result, np.where(products, a["base"], 0), np.where(products, b["base"], 0),
                          np.zeros(a.shape), guard)  # fmt: skip
        return result

    def _sum(self, function: str, x: Any, y: Any, fmt: Format, guard: Any, operands: list[np.ndarray]) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            lo, hi = outward(x[0] + y[0], x[1] + y[1])
        nan = x[2] | y[2] | (x[1] == np.inf) & (y[0] == -np.inf) | (x[0] == -np.inf) & (y[1] == np.inf)
        empty = (x[0] > x[1]) | (y[0] > y[1])
        lo, hi = np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi)
        # opposite infinities that are certain leave nothing but NaN
        only = (x[0] == x[1]) & (y[0] == y[1]) & np.isinf(x[0]) & np.isinf(y[0]) & (x[0] != y[0])
        lo, hi = np.where(empty | only, np.inf, lo), np.where(empty | only, -np.inf, hi)
        return self._made(function, fmt, lo, hi, nan, guard, operands, self._ftz(fmt))

    def _product(self, x: Any, y: Any, same: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Exact bounds of a product, in float64; same: where it is a square."""
        with np.errstate(invalid="ignore", over="ignore"):
            four = np.stack([x[i] * y[j] for i in (0, 1) for j in (0, 1)])
        four = np.where(np.isnan(four), 0.0, four)
        zero = [(v[0] <= 0) & (v[1] >= 0) for v in (x, y)]
        infinite = [np.isinf(v[0]) | np.isinf(v[1]) for v in (x, y)]
        nan = x[2] | y[2] | zero[0] & infinite[1] | zero[1] & infinite[0]
        empty = (x[0] > x[1]) | (y[0] > y[1])
        lo, hi = four.min(axis=0), four.max(axis=0)
        lo = np.where(same[..., None], np.where(zero[0], 0.0, np.minimum(four[0], four[3])), lo)
        lo, hi = outward(lo, hi)
        return np.where(empty, np.inf, lo), np.where(empty, -np.inf, hi), nan & ~empty | x[2] | y[2]

    def mul(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        guard, (x, y) = self._operands(fmt, a, b)
        born = len(self._born)
        result = self._made("mul", fmt, *self._product(x, y, _same(a, b)), guard, [a, b], self._ftz(fmt))
        a, b = np.broadcast_arrays(a, b)
        for value, other in ((a, b), (b, a)):
            self._tightened(result, self._telescoped(value, other), _nothing(a.shape), born, fmt)
            number, constant = _constant(other)
            take = constant & (value["var"] != 0) & (number > 0)
            result["base"] = np.where(take, value["var"], result["base"])
            result["factor"] = np.where(take, number, result["factor"])
            self._rescaled(result, value, other)
        return result

    def _telescoped(self, x: np.ndarray, scale: np.ndarray) -> Any:
        """What bounds x * scale, where x is bounded by the maximum that the factor leads away from."""
        pot, rate, level, zero = _potential(x)
        fits = (level != 0) & (level == scale["lead"]) & (rate == scale["rate"]) & (scale["level"] != 0)
        return np.where(fits, pot + scale["slack"], 0), rate, np.where(fits, scale["level"], 0), zero

    def _tightened(self, result: np.ndarray, x: Any, y: Any, born: int, fmt: Format) -> None:
        """Bound a sum of two by what bounds each, where both speak of the same maximum; births since `born` may go."""
        level, rate = np.maximum(x[2], y[2]), np.where(x[2] != 0, x[1], y[1])
        fits = level != 0
        for _, own_rate, own, zero in (x, y):
            fits = fits & (zero | (own == level) & (own_rate == rate))
        if not fits.any():
            return
        pots = [np.where(zero, -np.inf, pot) for pot, _, _, zero in (x, y)]
        with np.errstate(invalid="ignore"):
            pot = np.logaddexp2(*pots) + 2.0**-18
        lowest = self._table("lowest", np.float64)[level]
        with np.errstate(over="ignore", invalid="ignore"):
            most = np.exp2(np.where(fits, pot - rate * lowest, np.inf)) * (1 + _FUNCTION)
        most = np.where(most < greatest(fmt), most, np.inf)[..., None]  # what is greater may be infinite
        possible = result["lo"] <= result["hi"]
        result["hi"] = np.where(possible, np.minimum(result["hi"], most), result["hi"])
        result["lo"] = np.where(possible, np.maximum(result["lo"], -most), result["lo"])
        for name, known in zip(_POTENTIAL[:3], (pot, rate, level), strict=True):
            result[name] = np.where(fits, known, result[name])
        if not _can_be_bad(result).any():
            del self._born[born:]

    def _rescaled(self, result: np.ndarray, x: np.ndarray, scale: np.ndarray) -> None:
        """An accumulator that is rescaled as its sum was: at most its ratio times the rescaled old sum."""
        following = self._table("next")[x["of"]]
        take = (x["of"] != 0) & ~x["part"] & (following != 0) & (scale["lo"].min(axis=-1) >= 0)
        take &= (self._table("scale_of")[following] == scale["var"]) & (scale["var"] != 0) & ~_can_be_bad(result)
        if take.any():
            result["of"], result["part"] = np.where(take, following, result["of"]), take | result["part"]
            result["ratio"] = np.where(take, x["ratio"] * (1 + 2.0**-22), result["ratio"])

    def mul_add(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        born = len(self._born)
        result = self._fused("mul_add", a, b, c, 1.0, 1.0, fmt)
        self._tightened(result, self._telescoped(*np.broadcast_arrays(a, b)), _potential(c), born, fmt)
        if result.ndim == 2:
            result["var"] = number = self._number(result.shape)
            a, b, c = np.broadcast_arrays(a, b, c)
            positive = [_join(v)[0] >= 0 for v in (a, b, c)]
            sums = positive[0] & positive[1] & positive[2]
            for name, at, value in (("next", a["var"], number), ("scale_of", number, b["var"]),
                                    ("summed", c["var"], number)):  # fmt: skip
                self._table(name)[np.where(sums, at, 0)] = value
                self._table(name)[0] = 0
            self._table("least", np.float64)[number] = _join(result)[0]
        return result

    def mul_sub(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        if self.fast_math and self.arch.splits_mul_sub:
            return self.sub(self.mul(a, b, fmt), c, fmt)
        return self._fused("mul_sub", a, b, c, 1.0, -1.0, fmt)

    def sub_mul(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        return self._fused("sub_mul", a, b, c, -1.0, 1.0, fmt)

    def _fused(self, function: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, product: float, addend: float,
               fmt: Format) -> np.ndarray:  # fmt: skip
        guard, (x, y, z) = self._operands(fmt, a, b, c)
        p = self._product(x, y, _same(a, b))
        p = p if product > 0 else (-p[1], -p[0], p[2])
        z = z if addend > 0 else (-z[1], -z[0], z[2])
        result = self._sum(function, p, z, fmt, guard, [a, b, c])
        if function == "mul_sub":
            a, b, c = np.broadcast_arrays(a, b, c)
            for value, other in ((a, b), (b, a)):
                number, constant = _constant(other)
                take = constant & (c["base"] != 0) & (number > 0) & (c["factor"] == number)
                if take.any():
                    size = np.where(c["lo"] <= c["hi"], np.maximum(np.abs(c["lo"]), np.abs(c["hi"])), 0)
                    slack = size.max(axis=-1) * 2.0**-24 + 2.0**-149
                    slack = slack * (1 + 2.0**-22)
                    x, m = np.where(take, value["var"], 0), np.where(take, c["base"], 0)
                    self._related(result, x, m, slack, guard)
                    most = _join(value)[1]
                    take = (x != 0) & (most < np.inf) & (slack < np.inf)
                    slack = slack + 2.0**-16  # the difference's own rounding, where its power of 2 is neither 0 nor inf
                    pot = number * np.where(take, most, 0) + np.where(take, slack, 0)
                    for name, known in zip(_POTENTIAL, (pot, number, m, x, slack), strict=True):
                        result[name] = np.where(take, known, result[name])
        return result

    def _related(self, result: np.ndarray, x: np.ndarray, m: np.ndarray, slack: np.ndarray, guard: np.ndarray) -> None:
        """A difference of values x and m (or their products with one positive factor), whose rounding adds `slack`.

        x at most m: not above slack. x equal to m: within slack of 0. Where m's maximum is attained, at least -slack.
        """
        least = self._at_most(x, m)
        if not least.any():
            return
        lo, hi, slack = result["lo"], result["hi"], slack[..., None]
        finite = ~result["nan"]  # an infinite difference is no number: then nothing is known
        possible = lo <= hi
        hi = np.where(least[..., None] & possible & finite, np.minimum(hi, slack), hi)
        same = self._equal(x, m) & ((guard == m) | (x == m))[..., None] & possible & finite
        hi, lo = np.where(same, np.minimum(hi, slack), hi), np.where(same, np.maximum(lo, -slack), lo)
        result["lo"], result["hi"] = lo, hi
        above = self._table("above")[x]
        attained = self._equal(above, m) & least[..., None]
        result["src"] = np.where(least, x, result["src"])
        result["top"] = np.where(least, above, result["top"])
        result["peak"] = np.where(attained & ((guard == m) | (above == m))[..., None], -slack, -np.inf)

    def div(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        guard, (x, y) = self._operands(fmt, a, b)
        least = 2.0**fmt.emin if self.fast_math else 5e-324
        zero = (y[0] < least) & (y[1] > -least)
        with np.errstate(all="ignore"):
            four = np.stack([x[i] / y[j] for i in (0, 1) for j in (0, 1)])
        four = np.where(np.isnan(four), 0.0, four)
        lo, hi = outward(four.min(axis=0), four.max(axis=0), _FUNCTION if self.fast_math else 0.0)
        if self.fast_math:  # the reciprocal of what is above 2^126 is 0
            huge = np.maximum(np.abs(y[0]), np.abs(y[1])) >= 2.0**126
            lo, hi = np.where(huge, np.minimum(lo, 0), lo), np.where(huge, np.maximum(hi, 0), hi)
        infinite = [np.isinf(v[0]) | np.isinf(v[1]) for v in (x, y)]
        top = [np.maximum(np.abs(v[0]), np.abs(v[1])) for v in (x, y)]
        nan = x[2] | y[2] | infinite[0] & (infinite[1] | self.fast_math & (top[1] > 2.0**126))
        nan = nan | zero & (x[0] <= 0) & (x[1] >= 0)
        lo, hi = np.where(zero, -np.inf, lo), np.where(zero, np.inf, hi)
        only = zero & (x[0] == 0) & (x[1] == 0) & (y[0] == 0) & (y[1] == 0)
        empty = (x[0] > x[1]) | (y[0] > y[1]) | only
        a, b = np.broadcast_arrays(a, b)
        lo, hi = self._bounded_by_its_sum(lo, hi, a, b, nan)
        return self._made("div", fmt, np.where(empty, np.inf, lo), np.where(empty, -np.inf, hi), nan, guard, [a, b],
                          self._ftz(fmt))  # fmt: skip

    def _bounded_by_its_sum(self, lo: np.ndarray, hi: np.ndarray, a: np.ndarray, b: np.ndarray, nan: np.ndarray) -> Any:
        """An accumulator over its own sum is at most its ratio."""
        least = b["lo"].min(axis=-1)
        holds = self._table("holds")[b["var"]]
        take = ((a["of"] == b["var"]) | (a["of"] == holds)) & (a["of"] != 0) & ~a["part"] & (least > _LEAST)
        most = (a["ratio"] * (1 + 4 * _FUNCTION) + _TINY / np.maximum(least, _LEAST))[..., None]
        fits = take[..., None] & ~nan
        return np.where(fits, np.maximum(lo, -most), lo), np.where(fits, np.minimum(hi, most), hi)

    def reciprocal(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        born = len(self._born)
        result = self.div(self._point(np.ones(())), a, fmt)
        del self._born[born:]  # only a fused use counts, and that sees the bounds
        return result

    def neg(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return self._moved("neg", a, -a["hi"], -a["lo"])

    def abs(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        lo, hi = np.abs(a["lo"]), np.abs(a["hi"])
        across = (a["lo"] <= 0) & (a["hi"] >= 0)
        return self._moved("abs", a, np.where(across, 0.0, np.minimum(lo, hi)), np.maximum(lo, hi))

    def _moved(self, function: str, a: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        result = np.zeros(a.shape, ENCLOSURE)
        empty = a["lo"] > a["hi"]
        result["lo"], result["hi"] = np.where(empty, np.inf, lo), np.where(empty, -np.inf, hi)
        result["nan"], result["guard"] = a["nan"], a["guard"]
        return result

    # maxima

    def max(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        (la, ha, na), (lb, hb, nb) = _join(a), _join(b)
        result = np.zeros(a.shape, ENCLOSURE)
        low = np.maximum(np.where(na, -np.inf, la), np.where(nb, -np.inf, lb))  # NaN is dropped
        result["lo"] = low[..., None]
        result["hi"] = np.stack([ha, hb], axis=-1)
        impossible = result["hi"] < low[..., None]
        result["lo"][impossible], result["hi"][impossible] = np.inf, -np.inf
        result["nan"] = np.asarray(na & nb)[..., None]
        number = self._number(a.shape)
        result["var"] = result["guard"] = number
        for name, at, value in (("above", a["var"], number), ("above", b["var"], number),
                                ("first_operand", number, a["var"]), ("second_operand", number, b["var"])):  # fmt: skip
            table = self._table(name)
            table[at] = value
            table[0] = 0
        self._table("lowest", np.float64)[number] = low
        for other, own in ((a, b), (b, a)):
            lo, hi, nan = _join(other)
            result = np.where((lo == -np.inf) & (hi == -np.inf) & ~nan, own, result)
        return np.asarray(result)

    def min(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        (la, ha, na), (lb, hb, nb) = (_join(x) for x in np.broadcast_arrays(a, b))
        hi = np.minimum(np.where(na, np.inf, ha), np.where(nb, np.inf, hb))
        result = np.zeros(la.shape, ENCLOSURE)
        result["lo"], result["hi"] = np.minimum(la, lb)[..., None], hi[..., None]
        result["nan"] = np.asarray(na & nb)[..., None]
        return result

    def select(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition, a, b)

    # functions

    def _function(self, name: str, x: np.ndarray, fmt: Format) -> np.ndarray:
        raise Open(f"the function {name}")

    def _monotone(self, name: str, x: np.ndarray, fmt: Format, function: Callable[[np.ndarray], np.ndarray],
                  domain: float = -np.inf, exact: bool = False) -> np.ndarray:  # fmt: skip
        lo, hi = self._flushed(x["lo"], x["hi"], fmt)
        nan = x["nan"] | (lo < domain) & (lo <= hi)
        with np.errstate(all="ignore"):
            low, high = function(np.maximum(lo, domain)), function(np.maximum(hi, domain))
        low, high = outward(low, high, 0.0 if exact else _FUNCTION)
        empty = (x["lo"] > x["hi"]) | (hi < domain)
        low, high = np.where(empty, np.inf, low), np.where(empty, -np.inf, high)
        return self._made(name, fmt, low, high, nan, x["guard"], [x], self._ftz(fmt))

    def exp2(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        result = self._monotone("exp2", x, fmt, np.exp2)
        return self._weights(result, x, np.exp2)

    def exp(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """exp2(x * log2(e)), the product rounded: its relative error grows with |x|."""
        spread = x.copy()
        for name, sign in (("lo", -1.0), ("hi", 1.0)):
            spread[name] = np.where(np.isfinite(x[name]), x[name] + sign * np.abs(x[name]) * 2.0**-22, x[name])
        result = self._monotone("exp", spread, fmt, np.exp)
        return self._weights(result, x, lambda v: np.exp(v - np.abs(v) * 2.0**-22))

    def _weights(self, result: np.ndarray, x: np.ndarray, function: Any) -> np.ndarray:
        """Weights of scores: what was known of a row's maximum holds for them."""
        result["src"], result["top"] = np.where(x["top"] != 0, x["src"], 0), x["top"]
        with np.errstate(all="ignore"):
            peak = function(x["peak"]) * (1 - _FUNCTION)
        result["peak"] = np.where(np.isfinite(x["peak"]) & (x["top"] != 0)[..., None], peak, -np.inf)
        result["lo"] = np.maximum(result["lo"], 0)
        if function is np.exp2:
            for name in _POTENTIAL:
                result[name] = x[name]
            more = _FUNCTION * 2 + (0 if self.fast_math else 1)  # a subnormal result is rounded to at most twice itself
            result["pot"], result["slack"] = x["pot"] + more, x["slack"] + more
        if result.ndim == 2:
            result["var"] = self._number(result.shape)
        return result

    def log2(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._logarithm("log2", x, fmt, np.log2)

    def log(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._logarithm("log", x, fmt, np.log)

    def _logarithm(self, name: str, x: np.ndarray, fmt: Format, function: Any) -> np.ndarray:
        """Near 1 the error is absolute."""
        result = self._monotone(name, x, fmt, function, domain=0.0)
        result["lo"] = np.where(np.isfinite(result["lo"]), result["lo"] - 2.0**-20, result["lo"])
        result["hi"] = np.where(np.isfinite(result["hi"]), result["hi"] + 2.0**-20, result["hi"])
        return result

    def sqrt(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._monotone("sqrt", x, fmt, np.sqrt, domain=0.0)

    def rsqrt(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        born = len(self._born)
        root = self.sqrt(x, fmt)
        result = self.div(self._point(np.ones(())), root, fmt)
        if len(self._born) > born:
            self._born[born:] = ["rsqrt"]
        lo, hi = outward(result["lo"], result["hi"], 2 * _FUNCTION)
        result["lo"], result["hi"] = lo, hi
        return result

    def floor(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._monotone("floor", x, fmt, np.floor, exact=True)

    def ceil(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._monotone("ceil", x, fmt, np.ceil, exact=True)

    def trunc(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._monotone("trunc", x, fmt, np.trunc, exact=True)

    def nearbyint(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._monotone("nearbyint", x, fmt, np.rint, exact=True)

    # reductions

    def reduce(self, op: str, x: np.ndarray, order: Reduction | None, fmt: Format) -> np.ndarray:
        if op == "sum":
            return self._added(x, fmt)
        (lo, hi, nan), result = _join(x), np.zeros(x.shape[:-1], ENCLOSURE)
        if op == "max":
            result["lo"] = np.where(nan, -np.inf, lo).max(axis=-1)[..., None]
            result["hi"] = hi.max(axis=-1)[..., None]
            self._attained(result, x)
        else:
            result["lo"] = lo.min(axis=-1)[..., None]
            result["hi"] = np.where(nan, np.inf, hi).min(axis=-1)[..., None]
        return result  # a row of NaN gives the identity, which is infinite: lo or hi says so

    def _attained(self, result: np.ndarray, x: np.ndarray) -> None:
        """The elements of a row are at most its maximum, and one of them is it, if none is NaN."""
        result["var"] = number = self._number(result.shape)
        self._table("lowest", np.float64)[number] = result["lo"].min(axis=-1)
        table = self._table("above")
        table[x["var"]] = np.broadcast_to(number[..., None], x.shape)
        table[0] = 0
        highest = x["hi"].max(axis=-1)  # what is below the maximum for sure does not attain it
        masked = ((highest == -np.inf) | (highest < result["lo"].min(axis=-1)[..., None])) & ~x["nan"].any(axis=-1)
        whole = (masked | (x["var"] != 0)).all(axis=-1) & _distinct(x["var"], ~masked) & ~x["nan"].any(axis=(-1, -2))
        counted = ~masked & whole[..., None]
        self._table("member")[np.where(counted, x["var"], 0)] = np.broadcast_to(number[..., None], x.shape)
        self._table("member")[0] = 0
        self._table("row_size")[number] = counted.sum(axis=-1)

    def sum_lanes(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._added(np.moveaxis(x, 0, -1).reshape(*x.shape[1:-1], -1), fmt)

    def join_lanes(self, total: np.ndarray, fmt: Format) -> np.ndarray:
        return self._added(total, fmt)

    def _added(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        """A sum over the last axis, in any order: each addition rounds once."""
        guard = x["guard"].max(axis=-1)
        lo, hi, nan = _cases(x, guard[..., None])
        lo, hi = self._flushed(lo, hi, fmt)
        n = x.shape[-1]
        error = (
            n * 2.0 ** -(fmt.fraction_bits + 1) * np.maximum(np.abs(lo), np.abs(hi)).sum(axis=-2) + n * 2.0**fmt.emin
        )
        error = np.where(np.isfinite(error), error, 0.0)
        with np.errstate(invalid="ignore"):
            low, high = lo.sum(axis=-2), hi.sum(axis=-2)
        nan = nan.any(axis=-2) | (lo == -np.inf).any(axis=-2) & (hi == np.inf).any(axis=-2)
        positive = (lo >= 0).all(axis=-2)
        low = np.where(positive, np.maximum(low - error, 0), low - error)
        low = np.where(positive, np.maximum(low, self._peaks(x, guard) * (1 - n * 2.0**-fmt.fraction_bits)), low)
        high = np.where((lo == 0).all(axis=-2) & (hi == 0).all(axis=-2), 0.0, high + error)
        empty = (lo > hi).any(axis=-2)
        result = self._made("sum", fmt, np.where(empty, np.inf, low), np.where(empty, -np.inf, high), nan, guard,
                            [_worst(x)], self._ftz(fmt))  # fmt: skip
        pot, rate, level, zero = _summed(x)
        own = (pot + n * 2.0**-fmt.fraction_bits, rate, level, zero)
        self._tightened(result, own, _nothing(result.shape), len(self._born), fmt)
        if result.ndim == 2:
            result["var"] = self._number(result.shape)
            whole, first = self._complete(x)
            whole &= positive.all(axis=-1)
            self._table("sum_of")[np.where(whole, first, 0)] = np.where(whole, result["var"], 0)
            self._table("sum_of")[0] = 0
        return result

    def _complete(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows [..., n] of a function of every element of one row, each once, and zeros beside; and their number."""
        top = x["top"].max(axis=-1)
        counted = (x["src"] > 0) & (x["top"] == top[..., None])
        counted &= self._table("member")[np.where(counted, x["src"], 0)] == np.where(top > 0, top, -1)[..., None]
        size = self._table("row_size")[np.maximum(top, 0)]
        zero = ((x["lo"] == 0) & (x["hi"] == 0) | (x["lo"] > x["hi"])).all(axis=-1) & ~x["nan"].any(axis=-1)
        fits = (size > 0) & (counted.sum(axis=-1) == size) & (counted | zero).all(axis=-1)
        fits &= _distinct(x["src"], counted)
        return fits, np.where(fits, np.where(counted, x["src"], 0).max(axis=-1), 0)

    def _peaks(self, x: np.ndarray, guard: np.ndarray) -> np.ndarray:
        """What a row of weights has at least, [..., 2]: the weight of the maximum, where that is in the row."""
        peak = np.where((x["top"] != 0)[..., None], x["peak"], np.inf).min(axis=-2)
        same = ((x["guard"] == guard[..., None]) | (x["top"] == 0)).all(axis=-1)
        fits = (self._complete(x)[0] & same)[..., None] & np.isfinite(peak)
        return np.where(fits, peak, 0.0)

    # the tensor core

    def dot(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, operand: Format, accumulator: Format) -> np.ndarray:
        """The interval of the exact sum, and the envelope of the truncation of every step around it."""
        (la, ha, na), (lb, hb, nb), (lc, hc, nc) = (_join(v) for v in (a, b, c))
        most, low, high = _products((la, ha), (lb, hb), operand)
        relative, error, over = self._envelope(
            most, np.maximum(np.abs(lc), np.abs(hc)), a.shape[-1], operand, accumulator
        )
        if self._scores(a, b):  # the bound is one of the word
            low, high = (
                np.full(c.shape, -float(self.bounds.score or 0)),
                np.full(c.shape, float(self.bounds.score or 0)),
            )
            error = np.where((lc == 0) & (hc == 0), 0, error)
        infinite = [(np.isinf(x) | np.isinf(y)).any(axis=-1) for x, y in ((la, ha), (lb, hb))]
        special = [x.any(axis=-1) | y for x, y in zip((na, nb), infinite, strict=True)]
        bad = special[0][..., :, None] | special[1][..., None, :]
        lo, hi = lc + low - error, hc + high + error
        below = lc == -np.inf  # stays, whatever is added
        lo = np.where(bad | over, -np.inf, lo)
        hi = np.where((bad | over) & ~(hc == -np.inf), np.inf, hi)
        nan = bad | nc | over & (below | (hc == np.inf))
        born = len(self._born)
        operands = [c, _worst(a)[..., :, None], _worst(b)[..., None, :]]
        lo, hi = (np.repeat(x[..., None], 2, axis=-1) for x in (lo, hi))
        result = self._made("dot", accumulator, lo, hi, nan[..., None], np.zeros(c.shape, np.int64), operands)
        result["var"] = self._number(result.shape)
        pot, rate, level, zero = (x[..., :, None] for x in _summed(a))
        with np.errstate(divide="ignore"):
            V = np.log2(np.maximum(np.abs(lb), np.abs(hb)).max(axis=-1))[..., None, :]
        row = np.broadcast_arrays(pot + V + relative * 2, rate, level, zero, result["pot"])[:4]
        old = _potential(c)
        self._tightened(result, row, (old[0] + relative * 2, *old[1:]), born, accumulator)
        self._weighted(result, a, b, c, relative, operand)
        return result

    def _scores(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether this is a dot product of the inputs whose score is bounded."""
        chosen = [-1 - n for n, name in enumerate(self.bounds.tensors) if name in self.bounds.scored]
        return self.bounds.score is not None and all(bool(np.isin(x["src"], chosen).all()) for x in (a, b))

    def _envelope(self, most: np.ndarray, c: np.ndarray, K: int, operand: Format, accumulator: Format) -> Any:
        """How far truncation takes a sum of magnitudes `most` and c: relatively, and in all; where it may overflow."""
        unit = self.arch.dot(operand, accumulator)
        kept = {"rz_fp32": 23, "rz_e8m13": 13, "rne_fp16": 10}[unit.out]
        total = most + np.where(np.isfinite(c), c, 0)
        relative = -(-K // unit.L) * ((unit.L + 1) * 2.0**-unit.F + 2.0**-kept)
        error = np.where(total == 0, 0, total * relative + 2.0**-120)
        return relative, error, total + error >= greatest(accumulator)

    def _weighted(self, result: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, error: float,
                  operand: Format) -> None:  # fmt: skip
        """acc + P @ V is at most the greatest |V| times the sum of weights: P's own, and what acc was a part of."""
        nothing = (a["lo"] == 0).all(axis=(-1, -2)) & (a["hi"] == 0).all(axis=(-1, -2)) & ~a["nan"].any(axis=(-1, -2))
        kept = nothing[..., None] & (c["of"] != 0) & c["part"] & ~_can_be_bad(result)
        below = self._table("least", np.float64)[c["of"]]
        kept &= below > _LEAST
        more = np.where(kept, c["ratio"] * (1 + 2.0**-22) * (1 + error) + _TINY / np.where(kept, below, 1), 0)
        result["ratio"] = np.where(kept, more, result["ratio"])
        result["of"] = np.where(kept, c["of"], result["of"])
        whole, first = self._complete(a)
        own = self._table("sum_of")[first]
        new = self._table("summed")[own]
        lo = a["lo"].min(axis=-1)
        fits = whole & (first > 0) & (own != 0) & (new != 0) & (lo >= 0).all(axis=-1)
        if not fits.any():
            return
        least = self._table("least", np.float64)[new]
        fits &= least > _LEAST
        V = np.maximum(np.abs(b["lo"]), np.abs(b["hi"])).max(axis=(-1, -2))[..., None, :]
        n = a.shape[-1]
        loss = n * 2.0 ** (operand.emin - operand.fraction_bits) / np.where(least > 0, least, 1)
        share = np.minimum(1 + 2.0**-operand.fraction_bits / 2 + loss, 2) * (
            1 + n * 2.0**-22
        )  # rounding at most doubles
        zero = (c["lo"] == 0).all(axis=-1) & (c["hi"] == 0).all(axis=-1)
        before = np.where(zero, 0, c["ratio"])
        joined = zero | (c["of"] == new[..., None]) & c["part"]
        ratio = np.maximum(before, V * share[..., None]) * (1 + 2.0**-22) * (1 + error)
        ratio = ratio + (_TINY / np.where(fits, least, 1))[..., None]
        take = fits[..., None] & joined & np.isfinite(V) & ~_can_be_bad(result) & ~_can_be_bad(c)
        result["ratio"] = np.where(take, ratio, result["ratio"])
        result["of"] = np.where(take, new[..., None], result["of"])


def _can_be_bad(x: np.ndarray) -> np.ndarray:
    """NaN or +inf is possible, or -inf of what is not certainly that."""
    lo, hi, nan = _join(x)
    return np.asarray(nan | (hi == np.inf) | (lo == -np.inf) & (hi != -np.inf))


def _worst(x: np.ndarray) -> np.ndarray:
    """For each row an enclosure that can be bad where one of its elements can."""
    return np.asarray(np.take_along_axis(x, _can_be_bad(x).argmax(axis=-1)[..., None], axis=-1)[..., 0])


_rows = _worst


def _distinct(numbers: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Rows whose chosen numbers are all different."""
    numbers = np.sort(np.where(chosen, numbers, -1 - np.arange(numbers.shape[-1])), axis=-1)
    return np.asarray((np.diff(numbers, axis=-1) != 0).all(axis=-1))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two values are one and the same."""
    return np.asarray((a["var"] == b["var"]) & (a["var"] != 0))


def _potential(x: np.ndarray) -> Any:
    """pot, rate and level of values, and which are 0."""
    zero = (x["lo"] == 0).all(axis=-1) & (x["hi"] == 0).all(axis=-1) & ~x["nan"].any(axis=-1)
    return x["pot"], x["rate"], np.where(zero, 0, x["level"]), zero


def _nothing(shape: tuple[int, ...]) -> Any:
    """The potential of zeros."""
    return np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64), np.ones(shape, bool)


def _summed(x: np.ndarray) -> Any:
    """The potential of the sums of magnitudes of each row [..., n], where all elements speak of one maximum."""
    pot, rate, level, zero = _potential(x)
    top, own = level.max(axis=-1), rate.max(axis=-1, where=~zero, initial=0.0)
    fits = (zero | (level == top[..., None]) & (rate == own[..., None])).all(axis=-1)
    pot = np.where(zero, -np.inf, pot)
    with np.errstate(invalid="ignore"):
        total = np.logaddexp2.reduce(pot, axis=-1)
    return total, own, np.where(fits, top, 0), zero.all(axis=-1)


def _constant(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each enclosure, and whether it is known."""
    lo, hi, nan = _join(x)
    return lo, (lo == hi) & ~nan & np.isfinite(lo)


def _products(a: Any, b: Any, fmt: Format) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a sum of products a . b: the sum of the greatest magnitudes, and bounds, [..., M, N]."""
    least = 2.0**fmt.emin
    centre, radius = [], []
    for lo, hi in (a, b):
        lo, hi = (np.where(np.isfinite(v), v, np.sign(v) * greatest(fmt)) for v in (lo, hi))
        centre.append((lo + hi) / 2)
        radius.append((hi - lo) / 2)
    size = [np.abs(c) + r for c, r in zip(centre, radius, strict=True)]
    across = [np.swapaxes(v[1], -1, -2) for v in (centre, radius, size)]
    middle = centre[0] @ across[0]
    spread = np.abs(centre[0]) @ across[1] + radius[0] @ np.abs(across[0]) + radius[0] @ across[1]
    slack = a[0].shape[-1] * 2.0**-50 * (size[0] @ across[2])
    floor = [np.where(v > 0, np.maximum(v, least), 0) for v in (size[0], across[2])]
    return floor[0] @ floor[1], middle - spread - slack, middle + spread + slack
