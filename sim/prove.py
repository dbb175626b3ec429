"""Can any input within bounds make a kernel's output NaN or infinite? The same kernel, run on intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arch import Arch
from .intervals import Bounds, Intervals, Open
from .report import Undetermined
from .tracer import Place

__all__ = ["Bounds", "Proof", "prove"]


@dataclass
class Proof:
    """What is proved of all inputs within the bounds.

    proved: no NaN and no infinity can reach an output
    certain: {output: mask} of the elements that are NaN or infinite for every input
    possible: {output: mask} of the elements that could not be bounded
    stuck: where a bad value first becomes possible: the functions and their places; what stopped the proof: `reason`
    """

    proved: bool
    certain: dict[str, np.ndarray] = field(default_factory=dict)
    possible: dict[str, np.ndarray] = field(default_factory=dict)
    stuck: list[tuple[str, Place]] = field(default_factory=list)
    reason: str = ""


def prove(run: Callable[[Callable[..., Any]], Any], bounds: Bounds) -> Proof:
    """Bound every output of a kernel for all inputs within `bounds`. `run(machine)` must simulate it with that machine.

    prove(lambda machine: sim.flash_attention(q, k, v, schedule, machine=machine), Bounds({"Q": 4, "K": 4, "V": 1})):
    of tensors that have a bound only the shapes count. Never proved when in doubt: what the machine cannot bound ends
    the proof, and the reason says what it was.
    """
    made: list[Intervals] = []

    def machine(arch: Arch, fast_math: bool) -> Intervals:
        made.append(Intervals(arch, fast_math, bounds))
        return made[-1]

    try:
        result = run(machine)
    except (Open, Undetermined) as stop:
        return Proof(False, stuck=made[-1].births[:1], reason=str(stop))
    return _judged(result, made[-1])


def _judged(result: Any, machine: Intervals) -> Proof:
    names = getattr(result, "names", None)
    proof = Proof(True)
    for tensor, held in machine.memories.values():
        if names is not None and tensor.name not in names:
            continue
        lo, hi, nan = held["lo"].min(axis=-1), held["hi"].max(axis=-1), held["nan"].any(axis=-1)
        possible = nan | (hi == np.inf) | (lo == -np.inf)
        certain = possible & ((lo > hi) | (lo == hi) & np.isinf(lo))
        for found, mask in ((proof.possible, possible), (proof.certain, certain)):
            if mask.any():
                found[tensor.name] = mask.reshape(tensor.shape)
    unknown = [m for m in getattr(result, "undetermined", ()) if m is not None]
    proof.proved = not proof.possible and not unknown
    if unknown:
        proof.reason = "words that cannot be known: " + ", ".join(map(str, result.events))
    if not proof.proved:
        proof.stuck = machine.births
    return proof
