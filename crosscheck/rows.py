"""Which query rows: flags per element of an output [batch, seq, heads, dim] as ranges of rows and as a small map."""

from __future__ import annotations

import numpy as np

from .text import count, list_of, plural

__all__ = ["nan_map", "per_head", "phrase", "ranges"]

# Glyphs of a map cell: nothing, something, everything in it is flagged.
UNICODE_CELLS = ("·", "▒", "█")
ASCII_CELLS = (".", "+", "#")


def ranges(flags: np.ndarray) -> list[tuple[int, int]]:
    """The runs of true in a row of flags, as (first, last), both inclusive."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], np.asarray(flags, bool), [False])).astype(np.int8)))
    return [(int(start), int(stop) - 1) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def phrase(flags: np.ndarray, noun: str = "row", limit: int = 6) -> str:
    """The flagged rows in words: "rows 0-63 and 128-191", "row 5", "all 128 rows", "no rows".

    Beyond `limit` runs the rest are counted, not printed.
    """
    flags = np.asarray(flags, bool)
    runs = ranges(flags)
    if not runs:
        return f"no {plural(noun)}"
    if flags.all() and flags.size > 1:
        return f"all {flags.size} {plural(noun)}"
    texts = [str(start) if start == stop else f"{start}-{stop}" for start, stop in runs]
    if len(texts) > limit:
        texts = [*texts[: limit - 1], f"{len(texts) - limit + 1} more ranges"]
    return f"{plural(noun, int(np.count_nonzero(flags)))} " + list_of(texts)


def per_head(flags: np.ndarray, limit: int = 12) -> list[str]:
    """One line per distinct set of flagged rows, saying which batches and heads have it.

    flags: [batch, seq, heads, dim]. Nothing flagged gives no line; a single batch and head is not named.
    """
    rows = np.asarray(np.any(flags, axis=3)).transpose(0, 2, 1)
    groups: dict[str, list[tuple[int, int]]] = {}
    for batch, head in np.argwhere(rows.any(axis=2)).tolist():
        groups.setdefault(phrase(rows[batch, head]), []).append((batch, head))
    lines = [_where(members, rows.shape[:2]) + text for text, members in groups.items()]
    return (
        lines
        if len(lines) <= limit
        else [*lines[: limit - 1], f"... and {len(lines) - limit + 1} more groups of heads"]
    )


def _where(members: list[tuple[int, int]], shape: tuple[int, ...]) -> str:
    """The prefix that names (batch, head) pairs, "" when there is only one in the whole output."""
    batches, heads = shape
    if batches * heads == 1:
        return ""
    if len(members) == batches * heads:
        return "every batch and head: " if batches > 1 else "every head: "
    parts: dict[str, list[int]] = {}
    for batch in range(batches):
        flags = np.array([(batch, head) in members for head in range(heads)])
        if flags.any():
            parts.setdefault(phrase(flags, "head", limit=4), []).append(batch)
    if batches == 1:
        return f"{next(iter(parts))}: "
    named = [f"{phrase(np.isin(np.arange(batches), group), 'batch')} {text}" for text, group in parts.items()]
    return "; ".join(named) + ": "


def nan_map(flags: np.ndarray, unicode: bool = True, width: int = 64, height: int = 16) -> str:
    """A small picture of the flagged elements of an output [batch, seq, heads, dim].

    One line per (batch, head) with the query rows from left to right. When there is a single head and some of its rows
    are flagged in part, query rows run downwards and columns of dim to the right. A cell is full when all of it is
    flagged and shaded when some of it is, so no flagged element is lost.
    """
    flags = np.asarray(flags, bool)
    cells = UNICODE_CELLS if unicode else ASCII_CELLS
    batches, _, heads, dim = flags.shape
    of_row = flags.sum(axis=3)
    if batches * heads == 1 and ((of_row > 0) & (of_row < dim)).any():
        return _by_column(flags[0, :, 0], cells, width, height)
    return _by_head(flags, cells, width, height)


def _by_head(flags: np.ndarray, cells: tuple[str, ...], width: int, height: int) -> str:
    batches, seq, heads, _ = flags.shape
    step = _step(seq, width)
    picture = [
        cells[0] + " none  " + cells[1] + " some  " + cells[2] + f" all NaN; one cell is {count(step, 'query row')}"
    ]
    names = [(f"batch {b} " if batches > 1 else "") + f"head {h}" for b in range(batches) for h in range(heads)]
    margin = max(len(name) for name in names)
    picture.append(" " * (margin + 2) + _ruler(seq, step))
    lines = flags.transpose(0, 2, 1, 3).reshape(batches * heads, seq, -1)
    for name, line in list(zip(names, lines, strict=True))[:height]:
        picture.append(f"{name:<{margin}}  " + _cells(line, step, cells))
    if len(names) > height:
        picture.append(f"... and {len(names) - height} more heads")
    return "\n".join(picture)


def _by_column(flags: np.ndarray, cells: tuple[str, ...], width: int, height: int) -> str:
    """The map of one head, flags [seq, dim]."""
    seq, dim = flags.shape
    down, across = _step(seq, height), _step(dim, width)
    size = f"{count(down, 'query row')} by {count(across, 'column')}"
    picture = [cells[0] + " none  " + cells[1] + " some  " + cells[2] + f" all NaN; one cell is {size}"]
    margin = max(len("row"), len(str(seq - 1)))
    picture.append(f"{'row':>{margin}}  " + _ruler(dim, across))
    for row in range(0, seq, down):
        picture.append(f"{row:>{margin}}  " + _cells(flags[row : row + down].T, across, cells))
    return "\n".join(picture)


def _step(size: int, cells: int) -> int:
    """The smallest power of two that covers `size` with at most `cells` cells."""
    step = 1
    while -(-size // step) > cells:
        step *= 2
    return step


def _cells(flags: np.ndarray, step: int, cells: tuple[str, ...]) -> str:
    """Glyphs of flags [positions, ...], `step` positions to a cell."""
    groups = (flags[start : start + step] for start in range(0, len(flags), step))
    return "".join(cells[2] if group.all() else cells[1] if group.any() else cells[0] for group in groups)


def _ruler(size: int, step: int, every: int = 16) -> str:
    """Positions written above a line of cells, one label per `every` cells."""
    return "".join(f"{position:<{every}}" for position in range(0, size, step * every)).rstrip()
