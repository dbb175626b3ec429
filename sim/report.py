"""What a kernel did that it should not do, and what cannot be known of its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "Undetermined"]


class Undetermined(Exception):
    """The words of a result cannot be known: they depend on memory that nobody wrote, a race, an order of additions.

    result: what is known, where a kernel was run
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, order=True)
class Report:
    """Something that a kernel should not do, the first time that it does it in one place.

    kind: out_of_bounds, race, uninitialised, atomic_order, division_by_zero, device_assert, producer_only (a
        copy in a pipelined loop that TileLang 0.1.15 gives to the producer's warps alone; the others do not see it)
    buffer, operator: what was accessed by what
    where: the source line, "" if unknown; block: the thread block's number in the grid; index: the element
    """

    kind: str
    buffer: str
    operator: str
    where: str = ""
    block: int | None = None
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        place = [self.where] if self.where else []
        place += [] if self.block is None else [f"block {self.block}"]
        place += [f"index {list(self.index)}"] if self.index else []
        operator = f" in {self.operator}" if self.operator != self.kind else ""
        return f"{self.kind} of {self.buffer}{operator}" + (f" ({', '.join(place)})" if place else "")
