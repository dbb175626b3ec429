"""The verb `diverge`: the first operator of a kernel after which the simulator's words and the GPU's differ.

The kernel runs once as it is and once with taps (`gpu.taps`), which store what its tiles hold after each operator; the
simulator runs both as well. Taps that change the GPU's outputs are left out.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from typing import Any

from . import run_kernel
from .flags import file_name, integer, kernel_flags, report_flags, schedule_flags
from .result import Result
from .terminal import Style

__all__ = ["LIMIT", "add", "run"]

NAME = "diverge"
LIMIT = 256  # MiB of taps


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "the first operator after which the simulator's words and the GPU's differ"
    parents = [schedule_flags(kernels=True), kernel_flags(), report_flags(gpu=False)]
    parser = verbs.add_parser(NAME, help=text, description=text, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    run_kernel.add_flags(parser)
    tap = parser.add_argument_group("taps").add_argument
    tap("--taps", type=_names, metavar="TILE,...", help="tap these tiles (default all that a tap does not change)")
    tap("--operators", type=_names, metavar="NAME,...", help="tap after these operators: copy, gemm, parallel, ...")
    tap("--iterations", type=integer(1), metavar="N", help="tap the first N turns of each loop (default all)")
    tap("--limit", type=integer(1), metavar="MIB", help=f"memory for all taps (default {LIMIT} MiB)")
    text = "the outputs, compared with the GPU's where the simulator refuses the kernel"
    tap("--reference", type=file_name, metavar="FILE.npz", help=text)
    parser.set_defaults(run=run, out=None, gpu="auto")


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not all(name.isidentifier() for name in names):
        raise ArgumentTypeError(f"must be names like acc_s,scores_max, not {text!r}")
    return names


def run(args: argparse.Namespace, style: Style) -> Result:
    """Compare operator by operator; exit code 0, 1 when words differ, 3 when no word can be compared."""
    from . import diverge_run  # it needs the package gpu, and no other verb does before it runs

    return diverge_run.run(args, style)
