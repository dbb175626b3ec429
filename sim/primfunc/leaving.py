"""break and continue: which thread blocks, or elements of a T.Parallel loop, have left a serial loop or one turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..values import Index
from .frame import Frame, Lost

__all__ = ["Leaving"]


class Leaving:
    """Of one serial loop [thread blocks, *elements]: turn: have left this turn, loop: have left the loop.

    elements: the loop is inside a T.Parallel loop, where each element leaves it by itself
    """

    def __init__(self, frame: Frame, elements: bool):
        extents = frame.block.parallel_extents if elements else ()
        self.turn = np.zeros((frame.block.blocks, *extents), bool)
        self.loop = self.turn.copy()

    def next(self) -> None:
        """The next turn begins: those that have left the loop do not take part."""
        self.turn = self.loop.copy()

    def leave(self, frame: Frame, loop: bool, where: str) -> None:
        """What runs now leaves. Raises Lost where it cannot be known whether it runs."""
        if frame.doubt is not None:
            raise Lost(where)
        here, guard = frame.lanes.places(), True if frame.guarded is None else frame.guarded.at
        self.turn[here] |= guard
        if loop:
            self.loop[here] |= guard

    @contextmanager
    def staying(self, frame: Frame) -> Iterator[bool]:
        """Run with those that have not left; gives whether there are any."""
        left = self.turn[frame.lanes.places()]
        if not left.any():
            yield True
        elif left.ndim == 1:
            lanes = frame.lanes.where(~left)
            with frame.running(lanes):
                yield lanes.count > 0
        else:
            with frame.guard(Index(~left)):
                yield frame.guarded is not None and bool(frame.guarded.at.any())
