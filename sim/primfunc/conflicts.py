"""Elements of a T.Parallel loop that meet: one stores what another one loads, or stores as well.

On the device an element goes through the statements of the loop by itself, here each statement is run for all elements
at once. The two give the same words where no element meets another one; what those that do store cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import place
from ..values import Index
from .frame import Frame, dtype_of

if TYPE_CHECKING:
    from .region import Access

__all__ = ["Turns", "shared_places"]

Walk = Callable[[Any, Callable[[Any], None]], None]


def shared_places(body: Any, variables: list[Any], walk: Walk, private: Iterable[str]) -> dict[Any, int]:
    """The buffers of which an element may load or store what another element stores: data variable -> widest bits.

    Not those that are only stored, by one statement (Tensor.store and Tile.store see to it), nor those whose every
    access has the same indices, of which each variable of the loop moves one of its own.
    """
    found, stored, bound = _accesses(body, walk, private)
    alone = [*variables, *bound]
    meet = {}
    for data in stored & set(found):
        first, *rest = found[data]
        if rest and not (
            all(_same_place(first, node) for node in rest)
            and all(any(_moves(v, i, alone, walk) for i in first.indices) for v in variables)
        ):
            meet[data] = max(dtype_of(node.buffer).bits for node in found[data])
    return meet


def _accesses(body: Any, walk: Walk, private: Iterable[str]) -> tuple[dict[Any, list[Any]], set[Any], list[Any]]:
    """The loads and stores by data variable, the data variables that are stored to, the variables that it binds."""
    found: dict[Any, list[Any]] = {}
    stored: set[Any] = set()
    bound: list[Any] = []

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind in ("For", "Bind"):
            bound.append(node.loop_var if kind == "For" else node.var)
        if kind in ("BufferStore", "BufferLoad") and node.buffer.scope() not in private:
            found.setdefault(node.buffer.data, []).append(node)
        if kind == "BufferStore":
            stored.add(node.buffer.data)
        if kind == "Call" and getattr(node.op, "name", "").startswith("tl.atomic_"):
            stored.add(getattr(getattr(_target(node), "buffer", None), "data", None))

    walk(body, visit)
    return found, stored, bound


def _target(atomic: Any) -> Any:
    """What an atomic operation stores to: the element of its T.access_ptr."""
    return getattr(atomic.args[0], "args", [None])[0]


def _same_place(a: Any, b: Any) -> bool:
    from tvm.ir import structural_equal

    same = zip(a.indices, b.indices, strict=True)
    return a.buffer.same_as(b.buffer) and all(structural_equal(x, y) for x, y in same)


def _moves(variable: Any, index: Any, alone: list[Any], walk: Walk) -> bool:
    """Whether an index is the variable, or a sum of it and of what is the same for all elements and turns."""
    if index.same_as(variable):
        return True
    if type(index).__name__ != "Add":
        return False
    sides = [(index.a, index.b), (index.b, index.a)]
    return any(a.same_as(variable) and not _varies(b, alone, walk) for a, b in sides)


def _varies(e: Any, variables: list[Any], walk: Walk) -> bool:
    found: list[bool] = []
    walk(e, lambda n: found.append(type(n).__name__ == "BufferLoad" or any(n.same_as(v) for v in variables)))
    return any(found)


@dataclass
class _Visit:
    """A statement's accesses to one buffer: the place of each element [lanes, *extents], and which elements do it.

    words: what a store left there; None for an atomic operation
    """

    access: Access
    key: tuple[Any, ...]
    at: np.ndarray
    done: np.ndarray
    words: np.ndarray | None = None

    def like(self, other: _Visit) -> bool:
        same = np.array_equal(self.at, other.at) and np.array_equal(self.done, other.done)
        return self.access is other.access and same

    def theirs(self, other: _Visit) -> tuple[np.ndarray, np.ndarray]:
        """Of each element of `other`: whether elements do this to its place, and whether it does so itself."""
        places, counts = np.unique(self.at[self.done], return_counts=True)
        if not places.size:
            return np.zeros(other.at.shape, bool), np.zeros(other.at.shape, bool)
        slot = np.minimum(np.searchsorted(places, other.at), places.size - 1)
        count = np.where(places[slot] == other.at, counts[slot], 0)
        own = self.done & (self.at == other.at)
        return count - own > 0, own


class Turns:
    """What the elements of one T.Parallel loop have done so far, and which of them have met another one.

    data: the buffers where they may meet, and the width of a place in each; doubt: [lanes, *extents] those that met
    """

    def __init__(self, frame: Frame, data: dict[Any, int]):
        self.frame, self.data, self.lanes = frame, data, frame.lanes
        self.loads: dict[Any, list[_Visit]] = {}
        self.stores: dict[Any, list[_Visit]] = {}
        self.doubt = np.zeros((self.lanes.count, *frame.block.parallel_extents), bool)
        self.races: list[tuple[str, _Visit, np.ndarray]] = []  # the source line, who met and where

    def loaded(self, access: Access, key: tuple[Any, ...]) -> None:
        """An element that loads what another one has stored has met it.

        Not where it has stored the place itself, as they have, and nothing else was stored there: the words are the
        same, or poison already. In registers a thread finds what it has stored itself.
        """
        if access.data not in self.data:
            return
        visit = self._visit(access, key)
        met, settled, mine = (np.full(visit.at.shape, x) for x in (False, True, False))
        statements = np.zeros(visit.at.shape, np.int32)
        for store in self.stores.get(access.data, []):
            others, own = store.theirs(visit)
            met, mine, statements = met | others, mine | own, statements + (others | own)
            settled &= own & (store.words is not None) | ~others
        registers = access.in_registers()
        self._meet(visit, visit.done & met & ~(settled if registers else settled & (statements <= 1)))
        if registers:
            visit.done &= ~mine
        _add(self.loads.setdefault(access.data, []), visit)

    def stored(self, access: Access, key: tuple[Any, ...], value: Any) -> None:
        """An element that has loaded what another one now stores has met it, as have two that store different words.

        value: None for an atomic operation, which does not mind other ones.
        """
        visit = self._visit(access, key)
        if value is not None:
            visit.words = self._whole(self.frame.block.as_value(value, access.fmt).data)
        if access.data in self.data:
            for load in self.loads.get(access.data, []):
                self._meet(load, load.done & visit.theirs(load)[0])
            for store in self.stores.get(access.data, []):
                if store.access is not access and (visit.words is not None or store.words is not None):
                    self._meet(visit, visit.done & self._other_words(visit, store))
        _add(self.stores.setdefault(access.data, []), visit)

    def _other_words(self, visit: _Visit, store: _Visit) -> np.ndarray:
        """Where another element has stored other words by another statement."""
        others, own = store.theirs(visit)
        if visit.access.in_registers():
            others &= ~own
        if store.words is None or visit.words is None or not others.any():
            return others
        places, first = np.unique(store.at[store.done], return_index=True)
        words = store.words[store.done][first]
        slot = np.minimum(np.searchsorted(places, visit.at), places.size - 1)
        return np.asarray(others & (words[slot] != visit.words))

    def close(self) -> None:
        """After the loop: the races are reported, and what elements that have met have stored cannot be known."""
        block, line = self.frame.block, self.frame.block.where
        for block.where, visit, met in self.races:
            block.report_first("race", visit.access.name, "parallel", visit.key, met)
        block.where = line
        for visit in [v for visits in self.stores.values() for v in visits] if self.races else []:
            mask = visit.done & self.doubt
            if mask.any():
                visit.access.lose(self.frame, visit.key, mask)

    def _meet(self, visit: _Visit, met: np.ndarray) -> None:
        if met.any():
            self.races.append((self.frame.block.where, visit, met))
            self.doubt |= met

    def _whole(self, x: np.ndarray) -> np.ndarray:
        """x of the lanes that run as one of all lanes of the loop."""
        found = np.zeros(self.doubt.shape, x.dtype)
        found[self.frame.lanes.among(self.lanes)] = x.reshape(x.shape + (1,) * (found.ndim - x.ndim))
        return found

    def _visit(self, access: Access, key: tuple[Any, ...]) -> _Visit:
        extents, guard = self.frame.block.parallel_extents, self.frame.guarded
        indices, inside = place(key, access.shape, len(extents))
        flat = np.zeros((1,) * (len(extents) + 1), np.int64)
        for index, size in zip(indices, access.shape, strict=True):
            flat = flat * size + index
        at = self._whole(flat) * access.fmt.bits // self.data.get(access.data, access.fmt.bits)
        if not access.is_global:  # tiles of different lanes are different places
            at += np.arange(len(at)).reshape((-1,) + (1,) * len(extents)) * int(np.prod(access.shape))
        done = self._whole(np.ones((1,), bool) if guard is None else guard.at)
        done = done if inside is None else done & self._whole(inside)
        return _Visit(access, tuple(self._spread(part) for part in key), at, done)

    def _spread(self, part: Any) -> Index:
        """An index for all lanes of the loop."""
        return Index(self._whole(part.at if isinstance(part, Index) else np.asarray(part).reshape(1)))


def _add(visits: list[_Visit], visit: _Visit) -> None:
    """Append a visit, in place of the last one when a loop inside does the same again."""
    if visits and visits[-1].like(visit):
        visits.pop()
    visits.append(visit)
