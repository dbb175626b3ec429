"""The verb `prove`: can any input within bounds make an output NaN or infinite?"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sim.arch import arch as find_arch
from sim.candidates import Flash, flash_candidates
from sim.prove import Bounds, Proof, prove
from sim.rounding import greatest
from sim.search import Counterexample
from sim.tracer import Place

from .bounds import bound_flags, flash_bounds
from .flags import UsageError, given, kernel_flags, report_flags, schedule_flags
from .inputs import DTYPES
from .prove_question import Question, of_flash, question, within
from .prove_table import table
from .result import DIFFERS, SAME, UNDETERMINED, Result
from .simulate import find_gpu, on_gpu
from .terminal import Progress, Style

__all__ = ["add", "run"]

NAME = "prove"
CODES = "exit codes: 0 proved (or bracketed), 1 refuted, 2 usage or input, 3 open"


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "decide for all inputs within bounds that no NaN or infinity can reach the output"
    parents = [schedule_flags(kernels=True), kernel_flags(), bound_flags(), report_flags()]
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=CODES, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    what = "the greatest |score| that is proved and the least that is broken (flash loop)"
    parser.add_argument("--bracket", action="store_true", help=what)
    what = "every variant with the tiles that TileLang's examples let their tuner try, as one table"
    parser.add_argument("--tuner", action="store_true", help=what)
    parser.set_defaults(run=run, out=None, capture=None, blocks=None)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Prove, or find an input that refutes; exit code 0 proved, 1 refuted, 3 open."""
    if args.tuner and (args.bracket or args.kernel is not None):
        raise UsageError("--tuner is a table of the flash loop by itself: leave out --bracket and FILE.py:FUNCTION")
    if args.tuner:
        return table(args, style)
    if args.bracket:
        return _bracketed(args, style)
    with Progress(2) as progress:
        progress.step("running the kernel on intervals")
        asked = question(args)
        proof = prove(asked.simulate, asked.bounds)
        found = None
        if not proof.proved:
            progress.step("looking for an input that refutes it")
            found = asked.search([place.buffer for _, place in proof.stuck])
    confirmed = _confirmed(args, asked, found) if found is not None and asked.asked is not None else ""
    return _report(asked, proof, found, confirmed, style)


def _confirmed(args: argparse.Namespace, asked: Question, found: Counterexample) -> str:
    """Run a counterexample on the GPU where there is one: what it gave."""
    assert asked.asked is not None
    device, why = find_gpu(args.gpu, asked.asked.arch)
    if device is None:
        return why
    ((words, fmt),) = on_gpu([(found.q, found.k, found.v, asked.asked.schedule)])
    bad = int((fmt.is_nan(words) | fmt.is_inf(words)).sum())
    return f"{device.name}: {bad} of {words.size} outputs are NaN or infinite" + ("" if bad else ", IT DISAGREES")


def _stuck(stuck: list[tuple[str, Place]]) -> Iterator[str]:
    for function, place in stuck[:3]:
        turn = f", turn {place.iteration[-1]}" if place.iteration else ""
        yield f"could not bound {function} into {place.buffer} ({place.file}:{place.line}{turn})"


def _report(asked: Question, proof: Proof, found: Counterexample | None, confirmed: str, style: Style) -> Result:
    limits, lines = within(asked.bounds), [asked.title]
    data: dict[str, Any] = {"verb": NAME} | asked.about | {"bounds": dict(asked.bounds.tensors)}
    data |= {"score_bound": asked.bounds.score, "stuck": [_json(*each) for each in proof.stuck], "reason": proof.reason}
    if proof.proved:
        code, verdict = SAME, "proved"
        lines.append(style.paint("PROVED", "good") + f": no input with {limits} makes an output NaN or infinite")
    elif found is not None:
        code, verdict, cause = DIFFERS, "refuted", found.trace.causes[0]
        lines.append(style.paint("REFUTED", "bad") + f": {found.what}, with {limits}")
        place = cause.place
        where = f"{place.operator} into {place.buffer} ({place.file}:{place.line})" if place.buffer else "the inputs"
        lines.append(f"first cause  {cause.kind} in {where}, {cause.count} elements; crosscheck explain says more")
        data["counterexample"] = {"what": found.what, "kind": cause.kind, "buffer": place.buffer, "gpu": confirmed}
    else:
        code, verdict = UNDETERMINED, "open"
        lines.append(f"OPEN: not proved, and no input was found that refutes it, with {limits}")
    if proof.certain and not proof.proved:
        count = sum(int(mask.sum()) for mask in proof.certain.values())
        lines.append(f"masks        {count} outputs are bad for every input: masks alone decide it")
    if not proof.proved:
        lines += [f"proof        {line}" for line in _stuck(proof.stuck)]
        lines += [f"proof        it ends at {proof.reason}"] if proof.reason else []
    lines += [f"GPU          {confirmed}"] if confirmed else []
    return Result(code, "\n".join(lines), data | {"verdict": verdict})


def _json(function: str, place: Place) -> dict[str, Any]:
    own = {"operator": place.operator, "buffer": place.buffer, "file": place.file, "line": place.line}
    return {"function": function} | own | {"iteration": list(place.iteration)}


def _bracketed(args: argparse.Namespace, style: Style) -> Result:
    """The greatest bound on |score| that is proved and the least that is broken, by bisection over float32 words."""
    if args.kernel is not None:
        raise UsageError("--bracket is of the flash loop's schedules, not of FILE.py:FUNCTION")
    if args.score_bound is not None:
        raise UsageError("--bracket looks for the --score-bound: leave that one out")
    base = flash_bounds(args)
    qk = base.tensors["K"]
    most = float(np.float32(min(qk * qk * given(args, "dim"), greatest(DTYPES["bfloat16"]))))
    asked = question(args)

    def at(score: float) -> Question:
        args.inputs = "const:0"
        return of_flash(args, Bounds(base.tensors, score))

    def proved(score: float) -> bool:
        own = at(score)
        return prove(own.simulate, own.bounds).proved

    with Progress(64) as progress:

        def safe(score: float) -> bool:
            progress.step(f"proving |score| <= {score:.9g}")
            return proved(score)

        def unbroken(score: float) -> bool:
            progress.step(f"searching |score| <= {score:.9g}")
            return at(score).search(["logsum"]) is None

        low, high = _last(safe, most), _last(unbroken, most)
    broken = None if high is not None and high >= most else _next(high)
    data = (
        {"verb": NAME}
        | asked.about
        | {"bracket": "score", "proved": low, "broken": broken, "bounds": dict(base.tensors)}
    )
    values = f"|V| <= {base.tensors['V']:.9g}"
    scale = asked.asked.q.shape[3] ** -0.5 * 1.44269504 if asked.asked is not None else 1
    said = [asked.title, f"bounds on |q.k| before the scale, with {values} and |Q|, |K| <= {qk:.9g}"]
    for name, x in (("proved up to", low), ("broken from", broken)):
        said.append(
            f"{name:<13}" + ("nowhere" if x is None else f"{x:.9g}   (times scale and log2(e): {x * scale:.6g})")
        )
    if low is not None and broken is not None:
        said.append(f"proved is {low / broken:.4f} of broken")
        on_device = _both_sides(args, at(low), at(broken))
        said += [f"GPU          {on_device}"] if on_device else []
        data["gpu"] = on_device
    return Result(SAME, "\n".join(said), data)


def _both_sides(args: argparse.Namespace, safe: Question, unsafe: Question) -> str:
    """Run the input that breaks, and all directed inputs at the proved bound, on the GPU where there is one."""
    assert safe.asked is not None
    device, why = find_gpu(args.gpu, safe.asked.arch)
    if device is None:
        return why
    found, own = unsafe.search(["logsum"]), safe.asked
    assert found is not None and safe.bounds.score is not None
    limits = safe.bounds.tensors
    flash = Flash(own.schedule, find_arch(own.arch), own.format, own.q.shape[1], own.k.shape[1], own.q.shape[3],
                  safe.bounds.score, limits["K"], limits["V"])  # fmt: skip
    inputs = [each.arrays for each in flash_candidates(flash)]
    results = on_gpu([(x["q"], x["k"], x["v"], own.schedule) for x in [found.arrays, *inputs]])
    bad = [int((fmt.is_nan(words) | fmt.is_inf(words)).sum()) for words, fmt in results]
    said = f"{device.name}: {bad[0]} bad outputs at the broken bound"
    return f"{said}; {sum(bad[1:])} in {len(inputs)} inputs at the proved one"


def _last(holds: Callable[[float], bool], most: float) -> float | None:
    """The last float32 from 0 to `most` for which `holds`, which does below it; None where it does not hold at 0."""
    low, high = 0, int(np.float32(most).view(np.uint32))
    if holds(most):
        return most
    if not holds(0.0):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(_number(middle)) else (low, middle)
    return _number(low)


def _number(word: int) -> float:
    return float(np.uint32(word).view(np.float32))


def _next(x: float | None) -> float:
    return 0.0 if x is None else float(np.nextafter(np.float32(x), np.float32(np.inf)))
