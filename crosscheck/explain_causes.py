"""Causes in few words: those of one place together, the rows that they reach, and the sentence that sums them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sim.formats import DType, Format, Integer, dtype_named, values
from sim.trace import Cause, Place, Trace
from sim.trace_steps import Step, launches

from .explain_flash import Change, Flash
from .result import DIFFERS, SAME, UNDETERMINED
from .rows import per_head, phrase, ranges
from .text import count, list_of

__all__ = ["KINDS", "Group", "Story", "Subject", "formula", "hexed", "number"]

Run = Callable[[Callable[..., Any]], Any]

KINDS = {
    "inf_minus_inf": "an infinity minus an infinity",
    "zero_times_inf": "zero times an infinity",
    "inf_over_inf": "an infinity over an infinity",
    "zero_over_zero": "zero over zero",
    "division_by_zero": "a division by zero",
    "overflow_exp2": "an overflow of exp2",
    "overflow_add": "an overflow of a sum",
    "overflow_mul": "an overflow of a product",
    "overflow_div": "an overflow of a quotient",
    "overflow_convert": "an overflow of a conversion",
    "domain": "an argument outside of the function's domain",
    "minus_inf_operand": "an operand of -inf",
    "input": "a given value",
    "uninitialised": "memory that nobody wrote",
    "out_of_bounds": "an access out of bounds",
    "race": "a race",
    "atomic_order": "an order of atomic additions",
    "saturated_convert": "a conversion that saturates",
    "saturated_sum": "a sum that stands still",
    "weights_flushed": "weights that are all flushed to zero",
    "rescaled_to_zero": "a factor that is zero or subnormal",
    "masked_weight": "a masked score with a weight that is not zero",
    "rounded_up": "weights that are rounded up",
}
_FORMS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "reciprocal": "1 / {0}",
    "mul_add": "{0} * {1} + {2}", "mul_sub": "{0} * {1} - {2}", "sub_mul": "{2} - {0} * {1}",
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What is explained.

    run:   simulates all of it with a machine; alone: one thread block of it
    flash: the flash loop, if it is one
    title, notes: what it is, to read; about: as JSON types
    """

    title: str
    notes: list[str]
    about: dict[str, Any]
    run: Run
    alone: Callable[[Callable[..., Any], int], Any]
    flash: Flash | None = None

    @cached_property
    def launches(self) -> int:
        """How many launches it has."""
        return 1 if self.flash is not None else launches(self.run)

    def rows(self, mask: np.ndarray) -> np.ndarray:
        """A flag for each row of an output: query rows, else its leading axes as one."""
        if self.flash is not None:
            return np.asarray(mask.any(axis=(0, 2, 3)))
        return mask.reshape(-1) if mask.ndim < 2 else np.asarray(mask.reshape(-1, mask.shape[-1]).any(axis=1))

    def rows_text(self, mask: np.ndarray) -> list[str]:
        """The rows in words, in few lines."""
        if self.flash is not None:
            return per_head(mask, limit=4) or ["no rows"]
        return [phrase(self.rows(mask))]


@dataclass(frozen=True)
class Group:
    """Causes of one kind in one place of the kernel, in any thread block and iteration."""

    causes: tuple[Cause, ...]

    @property
    def first(self) -> Cause:
        return self.causes[0]

    @property
    def count(self) -> int:
        return sum(c.count for c in self.causes)

    @property
    def blocks(self) -> list[int]:
        return sorted({c.block for c in self.causes if c.block is not None})

    @cached_property
    def reached(self) -> dict[str, np.ndarray]:
        """{output: mask of the elements that one of them reaches}."""
        found: dict[str, np.ndarray] = {}
        for cause in self.causes:
            for name, mask in cause.reached.items():
                found[name] = found[name] | mask if name in found else mask
        return found

    @property
    def carried(self) -> list[tuple[Place, str]]:
        """The places that the first of them went through, its own first."""
        return self.first.carried


def grouped(causes: Iterable[Cause]) -> list[Group]:
    """Causes by kind and place, in the order in which the first of each was born."""
    found: dict[Any, list[Cause]] = {}
    for c in causes:
        p = c.place
        found.setdefault((c.kind, c.function, p.operator, p.buffer, p.file, p.line), []).append(c)
    return [Group(tuple(members)) for members in found.values()]


@dataclass(frozen=True)
class Story:
    """A trace, and what it comes to.

    changes: what else was tried; before: of the first groups, what the statement found in the row of the first element
    bad:     {output: mask of the known elements that a bad value reaches}
    unknown: {output: mask of the elements that cannot be known, whatever thread blocks do that were not simulated}
    """

    subject: Subject
    trace: Trace
    changes: list[Change]
    before: list[list[Step]] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What is said of the run in a few lines, each a label and a text."""
        basis = getattr(self.trace.result, "basis", "")
        return ([f"words      {basis}"] if basis else []) + self.subject.notes

    @cached_property
    def unknown(self) -> dict[str, np.ndarray]:
        result, found = self.trace.result, {}
        for name, mask, left in zip(
            *(getattr(result, n, ()) for n in ("names", "undetermined", "left_out")), strict=True
        ):
            if mask is not None and (mask := mask if left is None else mask & ~left).any():
                found[name] = mask
        return found

    @cached_property
    def causes(self) -> list[Cause]:
        """What reaches an output; why words cannot be known only where other thread blocks do not decide it."""
        return [c for c in self.trace.causes if c.function or self.unknown]

    @cached_property
    def groups(self) -> list[Group]:
        return grouped(self.causes)

    def lesser(self, name: str) -> list[Group]:
        """What reaches no output: `swallowed` or `damage`."""
        return grouped(getattr(self.trace, name))

    @cached_property
    def bad(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for group in self.groups:
            for name, mask in group.reached.items() if group.first.function else ():
                found[name] = found[name] | mask if name in found else mask
        known = {n: m & ~self.unknown[n] if n in self.unknown else m for n, m in found.items()}
        return {name: known[name] for name in self.trace.outputs if name in known and known[name].any()}

    @property
    def code(self) -> int:
        return DIFFERS if self.bad else UNDETERMINED if self.unknown else SAME

    @cached_property
    def verdict(self) -> str:
        """One sentence."""
        if self.bad:
            return f"{self._bad_words()}: {self._first()}."
        if self.unknown:
            name, mask = next(iter(self.unknown.items()))
            return f"{count(int(mask.sum()), 'word')} of {name} cannot be known: {self._why_unknown()}."
        swallowed = sum(c.count for c in self.trace.swallowed)
        what = "No bad value reaches an output"
        if swallowed:
            verb = "was" if swallowed == 1 else "were"
            what += f"; {count(swallowed, 'bad value')} {verb} born and swallowed on the way"
        if self.trace.damage:
            kinds = list(dict.fromkeys(KINDS.get(c.kind, c.kind) for c in self.trace.damage))
            what += f"; damage without one: {', '.join(kinds)}"
        return what + "."

    def _bad_words(self) -> str:
        """How many words of the last bad output are bad, and where."""
        name, mask = list(self.bad.items())[-1]
        words, fmt = self.trace.outputs[name]
        nan = int((mask & fmt.is_nan(words)).sum())
        infinite = int(mask.sum()) - nan
        what = [f"{nan} NaN"] if nan else []
        what += [count(infinite, "infinity").replace("infinitys", "infinities")] if infinite else []
        others = list(self.bad)[:-1]
        also = f" (bad too: {list_of(others)})" if others else ""
        rows = phrase(self.subject.rows(mask))
        return f"{' and '.join(what)} in the {count(mask.size, 'word')} of {name}, {rows}{also}"

    def _first(self) -> str:
        """The first cause, and how many more there are."""
        group = next(g for g in self.groups if g.first.function)
        more = sum(1 for g in self.groups if g.first.function) - 1
        text = f"{KINDS.get(group.first.kind, group.first.kind)} {_makes(group.first)}{_at(group.first.place)}"
        return text + (f", and {count(more, 'more cause')}" if more else "")

    def _why_unknown(self) -> str:
        unknown = [c for c in self.causes if not c.function]
        if not unknown:
            return "nobody wrote it"
        first = unknown[0]
        return f"{KINDS.get(first.kind, first.kind)}, {first.place.buffer}{_at(first.place)}"

    def to_json(self) -> dict[str, Any]:
        """The story as JSON types, every cause by itself."""
        found = {"verdict": self.verdict, "causes": [self._cause(c) for c in self.causes]}
        found["swallowed"] = [self._cause(c) for c in self.trace.swallowed]
        found["damage"] = [self._cause(c) for c in self.trace.damage]
        return found | {"changes": [each.to_json() for each in self.changes]}

    def _cause(self, c: Cause) -> dict[str, Any]:
        place, by = c.place, c.swallowed_by
        rows = {name: ranges(self.subject.rows(mask)) for name, mask in c.reached.items()}
        about: dict[str, Any] = {
            "kind": c.kind,
            "operator": place.operator,
            "buffer": place.buffer,
            "file": place.file or None,
        }
        about |= {
            "line": place.line or None,
            "block": c.block,
            "iteration": place.iteration[-1] if place.iteration else None,
        }
        about |= {"rows": list(rows.values())[-1] if rows else [], "count": c.count}
        about |= {"operands": [hexed(w, f) for w, f in zip(c.operands, c.formats, strict=True)]}
        about |= {"function": c.function or None, "word": hexed(c.word, c.format) if c.format else None}
        about |= {"outputs": rows, "carried": [_step(p) | {"value": what} for p, what in c.carried]}
        return about | {"swallowed_by": by and _step(by[0]) | {"function": by[1] or None}}


def _step(place: Place) -> dict[str, Any]:
    about: dict[str, Any] = {"operator": place.operator, "buffer": place.buffer, "file": place.file or None}
    return about | {"line": place.line or None, "iteration": list(place.iteration)}


def _makes(cause: Cause) -> str:
    """What a cause makes of its buffer."""
    if cause.kind == "input":
        return f"of {cause.place.buffer}"
    return f"makes {cause.place.buffer} {cause.carried[0][1]}" if cause.carried else f"in {cause.place.buffer}"


def _at(place: Place) -> str:
    return f" ({place.file}:{place.line})" if place.file else ""


def hexed(word: int, fmt: str) -> str:
    """A word in hex, as wide as its format."""
    return f"{word:#0{dtype_named(fmt).bits // 4 + 2}x}"


def number(word: int, fmt: DType) -> str:
    """The value of a word, in few digits."""
    if isinstance(fmt, Integer):
        return str(int(np.asarray(word, fmt.word).view(fmt.value_type)))
    assert isinstance(fmt, Format)
    value = float(values(np.asarray(word, fmt.word), fmt))
    if np.isnan(value):
        return "NaN"
    return f"{value:+}" if np.isinf(value) else f"{value:.6g}"


def formula(cause: Cause) -> str:
    """What the function computed of the first element: values, not words."""
    given = [number(w, dtype_named(f)) for w, f in zip(cause.operands, cause.formats, strict=True)]
    if len(given) > 1:
        given = [f"({text})" if n and text[0] in "+-" else text for n, text in enumerate(given)]
    form = _FORMS.get(cause.function, "")
    whole = form.count("{") == len(given)  # of damage it is only what matters
    text = form.format(*given) if whole else f"{cause.function}({', '.join(given)})"
    return f"{text} = {number(cause.word, dtype_named(cause.format))}"
