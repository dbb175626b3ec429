"""What `explain` explains, from its flags: a schedule, a cell of the seed's table, or a kernel of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import sim
from sim.trace import Trace, follow

from .explain_causes import Subject
from .explain_flash import Flash
from .flags import SCHEDULE_FLAGS, UsageError, flag, given, request
from .job import Job, make_job
from .report import describe
from .run import one_input
from .run_kernel import check_flags, refusal
from .seed import CAPTURES, CASES, cell_job, seed_capture
from .simulate import basis
from .text import list_of, shape

__all__ = ["KERNEL_FLAGS", "followed", "of_flash", "subject"]

KERNEL_FLAGS = ("args", "size", "pass_config", "blocks")
Explained = tuple[Subject, Callable[[Exception], Exception]]  # and what its errors are said as


def subject(args: argparse.Namespace) -> Explained:
    """What the flags name. Raises UsageError."""
    if args.kernel is not None:
        if args.seed_cell is not None:
            raise UsageError(f"--seed-cell is of the seed's table, and {args.kernel} is a kernel of its own")
        check_flags(args)
        job = make_job(args)
        return _of_job(job), lambda error: refusal(job, error)
    for name in KERNEL_FLAGS:
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    return (_of_cell(args) if args.seed_cell is not None else _of_schedule(args)), _said


def followed(explained: Explained) -> Trace:
    """The trace of a subject. Raises UsageError for what the simulator refuses, sim.Undetermined."""
    own, said = explained
    try:
        return follow(own.run)
    except (UsageError, sim.Undetermined):
        raise
    except Exception as error:
        raise said(error) from error


def _said(error: Exception) -> Exception:
    """What the flash loop refuses, by its own sentence; anything else stays as it is."""
    return UsageError(str(error)) if isinstance(error, ValueError | TypeError | NotImplementedError) else error


def _of_schedule(args: argparse.Namespace) -> Subject:
    args.inputs = one_input(args.inputs)
    asked = request(args)
    flash = Flash(asked.schedule, asked.arch, *asked.arrays())
    about = asked.describe()
    return of_flash(asked.variant, flash, f"{asked.inputs}, {asked.format.name}", about)


def _of_cell(args: argparse.Namespace) -> Subject:
    """A cell of the seed's table, on the inputs that were captured."""
    for name in SCHEDULE_FLAGS:
        if getattr(args, name) is not None and name != "arch":
            raise UsageError(f"{flag(name)} is fixed by --seed-cell (--arch is free)")
    case_name, _, variant = args.seed_cell.rpartition("/")
    cases = {case.name: case for case in CASES}
    if case_name not in cases or variant not in sim.VARIANTS:
        names = f"{list_of(list(cases), 'or')}, and VARIANT {list_of(list(sim.VARIANTS), 'or')}"
        raise UsageError(f"--seed-cell must be CASE/VARIANT with CASE {names}, not {args.seed_cell!r}")
    q, k, v, schedule = cell_job(seed_capture(CAPTURES), cases[case_name], variant)
    flash = Flash(schedule, given(args, "arch"), q, k, v)
    about = {"variant": variant, "schedule": dict(vars(schedule)), "arch": flash.arch, "seed_cell": args.seed_cell}
    return of_flash(variant, flash, f"captured, of the seed's {case_name}", about)


def of_flash(variant: str, flash: Flash, inputs: str, about: dict[str, Any]) -> Subject:
    """A run of the flash loop; `variant` and `inputs` say what they are, `about` says all as JSON types."""
    s = flash.schedule
    mode = f"{'causal' if s.causal else 'full'}, {'fast math' if s.fast_math else 'precise math'}"
    title = f"{variant}, {s.block_M}x{s.block_N} blocks, {mode}, simulated for {flash.arch}"
    notes = [
        f"words      {basis(flash.arch)}",
        f"inputs     {inputs}; q {shape(flash.q[0])}, k and v {shape(flash.k[0])}",
    ]
    return Subject(title, notes, about, flash.run, lambda m, block: flash.run(m, [flash.place(block)]), flash)


def _of_job(job: Job) -> Subject:
    def run(machine: Callable[..., Any], blocks: list[int] | None = job.blocks) -> Any:
        arrays = (each.array() for each in job.inputs)  # which it writes to
        configs = job.kernel.pass_configs
        return sim.simulate(
            job.prim_func(), *arrays, arch=job.arch, pass_configs=configs, blocks=blocks, machine=machine
        )

    title = f"{job.kernel.target.function} of {job.kernel.target.file}, simulated for {job.arch}"
    notes = [f"config     {k}={v}" for k, v in job.kernel.pass_configs.items()]
    notes += [f"inputs     {each.parameter.name} {list(each.parameter.shape or ())} {each.spec}" for each in job.inputs]
    if job.blocks is not None:
        notes.append(f"blocks     only {list_of([str(b) for b in job.blocks])} of each launch")
    return Subject(title, notes, describe(job), run, lambda machine, block: run(machine, [block]))
