"""Words that know where they come from: a word, the code of a set of births and a mark in one 64-bit carrier.

A carrier is a float64 array that is only moved and viewed, never computed with: its low 32 bits are the word, the high
ones the code of a set of births (0: none). Only words that are not finite have a code. The highest bit marks what a
mask put in the place of a score.
"""

from __future__ import annotations

import numpy as np

from .formats import Format

__all__ = ["CARRIER", "Origins", "code", "codes", "has_codes", "hidden", "hide", "is_hidden", "pack", "word"]

CARRIER = np.dtype(np.float64)
_HIDDEN = np.uint64(1 << 63)
_MOST = 16  # births that a set keeps, the first ones


def word(x: np.ndarray, fmt: Format) -> np.ndarray:
    """The words of a carrier."""
    return x.view(np.uint64).astype(fmt.word)


def has_codes(x: np.ndarray) -> bool:
    most = x.view(np.uint64).max(initial=0)
    return bool(most >> np.uint64(32)) and (
        most < _HIDDEN or bool((x.view(np.uint64) << np.uint64(1)).max() >> np.uint64(33))
    )


def code(x: np.ndarray) -> np.ndarray | None:
    """The codes of a carrier, int64; None when there is none."""
    return codes(x) if has_codes(x) else None


def codes(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint64) & ~_HIDDEN) >> np.uint64(32)).view(np.int64)


def hidden(x: np.ndarray) -> np.ndarray:
    """The same, marked: a mask put it there."""
    return (x.view(np.uint64) | _HIDDEN).view(CARRIER)


def is_hidden(x: np.ndarray) -> np.ndarray | None:
    """Which elements are marked; None when none is."""
    return x.view(np.uint64) >= _HIDDEN if x.size and x.view(np.uint64).max() >= _HIDDEN else None


def hide(result: np.ndarray, operand: np.ndarray) -> np.ndarray:
    """`result`, marked where the operand is."""
    marks = is_hidden(operand)
    return result if marks is None else np.where(marks, hidden(result), result)


def pack(words: np.ndarray, codes: np.ndarray | None = None) -> np.ndarray:
    carrier = words.astype(np.uint64)
    if codes is not None:
        carrier |= codes.view(np.uint64) << np.uint64(32)
    return carrier.view(CARRIER)


class Origins:
    """Sets of births, each a code: the births are numbered from 0 in the order in which they happen."""

    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = [()]
        self._codes: dict[tuple[int, ...], int] = {(): 0}
        self._joined: dict[int, int] = {}

    def born(self, first: int, count: int) -> int:
        """The code of the first of `count` new births; the others follow."""
        start = len(self.members)
        for n in range(first, first + count):
            self._codes[n,] = len(self.members)
            self.members.append((n,))
        return start

    def join(self, a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
        """The codes of the unions, elementwise with broadcasting."""
        if a is None or b is None:
            return b if a is None else a
        a, b = np.broadcast_arrays(a, b)
        joined = np.where(a == 0, b, a)
        both = (a != 0) & (b != 0) & (a != b)
        if both.any():
            pairs, place = np.unique(a[both] << 32 | b[both], return_inverse=True)
            joined[both] = np.array([self._pair(int(p)) for p in pairs])[place.reshape(-1)]
        return joined

    def _pair(self, pair: int) -> int:
        found = self._joined.get(pair)
        if found is None:
            union = {*self.members[pair >> 32], *self.members[pair & 0xFFFFFFFF]}
            members = tuple(sorted(union)[:_MOST])
            found = self._codes.setdefault(members, len(self.members))
            if found == len(self.members):
                self.members.append(members)
            self._joined[pair] = found
        return found

    def gather(self, codes: np.ndarray | None, axis: int) -> np.ndarray | None:
        """The codes of the unions along an axis."""
        if codes is None:
            return None
        codes = np.moveaxis(codes, axis, -1)
        rows = (codes != 0).any(axis=-1)
        if not rows.any():
            return None
        result = np.zeros(codes.shape[:-1], np.int64)
        some = codes[rows]  # [rows, n]: columns without any are left out
        some = some[:, (some != 0).any(axis=0)]
        while some.shape[1] > 1:
            half = some.shape[1] // 2
            joined = self.join(some[:, :half], some[:, half : 2 * half])
            assert joined is not None
            some = np.concatenate([joined, some[:, 2 * half :]], axis=1)
        result[rows] = some[:, 0]
        return result
