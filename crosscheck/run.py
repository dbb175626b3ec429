"""The verb `run`: simulate a schedule on inputs, say where NaN appears and how far the result is from float64.

With FILE.py:FUNCTION it simulates that kernel instead (`crosscheck.run_kernel`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.captures import save_arrays
from sim.formats import Format

from . import run_kernel
from .diff import Diff, diff
from .flags import (
    Request,
    UsageError,
    check_out,
    family_or_file,
    file_name,
    flag,
    kernel_flags,
    report_flags,
    request,
    schedule_flags,
)
from .reference import Errors, attention, errors
from .result import DIFFERS, SAME, Result
from .rows import nan_map, per_head
from .simulate import Device, basis, find_gpu, on_gpu, on_simulator
from .terminal import Progress, Style
from .text import count, shape, wrapped

__all__ = ["add", "one_input", "run"]

NAME = "run"


@dataclass(frozen=True)
class Outcome:
    """A simulated request: output words [batch, seq, heads, dim], their error, the difference from the GPU's."""

    request: Request
    format: Format
    words: np.ndarray
    errors: Errors
    device: Device | None
    gpu: Diff | None
    gpu_differs: np.ndarray | None
    reason: str

    @property
    def nan(self) -> np.ndarray:
        return self.format.is_nan(self.words)

    def to_json(self) -> dict[str, Any]:
        gpu = {"gpu": self.gpu and self.gpu.to_json(), "device": self.device and self.device.name}
        rows = {"nan_rows": per_head(self.nan), "errors": self.errors.to_json()}
        about = {"verb": "run"} | self.request.describe() | {"words": basis(self.request.arch)}
        return about | rows | gpu | {"gpu_reason": self.reason or None}


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "simulate a schedule of the flash loop, or any kernel as FILE.py:FUNCTION"
    parents = [schedule_flags(kernels=True), kernel_flags(), report_flags()]
    parser = verbs.add_parser(NAME, help=text, description=text, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    parser.add_argument("--out", type=file_name, metavar="FILE.npz", help="save the output's words as array o")
    run_kernel.add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Simulate; exit code 0, or 1 when the words of the GPU differ."""
    check_out(args.out, "--out")
    if args.kernel is not None:
        return run_kernel.run(args, style)
    for name in run_kernel.FLAGS:
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    args.inputs = one_input(args.inputs)
    asked = request(args)
    device, reason = find_gpu(args.gpu, asked.arch)
    outcome = _outcome(asked, device, reason, required=args.gpu == "require")
    if args.out:
        try:
            save_arrays(args.out, {"o": (outcome.words, outcome.format)})
        except OSError as error:
            raise UsageError(f"--out {args.out} cannot be written: {error.strerror}") from error
    code = DIFFERS if outcome.gpu and not outcome.gpu.same else SAME
    return Result(code, _report(outcome, style), outcome.to_json())


def one_input(texts: list[str] | None) -> str | None:
    """The flash loop's inputs, as its other verbs take them."""
    if texts is None:
        return None
    if len(texts) > 1:
        raise UsageError(f"--inputs of the flash loop is one family or file, not {len(texts)}")
    try:
        return family_or_file(texts[0])
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--inputs {error}") from error


def _outcome(asked: Request, device: Device | None, reason: str, required: bool) -> Outcome:
    """Simulate, measure the error, run the GPU if there is one; its kernel must run if `required`."""
    q, k, v = asked.arrays()
    with Progress(3 if device else 2) as progress:
        progress.step(f"simulating for {asked.arch}")
        words, fmt = on_simulator(q, k, v, asked.schedule, asked.arch)
        live = None
        if device:
            progress.step(f"compiling and running on the {device.name}")
            try:
                (live,) = on_gpu([(q, k, v, asked.schedule)])
            except UsageError as error:
                if required:
                    raise
                reason = f"no GPU run: {error}"
        progress.step("float64 reference")
        reference = attention(asked.q, asked.k, asked.v, asked.format, asked.schedule.causal)
        found = errors(words, fmt, reference)
    different = None if live is None else live[0] != words
    return Outcome(asked, fmt, words, found, device, live and diff((words, fmt), live), different, reason)


def _report(outcome: Outcome, style: Style) -> str:
    asked, s, found = outcome.request, outcome.request.schedule, outcome.errors
    mode = f"{'causal' if s.causal else 'full'}, {'fast math' if s.fast_math else 'precise math'}"
    lines = [
        style.paint(f"{asked.variant}, {s.block_M}x{s.block_N} blocks, {mode}, simulated for {asked.arch}", "bold")
    ]
    lines.append(f"  threads {s.threads}, stages {s.num_stages}")
    lines.append(f"  words      {basis(asked.arch)}")
    lines.append(f"  inputs     {asked.inputs}, {asked.format.name}")
    lines.append(f"             q {shape(asked.q)}, k and v {shape(asked.k)}")
    lines.append("  NaN        " + _nan(outcome, style))
    rows = per_head(outcome.nan)
    lines += [f"             {line}" for line in rows]
    if found.infinite or found.infinite_reference:
        lines.append(f"  infinite   {found.infinite} of {found.size} (float64: {found.infinite_reference})")
    lines += _error_lines(outcome)
    lines += _gpu_lines(outcome, style)
    if rows:
        lines += ["", nan_map(outcome.nan, style.unicode)]
    return "\n".join(lines)


def _nan(outcome: Outcome, style: Style) -> str:
    found = outcome.errors
    if not found.nan and not found.nan_reference:
        return style.paint("none", "green")
    text = f"{found.nan} of {found.size}"
    if found.nan_reference:
        text += f" ({found.nan_both} of them in float64 too, which has {found.nan_reference})"
    return style.paint(text, "red" if found.nan != found.nan_both else "yellow")


def _error_lines(outcome: Outcome) -> list[str]:
    found = outcome.errors
    if not found.compared:
        return ["  error      nothing to compare with float64"]
    lines = [
        f"  error      max {found.max_abs:.6g}, mean {found.mean_abs:.6g} against float64",
        f"             max {found.max_ulp:.4g}, mean {found.mean_ulp:.4g} ULP of {outcome.format.name}",
    ]
    lines[1] += f", worst at {list(found.worst or ())}"
    if found.compared < found.size:
        lines.append(f"             over the {count(found.compared, 'element')} finite in both")
    return lines


def _gpu_lines(outcome: Outcome, style: Style) -> list[str]:
    """How the words of the GPU compare, or why it did not run."""
    if outcome.device is None or outcome.gpu is None or outcome.gpu_differs is None:
        return [style.paint(line, "dim") for line in wrapped(outcome.reason, "  ")]
    if outcome.gpu.same:
        return ["  GPU        " + style.paint(f"same words on the {outcome.device.name}", "green")]
    message = outcome.gpu.message("simulator against " + outcome.device.name, "simulated", "GPU")
    return ["", style.paint(message, "red"), *(f"  in {line}" for line in per_head(outcome.gpu_differs))]
