"""Tiles and tile operators, with TileLang's names and rules.

A tile is an array with a leading axis for the thread blocks that run in step, the *lanes*. Operators compute through a
machine (sim.machine) and never look into its values. Memory that nobody wrote is part of a tile: whatever depends on it
is poisoned, and poison that reaches global memory makes the result undetermined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .formats import FP32, DType, Format, Integer, format_named
from .layout import row_reduction
from .machine import Exact
from .memory import Region, atomically, lane_axis, place, targets, unknown
from .report import Report
from .values import Index, Lanes, Value, either, lift, rows, select

__all__ = ["Block", "Private", "Tile", "View", "gemm_poison"]


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
        self._additions: np.ndarray | None = None  # atomic ones since the last plain store

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
        machine, lanes, self._additions = self.block.machine, self.block.lanes, None
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
        for n, lane in enumerate(layer.lanes.places()):
            words = layer.data[n if layer.data.shape[0] > 1 else 0]
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
            self.block.read(self.name, "load", poison, guard)
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
        self.block.read(self.name, "load", poison, guard)
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
        target, kept = targets(indices, keep, count, extents)
        new = np.broadcast_to(value.data, kept.shape)[kept]
        data[target], poison[target] = (
            new,
            np.broadcast_to(False if value.poison is None else value.poison, kept.shape)[kept],
        )
        if unknown(key) is not None:
            poison[...] = True
            block.report("uninitialised", f"an index of {self.name}", operator)
        clash = block.differ(data[target], new, self.fmt)
        if clash.any():
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

    def atomic(
        self, function: np.ufunc, key: tuple[Any, ...], value: Any, block: Block, guard: np.ndarray | None
    ) -> None:
        """tile[key] = function(tile[key], value), atomically; what depends on the order is poison."""
        value, old, count = block.as_value(value, self.fmt), self.value(), block.lanes.count
        indices, inside = place(key, self.shape, len(block.parallel_extents))
        if inside is not None:
            self._outside("atomic_add", key, inside, guard)
        keep = guard if inside is None else (inside if guard is None else inside & guard)
        target, kept = targets(indices, keep, count, block.parallel_extents)
        whole = (count, *self.shape)
        data, poison = (np.array(np.broadcast_to(x, whole)).reshape(-1) for x in (old.data, _mask(old.poison)))
        at = np.ravel_multi_index(target, whole)
        additions = np.zeros((block.blocks, *self.shape), np.int32) if self._additions is None else self._additions
        mine = additions[block.lanes.places()].reshape(-1)
        new, words = np.broadcast_to(value.data, kept.shape)[kept], data[at]
        if isinstance(self.fmt, Format):
            words = block.machine.to_words(words, self.fmt)
        lost = atomically(function, at, new, words, data.__getitem__, data.__setitem__, mine, self.fmt, block.machine)
        if lost.any():
            block.report("atomic_order", self.name, "atomic_add")
        poison[at[lost | np.broadcast_to(_mask(value.poison), kept.shape)[kept]]] = True
        if unknown(key) is not None:
            poison[...] = True
        additions[block.lanes.places()] = mine.reshape(whole)
        self.assign("atomic_add", Value(block.machine, self.fmt, data.reshape(whole), poison.reshape(whole)))
        self._additions = additions

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


def _mask(poison: np.ndarray | None) -> np.ndarray:
    return np.zeros(1, bool) if poison is None else poison


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
        data = _recast(self.block, value.data, self.base.fmt, self.fmt, self.shape)
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
        words = _recast(self.block, data, self.fmt, self.base.fmt, self.base.shape)
        factors = None
        if data.shape == value.data.shape:
            factors = self._factors(value, self.base.shape)
        self.base.assign(operator, Value(value.machine, self.base.fmt, words, poison, factors), keep_product)


def _recast(block: Block, data: np.ndarray, old: DType, new: DType, shape: tuple[int, ...]) -> np.ndarray:
    """A tile's data [lanes, ...] of dtype `old` as that of `new` [lanes, *shape]: the same bits."""
    if old is new:
        return data.reshape((data.shape[0], *shape))
    words = np.ascontiguousarray(block.words(data, old)).reshape(data.shape[0], -1)
    words = words.view(new.word).reshape((data.shape[0], *shape))
    return words if isinstance(new, Integer) else block.machine.from_words(words, new)


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
        differs = self.block.differ(data, data[:, :1], value.fmt).any(axis=1)
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
        self.first_unknown: Report | None = None  # the first read of something that cannot be known
        self.numbers = np.arange(blocks)  # their numbers in the grid
        self.lost: set[int] = set()  # thread blocks that have loaded what another one of their launch changes
        self.watch: dict[str, Callable[[np.ndarray, int, Any], None]] = {}
        self.turns: tuple[int, ...] = ()  # of the serial loops around what runs
        self.sources: dict[str, str] | None = None  # the path of each source file; None: a loop written by hand
        if machine is not None:  # sizes and layouts are computed without one
            machine.started(self)

    def report(
        self, kind: str, buffer: str, operator: str, lane: int | None = None, index: tuple[int, ...] = ()
    ) -> None:
        """Note something that a kernel should not do; lane: which of those that run, index: the element."""
        key = (kind, buffer, operator, self.where)
        if key not in self.reports:
            block = None if lane is None else int(self.running()[lane])
            self.reports[key] = Report(*key, block, tuple(int(i) for i in index))

    def read(self, buffer: str, operator: str, poison: np.ndarray | None, guard: np.ndarray | None = None) -> None:
        """Note the first read of something that cannot be known."""
        if self.first_unknown is None and poison is not None:
            matters = poison if guard is None else Index(poison).apply(np.logical_and, Index(guard)).at
            if matters.any():
                self.first_unknown = Report("uninitialised", buffer, operator, self.where)

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

    def differ(self, a: np.ndarray, b: np.ndarray, fmt: DType) -> np.ndarray:
        """Where two arrays of a tile's data have other words."""
        return np.asarray(a != b) if isinstance(fmt, Integer) else self.machine.differ(a, b, fmt)

    def words(self, x: np.ndarray, fmt: DType) -> np.ndarray:
        """The words of a tile's data."""
        return x if isinstance(fmt, Integer) else self.machine.to_words(x, fmt)

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
        turns = self.turns
        for k in range(int(extents.max(initial=0))):
            self.lanes, self.iteration, self.turns = outer.where(extents > k), k, (*turns, k)
            yield k
        self.lanes, self.iteration, self.turns = outer, None, turns

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
        found: Value = select(Index(rows(condition.at, self.lanes.places())), x, y)
        return found


def gemm_poison(
    a: np.ndarray | None, b: np.ndarray | None, c: np.ndarray | None, transpose_A: bool, transpose_B: bool
) -> np.ndarray | None:
    """Which outputs of a gemm depend on memory that nobody wrote: a row of a, a column of b, or c itself."""
    by_row = None if a is None else np.expand_dims(np.any(a, axis=-2 if transpose_A else -1), -1)
    by_column = None if b is None else np.expand_dims(np.any(b, axis=-1 if transpose_B else -2), -2)
    return either(either(by_row, by_column), c)
