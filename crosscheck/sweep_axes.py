"""What a sweep goes through: axes with their values, and the combinations of them all."""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.flash import VARIANTS

from . import inputs
from .flags import (
    DEFAULTS,
    SCHEDULE_FLAGS,
    UsageError,
    arch_name,
    family_or_file,
    flag,
    integer,
    key_and_value,
    one_of,
)
from .kernel import target

__all__ = ["TUNER", "Combination", "Numbered", "Sweep", "add_flags", "command", "make_sweep", "named_values", "said"]

# What the forward examples of flash attention let their tuner try (TileLang 0.1.15, examples/flash_attention:
# get_configs of example_gqa_fwd_bshd.py, example_mha_fwd_bshd.py, example_mha_fwd_bhsd.py and
# example_mha_fwd_varlen.py). The last one's are the union of all four.
TUNER: dict[str, tuple[int, ...]] = {
    "block_M": (64, 128),
    "block_N": (64, 128),
    "threads": (128, 256),
    "stages": (0, 1, 2, 3),
}
MOST = 100_000  # combinations
ORDER = ("mask", "inputs", "variant", "dtype", "fast_math", "arch", "batch", "heads", "heads_kv", "seq", "seq_kv",
         "dim", "seed", "block_M", "block_N", "threads", "stages")  # fmt: skip
OF_A_KERNEL = ("args", "vary", "size", "pass_config")
SHARED = ("arch", "fast_math", "seed")  # axes that the flash loop and a kernel have
IN_EVERY_ROW = ("mask", "inputs", "variant", "fast_math", "arch", "block_M", "block_N", "threads", "stages")

Combination = dict[str, Any]
Numbered = list[tuple[int, Combination]]


@dataclass(frozen=True)
class Sweep:
    """All combinations of the values of some axes.

    kernel: FILE.py:FUNCTION, or None for the flash loop
    axes:   {name: values}, the last one changes fastest; of a kernel, `args` are whole calls, `inputs NAME` a tensor's
            specs, `size NAME` a symbolic size's, and others keyword arguments
    pass_configs: of a kernel, in every combination
    sha256: of the files that it reads, by name
    """

    kernel: str | None
    axes: dict[str, tuple[Any, ...]]
    pass_configs: tuple[tuple[str, Any], ...]
    sha256: dict[str, str]

    def __len__(self) -> int:
        return math.prod(len(each) for each in self.axes.values())

    def __iter__(self) -> Iterator[Combination]:
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    @property
    def varied(self) -> list[str]:
        """The axes with more than one value."""
        return [name for name, each in self.axes.items() if len(each) > 1]

    def to_json(self) -> dict[str, Any]:
        """The sweep as JSON types: what must be the same for rows of a file to be its."""
        axes = {name: list(each) for name, each in self.axes.items()}
        configs = {key: v if isinstance(v, bool | int | str) else str(v) for key, v in self.pass_configs}
        return {"kernel": self.kernel, "axes": axes, "pass_configs": configs, "sha256": self.sha256}

    def arguments(self, combination: Combination) -> argparse.Namespace:
        """The flags that ask for one combination, as the other verbs take them."""
        found = dict.fromkeys((*SCHEDULE_FLAGS, "args", "size", "blocks", "out", "capture", "against", "seed_cell"))
        found |= {"kernel": self.kernel, "pass_config": list(self.pass_configs) or None}
        if self.kernel is None:
            inputs_of = {"inputs": [combination["inputs"]]} if "inputs" in combination else {}
            return argparse.Namespace(**(found | combination | inputs_of))
        return argparse.Namespace(**(found | _of_kernel(combination)))


def _of_kernel(combination: Combination) -> dict[str, Any]:
    """A kernel's flags for one combination."""
    shared = {name: value for name, value in combination.items() if name in SHARED}
    specs = {name.removeprefix("inputs "): v for name, v in combination.items() if name.startswith("inputs ")}
    sizes = {name.removeprefix("size "): v for name, v in combination.items() if name.startswith("size ")}
    words = [combination["args"]] if combination.get("args") else []
    words += [f"{name}={v!r}" for name, v in combination.items() if not (name in (*SHARED, "args") or " " in name)]
    found = {"args": ", ".join(words), "inputs": [f"{name}={spec}" for name, spec in specs.items()]}
    return shared | found | {"size": list(sizes.items()) or None}


def several(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """The argparse type of values with commas between them; one that is there twice counts once."""
    return lambda text: tuple(dict.fromkeys(parse(each.strip()) for each in text.split(",")))


def named(parse: Callable[[str], Any]) -> Callable[[str], tuple[str, tuple[Any, ...]]]:
    """The argparse type of NAME=V,V."""

    def found(text: str) -> tuple[str, tuple[Any, ...]]:
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier():
            raise ArgumentTypeError(f"must be NAME=VALUE,VALUE, not {text!r}")
        return name, several(parse)(values)

    return found


def _literals(text: str) -> tuple[str, tuple[Any, ...]]:
    """The argparse type of NAME=V,V with Python literals, which may have commas of their own."""
    name, equals, values = text.partition("=")
    try:
        found = ast.literal_eval(f"({values},)")
        json.dumps(found, allow_nan=False)  # a row says them
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        found = ()
    if not equals or not name.isidentifier() or not found:
        raise ArgumentTypeError(f"must be NAME=VALUE,VALUE with numbers, True, False or 'texts', not {text!r}")
    return name, tuple({repr(value): value for value in found}.values())


def _variants(text: str) -> tuple[str, ...]:
    return tuple(VARIANTS) if text == "all" else several(one_of(*VARIANTS))(text)


def _on_off(text: str) -> bool:
    return one_of("on", "off")(text) == "on"


TYPES: dict[str, Callable[[str], Any]] = {
    "block_M": integer(1), "block_N": integer(1), "threads": integer(1),
    "stages": integer(0), "mask": one_of("full", "causal"), "batch": integer(1), "heads": integer(1),
    "heads_kv": integer(1), "seq": integer(1), "seq_kv": integer(1), "dim": integer(1),
    "dtype": one_of(*inputs.DTYPES), "fast_math": _on_off, "arch": arch_name, "seed": integer(0),
}  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the axes: each takes one value, or several with commas."""
    add = parser.add_argument_group("axes of the flash loop: values with commas between them").add_argument
    add("--tuner", action="store_true", help="tiles, threads and stages that TileLang's examples let their tuner try")
    for name in ORDER:
        if name not in (*SHARED, "inputs"):
            kind = _variants if name == "variant" else several(TYPES[name])
            more = ", all for every one" if name == "variant" else ""
            default = f"that of {flag(name[:-3])}" if DEFAULTS[name] is None else DEFAULTS[name]
            add(flag(name), type=kind, metavar="V,V", help=f"(default {default}){more}")
    add = parser.add_argument_group("axes of both").add_argument
    what = f"{', '.join(inputs.FAMILIES)}, const:C or FILE.npz; of a kernel NAME=SPEC,SPEC for each tensor"
    add("--inputs", nargs="+", action="extend", metavar="V,V", help=what)
    for name in SHARED:
        default = "on; of a kernel its own" if name == "fast_math" else DEFAULTS[name]
        add(flag(name), type=several(TYPES[name]), metavar="V,V", help=f"(default {default})")
    add = parser.add_argument_group("axes of a kernel of your own").add_argument
    add("--args", action="append", metavar="ARGS", help="builder arguments as in a call; again for each other call")
    what = "values of a builder's keyword argument, such as window=0,64 num_split=1,2,4"
    add("--vary", nargs="+", action="extend", type=_literals, metavar="NAME=V,V", help=what)
    add("--size", nargs="+", action="extend", type=named(integer(0)), metavar="NAME=N,N", help="of a symbolic size")
    add("--pass-config", nargs="+", action="extend", type=key_and_value, metavar="KEY=VALUE", help="in all of them")


def make_sweep(args: argparse.Namespace) -> Sweep:
    """What the flags ask for. Raises UsageError."""
    axes = _flash_axes(args) if args.kernel is None else _kernel_axes(args)
    configs = tuple(args.pass_config or ())
    sweep = Sweep(args.kernel, axes, configs, dict(_sha256(args.kernel, axes)))
    if len(sweep) > MOST:
        raise UsageError(f"the axes give {len(sweep)} combinations, more than {MOST}: give fewer values")
    return sweep


def _flash_axes(args: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    for name in OF_A_KERNEL:
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    given = {name: getattr(args, name) for name in ORDER if getattr(args, name) is not None}
    if args.tuner:
        if twice := [flag(name) for name in TUNER if name in given]:
            raise UsageError(f"{twice[0]} is what --tuner says")
        given |= TUNER
    if args.inputs:
        try:
            given["inputs"] = tuple(dict.fromkeys(v for text in args.inputs for v in several(family_or_file)(text)))
        except ArgumentTypeError as error:
            raise UsageError(f"--inputs {error}") from error
    return {n: given.get(n, (DEFAULTS[n],)) for n in ORDER if n in given or n in IN_EVERY_ROW}


def _kernel_axes(args: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    for name in (*ORDER, "tuner"):
        if getattr(args, name) and name not in (*SHARED, "inputs"):
            raise UsageError(f"{flag(name)} is of the flash loop, and {args.kernel} is a kernel of its own")
    found = [("args", tuple(dict.fromkeys(args.args)))] if args.args else []
    try:
        specs = [named(str)(text) for text in args.inputs or ()]
    except ArgumentTypeError as error:
        raise UsageError(f"--inputs {error}") from error
    found += [(f"inputs {name}", values) for name, values in specs]
    found += [(name, getattr(args, name)) for name in SHARED if getattr(args, name) is not None]
    found += [(f"size {name}", values) for name, values in args.size or ()] + list(args.vary or ())
    names = [name for name, _ in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is given twice: give all of its values at once")
    return dict(found)


def _sha256(kernel: str | None, axes: dict[str, tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
    """The files that the rows depend on. Raises UsageError for one that cannot be read."""
    files = [str(target(kernel).file)] if kernel else []
    for file in dict.fromkeys(files + list(_input_files(axes))):
        try:
            yield file, hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _input_files(axes: dict[str, tuple[Any, ...]]) -> Iterable[str]:
    for name, each in axes.items():
        for value in each if name.startswith("inputs") else ():
            if name == "inputs" and value.endswith(".npz"):
                yield value
            elif value.startswith("@"):
                head, npz, _ = value[1:].partition(".npz:")
                yield head + npz.rstrip(":")


def named_values(combination: Combination, names: Iterable[str]) -> str:
    """Some of a combination's values in words: causal normal block_max dim 64."""
    return " ".join(_named(name, combination[name]) for name in names)


def _named(name: str, value: Any) -> str:
    if name in ("variant", "mask", "dtype", "arch", "inputs"):
        return str(value)
    return said(name, value) if name == "args" else f"{name.split()[-1]} {said(name, value)}"


def said(name: str | None, value: Any) -> str:
    """A value of an axis, in short."""
    if name == "fast_math":
        return "on" if value else "off"
    return f"({value})" if name == "args" else str(value)


def command(sweep: Sweep, combination: Combination, verb: str) -> str:
    """The command line of another verb for one combination."""
    import shlex

    words = ["python", "-m", "crosscheck", verb] + ([sweep.kernel] if sweep.kernel else [])
    asked = sweep.arguments(combination)
    for name in (*SCHEDULE_FLAGS, "args", "size", "pass_config"):
        value = getattr(asked, name)
        if value is None or value == "" or (sweep.kernel is None and combination.get(name) == DEFAULTS.get(name)):
            continue
        if name == "fast_math":
            words.append("--fast-math" if value else "--no-fast-math")
        else:
            values = value if isinstance(value, list) else [value]
            words += [flag(name), *(f"{v[0]}={v[1]}" if isinstance(v, tuple) else str(v) for v in values)]
    return shlex.join(words)
