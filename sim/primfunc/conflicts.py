"""Elements of a T.Parallel loop that read what other elements of the same statement store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory import place
from ..values import Index, Value, either
from .frame import Frame
from .region import Access

__all__ = ["other_reads", "raced"]

Key = list[Callable[[Frame], Any]]


def other_reads(s: Any, visit_all: Callable[[Any, Callable[[Any], None]], None]) -> list[Any]:
    """The loads of a store's own buffer in its value, at other indices than it stores to."""
    from tvm.ir import structural_equal

    found: list[Any] = []

    def visit(node: Any) -> None:
        if type(node).__name__ == "BufferLoad" and node.buffer.same_as(s.buffer):
            if not all(structural_equal(a, b) for a, b in zip(node.indices, s.indices, strict=True)):
                found.append(node)

    visit_all(s.value, visit)
    return found


def raced(frame: Frame, access: Access, key: tuple[Any, ...], reads: list[Key], value: Any) -> Any:
    """The value that is stored, unknown where it reads an element that another element of the loop stores."""
    stored = _flat(frame, access, key)
    conflict: np.ndarray | None = None
    for read in reads:
        loaded = _flat(frame, access, tuple(k(frame) for k in read))
        whole = np.broadcast_shapes(stored.shape, loaded.shape)
        a, b = np.broadcast_to(stored, whole), np.broadcast_to(loaded, whole)
        kept = a if frame.guarded is None else a[np.broadcast_to(frame.guarded.at, whole)]
        found = np.isin(b, kept) & (a != b)
        found = found if frame.guarded is None else found & frame.guarded.at
        conflict = either(conflict, found)
    if conflict is None or not conflict.any():
        return value
    frame.block.report_first("race", access.name, "parallel", key, conflict)
    value = frame.block.as_value(value, access.fmt)
    return Value(value.machine, value.fmt, value.data, either(value.poison, conflict))


def _flat(frame: Frame, access: Access, key: tuple[Any, ...]) -> np.ndarray:
    """The flat places of a key for every lane and element; tiles of different lanes are different places."""
    extents = frame.block.parallel_extents
    indices, _ = place(key, access.shape, len(extents))
    flat: Any = 0
    for index, size in zip(indices, access.shape, strict=True):
        flat = flat * size + index
    lanes = Index(np.arange(frame.lanes.count)).at.reshape((-1,) + (1,) * len(extents))
    offset = 0 if access.is_global else lanes * int(np.prod(access.shape))
    return np.broadcast_to(flat + offset, (frame.lanes.count, *extents))
