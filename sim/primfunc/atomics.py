"""Atomic operations on global and shared memory. A float result that the order may change is undetermined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import Integer
from .frame import Frame, Unsupported
from .region import Access, Region

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["ATOMICS"]

Run = Callable[[Frame], None]
Make = Callable[[Any, Any], Run]


def _tile(function: np.ufunc) -> Make:
    """T.atomic_add and its like from a tile to a region."""

    def make(statements: Statements, call: Any) -> Run:
        source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
        source.matched(target)
        _checked(statements, target.access, function)

        def run(frame: Frame) -> None:
            target.atomic(frame, function, source.read(frame))

        return run

    return make


def _checked(statements: Statements, target: Access, function: np.ufunc) -> None:
    if not target.is_global and not target.scope.startswith("shared"):
        raise Unsupported(f"an atomic operation on {target.name} in scope {target.scope!r}")
    if not target.is_global and statements.storage[target.data] != (target.shape, target.fmt):
        raise Unsupported(f"an atomic operation on {target.name}, a view of a tile")
    if function not in _FUNCTIONS.values() and not isinstance(target.fmt, Integer):
        raise Unsupported(f"an atomic {function.__name__} of {target.fmt.name}")


def _pointer(statements: Statements, call: Any) -> tuple[Access, list[Any]]:
    """The buffer and the index of a T.access_ptr of one element."""
    if getattr(call.op, "name", "") != "tl.access_ptr" or type(call.args[0]).__name__ != "BufferLoad":
        raise Unsupported("a pointer that is no element of a buffer")
    load = call.args[0]
    return statements.access(load.buffer), [statements.translator.expression(i) for i in load.indices]


def _element(function: np.ufunc) -> Make:
    """The same of one element."""

    def make(statements: Statements, call: Any) -> Run:
        (target, index), value = _pointer(statements, call.args[0]), statements.translator.expression(call.args[1])
        _checked(statements, target, function)

        def run(frame: Frame) -> None:
            target.atomic(frame, function, tuple(i(frame) for i in index), value(frame))

        return run

    return make


def _elements(width: int) -> Make:
    """atomic_addx2 and x4: `width` neighbours on the last axis."""

    def make(statements: Statements, call: Any) -> Run:
        (target, index), (source, where) = (_pointer(statements, call.args[i]) for i in (0, 1))
        _checked(statements, target, np.add)

        def run(frame: Frame) -> None:
            to, frm = [i(frame) for i in index], [i(frame) for i in where]
            for n in range(width):
                x = source.load(frame, (*frm[:-1], frm[-1] + n))
                target.atomic(frame, np.add, (*to[:-1], to[-1] + n), x)

        return run

    return make


_FUNCTIONS = {"add": np.add, "max": np.maximum, "min": np.minimum}
ATOMICS: dict[str, Make] = {
    **{f"tl.tileop.atomic{name}": _tile(function) for name, function in _FUNCTIONS.items()},
    **{f"tl.atomic_{name}_elem_op": _element(function) for name, function in _FUNCTIONS.items()},
    "tl.atomic_or_elem_op": _element(np.bitwise_or),
    "tl.atomic_addx2_elem_op": _elements(2),
    "tl.atomic_addx4_elem_op": _elements(4),
}
