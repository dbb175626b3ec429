"""Tiles and tile operators, with TileLang's names and rules.

A tile is an array with a leading axis for the thread blocks that run in step, the *lanes*. Operators compute through a
machine (sim.machine) and never look into its values. Memory that nobody wrote is part of a tile: whatever depends on it
is poisoned, and poison that reaches global memory makes the result undetermined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .formats import FP32, DType, Format, Integer, format_named
from .layout import row_reduction
from .machine import Exact

__all__ = [
    "Block",
    "Index",
    "Lanes",
    "Memory",
    "Private",
    "Region",
    "Report",
    "Tensor",
    "Tile",
    "Undetermined",
    "Value",
    "either",
    "lift",
    "rectangle",
    "rows",
]


class Undetermined(Exception):
    """The words of a result cannot be known: they depend on memory that nobody wrote, a race, an order of additions.

    result: what is known, where a kernel was run
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, order=True)
class Report:
    """Something that a kernel should not do, the first time that it does it in one place.

    kind: out_of_bounds, race, uninitialised, atomic_order, device_assert; buffer, operator: what was accessed by what;
    where: the source line, "" if unknown; block: the thread block's number in the grid; index: the element
    """

    kind: str
    buffer: str
    operator: str
    where: str = ""
    block: int | None = None
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        place = [self.where] if self.where else []
        place += [] if self.block is None else [f"block {self.block}"]
        place += [f"index {list(self.index)}"] if self.index else []
        operator = f" in {self.operator}" if self.operator != self.kind else ""
        return f"{self.kind} of {self.buffer}{operator}" + (f" ({', '.join(place)})" if place else "")


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


@dataclass
class Region:
    """A rectangle of a global tensor: per axis its start (an int, or one per lane) and extent (None: an index)."""

    tensor: Tensor
    starts: tuple[Any, ...]
    extents: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(e for e in self.extents if e is not None)

    def key(self, lanes: Lanes) -> tuple[Index, ...]:
        """The indices of its elements, for the lanes that run."""
        starts = [Index(rows(np.asarray(start).reshape(-1), lanes.places())) for start in self.starts]
        return rectangle(starts, self.extents)


def rectangle(starts: Sequence[Index], extents: Sequence[int | None]) -> tuple[Index, ...]:
    """Indices that walk a rectangle: per axis its start [lanes or 1] and its extent, None where it is not walked."""
    rank, axis, key = sum(e is not None for e in extents), 0, []
    for start, extent in zip(starts, extents, strict=True):
        at = lift(start.at, rank)
        if extent is not None:
            axis += 1
            at = at + np.arange(extent).reshape((1,) * axis + (extent,) + (1,) * (rank - axis))
        key.append(Index(at, poison=start.poison))
    return tuple(key)


class Memory:
    """Global memory that one or more tensors name: its bytes, and what is known of each unit of them.

    A unit is as wide as the narrowest of these tensors' elements. Masks are None where nobody needs them.
    """

    def __init__(self, words: np.ndarray, bits: int):
        self.words, self.unit = words.reshape(-1), bits
        self.poison: np.ndarray | None = None  # depends on memory that nobody wrote, a race, an order of additions
        self.stored: np.ndarray | None = None  # was stored to, where somebody asks
        self.writer: np.ndarray | None = None  # the thread block of this launch that stored it, its number + 1
        self.additions: np.ndarray | None = None  # atomic additions so far

    def units(self) -> int:
        return self.words.size * self.words.itemsize * 8 // self.unit

    def divide(self, bits: int) -> None:
        """Units of at most `bits`."""
        if bits < self.unit:
            for name in ("poison", "stored", "writer", "additions"):
                mask = getattr(self, name)
                setattr(self, name, None if mask is None else np.repeat(mask, self.unit // bits))
            self.unit = bits

    def poisoned(self) -> np.ndarray:
        """The poison of each unit, made when there was none."""
        if self.poison is None:
            self.poison = np.zeros(self.units(), bool)
        return self.poison

    def lose(self) -> None:
        """Nothing of it is known."""
        self.poison = np.ones(self.units(), bool)


class Tensor:
    """A tensor in global memory, words of `fmt`. Indexing gives a Region; slices may start at one index per lane.

    layout: where its elements lie, for T.annotate_layout: index arrays -> flat places; None: in row-major order
    """

    def __init__(self, name: str, words: np.ndarray, fmt: DType, memory: Memory | None = None):
        self.name, self.shape, self.fmt = name, words.shape, fmt
        self.memory = Memory(words, fmt.bits) if memory is None else memory
        self.layout: Callable[[tuple[np.ndarray, ...]], np.ndarray] | None = None
        self._strides = [int(np.prod(self.shape[n + 1 :])) for n in range(len(self.shape))]

    @cached_property
    def _flat(self) -> np.ndarray:
        """The words of the memory in a row."""
        return np.asarray(self.memory.words.view(self.fmt.word))

    @classmethod
    def unwritten(cls, name: str, shape: tuple[int, ...], fmt: DType) -> Tensor:
        """Memory that nobody wrote."""
        tensor = cls(name, np.zeros(shape, fmt.word), fmt)
        tensor.memory.lose()
        return tensor

    @property
    def words(self) -> np.ndarray:
        """The words as they lie in memory, [*shape]."""
        return self._flat.reshape(self.shape)

    @property
    def poison(self) -> np.ndarray | None:
        """Which elements cannot be known, [*shape]; None when all can."""
        return None if self.memory.poison is None else self.whole(self.memory.poison)

    def whole(self, mask: np.ndarray) -> np.ndarray:
        """A mask of the memory's units as one of the elements."""
        return np.asarray(mask.reshape(self._flat.size, -1).any(axis=1).reshape(self.shape))

    def view(self, shape: tuple[int, ...], fmt: DType) -> Tensor:
        """The same memory as a tensor of another shape or dtype: stores through it are seen here."""
        self.memory.divide(fmt.bits)
        return Tensor(self.name, np.broadcast_to(np.zeros(1, fmt.word), shape), fmt, self.memory)

    def _place(self, key: tuple[Any, ...], block: Block) -> tuple[np.ndarray, np.ndarray | None]:
        """The flat places of the elements at integer indices, clipped, and where these are in bounds (None: all)."""
        indices, inside = place(key, self.shape, len(block.parallel_extents))
        if self.layout is not None:
            return self.layout(indices), inside
        flat: Any = 0
        for index, stride in zip(indices, self._strides, strict=True):
            flat = flat + index * stride
        return flat, inside

    def _units(self, flat: np.ndarray) -> np.ndarray:
        """The memory's units of the elements at flat places, [..., units of an element]."""
        count = self.fmt.bits // self.memory.unit
        return np.asarray(flat[..., None] * count + np.arange(count))

    def load(self, key: tuple[Any, ...], block: Block) -> Any:
        """The elements at integer indices; out of bounds gives 0, as TileLang guards global loads."""
        flat, inside = self._place(key, block)
        words = self._flat[flat]
        if inside is not None:
            words = np.where(inside, words, words.dtype.type(0))
        poison = unknown(key)
        if self.memory.poison is not None:
            poison = either(poison, self.memory.poison[self._units(flat)].any(axis=-1))
        if self.memory.writer is not None:
            poison = either(poison, self._foreign(flat, inside, block))
        if isinstance(self.fmt, Integer):
            return Index(words.view(self.fmt.value_type).astype(np.int64), poison=poison)
        return Value(block.machine, self.fmt, block.machine.from_words(words, self.fmt), poison)

    def _foreign(self, flat: np.ndarray, inside: np.ndarray | None, block: Block) -> np.ndarray | None:
        """Which elements another thread block of this launch has stored: it may do so before or after they are read."""
        assert self.memory.writer is not None
        writer = self.memory.writer[self._units(flat)]
        foreign = ((writer != 0) & (writer != lift(block.running() + 1, writer.ndim - 1))).any(axis=-1)
        foreign = foreign if inside is None else foreign & inside
        if not foreign.any():
            return None
        at = np.argwhere(foreign)[0]
        places = np.broadcast_to(flat, foreign.shape)
        block.report("race", self.name, "load", int(at[0]), self._index(places[tuple(at)]))
        return np.asarray(foreign)

    def _index(self, flat: Any) -> tuple[int, ...]:
        """The element at a flat place."""
        return tuple(int(i) for i in np.unravel_index(int(flat), self.shape)) if self.layout is None else ()

    def store(self, key: tuple[Any, ...], value: Any, block: Block, guard: np.ndarray | None, operator: str) -> None:
        """Store elements where `guard` holds; out of bounds is dropped, as TileLang guards global stores.

        What two lanes or two thread blocks store to one place is poison where their words differ.
        """
        value, memory = block.as_value(value, self.fmt), self.memory
        block.machine.wrote(operator, self.name, block.iteration, value.data, self.fmt)
        lane, at, kept = self._targets(key, guard, operator, block)
        words = block.machine.to_words(value.data, self.fmt) if isinstance(self.fmt, Format) else value.data
        new, units = np.broadcast_to(words, kept.shape)[kept], self._units(at)
        clash = self._clashes(at, units, new, block.running()[lane] + 1)
        if memory.stored is not None:
            memory.stored[units] = True
        self._flat[at] = new
        clash |= self._flat[at] != new
        poison = either(value.poison, unknown(key))
        if poison is not None or clash.any() or memory.poison is not None:
            known = np.broadcast_to(False if poison is None else poison, kept.shape)[kept]
            memory.poisoned()[units] = known[:, None]
            memory.poisoned()[units[clash]] = True
        self._lose_where(key, operator, block)
        if clash.any():
            first = int(np.argmax(clash))
            block.report("race", self.name, operator, int(lane[first]), self._index(at[first]))

    def _targets(
        self, key: tuple[Any, ...], guard: np.ndarray | None, operator: str, block: Block
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lanes and flat places of the elements to store, and the mask that picks their values."""
        flat, inside = self._place(key, block)
        if inside is not None and operator == "parallel":  # a tile operator's ragged edge is not a fault
            outside = ~inside if guard is None else ~inside & guard
            if outside.any():
                block.report_first("out_of_bounds", self.name, operator, key, outside)
        keep = guard if inside is None else (inside if guard is None else inside & guard)
        (lane, at), kept = _targets((flat,), keep, block.lanes.count, block.parallel_extents)
        return lane, at, kept

    def _clashes(self, at: np.ndarray, units: np.ndarray, new: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Where another thread block of this launch has stored another word."""
        memory = self.memory
        if memory.writer is None:
            memory.writer = np.zeros(memory.units(), np.int32)
        old = memory.writer[units]
        memory.writer[units] = mine[:, None]
        return np.asarray(((old != 0) & (old != mine[:, None])).any(axis=-1) & (self._flat[at] != new))

    def _lose_where(self, key: tuple[Any, ...], operator: str, block: Block) -> None:
        """A store whose place cannot be known may have been anywhere."""
        if unknown(key) is not None:
            self.memory.lose()
            block.report("uninitialised", f"an index of {self.name}", operator)

    def atomic(
        self, function: np.ufunc, key: tuple[Any, ...], value: Any, block: Block, guard: np.ndarray | None
    ) -> None:
        """words[key] = function(words[key], value), atomically; floats are only added.

        Integers, one float addition to any value, and two to a zero, give the same words in any order; what depends on
        the order is poison. Where not all thread blocks run, those that do not may take part as well.
        """
        value, memory = block.as_value(value, self.fmt), self.memory
        _, at, kept = self._targets(key, guard, "atomic_add", block)
        new = np.broadcast_to(value.data, kept.shape)[kept]
        if isinstance(self.fmt, Integer):
            function.at(self._flat.view(self.fmt.value_type), at, new.view(self.fmt.value_type))
            poison = np.zeros(at.size, bool)
        else:
            poison = self._add_floats(at, new, block)
        if memory.stored is not None:
            memory.stored[self._units(at)] = True
            poison[:] = True
        if poison.any():
            block.report("atomic_order", self.name, "atomic_add")
        if value.poison is not None:
            poison = poison | np.broadcast_to(value.poison, kept.shape)[kept]
        if poison.any():
            memory.poisoned()[self._units(at[poison])] = True
        self._lose_where(key, "atomic_add", block)

    def _add_floats(self, at: np.ndarray, new: np.ndarray, block: Block) -> np.ndarray:
        """Add each of `new` to its place, one after another. Returns where the order matters."""
        memory, order = self.memory, np.argsort(at, kind="stable")
        flat, sorted_new = at[order], new[order]
        if memory.additions is None:  # a value that is not 0 counts as one
            memory.additions = np.repeat(np.where(self._flat << 1 == 0, 0, 1), self.fmt.bits // memory.unit)
        rank = np.arange(flat.size) - np.searchsorted(flat, flat)  # the how-manieth addition to its place
        for n in range(int(rank.max(initial=-1)) + 1):
            to, x = flat[rank == n], sorted_new[rank == n]
            self._flat[to] = block.machine.add(self._flat[to], x, self.fmt)
        first = self._units(at)[:, 0]
        np.add.at(memory.additions, first, 1)
        return np.asarray(memory.additions[first] > 2)

    def __getitem__(self, key: Any) -> Region:
        starts: list[Any] = []
        extents: list[int | None] = []
        for axis, part in enumerate(key if isinstance(key, tuple) else (key,)):
            if not isinstance(part, slice):
                starts.append(_uniform(part))
                extents.append(None)
                continue
            start = 0 if part.start is None else part.start
            stop = self.shape[axis] if part.stop is None else part.stop
            extent = np.unique(np.asarray(stop) - np.asarray(start))
            if extent.size != 1:
                raise ValueError(f"a slice of {self.name} must have one extent for all blocks, not {extent.tolist()}")
            starts.append(_uniform(start))
            extents.append(int(extent[0]))
        return Region(self, tuple(starts), tuple(extents))


def _uniform(index: Any) -> Any:
    """An index that is the same for all lanes, as one integer: what it reads is then shared by the lanes."""
    index = np.asarray(index)
    return int(index.flat[0]) if (index == index.flat[0]).all() else index


@dataclass
class _Layer:
    """What some lanes hold: machine values [lanes or 1, *shape], their poison, and the factors of an open product."""

    lanes: Lanes
    data: np.ndarray
    poison: np.ndarray | None
    factors: tuple[np.ndarray, np.ndarray] | None = None


class Tile:
    """A shared or fragment buffer of the thread blocks that run in step. Made by Block.alloc_shared, alloc_fragment.

    A store is kept as a layer over what the other lanes hold, and layers are merged when more lanes read than wrote:
    blocks that have left a loop keep their tiles, and what all blocks share is held once.
    """

    def __init__(self, block: Block, name: str, scope: str, shape: tuple[int, ...], fmt: DType):
        self.block, self.name, self.scope, self.shape, self.fmt = block, name, scope, shape, fmt
        empty = np.zeros((1, *shape), block.machine.dtype(fmt))
        self._layers = [_Layer(Lanes(block.blocks), empty, np.ones((1, *shape), bool))]

    def value(self) -> Value:
        """The whole tile, for the lanes that run."""
        lanes = self.block.lanes
        if not lanes.within(self._layers[-1].lanes):
            self._merge(lanes)
        layer = self._layers[-1]
        chosen = lanes.among(layer.lanes)
        poison = None if layer.poison is None else rows(layer.poison, chosen)
        value = Value(self.block.machine, self.fmt, rows(layer.data, chosen), poison)
        if layer.factors is not None:
            value.factors = (rows(layer.factors[0], chosen), rows(layer.factors[1], chosen))
        return value

    def _merge(self, lanes: Lanes) -> None:
        """One layer of what `lanes` hold, over the layers that it was made from."""
        data = np.empty((lanes.count, *self.shape), self.block.machine.dtype(self.fmt))
        poison = np.zeros(data.shape, bool)
        mine = lanes.places()
        for layer in self._layers:
            common = np.isin(mine, layer.lanes.places())
            chosen = Lanes(int(common.sum()), mine[common]).among(layer.lanes)
            data[common] = rows(layer.data, chosen)
            poison[common] = False if layer.poison is None else rows(layer.poison, chosen)
        self._layers.append(_Layer(lanes, data, poison if poison.any() else None))

    def assign(self, operator: str, value: Value, keep_product: bool = False) -> None:
        """Store a value over the whole tile, converted to its dtype.

        keep_product: the tile is read once, so that an open product may still be fused with the sum that reads it.
        """
        machine, lanes = self.block.machine, self.block.lanes
        data = value.data if value.fmt is self.fmt else machine.convert(value.data, value.fmt, self.fmt)
        machine.wrote(operator, self.name, self.block.iteration, data, self.fmt)
        if self.scope.startswith("shared"):
            data = machine.through_memory(data, self.fmt)
        data = np.broadcast_to(data, (data.shape[0] if data.ndim > len(self.shape) else 1, *self.shape))
        poison = value.poison
        if poison is not None:
            poison = np.broadcast_to(poison, (poison.shape[0], *self.shape)) if poison.any() else None
        self._layers = [layer for layer in self._layers if not layer.lanes.within(lanes)]
        layer = _Layer(lanes, data, poison)
        if keep_product and value.factors is not None and value.fmt is self.fmt:
            a, b = (np.broadcast_to(lift(x, len(self.shape)), (data.shape[0], *self.shape)) for x in value.factors)
            layer.factors = (a, b)
        self._layers.append(layer)
        if self.name in self.block.watch:
            self._show(self.block.watch[self.name], layer)

    def _show(self, callback: Callable[[np.ndarray, int, Any], None], layer: _Layer) -> None:
        """Call back with the values that each running thread block has now stored."""
        block = self.block
        for place, lane in enumerate(layer.lanes.places()):
            words = layer.data[place if layer.data.shape[0] > 1 else 0]
            callback(block.machine.readable(words, self.fmt), int(block.numbers[lane]), block.iteration)

    def view(self, shape: tuple[int, ...], fmt: DType) -> View:
        """The same memory as a tile of another shape or dtype."""
        return View(self, shape, fmt)

    def load(self, key: tuple[Any, ...], guard: np.ndarray | None = None) -> Any:
        """The elements at integer indices (ints or Index [lanes or 1, ...]); an Index for an integer tile.

        Out of bounds where `guard` holds is reported, and what it gives is poison.
        """
        value, extents = self.value(), self.block.parallel_extents
        axes = _walked(key, self.shape, extents)
        if axes is not None:
            shape = [1] * len(extents)
            for axis, extent in zip(axes, self.shape, strict=True):
                shape[axis] = extent
            data = value.data.reshape((value.data.shape[0], *shape))
            poison = None if value.poison is None else value.poison.reshape((value.poison.shape[0], *shape))
            found = self._typed(data, poison)
            if value.factors is not None:
                found.factors = tuple(x.reshape((x.shape[0], *shape)) for x in value.factors)
            return found
        indices, inside = place(key, self.shape, len(extents))
        if inside is not None:
            self._outside("load", key, inside, guard)
        data = value.data[(lane_axis(value.data.shape[0], indices), *indices)]
        poison = None if value.poison is None else value.poison[(lane_axis(value.poison.shape[0], indices), *indices)]
        poison = either(poison, unknown(key))
        found = self._typed(data, poison if inside is None else either(poison, ~inside))
        if value.factors is not None:
            found.factors = tuple(x[(lane_axis(x.shape[0], indices), *indices)] for x in value.factors)
        return found

    def _outside(self, operator: str, key: tuple[Any, ...], inside: np.ndarray, guard: np.ndarray | None) -> None:
        """Report an access out of bounds, where it really happens."""
        outside = ~inside if guard is None else ~inside & guard
        if outside.any():
            self.block.report_first("out_of_bounds", self.name, operator, key, outside)

    def _typed(self, data: np.ndarray, poison: np.ndarray | None) -> Any:
        if isinstance(self.fmt, Integer):
            return Index(data.view(self.fmt.value_type).astype(np.int64), poison=poison)
        return Value(self.block.machine, self.fmt, data, poison)

    def store(
        self,
        key: tuple[Any, ...],
        value: Any,
        guard: np.ndarray | None = None,
        operator: str = "store",
        keep_product: bool = False,
    ) -> None:
        """Store elements at integer indices where `guard` holds; what the rest held stays."""
        block, extents = self.block, self.block.parallel_extents
        value = self.block.as_value(value, self.fmt)
        if (
            guard is None
            and _walked(key, self.shape, extents) == tuple(range(len(extents)))
            and len(extents) == len(self.shape)
        ):
            self.assign(operator, value, keep_product)
            return
        indices, inside = place(key, self.shape, len(extents))
        keep = guard if inside is None else (inside if guard is None else inside & guard)
        if inside is not None:
            self._outside("store", key, inside, guard)
        old, count = self.value(), block.lanes.count
        whole = (count, *self.shape)
        data = np.broadcast_to(old.data, whole).copy()
        poison = np.broadcast_to(False if old.poison is None else old.poison, whole).copy()
        target, kept = _targets(indices, keep, count, extents)
        new = np.broadcast_to(value.data, kept.shape)[kept]
        data[target], poison[target] = (
            new,
            np.broadcast_to(False if value.poison is None else value.poison, kept.shape)[kept],
        )
        if unknown(key) is not None:
            poison[...] = True
            block.report("uninitialised", f"an index of {self.name}", operator)
        if not (data[target] == new).all():
            clash = data[target] != new
            poison[tuple(t[clash] for t in target)] = True
            lane, *index = (int(t[clash][0]) for t in target)
            block.report("race", self.name, operator, lane, tuple(index))
        result = Value(block.machine, self.fmt, data, poison)
        if keep_product and value.factors is not None:
            factors = []
            for x in value.factors:
                x = np.broadcast_to(lift(x, value.data.ndim - 1), value.data.shape)
                factors.append(np.zeros(whole, x.dtype))
                factors[-1][target] = np.broadcast_to(x, kept.shape)[kept]
            result.factors = factors[0], factors[1]
        self.assign(operator, result, keep_product)

    def __getitem__(self, key: Any) -> Value:
        """`tile[i, j]` in a T.Parallel loop: the loop's indices each walk one whole axis of the tile."""
        self._axes(key)
        found: Value = self.load(key if isinstance(key, tuple) else (key,))
        return found

    def __setitem__(self, key: Any, value: Value) -> None:
        """`tile[i, j] = value` in a T.Parallel loop: everything is evaluated, then stored."""
        if self._axes(key) != tuple(range(len(self.block.parallel_extents))):
            raise NotImplementedError(f"a store to {self.name} must use all indices of the loop in order")
        self.assign("parallel", value)

    def _axes(self, key: Any) -> tuple[int, ...]:
        indices = key if isinstance(key, tuple) else (key,)
        axes = tuple(i.axis for i in indices if isinstance(i, Index) and i.axis is not None)
        if len(axes) != len(self.shape) or len(indices) != len(axes) or list(axes) != sorted(set(axes)):
            raise NotImplementedError(f"{self.name} must be indexed by the loop's own indices, in order")
        extents = tuple(self.block.parallel_extents[a] for a in axes)
        if extents != self.shape:
            raise ValueError(f"{self.name} has shape {self.shape}, the loop walks {extents}")
        return axes


class View(Tile):
    """A tile's memory with another shape or dtype (T.reshape, T.view)."""

    def __init__(self, base: Tile, shape: tuple[int, ...], fmt: DType):
        self.base, self.block, self.name, self.scope, self.shape, self.fmt = (
            base,
            base.block,
            base.name,
            base.scope,
            shape,
            fmt,
        )

    def value(self) -> Value:
        value = self.base.value()
        data = _recast(value.data, self.fmt, self.shape)
        poison = None
        if value.poison is not None:
            poison = _repoison(value.poison, self.base.fmt, self.fmt, (value.poison.shape[0], *self.shape))
        return Value(value.machine, self.fmt, data, poison, self._factors(value, self.shape))

    def _factors(self, value: Value, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """An open product's factors as [lanes or 1, *shape]; none where words of another width are seen."""
        if value.factors is None or self.fmt is not self.base.fmt:
            return None
        a, b = (np.broadcast_to(lift(x, value.data.ndim - 1), value.data.shape) for x in value.factors)
        return a.reshape((a.shape[0], *shape)), b.reshape((b.shape[0], *shape))

    def assign(self, operator: str, value: Value, keep_product: bool = False) -> None:
        value = self.block.as_value(value, self.fmt) if isinstance(self.fmt, Format) else value
        lead = value.data.shape[0] if value.data.ndim > len(self.shape) else 1
        data = np.broadcast_to(value.data, (lead, *self.shape))
        poison = None
        if value.poison is not None:
            whole = np.broadcast_to(value.poison, (max(lead, value.poison.shape[0]), *self.shape))
            poison = _repoison(whole, self.fmt, self.base.fmt, (whole.shape[0], *self.base.shape))
        words = _recast(data, self.base.fmt, self.base.shape)
        factors = None
        if data.shape == value.data.shape:
            factors = self._factors(value, self.base.shape)
        self.base.assign(operator, Value(value.machine, self.base.fmt, words, poison, factors), keep_product)


def _recast(data: np.ndarray, fmt: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Words [lanes, ...] as words of `fmt` [lanes, *shape]."""
    return np.ascontiguousarray(data).reshape(data.shape[0], -1).view(fmt.word).reshape((data.shape[0], *shape))


def _repoison(poison: np.ndarray, old: DType, new: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The poison of the same memory read as words of another width: a word with a poisoned byte is poisoned."""
    if old.bits > new.bits:
        poison = np.repeat(poison, old.bits // new.bits, axis=-1)
    elif new.bits > old.bits:
        poison = np.any(poison.reshape((*poison.shape[:-1], -1, new.bits // old.bits)), axis=-1)
    return np.asarray(poison.reshape(shape))


class Private:
    """A buffer of each thread, in a T.Parallel loop that the threads share: every element of the loop has its own."""

    def __init__(self, tile: Tile, loop: tuple[Index, ...]):
        self.loop, self.block = loop, tile.block
        self.scalar = tile.shape == (1,)
        own = () if self.scalar else tile.shape
        extents = tuple(tile.block.parallel_extents)
        self.tile = Tile(tile.block, tile.name, tile.scope, (*extents, *own), tile.fmt)
        value = tile.value()
        once = (*(1 for _ in extents), *own)
        data = value.data.reshape((value.data.shape[0], *once))
        poison = None if value.poison is None else value.poison.reshape((value.poison.shape[0], *once))
        self.tile.assign("private", Value(value.machine, value.fmt, data, poison))

    def _key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.loop if self.scalar else (*self.loop, *key)

    def load(self, key: tuple[Any, ...], guard: np.ndarray | None = None) -> Any:
        return self.tile.load(self._key(key), guard)

    def store(
        self, key: tuple[Any, ...], value: Any, guard: np.ndarray | None, operator: str, keep: bool = False
    ) -> None:
        self.tile.store(self._key(key), value, guard, operator, keep)

    def close(self, tile: Tile) -> None:
        """After the loop a thread holds what its last element left: known only where all elements left the same."""
        value = self.tile.value()
        count = len(self.loop)
        data = value.data.reshape((value.data.shape[0], -1, *value.data.shape[1 + count :]))
        differs = (data != data[:, :1]).any(axis=1)
        if value.poison is not None:
            differs = differs | value.poison.reshape((value.poison.shape[0], *data.shape[1:])).any(axis=1)
        last = data[:, 0].reshape((data.shape[0], *tile.shape))
        tile.assign("private", Value(value.machine, value.fmt, last, differs.reshape((-1, *tile.shape))))


def _walked(key: tuple[Any, ...], shape: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, ...] | None:
    """The loop axes that the indices walk, when each walks one whole axis of `shape` and they ascend; else None."""
    axes = tuple(i.axis for i in key if isinstance(i, Index) and i.axis is not None)
    if len(axes) != len(shape) or len(key) != len(axes) or list(axes) != sorted(set(axes)):
        return None
    return axes if tuple(extents[a] for a in axes) == shape else None


def place(key: tuple[Any, ...], shape: tuple[int, ...], rank: int) -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
    """Index arrays [lanes or 1, ...] of the same rank, clipped to `shape`, and where all were in bounds (None: all)."""
    inside: np.ndarray | None = None
    indices = []
    for part, size in zip(key, shape, strict=True):
        at = lift(part.at if isinstance(part, Index) else np.asarray(part).reshape(1), rank)
        if at.size and (int(at.min()) < 0 or int(at.max()) >= size):
            valid = (at >= 0) & (at < size)
            inside, at = valid if inside is None else inside & valid, np.clip(at, 0, size - 1)
        indices.append(at)
    return tuple(indices), inside


def unknown(key: tuple[Any, ...]) -> np.ndarray | None:
    """Where an index depends on memory that nobody wrote."""
    found: np.ndarray | None = None
    for part in key:
        found = either(found, part.poison if isinstance(part, Index) else None)
    return found if found is not None and found.any() else None


def lane_axis(lanes: int, indices: tuple[np.ndarray, ...]) -> np.ndarray:
    """The index of the leading axis that goes with index arrays."""
    rank = indices[0].ndim if indices else 1
    return np.arange(lanes).reshape((lanes,) + (1,) * (rank - 1))


def _targets(
    indices: tuple[np.ndarray, ...], keep: np.ndarray | None, count: int, extents: tuple[int, ...]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Flat index arrays of the elements that a loop over `extents` stores, the lane first, and which of them do."""
    lane = lane_axis(count, indices)
    shape = np.broadcast_shapes(
        (count, *extents), lane.shape, *(i.shape for i in indices), () if keep is None else keep.shape
    )
    kept = np.broadcast_to(np.asarray(True) if keep is None else keep, shape)
    return tuple(np.broadcast_to(i, shape)[kept] for i in (lane, *indices)), kept


class Block:
    """The thread blocks of a T.Kernel that run in step, and TileLang's operators on their tiles (the `T` of a kernel).

    machine: what computes; blocks: how many run in step; threads: threads of each, which decide fragment layouts
    """

    def __init__(self, machine: Exact, blocks: int, threads: int):
        self.machine, self.blocks, self.threads = machine, blocks, threads
        self.lanes = Lanes(blocks)
        self.iteration: int | None = None
        self.parallel_extents: tuple[int, ...] = ()
        self.reports: dict[tuple[str, ...], Report] = {}
        self.where = ""  # the source line of the statement that runs
        self.numbers = np.arange(blocks)  # their numbers in the grid
        self.watch: dict[str, Callable[[np.ndarray, int, Any], None]] = {}

    def report(
        self, kind: str, buffer: str, operator: str, lane: int | None = None, index: tuple[int, ...] = ()
    ) -> None:
        """Note something that a kernel should not do; lane: which of those that run, index: the element."""
        key = (kind, buffer, operator, self.where)
        if key not in self.reports:
            block = None if lane is None else int(self.running()[lane])
            self.reports[key] = Report(*key, block, tuple(int(i) for i in index))

    def report_first(self, kind: str, buffer: str, operator: str, key: tuple[Any, ...], bad: np.ndarray) -> None:
        """The same for the first element where `bad` [lanes or 1, ...] holds; key: its indices."""
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        index = []
        for part in key:
            x = lift(part.at if isinstance(part, Index) else np.asarray(part).reshape(1), bad.ndim - 1)
            index.append(x[tuple(0 if size == 1 else n for n, size in zip(at, x.shape, strict=True))])
        self.report(kind, buffer, operator, int(at[0]), tuple(index))

    def as_value(self, x: Any, fmt: DType) -> Value:
        """An expression's result as a Value in `fmt`, converted where it is another float format."""
        if isinstance(fmt, Integer):
            if isinstance(x, Value) and x.fmt is fmt:
                return x
            at = x.at if isinstance(x, Index) else np.asarray(x).reshape(1)
            data = at.astype(fmt.value_type).view(fmt.word)
            return Value(self.machine, fmt, data, x.poison if isinstance(x, Index) else None)
        data = x.data if x.fmt is fmt else self.machine.convert(x.data, x.fmt, fmt)
        factors = x.factors if x.fmt is fmt else None
        return Value(self.machine, fmt, data if data.ndim else data.reshape(1), x.poison, factors)

    # allocation

    def alloc_shared(self, name: str, shape: tuple[int, ...], fmt: Format) -> Tile:
        return Tile(self, name, "shared", shape, fmt)

    def alloc_fragment(self, name: str, shape: tuple[int, ...], fmt: Format) -> Tile:
        return Tile(self, name, "fragment", shape, fmt)

    # loops

    def Parallel(self, *extents: int) -> tuple[Index, ...]:
        """The indices of a T.Parallel loop; use each as an index of a tile, or in a condition."""
        self.parallel_extents = extents
        rank = len(extents)
        return tuple(
            Index(np.arange(e).reshape((1,) * (axis + 1) + (e,) + (1,) * (rank - axis - 1)), axis)
            for axis, e in enumerate(extents)
        )

    @contextmanager
    def walking(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Index as a loop over `shape` does."""
        self.parallel_extents = shape
        try:
            yield
        finally:
            self.parallel_extents = ()

    def running(self) -> np.ndarray:
        """The numbers in the grid of the lanes that run."""
        return self.numbers[self.lanes.places()]

    def Pipelined(self, extent: Any, num_stages: int = 0) -> Iterator[int]:
        """A serial loop; `extent` is an int or one per block. Stages do not change the meaning."""
        outer = self.lanes
        extents = np.broadcast_to(np.asarray(extent), (outer.count,))
        for k in range(int(extents.max(initial=0))):
            self.lanes, self.iteration = outer.where(extents > k), k
            yield k
        self.lanes, self.iteration = outer, None

    # operators

    def fill(self, tile: Tile, value: float) -> None:
        """Every element becomes `value`."""
        word = self.machine.constant(value, tile.fmt)
        tile.assign("fill", Value(self.machine, tile.fmt, np.broadcast_to(word, (1, *tile.shape))))

    def clear(self, tile: Tile) -> None:
        """Every element becomes +0."""
        self.fill(tile, 0.0)

    def copy(self, source: Tile | Region, target: Tile | Region) -> None:
        """Element by element, converted to the target's dtype. Out of bounds reads give 0, such writes are dropped."""
        value = source.value() if isinstance(source, Tile) else self._load(source)
        if isinstance(target, Tile):
            target.assign("copy", value)
        else:
            self._store(value, target)

    def _load(self, region: Region) -> Value:
        with self.walking(region.shape):
            found: Value = region.tensor.load(region.key(self.lanes), self)
        return found

    def _store(self, value: Value, region: Region) -> None:
        with self.walking(region.shape):
            region.tensor.store(region.key(self.lanes), value, self, None, "copy")

    def gemm(self, a: Tile, b: Tile, c: Tile, transpose_A: bool = False, transpose_B: bool = False) -> None:
        """c += a @ b on the tensor core: the accumulator that c holds is the c of the first step."""
        x, y, z = a.value(), b.value(), c.value()
        left = np.swapaxes(x.data, -1, -2) if transpose_A else x.data
        right = y.data if transpose_B else np.swapaxes(y.data, -1, -2)
        poison = gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
        data = self.machine.dot(left, right, z.data, x.fmt, z.fmt)
        c.assign("gemm", Value(self.machine, c.fmt, data, poison))

    def reduce_max(self, source: Tile, target: Tile, dim: int = 1, clear: bool = True) -> None:
        """The greatest of each row; NaN is dropped. `clear` starts from -inf, otherwise the old value takes part."""
        self._reduce("max", "max", source, target, dim, clear)

    def reduce_min(self, source: Tile, target: Tile, dim: int = 1, clear: bool = True) -> None:
        """The least of each row; NaN is dropped. `clear` starts from +inf, otherwise the old value takes part."""
        self._reduce("min", "min", source, target, dim, clear)

    def reduce_absmax(self, source: Tile, target: Tile, dim: int = 1, clear: bool = True) -> None:
        """The greatest magnitude of each row, NaN dropped. `clear` starts from 0, else the old value takes part."""
        self._reduce("absmax", "max", source, target, dim, clear)

    def reduce_sum(self, source: Tile, target: Tile, dim: int = 1, clear: bool = True) -> None:
        """The sum of each row in the device's order. `clear` starts from 0, otherwise the old value is added last."""
        self._reduce("sum", "add", source, target, dim, clear)

    def _reduce(self, op: str, merge: str, source: Tile, target: Tile, dim: int, clear: bool) -> None:
        if dim not in (1, -1) or len(source.shape) != 2 or source.fmt is not target.fmt:
            raise NotImplementedError(f"reduce_{op} is modelled over dim=1 of a 2-D fragment into one of its dtype")
        machine, value, fmt = self.machine, source.value(), source.fmt
        order = row_reduction(*source.shape, self.threads)
        data = machine.abs(value.data, fmt) if op == "absmax" else value.data
        data = machine.reduce("max" if op == "absmax" else op, data, order, fmt)
        if op == "absmax":
            data = machine.max(machine.constant(0.0, fmt), data, fmt)
        poison = None if value.poison is None else np.asarray(value.poison.any(axis=-1))
        result = Value(machine, fmt, data, poison)
        target.assign(f"reduce_{op}", result if clear else target.value().combine(merge, result))

    # expressions

    def infinity(self, dtype: str = FP32.name) -> float:
        """+inf, as T.infinity(dtype)."""
        format_named(dtype)
        return float("inf")

    def max(self, a: Value, b: Value) -> Value:
        """fmaxf: the operand that is not NaN wins."""
        return a.combine("max", b)

    def min(self, a: Value, b: Value) -> Value:
        """fminf: the operand that is not NaN wins."""
        return a.combine("min", b)

    def exp2(self, x: Value) -> Value:
        """2**x as CUDA's exp2f gives it."""
        return x.apply("exp2")

    def if_then_else(self, condition: Index, a: Any, b: Any, dtype: Format = FP32) -> Value:
        """a where `condition` holds, else b; what is not taken does not leak, poison neither."""
        x, y = (
            v if isinstance(v, Value) else Value(self.machine, dtype, self.machine.constant(v, dtype)) for v in (a, b)
        )
        chosen = rows(condition.at, self.lanes.places())
        poison = None
        if x.poison is not None or y.poison is not None:
            taken = [np.zeros(1, bool) if v.poison is None else v.poison for v in (x, y)]
            poison = np.where(chosen, *taken)
        return Value(self.machine, x.fmt, self.machine.select(chosen, x.data, y.data), poison)


def gemm_poison(
    a: np.ndarray | None, b: np.ndarray | None, c: np.ndarray | None, transpose_A: bool, transpose_B: bool
) -> np.ndarray | None:
    """Which outputs of a gemm depend on memory that nobody wrote: a row of a, a column of b, or c itself."""
    by_row = None if a is None else np.expand_dims(np.any(a, axis=-2 if transpose_A else -1), -1)
    by_column = None if b is None else np.expand_dims(np.any(b, axis=-1 if transpose_B else -2), -2)
    return either(either(by_row, by_column), c)
