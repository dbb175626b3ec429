"""Where bad values are born, by thread block and iteration, and where they are in the output: for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.trace import Cause

from .explain_causes import Story
from .rows import phrase

__all__ = ["Births", "births"]

MOST_CELLS = 64  # glyphs of a line
Turns = dict[int, np.ndarray]  # iteration (-1: outside of loops) -> which rows of the tile


@dataclass(frozen=True)
class Births:
    """The rows of the tiles of some thread blocks where something bad is born, by iteration.

    last: how many iterations there are; first_row: the query row that the tile's first row is
    """

    blocks: tuple[int, ...]
    name: str
    turns: Turns
    last: int
    first_row: int
    flash: bool

    def cells(self, glyphs: Sequence[str]) -> str:
        """A glyph for each iteration, or for some of them where there are many."""
        step, text = -(-self.last // MOST_CELLS) or 1, ""
        for first in range(0, self.last, step):
            some = [self.turns[t] for t in range(first, min(first + step, self.last)) if t in self.turns]
            whole = bool(some) and len(some) == min(step, self.last - first) and all(s.all() for s in some)
            text += glyphs[2] if whole else glyphs[1] if some else glyphs[0]
        return text

    def text(self) -> str:
        """The rows and their iterations in words."""
        texts = [f"{self._rows(turn)} {self._turn(turn)}" for turn in list(self.turns)[:3]]
        return ", ".join(texts) + (f" and {len(self.turns) - 3} more" if len(self.turns) > 3 else "")

    def _rows(self, turn: int) -> str:
        return phrase(np.concatenate([np.zeros(self.first_row, bool), self.turns[turn], [False]]), limit=3)

    def _turn(self, turn: int) -> str:
        if turn < 0:
            return "after the key loop" if self.flash else "outside of loops"
        return f"in {'key block' if self.flash else 'iteration'} {turn}"


def births(story: Story) -> list[Births]:
    """Where something bad is born that reaches an output; thread blocks that are alike together."""
    found: dict[int, Turns] = {}
    for cause in story.causes:
        if cause.block is not None and cause.function and cause.extents:
            _add(found.setdefault(cause.block, {}), cause)
    alike: dict[tuple[int, int, bytes], list[int]] = {}
    for block, turns in sorted(found.items()):
        row, last = _row_and_last(story, block, turns)
        rows = b"".join(bytes([turn & 255]) + turns[turn].tobytes() for turn in sorted(turns))
        alike.setdefault((row, last, rows), []).append(block)
    return [
        Births(tuple(blocks), _name(story, blocks), dict(sorted(found[blocks[0]].items())), last, row,
               story.subject.flash is not None)
        for (row, last, _), blocks in alike.items()
    ]  # fmt: skip


def _name(story: Story, blocks: list[int]) -> str:
    """Thread blocks in few words."""
    flash = story.subject.flash
    if flash is None:
        return phrase(np.isin(np.arange(blocks[-1] + 2), blocks), "thread block", limit=3)
    if len(blocks) == 1:
        return f"thread block {blocks[0]}, {flash.name(blocks[0])}"
    first, last = flash.rows(blocks[0])
    return f"{len(blocks)} thread blocks, query rows {first}-{last}"


def _row_and_last(story: Story, block: int, turns: Turns) -> tuple[int, int]:
    """The query row that the tile's first row is, and how many iterations there are."""
    flash = story.subject.flash
    return (0, max(turns) + 1) if flash is None else (flash.rows(block)[0], flash.turns(flash.place(block)[0]))


def _add(turns: Turns, cause: Cause) -> None:
    """The rows of one cause; tiles of several heights in one iteration count as the higher one."""
    turn = cause.place.iteration[-1] if cause.place.iteration else -1
    height = max(cause.extents[0], len(turns.get(turn, ())))
    rows = np.zeros(height, bool)
    rows[: len(turns.get(turn, ()))] = turns.get(turn, False)
    rows[cause.elements[:, 0]] = True
    turns[turn] = rows
