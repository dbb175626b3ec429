"""Captures of any kernel: the GPU's words with what they were measured on, kept and compared with."""

from __future__ import annotations

import argparse
import datetime
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from sim.captures import Capture, CaptureError, load_capture, save_capture

from .flags import UsageError, flag, given
from .job import Compared, Job, Outcome, compare, given_configs, words_of

__all__ = ["against_capture", "check_inputs", "open_capture", "save"]


def open_capture(args: argparse.Namespace) -> Capture:
    """The capture of --against; flags that are not given become what it was made with."""
    path = args.against
    try:
        capture = load_capture(path)
    except CaptureError as error:
        raise UsageError(f"--against {error}") from error
    cells = capture.manifest.get("cells") or [{}]
    if len(cells) != 1 or not {"kernel", "args", "sizes", "inputs", "outputs", "pass_configs"} <= {*cells[0]}:
        raise UsageError(f"--against {path} is no capture of `run FILE.py:FUNCTION --capture`")
    cell = cells[0]
    if args.args is None:
        args.args = cell["args"]
    if args.size is None:
        args.size = list(cell["sizes"].items())
    if args.inputs is None:
        args.inputs = [f"{each['name']}={each['spec']}" for each in cell["inputs"]]
    if args.seed is None:
        args.seed = capture.manifest["seed"]
    args.pass_config = [*cell["pass_configs"].items(), *(args.pass_config or ())]
    if capture.manifest["arch"].removesuffix("a") != given(args, "arch"):
        raise UsageError(f"--arch is {given(args, 'arch')}, and --against {path} is of {capture.manifest['arch']}")
    return capture


def check_inputs(job: Job, path: Path, capture: Capture) -> None:
    """Raise UsageError unless the inputs' words are those of the capture, and its outputs are the kernel's."""
    cell = capture.manifest["cells"][0]
    captured = {each["name"]: each["sha256"] for each in cell["inputs"]}
    for each in job.inputs:
        if captured.get(each.parameter.name) != each.sha256:
            raise UsageError(
                f"--against {path} was measured on other words of {each.parameter.name}: "
                f"leave --args, --inputs, --size and --seed away, or give what its manifest says"
            )
    for p in job.outputs:
        if p.name not in capture.arrays and p.name not in capture.integers:
            raise UsageError(f"--against {path} has no words of {p.name}")


def against_capture(outcome: Outcome, path: Path, capture: Capture) -> Compared:
    """The outputs against a capture's."""
    words = []
    for output in outcome.outputs:
        name = output.parameter.name
        found, dtype = capture.arrays[name] if name in capture.arrays else (capture.integers[name], output.dtype)
        if dtype is not output.dtype:
            raise UsageError(f"--against {path} has {name} as {dtype.name}, and the kernel gives {output.dtype.name}")
        words.append(words_of((found, dtype) if name in capture.arrays else found, dtype))
    return compare(outcome, f"{path}, {capture.manifest['device']}", words)


def save(args: argparse.Namespace, outcome: Outcome, words: list[np.ndarray] | None) -> list[str]:
    """Write the GPU's words; nothing is written when it gave none. Returns lines of the report."""
    if words is None or outcome.device is None:
        return [f"  capture    {args.capture} not written: the GPU gave no words"]
    arrays: dict[str, Any] = {}
    integers: dict[str, np.ndarray] = {}
    for output, found in zip(outcome.outputs, words, strict=True):
        if output.parameter.integer:
            integers[output.parameter.name] = found.view(output.dtype.value_type)
        else:
            arrays[output.parameter.name] = found, output.dtype
    job = outcome.job
    facts = outcome.device.info | {"command": _command(args), "date": datetime.date.today().isoformat()}
    facts |= {"seed": job.seed, "cells": [_cell(args, job)]}
    try:
        save_capture(args.capture, arrays, facts, integers)
    except (CaptureError, OSError) as error:
        raise UsageError(f"--capture {args.capture} cannot be written: {error}") from error
    return [f"  capture    wrote {args.capture} and {args.capture.with_suffix('.json').name}"]


def _cell(args: argparse.Namespace, job: Job) -> dict[str, Any]:
    """What a capture's manifest says of the kernel, its inputs and its outputs."""
    inputs = [i.parameter.to_json() | {"spec": i.spec, "sha256": i.sha256} for i in job.inputs]
    about = {"kernel": args.kernel, "args": args.args or "", "sizes": job.sizes, "pass_configs": given_configs(args)}
    return about | {"inputs": inputs, "outputs": [p.to_json() for p in job.outputs]}


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this capture again."""
    words = ["python", "-m", "crosscheck", "run", args.kernel]
    for name in ("args", "seed", "arch", "timeout", "capture"):
        if getattr(args, name) is not None:
            words += [flag(name), str(getattr(args, name))]
    for name, pairs in (("size", args.size), ("pass_config", args.pass_config)):
        words += [flag(name), *(f"{key}={value}" for key, value in pairs)] if pairs else []
    words += ["--inputs", *args.inputs] if args.inputs else []
    if args.fast_math is not None:
        words.append("--fast-math" if args.fast_math else "--no-fast-math")
    return shlex.join(words)
