"""Captures of taps: the GPU's words after each operator, kept with what they were measured on, and compared with."""

from __future__ import annotations

import argparse
import datetime
import shlex
from typing import Any

import numpy as np

from sim.captures import Capture, CaptureError, load_capture, save_capture
from sim.formats import Format, dtype_named

from .diverge_report import Outcome
from .diverge_taps import Measured, Plan, Run
from .flags import SCHEDULE_FLAGS, UsageError, flag, given
from .job import Job
from .simulate import Device

__all__ = ["check_inputs", "open_capture", "recorded", "save"]

_LISTS = ("taps", "operators", "blocks")  # flags of words with commas
_PAIRS = ("size", "pass_config")
FLAGS = (*SCHEDULE_FLAGS, "args", *_PAIRS, *_LISTS, "iterations", "limit")
_ENTRIES = {"kernel", "flags", "inputs", "outputs", "blocks", "iterations", "runs", "sites", "left_out"}


def save(args: argparse.Namespace, outcome: Outcome, device: Device) -> list[str]:
    """Write the GPU's outputs and taps. Returns lines of the report."""
    job, plan = outcome.job, outcome.plan
    named = [(f"output_{p.name}", w, p.dtype) for p, w in zip(job.outputs, outcome.measured.outputs, strict=True)]
    for run in outcome.measured.runs:
        named += [(f"tap_{n}", w, dtype_named(plan.taps.sites[n].dtype)) for n, w in run.taps.items()]
    arrays = {name: (words, fmt) for name, words, fmt in named if isinstance(fmt, Format)}
    integers = {name: words.view(fmt.value_type) for name, words, fmt in named if not isinstance(fmt, Format)}
    facts = device.info | {"command": _command(args), "date": datetime.date.today().isoformat()}
    facts |= {"seed": job.seed, "cells": [_cell(args, outcome)]}
    try:
        save_capture(args.capture, arrays, facts, integers)
    except (CaptureError, OSError) as error:
        raise UsageError(f"--capture {args.capture} cannot be written: {error}") from error
    return [f"  capture    wrote {args.capture} and {args.capture.with_suffix('.json').name}"]


def _cell(args: argparse.Namespace, outcome: Outcome) -> dict[str, Any]:
    """What a capture's manifest says of the kernel, its inputs and its taps."""
    job, plan = outcome.job, outcome.plan
    runs = [list(run.taps) for run in outcome.measured.runs]
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    inputs = [each.parameter.to_json() | {"spec": each.spec, "sha256": each.sha256} for each in job.inputs]
    about = {"kernel": args.kernel, "flags": flags, "inputs": inputs, "outputs": [p.to_json() for p in job.outputs]}
    about |= {"blocks": list(plan.blocks), "iterations": plan.turns, "left_out": list(outcome.measured.left_out)}
    return about | {"runs": runs, "sites": [plan.describe(n) for run in runs for n in run]}


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this capture again."""
    words = ["python", "-m", "crosscheck", "diverge", *([args.kernel] if args.kernel else [])]
    for name in (*FLAGS, "timeout", "capture"):
        value = getattr(args, name)
        if isinstance(value, bool):
            words.append(flag(name) if value else f"--no-{name.replace('_', '-')}")
        elif name in _PAIRS and value:
            words += [flag(name), *(f"{key}={each}" for key, each in value)]
        elif name == "inputs" and value:
            words += [flag(name), *value]
        elif value is not None:
            words += [flag(name), ",".join(map(str, value)) if name in _LISTS else str(value)]
    return shlex.join(words)


def open_capture(args: argparse.Namespace) -> Capture:
    """The capture of --against; flags that are not given become what it was made with."""
    path = args.against
    try:
        capture = load_capture(path)
    except CaptureError as error:
        raise UsageError(f"--against {error}") from error
    cells = capture.manifest.get("cells") or [{}]
    if len(cells) != 1 or not {*cells[0]} >= _ENTRIES:
        raise UsageError(f"--against {path} is no capture of `diverge --capture`")
    for name in ("blocks", "iterations", "limit"):
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is what --against {path} was made with: leave it away")
    args.kernel = args.kernel or cells[0]["kernel"]
    for name, value in cells[0]["flags"].items():
        if name in FLAGS and getattr(args, name) is None:
            setattr(args, name, [tuple(each) for each in value] if name in _PAIRS else value)
    args.blocks, args.iterations = cells[0]["blocks"], cells[0]["iterations"]
    args.limit = 2**20
    if capture.manifest["arch"].removesuffix("a") != given(args, "arch"):
        raise UsageError(f"--arch is {given(args, 'arch')}, and --against {path} is of {capture.manifest['arch']}")
    return capture


def check_inputs(args: argparse.Namespace, capture: Capture, job: Job) -> None:
    """Raise UsageError unless the inputs' words are those of the capture."""
    sums = {each["name"]: each["sha256"] for each in capture.manifest["cells"][0]["inputs"]}
    for each in job.inputs:
        if sums.get(each.parameter.name) != each.sha256:
            raise UsageError(f"--against {args.against} was measured on other words of {each.parameter.name}: "
                             "leave the flags of the inputs away, or give what its manifest says")  # fmt: skip


def recorded(args: argparse.Namespace, capture: Capture | None, job: Job, plan: Plan | None) -> Measured:
    """The words of a capture of this kernel and these taps; plan: None when only the outputs are wanted."""
    assert capture is not None
    cell, runs = capture.manifest["cells"][0], []
    outputs = [_words(args, capture, f"output_{p.name}", p.dtype) for p in job.outputs]
    if plan is not None:
        _check_sites(args, cell, plan)
        for numbers in cell["runs"]:
            mine = [n for n in numbers if n in plan.sites]
            taps = {n: _words(args, capture, f"tap_{n}", dtype_named(plan.taps.sites[n].dtype)) for n in mine}
            runs += [Run(taps)] if taps else []
    return Measured(f"{args.against}, {capture.manifest['device']}", outputs, runs, tuple(cell["left_out"]))


def _check_sites(args: argparse.Namespace, cell: dict[str, Any], plan: Plan) -> None:
    for site in cell["sites"]:
        number = site["number"]
        if number >= len(plan.taps.sites) or plan.describe(number) != site:
            what = f"{site['buffer']} after {site['operator']}"
            raise UsageError(f"--against {args.against} was measured on another kernel: operator {number} is {what}")


def _words(args: argparse.Namespace, capture: Capture, name: str, dtype: Any) -> np.ndarray:
    if name in capture.integers:
        return np.ascontiguousarray(capture.integers[name]).view(dtype.word)
    if name not in capture.arrays or capture.arrays[name][1] is not dtype:
        raise UsageError(f"--against {args.against} has no words {name} of {dtype.name}")
    return capture.arrays[name][0]
