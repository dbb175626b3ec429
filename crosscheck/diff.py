"""The difference of two results, by words: every element falls in exactly one class.

Two results are the same when every word is; a NaN equals a NaN with the same bits and nothing else, and -0 is not +0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.formats import DType, Format, Integer, to_words, values

from .text import count, json_number, wrapped

__all__ = ["KINDS", "Diff", "Difference", "assert_same_words", "diff", "ordinals"]

# The classes of an element, in the order they are reported: key -> what people read.
KINDS = {
    "same": "same word",
    "value": "value",
    "sign_of_zero": "sign of zero",
    "nan": "NaN against number",
    "nan_payload": "NaN payload",
    "infinity": "infinity",
}
_CODES = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Difference:
    """One element whose words differ; `ulp` is its distance when both are finite floats, else None."""

    index: tuple[int, ...]
    kind: str
    actual_word: int
    expected_word: int
    actual: float | int
    expected: float | int
    ulp: int | None

    def to_json(self) -> dict[str, Any]:
        """The record with the words in hex; a value that JSON lacks (nan, inf) is a string."""
        return {
            "index": list(self.index),
            "kind": self.kind,
            "actual_word": hex(self.actual_word),
            "expected_word": hex(self.expected_word),
            "actual": json_number(self.actual),
            "expected": json_number(self.expected),
            "ulp": self.ulp,
        }


@dataclass(frozen=True)
class Diff:
    """What `diff` found.

    counts:   elements per class of KINDS; they sum to `size`
    ulp:      elements of class "value" per ULP distance, keyed "1", "2", "3-4", "5-8", ...; only nonempty buckets
    max_ulp:  the largest such distance, 0 if none
    first:    index of the first element whose words differ, None if none
    listed:   the first few differences in index order
    """

    shape: tuple[int, ...]
    format: DType
    counts: dict[str, int]
    ulp: dict[str, int]
    max_ulp: int
    first: tuple[int, ...] | None
    listed: tuple[Difference, ...]

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    @property
    def different(self) -> int:
        """The number of elements whose words differ."""
        return self.size - self.counts["same"]

    @property
    def same(self) -> bool:
        return self.different == 0

    def to_json(self) -> dict[str, Any]:
        """The whole record as JSON types."""
        return {
            "same": self.same,
            "size": self.size,
            "different": self.different,
            "shape": list(self.shape),
            "format": self.format.name,
            "counts": self.counts,
            "ulp": self.ulp,
            "max_ulp": self.max_ulp,
            "first": None if self.first is None else list(self.first),
            "listed": [d.to_json() for d in self.listed],
        }

    def __str__(self) -> str:
        return self.message()

    def message(self, name: str = "result", actual: str = "actual", expected: str = "expected") -> str:
        """The readable message; `name` is what was compared, `actual` and `expected` name the two sides."""
        words, of = count(self.size, "word"), f"{self.format.name} {list(self.shape)}"
        if self.same:
            return f"{name}: same, {words} ({of})"
        lines = [f"{name}: {self.different} of {words} {'differs' if self.different == 1 else 'differ'}"]
        for kind, title in KINDS.items():
            if kind != "same" and self.counts[kind]:
                lines.append(f"  {title:<20}{self.counts[kind]:>10}")
                lines += self._histogram() if kind == "value" else []
        assert self.first is not None
        lines.append(f"  first at {list(self.first)} of {of}")
        return "\n".join(lines + self._table(actual, expected))

    def _histogram(self) -> list[str]:
        """Elements per ULP distance, as lines of at most 80 columns."""
        if not self.ulp:  # integers
            return []
        cells = ", ".join(f"{bucket}:\xa0{number}" for bucket, number in self.ulp.items())
        return [line.replace("\xa0", " ") for line in wrapped(f"per ULP distance: {cells}", "    ")]

    def _table(self, actual: str, expected: str) -> list[str]:
        """The short list, its columns aligned."""
        rows = [("index", actual, "", expected, "", "")]
        digits, precision = self.format.bits // 4, 9 if self.format.bits == 32 else 6
        for d in self.listed:
            words = [f"{word:#0{digits + 2}x}" for word in (d.actual_word, d.expected_word)]
            numbers = [_shown(value, precision) for value in (d.actual, d.expected)]
            note = KINDS[d.kind] if d.ulp is None else f"{d.ulp} ULP"
            note = "" if isinstance(self.format, Integer) else note
            rows.append((str(list(d.index)), words[0], numbers[0], words[1], numbers[1], note))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        rest = self.different - len(self.listed)
        return lines + ([f"  ... and {rest} more"] if rest else [])


def diff(actual: Any, expected: Any, first: int = 8) -> Diff:
    """The difference of two results of the same shape and format.

    actual, expected: a NumPy, ml_dtypes or torch array of floats, or a pair (words, Format or Integer).
    first:            how many differences to list.
    Raises ValueError when shapes or formats differ, TypeError when an operand is neither.
    """
    a, fmt = _words(actual, "actual")
    b, other = _words(expected, "expected")
    if fmt != other:
        raise ValueError(f"actual and expected must have the same format, not {fmt.name} and {other.name}")
    if a.shape != b.shape:
        raise ValueError(f"actual and expected must have the same shape, not {list(a.shape)} and {list(b.shape)}")
    where = np.flatnonzero(a != b)
    left, right = a.reshape(-1)[where], b.reshape(-1)[where]
    codes, distance = _classify(left, right, fmt), _distance(left, right, fmt)
    counts = np.bincount(codes, minlength=len(KINDS)).tolist()
    counts[_CODES["same"]] = a.size - where.size
    of_value = distance[codes == _CODES["value"]] if not isinstance(fmt, Integer) else distance[:0]
    listed = _listed(where, left, right, codes, distance, a.shape, fmt, first)
    start = tuple(int(i) for i in np.unravel_index(where[0], a.shape)) if where.size else None
    largest = int(of_value.max(initial=0))
    return Diff(a.shape, fmt, dict(zip(KINDS, counts, strict=True)), _buckets(of_value), largest, start, listed)


def _words(array: Any, name: str) -> tuple[np.ndarray, DType]:
    """Words and dtype of an operand."""
    if isinstance(array, tuple) and len(array) == 2 and isinstance(array[1], Integer):
        return np.ascontiguousarray(array[0]).view(array[1].word), array[1]
    return to_words(array, name)


def assert_same_words(actual: Any, expected: Any, name: str = "result") -> None:
    """Raise AssertionError with the readable message unless every word is the same; operands as in `diff`."""
    found = diff(actual, expected)
    if not found.same:
        raise AssertionError(found.message(name))


def _shown(value: float | int, precision: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{precision}g}"


def ordinals(words: np.ndarray, fmt: Format) -> np.ndarray:
    """Where each word stands among the format's values, int64: neighbours differ by 1, -0 and +0 are both 0."""
    magnitude = (words & fmt.word.type(fmt.sign - 1)).astype(np.int64)
    return np.where(words & fmt.word.type(fmt.sign), -magnitude, magnitude)


def _distance(left: np.ndarray, right: np.ndarray, fmt: DType) -> np.ndarray:
    """How many values lie between the two words; 0 for integers, whose difference is no rounding."""
    if isinstance(fmt, Integer):
        return np.zeros(left.shape, np.int64)
    return np.abs(ordinals(left, fmt) - ordinals(right, fmt))


def _classify(left: np.ndarray, right: np.ndarray, fmt: DType) -> np.ndarray:
    """The class code of each pair of differing words."""
    if isinstance(fmt, Integer):
        return np.full(left.shape, _CODES["value"])
    nans = fmt.is_nan(left).astype(np.int8) + fmt.is_nan(right)
    infinite = fmt.is_inf(left) | fmt.is_inf(right)
    zeros = (ordinals(left, fmt) == 0) & (ordinals(right, fmt) == 0)
    conditions = [nans == 2, nans == 1, infinite, zeros]
    choices = [_CODES[kind] for kind in ("nan_payload", "nan", "infinity", "sign_of_zero")]
    return np.select(conditions, choices, _CODES["value"])


def _buckets(distance: np.ndarray) -> dict[str, int]:
    """How many distances fall in 1, 2, 3-4, 5-8, ..."""
    ends = 1 << np.arange(34, dtype=np.int64)
    counts = np.bincount(np.searchsorted(ends, distance), minlength=ends.size).tolist()
    labels = ["1", "2"] + [f"{end // 2 + 1}-{end}" for end in ends[2:].tolist()]
    return {label: number for label, number in zip(labels, counts, strict=True) if number}


def _listed(
    where: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    codes: np.ndarray,
    distance: np.ndarray,
    shape: tuple[int, ...],
    fmt: DType,
    first: int,
) -> tuple[Difference, ...]:
    """The first few differences as records."""
    kinds, listed, integer = list(KINDS), [], isinstance(fmt, Integer)
    actual, expected = (_values(words[:first], fmt) for words in (left, right))
    for i in range(min(first, where.size)):
        kind = kinds[codes[i]]
        ulp = int(distance[i]) if kind in ("value", "sign_of_zero") and not integer else None
        index = tuple(int(n) for n in np.unravel_index(where[i], shape))
        listed.append(Difference(index, kind, int(left[i]), int(right[i]), actual[i], expected[i], ulp))
    return tuple(listed)


def _values(words: np.ndarray, fmt: DType) -> list[Any]:
    """The numbers that words are."""
    if isinstance(fmt, Integer):
        return list(words.view(fmt.value_type).tolist())
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return list(values(words, fmt).tolist())
