"""Helpers of the tests of sim.trace: a machine that takes chosen births away, and what is bad in a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sim.formats import Format
from sim.trace import Cause, Trace, told
from sim.tracer import Tracer


def bad(trace: Trace) -> dict[str, np.ndarray]:
    """Which elements of each float output are NaN or infinite."""
    return {
        name: fmt.is_nan(words) | fmt.is_inf(words)
        for name, (words, fmt) in trace.outputs.items()
        if isinstance(fmt, Format)
    }


def reached(trace: Trace, name: str) -> np.ndarray:
    """Which elements of an output some cause reaches."""
    words, _ = trace.outputs[name]
    masks = [cause.reached[name] for cause in trace.causes if name in cause.reached]
    return np.any(masks, axis=0) if masks else np.zeros(words.shape, bool)


def follow_with(machine: type[Tracer], run: Callable[[Callable[..., Any]], Any]) -> Trace:
    """`follow` with a machine of one's own."""
    made: list[Tracer] = []

    def make(*arguments: Any) -> Tracer:
        made.append(machine(*arguments))
        return made[-1]

    return told(run(make), made[-1])


def without(causes: Iterable[Cause]) -> Callable[..., Tracer]:
    """A machine that puts 1 in the place of what was born in `causes`, and follows the rest."""
    at: dict[tuple[int, int], list[Cause]] = {}
    given: dict[str, list[Cause]] = {}
    for cause in causes:
        if cause.kind == "input":
            given.setdefault(cause.place.buffer, []).append(cause)
        else:
            at.setdefault(cause.call, []).append(cause)

    class Patched(Tracer):
        def _packed(self, function: str, words: np.ndarray, fmt: Format, operands: Sequence[Any], codes: Any) -> Any:
            chosen = at.get((self.stores, self.calls + 1), ())
            if chosen:
                words = words.copy()
            for cause in chosen:
                lane = 0 if cause.block is None else int(np.flatnonzero(self._block.running() == cause.block)[0])
                words[(lane, *cause.elements.T)] = self.exact.constant(1.0, fmt)
            return super()._packed(function, words, fmt, operands, codes)

        def loaded(self, tensor: Any, places: np.ndarray, words: np.ndarray) -> np.ndarray:
            for cause in given.get(tensor.name, ()):
                flat = np.ravel_multi_index(tuple(cause.elements.T), cause.extents)
                one = self.exact.constant(1.0, tensor.fmt)
                words = np.where(np.isin(places, flat), one, words)
            return super().loaded(tensor, places, words)

    return Patched


__all__ = ["bad", "follow_with", "reached", "without"]
