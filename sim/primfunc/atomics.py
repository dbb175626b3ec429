"""Atomic additions to global memory. A float sum whose order matters is undetermined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..tile import Tensor
from .frame import Frame, Unsupported
from .region import Access, Region

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["ATOMICS"]

Run = Callable[[Frame], None]


def _atomicadd(statements: Statements, call: Any) -> Run:
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    source.matched(target)
    _in_global(target.access)

    def run(frame: Frame) -> None:
        target.add(frame, source.read(frame))

    return run


def _in_global(target: Access) -> None:
    if not target.is_global:
        raise Unsupported(f"an atomic addition to {target.name}, which is not in global memory")


def _pointer(statements: Statements, call: Any) -> tuple[Access, list[Any]]:
    """The buffer and the index of a T.access_ptr of one element."""
    if getattr(call.op, "name", "") != "tl.access_ptr" or type(call.args[0]).__name__ != "BufferLoad":
        raise Unsupported("a pointer that is no element of a buffer")
    load = call.args[0]
    return statements.access(load.buffer), [statements.translator.expression(i) for i in load.indices]


def _atomic_element(statements: Statements, call: Any) -> Run:
    (target, index), value = _pointer(statements, call.args[0]), statements.translator.expression(call.args[1])
    _in_global(target)

    def run(frame: Frame) -> None:
        target.add(frame, tuple(i(frame) for i in index), value(frame))

    return run


def _atomic_elements(width: int) -> Callable[[Statements, Any], Run]:
    """atomic_addx2 and x4: `width` neighbours on the last axis."""

    def make(statements: Statements, call: Any) -> Run:
        (target, index), (source, where) = (_pointer(statements, call.args[i]) for i in (0, 1))
        _in_global(target)

        def run(frame: Frame) -> None:
            to, frm = [i(frame) for i in index], [i(frame) for i in where]
            memory, guard = source.get(frame), None if frame.guarded is None else frame.guarded.at
            for n in range(width):
                key = (*frm[:-1], frm[-1] + n)
                x = memory.load(key, frame.block) if isinstance(memory, Tensor) else memory.load(key, guard)
                target.add(frame, (*to[:-1], to[-1] + n), x)

        return run

    return make


ATOMICS: dict[str, Callable[[Any, Any], Run]] = {
    "tl.tileop.atomicadd": _atomicadd,
    "tl.atomic_add_elem_op": _atomic_element,
    "tl.atomic_addx2_elem_op": _atomic_elements(2),
    "tl.atomic_addx4_elem_op": _atomic_elements(4),
}
