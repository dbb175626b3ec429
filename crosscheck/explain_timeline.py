"""The timeline of one element of an output: every store of its thread block, in the element's row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.trace import Cause, Trace
from sim.trace_steps import Maker, Step, made, steps

from .explain_causes import Story, Subject
from .flags import UsageError
from .text import json_number, list_of

__all__ = ["Timeline", "before", "chosen", "first_bad", "timeline"]

Element = tuple[str, tuple[int, ...]]  # an output's name and an index


@dataclass(frozen=True)
class Timeline:
    """An element of an output, the thread block that made it, and its stores."""

    subject: Subject
    output: str
    index: tuple[int, ...]
    maker: Maker
    steps: list[Step]

    @property
    def name(self) -> str:
        return f"{self.output}{list(self.index)}"

    @property
    def where(self) -> str:
        flash = self.subject.flash
        block = f"thread block {self.maker.block}" + (f" ({flash.name(self.maker.block)})" if flash else "")
        launch = f" of launch {self.maker.launch} of {self.maker.launches}" if self.maker.launches > 1 else ""
        row = f", row {self.maker.element[0]} of its tiles" if len(self.maker.element) > 1 else ""
        return f"{block}{launch}{row}: after each store its value and word"

    def turn_name(self, turn: tuple[int, ...]) -> str:
        """The turns of the loops that a part of the timeline is in."""
        flash = self.subject.flash
        if not turn:
            return "outside of the key loop" if flash else "outside of loops"
        if not flash:
            return f"iteration {', '.join(map(str, turn))}"
        first, last = flash.keys(turn[0])
        return f"key block {turn[0]}, keys {first}-{last}"

    def shown(self) -> list[Step]:
        """The steps worth reading: what was loaded in a loop only where it is bad."""
        return [s for s in self.steps if not s.loaded or s.bad or not (s.place.iteration or self.subject.flash)]

    def to_json(self) -> dict[str, Any]:
        """The timeline as JSON types."""
        found = {"output": self.output, "at": list(self.index), "block": self.maker.block}
        return found | {"row": self.maker.element[0] if self.maker.element else None,
                        "steps": [_to_json(s) for s in self.steps]}  # fmt: skip


def _to_json(step: Step) -> dict[str, Any]:
    digits = [s.fmt.bits // 4 + 2 for s in step.shown]
    values = [{"what": s.what, "value": json_number(s.value), "word": f"{s.word:#0{d}x}"}
              for s, d in zip(step.shown, digits, strict=True)]  # fmt: skip
    about = {"operator": step.place.operator, "buffer": step.place.buffer, "line": step.place.line or None}
    return about | {"iteration": list(step.place.iteration), "whole": step.whole, "values": values}


def chosen(text: str, trace: Trace) -> Element:
    """The element that --at names: 0,5,0,7 of the last output, or NAME:0,5,0,7. Raises UsageError."""
    if not trace.outputs:
        raise UsageError("--at must name an element of an output, and nothing was stored to one")
    name, colon, numbers = text.rpartition(":")
    name = name if colon else list(trace.outputs)[-1]
    if name not in trace.outputs:
        raise UsageError(f"--at must name an output, {list_of(list(trace.outputs), 'or')}, not {name!r}")
    shape, parts = trace.outputs[name][0].shape, numbers.split(",")
    index = tuple(int(p) for p in parts if p.strip().isascii() and p.strip().isdigit())
    if len(index) != len(parts) or len(index) != len(shape) or any(i >= n for i, n in zip(index, shape, strict=True)):
        raise UsageError(f"--at must be {len(shape)} numbers, an index of {name} {list(shape)}, not {numbers!r}")
    return name, index


def first_bad(story: Story) -> Element | None:
    """The first element of the last bad output; None where all are good."""
    for name, mask in reversed(list(story.bad.items())):
        return name, tuple(int(i) for i in np.argwhere(mask)[0])
    return None


def before(subject: Subject, cause: Cause) -> list[Step]:
    """What the buffers that a cause's statement names held before it, in the row of the cause's first element."""
    if cause.block is None or not cause.extents or not cause.function:
        return []
    names = _read(cause.place.text)
    maker = Maker(cause.block, 0, subject.launches, tuple(cause.elements[0].tolist()), cause.extents)
    held: dict[str, Step] = {}
    for step in _steps(subject, maker):
        if step.place == cause.place:
            return [held[name] for name in names if name in held and not held[name].loaded]
        held[step.place.buffer] = step
    return []


def _read(text: str) -> list[str]:
    """The names that a statement reads."""
    target, equals, expression = text.partition("=")
    text = expression if equals and target[-1:] not in "+-*/" else text
    return list(dict.fromkeys(re.findall(r"\w+", text)))


def timeline(subject: Subject, trace: Trace, element: Element) -> Timeline | None:
    """The timeline of an element; None where no thread block, or more than one, made it."""
    output, index = element
    if subject.flash is not None:
        flash = subject.flash
        maker = made(lambda m: flash.run(m, [flash.block_of(index)]), output, index, trace.outputs[output][0].shape)
    else:
        maker = made(subject.run, output, index, trace.outputs[output][0].shape)
    if maker is None:
        return None
    return Timeline(subject, output, index, maker, _steps(subject, maker))


def _steps(subject: Subject, maker: Maker) -> list[Step]:
    """The stores of a thread block; a second launch reads what other thread blocks of the first one stored."""
    if maker.launches > 1:
        return steps(subject.run, maker)
    return steps(lambda machine: subject.alone(machine, maker.block), maker)
