"""What happened: where every NaN and infinity was born, how it was carried, and where one was swallowed.

`follow(run)` runs a kernel and gives a Trace. A value is *bad* when it is NaN or infinite, but for an infinity that the
kernel itself puts there (a mask, a fill) and the -inf that finite numbers leave of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .tracer import Bad, Event, Place, Tracer, Watcher

__all__ = ["Cause", "Place", "Trace", "follow", "told"]


@dataclass(eq=False)
class Cause:
    """Bad values born by one function in one statement, thread block and iteration; or damage done there.

    kind: inf_minus_inf, zero_times_inf, inf_over_inf, zero_over_zero, division_by_zero, overflow_exp2, overflow_add,
    overflow_mul, overflow_div, overflow_convert, domain, minus_inf_operand, uninitialised, out_of_bounds, race, input
    (damage: saturated_convert, saturated_sum, weights_flushed, rescaled_to_zero)
    function: the machine's function (mul_sub, exp2, div, dot, convert, ...)
    block: the thread block's number in the grid; None: memory or a tile that all of them share
    elements: int [count, rank], the elements of the tile (or loop) where it was born; extents: the tile's
    operands, formats: the operand words of the first element (as integers) and the names of their formats
    word: the result's word there, of `format`
    carried: the places that it went through, each (Place, "NaN", "+inf" or "-inf"), in order
    reached: {output name: bool mask of the elements that it reaches}; of more than 16 births the first ones count
    call: how many stores came before it, and how many results since the last one: the same in each run of a kernel
    swallowed_by: for what was swallowed, the place and the function where it first was; function "": never stored to
    an output
    """

    kind: str
    function: str
    place: Place
    block: int | None
    elements: np.ndarray
    extents: tuple[int, ...]
    operands: tuple[int, ...]
    formats: tuple[str, ...]
    word: int
    format: str
    carried: list[tuple[Place, str]] = field(default_factory=list)
    reached: Mapping[str, np.ndarray] = field(default_factory=dict)
    swallowed_by: tuple[Place, str] | None = None
    call: tuple[int, int] = (0, 0)

    @property
    def count(self) -> int:
        return len(self.elements)


@dataclass
class Trace:
    """What is known of one run.

    result: what `run` returned
    outputs: {name: (words, Format)} of what the kernel stored to global memory
    causes: what reaches an output, first born first; swallowed: what does not; damage: harm without NaN or infinity
    """

    result: Any
    outputs: dict[str, tuple[np.ndarray, Any]]
    causes: list[Cause]
    swallowed: list[Cause]
    damage: list[Cause]

    def of(self, output: str, index: tuple[int, ...]) -> list[Cause]:
        """The causes that reach one element of an output, first born first."""
        return [c for c in self.causes if output in c.reached and c.reached[output][index]]


class _Reached(Mapping[str, np.ndarray]):
    """Masks of the elements that a cause reaches, made when they are asked for."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[tuple[int, ...], list[np.ndarray]]] = {}

    def add(self, name: str, shape: tuple[int, ...], places: np.ndarray) -> None:
        self.places.setdefault(name, (shape, []))[1].append(places)

    def __getitem__(self, name: str) -> np.ndarray:
        shape, places = self.places[name]
        mask = np.zeros(int(np.prod(shape)), bool)
        mask[np.concatenate(places)] = True
        return mask.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def follow(run: Callable[[Callable[..., Any]], Any]) -> Trace:
    """Run a kernel and say what happened. `run(machine)` must simulate it with that machine.

    follow(lambda machine: sim.simulate(kernel, q, k, v, machine=machine)), or flash_attention in the same way. A kernel
    that makes something bad is run twice.
    """
    made: list[Any] = []

    def watcher(*arguments: Any) -> Watcher:
        made.append(Watcher(*arguments))
        return made[-1]

    def tracer(*arguments: Any) -> Tracer:
        made.append(Tracer(*arguments))
        return made[-1]

    try:
        result = run(watcher)
    except Bad:
        result = run(tracer)
    return told(result, made[-1])


def told(result: Any, machine: Watcher | Tracer) -> Trace:
    """The trace of a run that is over: what it returned, and its machine."""
    names = getattr(result, "names", None)
    tensors = [t for t in machine.tensors.values() if names is None or t.name in names]
    outputs = {t.name: (t.words, t.fmt) for t in tensors}
    reached = _reached(machine, tensors) if isinstance(machine, Tracer) else {}
    causes, swallowed = _unknown(result), []
    for number, event in enumerate(machine.events):
        if number in reached:
            causes.append(_cause(event, reached[number]))
        elif event.dropped or event.carried:
            swallowed.append(_cause(event, {}, event.dropped or (event.carried[-1][0], "")))
    for found in (causes, swallowed):
        found.sort(key=lambda cause: (cause.call, -1 if cause.block is None else cause.block))
    return Trace(result, outputs, causes, swallowed, [_cause(e, {}) for e in machine.damage])


def _cause(event: Event, reached: Mapping[str, np.ndarray], by: tuple[Place, str] | None = None) -> Cause:
    return Cause(
        event.kind, event.function, event.place, event.block, event.elements, event.extents, event.operands,
        event.formats, event.word, event.format, event.carried, reached, by,
        event.call,
    )  # fmt: skip


def _reached(machine: Tracer, tensors: list[Any]) -> dict[int, _Reached]:
    """For each event that reaches an output, by its number, where."""
    found: dict[int, _Reached] = {}
    for tensor in tensors:
        shadow = machine.shadows.get((id(tensor.memory), getattr(tensor.fmt, "bits", 0)))
        if shadow is None or not (shadow > 0).any():
            continue
        places = np.flatnonzero(shadow > 0)
        order = np.argsort(shadow[places], kind="stable")
        places = places[order]
        codes, first = np.unique(shadow[places], return_index=True)
        for code, own in zip(codes, np.split(places, first[1:]), strict=True):
            for event in machine.numbers(np.array([code])):
                found.setdefault(event, _Reached()).add(tensor.name, tensor.shape, own)
    return found


def _unknown(result: Any) -> list[Cause]:
    """What a result that cannot be known rests on, from its reports."""
    masks = {n: m for n, m in zip(getattr(result, "names", ()), getattr(result, "undetermined", ()), strict=False)
             if m is not None}  # fmt: skip
    causes = []
    for event in getattr(result, "events", ()) if masks else ():
        file, _, line = event.where.removeprefix("after ").rpartition(":")
        place = Place(event.operator, event.buffer, file, int(line or 0))
        at = np.array([event.index], int).reshape(1, -1)
        causes.append(Cause(event.kind, "", place, event.block, at, (), (), (), 0, "", reached=masks))
    return causes
