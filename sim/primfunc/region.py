"""Operands of tile operators: buffers of the program, and rectangles of them whose start is known at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import DType, Format
from ..memory import Tensor, rectangle
from ..tile import Tile
from ..values import Index, Value, either, lift
from .expressions import as_index
from .frame import Frame, Unsupported

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["Access", "Region"]


class Access:
    """How a buffer of the program is reached at run time."""

    def __init__(self, buffer: Any, shape: tuple[int, ...], fmt: DType, get: Callable[[Frame], Any], is_global: bool):
        self.name, self.data, self.scope = str(buffer.name), buffer.data, str(buffer.scope())
        self.shape, self.fmt, self.get, self.is_global = shape, fmt, get, is_global

    def in_registers(self) -> bool:
        """Whether each thread has its own copy of what it uses."""
        return not self.is_global and not self.scope.startswith("shared")

    def load(self, frame: Frame, key: tuple[Any, ...]) -> Any:
        """The elements at integer indices."""
        if frame.turns is not None:
            frame.turns.loaded(self, key)
        target, guard = self.get(frame), None if frame.guarded is None else frame.guarded.at
        return target.load(key, frame.block, guard) if isinstance(target, Tensor) else target.load(key, guard)

    def store(
        self, frame: Frame, key: tuple[Any, ...], value: Any, operator: str = "parallel", keep_product: bool = False
    ) -> None:
        target, guard = self.get(frame), None if frame.guarded is None else frame.guarded.at
        value = _for_elements(frame, frame.doubted(value, self.fmt))
        if frame.turns is not None:
            frame.turns.stored(self, key, value)
        if isinstance(target, Tensor):
            target.store(key, value, frame.block, guard, operator)
        else:
            target.store(key, value, guard, operator, keep_product)

    def atomic(self, frame: Frame, function: np.ufunc, key: tuple[Any, ...], value: Any) -> None:
        """target[key] = function(target[key], value) for each element, atomically."""
        guard = None if frame.guarded is None else frame.guarded.at
        if frame.turns is not None:
            frame.turns.stored(self, key, None)
        value = _for_elements(frame, frame.doubted(value, self.fmt))
        self.get(frame).atomic(function, key, value, frame.block, guard)

    def lose(self, frame: Frame, key: tuple[Any, ...], mask: np.ndarray) -> None:
        """What is there where `mask` holds cannot be known."""
        target = self.get(frame)
        if isinstance(target, Tensor):
            target.lose(key, frame.block, mask)
            return
        value = frame.block.as_value(target.load(key, mask), self.fmt)
        target.store(key, Value(value.machine, value.fmt, value.data, either(value.poison, mask)), mask, "parallel")


class Region:
    """A tile-operator operand: a rectangle of a buffer, its start evaluated at run time."""

    def __init__(self, statements: Statements, call: Any):
        if getattr(call.op, "name", "") != "tl.region":
            raise Unsupported(f"operand {call.op}")
        load = call.args[0]
        self.access = statements.access(load.buffer)
        self.starts = [statements.translator.expression(i) for i in load.indices]
        self.fmt, self.name = self.access.fmt, self.access.name
        # None: known only when the kernel runs
        self.extents: list[int | None] = [_extent(statements, e) for e in call.args[2:]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents that are not 1."""
        return tuple(e for e in self.sizes() if e != 1) or (1,)

    def sizes(self) -> tuple[int, ...]:
        """All extents. Raises Unsupported when one is not known before the kernel runs."""
        if None in self.extents:
            raise Unsupported(f"a region of {self.name} whose extent is not known before the kernel runs")
        return tuple(e for e in self.extents if e is not None)

    def matched(self, other: Region) -> None:
        """Extents that are not known are the other operand's: a copy walks the tile, and its box is as large."""
        theirs = iter([e for e in other.extents if e != 1])
        for axis, extent in enumerate(self.extents):
            known = next(theirs, None) if extent != 1 else 1
            self.extents[axis] = known if extent is None else extent

    def _key(self, frame: Frame) -> tuple[Any, ...]:
        """The indices of its elements; extents of 1 are not walked."""
        starts = [as_index(start(frame)) for start in self.starts]
        return rectangle(starts, [None if extent == 1 else extent for extent in self.sizes()])

    def whole(self, frame: Frame) -> Tile | None:
        """The tile, when the region is all of one."""
        target = self.access.get(frame)
        if isinstance(target, Tile) and tuple(self.extents) == target.shape:
            return target
        return None

    def read(self, frame: Frame) -> Value:
        """The values [lanes or 1, *shape]; out of bounds reads of global memory give 0."""
        tile = self.whole(frame)
        if tile is not None:
            value = tile.value()
            frame.block.read(self.name, "tile operator", value.poison)
            return value.reshaped(self.shape)
        with frame.block.walking(self.shape):
            target, key = self.access.get(frame), self._key(frame)
            found = target.load(key, frame.block) if isinstance(target, Tensor) else target.load(key)
        return found if isinstance(found, Value) else frame.block.as_value(found, self.fmt)

    def write(self, frame: Frame, value: Value, operator: str, keep_product: bool = False) -> None:
        """Store [lanes or 1, *shape]; out of bounds writes to global memory are dropped."""
        tile = self.whole(frame)
        if tile is not None:
            value = frame.doubted(value.reshaped(tile.shape), tile.fmt)
            value = frame.block.as_value(value, tile.fmt) if isinstance(tile.fmt, Format) else value
            tile.assign(operator, value, keep_product)
            return
        with frame.block.walking(self.shape):
            self.access.store(frame, self._key(frame), value, operator)

    def atomic(self, frame: Frame, function: np.ufunc, value: Any) -> None:
        """Atomic operations with [lanes or 1, *shape] on global or shared memory."""
        with frame.block.walking(self.shape):
            self.access.atomic(frame, function, self._key(frame), value)


def _for_elements(frame: Frame, value: Any) -> Any:
    """A value that each thread block has one of, with the axes of the elements that all get it."""
    rank = len(frame.block.parallel_extents)
    if isinstance(value, Index):
        poison = None if value.poison is None else lift(value.poison, rank)
        return Index(lift(value.at, rank), value.axis, poison)
    if not isinstance(value, Value) or value.data.ndim in (0, rank + 1):
        return value
    poison = None if value.poison is None else lift(value.poison, rank)
    factors = None
    if value.factors is not None:
        a, b = (lift(x, rank) if x.ndim else x for x in value.factors)
        factors = a, b
    return Value(value.machine, value.fmt, lift(value.data, rank), poison, factors)


def _extent(statements: Statements, e: Any) -> int | None:
    try:
        return statements.size(e)
    except Unsupported:
        return None
