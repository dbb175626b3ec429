"""One combination of a sweep: simulated, followed, and told in one row of JSON types."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import sim
from sim.formats import Format, values
from sim.trace import Trace

from .explain_causes import Story, Subject
from .explain_flash import Flash
from .explain_subject import Explained, followed, subject
from .flags import UsageError
from .reference import attention, errors
from .rows import per_head, phrase
from .sweep_axes import Combination, Numbered, Sweep

__all__ = ["BAD", "VERDICTS", "rows"]

# Of several combinations in one cell of a map, the first of these is the cell's.
VERDICTS = ("nan", "inf", "damage", "undetermined", "clean", "refused")
BAD = ("nan", "inf", "damage")
NOT_LOWERED = "that TileLang does not lower"  # how the simulator quotes TileLang's refusal


def rows(sweep: Sweep, group: Numbered) -> list[dict[str, Any]]:
    """What each combination of a group gives; they differ in `stages` alone, if at all.

    verdict: nan or inf (a bad value reaches an output, NaN in some or in none), damage (harm without one, which moves
             the flash loop's output further than rounding does),
             undetermined (words that cannot be known), clean, refused (TileLang makes no kernel of it); why says more
    """
    told: list[dict[str, Any]] = []
    found = []
    for number, combination in group:
        started = time.perf_counter()
        row = {"number": number, "combination": combination} | _row(sweep, combination, told)
        found.append(row | {"seconds": round(time.perf_counter() - started, 3)})
    return found


def _row(sweep: Sweep, combination: Combination, told: list[dict[str, Any]]) -> dict[str, Any]:
    """The rest of a row; `told` holds what a simulation gave, once there was one."""
    try:
        explained = subject(sweep.arguments(combination))
        if why := _refusal(explained[0].flash):
            return _none("refused", why)
        if not told:  # stages change what TileLang refuses, and no word
            told.append(_simulated(explained))
        return told[0]
    except sim.Undetermined as error:
        return _none("undetermined", str(error))
    except UsageError as error:
        return _none("refused", str(error))
    except MemoryError:
        return _none("undetermined", "it is too large: there is not enough memory")
    except Exception as error:  # one fault costs one row, not the sweep
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {' '.join(str(error).split())} at {Path(at.filename).name}:{at.lineno}"
        return _none("undetermined", f"a fault of the simulator ({said})")


def _none(verdict: str, why: str) -> dict[str, Any]:
    """The row of what has no words."""
    return {"verdict": verdict, "why": why}


def _refusal(flash: Flash | None) -> str | None:
    """Why TileLang makes no kernel of the flash loop; a kernel of a file says so itself."""
    if flash is None:
        return None
    return flash.schedule.compilable(flash.arch, dim=flash.shape[3], dtype=flash.q[1].name)


def _simulated(explained: Explained) -> dict[str, Any]:
    """What a run gives. Raises sim.Undetermined."""
    try:
        story = Story(explained[0], followed(explained), [])
    except UsageError as error:
        return _none("refused" if NOT_LOWERED in str(error) else "undetermined", str(error))
    flash = explained[0].flash
    if flash is None:
        return _told(story)
    found = _told(story) | _against_float64(flash, story.trace)
    if found["verdict"] == "damage" and found["float64"]["max_abs"] <= _harmless(flash):
        found |= {"verdict": "clean", "why": None}  # weights far below the greatest are no loss
    return found


def _harmless(flash: Flash) -> float:
    """An error that rounding alone may make: a few of the output format's units at the greatest value."""
    words, fmt = flash.v
    return float(np.abs(values(words, fmt)).max()) * 2.0 ** (1 - fmt.fraction_bits)


def _told(story: Story) -> dict[str, Any]:
    """The verdict, and what it rests on."""
    trace, outputs = story.trace, [_output(story.subject, n, story) for n in story.trace.outputs]
    found: dict[str, Any] = {"nan": any(output["nan"] for output in outputs), "inf": story.bad, "damage": trace.damage}
    found |= {"undetermined": story.unknown, "clean": True}
    verdict = next(each for each in VERDICTS if found[each])
    about: dict[str, Any] = {
        "verdict": verdict,
        "why": None if verdict == "clean" else story.verdict,
        "outputs": outputs,
    }
    about |= {"causes": dict(Counter(c.kind for c in story.causes)), "swallowed": len(trace.swallowed)}
    return about | {"damage": dict(Counter(c.kind for c in trace.damage))}


def _output(own: Subject, name: str, story: Story) -> dict[str, Any]:
    """An output: how many of its words are NaN, infinite or not known, and the rows with a NaN."""
    words, fmt = story.trace.outputs[name]
    unknown = story.unknown.get(name, np.zeros(words.shape, bool))
    bad = story.bad.get(name, np.zeros(words.shape, bool))
    nan = bad & fmt.is_nan(words) if isinstance(fmt, Format) else np.zeros(words.shape, bool)
    rows = own.rows(nan)
    about = {"name": name, "words": words.size, "nan": int(nan.sum()), "infinite": int((bad & ~nan).sum())}
    about |= {"undetermined": int(unknown.sum()), "nan_rows": int(rows.sum()), "rows": int(rows.size)}
    return about | {"nan_in": (per_head(nan) if own.flash else [phrase(rows)]) if nan.any() else []}


def _against_float64(flash: Flash, trace: Trace) -> dict[str, Any]:
    """The shapes, and the error against attention in float64."""
    (q, fmt), (k, _), (v, _) = flash.q, flash.k, flash.v
    words, out = next(iter(trace.outputs.values()))
    found = errors(words, out, attention(q, k, v, fmt, flash.schedule.causal))
    return {"q": list(q.shape), "kv": list(k.shape), "float64": found.to_json()}
