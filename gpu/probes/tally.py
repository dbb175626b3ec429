"""Counts of compared and differing words, with the first differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Tally", "compare", "hexadecimal"]

FIRST = 8  # differences kept for each case in the report
SAVED = 64  # and in the file of differences


def hexadecimal(words: Any) -> Any:
    """Words as text: one, or nested lists of an array's."""
    array = np.asarray(words)
    if array.ndim:
        return [hexadecimal(x) for x in array]
    return f"0x{int(array):0{array.itemsize * 2}x}"


@dataclass
class Tally:
    """What one case came to. `claimed`: whether the simulator says that it gives these words.

    families: words compared and wrong for each family; differences: the first, with operands, the GPU's and sim's words
    """

    claimed: bool = True
    compared: int = 0
    wrong: int = 0
    families: dict[str, list[int]] = field(default_factory=dict)
    differences: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def merge(self, other: Tally) -> None:
        self.claimed = other.claimed
        self.compared += other.compared
        self.wrong += other.wrong
        for name, (compared, wrong) in other.families.items():
            total = self.families.setdefault(name, [0, 0])
            total[0] += compared
            total[1] += wrong
        self.differences = (self.differences + other.differences)[:SAVED]
        self.errors = list(dict.fromkeys(self.errors + other.errors))[:3]

    def summary(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"claimed": self.claimed, "compared": self.compared, "wrong": self.wrong}
        if self.wrong:
            shown["families"] = {k: v for k, v in self.families.items() if v[1]}
            shown["first"] = [{k: hexadecimal(v) if k != "family" else v for k, v in d.items()} for d in self._varied()]
        if self.errors:
            shown["errors"] = self.errors
        return shown

    def _varied(self) -> list[dict[str, Any]]:
        """The first differences, as many families as there are."""
        by_family: dict[str, list[dict[str, Any]]] = {}
        for difference in self.differences:
            by_family.setdefault(difference["family"], []).append(difference)
        ranked = sorted((rank, i) for i, v in enumerate(by_family.values()) for rank in range(len(v)))
        return [list(by_family.values())[i][rank] for rank, i in ranked[:FIRST]]


def compare(
    family: str,
    gpu: np.ndarray,
    sim: np.ndarray,
    operands: Callable[[int], dict[str, Any]],
    claimed: bool = True,
) -> Tally:
    """The tally of two arrays of words. operands(i) describes the inputs of flat element i."""
    wrong = np.flatnonzero((gpu != sim).ravel())
    kept = wrong[np.unique(np.linspace(0, len(wrong) - 1, 4).astype(int))] if len(wrong) else wrong
    found = [{"family": family, **operands(int(i)), "gpu": gpu.flat[i], "sim": sim.flat[i]} for i in kept]
    return Tally(claimed, gpu.size, len(wrong), {family: [gpu.size, len(wrong)]}, found)
