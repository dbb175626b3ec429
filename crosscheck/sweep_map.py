"""The heat maps of a sweep: which combinations are in which cell of which map, and the maps as text."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .flags import UsageError
from .sweep_axes import Combination, Sweep, named_values, said
from .sweep_row import VERDICTS
from .terminal import Style
from .text import list_of

__all__ = ["LETTERS", "WORDS", "Layout", "Map", "layout", "legend", "letter", "maps", "pictures", "worst"]

LETTERS = {"clean": ".", "nan": "N", "inf": "I", "damage": "D", "undetermined": "?", "refused": "-"}
WORDS = {"clean": "clean", "nan": "NaN rows", "inf": "infinities", "damage": "silent damage",
         "undetermined": "undetermined", "refused": "refused"}  # fmt: skip
_STYLES = {"clean": "green", "nan": "red", "inf": "red", "damage": "yellow", "undetermined": "yellow",
           "refused": "dim"}  # fmt: skip
FOLDED = ("threads", "stages", "seed")  # axes of which a cell has all values, unless they are the map's
GAP = 3  # columns between two maps

Line = list[tuple[str, str]]  # pieces of text, each with its style


@dataclass(frozen=True)
class Layout:
    """Which axes go down and across a map (None: there is no other), which tell maps apart, which a cell holds."""

    down: str | None
    across: str | None
    apart: list[str]
    folded: list[str]


@dataclass(frozen=True)
class Map:
    """A heat map: for each value of the axes down and across, how often each verdict is.

    group, title: the values of the axes that tell maps apart, the last of them the title
    """

    group: str
    title: str
    down: list[str]
    across: list[str]
    cells: dict[tuple[int, int], Counter[str]]


def layout(sweep: Sweep, asked: Sequence[str] | None) -> Layout:
    """The axes of the maps: those asked for, else block_M by block_N, else the last two that vary."""
    varied, names = sweep.varied, list(sweep.axes)
    for name in asked or ():
        if name not in names:
            raise UsageError(f"--map must be two axes of {list_of(names or ['none'])}, not {name!r}")
    tiles = [name for name in ("block_M", "block_N") if name in sweep.axes]
    chosen = list(asked or (tiles if len(tiles) == 2 else varied[-2:]))
    down, across = [None, *chosen][-2:] if chosen else (None, None)
    rest = [name for name in varied if name not in chosen]
    folded = [name for name in rest if name in FOLDED]
    return Layout(down, across, [name for name in rest if name not in folded], folded)


def maps(sweep: Sweep, rows: Iterable[dict[str, Any]], axes: Layout) -> list[Map]:
    """The maps, in the order of the combinations."""
    down, across = _heads(sweep, axes.down), _heads(sweep, axes.across)
    combinations, found = list(sweep), dict[tuple[Any, ...], Map]()
    for each in combinations:
        key = tuple(each[name] for name in axes.apart)
        if key not in found:
            group, title = named_values(each, axes.apart[:-1]), named_values(each, axes.apart[-1:])
            found[key] = Map(group, title, down, across, {})
    for row in rows:
        each = combinations[row["number"]]
        place = _place(sweep, each, axes.down), _place(sweep, each, axes.across)
        found[tuple(each[n] for n in axes.apart)].cells.setdefault(place, Counter())[row["verdict"]] += 1
    return list(found.values())


def _place(sweep: Sweep, combination: Combination, name: str | None) -> int:
    return sweep.axes[name].index(combination[name]) if name else 0


def worst(cell: Counter[str]) -> str | None:
    """The cell's verdict: the worst of its combinations; of what TileLang refuses nothing is said beside others."""
    return next((verdict for verdict in VERDICTS if cell[verdict]), None)


def letter(cell: Counter[str]) -> str:
    """A letter for the cell, a small one when only some of its combinations are so; a blank where none is done."""
    verdict = worst(cell)
    if verdict is None:
        return " "
    return LETTERS[verdict] if cell[verdict] == cell.total() - cell["refused"] else LETTERS[verdict].lower()


def legend(axes: Layout, used: Iterable[str]) -> list[str]:
    """What the maps show."""
    seen = [verdict for verdict in LETTERS if verdict in set(used)]
    sides = [f"{axes.down} down" if axes.down else "", f"{axes.across} across" if axes.across else ""]
    lines = [", ".join(side for side in sides if side)] + ["   ".join(f"{LETTERS[v]} {WORDS[v]}" for v in seen)]
    if axes.folded:
        lines.append(f"a cell is the worst of all {list_of(axes.folded)}; a small letter: only some of them are so")
    return [line for line in lines if line]


def pictures(found: list[Map], style: Style, most: int = 60) -> list[str]:
    """The maps of a group side by side, as many as fit in a line."""
    shown = [(each, _picture(each)) for each in found[:most]]
    width = max(_width(line) for _, picture in shown for line in picture)
    columns = shutil.get_terminal_size((80, 24)).columns if style.color else 80
    beside = max(1, (columns - 2 + GAP) // (width + GAP))
    lines: list[str] = []
    for group, members in groupby(shown, key=lambda each: each[0].group):
        lines += ["  " + style.paint(group, "bold")] if group else []
        pictures = [picture for _, picture in members]
        for at in range(0, len(pictures), beside):
            for together in zip(*pictures[at : at + beside], strict=True):
                cells = [
                    "".join(style.paint(*part) for part in line) + " " * (width - _width(line)) for line in together
                ]
                lines.append(("  " + (" " * GAP).join(cells)).rstrip())
            lines.append("")
    return [*lines[:-1], *([f"  ... and {len(found) - most} more maps"] if len(found) > most else [])]


def _picture(each: Map) -> list[Line]:
    """The title, the values across, and a line for each value down."""
    margin = max(map(len, each.down))
    lines: list[Line] = [[(each.title, "dim" if each.group else "bold")]] if each.title else []
    lines.append([(" ".join([" " * margin, *each.across]), "dim")])
    for i, head in enumerate(each.down):
        line: Line = [(head.rjust(margin), "dim")]
        for j, width in enumerate(map(len, each.across)):
            cell = each.cells.get((i, j), Counter())
            line.append((" " + letter(cell).rjust(width), _STYLES.get(worst(cell) or "", "dim")))
        lines.append(line)
    return lines


def _width(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _heads(sweep: Sweep, name: str | None) -> list[str]:
    """The values of an axis as a map writes them, or one blank."""
    texts = [said(name, value) for value in sweep.axes[name]] if name else [""]
    return [text if len(text) <= 16 else text[:13] + "..." for text in texts]
