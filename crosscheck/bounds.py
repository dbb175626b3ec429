"""The flags that bound inputs, shared by the verbs that speak of all inputs at once."""

from __future__ import annotations

import argparse
import math
from argparse import ArgumentTypeError
from typing import Any

from sim.formats import Format
from sim.prove import Bounds
from sim.rounding import greatest

from .flags import UsageError, flag, given
from .inputs import DTYPES
from .job import Job
from .text import list_of

__all__ = ["bound_flags", "flash_bounds", "job_bounds", "positive"]


def positive(text: str) -> float:
    """The argparse type of a bound."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be a finite number of at least 0, not {text!r}")
    return value


def _named(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentTypeError(f"must be NAME=BOUND, not {text!r}")
    return name, positive(value)


def _named_or_inf(text: str) -> tuple[str, float]:
    """As `_named`; inf too, which allows infinities."""
    name, _, value = text.partition("=")
    return (name, math.inf) if value == "inf" and name.isidentifier() else _named(text)


def bound_flags(infinite: bool = False) -> argparse.ArgumentParser:
    """The parent parser with the bounds of the inputs; `infinite`: --bound may be inf."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("bounds of the inputs").add_argument
    add("--score-bound", type=positive, metavar="B", help="of each |q.k|, before the scale")
    add("--qk-bound", type=positive, metavar="B", help="of each |q| and |k| (default: any finite number)")
    add("--v-bound", type=positive, metavar="W", help="of each |v| (default: any finite number)")
    what = "of a kernel's float inputs" + ("; inf allows infinities, and then only NaN is bad" if infinite else "")
    kind = _named_or_inf if infinite else _named
    add("--bound", nargs="+", action="extend", type=kind, metavar="NAME=B", help=what)
    return parser


def flash_bounds(args: argparse.Namespace) -> Bounds:
    """The bounds of the flash loop's inputs. Raises UsageError."""
    if args.bound is not None:
        raise UsageError("--bound is of a kernel's inputs: the flash loop has --score-bound, --qk-bound and --v-bound")
    most = greatest(DTYPES[given(args, "dtype")])
    qk, v = (most if x is None else min(x, most) for x in (args.qk_bound, args.v_bound))
    return Bounds({"Q": qk, "K": qk, "V": v}, args.score_bound)


def job_bounds(args: argparse.Namespace, job: Job) -> Bounds:
    """The bounds of a kernel's float inputs: those that are named, else any finite number. Raises UsageError."""
    floats = {x.parameter.name: x.parameter.dtype for x in job.inputs if isinstance(x.parameter.dtype, Format)}
    groups: dict[str, Any] = {
        "qk_bound": [n for n in floats if n[:1] in "QK"],
        "v_bound": [n for n in floats if n == "V"],
    }
    bounds = {name: greatest(dtype) for name, dtype in floats.items()}
    for name, members in groups.items():
        value = getattr(args, name)
        if value is not None and not members:
            raise UsageError(
                f"{flag(name)} bounds inputs of those names, and {job.kernel.target} has none: use --bound"
            )
        bounds |= {member: value for member in members if value is not None}
    for name, value in args.bound or []:
        if name not in floats:
            raise UsageError(f"--bound must name a float input, {list_of(list(floats), 'or')}, not {name!r}")
        bounds[name] = value
    if args.score_bound is not None and len(groups["qk_bound"]) < 2:
        raise UsageError(f"--score-bound is of dot products of inputs Q and K, and {job.kernel.target} has no such two")
    return Bounds(
        {n: b if b == math.inf else min(b, greatest(floats[n])) for n, b in bounds.items()},
        args.score_bound,
        groups["qk_bound"],
    )
