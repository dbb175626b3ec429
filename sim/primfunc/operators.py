"""Tile operators of a PrimFunc: each translated to the tile operator of sim.tile that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import FP32, TF32, DType, Format, Integer
from ..tile import Index, Tensor, Tile, Value, gemm_poison, lift
from .frame import Frame, Unsupported

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["OPERATORS", "Access"]

Run = Callable[[Frame], None]


class Access:
    """How a buffer of the program is reached at run time."""

    def __init__(self, name: str, shape: tuple[int, ...], fmt: DType, get: Callable[[Frame], Any]):
        self.name, self.shape, self.fmt, self.get = name, shape, fmt, get

    def store(
        self, frame: Frame, key: tuple[Any, ...], value: Any, operator: str = "parallel", keep_product: bool = False
    ) -> None:
        target, guard = self.get(frame), None if frame.guarded is None else frame.guarded.at
        if isinstance(target, Tensor):
            target.store(key, value, frame.block, guard, operator)
        else:
            target.store(key, value, guard, operator, keep_product)


class Region:
    """A tile-operator operand: a rectangle of a buffer, its start evaluated at run time."""

    def __init__(self, statements: Statements, call: Any):
        if getattr(call.op, "name", "") != "tl.region":
            raise Unsupported(f"operand {call.op}", call)
        load = call.args[0]
        self.access = statements.access(load.buffer)
        if int(call.args[1]) & 2:
            statements.translator.forget(load.buffer.data)
        self.starts = [statements.translator.expression(i) for i in load.indices]
        self.extents = [statements.size(e, "the extent of a region") for e in call.args[2:]]
        self.shape = tuple(e for e in self.extents if e != 1) or (1,)
        self.fmt = self.access.fmt
        self.name = self.access.name

    def _key(self, frame: Frame, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Index arrays over `shape`, the extents that are not 1 in order."""
        rank, axis, key = len(shape), 0, []
        for start, extent in zip(self.starts, self.extents, strict=True):
            first = start(frame)
            first = lift(first.at, rank) if isinstance(first, Index) else np.asarray(first).reshape((1,) * (rank + 1))
            if extent != 1:
                axis += 1
                first = first + np.arange(extent).reshape((1,) * axis + (extent,) + (1,) * (rank - axis))
            key.append(Index(first))
        return tuple(key)

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
            return self._squeezed(value)
        with_extents(frame, self.shape)
        try:
            target, key = self.access.get(frame), self._key(frame, self.shape)
            found = target.load(key, frame.block) if isinstance(target, Tensor) else target.load(key)
        finally:
            frame.block.parallel_extents = ()
        return found if isinstance(found, Value) else frame.block.as_value(found, self.fmt)

    def _squeezed(self, value: Value) -> Value:
        shape = (value.data.shape[0], *self.shape)
        poison = None if value.poison is None else value.poison.reshape((value.poison.shape[0], *self.shape))
        return Value(value.machine, value.fmt, value.data.reshape(shape), poison, value.factors)

    def write(self, frame: Frame, value: Value, operator: str) -> None:
        """Store [lanes or 1, *shape]; out of bounds writes to global memory are dropped."""
        tile = self.whole(frame)
        if tile is not None:
            data = value.data.reshape((value.data.shape[0], *tile.shape))
            poison = None if value.poison is None else value.poison.reshape((value.poison.shape[0], *tile.shape))
            tile.assign(
                operator,
                frame.block.as_value(Value(value.machine, value.fmt, data, poison), tile.fmt)
                if isinstance(tile.fmt, Format)
                else Value(value.machine, value.fmt, data, poison),
            )
            return
        with_extents(frame, self.shape)
        try:
            self.access.store(frame, self._key(frame, self.shape), value, operator)
        finally:
            frame.block.parallel_extents = ()


def with_extents(frame: Frame, shape: tuple[int, ...]) -> None:
    if frame.block.parallel_extents:
        raise Unsupported("a tile operator inside a T.Parallel loop")
    frame.block.parallel_extents = shape


def _fill(statements: Statements, call: Any) -> Run:
    target, value = Region(statements, call.args[0]), statements.translator.expression(call.args[1])

    def run(frame: Frame) -> None:
        x = value(frame)
        if isinstance(target.fmt, Format) and not isinstance(x, Value):
            x = frame.constant(float(x), target.fmt) if not isinstance(x, Index) else frame.from_integer(x, target.fmt)
        x = frame.block.as_value(x, target.fmt)
        data = lift(x.data, len(target.shape))
        target.write(frame, Value(x.machine, x.fmt, np.broadcast_to(data, (data.shape[0], *target.shape))), "fill")

    return run


def _copy(statements: Statements, call: Any) -> Run:
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    if source.shape != target.shape:
        raise Unsupported(f"a copy of {source.extents} to {target.extents}", call)

    def run(frame: Frame) -> None:
        value = source.read(frame)
        if isinstance(source.fmt, Integer) != isinstance(target.fmt, Integer):
            raise Unsupported(f"a copy from {source.fmt.name} to {target.fmt.name}", call)
        if isinstance(source.fmt, Integer) and source.fmt is not target.fmt:
            at = Index(value.data.view(source.fmt.value_type).astype(np.int64), poison=value.poison)
            value = frame.block.as_value(at, target.fmt)
        target.write(frame, value, "copy")

    return run


def _gemm(statements: Statements, call: Any) -> Run:
    a, b, c = (Region(statements, call.args[i]) for i in range(3))
    transpose_A, transpose_B = bool(call.args[3]), bool(call.args[4])
    clear = statements.translator.expression(call.args[9])
    if a.fmt is not b.fmt:
        raise Unsupported(f"a gemm of {a.fmt.name} and {b.fmt.name}", call)
    if isinstance(a.fmt, Integer) and isinstance(c.fmt, Integer):
        return _integer_gemm(a, b, c, transpose_A, transpose_B, clear)
    if not (isinstance(a.fmt, Format) and isinstance(c.fmt, Format)):
        raise Unsupported(f"a gemm of {a.fmt.name} into {c.fmt.name}", call)

    def run(frame: Frame) -> None:
        x, y, machine = a.read(frame), b.read(frame), frame.block.machine
        z = c.read(frame)
        if bool(clear(frame)):
            z = Value(machine, z.fmt, np.broadcast_to(machine.constant(0.0, z.fmt), (1, *c.shape)))
        left = np.swapaxes(x.data, -1, -2) if transpose_A else x.data
        right = y.data if transpose_B else np.swapaxes(y.data, -1, -2)
        operand = TF32 if x.fmt is FP32 else x.fmt
        data = machine.dot(left, right, z.data, operand, z.fmt)
        poison = gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
        c.write(frame, Value(machine, z.fmt, data, poison), "gemm")

    return run


def _integer_gemm(a: Region, b: Region, c: Region, transpose_A: bool, transpose_B: bool, clear: Any) -> Run:
    """int8 into int32: exact, modulo 2^32."""

    def run(frame: Frame) -> None:
        x, y, z = a.read(frame), b.read(frame), c.read(frame)
        left, right, old = (v.data.view(v.fmt.value_type).astype(np.int64) for v in (x, y, z))
        left = np.swapaxes(left, -1, -2) if transpose_A else left
        right = np.swapaxes(right, -1, -2) if transpose_B else right
        total = np.matmul(left, right) + (0 if bool(clear(frame)) else old)
        poison = gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
        c.write(frame, frame.block.as_value(Index(total, poison=poison), c.fmt), "gemm")

    return run


_MERGE = {"sum": "add", "abssum": "add", "max": "max", "absmax": "max", "min": "min"}


def _reduce(statements: Statements, call: Any) -> Run:
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    op, dim, clear = str(call.args[2].value), int(call.args[3]), bool(call.args[4])
    if op not in _MERGE or not isinstance(source.fmt, Format) or source.fmt is not target.fmt:
        raise Unsupported(f"reduce {op} of {source.fmt.name} into {target.fmt.name}", call)
    if call.annotations and call.annotations.get("nan_propagate"):
        raise Unsupported("reduce with nan_propagate", call)
    number = statements.reductions
    statements.reductions += 1
    extents = tuple(source.extents)

    def run(frame: Frame) -> None:
        value, fmt = source.read(frame), source.fmt
        machine = frame.block.machine
        data = value.data.reshape((value.data.shape[0], *extents))
        if op.startswith("abs"):
            data = machine.abs(data, fmt)
        if op in ("sum", "abssum"):
            plan = frame.plans(number, extents, dim)
            if value.factors is not None and op == "sum":  # the products are fused with the additions
                a, b = (x.reshape((x.shape[0], *extents)) for x in value.factors)
                out = plan.sum_products(machine, a, b, fmt)
            else:
                out = plan.sum(machine, data, fmt)
        else:
            out = machine.reduce("min" if op == "min" else "max", np.moveaxis(data, dim + 1, -1), None, fmt)
            if op == "absmax":
                out = machine.max(machine.constant(0.0, fmt), out, fmt)
        result = Value(machine, fmt, out.reshape((out.shape[0], *target.shape)))
        if value.poison is not None:
            poison = value.poison.reshape((value.poison.shape[0], *extents)).any(axis=dim + 1)
            result.poison = np.asarray(poison).reshape((poison.shape[0], *target.shape))
        if not clear:
            result = target.read(frame).combine(_MERGE[op], result)
        target.write(frame, result, f"reduce_{op}")

    return run


def _atomic_add(frame: Frame, target: Access, key: tuple[Any, ...], value: Any) -> None:
    """target[key] += value for each element, one after another. A float sum whose order matters is poison."""
    memory = target.get(frame)
    if not isinstance(memory, Tensor):
        raise Unsupported(f"an atomic addition to {target.name}, which is not in global memory")
    guard = None if frame.guarded is None else frame.guarded.at
    memory.add(key, value, frame.block, guard)


def _atomicadd(statements: Statements, call: Any) -> Run:
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])

    def run(frame: Frame) -> None:
        value = source.read(frame)
        with_extents(frame, target.shape)
        try:
            _atomic_add(frame, target.access, target._key(frame, target.shape), value)
        finally:
            frame.block.parallel_extents = ()

    return run


def _pointer(statements: Statements, call: Any) -> tuple[Access, list[Any]]:
    """The buffer and the index of a T.access_ptr of one element."""
    if getattr(call.op, "name", "") != "tl.access_ptr" or type(call.args[0]).__name__ != "BufferLoad":
        raise Unsupported("a pointer that is no element of a buffer", call)
    load = call.args[0]
    return statements.access(load.buffer), [statements.translator.expression(i) for i in load.indices]


def _atomic_element(statements: Statements, call: Any) -> Run:
    (target, index), value = _pointer(statements, call.args[0]), statements.translator.expression(call.args[1])

    def run(frame: Frame) -> None:
        _atomic_add(frame, target, tuple(i(frame) for i in index), value(frame))

    return run


def _atomic_elements(width: int) -> Callable[[Statements, Any], Run]:
    """atomic_addx2 and x4: `width` neighbours on the last axis."""

    def make(statements: Statements, call: Any) -> Run:
        (target, index), (source, where) = (_pointer(statements, call.args[i]) for i in (0, 1))

        def run(frame: Frame) -> None:
            to, frm = [i(frame) for i in index], [i(frame) for i in where]
            memory, guard = source.get(frame), None if frame.guarded is None else frame.guarded.at
            for n in range(width):
                key = (*frm[:-1], frm[-1] + n)
                x = memory.load(key, frame.block) if isinstance(memory, Tensor) else memory.load(key, guard)
                _atomic_add(frame, target, (*to[:-1], to[-1] + n), x)

        return run

    return make


OPERATORS: dict[str, Callable[[Any, Any], Run]] = {
    "tl.tileop.fill": _fill,
    "tl.tileop.copy": _copy,
    "tl.tileop.tma_copy": _copy,
    "tl.tileop.async_copy": _copy,
    "tl.tileop.gemm": _gemm,
    "tl.tileop.wgmma_gemm": _gemm,
    "tl.tileop.reduce": _reduce,
    "tl.tileop.atomicadd": _atomicadd,
    "tl.atomic_add_elem_op": _atomic_element,
    "tl.atomic_addx2_elem_op": _atomic_elements(2),
    "tl.atomic_addx4_elem_op": _atomic_elements(4),
}
