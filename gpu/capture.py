"""Measure a capture again on this machine's GPU: `python -m gpu.capture OLD.npz NEW.npz`.

Every cell of OLD's manifest that names its arrays (`q`, `k`, `v`, `o`) and its `schedule` is compiled and run with its
old inputs; NEW holds the words that this GPU gives, under the same names, and this machine's manifest. Arrays that no
kernel writes (inputs, references) are copied.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.captures import Capture, CaptureError, load_capture, save_capture
from sim.flash import Schedule
from sim.formats import from_words, to_words

from .errors import GpuUnavailable, KernelError
from .launch import Job, device_info, flash_attention_many

__all__ = ["capture_again", "main"]


def capture_again(old: Path, new: Path, timeout: float = 120) -> int:
    """Write the capture `new`, return its number of cells. Raises CaptureError, GpuUnavailable and KernelError."""
    capture = load_capture(old)
    cells = [cell for cell in capture.manifest.get("cells", []) if _names_arrays(cell)]
    if not cells:
        raise CaptureError(f"{old} has no cells that name the arrays q, k, v, o and their schedule")
    jobs = [_job(capture, cell) for cell in cells]
    arrays = dict(capture.arrays)
    for cell, result in zip(cells, flash_attention_many(jobs, timeout=timeout), strict=True):
        if isinstance(result, KernelError):
            raise KernelError(f"{cell['o']}: {result}", result.kind)
        arrays[cell["o"]] = to_words(result)
    facts = capture.manifest | device_info() | {"command": f"python -m gpu.capture {old} {new}", "date": _today()}
    save_capture(new, arrays, {name: value for name, value in facts.items() if name not in ("version", "sha256")})
    return len(cells)


def _job(capture: Capture, cell: dict[str, Any]) -> Job:
    q, k, v = (from_words(*capture.arrays[cell[name]]) for name in "qkv")
    return q, k, v, Schedule(**cell["schedule"])


def _names_arrays(cell: Any) -> bool:
    return isinstance(cell, dict) and "schedule" in cell and all(isinstance(cell.get(name), str) for name in "qkvo")


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0, or 2 with the reason on the error stream."""
    parser = argparse.ArgumentParser(prog="python -m gpu.capture", description="Measure a capture again on this GPU.")
    parser.add_argument("old", type=Path, help="the capture that has the inputs and schedules (.npz)")
    parser.add_argument("new", type=Path, help="the capture to write (.npz)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each kernel")
    options = parser.parse_args(arguments)
    try:
        count = capture_again(options.old, options.new, options.timeout)
    except (CaptureError, GpuUnavailable, KernelError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.new}: {count} cells measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
