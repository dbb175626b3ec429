"""The verb `seed`: the table of TileLang issue #948, every cell computed and held against the words an H200 gave."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.arch import arch as find_arch
from sim.captures import Capture, CaptureError, load_capture
from sim.flash import VARIANTS, Schedule
from sim.formats import Format, values

from .diff import Diff, diff
from .flags import SCHEDULE_FLAGS, UsageError, file_name, flag, given, report_flags, schedule_flags
from .result import DIFFERS, SAME, Result
from .rows import phrase, ranges
from .simulate import Device, Job, find_gpu, on_gpu, on_simulator
from .terminal import Progress, Style
from .text import count, shape, wrapped

__all__ = ["CAPTURES", "CASES", "Case", "Cell", "add", "cell_job", "run", "seed_capture"]

NAME = "seed"

CAPTURES = Path(__file__).resolve().parent.parent / "tests" / "captures" / "h200"
FREE_FLAGS = ("variant", "arch")  # the schedule flags that the seed's cases leave open


@dataclass(frozen=True)
class Case:
    """One of the issue's three cases: the name of its arrays in the capture, a title, and its schedule."""

    name: str
    title: str
    fields: dict[str, Any]

    def schedule(self, variant: str) -> Schedule:
        return Schedule.variant(variant, **self.fields)


CASES = (
    Case(
        "causal256_128x64",
        "causal, 256 rows, 128x64 blocks, torch.randn inputs",
        {"block_M": 128, "block_N": 64, "causal": True, "num_stages": 2},
    ),
    Case("const0.05", "full, 128 rows, 64x64 blocks, raw scores 0.32 and then -0.32", {"num_stages": 2}),
    Case("const3", "full, 128 rows, 64x64 blocks, raw scores 1152 and then -1152", {"num_stages": 2}),
)


@dataclass(frozen=True)
class Cell:
    """One case with one variant.

    words:     what the simulator gave, [batch, seq, heads, dim] words of `format`
    reference: the words of the example's own reference on the H200
    captured:  the difference from the H200's words, None where none were measured
    gpu:       the difference from the words of the GPU here, None if it did not run
    """

    case: Case
    variant: str
    format: Format
    words: np.ndarray
    reference: np.ndarray
    captured: Diff | None
    gpu: Diff | None

    @property
    def nan(self) -> np.ndarray:
        return self.format.is_nan(self.words)

    @property
    def nan_rows(self) -> np.ndarray:
        """A flag for each query row."""
        return np.asarray(self.nan.any(axis=(0, 2, 3)))

    @property
    def max_abs_diff(self) -> float | None:
        """The largest distance from the reference, NaN left out; None when all is NaN."""
        distance = np.abs(values(self.words, self.format) - values(self.reference, self.format))
        numbers = distance[~np.isnan(distance)]
        return float(numbers.max()) if numbers.size else None

    @property
    def same(self) -> bool:
        return all(found is None or found.same for found in (self.captured, self.gpu))

    def outcome(self) -> str:
        """The cell as the issue writes it."""
        nan = self.nan
        if nan.any():
            return f"NaN {nan.sum()} of {nan.size}, {phrase(self.nan_rows)}"
        return f"max abs diff {self.max_abs_diff}"

    def to_json(self) -> dict[str, Any]:
        nan = self.nan
        return {
            "case": self.case.name,
            "variant": self.variant,
            "size": nan.size,
            "nan": int(nan.sum()),
            "nan_rows": [list(run) for run in ranges(self.nan_rows)],
            "max_abs_diff": self.max_abs_diff,
            "captured": self.captured and self.captured.to_json(),
            "gpu": self.gpu and self.gpu.to_json(),
        }


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "the table of TileLang issue #948: 3 cases, 5 variants, every word against the H200's"
    parser = verbs.add_parser(NAME, help=text, description=text, parents=[schedule_flags(), report_flags()])
    parser.add_argument("--captures", type=file_name, metavar="DIR", help="where seed.npz and seed.json are")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Compute the table. Exit code 0 when every word is as captured, NaN or not."""
    for name in SCHEDULE_FLAGS:
        if getattr(args, name) is not None and name not in FREE_FLAGS:
            raise UsageError(f"{flag(name)} is fixed by the cases of seed (--variant and --arch are free): use run")
    capture, arch = seed_capture(args.captures or CAPTURES), given(args, "arch")
    variants = [args.variant] if args.variant else list(VARIANTS)
    device, reason = find_gpu(args.gpu, arch)
    cells = _cells(capture, [(case, variant) for case in CASES for variant in variants], arch, device)
    code = SAME if all(cell.same for cell in cells) else DIFFERS
    about = {"verb": NAME, "arch": arch, "captured_on": capture.manifest["device"], "gpu": device and device.name}
    found = {"same": code == SAME, "wrong_words": _wrong(cells), "cells": [cell.to_json() for cell in cells]}
    data = about | {"gpu_reason": reason or None} | found
    return Result(code, _report(cells, arch, capture.manifest, device, reason, style), data)


def seed_capture(folder: Path) -> Capture:
    """The seed's capture, with every array that the table needs."""
    path = folder / "seed.npz"
    if not path.is_file():
        raise UsageError(
            f"the seed's capture {path} is not there: run in a clone of the project, or give --captures DIR"
        )
    try:
        capture = load_capture(path)
    except CaptureError as error:
        raise UsageError(str(error)) from error
    names = ("q", "k", "v", "torch_reference", *(f"{variant}__o" for variant in VARIANTS))
    for name in (f"{case.name}__{part}" for case in CASES for part in names):
        if name not in capture.arrays:
            raise UsageError(f"the seed's capture {path} has no array {name}")
    for name in ("device", "arch"):
        if capture.manifest[name] is None:
            raise UsageError(f"the seed's capture {path} must say on which {name} it was measured, and says null")
    _check_cases(path, capture)
    return capture


def _check_cases(path: Path, capture: Capture) -> None:
    """Raise UsageError unless a case's reference and outputs have the shape and format of its q."""
    for case in CASES:
        q, fmt = capture.arrays[f"{case.name}__q"]
        for part in ("torch_reference", *(f"{variant}__o" for variant in VARIANTS)):
            words, other = capture.arrays[f"{case.name}__{part}"]
            if (words.shape, other) != (q.shape, fmt):
                found, wanted = f"{other.name} {shape(words)}", f"{fmt.name} {shape(q)}"
                raise UsageError(f"the seed's capture {path} must hold {case.name}__{part} as {wanted}, not {found}")


def _cells(capture: Capture, asked: list[tuple[Case, str]], arch: str, device: Device | None) -> list[Cell]:
    """Simulate every cell, run all of them on the GPU if there is one, and compare."""
    jobs = [cell_job(capture, case, variant) for case, variant in asked]
    measured = find_arch(capture.manifest["arch"]).name == arch
    with Progress(len(jobs) + (1 if device else 0)) as progress:
        outs = []
        for (case, variant), job in zip(asked, jobs, strict=True):
            progress.step(f"simulating {case.name} {variant}")
            outs.append(on_simulator(*job, arch))
        if device:
            progress.step(f"compiling and running {len(jobs)} kernels on the {device.name}")
        live = on_gpu(jobs) if device else [None] * len(jobs)
    cells = []
    for (case, variant), out, there in zip(asked, outs, live, strict=True):
        captured = diff(out, capture.arrays[f"{case.name}__{variant}__o"]) if measured else None
        reference = capture.arrays[f"{case.name}__torch_reference"][0]
        cells.append(Cell(case, variant, out[1], out[0], reference, captured, there and diff(out, there)))
    return cells


def cell_job(capture: Capture, case: Case, variant: str) -> Job:
    """The inputs of a case as arrays, and the schedule of its variant."""
    q, k, v = (capture.arrays[f"{case.name}__{name}"] for name in "qkv")
    return q, k, v, case.schedule(variant)


def _wrong(cells: list[Cell]) -> int | None:
    """Words that differ from the capture, None where none were measured."""
    found = [cell.captured.different for cell in cells if cell.captured]
    return sum(found) if found else None


def _report(
    cells: list[Cell], arch: str, manifest: dict[str, Any], device: Device | None, reason: str, style: Style
) -> str:
    """The table, 80 columns wide, then what differs and the sum."""
    captured_on = manifest["device"]
    lines = [style.paint("TileLang issue #948: five ways of keeping scores_max", "bold")]
    what = "inputs and reference" if _wrong(cells) is None else "inputs, reference and words"
    lines.append(f"simulated for {arch}; {what} captured on the {captured_on}")
    lines += ["", style.paint(f"  {'variant':<20}  {'result':<41}  words", "dim")]
    for case in CASES:
        lines.append(style.paint(case.title, "bold"))
        for cell in (cell for cell in cells if cell.case is case):
            lines.append(f"  {cell.variant:<20}  {cell.outcome():<41}  {_words(cell, captured_on, style)}")
    lines.append("")
    for cell in cells:
        for found, name in ((cell.captured, captured_on), (cell.gpu, "GPU")):
            if found and not found.same:
                lines += [found.message(f"{cell.case.name} {cell.variant}", "simulated", _short(name)), ""]
    return "\n".join(lines + _summary(cells, arch, manifest, device, reason, style))


def _words(cell: Cell, captured_on: str, style: Style) -> str:
    """The last column: how the words compare."""
    measured = {_short(captured_on): cell.captured, "GPU": cell.gpu}
    found = {name: difference for name, difference in measured.items() if difference is not None}
    wrong = [name for name, difference in found.items() if not difference.same]
    if not found:
        return style.paint("not measured", "yellow")
    if not wrong:
        return style.paint("same as " + ("both" if len(found) == 2 else next(iter(found))), "green")
    if len(found) == 1:
        return style.paint(f"{found[wrong[0]].different} differ", "red")
    return style.paint("both differ" if len(wrong) == 2 else f"{wrong[0]} differs", "red")


def _short(device: str) -> str:
    """H200 of "NVIDIA H200"."""
    return device.removeprefix("NVIDIA ").split(" ")[0]


def _summary(
    cells: list[Cell], arch: str, manifest: dict[str, Any], device: Device | None, reason: str, style: Style
) -> list[str]:
    """The closing lines."""
    size, wrong, lines = sum(cell.words.size for cell in cells), _wrong(cells), []
    if wrong is None:
        text = f"{count(len(cells), 'cell')}: no words were measured on {arch}; its arithmetic is from the literature"
        lines.append(style.paint(text, "yellow"))
    else:
        text = f"{count(len(cells), 'cell')}, {count(size, 'word')}: {wrong} differ from the {manifest['device']}"
        lines.append(style.paint(text, "red" if wrong else "green"))
        if wrong:
            lines.append(f"the capture was made with: {manifest['command']}")
    if device:
        live = sum(cell.gpu.different for cell in cells if cell.gpu)
        text = f"the TileLang kernels on this {device.name}: {live} of {size} words differ"
        lines.append(style.paint(text, "red" if live else "green"))
    elif reason:
        lines += [style.paint(line, "dim") for line in wrapped(reason)]
    return lines
