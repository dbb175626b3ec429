"""What is known of the flash loop beside its trace: which rows and keys a thread block has, and what changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import sim
from sim.flash import Schedule, loop_range
from sim.formats import Format, format_named, values
from sim.trace import Cause, follow

from .text import list_of

__all__ = ["Change", "Flash"]

Words = tuple[np.ndarray, Format]


@dataclass(frozen=True)
class Change:
    """Another schedule, tried on one thread block: what is different, and the kinds of the causes that are left."""

    what: str
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The change as JSON types."""
        return {"change": self.what, "clean": not self.left, "left": list(self.left)}


@dataclass(frozen=True)
class Flash:
    """A run of the flash loop: schedule, architecture, q [batch, seq, heads, dim], k and v."""

    schedule: Schedule
    arch: str
    q: Words
    k: Words
    v: Words

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q[0].shape

    def run(self, machine: Callable[..., Any], blocks: list[tuple[int, int, int]] | None = None) -> Any:
        return sim.flash_attention(
            self.q, self.k, self.v, self.schedule, arch=self.arch, blocks=blocks, machine=machine
        )

    def place(self, block: int) -> tuple[int, int, int]:
        """(bx, head, batch) of a thread block's number."""
        batches, _, heads, _ = self.shape
        return block // (batches * heads), block // batches % heads, block % batches

    def block_of(self, index: Sequence[int]) -> tuple[int, int, int]:
        """(bx, head, batch) of the thread block that makes an element of the output."""
        return index[1] // self.schedule.block_M, index[2], index[0]

    def rows(self, block: int) -> tuple[int, int]:
        """The first and the last query row of a thread block."""
        first = self.place(block)[0] * self.schedule.block_M
        return first, min(first + self.schedule.block_M, self.shape[1]) - 1

    def turns(self, bx: int) -> int:
        """How many key blocks it visits."""
        seq_kv = self.k[0].shape[1]
        return int(loop_range(self.schedule, np.asarray(bx), seq_kv, seq_kv - self.shape[1]))

    def keys(self, turn: int) -> tuple[int, int]:
        """The first and the last key of a key block."""
        first = turn * self.schedule.block_N
        return first, min(first + self.schedule.block_N, self.k[0].shape[1]) - 1

    def name(self, block: int) -> str:
        """A thread block by what it computes."""
        (first, last), (_, head, batch) = self.rows(block), self.place(block)
        batches, _, heads, _ = self.shape
        parts = [f"query rows {first}-{last}"]
        parts += [f"head {head}"] if heads > 1 else []
        return ", ".join(parts + ([f"batch {batch}"] if batches > 1 else []))

    def in_last(self, cause: Cause) -> bool:
        """Whether it is in the last of several key blocks."""
        if cause.block is None or not cause.place.iteration:
            return False
        turns = self.turns(self.place(cause.block)[0])
        return turns > 1 and cause.place.iteration[0] == turns - 1

    def masked(self, cause: Cause) -> bool:
        """Whether the causal mask hides the whole key block from every row of a cause."""
        if not self.schedule.causal or cause.block is None or not cause.place.iteration or not cause.elements.size:
            return False
        row = int(cause.elements[:, 0].max()) + self.place(cause.block)[0] * self.schedule.block_M
        return self.k[0].shape[1] - self.shape[1] + row < cause.place.iteration[0] * self.schedule.block_N

    @property
    def forgets(self) -> bool:
        """Whether scores_max is the maximum of one key block alone."""
        s = self.schedule
        return not s.merge_max and (s.refill_max or s.clear_max)

    def why(self, causes: Sequence[Cause]) -> str:
        """The reason that schedule and words show for causes of one place; "" where they show none."""
        if all(self.masked(c) for c in causes):
            hidden = "the causal mask hides the whole key block from these rows: all their scores are -inf"
            return f"{hidden}, and so is scores_max" + (", which forgets older key blocks" if self.forgets else "")
        first = causes[0]
        if first.kind == "overflow_exp2" and first.place.buffer == "scores_scale":
            fall = float(values(np.asarray(first.operands[0], np.uint32), format_named(first.formats[0])))
            falls = ", which forgets older key blocks, falls" if self.forgets else " falls"
            return f"scores_max{falls} below the one before: exp2({fall:.6g}) is more than float32 holds"
        return ""

    def changes(self, cause: Cause) -> Iterator[Change]:
        """Other schedules for the thread block of a cause, each one simulated."""
        if cause.block is None:
            return
        bx, head, batch = self.place(cause.block)
        for what, flash in self._others():
            own = (batch, bx * self.schedule.block_M, head)
            first, last = self.rows(cause.block)
            rows = range(first, last + 1, min(flash.schedule.block_M, self.schedule.block_M))
            blocks = sorted({flash.block_of((own[0], row, own[2])) for row in rows})
            trace = follow(lambda machine, flash=flash, blocks=blocks: flash.run(machine, blocks))  # type: ignore[misc]
            yield Change(what, tuple(dict.fromkeys(c.kind for c in trace.causes)))

    def _others(self) -> Iterator[tuple[str, Flash]]:
        s = self.schedule
        if self.forgets:
            text = (
                "keep the running maximum: scores_max[i] = T.max(scores_max[i], scores_max_prev[i]) after T.reduce_max"
            )
            yield text, replace(self, schedule=replace(s, merge_max=True))
        if s.causal and s.block_M > s.block_N:
            text = f"square blocks, {s.block_N}x{s.block_N}: then no key block is hidden from a whole row"
            yield text, replace(self, schedule=replace(s, block_M=s.block_N))
        if not s.causal:
            (k, fmt), (v, _) = self.k, self.v
            order = self._reversed()
            yield "the key blocks in the other order", replace(self, k=(k[:, order], fmt), v=(v[:, order], fmt))
        if s.fast_math:
            yield "precise math (--no-fast-math)", replace(self, schedule=replace(s, fast_math=False))

    def _reversed(self) -> np.ndarray:
        """The keys with the last block first, and the same order in each block."""
        size, count = self.schedule.block_N, self.k[0].shape[1]
        starts = range(0, count, size)
        return np.concatenate([np.arange(first, min(first + size, count)) for first in reversed(starts)])

    def turns_text(self, causes: Sequence[Cause]) -> str:
        """The key blocks of causes in words."""
        turns = sorted({c.place.iteration[0] for c in causes if c.place.iteration})
        if not turns:
            return "after the key loop"
        if all(self.in_last(c) for c in causes):
            return "the last key block of each" if len(turns) > 1 else f"key block {turns[0]}, the last one"
        names = [str(turn) for turn in turns]
        some = [*names[:5], f"{len(names) - 5} more"] if len(names) > 6 else names
        return f"key block{'s' if len(names) > 1 else ''} {list_of(some)}"
