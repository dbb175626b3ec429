"""What a running kernel has in registers: integers and machine values, one for each lane and element of a loop.

*Lanes* are the thread blocks that run in step, the leading axis of every array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .formats import DType
from .machine import Exact

__all__ = ["Index", "Lanes", "Value", "either", "lift", "rows", "select"]


class Lanes:
    """Which of the thread blocks that run in step take part: the first `count`, or those of `index` (ascending)."""

    def __init__(self, count: int, index: np.ndarray | None = None):
        self.count, self.index = count, index

    def where(self, chosen: np.ndarray) -> Lanes:
        """Those of these lanes for which `chosen` (bool, one for each) is true."""
        kept = np.flatnonzero(chosen)
        if self.index is None and (kept == np.arange(len(kept))).all():
            return Lanes(len(kept))
        return Lanes(len(kept), self.places()[kept])

    def within(self, other: Lanes) -> bool:
        """Whether `other` has all of these."""
        if other.index is None:
            last = self.count if self.index is None or not self.count else int(self.index[-1]) + 1
            return last <= other.count
        return bool(np.isin(self.places(), other.index).all())

    def places(self) -> np.ndarray:
        return np.arange(self.count) if self.index is None else self.index

    def among(self, other: Lanes) -> slice | np.ndarray:
        """Where these stand among the lanes of `other`, which has them all."""
        if self.index is None and other.index is None:
            return slice(0, self.count)
        return self.places() if other.index is None else np.searchsorted(other.index, self.places())


def rows(x: np.ndarray, chosen: slice | np.ndarray) -> np.ndarray:
    """The rows of the chosen lanes; what all lanes share stays as it is."""
    return x if x.shape[0] == 1 else x[chosen]


def lift(x: np.ndarray, rank: int) -> np.ndarray:
    """x [lanes or 1, ...] with axes appended up to `rank` of them: inner loop axes come last."""
    return x.reshape(x.shape + (1,) * (rank + 1 - x.ndim))


class Index:
    """Integers or bools, one per lane and element of a T.Parallel loop: `at` [lanes or 1, ...].

    axis: the loop axis that it walks from 0, None if it is computed. poison: as in Value.
    """

    __array_ufunc__ = None  # so that `bx * block_M + i` asks Index

    def __init__(self, at: np.ndarray, axis: int | None = None, poison: np.ndarray | None = None):
        self.at, self.axis, self.poison = at, axis, poison

    def apply(self, function: Callable[..., np.ndarray], other: Any, swap: bool = False) -> Index:
        """function(self, other), or of the two swapped; other: an int, an Index, or an array with one per lane."""
        right = other.at if isinstance(other, Index) else np.asarray(other)
        rank = max(self.at.ndim, right.ndim) - 1
        left, right = lift(self.at, rank), lift(right, rank) if right.ndim else right
        result = function(right, left) if swap else function(left, right)
        poison = either(self.poison, other.poison if isinstance(other, Index) else None)
        return Index(np.asarray(result), None, poison)

    def __add__(self, other: Any) -> Index:
        return self.apply(np.add, other)

    def __sub__(self, other: Any) -> Index:
        return self.apply(np.subtract, other)

    def __mul__(self, other: Any) -> Index:
        return self.apply(np.multiply, other)

    __radd__, __rmul__ = __add__, __mul__

    def __ge__(self, other: Any) -> Index:
        return self.apply(np.greater_equal, other)

    def __gt__(self, other: Any) -> Index:
        return self.apply(np.greater, other)

    def __le__(self, other: Any) -> Index:
        return self.apply(np.less_equal, other)

    def __lt__(self, other: Any) -> Index:
        return self.apply(np.less, other)


def either(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Poison of what depends on both."""
    if a is None or b is None:
        return b if a is None else a
    rank = max(a.ndim, b.ndim) - 1
    return lift(a, rank) | lift(b, rank)


class Value:
    """What an expression has in registers: machine values [lanes or 1, ...], or a product that is not rounded yet.

    The compiler contracts a product and the addition or subtraction that uses it into one fma, so a product stays open
    until it is used (docs/NUMERICS.md, section 3). poison: bool array, or None when everything was written.
    """

    def __init__(
        self,
        machine: Exact,
        fmt: DType,
        data: np.ndarray | None,
        poison: np.ndarray | None = None,
        factors: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.machine, self.fmt, self.poison, self.factors, self._data = machine, fmt, poison, factors, data

    @property
    def data(self) -> np.ndarray:
        """The values; an open product is rounded."""
        if self._data is None:
            assert self.factors is not None
            a, b = self._operands(*self.factors)
            self._data = self.machine.mul(a, b, self.fmt)
        return self._data

    def rounded(self) -> Value:
        """The same value, a product no longer open."""
        return Value(self.machine, self.fmt, self.data, self.poison)

    def reshaped(self, shape: tuple[int, ...]) -> Value:
        """The same values as [lanes or 1, *shape]."""
        data = None if self._data is None else self._data.reshape((self._data.shape[0], *shape))
        poison = self.poison
        if poison is not None:
            poison = np.broadcast_to(poison, (poison.shape[0], *self.data.shape[1:]))
            poison = poison.reshape((poison.shape[0], *shape))
        factors = None
        if self.factors is not None:
            a, b = (np.broadcast_to(x, self.data.shape) for x in self.factors)
            factors = a.reshape((a.shape[0], *shape)), b.reshape((b.shape[0], *shape))
        return Value(self.machine, self.fmt, data, poison, factors)

    def _other(self, other: Any) -> Value:
        if not isinstance(other, Value):
            return Value(self.machine, self.fmt, self.machine.constant(other, self.fmt))
        if other.fmt is not self.fmt:
            raise TypeError(f"operands must have one dtype, not {self.fmt.name} and {other.fmt.name}: cast one first")
        return other

    @staticmethod
    def _operands(*operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """Operands with the axes that some of them lack appended."""
        rank = max(x.ndim for x in operands) - 1
        return tuple(lift(x, rank) if x.ndim else x for x in operands)

    def combine(self, name: str, other: Any) -> Value:
        """The machine's function `name` of this value and another."""
        other = self._other(other)
        data = getattr(self.machine, name)(*self._operands(self.data, other.data), self.fmt)
        return Value(self.machine, self.fmt, data, either(self.poison, other.poison))

    def apply(self, name: str) -> Value:
        """The machine's function `name` of this value. With fast math log(x) is the product log2(x) * ln(2)."""
        machine, fmt = self.machine, self.fmt
        found = Value(machine, fmt, getattr(machine, name)(self.data, fmt), self.poison)
        if name == "log" and machine.fast_math:
            found.factors = machine.log2(self.data, fmt), machine.constant(0.693147182464599609375, fmt)
        return found

    def _fused(self, name: str, product: Value, rest: Value) -> Value:
        """The machine's contraction `name` of an open product and another value."""
        assert product.factors is not None
        data = getattr(self.machine, name)(*self._operands(*product.factors, rest.data), self.fmt)
        return Value(self.machine, self.fmt, data, either(product.poison, rest.poison))

    def __mul__(self, other: Any) -> Value:
        other = self._other(other)
        return Value(self.machine, self.fmt, None, either(self.poison, other.poison), (self.data, other.data))

    def __add__(self, other: Any) -> Value:
        other = self._other(other)
        if self.factors or other.factors:  # of two products the left one
            return self._fused("mul_add", *((self, other) if self.factors else (other, self)))
        return self.combine("add", other)

    def __sub__(self, other: Any) -> Value:
        other = self._other(other)
        if self.factors:  # of `a*s - m*s` the left product is the fused one
            return self._fused("mul_sub", self, other)
        return self._fused("sub_mul", other, self) if other.factors else self.combine("sub", other)

    def __truediv__(self, other: Any) -> Value:
        other = self._other(other)
        quotient = self.combine("div", other)
        if self.machine.fast_math:  # a product with the reciprocal
            a, b = self._operands(self.data, self.machine.reciprocal(other.data, self.fmt))
            quotient.factors = a, b
        return quotient

    def __neg__(self) -> Value:
        """A negated product stays open."""
        if self.factors is None:
            return self * -1.0
        a, b = self.factors
        return Value(self.machine, self.fmt, None, self.poison, (self.machine.neg(a, self.fmt), b))

    __rmul__, __radd__ = __mul__, __add__


def select(taken: Index, a: Any, b: Any) -> Any:
    """a where `taken` holds, else b: two Values of one format, or integers. What is not taken does not leak."""
    whole = isinstance(a, Value)
    left, right = (v if isinstance(v, Value | Index) else Index(np.asarray(v).reshape(1)) for v in (a, b))
    x, y = (v.data if isinstance(v, Value) else v.at for v in (left, right))
    rank = max(taken.at.ndim, x.ndim, y.ndim) - 1
    t, x, y = (lift(v, rank) if v.ndim else v for v in (taken.at, x, y))
    poison = _taken_poison(t, left.poison, right.poison, taken.poison)
    if whole:
        return Value(a.machine, a.fmt, a.machine.select(t, x, y), poison)
    return Index(np.where(t, x, y), poison=poison)


def _taken_poison(
    taken: np.ndarray, a: np.ndarray | None, b: np.ndarray | None, test: np.ndarray | None
) -> np.ndarray | None:
    if a is None and b is None:
        return test
    x, y = (np.zeros((1,) * taken.ndim, bool) if p is None else lift(p, taken.ndim - 1) for p in (a, b))
    return either(np.where(taken, x, y), test)
