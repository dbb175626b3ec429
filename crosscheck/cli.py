"""The command line: one verb, one report, one exit code.

0 the same, 1 differs, 2 usage or input, 3 undetermined, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

import sim

from . import capture, compare, diverge, explain, minimise, prove, run, search, seed, support, sweep
from .flags import UsageError
from .result import SAME, UNDETERMINED, USAGE, Result
from .terminal import Style
from .text import list_of

__all__ = ["main", "parser"]

VERBS = (seed, run, explain, diverge, sweep, prove, search, minimise, support, compare, capture)
CODES = "exit codes: 0 the same, 1 differs, 2 usage or input, 3 undetermined"


class OutputError(Exception):
    """The report cannot be written."""


class Parser(argparse.ArgumentParser):
    """A parser of whole flags, whose error is one sentence that names the argument."""

    def __init__(self, **settings: Any) -> None:
        given: dict[str, Any] = {"allow_abbrev": False, "epilog": CODES} | settings
        super().__init__(**given)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]+): ", r"\1 ", message)
        message = re.sub(
            r"^(\S+) invalid choice: (\S+) \(choose from (.*)\)$", r"\1 must be one of \3, not \2", message
        )
        message = message.replace("ignored explicit argument", "takes no value, not")
        self.exit(USAGE, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        _write(message, file or sys.stderr)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    text = "Check TileLang kernels word for word: simulator against GPU or captured words."
    top = Parser(prog="crosscheck", description=text)
    top.add_argument("--version", action="store_true", help="the version of tilewords")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in VERBS:
        verb.add(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing is raised for what a user can do."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w"))
    try:
        return _command(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _silence()
        return 141
    except OutputError as error:
        with contextlib.suppress(OSError):
            print(f"crosscheck: the report cannot be written: {error}", file=sys.stderr, flush=True)
        _silence()
        return USAGE


def _command(argv: Sequence[str] | None) -> int:
    """Parse and run; raises OutputError and BrokenPipeError."""
    try:
        args = _parsed(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    if args.version:
        _write(f"tilewords {_version()}\n", sys.stdout)
        return SAME
    return _run(args)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an error ends the program with one sentence that names the verb."""
    top = parser()
    args, unknown = top.parse_known_args(_joined(sys.argv[1:] if argv is None else argv))
    top.prog = f"crosscheck {args.verb}" if args.verb else top.prog
    if unknown:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        top.error(f"unknown flag {flags[0]} (--help lists them)" if flags else f"one argument too many: {unknown[0]}")
    if args.verb is None and not args.version:
        top.error(f"VERB must be given, one of {list_of([v.NAME for v in VERBS], 'or')} (--help says more)")
    return args


def _joined(argv: Sequence[str]) -> list[str]:
    """--args and the text after it as one word, so that the text may begin with a minus."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--args" and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("tilewords")
    except metadata.PackageNotFoundError:
        return "of a clone that is not installed"


def _run(args: argparse.Namespace) -> int:
    """Run the verb and print what it gave."""
    try:
        result: Result = args.run(args, Style(sys.stderr if args.json else sys.stdout))
    except UsageError as error:
        return _fail(args, str(error), USAGE)
    except MemoryError:
        sizes = "--batch, --heads, --seq, --seq-kv, --dim, --block-M or --block-N"
        return _fail(args, f"{sizes} is too large: there is not enough memory", USAGE)
    except sim.Undetermined as error:
        if args.json:
            _write(json.dumps({"verb": args.verb, "undetermined": str(error)}) + "\n", sys.stdout)
        return _fail(args, f"undetermined: {error}", UNDETERMINED)
    if args.json:
        _write(json.dumps(result.data, allow_nan=False) + "\n", sys.stdout)
    _write(result.text + "\n", sys.stderr if args.json else sys.stdout)
    return result.code


def _fail(args: argparse.Namespace, message: str, code: int) -> int:
    _write(f"crosscheck {args.verb}: {message}\n", sys.stderr)
    return code


def _write(text: str, stream: TextIO) -> None:
    """Write all of it now. Raises BrokenPipeError, and OutputError when it does not fit."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from error


def _silence() -> None:
    """What the streams still hold goes nowhere, so that the interpreter's end does not fail on it."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(null, stream.fileno())
