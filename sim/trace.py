"""What happened: where every NaN and infinity was born, how it was carried, and where one was swallowed.

`follow(run)` runs a kernel and gives a Trace. A value is *bad* when it is NaN or infinite, but for an infinity that the
kernel itself puts there (a mask, a fill) and the -inf that finite numbers leave of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Cause", "Place", "Trace", "follow"]


@dataclass(frozen=True)
class Place:
    """Where in a kernel: a tile operator's store to a buffer, its source line, and the turns of the loops around it.

    operator: copy, fill, gemm, reduce_max, parallel (a store in T.Parallel), ...; buffer: what it stored to
    file, line, text: the source line, "" and 0 where it is not known
    iteration: the turns of the serial loops around it, outermost first
    """

    operator: str
    buffer: str
    file: str = ""
    line: int = 0
    text: str = ""
    iteration: tuple[int, ...] = ()


@dataclass(eq=False)
class Cause:
    """Bad values born by one function in one statement, thread block and iteration; or damage done there.

    kind: inf_minus_inf, zero_times_inf, inf_over_inf, zero_over_zero, division_by_zero, overflow_exp2, overflow_add,
    overflow_mul, overflow_div, overflow_convert, domain, minus_inf_operand, uninitialised, out_of_bounds, input
    (damage: saturated_convert, saturated_sum, weights_flushed, rescaled_to_zero, masked_weight, rounded_up)
    function: the machine's function (mul_sub, exp2, div, dot, convert, ...)
    block: the thread block's number in the grid; None: memory that all of them share
    elements: int [count, rank], the elements of the tile (or loop) where it was born; extents: the tile's
    formats, operands: the operand words of the first element (as integers) and their format names
    word: the result's word there, of `format`
    carried: the places that it went through, each (Place, "NaN", "+inf" or "-inf"), in order
    reached: {output name: bool mask of the elements that it reaches}
    swallowed_by: for what was swallowed, the place and function where it ended
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
    reached: dict[str, np.ndarray] = field(default_factory=dict)
    swallowed_by: tuple[Place, str] | None = None

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


def follow(run: Callable[[Callable[..., Any]], Any]) -> Trace:
    """Run a kernel and say what happened. `run(machine)` must simulate it with that machine.

    follow(lambda machine: sim.simulate(kernel, q, k, v, machine=machine)), or flash_attention in the same way.
    """
    raise NotImplementedError
