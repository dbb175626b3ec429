"""The verb `search`: look for an input within bounds that makes an output NaN or infinite."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import sim
from sim.captures import save_arrays
from sim.formats import Format, to_words
from sim.search import Counterexample, Tensor, search_kernel, search_schedule
from sim.trace import Cause

from .bounds import bound_flags, flash_bounds, job_bounds
from .diff import diff
from .explain_causes import KINDS, formula
from .flags import (
    Request,
    UsageError,
    check_out,
    file_name,
    flag,
    given,
    integer,
    kernel_flags,
    report_flags,
    request,
    schedule_flags,
)
from .job import Job, make_job, words_of
from .result import DIFFERS, UNDETERMINED, Result
from .run_kernel import check_flags, on_gpu_words, refusal
from .simulate import find_gpu, on_gpu
from .terminal import Progress, Style
from .text import list_of

__all__ = ["add", "cause_text", "run", "simulated", "with_arrays"]

NAME = "search"
CODES = "exit codes: 1 an input was found, 3 none was found (which is no proof), 2 usage or input"


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "look for an input within bounds that makes an output NaN or infinite"
    parents = [schedule_flags(kernels=True), kernel_flags(), bound_flags(infinite=True), report_flags()]
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=CODES, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    add = parser.add_argument_group("what is tried").add_argument
    add("--tries", type=integer(0), default=16, metavar="N", help="random inputs after the directed ones (default 16)")
    add("--output", nargs="+", metavar="NAME", help="of a kernel: these outputs alone count (default all)")
    add("--out", type=file_name, metavar="FILE.npz", help="save the inputs that were found")
    parser.set_defaults(run=run, capture=None, blocks=None, timeout=None)


@dataclass(frozen=True)
class Found:
    """What was looked for, and what was found: on_gpu says how a GPU's output compares."""

    title: str
    about: dict[str, Any]
    within: str
    counterexample: Counterexample | None
    integers: dict[str, np.ndarray]
    on_gpu: Callable[[], str]


def run(args: argparse.Namespace, style: Style) -> Result:
    """Search; exit code 1 when an input was found, 3 when none was."""
    check_out(args.out, "--out")
    with Progress(1) as progress:
        progress.step("looking for an input that makes a bad output")
        found = _of_schedule(args) if args.kernel is None else _of_kernel(args)
    own = found.counterexample
    data = {"verb": NAME} | found.about | {"within": found.within, "found": None if own is None else own.what}
    if own is None:
        text = f"{found.title}\nnot found: no input that was tried, with {found.within}, makes a bad output"
        return Result(UNDETERMINED, text, data)
    cause, live = own.trace.causes[0], found.on_gpu()
    lines = [found.title, style.paint("FOUND", "red") + f": {own.what}, with {found.within}"]
    lines += [f"  first cause  {cause_text(cause)}", *([f"  GPU          {live}"] if live else [])]
    if args.out:
        _save(args, own.arrays, found.integers)
        form = str(args.out) if args.kernel is None else f"NAME=@{args.out}:NAME"
        lines.append(f"  wrote {args.out}: explain and minimise take it as --inputs {form}")
    place = {"kind": cause.kind, "operator": cause.place.operator, "buffer": cause.place.buffer}
    return Result(DIFFERS, "\n".join(lines), data | {"cause": place, "gpu": live or None})


def cause_text(cause: Cause) -> str:
    """What a cause is and where, in one line."""
    place = cause.place
    if cause.kind == "input":
        return f"{place.buffer}{cause.elements[0].tolist()} is not finite"
    where = f"{place.operator} to {place.buffer}" + (f" ({place.file}:{place.line})" if place.line else "")
    return f"{KINDS.get(cause.kind, cause.kind)} in {where}" + (f": {formula(cause)}" if cause.operands else "")


def _save(args: argparse.Namespace, arrays: dict[str, Any], integers: dict[str, np.ndarray]) -> None:
    try:
        save_arrays(args.out, arrays, integers)
    except OSError as error:
        raise UsageError(f"--out {args.out} cannot be written: {error.strerror}") from error


def _of_schedule(args: argparse.Namespace) -> Found:
    """The flash loop; all batches and heads are one and the same."""
    for name in ("args", "size", "pass_config", "output"):
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    if args.inputs is not None:
        raise UsageError("--inputs are of one run: a search makes them, within --score-bound, --qk-bound, --v-bound")
    args.inputs, args.batch, args.heads, args.heads_kv = "const:0", None, None, None
    asked, bounds = request(args), flash_bounds(args)
    found = search_schedule(
        asked.schedule, asked.q.shape[1], asked.q.shape[3], score_bound=bounds.score, qk_bound=bounds.tensors["K"],
        v_bound=bounds.tensors["V"], dtype=asked.format.name, arch=asked.arch, seq_kv=asked.k.shape[1],
        tries=args.tries, seed=given(args, "seed"),
    )  # fmt: skip
    s = asked.schedule
    mode = f"{'causal' if s.causal else 'full'}, {'fast math' if s.fast_math else 'precise math'}"
    title = f"{asked.variant}, {s.block_M}x{s.block_N} blocks, {mode}, simulated for {asked.arch}"
    limits = {"q.k": bounds.score, "q| and |k": bounds.tensors["K"], "v": bounds.tensors["V"]}
    if bounds.score is not None and args.qk_bound is None:
        del limits["q| and |k"]
    within = list_of([f"|{name}| <= {bound:.9g}" for name, bound in limits.items() if bound is not None])
    about = asked.describe()
    return Found(title, about, within, found, {}, lambda: _schedule_on_gpu(args, asked, found))


def _schedule_on_gpu(args: argparse.Namespace, asked: Request, found: Any) -> str:
    device, reason = find_gpu(args.gpu, asked.arch)
    if device is None:
        return reason
    simulated = to_words(sim.flash_attention(found.q, found.k, found.v, asked.schedule, arch=asked.arch))
    try:
        (live,) = on_gpu([(found.q, found.k, found.v, asked.schedule)])
    except UsageError as error:
        if args.gpu == "require":
            raise
        return f"no GPU run: {error}"
    return _confirmed(device.name, simulated[1], live[0], diff(simulated, live).same)


def _confirmed(device: str, fmt: Any, words: np.ndarray, same: bool) -> str:
    bad = int((fmt.is_nan(words) | fmt.is_inf(words)).sum()) if isinstance(fmt, Format) else 0
    return f"{bad} of {words.size} words are NaN or infinite on the {device}, " + (
        "all words as simulated" if same else "and words differ from the simulated ones"
    )


def _of_kernel(args: argparse.Namespace) -> Found:
    if args.score_bound is not None:
        raise UsageError(f"--score-bound is of the flash loop: {args.kernel} has --bound NAME=B for its float inputs")
    out, args.out = args.out, None  # which `run` keeps for the flash loop
    check_flags(args)
    args.out, job = out, make_job(args)
    bounds = job_bounds(args, job).tensors
    names = [p.name for p in job.outputs]
    if wrong := [name for name in args.output or () if name not in names]:
        raise UsageError(f"--output must name an output, {list_of(names, 'or')}, not {wrong[0]!r}")
    tensors = {
        x.parameter.name: Tensor(x.words.shape, x.parameter.dtype, bounds[x.parameter.name])
        for x in job.inputs
        if isinstance(x.parameter.dtype, Format) and x.parameter.use != "out"
    }
    found = search_kernel(
        lambda arrays: simulated(with_arrays(job, arrays)), tensors, tries=args.tries, seed=given(args, "seed"),
        outputs=args.output or (),
    )  # fmt: skip
    title = f"{job.kernel.target.function} of {job.kernel.target.file}, simulated for {job.arch}"
    within = list_of([f"|{name}| <= {bounds[name]:.9g}" for name in tensors] or ["no float input"])
    integers = {x.parameter.name: x.words.view(x.parameter.dtype.value_type) for x in job.inputs if x.parameter.integer}
    about = {"kernel": str(job.kernel.target), "arch": job.arch, "pass_configs": dict(job.kernel.pass_configs)}
    return Found(title, about, within, found, integers, lambda: _kernel_on_gpu(args, job, found))


def with_arrays(job: Job, arrays: dict[str, Any]) -> Job:
    """The job with the words of some inputs replaced."""
    inputs = [
        replace(x, words=arrays[x.parameter.name][0], spec="found") if x.parameter.name in arrays else x
        for x in job.inputs
    ]
    return replace(job, inputs=inputs)


def simulated(job: Job) -> Callable[[Callable[..., Any]], Any]:
    """A function that simulates a job with a machine. Raises UsageError for what the simulator refuses."""

    def run(machine: Callable[..., Any]) -> Any:
        arrays = [x.array() for x in job.inputs]
        configs = job.kernel.pass_configs
        try:
            return sim.simulate(job.prim_func(), *arrays, arch=job.arch, pass_configs=configs, machine=machine)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise refusal(job, error) from error

    return run


def _kernel_on_gpu(args: argparse.Namespace, job: Job, found: Any) -> str:
    device, reason = find_gpu(args.gpu, job.arch)
    if device is None:
        return reason
    own = with_arrays(job, found.arrays)
    words, reason, failure = on_gpu_words(own, args.timeout or 120)
    if words is None:
        return failure or reason
    result = simulated(own)(sim.machine.Exact)
    texts = []
    for p, live in zip(job.outputs, words, strict=True):
        at = result.names.index(p.name)
        ours, unknown = words_of(result.outputs[at], p.dtype), result.undetermined[at]
        same = bool((ours == live if unknown is None else (ours == live) | unknown).all())
        texts.append(f"{p.name}: " + _confirmed(device.name, p.dtype, live, same))
    return "; ".join(texts)
