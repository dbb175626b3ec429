"""The state of a running kernel: variables, running lanes, elements of the parallel loop, and what is guarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from ..formats import FP32, DType, Format, Integer, dtype_named
from ..tile import Block
from ..values import Index, Lanes, Value, either, rows

__all__ = ["Frame", "Lost", "Unsupported", "dtype_of"]


class Unsupported(NotImplementedError):
    """Something in a kernel that the simulator does not run: what, and the source line ("" if unknown)."""

    def __init__(self, what: str, where: str = ""):
        super().__init__(what)
        self.what, self.where = what, where

    def __str__(self) -> str:
        return f"{self.what} is not supported" + (f" ({self.where})" if self.where else "")


class Lost(Exception):
    """What runs depends on memory that nobody wrote; where: the source line."""

    def __init__(self, where: str):
        super().__init__(where)
        self.where = where


def dtype_of(node: Any) -> DType:
    """The dtype of a buffer or an expression. Raises Unsupported for one that is not modelled."""
    name = str(node.dtype)
    try:
        return dtype_named(name)
    except ValueError:
        raise Unsupported(f"dtype {name}") from None


class Frame:
    """What expressions and statements see: block (tiles and lanes), variables, parallel axes and the guard.

    guard: an Index of bools for the elements whose expression is really evaluated (the taken side of a select, the
    body of an if); None when all are. What is outside may be anything, and must not leak.
    doubt: where it cannot be known whether what runs now runs at all; None: nowhere.
    leaving: of each serial loop around what runs with a break or continue, who has left it.
    turns: listens where elements of the T.Parallel loop that runs may meet; None: they cannot.
    """

    def __init__(self, block: Block):
        self.block = block
        self.variables: dict[Any, tuple[Lanes, Any]] = {}
        self.guarded: Index | None = None
        self.doubt: Index | None = None
        self.tiles: dict[Any, Any] = {}
        self.plans: Any = None
        self.turns: Any = None
        self.leaving: list[Any] = []

    @property
    def lanes(self) -> Lanes:
        return self.block.lanes

    def bind(self, variable: Any, value: Any) -> None:
        self.variables[variable] = (self.lanes, value)

    def define(self, values: dict[Any, Any]) -> None:
        """Bind symbolic sizes and scalar parameters."""
        for variable, value in values.items():
            self.bind(variable, self.constant(value, dtype_of(variable)) if isinstance(value, float) else value)

    def read(self, variable: Any) -> Any:
        """A variable's value for the lanes that run now."""
        if variable not in self.variables:
            raise Unsupported(f"variable {variable.name} without a value")
        lanes, value = self.variables[variable]
        if lanes is self.lanes or not isinstance(value, Index | Value):
            return value
        chosen = self.lanes.among(lanes)
        if isinstance(value, Index):
            return Index(
                rows(value.at, chosen), value.axis, None if value.poison is None else rows(value.poison, chosen)
            )
        poison = None if value.poison is None else rows(value.poison, chosen)
        data, *factors = (rows(x, chosen) if x.ndim else x for x in (value.data, *(value.factors or ())))
        return Value(value.machine, value.fmt, data, poison, (factors[0], factors[1]) if factors else None)

    @contextmanager
    def guard(self, taken: Index) -> Iterator[None]:
        """Evaluate only where `taken` holds, too."""
        outer = self.guarded
        self.guarded = taken if outer is None else outer.apply(np.logical_and, taken)
        try:
            yield
        finally:
            self.guarded = outer

    def unknown(self, x: Any) -> Index | None:
        """Where a condition or a count that matters depends on memory that nobody wrote; None: nowhere."""
        if not isinstance(x, Index) or x.poison is None:
            return None
        found = Index(x.poison) if self.guarded is None else Index(x.poison).apply(np.logical_and, self.guarded)
        return found if found.at.any() else None

    def known(self, x: Any, where: str) -> Any:
        """A count or a condition that decides how often something runs. Raises Lost where it cannot be known."""
        if self.unknown(x) is not None:
            raise Lost(where)
        return x

    @contextmanager
    def doubting(self, where: Index) -> Iterator[None]:
        """Run what may not run where `where` holds: what it stores there cannot be known."""
        outer = self.doubt
        self.doubt = where if outer is None else outer.apply(np.logical_or, where)
        try:
            yield
        finally:
            self.doubt = outer

    def doubted(self, value: Any, fmt: DType) -> Any:
        """A value that is stored, unknown where the store itself is in doubt."""
        if self.doubt is None:
            return value
        value = self.block.as_value(value, fmt)
        return Value(value.machine, value.fmt, value.data, either(value.poison, self.doubt.at))

    def taking(self, side: Index) -> AbstractContextManager[None]:
        """Run one side of a branch: some lanes, or some elements of a T.Parallel loop."""
        if side.at.ndim > 1:
            return self.guard(side)
        return self.running(self.lanes.where(np.broadcast_to(side.at, (self.lanes.count,))))

    @contextmanager
    def running(self, lanes: Lanes) -> Iterator[None]:
        """Run with `lanes` only."""
        outer, guarded, doubt = self.block.lanes, self.guarded, self.doubt
        if guarded is not None:
            self.guarded = Index(rows(guarded.at, lanes.among(outer)))
        if doubt is not None:
            self.doubt = Index(rows(doubt.at, lanes.among(outer)))
        self.block.lanes = lanes
        try:
            yield
        finally:
            self.block.lanes, self.guarded, self.doubt = outer, guarded, doubt

    # values

    def constant(self, value: float, fmt: Format) -> Value:
        return Value(self.block.machine, fmt, self.block.machine.constant(value, fmt))

    def convert(self, x: Value, target: Format) -> Value:
        return Value(x.machine, target, x.machine.convert(x.data, x.fmt, target), x.poison)

    def from_integer(self, x: Index, target: Format) -> Value:
        """An integer as a float: through float32, rounded to nearest even."""
        with np.errstate(over="ignore"):
            words = np.asarray(x.at).astype(np.float32).view(np.uint32)
        machine = self.block.machine
        return Value(machine, target, machine.convert(machine.from_words(words, FP32), FP32, target), x.poison)

    def to_integer(self, x: Value, target: Integer) -> Index:
        """A float as an integer: toward zero, saturating at 32 or 64 bits; narrower ones keep the low bits of 32.

        NaN is 0, with 64 bits 2^63. Source: PTX that nvcc 13.0 makes of `(signed char)x`: cvt.rzi.s32.f32, and the low
        byte is stored; PTX ISA, cvt, for NaN.
        """
        from ..formats import values

        number = values(x.machine.to_words(x.data, x.fmt), x.fmt)
        if target.name == "bool":
            return Index(np.atleast_1d(number != 0), poison=x.poison)
        if target.bits == 64:
            return Index(_to_64_bits(np.asarray(number, np.float64), target.signed), poison=x.poison)
        limits = np.iinfo(np.int32 if target.signed else np.uint32)
        whole = np.clip(np.trunc(np.nan_to_num(number, nan=0.0)), limits.min, limits.max).astype(np.int64)
        return Index(whole.astype(target.value_type).astype(np.int64), poison=x.poison)

    def reinterpret(self, x: Any, source: Any, target: Any) -> Any:
        """The same bits as another dtype of the same width."""
        if isinstance(source, Integer) and isinstance(target, Integer):
            return Index(
                np.asarray(x.at).astype(source.value_type).view(target.value_type).astype(np.int64), poison=x.poison
            )
        if isinstance(source, Integer):
            at = x.at if isinstance(x, Index) else np.asarray(x).reshape(1)
            words = at.astype(source.value_type).view(target.word)
            poison = x.poison if isinstance(x, Index) else None
            return Value(self.block.machine, target, self.block.machine.from_words(words, target), poison)
        words = np.atleast_1d(x.machine.to_words(x.data, source))
        if isinstance(target, Integer):
            return Index(words.view(target.value_type).astype(np.int64), poison=x.poison)
        return Value(x.machine, target, x.machine.from_words(words.view(target.word), target), x.poison)

    def shown(self, x: Any) -> np.ndarray:
        """The numbers of an expression for people, one for each lane, or one for all."""
        if isinstance(x, Value):
            return np.asarray(x.machine.readable(x.data, x.fmt)).reshape(-1)
        return (x.at if isinstance(x, Index) else np.asarray(x)).reshape(-1)

    def classify(self, test: str, x: Value) -> Index:
        """isnan or isinf of each element."""
        return Index(np.atleast_1d(x.machine.classified(test, x.data, x.fmt)), poison=x.poison)

    def unary(self, name: str, x: Value) -> Value:
        return x.apply(name)


def _to_64_bits(number: np.ndarray, signed: bool) -> np.ndarray:
    """A float toward zero in 64 bits, saturating, as the int64 of the same bits; NaN is 2^63."""
    least, most, over = (-(2.0**63), 2.0**63, 2**63 - 1) if signed else (0.0, 2.0**64, -1)
    inside = (number > least) & (number < most)
    whole = np.trunc(np.where(inside, number, 0.0))
    found = whole.astype(np.int64 if signed else np.uint64).view(np.int64)
    found = np.where(number >= most, np.int64(over), found)
    found = np.where(number <= least, np.int64(-(2**63) if signed else 0), found)
    return np.where(np.isnan(number), np.int64(-(2**63)), found)
