"""The verb `support`: what a kernel needs of the simulator, with source lines, and what of it is missing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sim

from .flags import UsageError, arch_flag, kernel_flags, report_flags
from .kernel import load, target
from .report import table
from .result import SAME, USAGE, Result
from .terminal import Style
from .text import count

__all__ = ["add", "run"]

NAME = "support"
MOST_LINES = 8  # source lines that are listed


@dataclass(frozen=True)
class Group:
    """One thing that a kernel needs: how often, where (file:line, in the order of the program), and if it is there."""

    what: str
    number: int
    where: tuple[str, ...]
    supported: bool

    def lines(self) -> str:
        """The places in few words: k.py:12, 14, other.py:3."""
        texts, last = [], ""
        for place in self.where[:MOST_LINES]:
            file, _, line = place.rpartition(":")
            name = Path(file).name
            texts.append(line if name == last else f"{name}:{line}" if name else line)
            last = name
        rest = len(self.where) - MOST_LINES
        return ", ".join([*texts, *([f"and {count(rest, 'line')} more"] if rest > 0 else [])])


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "list what a kernel needs (operators, functions, dtypes, statements) and what is missing"
    codes = "exit codes: 0 nothing is missing, 2 something is, or usage or input"
    parents = [kernel_flags(), arch_flag(), report_flags(gpu=False)]
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=codes, parents=parents)
    parser.add_argument("kernel", metavar="FILE.py:FUNCTION")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Group what the simulator says; exit code 0, or 2 when anything is missing."""
    kernel = load(target(args.kernel), args.args or "", dict(args.size or ()), dict(args.pass_config or ()))
    try:
        needs = sim.support(kernel.prim_func, arch=args.arch or "sm_90", pass_configs=kernel.pass_configs)
    except (NotImplementedError, ValueError) as error:
        raise UsageError(f"KERNEL {args.kernel}: {error}") from error
    groups = _groups(needs)
    missing = [group for group in groups if not group.supported]
    about = f"{kernel.target.function} of {kernel.target.file}, for {args.arch or 'sm_90'}"
    total = f"{count(len(groups), 'thing')} needed, " + (f"{len(missing)} missing" if missing else "none missing")
    lines = [style.paint(about, "bold"), "", *_tables(groups, missing, style), "", total]
    data = {"verb": NAME, "kernel": args.kernel, "name": kernel.name, "supported": not missing}
    data |= {"needs": [vars(group) | {"where": list(group.where)} for group in groups]}
    return Result(USAGE if missing else SAME, "\n".join(lines), data)


def _groups(needs: list[Any]) -> list[Group]:
    """The needs by what they are, in the order of the program; one that is missing anywhere is missing."""
    names = list(dict.fromkeys(need.what for need in needs))
    groups = []
    for what in names:
        those = [need for need in needs if need.what == what]
        where = tuple(dict.fromkeys(need.where for need in those if need.where))
        groups.append(Group(what, len(those), where, all(need.supported for need in those)))
    return groups


def _tables(groups: list[Group], missing: list[Group], style: Style) -> list[str]:
    """What is there, then what is missing."""
    lines: list[str] = []
    for title, those in (("supported", [g for g in groups if g.supported]), ("missing", missing)):
        if those:
            lines += [
                "",
                *table([(title, "count", "lines"), *((g.what, str(g.number), g.lines()) for g in those)], style),
            ]
    return lines[1:] or ["  nothing"]
