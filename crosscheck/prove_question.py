"""What the flags of `prove` ask: a kernel, its bounds, and how to look for an input that refutes it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sim
from sim.formats import Format
from sim.prove import Bounds
from sim.search import Counterexample, Tensor, search_kernel, search_schedule

from .bounds import flash_bounds, job_bounds
from .flags import Request, UsageError, request
from .job import Job, make_job
from .run_kernel import check_flags, refusal

__all__ = ["Question", "of_flash", "question", "within"]


@dataclass
class Question:
    """A kernel and the bounds of its inputs.

    simulate: machine -> what the kernel gives; search: names of buffers to aim at -> a counterexample, None if none was
    found; about: what it is, as JSON types; title: in words
    """

    title: str
    about: dict[str, Any]
    bounds: Bounds
    simulate: Callable[[Callable[..., Any]], Any]
    search: Callable[[list[str]], Counterexample | None]
    asked: Request | None = None


def question(args: argparse.Namespace) -> Question:
    """What the flags ask. Raises UsageError."""
    if args.kernel is not None:
        check_flags(args)
        return _of_job(args, make_job(args))
    for name in ("args", "size", "pass_config"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is of a kernel: give FILE.py:FUNCTION too")
    if args.inputs is not None:
        raise UsageError(
            "--inputs are of one run: a proof is of all inputs within --score-bound, --qk-bound, --v-bound"
        )
    args.inputs = "const:0"
    return of_flash(args, flash_bounds(args))


def of_flash(args: argparse.Namespace, bounds: Bounds) -> Question:
    """The flash loop; all batches and heads are one and the same."""
    for name in ("batch", "heads", "heads_kv"):
        setattr(args, name, None)
    asked = request(args)

    def simulate(machine: Callable[..., Any]) -> Any:
        return sim.flash_attention(*asked.arrays(), asked.schedule, arch=asked.arch, machine=machine)

    def search(hints: list[str]) -> Counterexample | None:
        return search_schedule(
            asked.schedule, asked.q.shape[1], asked.q.shape[3], score_bound=bounds.score,
            qk_bound=bounds.tensors["K"], v_bound=bounds.tensors["V"], dtype=asked.format.name, arch=asked.arch,
            seq_kv=asked.k.shape[1], hints=hints, tries=8,
        )  # fmt: skip

    s = asked.schedule
    mask, math = "causal" if s.causal else "full", "fast math" if s.fast_math else "precise math"
    title = f"{asked.variant}, {s.block_M}x{s.block_N} blocks, {mask}, {math}, {asked.q.shape[1]} queries, "
    title += f"{asked.k.shape[1]} keys of {asked.q.shape[3]} {asked.format.name}, {asked.arch}"
    return Question(title, asked.describe(), bounds, simulate, search, asked)


def _of_job(args: argparse.Namespace, job: Job) -> Question:
    bounds, configs = job_bounds(args, job), job.kernel.pass_configs

    def simulated(arrays: dict[str, Any], machine: Callable[..., Any]) -> Any:
        own = [arrays.get(x.parameter.name, x.array()) for x in job.inputs]
        own = [(x[0].copy(), x[1]) if isinstance(x, tuple) else x for x in own]
        try:
            return sim.simulate(job.prim_func(), *own, arch=job.arch, pass_configs=configs, machine=machine)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise refusal(job, error) from error

    def search(hints: list[str]) -> Counterexample | None:
        tensors = {
            x.parameter.name: Tensor(x.words.shape, x.parameter.dtype, bounds.tensors[x.parameter.name])
            for x in job.inputs
            if isinstance(x.parameter.dtype, Format)
        }
        found = search_kernel(lambda arrays: lambda machine: simulated(arrays, machine), tensors, hints=hints)
        return found if bounds.score is None else None  # whose scores may be outside of their bound

    title = f"{job.kernel.target.function} of {job.kernel.target.file}, {job.arch}"
    return Question(title, {"kernel": str(job.kernel.target)}, bounds, lambda m: simulated({}, m), search)


def within(bounds: Bounds) -> str:
    parts = [] if bounds.score is None else [f"|{'.'.join(bounds.scored[:2]).lower()}| <= {bounds.score:.9g}"]
    return " and ".join(parts + [f"|{name}| <= {bound:.9g}" for name, bound in bounds.tensors.items()])
