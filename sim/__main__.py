"""python -m sim SCRIPT.py ARGS: run a program that uses TileLang on a machine without a GPU."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arch import ARCHS

UNDETERMINED = 3
_OWN = ("<frozen runpy>", "<frozen importlib._bootstrap>", __file__)


class UsageError(Exception):
    """What was asked for cannot be done: one sentence."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sim", usage="%(prog)s [OPTIONS] SCRIPT.py ARGS... | [OPTIONS] -m MODULE ARGS...",
        description="Run a program that uses TileLang without a GPU: its kernels give the words that the GPU would.",
    )  # fmt: skip
    parser.add_argument("--arch", choices=list(ARCHS), default="sm_90", help="the GPU that is simulated (sm_90)")
    parser.add_argument("--limit", type=float, metavar="SECONDS",
                        help="for one call of a kernel; one that would take longer is not begun")  # fmt: skip
    parser.add_argument("--blocks", type=int, metavar="N",
                        help="simulate N thread blocks of each launch, evenly spread: outputs are partial")  # fmt: skip
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments, as python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _checked(options: argparse.Namespace) -> list[str]:
    """The program and its arguments. Raises UsageError."""
    if options.limit is not None and not (options.limit > 0 and math.isfinite(options.limit)):
        raise UsageError(f"--limit must be a number of seconds greater than 0, not {options.limit:g}")
    if options.blocks is not None and options.blocks < 1:
        raise UsageError(f"--blocks must be a number of thread blocks, 1 or more, not {options.blocks}")
    program = options.module or options.script
    if not program:
        raise UsageError("SCRIPT.py must be given, or -m MODULE")
    if not options.module and not Path(program[0]).is_file():
        raise UsageError(f"SCRIPT.py must be a file, and {program[0]} is none")
    return list(program)


def _pretend(options: argparse.Namespace) -> Any:
    """Put the simulator in place of the GPU. The session, and the mode that is entered while the program runs."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile leaves functions as they are
    try:
        importlib.import_module("torch")
        from .script.gpu import Gpu
        from .script.gpu import install as install_gpu
    except ImportError as error:
        raise UsageError(f"torch must be installed (pip install torch): {error}") from error
    from .script.session import Session

    session = Session(options.arch, options.limit, options.blocks)
    install_gpu(options.arch, session.notes.measured)
    _tilelang()
    from .script.kernels import install as install_kernels

    install_kernels(session)
    return session, Gpu()


def _tilelang() -> None:
    """Raise UsageError unless TileLang is there, in the version whose parts are known."""
    from .primfunc.kernel import TILELANG

    wanted = f"TileLang {TILELANG} must be installed (pip install tilelang=={TILELANG})"
    try:
        found = importlib.import_module("tilelang").__version__
    except ImportError as error:
        raise UsageError(f"{wanted}: {error}") from error
    if found != TILELANG:
        raise UsageError(f"{wanted}, not {found}")


def _program(options: argparse.Namespace, program: list[str]) -> Callable[[], Any]:
    """What runs the program as Python would: its arguments, its folder first among those of modules."""
    if options.module:
        sys.argv, sys.path[0] = ["-m", *program[1:]], os.getcwd()
        return lambda: runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    sys.argv, sys.path[0] = program, str(Path(program[0]).resolve().parent)
    return lambda: runpy.run_path(program[0], run_name="__main__")


def _code(run: Callable[[], Any]) -> int:
    """Run a program; its exit code."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        _print(error)
        return 1
    return 0


def _print(error: BaseException) -> None:
    """The traceback, from the program's first line on."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None and where.tb_frame.f_code.co_filename in _OWN:
        where = where.tb_next
    traceback.print_exception(type(error), error, where)


def main(arguments: list[str] | None = None) -> int:
    """The program's own exit code; 3 when it is 0 and outputs of its kernels cannot be known; 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        program = _checked(options)
        session, gpu = _pretend(options)
    except UsageError as error:
        print(f"python -m sim: {error}", file=sys.stderr)
        return 2
    run = _program(options, program)
    with gpu:
        code = _code(run)
    from .script.summary import summary

    sys.stdout.flush()
    print(f"\n{summary(session)}", file=sys.stderr)
    unknown = any(call.undetermined for call in session.notes.calls.values())
    return code or (UNDETERMINED if unknown else 0)


if __name__ == "__main__":
    sys.exit(main())
