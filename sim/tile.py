"""Tiles and tile operators, with TileLang's names and rules.

A tile is an array with a leading axis for the thread blocks that run in step. Operators compute through a machine
(sim.machine) and never look into its values. Memory that nobody wrote is part of a tile: whatever depends on it is
poisoned, and poison that reaches global memory makes the result undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .formats import FP32, Format, format_named
from .layout import row_reduction
from .machine import Exact

__all__ = ["Block", "Index", "Region", "Tensor", "Tile", "Undetermined", "Value"]


class Undetermined(Exception):
    """The words of a result cannot be known: they depend on memory that nobody wrote."""


class Index:
    """An integer per block and element of a T.Parallel loop; `axis` is the loop axis it walks, None if computed."""

    __array_ufunc__ = None  # so that `bx * block_M + i` asks Index

    def __init__(self, at: np.ndarray, axis: int | None = None):
        self.at, self.axis = at, axis

    def _lift(self, other: Any) -> Any:
        """`other` beside this index: a per-block array [blocks] gets axes for the elements."""
        if isinstance(other, Index):
            return other.at
        other = np.asarray(other)
        return other.reshape(other.shape + (1,) * (self.at.ndim - 1)) if other.ndim == 1 else other

    def __add__(self, other: Any) -> Index:
        return Index(self.at + self._lift(other))

    def __sub__(self, other: Any) -> Index:
        return Index(self.at - self._lift(other))

    def __mul__(self, other: Any) -> Index:
        return Index(self.at * self._lift(other))

    __radd__, __rmul__ = __add__, __mul__

    def __ge__(self, other: Any) -> np.ndarray:
        return np.asarray(self.at >= self._lift(other))

    def __gt__(self, other: Any) -> np.ndarray:
        return np.asarray(self.at > self._lift(other))

    def __le__(self, other: Any) -> np.ndarray:
        return np.asarray(self.at <= self._lift(other))

    def __lt__(self, other: Any) -> np.ndarray:
        return np.asarray(self.at < self._lift(other))


class Value:
    """What an expression has in registers: machine values [blocks, ...], or a product that is not rounded yet.

    The compiler contracts a product and the addition or subtraction that uses it into one fma, so a product stays open
    until it is used (docs/NUMERICS.md, section 3). poison: bool array, or None when everything was written.
    """

    def __init__(
        self,
        machine: Exact,
        fmt: Format,
        data: np.ndarray | None,
        poison: np.ndarray | None = None,
        factors: Any = None,
    ):
        self.machine, self.fmt, self.poison, self.factors, self._data = machine, fmt, poison, factors, data

    @property
    def data(self) -> np.ndarray:
        """The values; an open product is rounded."""
        if self._data is None:
            self._data = self.machine.mul(self.factors[0], self.factors[1], self.fmt)
        return self._data

    def _other(self, other: Any) -> Value:
        if not isinstance(other, Value):
            return Value(self.machine, self.fmt, self.machine.constant(other, self.fmt))
        if other.fmt is not self.fmt:
            raise TypeError(f"operands must have one dtype, not {self.fmt.name} and {other.fmt.name}: cast one first")
        return other

    def _result(self, other: Value, data: np.ndarray | None, factors: Any = None) -> Value:
        return Value(self.machine, self.fmt, data, _either(self.poison, other.poison), factors)

    def __mul__(self, other: Any) -> Value:
        other = self._other(other)
        return self._result(other, None, (self.data, other.data))

    def __add__(self, other: Any) -> Value:
        other = self._other(other)
        if self.factors and other.factors:
            raise NotImplementedError("a*b + c*d: which product the compiler fuses is not modelled; round one first")
        product, rest = (self, other) if self.factors else (other, self)
        if product.factors:
            return self._result(
                other, self.machine.mul_add(product.factors[0], product.factors[1], rest.data, self.fmt)
            )
        return self._result(other, self.machine.add(self.data, other.data, self.fmt))

    def __sub__(self, other: Any) -> Value:
        other = self._other(other)
        if self.factors:  # of `a*s - m*s` the left product is the fused one
            return self._result(other, self.machine.mul_sub(self.factors[0], self.factors[1], other.data, self.fmt))
        if other.factors:
            raise NotImplementedError("c - a*b is not modelled yet; round the product first")
        return self._result(other, self.machine.sub(self.data, other.data, self.fmt))

    def __truediv__(self, other: Any) -> Value:
        other = self._other(other)
        return self._result(other, self.machine.div(self.data, other.data, self.fmt))

    __rmul__, __radd__ = __mul__, __add__


def _either(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


@dataclass
class Region:
    """A rectangle of a global tensor: per axis its start (an int, or one per block) and extent (None: an index)."""

    tensor: Tensor
    starts: tuple[Any, ...]
    extents: tuple[int | None, ...]

    def where(self) -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
        """Index arrays [blocks or 1, *extents], clipped, and the mask of those in bounds (None: all are)."""
        sizes = [e for e in self.extents if e is not None]
        inside: np.ndarray | None = None
        indices, axis = [], 0
        for start, extent, size in zip(self.starts, self.extents, self.tensor.words.shape, strict=True):
            at = np.asarray(start).reshape((-1,) + (1,) * len(sizes))
            if extent is not None:
                axis += 1
                at = at + np.arange(extent).reshape((extent,) + (1,) * (len(sizes) - axis))
            valid = (at >= 0) & (at < size)
            if not valid.all():
                inside, at = _both(inside, valid), np.clip(at, 0, size - 1)
            indices.append(at)
        return tuple(indices), inside


def _both(a: np.ndarray | None, b: np.ndarray) -> np.ndarray:
    return b if a is None else a & b


class Tensor:
    """A tensor in global memory, words of `fmt`. Indexing gives a Region; slices may start at one index per block."""

    def __init__(self, name: str, words: np.ndarray, fmt: Format):
        self.name, self.words, self.fmt = name, words, fmt
        self.poison: np.ndarray | None = None

    def __getitem__(self, key: Any) -> Region:
        starts: list[Any] = []
        extents: list[int | None] = []
        for axis, part in enumerate(key if isinstance(key, tuple) else (key,)):
            if not isinstance(part, slice):
                starts.append(_uniform(part))
                extents.append(None)
                continue
            start = 0 if part.start is None else part.start
            stop = self.words.shape[axis] if part.stop is None else part.stop
            extent = np.unique(np.asarray(stop) - np.asarray(start))
            if extent.size != 1:
                raise ValueError(f"a slice of {self.name} must have one extent for all blocks, not {extent.tolist()}")
            starts.append(_uniform(start))
            extents.append(int(extent[0]))
        return Region(self, tuple(starts), tuple(extents))


def _uniform(index: Any) -> Any:
    """An index that is the same for all blocks, as one integer: what it reads is then shared by the blocks."""
    index = np.asarray(index)
    return int(index.flat[0]) if (index == index.flat[0]).all() else index


class Tile:
    """A shared or fragment buffer of the thread blocks that run in step. Made by Block.alloc_shared, alloc_fragment.

    data: machine values [blocks, *shape], or [1, *shape] when all blocks hold the same; poison likewise: elements that
    nobody wrote or that depend on such, None when there are none
    """

    def __init__(self, block: Block, name: str, scope: str, shape: tuple[int, ...], fmt: Format):
        self.block, self.name, self.scope, self.shape, self.fmt = block, name, scope, shape, fmt
        self.data: np.ndarray = np.zeros((1, *shape), block.machine.dtype(fmt))
        self.poison: np.ndarray | None = np.ones((1, *shape), bool)
        self._holders = block.blocks  # blocks, from the first, whose data is here

    def value(self) -> Value:
        """The whole tile, for the blocks that still run."""
        active = self.block.active
        if active > self._holders:
            raise RuntimeError(f"{self.name} was last written while only {self._holders} of {active} blocks ran")
        poison = None if self.poison is None else self.poison[:active]
        return Value(self.block.machine, self.fmt, self.data[:active], poison)

    def assign(self, operator: str, value: Value) -> None:
        """Store a value over the whole tile, converted to its dtype."""
        machine, active = self.block.machine, self.block.active
        data = value.data if value.fmt is self.fmt else machine.convert(value.data, value.fmt, self.fmt)
        machine.wrote(operator, self.name, self.block.iteration, data, self.fmt)
        shared = data.shape[0] == 1 and (self.data.shape[0] == 1 or active == self.block.blocks)
        lead = 1 if shared else active
        data = np.broadcast_to(data, (lead, *self.shape))
        poison = None if value.poison is None else np.broadcast_to(value.poison, (lead, *self.shape))
        if active == self.block.blocks or shared:
            self.data, self.poison, self._holders = data, poison, active
        else:
            self.data, self.poison = self._merged(data, poison)

    def _merged(self, data: np.ndarray, poison: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """This tile with the first blocks replaced: the others have left the loop and keep what they hold."""
        whole = (self.block.blocks, *self.shape)
        merged = (
            self.data
            if self.data.flags.writeable and self.data.shape == whole
            else np.broadcast_to(self.data, whole).copy()
        )
        merged[: len(data)] = data
        if poison is None and self.poison is None:
            return merged, None
        old = np.zeros(whole, bool) if self.poison is None else np.broadcast_to(self.poison, whole).copy()
        old[: len(data)] = False if poison is None else poison
        return merged, old if old.any() else None

    def __getitem__(self, key: Any) -> Value:
        """`tile[i, j]` in a T.Parallel loop: the loop's indices each walk one whole axis of the tile."""
        value, axes = self.value(), self._axes(key)
        rank = self.block.parallel_rank
        shape = [1] * rank
        for axis, extent in zip(axes, self.shape, strict=True):
            shape[axis] = extent

        def place(x: np.ndarray) -> np.ndarray:
            return x.reshape((x.shape[0], *shape))

        return Value(value.machine, self.fmt, place(value.data), None if value.poison is None else place(value.poison))

    def __setitem__(self, key: Any, value: Value) -> None:
        """`tile[i, j] = value` in a T.Parallel loop: everything is evaluated, then stored."""
        if self._axes(key) != tuple(range(self.block.parallel_rank)):
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


class Block:
    """The thread blocks of a T.Kernel that run in step, and TileLang's operators on their tiles (the `T` of a kernel).

    machine: what computes; blocks: how many run in step; threads: threads of each, which decide fragment layouts
    """

    def __init__(self, machine: Exact, blocks: int, threads: int):
        self.machine, self.blocks, self.active, self.threads = machine, blocks, blocks, threads
        self.iteration: int | None = None
        self.parallel_extents: tuple[int, ...] = ()

    @property
    def parallel_rank(self) -> int:
        return len(self.parallel_extents)

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

    def Pipelined(self, extent: Any, num_stages: int = 0) -> Iterator[int]:
        """A serial loop; `extent` is an int or one per block, which must not rise: blocks leave from the end.

        Stages do not change the meaning.
        """
        extents = np.broadcast_to(np.asarray(extent), (self.blocks,))
        if (np.diff(extents) > 0).any():
            raise ValueError("extent must not rise from block to block: order the blocks by their extents first")
        for k in range(int(extents[0])):
            self.active, self.iteration = int((extents > k).sum()), k
            yield k
        self.active, self.iteration = self.blocks, None

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
        indices, inside = region.where()
        words = region.tensor.words[tuple(i[: self.active] for i in indices)]
        if inside is not None:
            words = np.where(inside[: self.active], words, words.dtype.type(0))
        poison = region.tensor.poison
        poison = None if poison is None else poison[indices]
        return Value(self.machine, region.tensor.fmt, self.machine.from_words(words, region.tensor.fmt), poison)

    def _store(self, value: Value, region: Region) -> None:
        tensor, machine = region.tensor, self.machine
        data = value.data if value.fmt is tensor.fmt else machine.convert(value.data, value.fmt, tensor.fmt)
        machine.wrote("copy", tensor.name, self.iteration, data, tensor.fmt)
        words = machine.to_words(data, tensor.fmt)
        indices, inside = region.where()
        shape = np.broadcast_shapes(words.shape, *(i.shape for i in indices))
        keep = np.broadcast_to(True if inside is None else inside, shape)
        targets = tuple(np.broadcast_to(i, shape)[keep] for i in indices)
        tensor.words[targets] = np.broadcast_to(words, shape)[keep]
        if value.poison is not None:
            tensor.poison = np.zeros(tensor.words.shape, bool) if tensor.poison is None else tensor.poison
        if tensor.poison is not None:
            poison = False if value.poison is None else value.poison
            tensor.poison[targets] = np.broadcast_to(poison, shape)[keep]

    def gemm(self, a: Tile, b: Tile, c: Tile, transpose_A: bool = False, transpose_B: bool = False) -> None:
        """c += a @ b on the tensor core: the accumulator that c holds is the c of the first step."""
        x, y, z = a.value(), b.value(), c.value()
        left = np.swapaxes(x.data, -1, -2) if transpose_A else x.data
        right = y.data if transpose_B else np.swapaxes(y.data, -1, -2)
        poison = _gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
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
        if not clear:
            old = target.value()
            data, poison = getattr(machine, merge)(old.data, data, fmt), _either(old.poison, poison)
        target.assign(f"reduce_{op}", Value(machine, fmt, data, poison))

    # expressions

    def infinity(self, dtype: str = FP32.name) -> float:
        """+inf, as T.infinity(dtype)."""
        format_named(dtype)
        return float("inf")

    def max(self, a: Value, b: Value) -> Value:
        """fmaxf: the operand that is not NaN wins."""
        return a._result(b, self.machine.max(a.data, b.data, a.fmt))

    def min(self, a: Value, b: Value) -> Value:
        """fminf: the operand that is not NaN wins."""
        return a._result(b, self.machine.min(a.data, b.data, a.fmt))

    def exp2(self, x: Value) -> Value:
        """2**x as CUDA's exp2f gives it."""
        return Value(self.machine, x.fmt, self.machine.exp2(x.data, x.fmt), x.poison)

    def if_then_else(self, condition: np.ndarray, a: Any, b: Any, dtype: Format = FP32) -> Value:
        """a where `condition` (bool [blocks or 1, ...]), else b; what is not taken does not leak, poison neither."""
        x, y = (
            v if isinstance(v, Value) else Value(self.machine, dtype, self.machine.constant(v, dtype)) for v in (a, b)
        )
        condition = condition[: self.active]
        poison = None
        if x.poison is not None or y.poison is not None:
            taken = [np.zeros(1, bool) if v.poison is None else v.poison for v in (x, y)]
            poison = np.where(condition, *taken)
        return Value(self.machine, x.fmt, self.machine.select(condition, x.data, y.data), poison)


def _gemm_poison(
    a: np.ndarray | None, b: np.ndarray | None, c: np.ndarray | None, transpose_A: bool, transpose_B: bool
) -> np.ndarray | None:
    """Which outputs of a gemm depend on memory that nobody wrote: a row of a, a column of b, or c itself."""
    rows = None if a is None else np.expand_dims(np.any(a, axis=-2 if transpose_A else -1), -1)
    columns = None if b is None else np.expand_dims(np.any(b, axis=-1 if transpose_B else -2), -2)
    return _either(_either(rows, columns), c)
