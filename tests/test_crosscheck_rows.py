"""Ranges of rows and the NaN map."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crosscheck.rows import ASCII_CELLS, nan_map, per_head, phrase, ranges


def flags(shape: tuple[int, ...] = (1, 256, 1, 128)) -> np.ndarray:
    return np.zeros(shape, bool)


def rows(*wanted: int, size: int = 10) -> np.ndarray:
    return np.isin(np.arange(size), wanted)


@given(st.lists(st.booleans(), max_size=40))
def test_ranges_are_the_runs(row: list[bool]) -> None:
    found = ranges(np.array(row, bool))
    assert [i for start, stop in found for i in range(start, stop + 1)] == [i for i, flag in enumerate(row) if flag]
    assert all(a[1] + 1 < b[0] for a, b in zip(found, found[1:], strict=False))


def test_phrase() -> None:
    seed = np.isin(np.arange(256) // 64, [0, 2])
    assert phrase(seed) == "rows 0-63 and 128-191"
    assert phrase(rows(5)) == "row 5"
    assert phrase(rows(5, 6)) == "rows 5-6"
    assert phrase(rows(1, 3, 5, 6)) == "rows 1, 3 and 5-6"
    assert phrase(rows()) == "no rows"
    assert phrase(rows(*range(10))) == "all 10 rows"
    assert phrase(rows(0, size=1)) == "row 0"
    assert phrase(np.arange(20) % 2 == 0) == "rows 0, 2, 4, 6, 8 and 5 more ranges"


def test_per_head_names_who_has_them() -> None:
    one = flags()
    one[0, :64, 0, 3] = True
    assert per_head(one) == ["rows 0-63"]
    assert per_head(flags()) == []
    many = flags((2, 8, 4, 2))
    many[:, 2:4] = True
    assert per_head(many) == ["every batch and head: rows 2-3"]
    many[1, 2:4, 0] = False
    many[1, 7, 0] = True
    assert per_head(many) == ["batch 0 all 4 heads; batch 1 heads 1-3: rows 2-3", "batch 1 head 0: row 7"]
    assert per_head(many[:1, :, :2]) == ["every head: rows 2-3"]
    many[0] = False
    assert per_head(many[1:, :, :2]) == ["head 0: row 7", "head 1: rows 2-3"]


def test_per_head_is_short() -> None:
    many = np.tri(20, 20, dtype=bool)[None, :, :, None]
    lines = per_head(many)
    assert len(lines) == 12 and lines[-1] == "... and 9 more groups of heads"


def test_map_of_whole_rows_has_a_line_per_head() -> None:
    seed = flags()
    seed[0, :64] = seed[0, 128:192] = True
    lines = nan_map(seed, unicode=False).splitlines()
    assert lines[0] == ". none  + some  # all NaN; one cell is 4 query rows"
    assert lines[1].split() == ["0", "64", "128", "192"]
    assert lines[2] == "head 0  " + ("#" * 16 + "." * 16) * 2
    assert "█" * 16 + "·" * 16 in nan_map(seed)


def test_map_of_a_column_shows_rows_by_columns() -> None:
    column = flags((1, 32, 1, 64))
    column[0, 8:, 0, 5] = True
    lines = nan_map(column, unicode=False).splitlines()
    assert lines[0] == ". none  + some  # all NaN; one cell is 2 query rows by 1 column"
    assert lines[2] == "  0  " + "." * 64
    assert lines[6] == "  8  " + "." * 5 + "#" + "." * 58


@given(st.data())
def test_map_loses_no_element_and_is_small(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*(st.integers(1, n) for n in (3, 300, 4, 200))))
    one = flags(shape)
    one[data.draw(st.tuples(*(st.integers(0, n - 1) for n in shape)))] = True
    lines = nan_map(one, unicode=False).splitlines()
    marked = sum(line.count("+") + line.count("#") for line in lines[2:])
    assert marked == 1
    assert len(lines) <= 19 and max(map(len, lines)) <= 80


def test_cells_are_exact() -> None:
    assert ASCII_CELLS == (".", "+", "#")
    part = flags((1, 130, 2, 4))
    part[0, :4, 0] = True
    part[0, 4, 0] = True
    line = nan_map(part, unicode=False).splitlines()[2]
    assert line == "head 0  #" + "+" + "." * 31
