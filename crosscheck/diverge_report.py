"""What is said of a divergence: to read, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .diff import Diff
from .diverge_blocks import Stored, blocks_of
from .diverge_taps import Found, Measured, Plan
from .job import Job, Output
from .report import describe
from .result import DIFFERS, SAME, UNDETERMINED
from .rows import phrase
from .terminal import Style
from .text import count, list_of

__all__ = ["Outcome", "Unsimulated", "report", "report_unsimulated", "to_json", "unsimulated_json"]

LISTED = 8  # operators that differ later and are named


@dataclass(frozen=True)
class Outcome:
    """What `diverge` found.

    diffs:   the outputs without taps, the simulator's against the GPU's
    words:   of taps, that were compared
    found:   the sites where words differ, in the order in which the operators run
    changed: the outputs that taps change in the simulator, and on the GPU not
    alone:   whether the first site differs when it alone is tapped; None: nobody tried
    """

    job: Job
    plan: Plan
    outputs: list[Output]
    measured: Measured
    diffs: dict[str, Diff]
    words: int
    found: list[Found]
    changed: list[str]
    alone: bool | None = None

    @property
    def compared(self) -> int:
        """Output words that were compared."""
        return sum(int(output.known.sum()) for output in self.outputs)

    @property
    def code(self) -> int:
        if self.found or self.changed or not all(each.same for each in self.diffs.values()):
            return DIFFERS
        return SAME if self.words or self.compared else UNDETERMINED

    def by_site(self) -> list[list[Found]]:
        """What was found of each site, the site that differs first first."""
        sites: dict[int, list[Found]] = {}
        for each in self.found:
            sites.setdefault(each.site.number, []).append(each)
        return list(sites.values())


def report(outcome: Outcome, style: Style) -> str:
    job, plan = outcome.job, outcome.plan
    title = f"{job.kernel.target.function} of {job.kernel.target.file}, {job.arch}, against {outcome.measured.name}"
    lines = [style.paint(title, "bold")]
    lines += [f"  config     {k}={v}" for k, v in job.kernel.pass_configs.items()]
    tapped = [n for run in outcome.measured.runs for n in run.taps]
    tiles = len({plan.taps.sites[n].buffer for n in tapped})
    blocks = count(len(plan.blocks), "thread block")
    lines.append(f"  taps       after {count(len(tapped), 'operator')} on {count(tiles, 'tile')}, {blocks}")
    lines += _listed("left out", [*outcome.measured.left_out, *plan.left_out], style)
    if outcome.measured.runs:
        lines.append("  with taps  the GPU's outputs are the same as without")
    if outcome.changed:
        text = f"with taps  the simulator's {list_of(outcome.changed)} changes: it takes a tap for what nvcc does not"
        lines.append("  " + style.paint(text, "red"))
    return "\n".join([*lines, "", *_divergence(outcome, style), *_outputs(outcome, style)])


def _listed(title: str, texts: list[str], style: Style) -> list[str]:
    return ["  " + style.paint(f"{title if not n else '':<11}{text}", "dim") for n, text in enumerate(texts)]


def _divergence(outcome: Outcome, style: Style) -> list[str]:
    """The first operator whose words differ, and those after it."""
    if not outcome.found:
        if not outcome.words:
            text = "no operator can be compared: none is tapped" if not outcome.measured.runs else "no tap can be known"
            return ["  " + style.paint(text, "yellow")]
        text = f"no divergence: {count(outcome.words, 'word')} of taps are the same after every tapped operator"
        return ["  " + style.paint(text, "green")]
    found = outcome.found[0]
    lines = [f"first divergence: {_place(found)}"]
    lines += found.diff().message("there", "simulated", "GPU").splitlines()
    if found.unstored:
        lines.append(f"{count(found.unstored, 'word')} of them the GPU did not store")
    lines.append("before it  " + _before(outcome, found))
    if outcome.alone is not None:
        lines.append("alone      it differs" if outcome.alone else "alone      it agrees: other taps make it differ")
    return ["  " + style.paint(line, "red") for line in lines] + _later(outcome, style)


def _place(found: Found) -> str:
    turns = {0: "", 1: f", iteration {found.turns[0] if found.turns else 0}"}
    text = turns.get(len(found.turns), f", iterations {list(found.turns)}")
    return f"{found.site}, block {found.block}{text}"


def _before(outcome: Outcome, first: Found) -> str:
    """What is known of the operators before the first that differs."""
    tapped = {n for run in outcome.measured.runs for n in run.taps}
    missing = [str(s) for s in outcome.plan.taps.sites if s.number < first.site.number and s.number not in tapped]
    if not missing:
        return "every operator agrees"
    shown = missing if len(missing) <= 3 else [*missing[-2:], f"{len(missing) - 2} more"]
    return f"every tapped operator agrees; not tapped: {list_of(shown)}"


def _later(outcome: Outcome, style: Style) -> list[str]:
    """The other operators that differ."""
    first, *rest = outcome.by_site()
    tiles = len(first) - 1
    texts = [f"{count(tiles, 'more tile')} of {first[0].site.buffer} there"] if tiles else []
    for found in rest[:LISTED]:
        more = f", and {count(len(found) - 1, 'more tile')}" if len(found) > 1 else ""
        texts.append(f"{_place(found[0])}: {int(found[0].different.sum())} of {found[0].words.size}{more}")
    texts += [f"... and {count(len(rest) - LISTED, 'more operator')}"] if len(rest) > LISTED else []
    return _listed("later", texts, style)


def _outputs(outcome: Outcome, style: Style) -> list[str]:
    """The outputs without taps."""
    lines = []
    for output, words in zip(outcome.outputs, outcome.measured.outputs, strict=True):
        found, known = outcome.diffs[output.parameter.name], int(output.known.sum())
        some = "" if known == found.size else f" ({found.size - known} more cannot be known)"
        name = f"{output.parameter.name} without taps"
        if found.same:
            text = f"{name}: same, {count(known, 'word')}{some}"
            lines.append("  " + style.paint(text, "green" if known else "yellow"))
        else:
            text = found.message(name, "simulated", "GPU")
            stored = blocks_of(outcome.job, outcome.plan.taps.numbers)[output.parameter.name]
            different = (output.words != words) & output.known
            shown = [*text.splitlines(), stored.phrase(different)]
            lines += ["  " + style.paint(line, "red") for line in shown]
    same = all(each.same for each in outcome.diffs.values())
    if not outcome.found and not same:
        text = "no tapped operator differs: what does is not tapped, or its tap hides it"
        lines.append("  " + style.paint(text, "red"))
    if outcome.found and same:
        text = "the outputs agree nevertheless: what differs is rounded away, or comes of the taps"
        lines.append("  " + style.paint(text, "yellow"))
    return lines


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as JSON types."""
    tapped = [n for run in outcome.measured.runs for n in run.taps]
    plan = outcome.plan
    sites = [plan.describe(n) | {"where": plan.taps.sites[n].where} for n in tapped]
    sites_found = [_found(each) for each in outcome.by_site()]
    first = sites_found[0] | {"diff": outcome.found[0].diff().to_json()} if sites_found else None
    found: dict[str, Any] = {"first": first, "found": sites_found}
    found |= {
        "alone": outcome.alone,
        "outputs": {n: d.to_json() for n, d in outcome.diffs.items()},
        "simulated_outputs_change": outcome.changed,
    }
    taps = {"sites": sites, "blocks": list(plan.blocks), "iterations": plan.turns}
    taps |= {"words": outcome.words, "left_out": [*outcome.measured.left_out, *plan.left_out]}
    about = {"verb": "diverge"} | describe(outcome.job) | {"against": outcome.measured.name}
    return about | {"taps": taps, "same": outcome.code == SAME} | found


def _found(found: list[Found]) -> dict[str, Any]:
    """A site that differs: its first tile that does, and how many do."""
    first, words = found[0], sum(int(each.different.sum()) for each in found)
    about = {"site": first.site.number, "operator": first.site.operator, "buffer": first.site.buffer}
    about |= {"where": first.site.where, "block": first.block, "iterations": list(first.turns)}
    return about | {"different": int(first.different.sum()), "tiles": len(found), "words": words}


# a kernel that the simulator refuses


@dataclass(frozen=True)
class Unsimulated:
    """The GPU's outputs against a file's; refusal: why the simulator has none.

    numbers: what the PrimFunc's symbolic sizes and scalar parameters are
    """

    job: Job
    file: Path
    name: str
    refusal: str
    reference: list[Output]
    words: list[np.ndarray]
    numbers: dict[Any, Any]

    @cached_property
    def stored(self) -> dict[str, Stored]:
        """Which thread blocks store the outputs; none when all words are the same."""
        return {} if self.code == SAME else blocks_of(self.job, self.numbers)

    @property
    def diffs(self) -> dict[str, Diff]:
        pairs = zip(self.reference, self.words, strict=True)
        return {output.parameter.name: output.against(words) for output, words in pairs}

    @property
    def code(self) -> int:
        return SAME if all(each.same for each in self.diffs.values()) else DIFFERS


def report_unsimulated(outcome: Unsimulated, style: Style) -> str:
    target = outcome.job.kernel.target
    title = f"{target.function} of {target.file}: {outcome.file} against {outcome.name}"
    lines = [style.paint(title, "bold"), "  " + style.paint(f"no taps: {outcome.refusal}", "dim")]
    stored = outcome.stored
    for output, words in zip(outcome.reference, outcome.words, strict=True):
        found = output.against(words)
        text = found.message(output.parameter.name, "reference", "GPU").splitlines()
        if not found.same:
            different = output.words != words
            text.append(f"in {_rows(different)}, {stored[output.parameter.name].phrase(different)}")
        lines += ["  " + style.paint(line, "green" if found.same else "red") for line in text]
    return "\n".join(lines)


def _rows(different: np.ndarray) -> str:
    """The rows of the leading axis that have a difference."""
    if not different.ndim:
        return "its one element"
    return phrase(np.asarray(different.reshape(len(different), -1).any(axis=1)))


def unsimulated_json(outcome: Unsimulated) -> dict[str, Any]:
    about = {"verb": "diverge"} | describe(outcome.job) | {"against": outcome.name, "refusal": outcome.refusal}
    outputs, stored = {n: d.to_json() for n, d in outcome.diffs.items()}, outcome.stored
    for output, words in zip(outcome.reference, outcome.words, strict=True):
        name = output.parameter.name
        outputs[name] |= stored[name].to_json(output.words != words) if name in stored else {}
    return about | {"outputs": outputs}
