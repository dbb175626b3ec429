"""Global memory: tensors, rectangles of them, and what is known of every word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .formats import DType, Format, Integer
from .machine import Exact
from .values import Index, Lanes, Value, either, lift, rows

if TYPE_CHECKING:
    from .tile import Block

__all__ = ["Memory", "Region", "Tensor", "atomically", "lane_axis", "place", "rectangle", "targets", "unknown"]

SEVERAL = -1  # thread blocks


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
        # where not all thread blocks run: was stored to, and is poison only because the others may take part
        self.stored: np.ndarray | None = None
        self.left_out: np.ndarray | None = None
        # the thread block of this launch that stored, added to or loaded it: its number + 1, SEVERAL, 0 for none
        self.writer: np.ndarray | None = None
        self.adder: np.ndarray | None = None
        self.reader: np.ndarray | None = None  # None: nobody asks
        self.additions: np.ndarray | None = None  # atomic additions so far

    def units(self) -> int:
        return self.words.size * self.words.itemsize * 8 // self.unit

    def divide(self, bits: int) -> None:
        """Units of at most `bits`."""
        if bits < self.unit:
            for name in ("poison", "stored", "left_out", "writer", "adder", "reader", "additions"):
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

    def ask(self) -> None:
        """Not all thread blocks run: keep what is stored, and what is not known only because of them."""
        self.stored, self.left_out = np.zeros(self.units(), bool), np.zeros(self.units(), bool)

    def leave_out(self, units: np.ndarray, known: np.ndarray) -> None:
        """Thread blocks that do not run may have changed these; known: what is stored here is known but for that."""
        assert self.left_out is not None
        poison = self.poisoned()
        self.left_out[units] = known & (self.left_out[units] | ~poison[units])
        poison[units] = True

    def launched(self, asked: bool) -> None:
        """A launch begins; asked: it stores to this memory, so that who loads it matters."""
        self.writer = self.adder = None
        self.reader = np.zeros(self.units(), np.int32) if asked else None

    def lose_of(self, blocks: set[int]) -> None:
        """What these thread blocks have stored or added in this launch is not known; SEVERAL - 1 among them: any."""
        for owner in (self.writer, self.adder):
            if owner is not None:
                lost = np.isin(owner, [b + 1 for b in blocks] + [SEVERAL]) if SEVERAL - 1 not in blocks else owner != 0
                self.poison = either(self.poison, lost)

    def note(self, name: str, units: np.ndarray, mine: np.ndarray) -> None:
        """That thread blocks (number + 1, broadcast to the units) have done what the mask `name` keeps."""
        owner = getattr(self, name)
        if owner is None:
            owner = np.zeros(self.units(), np.int32)
            setattr(self, name, owner)
        old = owner[units]
        owner[units] = np.where((old == 0) | (old == mine), mine, SEVERAL)
        owner[units[owner[units] != mine]] = SEVERAL  # two at once

    def others(self, name: str, units: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Which elements [..., units of an element] another thread block has done that to."""
        owner = getattr(self, name)
        if owner is None:
            return np.zeros(units.shape[:-1], bool)
        old = owner[units]
        return np.asarray(((old != 0) & (old != mine)).any(axis=-1))


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

    def load(self, key: tuple[Any, ...], block: Block, guard: np.ndarray | None = None) -> Any:
        """The elements at integer indices; out of bounds gives 0, as TileLang guards global loads.

        guard: where they are really loaded, None: everywhere
        """
        flat, inside = self._place(key, block)
        words = self._flat[flat]
        if inside is not None:
            words = np.where(inside, words, words.dtype.type(0))
        poison = unknown(key)
        if self.memory.poison is not None:
            poison = either(poison, self.memory.poison[self._units(flat)].any(axis=-1))
        block.read(self.name, "load", poison, guard)
        done = guard if inside is None else inside if guard is None else inside & guard
        if self.memory.writer is not None or self.memory.adder is not None:
            poison = either(poison, self._foreign(flat, done, block))
        if self.memory.reader is not None:
            self._read(flat, done, block)
        if isinstance(self.fmt, Integer):
            return Index(words.view(self.fmt.value_type).astype(np.int64), poison=poison)
        return Value(block.machine, self.fmt, block.machine.loaded(self, flat, words), poison)

    def _foreign(self, flat: np.ndarray, done: np.ndarray | None, block: Block) -> np.ndarray | None:
        """Which elements another thread block of this launch has stored: it may do so before or after they are read."""
        units = self._units(flat)
        mine = lift(block.running() + 1, units.ndim - 1)
        foreign = self.memory.others("writer", units, mine) | self.memory.others("adder", units, mine)
        foreign = foreign if done is None else foreign & done
        if not foreign.any():
            return None
        at = np.argwhere(foreign)[0]
        places = np.broadcast_to(flat, foreign.shape)
        block.report("race", self.name, "load", int(at[0]), self._index(places[tuple(at)]))
        return np.asarray(foreign)

    def _read(self, flat: np.ndarray, done: np.ndarray | None, block: Block) -> None:
        """Note who loads what."""
        mine = lift(block.running() + 1, flat.ndim - 1)
        whole = np.broadcast_shapes(flat.shape, mine.shape, () if done is None else done.shape)
        kept = np.broadcast_to(True if done is None else done, whole)
        units = self._units(np.broadcast_to(flat, whole)[kept])
        self.memory.note("reader", units, np.broadcast_to(np.broadcast_to(mine, whole)[kept][:, None], units.shape))

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
        words = block.machine.kept(value.data, self.fmt) if isinstance(self.fmt, Format) else value.data
        new, units = np.broadcast_to(words, kept.shape)[kept], self._units(at)
        clash = self._clashes(lane, at, units, self._flat[at] != new, operator, block)
        clash |= memory.others("adder", units, block.running()[lane][:, None] + 1)
        if memory.stored is not None and memory.left_out is not None:
            memory.stored[units], memory.left_out[units] = True, False
        self._flat[at] = new
        if block.machine.listens:
            block.machine.stored(self, at, np.broadcast_to(value.data, kept.shape)[kept], kept)
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

    def lose(self, key: tuple[Any, ...], block: Block, mask: np.ndarray) -> None:
        """The elements at integer indices where `mask` holds cannot be known."""
        flat, _ = self._place(key, block)
        self.memory.poisoned()[self._units(np.broadcast_to(flat, mask.shape)[mask])] = True

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
        (lane, at), kept = targets((flat,), keep, block.lanes.count, block.parallel_extents)
        return lane, at, kept

    def _clashes(self, lane: np.ndarray, at: np.ndarray, units: np.ndarray, changed: np.ndarray, operator: str,
                 block: Block) -> np.ndarray:  # fmt: skip
        """Where another thread block of this launch has stored another word; one that has loaded it may find either."""
        memory, mine = self.memory, block.running()[lane][:, None] + 1
        self._overtaken(lane, at, units, changed, operator, block)
        clash = memory.others("writer", units, mine) & changed
        memory.note("writer", units, np.broadcast_to(mine, units.shape))
        return clash

    def _overtaken(self, lane: np.ndarray, at: np.ndarray, units: np.ndarray, changed: np.ndarray, operator: str,
                   block: Block) -> None:  # fmt: skip
        """Thread blocks that have loaded what another one now changes may have found either: they are lost."""
        reader, mine = self.memory.reader, block.running()[lane][:, None] + 1
        read = self.memory.others("reader", units, mine) & changed
        if reader is not None and read.any():
            first = int(np.argmax(read))
            block.report("race", self.name, operator, int(lane[first]), self._index(at[first]))
            found = reader[units]
            block.lost |= set((np.unique(found[(found != 0) & (found != mine) & read[:, None]]) - 1).tolist())

    def _lose_where(self, key: tuple[Any, ...], operator: str, block: Block) -> None:
        """A store whose place cannot be known may have been anywhere."""
        if unknown(key) is not None:
            self.memory.lose()
            block.report("uninitialised", f"an index of {self.name}", operator)

    def atomic(
        self, function: np.ufunc, key: tuple[Any, ...], value: Any, block: Block, guard: np.ndarray | None
    ) -> None:
        """words[key] = function(words[key], value), atomically.

        What depends on the order (`atomically`) is poison. Where not all thread blocks run, those that do not may take
        part as well.
        """
        value, memory, machine = block.as_value(value, self.fmt), self.memory, block.machine
        lane, at, kept = self._targets(key, guard, "atomic_add", block)
        new = np.broadcast_to(value.data, kept.shape)[kept]
        clash = self._beside(lane, at, block)
        if memory.additions is None:
            memory.additions = np.zeros(memory.units(), np.int32)

        def write(to: np.ndarray, x: np.ndarray) -> None:
            self._flat[to] = machine.to_words(x, self.fmt) if isinstance(self.fmt, Format) else x
            machine.stored(self, to, x)

        poison = atomically(
            function,
            at,
            new,
            self._flat[at],
            lambda to: machine.loaded(self, to, self._flat[to]) if isinstance(self.fmt, Format) else self._flat[to],
            write,
            memory.additions[:: self.fmt.bits // memory.unit],
            self.fmt,
            machine,
        )
        if poison.any():
            block.report("atomic_order", self.name, "atomic_add")
        poison |= clash
        if value.poison is not None:
            poison = poison | np.broadcast_to(value.poison, kept.shape)[kept]
        if poison.any():
            memory.poisoned()[self._units(at[poison])] = True
        if memory.stored is not None:
            units = self._units(at)
            memory.stored[units] = True
            memory.leave_out(units, ~poison[:, None])
        self._lose_where(key, "atomic_add", block)

    def _beside(self, lane: np.ndarray, at: np.ndarray, block: Block) -> np.ndarray:
        """Where another thread block of this launch has stored without atomics; one that has loaded may find either."""
        memory, units, mine = self.memory, self._units(at), block.running()[lane][:, None] + 1
        self._overtaken(lane, at, units, np.ones(at.shape, bool), "atomic_add", block)
        clash = memory.others("writer", units, mine)
        if clash.any():
            first = int(np.argmax(clash))
            block.report("race", self.name, "atomic_add", int(lane[first]), self._index(at[first]))
        memory.note("adder", units, np.broadcast_to(mine, units.shape))
        return clash

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


def atomically(
    function: np.ufunc,
    at: np.ndarray,
    new: np.ndarray,
    old: np.ndarray,
    read: Callable[[np.ndarray], np.ndarray],
    write: Callable[[np.ndarray, np.ndarray], None],
    additions: np.ndarray,
    fmt: DType,
    machine: Exact,
) -> np.ndarray:
    """function(there, new) at each place, one after another. Returns where the order matters, or may matter.

    Integers, one float addition to any value, two to a zero, and the greatest or least of floats give the same words in
    any order; of the last not where a NaN, zeros of both signs or, with fast math, a subnormal takes part, as nobody
    measured how those are compared.

    at: places, some of them more than once; new: values; old: the words that are there, for each of `at`
    read, write: values at places; additions: of floats, how many each place has had, a value that is not 0 being one
    """
    if isinstance(fmt, Integer):
        kind = fmt.value_type
        _turn_by_turn(at, new, lambda to, x: write(to, function(read(to).view(kind), x.view(kind)).view(fmt.word)))
        return np.zeros(at.size, bool)
    if function is np.add:
        first = at[additions[at] == 0]
        additions[first] = (old[additions[at] == 0] << 1 != 0).astype(np.int32)
        _turn_by_turn(at, new, lambda to, x: write(to, machine.add(read(to), x, fmt)))
        np.add.at(additions, at, 1)
        return np.asarray(additions[at] > 2)
    best = machine.max if function is np.maximum else machine.min
    _turn_by_turn(at, new, lambda to, x: write(to, best(read(to), x, fmt)))
    return _odd(at, machine.to_words(new, fmt), old, fmt, machine.fast_math)


def _odd(at: np.ndarray, new: np.ndarray, old: np.ndarray, fmt: Format, fast_math: bool) -> np.ndarray:
    """Where a NaN, zeros of both signs or, with fast math, a subnormal is compared."""
    places, slot = np.unique(at, return_inverse=True)
    found = np.zeros((3, places.size), bool)  # what is never known, -0, +0
    for x in (new, old):
        zero, minus = x << 1 == 0, x & fmt.word.type(fmt.sign) != 0
        tiny = (x & fmt.word.type(fmt.sign - 1)) < fmt.min_normal
        for kind, mask in enumerate((fmt.is_nan(x) | fast_math & tiny & ~zero, zero & minus, zero & ~minus)):
            np.logical_or.at(found[kind], slot, mask)
    return np.asarray((found[0] | found[1] & found[2])[slot])


def _turn_by_turn(at: np.ndarray, new: np.ndarray, change: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """change(places, values) with each place once, as often as needed."""
    order = np.argsort(at, kind="stable")
    flat, sorted_new = at[order], new[order]
    rank = np.arange(flat.size) - np.searchsorted(flat, flat)  # the how-manieth of its place
    for n in range(int(rank.max(initial=-1)) + 1):
        change(flat[rank == n], sorted_new[rank == n])


def _uniform(index: Any) -> Any:
    """An index that is the same for all lanes, as one integer: what it reads is then shared by the lanes."""
    index = np.asarray(index)
    return int(index.flat[0]) if (index == index.flat[0]).all() else index


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


def targets(
    indices: tuple[np.ndarray, ...], keep: np.ndarray | None, count: int, extents: tuple[int, ...]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Flat index arrays of the elements that a loop over `extents` stores, the lane first, and which of them do."""
    lane = lane_axis(count, indices)
    shape = np.broadcast_shapes(
        (count, *extents), lane.shape, *(i.shape for i in indices), () if keep is None else keep.shape
    )
    kept = np.broadcast_to(np.asarray(True) if keep is None else keep, shape)
    return tuple(np.broadcast_to(i, shape)[kept] for i in (lane, *indices)), kept
