"""The command line: one verb, one report, one exit code.

0 the same, 1 differs, 2 usage or input, 3 undetermined, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import sim

from . import capture, compare, run, seed
from .flags import UsageError
from .result import UNDETERMINED, USAGE, Result
from .terminal import Style
from .text import list_of

__all__ = ["main", "parser"]

VERBS = (seed, run, compare, capture)
CODES = "exit codes: 0 the same, 1 differs, 2 usage or input, 3 undetermined"


class Parser(argparse.ArgumentParser):
    """A parser whose error is one sentence that names the argument."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]+): ", r"\1 ", message)
        message = re.sub(
            r"^(\S+) invalid choice: (\S+) \(choose from (.*)\)$", r"\1 must be one of \3, not \2", message
        )
        message = message.replace("ignored explicit argument", "takes no value, not")
        self.exit(USAGE, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    text = "Check TileLang kernels word for word: simulator against GPU or captured words."
    top = Parser(prog="crosscheck", description=text, epilog=CODES, allow_abbrev=False)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in VERBS:
        verb.add(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing is raised for what a user can do."""
    try:
        top = parser()
        args = top.parse_args(argv)
        if args.verb is None:
            top.error(f"VERB must be given, one of {list_of([v.NAME for v in VERBS], 'or')} (--help says more)")
        code = _run(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(args: argparse.Namespace) -> int:
    """Run the verb and print what it gave."""
    try:
        result: Result = args.run(args, Style(sys.stderr if args.json else sys.stdout))
    except UsageError as error:
        return _fail(args, str(error), USAGE)
    except MemoryError:
        return _fail(args, "--batch, --heads, --seq, --seq-kv or --dim is too large: there is not enough memory", USAGE)
    except sim.Undetermined as error:
        if args.json:
            print(json.dumps({"verb": args.verb, "undetermined": str(error)}))
        return _fail(args, f"undetermined: {error}", UNDETERMINED)
    if args.json:
        print(json.dumps(result.data, allow_nan=False))
    print(result.text, file=sys.stderr if args.json else sys.stdout)
    return result.code


def _fail(args: argparse.Namespace, message: str, code: int) -> int:
    print(f"crosscheck {args.verb}: {message}", file=sys.stderr)
    return code
