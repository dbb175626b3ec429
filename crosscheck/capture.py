"""The verb `capture`: run a schedule's TileLang kernel on the GPU and keep its words with a manifest."""

from __future__ import annotations

import argparse
import datetime
import shlex
from typing import Any

from sim.captures import CaptureError, save_capture

from .flags import DEFAULTS, UsageError, check_out, file_name, flag, given, report_flags, request, schedule_flags
from .result import SAME, Result
from .simulate import find_gpu, on_gpu
from .terminal import Progress, Style

__all__ = ["add", "run"]

NAME = "capture"


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "run the TileLang kernel on the GPU and write q, k, v, o as words, with a manifest beside them"
    parents, codes = [schedule_flags(), report_flags(gpu=False)], "exit codes: 0 written, 2 usage, input or no GPU"
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=codes, parents=parents)
    parser.add_argument("file", type=file_name, metavar="FILE.npz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Capture; nothing is written unless the kernel ran. Raises UsageError when there is no GPU of --arch."""
    check_out(args.file, "FILE.npz")
    asked = request(args)
    device, reason = find_gpu("auto", asked.arch)
    if device is None:
        raise UsageError(reason)
    with Progress(1) as progress:
        progress.step(f"running on the {device.name}")
        ((words, fmt),) = on_gpu([(*asked.arrays(), asked.schedule)])
    arrays = {"q": asked.q, "k": asked.k, "v": asked.v, "o": words}
    facts = device.info | {
        "command": _command(args),
        "date": datetime.date.today().isoformat(),
        "seed": given(args, "seed"),
    }
    facts |= {"cells": [asked.describe()]}
    try:
        save_capture(args.file, {name: (array, fmt) for name, array in arrays.items()}, facts)
    except (CaptureError, OSError) as error:
        raise UsageError(f"FILE.npz {args.file} cannot be written: {error}") from error
    text = (
        f"wrote {args.file} and {args.file.with_suffix('.json')}: q, k, v, o as {fmt.name} words from the {device.name}"
    )
    return Result(SAME, text, {"verb": "capture", "file": str(args.file), "device": device.name} | asked.describe())


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this capture again."""
    words = ["python", "-m", "crosscheck", "capture", str(args.file)]
    for name in DEFAULTS:
        value = getattr(args, name)
        if value is not None:
            words += [flag(name) if value else "--no-fast-math"] if name == "fast_math" else [flag(name), str(value)]
    return shlex.join(words)
