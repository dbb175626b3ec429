"""What is said of a kernel's words: to read, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from .job import Compared, Job, Outcome, Output
from .rows import phrase
from .specs import RANDOM
from .terminal import Style
from .text import count, list_of, wrapped

__all__ = ["describe", "report", "table", "to_json"]


def describe(job: Job) -> dict[str, Any]:
    """The job as JSON types."""
    specs = {each.parameter.name: each.spec for each in job.inputs}
    parameters = [p.to_json() | {"input": specs.get(p.name)} for p in job.parameters]
    configs = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in job.kernel.pass_configs.items()}
    about = {"kernel": str(job.kernel.target), "name": job.kernel.name, "arch": job.arch, "seed": job.seed}
    return about | {"pass_configs": configs, "blocks": job.blocks, "parameters": parameters}


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as JSON types."""
    outputs = [{"name": o.parameter.name} | o.counts() for o in outcome.outputs]
    found = {"words": outcome.basis, "outputs": outputs, "events": [asdict(each) for each in outcome.events]}
    live: dict[str, Any] = {"device": outcome.device and outcome.device.name, "gpu_reason": outcome.reason or None}
    live |= {"gpu_failure": outcome.failure or None, "compared": [_compared(each) for each in outcome.compared]}
    return {"verb": "run"} | describe(outcome.job) | found | live


def _compared(each: Compared) -> dict[str, Any]:
    return {"against": each.name, "same": each.same, "outputs": {n: d.to_json() for n, d in each.diffs.items()}}


def report(outcome: Outcome, style: Style) -> str:
    job = outcome.job
    lines = [style.paint(f"{job.kernel.target.function} of {job.kernel.target.file}, simulated for {job.arch}", "bold")]
    lines.append(f"  words      {outcome.basis}")
    lines += [f"  config     {k}={v}" for k, v in job.kernel.pass_configs.items()]
    if job.blocks is not None:
        lines.append(f"  blocks     only {list_of([str(b) for b in job.blocks])} of each launch")
    lines += ["", *table(_parameter_rows(job), style), "", *table(_output_rows(outcome), style), ""]
    for output in outcome.outputs:
        lines += _where("NaN", output, output.nan, style)
        lines += _where("unknown", output, output.undetermined, style)
    lines += _events(outcome, style)
    return "\n".join(lines + _comparisons(outcome, style))


def table(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    """Rows as aligned columns, the first of them a heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [style.paint(lines[0], "dim"), *lines[1:]]


def _parameter_rows(job: Job) -> list[tuple[str, ...]]:
    specs = {each.parameter.name: each.spec for each in job.inputs}
    rows: list[tuple[str, ...]] = [("parameter", "dtype", "shape", "use", "starts as")]
    for p in job.parameters:
        spec = specs.get(p.name, "what nobody wrote")
        spec = f"{spec}, seed {job.seed}" if spec.partition(":")[0] in RANDOM else spec
        rows.append((p.name, p.dtype.name, "scalar" if p.shape is None else str(list(p.shape)), p.use, spec))
    return rows


def _output_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    heading = ("output", "words", "NaN", "infinities", "zeros", "undetermined")
    rows = [(o.parameter.name, *map(str, o.counts().values())) for o in outcome.outputs]
    most = max(map(len, rows))
    rows = [row if len(row) == most else (*row, "0") for row in rows]
    return [heading if len(heading) == most else (*heading, "of other blocks"), *rows]


def _where(what: str, output: Output, flags: np.ndarray, style: Style) -> list[str]:
    """Where flagged elements are: the first one, and the rows of the leading axis that have one."""
    if not flags.any():
        return []
    first = [int(i) for i in np.argwhere(flags)[0]]
    rows = phrase(np.asarray(flags.reshape(len(flags), -1).any(axis=1))) if flags.ndim else "its one element"
    return ["  " + style.paint(f"{what:<11}{output.parameter.name} first at {first}, {rows}", "yellow")]


def _events(outcome: Outcome, style: Style) -> list[str]:
    if not outcome.events:
        return ["  events     none"]
    texts = [str(event) for event in outcome.events]
    lines = ["  events     " + style.paint(texts[0], "yellow")]
    return lines + ["             " + style.paint(text, "yellow") for text in texts[1:]]


def _comparisons(outcome: Outcome, style: Style) -> list[str]:
    """How the words compare with the GPU's and a capture's, and why there are none."""
    lines: list[str] = []
    for each in outcome.compared:
        for output in outcome.outputs:
            lines += _comparison(output, each, style)
    if outcome.failure:
        lines += ["  " + style.paint(line, "red") for line in wrapped(f"GPU: {outcome.failure}", "")]
    elif outcome.reason:
        lines += [style.paint(line, "dim") for line in wrapped(outcome.reason, "  ")]
    return lines


def _comparison(output: Output, other: Compared, style: Style) -> list[str]:
    """How one output compares with another source of its words."""
    found, known = other.diffs[output.parameter.name], int(output.known.sum())
    name = f"{output.parameter.name} against {other.name}"
    some = f" ({found.size - known} more cannot be known)" if known < found.size else ""
    if found.same:
        return ["  " + style.paint(f"{name}: same, {count(known, 'word')}{some}", "green" if known else "yellow")]
    first, *rest = found.message(name, "simulated", "there").splitlines()
    return ["  " + style.paint(line, "red") for line in (first + some, *rest)]
