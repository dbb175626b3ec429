"""The verb `run` for any kernel of a file: simulate it, run it on the GPU or take captured words, compare."""

from __future__ import annotations

import argparse
import traceback
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import sim

from .flags import SCHEDULE_FLAGS, UsageError, check_out, file_name, flag, integer
from .job import Job, Outcome, Output, compare, make_job, words_of
from .job_capture import against_capture, check_inputs, open_capture, save
from .report import report, to_json
from .result import Result
from .simulate import find_gpu
from .terminal import Progress, Style
from .text import count, list_of

__all__ = [
    "FLAGS",
    "add_flags",
    "as_json",
    "block_numbers",
    "check_flags",
    "on_gpu_words",
    "refusal",
    "run",
    "simulated",
]

FLAGS = ("args", "size", "pass_config", "blocks", "timeout", "capture", "against")
SHARED = ("arch", "inputs", "seed", "fast_math")  # the schedule's flags that a kernel has, too


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that only a kernel of a file has."""
    add = parser.add_argument_group("what is run, and compared").add_argument
    add("--blocks", type=block_numbers, metavar="0,3", help="simulate only these thread blocks of each launch")
    add("--timeout", type=integer(1), metavar="SECONDS", help="for compiling and running on the GPU (default 120)")
    add("--capture", type=file_name, metavar="OUT.npz", help="keep the GPU's words, with a manifest beside them")
    add("--against", type=file_name, metavar="CAPTURE.npz", help="compare with captured words, on their inputs")


def block_numbers(text: str) -> list[int]:
    """The argparse type of thread blocks' numbers."""
    numbers = text.split(",")
    if not all(each.isascii() and each.isdigit() for each in numbers):
        raise ArgumentTypeError(f"must be numbers of thread blocks like 0,3, not {text!r}")
    return sorted({int(each) for each in numbers})


def run(args: argparse.Namespace, style: Style) -> Result:
    """Simulate a kernel; exit code 0, 1 when words differ, 3 when some cannot be known and none differs."""
    check_flags(args)
    capture = open_capture(args) if args.against else None
    job = make_job(args)
    if capture is not None:
        check_inputs(job, args.against, capture)
    device, reason = find_gpu("require" if args.capture else args.gpu, job.arch)
    with Progress(2 if device else 1) as progress:
        progress.step(f"simulating for {job.arch}")
        outcome = simulated(job, progress)
        words: list[np.ndarray] | None = None
        failure = ""
        if device:
            progress.step(f"compiling and running on the {device.name}")
            words, reason, failure = on_gpu_words(job, args.timeout or 120)
    compared = [against_capture(outcome, args.against, capture)] if capture is not None else []
    compared += [compare(outcome, device.name, words)] if device and words is not None else []
    outcome = replace(outcome, compared=compared, device=device, reason=reason, failure=failure)
    wrote = save(args, outcome, words) if args.capture else []
    text = "\n".join([report(outcome, style), *wrote])
    return Result(outcome.code(required=args.gpu == "require" or args.capture is not None), text, to_json(outcome))


def check_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for what a kernel of a file has not."""
    for name in (*SCHEDULE_FLAGS, "out"):
        if getattr(args, name) is not None and name not in SHARED:
            raise UsageError(f"{flag(name)} is of the flash loop, and {args.kernel} is a kernel of its own")
    check_out(args.capture, "--capture")
    if args.capture and args.gpu == "off":
        raise UsageError("--capture keeps the GPU's words, and --gpu is off")


def simulated(job: Job, progress: Progress) -> Outcome:
    """What the simulator gives. Raises UsageError for what it refuses, and for its own faults."""
    try:
        result = sim.simulate(
            job.prim_func(),
            *(each.array() for each in job.inputs),
            arch=job.arch,
            pass_configs=job.kernel.pass_configs,
            blocks=job.blocks,
            progress=_blocks_done(progress) if progress.shown else None,
        )
    except Exception as error:
        raise refusal(job, error) from error
    if missing := [p.name for p in job.outputs if p.name not in result.names]:
        raise UsageError(f"KERNEL {job.kernel.target}: the simulator does not see how it writes {list_of(missing)}")
    masks = zip(result.outputs, result.undetermined, result.left_out, strict=True)
    found = dict(zip(result.names, masks, strict=True))
    outputs = [Output(p, words_of(found[p.name][0], p.dtype), *found[p.name][1:]) for p in job.outputs]
    return Outcome(job, outputs, result.events, result.basis)


def _blocks_done(progress: Progress) -> Callable[[int, int], None]:
    text = progress.text
    return lambda done, of: progress.detail(f"{text}, {done} of {count(of, 'thread block')}")


def refusal(job: Job, error: Exception) -> UsageError:
    """What the simulator refuses, by its own sentence; anything else is a fault of it, and says where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, MemoryError):
        return UsageError(f"KERNEL {job.kernel.target} has tensors or tiles too large: there is not enough memory")
    if isinstance(error, NotImplementedError) or (where.line or "").startswith("raise "):
        return UsageError(f"KERNEL {job.kernel.target}: {error}")
    place = f"{Path(where.filename).name}:{where.lineno}"
    said = f"{type(error).__name__}: {' '.join(str(error).split())} at {place}"
    return UsageError(f"KERNEL {job.kernel.target}: a fault of the simulator, which does not run it ({said})")


def on_gpu_words(job: Job, timeout: int) -> tuple[list[np.ndarray] | None, str, str]:
    """The GPU's words; or None, why the kernel did not run, and how it failed if it did."""
    import gpu

    pf = job.prim_func()
    kernel = gpu.Kernel(
        as_json(pf),
        tuple(each.argument() for each in job.inputs),
        tuple(p.number for p in job.outputs),
        job.made,
        job.kernel.pass_configs,
        job.kernel.compile_flags,
    )
    try:
        return gpu.run_kernel(kernel, timeout), "", ""
    except gpu.GpuUnavailable as error:
        return None, str(error), ""
    except gpu.KernelError as error:
        return (None, f"no GPU run: {error}", "") if error.kind == "compile" else (None, "", str(error))


def as_json(pf: Any) -> str:
    """The PrimFunc as TVM's JSON, without what the request says beside it."""
    from tilelang import tvm

    for name in ("tilelang_out_idx", "tilelang_pass_configs", "tilelang_compile_flags"):
        pf = pf.without_attr(name) if name in (pf.attrs or {}) else pf
    return str(tvm.ir.save_json(pf))
