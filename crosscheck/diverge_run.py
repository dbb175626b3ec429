"""What the verb `diverge` does: the job of its flags, the GPU's words or recorded ones, the simulator's, compared."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gpu
from gpu.taps import Taps
from sim.captures import Capture

from . import run_kernel
from .diverge import LIMIT
from .diverge_capture import check_inputs, open_capture, recorded, save
from .diverge_report import Outcome, Unsimulated, report, report_unsimulated, to_json, unsimulated_json
from .diverge_taps import Measured, Plan, alone, compare, make_plan, measure, outputs_alone, tapped
from .flags import UsageError, check_out, flag, request
from .job import Input, Job, Output, make_job
from .kernel import FAST_MATH, Kernel, Target
from .result import Result
from .run import one_input
from .simulate import Device, find_gpu
from .specs import fill
from .terminal import Progress, Style

__all__ = ["run"]

TIMEOUT = 120  # seconds


def run(args: argparse.Namespace, style: Style) -> Result:
    """Compare operator by operator; exit code 0, 1 when words differ, 3 when no word can be compared."""
    check_out(args.capture, "--capture")
    if args.capture and args.against:
        raise UsageError("--capture keeps what a GPU gives, and --against takes a capture instead of a GPU")
    capture = open_capture(args) if args.against else None
    job = _job(args)
    if capture is not None:
        check_inputs(args, capture, job)
    device = None if capture else _device(job)
    fast_math = bool(job.kernel.pass_configs.get(FAST_MATH, False))
    taps = Taps(job.kernel.prim_func, _sizes(job), fast_math)
    plan = make_plan(taps, args.taps, args.operators, args.blocks, args.iterations, args.limit or LIMIT)
    job = replace(job, blocks=plan.chosen)
    with Progress(6) as progress:
        progress.step(f"simulating for {job.arch}")
        try:
            outputs = run_kernel.simulated(job, progress).outputs
        except UsageError as error:
            if args.reference is None:
                hint = "its outputs alone can be compared with those of a file, --reference FILE.npz"
                raise UsageError(f"{error}; {hint}") from error
            return _unsimulated(args, job, taps, device, capture, str(error), style)
        if args.reference is not None:
            raise UsageError("--reference is for kernels that the simulator refuses, and it runs this one")
        measured = _measured(args, job, plan, outputs, device, capture, progress)
        outcome = _compared(job, plan, outputs, measured, progress)
        if device and outcome.found and len(plan.sites) > 1:
            outcome = replace(outcome, alone=_alone(outcome, args.timeout or TIMEOUT, progress))
    wrote = save(args, outcome, device) if args.capture and device else []
    return Result(outcome.code, "\n".join([report(outcome, style), *wrote]), to_json(outcome))


def _job(args: argparse.Namespace) -> Job:
    """The kernel of a file, or the flash loop's of the schedule flags. Raises UsageError."""
    if args.kernel is not None:
        run_kernel.check_flags(args)
        return make_job(args)
    for name in ("args", "size", "pass_config"):
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    args = argparse.Namespace(**vars(args) | {"inputs": one_input(args.inputs)})
    asked = request(args)
    (batch, seq_q, heads, dim), (_, seq_kv, heads_kv, _) = asked.q.shape, asked.k.shape
    sizes = (batch, heads, heads_kv, seq_q, seq_kv, dim)
    pf = gpu.flash_attention_kernel(asked.schedule, *sizes, asked.format.name)
    configs = {FAST_MATH: asked.schedule.fast_math}
    kernel = Kernel(Target(Path("gpu/flash.py"), asked.variant), "main", pf, (3,), configs, ())
    parameters = kernel.parameters({})
    words = (asked.q, asked.k, asked.v)
    inputs = [Input(p, asked.inputs, w) for p, w in zip(parameters[:3], words, strict=True)]
    return Job(kernel, parameters, inputs, parameters[3:], True, asked.arch, args.seed or 0, args.blocks, {})


def _sizes(job: Job) -> dict[str, int]:
    """The numbers of symbolic sizes and of integer scalars."""
    scalars = [each for each in job.inputs if each.parameter.shape is None and each.parameter.integer]
    return job.sizes | {each.parameter.name: each.array() for each in scalars}


def _device(job: Job) -> Device:
    """The GPU. Raises UsageError without one."""
    device, reason = find_gpu("auto", job.arch)
    if device is None:
        what = "give a capture of taps instead, --against CAPTURE.npz"
        raise UsageError(f"{reason.removeprefix('no GPU run: ')}: {what}")
    return device


def _measured(
    args: argparse.Namespace, job: Job, plan: Plan, outputs: list[Output], device: Device | None,
    capture: Capture | None, progress: Progress,
) -> Measured:  # fmt: skip
    if device is None:
        return recorded(args, capture, job, plan)
    known = [output.known for output in outputs]
    return measure(job, plan, known, device.name, args.timeout or TIMEOUT, progress.step)


def _compared(job: Job, plan: Plan, outputs: list[Output], measured: Measured, progress: Progress) -> Outcome:
    """The outputs and every run's taps, compared."""
    progress.step(f"simulating the taps for {job.arch}")
    found, changed, words = [], set(), 0
    for each in measured.runs:
        part = plan.with_sites(list(each.taps))
        ours = tapped(job, part, outputs)
        found += compare(part, ours, each)
        changed |= {*ours.changed}
        words += sum(int((~unknown).sum()) for _, unknown in ours.taps.values())
    diffs = {o.parameter.name: o.against(w) for o, w in zip(outputs, measured.outputs, strict=True)}
    return Outcome(job, plan, outputs, measured, diffs, words, sorted(found, key=lambda f: f.order), sorted(changed))


def _alone(outcome: Outcome, timeout: int, progress: Progress) -> bool | None:
    """Whether the first operator that differs does so when it alone is tapped; None: not known."""
    part = outcome.plan.with_sites([outcome.found[0].site.number])
    progress.step("compiling and running with the tap that differs alone")
    run = alone(outcome.job, part, outcome.measured, [o.known for o in outcome.outputs], timeout)
    return None if run is None else bool(compare(part, tapped(outcome.job, part, outcome.outputs), run))


def _unsimulated(
    args: argparse.Namespace, job: Job, taps: Taps, device: Device | None, capture: Capture | None, refusal: str,
    style: Style,
) -> Result:  # fmt: skip
    """The GPU's outputs against a file's, where the simulator refuses the kernel."""
    reference = []
    for p in job.outputs:
        try:
            words = fill(f"@{args.reference}:{p.name}", p.shape or (), p.dtype, 0, 0)
        except ValueError as error:
            raise UsageError(f"--reference: {p.name} {error}") from error
        reference.append(Output(p, words, None))
    found = outputs_alone(job, device.name, args.timeout or TIMEOUT) if device else recorded(args, capture, job, None)
    outcome = Unsimulated(job, args.reference, found.name, refusal, reference, found.outputs, taps.numbers)
    return Result(outcome.code, report_unsimulated(outcome, style), unsimulated_json(outcome))
