"""The verb `sweep`: which combinations of the values of some flags are clean; in parallel, and it can be resumed."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentTypeError
from collections import Counter
from importlib import util
from pathlib import Path
from typing import Any

from .flags import UsageError, file_name, integer, report_flags
from .result import DIFFERS, SAME, UNDETERMINED, Result
from .simulate import basis
from .sweep_axes import Sweep, add_flags, command, make_sweep, named_values, said
from .sweep_file import Rows
from .sweep_html import check_html, write_html
from .sweep_map import WORDS, layout, legend, maps, pictures
from .sweep_row import BAD, VERDICTS
from .sweep_work import Bar, rows_of
from .terminal import Style
from .text import count, list_of

__all__ = ["add", "run"]

NAME = "sweep"
CODES = "exit codes: 0 all that run are clean, 1 some are bad, 2 usage or input, 3 some undetermined and none bad"
MOST = 6  # reasons of refusals that are told


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "say which combinations of the flags' values are clean"
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=CODES, parents=[report_flags(gpu=False)])
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    add_flags(parser)
    add = parser.add_argument_group("the sweep").add_argument
    add("--out", type=file_name, metavar="FILE.jsonl", help="keep each row at once; what is there is not done again")
    add("--jobs", type=integer(1), metavar="N", help="processes (default one for each CPU)")
    add("--map", type=_two, metavar="DOWN,ACROSS", help="the axes of the heat maps (default block_M,block_N)")
    add("--html", type=file_name, metavar="FILE.html", help="write the heat maps as one page as well")
    parser.set_defaults(run=run)


def _two(text: str) -> list[str]:
    names = text.split(",")
    if len(names) != 2 or names[0] == names[1]:
        raise ArgumentTypeError(f"must be two axes like block_M,block_N, not {text!r}")
    return names


def run(args: argparse.Namespace, style: Style) -> Result:
    """Sweep; exit code 1 when a combination is bad, else 3 when one is undetermined, else 0."""
    check_html(args.html)
    sweep = make_sweep(args)
    axes = layout(sweep, args.map)
    rows = _rows(sweep, args.out, args.jobs)
    used = Counter(row["verdict"] for row in rows)
    if used["refused"] == len(rows):
        raise UsageError(f"none of {count(len(rows), 'combination')} can be run, the first because: {rows[0]['why']}")
    found = maps(sweep, rows, axes)
    head = _head(sweep, rows, used)
    if args.html is not None:
        write_html(args.html, sweep, rows, axes, found, head)
    lines = [style.paint(head[0], "bold"), *head[1:], "", *(f"  {line}" for line in legend(axes, used)), ""]
    lines += pictures(found, style) + _tail(sweep, rows, args)
    code = DIFFERS if any(used[each] for each in BAD) else UNDETERMINED if used["undetermined"] else SAME
    return Result(code, "\n".join(lines), {"verb": NAME} | sweep.to_json() | {"verdicts": dict(used), "rows": rows})


def _rows(sweep: Sweep, path: Path | None, jobs: int | None) -> list[dict[str, Any]]:
    """Every row, by number: those of the file, and those that are missing there."""
    with Rows(sweep, path) as kept:
        todo = [(number, each) for number, each in enumerate(sweep) if number not in kept.found]
        if path and kept.found and todo:
            print(f"{path}: {count(len(kept.found), 'row')} of {len(sweep)} are there", file=sys.stderr)
        if todo and jobs != 1 and util.find_spec("joblib") is None:
            print("without joblib in one process (pip install 'tilewords[sweep]' for more)", file=sys.stderr)
        bad = sum(row["verdict"] in BAD for row in kept.found.values())
        try:
            with Bar(len(sweep), len(kept.found)) as bar:
                for row in rows_of(sweep, todo, jobs):
                    kept.add(row)
                    bad += row["verdict"] in BAD
                    bar.step(f"{bad} bad")
        except KeyboardInterrupt:
            _interrupted(sweep, kept)
            raise
        return [kept.found[number] for number in range(len(sweep))]


def _interrupted(sweep: Sweep, kept: Rows) -> None:
    rows = f"{len(kept.found)} of {count(len(sweep), 'row')}"
    where = f"are in {kept.path}; the same command does the others" if kept.path else "are lost without --out"
    print(f"crosscheck sweep: interrupted: {rows} {where}", file=sys.stderr)


def _head(sweep: Sweep, rows: list[dict[str, Any]], used: Counter[str]) -> list[str]:
    """What was swept, and what came of it."""
    lines = [f"sweep of {sweep.kernel or 'the flash loop'}: {count(len(sweep), 'combination')}"]
    lines += _named("words", [basis(arch) for arch in sweep.axes["arch"]] if sweep.kernel is None else [])
    fixed = {name: each[0] for name, each in sweep.axes.items() if len(each) == 1}
    varied = [(name, [said(name, value) for value in sweep.axes[name]]) for name in sweep.varied]
    lines += _named("varied", [f"{name} {', '.join(values)}" for name, values in varied])
    lines += _named("fixed", [named_values(fixed, fixed)] if fixed else [])
    lines += _named("verdicts", [", ".join(f"{used[each]} {WORDS[each]}" for each in reversed(VERDICTS) if used[each])])
    reasons = Counter(row["why"] for row in rows if row["verdict"] == "refused").most_common()
    more = [f"and {len(reasons) - MOST} more reasons"] if len(reasons) > MOST else []
    lines += _named("refused", [f"{number}: {why}" for why, number in reasons[:MOST]] + more)
    return lines + _named("error", _errors(rows))


def _named(name: str, texts: list[str]) -> list[str]:
    """Lines with a name before the first of them."""
    return [f"  {name if n == 0 else '':<9}  {text}" for n, text in enumerate(texts)]


def _errors(rows: list[dict[str, Any]]) -> list[str]:
    """The largest error against float64, for the verdicts that leave something to compare."""
    found = {
        verdict: [row["float64"]["max_abs"] for row in rows if row["verdict"] == verdict and "float64" in row]
        for verdict in ("clean", "damage")
    }
    return [f"max {max(each):.6g} against float64 where {WORDS[v]}" for v, each in found.items() if each]


def _tail(sweep: Sweep, rows: list[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    """How to go on."""
    wanted = [row for verdict in VERDICTS[:4] for row in rows if row["verdict"] == verdict]
    lines: list[str] = []
    if wanted:
        lines += ["", f"  why, for example: {command(sweep, wanted[0]['combination'], 'explain')}"]
    wrote = [str(path) for path in (args.out, args.html) if path is not None]
    return lines + ([f"  wrote {list_of(wrote)}"] if wrote else [])
