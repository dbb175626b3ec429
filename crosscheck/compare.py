"""The verb `diff`: two files of words, array by array."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.captures import Arrays, CaptureError, load_arrays

from .diff import Diff, diff
from .flags import UsageError, file_name, report_flags
from .result import DIFFERS, SAME, Result
from .rows import per_head
from .terminal import Style
from .text import count

__all__ = ["add", "run"]

NAME = "diff"


@dataclass(frozen=True)
class Compared:
    """One array: the difference, or the reason why there is none to make; `rows` says where, for a 4-D array."""

    name: str
    found: Diff | None
    reason: str = ""
    rows: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return self.found is not None and self.found.same

    def text(self) -> str:
        if self.found is None:
            return f"{self.name}: {self.reason}"
        return "\n".join([self.found.message(self.name, "A", "B"), *(f"  in {line}" for line in self.rows)])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "same": self.same,
            "diff": self.found and self.found.to_json(),
            "reason": self.reason or None,
        }


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "compare two files of words, every array by its name"
    parser = verbs.add_parser(NAME, help=text, description=text, parents=[report_flags(gpu=False)])
    parser.add_argument("a", type=file_name, metavar="A.npz")
    parser.add_argument("b", type=file_name, metavar="B.npz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, style: Style) -> Result:
    """Compare; exit code 0 when both files hold the same arrays, word for word."""
    a, b = _load(args.a, "A.npz"), _load(args.b, "B.npz")
    if not any(words.size for words, _ in (*a.values(), *b.values())):
        raise UsageError(f"A.npz {args.a} and B.npz {args.b} must hold words to compare, and both are empty")
    compared = [_compare(name, a, b) for name in [*a, *(name for name in b if name not in a)]]
    different = [item for item in compared if not item.same]
    total = f"{count(len(compared), 'array')}, " + (f"{len(different)} different" if different else "all the same")
    lines = [style.paint(item.text(), "green" if item.same else "red") for item in compared]
    data = {"verb": "diff", "a": str(args.a), "b": str(args.b), "same": not different}
    data |= {"arrays": [item.to_json() for item in compared]}
    return Result(DIFFERS if different else SAME, "\n".join([*lines, total]), data)


def _load(path: Path, name: str) -> Arrays:
    try:
        return load_arrays(path)
    except (CaptureError, OSError) as error:
        raise UsageError(f"{name}: {error}") from error


def _compare(name: str, a: Arrays, b: Arrays) -> Compared:
    if name not in a or name not in b:
        return Compared(name, None, f"only in {'A' if name in a else 'B'}")
    try:
        found = diff(a[name], b[name])
    except ValueError as error:
        return Compared(name, None, str(error).replace("actual and expected", "A and B"))
    except TypeError as error:
        raise UsageError(f"{name} in {error}") from error
    flags = a[name][0] != b[name][0]
    rows = per_head(flags) if flags.ndim == 4 and not found.same else []
    return Compared(name, found, rows=tuple(rows))
