"""The one set of flags that describes a schedule and its inputs, shared by every verb.

Every flag is None until it is given, so that a verb can tell what was asked from what is default.
"""

from __future__ import annotations

import argparse
import ast
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.arch import arch
from sim.captures import CaptureError, load_arrays
from sim.flash import VARIANTS, Schedule
from sim.formats import Format

from . import inputs
from .text import list_of
from .text import shape as shape_of

__all__ = [
    "DEFAULTS",
    "SCHEDULE_FLAGS",
    "Request",
    "UsageError",
    "arch_flag",
    "arch_name",
    "check_out",
    "family_or_file",
    "file_name",
    "flag",
    "given",
    "integer",
    "kernel_flags",
    "key_and_value",
    "one_of",
    "report_flags",
    "request",
    "schedule_flags",
]

DEFAULTS: dict[str, Any] = {
    "variant": "running_max", "block_M": 64, "block_N": 64, "threads": 128, "stages": 0, "mask": "full",
    "batch": 1, "heads": 1, "heads_kv": None, "seq": 256, "seq_kv": None, "dim": 128, "dtype": "float16",
    "fast_math": True, "arch": "sm_90", "inputs": "normal", "seed": 0,
}  # fmt: skip
SHAPE_FLAGS = ("batch", "heads", "heads_kv", "seq", "seq_kv", "dim")
SCHEDULE_FLAGS = tuple(DEFAULTS)
MOST = 2**31 - 1
# Limits on what is simulated, so that nothing runs out of memory, or into the next day, unannounced.
MOST_ELEMENTS = 2**25  # of q, of k: a few GiB at the peak
MOST_IN_TILE = 2**24
MOST_PRODUCTS = 2**37  # about an hour


class UsageError(Exception):
    """Bad usage or input: one clear sentence, exit code 2."""


def integer(least: int) -> Callable[[str], int]:
    """The argparse type of an integer of at least `least`."""

    def parse(text: str) -> int:
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(MOST))
        number = int(text) if plain else least - 1
        if not least <= number <= MOST:
            raise ArgumentTypeError(f"must be an integer from {least} to {MOST}, not {text!r}")
        return number

    return parse


def file_name(text: str) -> Path:
    """The argparse type of a file or folder."""
    if not text or "\0" in text:
        raise ArgumentTypeError(f"must be the name of a file, not {text!r}")
    return Path(text)


def check_out(path: Path | None, name: str) -> None:
    """Raise UsageError unless a file can be written at `path`; `name` is the argument's."""
    if path is None:
        return
    if path.suffix != ".npz":
        raise UsageError(f"{name} must be the name of a .npz file, not {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(
            f"{name} {path} cannot be written: "
            + ("it is a directory" if path.is_dir() else f"there is no folder {path.parent}")
        )


def one_of(*names: str) -> Callable[[str], str]:
    """The argparse type of a choice."""

    def parse(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"must be {list_of(list(names), 'or')}, not {text!r}")
        return text

    return parse


def arch_name(text: str) -> str:
    """The argparse type of an architecture."""
    try:
        return arch(text).name
    except ValueError as error:
        raise ArgumentTypeError(str(error).removeprefix("arch ")) from error


def family_or_file(text: str) -> str:
    """The argparse type of the flash loop's inputs."""
    if text.endswith(".npz"):
        return text
    try:
        inputs.check_family(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error).removeprefix("inputs ")) from error
    return text


def schedule_flags(kernels: bool = False) -> argparse.ArgumentParser:
    """The parent parser with every flag of a schedule and its inputs; with `kernels`, --inputs may name tensors."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    group = parser.add_argument_group("schedule")
    add = group.add_argument
    variants = list_of(list(VARIANTS), "or")
    add("--variant", type=one_of(*VARIANTS), metavar="NAME", help=f"how scores_max is kept: {variants}")
    add("--block-M", type=integer(1), metavar="N", help="query rows of a tile (default 64)")
    add("--block-N", type=integer(1), metavar="N", help="key rows of a tile (default 64)")
    add("--threads", type=integer(1), metavar="N", help="threads of a thread block (default 128)")
    add("--stages", type=integer(0), metavar="N", help="pipeline stages (default 0)")
    add("--mask", type=one_of("full", "causal"), metavar="MASK", help="full or causal (default full)")
    add("--fast-math", action=argparse.BooleanOptionalAction, help="TL_ENABLE_FAST_MATH (default on)")
    _add_arch(add)
    _add_input_flags(parser, kernels)
    return parser


def _add_input_flags(parser: argparse.ArgumentParser, kernels: bool) -> None:
    add = parser.add_argument_group("inputs").add_argument
    add("--batch", type=integer(1), metavar="N", help="(default 1)")
    add("--heads", type=integer(1), metavar="N", help="query heads (default 1)")
    add("--heads-kv", type=integer(1), metavar="N", help="key heads, a divisor of the query heads (default the same)")
    add("--seq", type=integer(1), metavar="N", help="query rows (default 256)")
    add("--seq-kv", type=integer(1), metavar="N", help="key rows (default the same)")
    add("--dim", type=integer(1), metavar="N", help="head dimension (default 128)")
    add("--dtype", type=one_of(*inputs.DTYPES), metavar="TYPE", help=f"{list_of(list(inputs.DTYPES), 'or')}")
    families = ", ".join(inputs.FAMILIES)
    what = f"{families}, const:C, or a FILE.npz with q, k and v (default normal)"
    if kernels:
        what = f"of the flash loop: {what}; of a kernel: NAME=SPEC for each tensor"
        add("--inputs", nargs="+", action="extend", metavar="WHAT", help=what)
    else:
        add("--inputs", type=family_or_file, metavar="WHAT", help=what)
    add("--seed", type=integer(0), metavar="N", help="of the inputs (default 0)")


def report_flags(gpu: bool = True) -> argparse.ArgumentParser:
    """The parent parser with the flags of a report."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("report").add_argument
    if gpu:
        text = "also run the TileLang kernel: when it can, never, or else fail (default auto); on is require"
        add("--gpu", type=_gpu, default="auto", metavar="WHEN", help=f"auto, off or require: {text}")
    add("--json", action="store_true", help="one JSON object on stdout, everything else on stderr")
    return parser


def _add_arch(add: Callable[..., Any]) -> None:
    add("--arch", type=arch_name, metavar="SM", help="GPU architecture (default sm_90)")


def arch_flag() -> argparse.ArgumentParser:
    """The parent parser with the architecture alone."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_arch(parser.add_argument)
    return parser


def _gpu(text: str) -> str:
    return one_of("auto", "off", "require")("require" if text == "on" else text)


def kernel_flags() -> argparse.ArgumentParser:
    """The parent parser with what names a kernel of one's own and builds it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("a kernel of your own").add_argument
    add("--args", metavar="ARGS", help="builder arguments as in a call: '64, 128, causal=True'")
    text = "a symbolic size, or an eager kernel's T.const"
    add("--size", nargs="+", action="extend", type=_size, metavar="NAME=N", help=text)
    text = "over the kernel's own, as tl.enable_fast_math=True"
    add("--pass-config", nargs="+", action="extend", type=key_and_value, metavar="KEY=VALUE", help=text)
    return parser


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.isidentifier() or not number.isdigit():
        raise ArgumentTypeError(f"must be NAME=N with an integer N, not {text!r}")
    return name, integer(0)(number)


def key_and_value(text: str) -> tuple[str, Any]:
    """The argparse type of a key and its value, a Python literal, true or false."""
    key, equals, said = text.partition("=")
    try:
        value = {"true": True, "false": False}.get(said.lower())
        return key, ast.literal_eval(said) if value is None else value
    except (ValueError, SyntaxError):
        raise ArgumentTypeError(f"must be KEY=VALUE with True, False, a number or a 'text', not {text!r}") from None


def given(args: argparse.Namespace, name: str) -> Any:
    """The flag's value, or its default."""
    value = getattr(args, name)
    return DEFAULTS[name] if value is None else value


def flag(name: str) -> str:
    """How a flag is written: block_M is --block-M."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Request:
    """A schedule and its inputs, ready to run; q, k and v are words of `format`."""

    variant: str
    schedule: Schedule
    arch: str
    format: Format
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    inputs: str

    def arrays(self) -> tuple[Any, Any, Any]:
        """q, k and v as pairs of words and format."""
        return (self.q, self.format), (self.k, self.format), (self.v, self.format)

    def describe(self) -> dict[str, Any]:
        """The request as JSON types."""
        return {
            "variant": self.variant,
            "schedule": dict(vars(self.schedule)),
            "arch": self.arch,
            "dtype": self.format.name,
            "q": list(self.q.shape),
            "kv": list(self.k.shape),
            "inputs": self.inputs,
        }


def request(args: argparse.Namespace) -> Request:
    """What the flags ask for. Raises UsageError that names the flag."""
    fields = {name: given(args, name) for name in ("block_M", "block_N", "threads", "fast_math")}
    fields |= {"num_stages": given(args, "stages"), "causal": given(args, "mask") == "causal"}
    variant = given(args, "variant")
    source = given(args, "inputs")
    fmt, q, k, v = _from_file(args, Path(source)) if source.endswith(".npz") else _from_family(args, source)
    if fields["causal"] and k.shape[1] < q.shape[1]:
        sizes = f"{k.shape[1]} with {q.shape[1]} query rows"
        raise UsageError(f"--mask causal needs at least as many keys (--seq-kv) as query rows (--seq), not {sizes}")
    what = source if source.endswith(".npz") or source.startswith("const:") else f"{source}, seed {given(args, 'seed')}"
    return Request(variant, Schedule.variant(variant, **fields), given(args, "arch"), fmt, q, k, v, what)


def _from_family(args: argparse.Namespace, family: str) -> tuple[Format, np.ndarray, np.ndarray, np.ndarray]:
    """Made inputs of the shape that the flags say."""
    size = {name: given(args, name) for name in SHAPE_FLAGS}
    heads_kv, seq_kv = size["heads_kv"] or size["heads"], size["seq_kv"] or size["seq"]
    if size["heads"] % heads_kv:
        raise UsageError(f"--heads must be a multiple of --heads-kv, not {size['heads']} with --heads-kv {heads_kv}")
    shape = inputs.Shape(size["batch"], size["heads"], heads_kv, size["seq"], seq_kv, size["dim"])
    for name, rows, dims in (("q", "--seq", shape.q), ("k", "--seq-kv or --seq", shape.kv)):
        if math.prod(dims) > MOST_ELEMENTS:
            flags = f"--batch, --heads, {rows} and --dim"
            raise UsageError(f"{flags} give {name} {list(dims)}, more than {MOST_ELEMENTS} elements")
    _check_work(args, shape.q, shape.kv)
    fmt = inputs.DTYPES[given(args, "dtype")]
    try:
        return fmt, *inputs.make(family, shape, fmt, given(args, "seed"))
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _from_file(args: argparse.Namespace, path: Path) -> tuple[Format, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of a file; a shape or dtype flag that disagrees with it is an error."""
    try:
        arrays = load_arrays(path)
    except (CaptureError, OSError) as error:
        raise UsageError(f"--inputs {error}") from error
    missing = [name for name in "qkv" if name not in arrays]
    if missing:
        raise UsageError(f"--inputs {path} must hold arrays q, k and v, and has no {list_of(missing, 'or')}")
    (q, fmt), (k, k_format), (v, v_format) = (arrays[name] for name in "qkv")
    if not fmt == k_format == v_format or fmt.name not in inputs.DTYPES:
        names = list_of([fmt.name, k_format.name, v_format.name])
        raise UsageError(
            f"--inputs {path} must hold q, k and v all of {list_of(list(inputs.DTYPES), 'or')}, not {names}"
        )
    _check_shapes(path, q, k, v)
    _check_work(args, q.shape, k.shape)
    size = {"batch": q.shape[0], "heads": q.shape[2], "heads_kv": k.shape[2], "seq": q.shape[1], "seq_kv": k.shape[1]}
    for name, found in (size | {"dim": q.shape[3], "dtype": fmt.name}).items():
        asked = getattr(args, name)
        if asked is not None and asked != found:
            raise UsageError(f"{flag(name)} {asked} disagrees with {path}, which holds {found}")
    if args.seed is not None:
        raise UsageError(f"--seed makes inputs, and --inputs {path} holds them already")
    return fmt, q, k, v


def _check_work(args: argparse.Namespace, q: tuple[int, ...], kv: tuple[int, ...]) -> None:
    """Raise UsageError when a tile is too large, or all of them would take too long; q and kv are shapes."""
    (batch, seq, heads, dim), seq_kv = q, kv[1]
    rows, keys = given(args, "block_M"), given(args, "block_N")
    sizes = (
        ("--block-M and --block-N", rows, keys),
        ("--block-M and --dim", rows, dim),
        ("--block-N and --dim", keys, dim),
    )
    for flags, down, across in sizes:
        if down * across > MOST_IN_TILE:
            raise UsageError(f"{flags} give a tile of {down}x{across}, more than {MOST_IN_TILE} elements")
    # Rows and keys in whole tiles; beside its products an element of a tile takes the time of about 32.
    products = batch * heads * (-(-seq // rows) * rows) * (-(-seq_kv // keys) * keys) * max(dim, 32)
    if products > MOST_PRODUCTS:
        flags = "--batch, --heads, --seq, --seq-kv and --dim"
        raise UsageError(f"{flags} give {products} products, more than {MOST_PRODUCTS}, which take about an hour")


def _check_shapes(path: Path, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Raise UsageError unless q, k and v are the operands of one attention."""
    shapes = f"not {shape_of(q)}, {shape_of(k)} and {shape_of(v)}"
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or not q.size or not k.size:
        raise UsageError(
            f"--inputs {path} must hold q [batch, seq, heads, dim] and k and v [batch, seq_kv, heads_kv, dim], {shapes}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[2] % k.shape[2]:
        raise UsageError(
            f"--inputs {path} must hold q, k and v of one batch and dim, heads a multiple of heads_kv, {shapes}"
        )
