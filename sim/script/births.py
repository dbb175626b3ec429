"""The exact machine, which counts the NaN and infinities that are born in it and keeps the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arch import Arch
from ..births import fresh, kind_of
from ..formats import Format
from ..layout import Reduction
from ..tracer import Watcher

__all__ = ["Births"]


class Births(Watcher):
    """Runs as Exact does and goes on after a birth: a NaN or infinity made of operands that need not have led there.

    count: how many; first: of the first one the kind, the machine's function, the source line and the thread block
    """

    def __init__(self, arch: Arch, fast_math: bool):
        super().__init__(arch, fast_math)
        self.count = 0
        self.first = ""

    def _check(self, function: str, words: np.ndarray, fmt: Format, operands: Sequence[Any]) -> np.ndarray:
        born = None if function == "load" else fresh(words, fmt, operands)
        if born is not None:
            self.count += int(born.sum())
            self.first = self.first or self._told(function, born, words, fmt, operands)
        return words

    def _told(self, function: str, born: np.ndarray, words: np.ndarray, fmt: Format, operands: Sequence[Any]) -> str:
        at = tuple(int(i) for i in np.argwhere(born)[0])
        given = [(np.broadcast_to(x, born.shape)[at].reshape(1), f) for x, f in operands if x.ndim == born.ndim]
        known = len(given) == len(operands)
        kind = str(kind_of(function, (words[at].reshape(1), fmt), given)[0]) if known else function
        where = self._block.where.removeprefix("after ") if self._block is not None else ""
        return f"{kind} in {function}" + (f" ({where})" if where else "")

    def _damaged(self, function: str, found: Iterator[Any]) -> None:
        pass

    def convert(self, x: np.ndarray, src: Format, dst: Format) -> np.ndarray:
        return self._check("convert", self.exact.convert(x, src, dst), dst, [(x, src)])

    def select(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.exact.select(condition, a, b)

    def reduce(self, op: str, x: np.ndarray, order: Reduction | None, fmt: Format) -> np.ndarray:
        self._masks = False  # what a mask hides is no birth
        return super().reduce(op, x, order, fmt)
