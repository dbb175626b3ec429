"""A kernel with its inputs, what the simulator gave, and how that compares."""

from __future__ import annotations

import argparse
import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.formats import DType, Integer, to_words

from .diff import Diff, diff
from .flags import UsageError, given
from .kernel import FAST_MATH, Kernel, Parameter, load, target
from .result import DIFFERS, SAME, UNDETERMINED, USAGE
from .simulate import Device
from .specs import fill
from .text import list_of

__all__ = ["Compared", "Input", "Job", "Outcome", "Output", "compare", "given_configs", "make_job", "words_of"]

MOST_ELEMENTS = 2**28  # of a tensor, so that nothing runs out of memory unannounced


@dataclass(frozen=True)
class Input:
    """A parameter that is given: its spec, and its words or, for a scalar, its number."""

    parameter: Parameter
    spec: str
    words: np.ndarray

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.words.astype(self.words.dtype.newbyteorder("<")).tobytes()).hexdigest()

    def array(self) -> Any:
        """As `sim.simulate` takes it, which may write to it: a pair for floats, an array for integers, a number."""
        words, dtype = self.words.copy(), self.parameter.dtype
        if not self.parameter.integer:
            return words, dtype
        return int(words.view(dtype.value_type)[()]) if self.parameter.shape is None else words.view(dtype.value_type)

    def argument(self) -> Any:
        """As `gpu.Kernel` takes it."""
        return self.array() if self.parameter.shape is None else (self.words, self.parameter.dtype.name)


@dataclass(frozen=True)
class Job:
    """A kernel with its inputs.

    made: the outputs are made by the call, and hold what nobody knows where the kernel does not write; otherwise every
          tensor is an input, and what the kernel only writes starts as zeros unless its spec says something else
    """

    kernel: Kernel
    parameters: list[Parameter]
    inputs: list[Input]
    outputs: list[Parameter]
    made: bool
    arch: str
    seed: int
    blocks: list[int] | None
    sizes: dict[str, int]

    def prim_func(self) -> Any:
        """The PrimFunc that makes its outputs, or does not."""
        pf = self.kernel.prim_func
        if self.made:
            return pf.with_attr("tilelang_out_idx", [p.number for p in self.outputs])
        return pf.without_attr("tilelang_out_idx") if "tilelang_out_idx" in (pf.attrs or {}) else pf


@dataclass(frozen=True)
class Output:
    """An output's words; `unknown` flags those that cannot be known, `left_out` those that other blocks decide."""

    parameter: Parameter
    words: np.ndarray
    unknown: np.ndarray | None
    left_out: np.ndarray | None = None

    @property
    def dtype(self) -> DType:
        return self.parameter.dtype

    @property
    def known(self) -> np.ndarray:
        return np.ones(self.words.shape, bool) if self.unknown is None else ~self.unknown

    @property
    def undetermined(self) -> np.ndarray:
        """The words that cannot be known, whatever other blocks do."""
        return ~self.known if self.left_out is None else ~self.known & ~self.left_out

    @property
    def nan(self) -> np.ndarray:
        return self._which("nan")

    def _which(self, kind: str) -> np.ndarray:
        """Flags of the known words that are NaN, infinite or zero."""
        if self.parameter.integer:
            return self.known & (self.words == 0 if kind == "zeros" else False)
        magnitude = self.words & self.dtype.word.type(self.dtype.sign - 1)
        tests = {"nan": self.dtype.is_nan, "infinities": self.dtype.is_inf, "zeros": lambda words: words == 0}
        return self.known & tests[kind](magnitude)

    def counts(self) -> dict[str, int]:
        """Words by what they are; undetermined ones are nothing else."""
        kinds = {kind: int(self._which(kind).sum()) for kind in ("nan", "infinities", "zeros")}
        others = 0 if self.left_out is None else int(self.left_out.sum())
        unknown = {"undetermined": int(self.undetermined.sum())}
        return {"words": self.words.size} | kinds | unknown | ({"other_blocks": others} if others else {})

    def against(self, words: np.ndarray) -> Diff:
        """The difference from other words, where these are known."""
        if words.shape != self.words.shape:
            raise UsageError(f"{self.parameter.name} has shape {list(self.words.shape)}, not {list(words.shape)}")
        return diff((np.where(self.known, self.words, words), self.dtype), (words, self.dtype))


@dataclass(frozen=True)
class Compared:
    """Another source of the outputs' words: what it is called, and the difference of each output."""

    name: str
    diffs: dict[str, Diff]

    @property
    def same(self) -> bool:
        return all(found.same for found in self.diffs.values())


@dataclass(frozen=True)
class Outcome:
    """A simulated kernel: what it gave, and how that compares. reason: why no GPU took part; failure: of its kernel."""

    job: Job
    outputs: list[Output]
    events: list[Any]
    basis: str
    compared: list[Compared] = field(default_factory=list)
    device: Device | None = None
    reason: str = ""
    failure: str = ""

    @property
    def undetermined(self) -> int:
        return sum(output.counts()["undetermined"] for output in self.outputs)

    def code(self, required: bool) -> int:
        """1 when words differ or the GPU's kernel gives none, 3 when some cannot be known, 2 when a GPU is missing."""
        if self.failure or not all(each.same for each in self.compared):
            return DIFFERS
        if required and self.reason:
            return USAGE
        return UNDETERMINED if self.undetermined else SAME


def make_job(args: argparse.Namespace) -> Job:
    """What the flags ask for. Raises UsageError."""
    sizes = dict(args.size or ())
    kernel = load(target(args.kernel), args.args or "", (left := dict(sizes)), given_configs(args))
    parameters = kernel.parameters(left)
    specs = _specs(args.inputs or [], parameters)
    outputs = [p for p in parameters if p.use != "in"]
    if not outputs:
        raise UsageError(f"KERNEL {args.kernel} writes to none of its parameters")
    made = all(p.use == "out" and p.name not in specs for p in outputs)
    inputs = _inputs([p for p in parameters if not (made and p in outputs)], specs, given(args, "seed"))
    return Job(kernel, parameters, inputs, outputs, made, given(args, "arch"), given(args, "seed"), args.blocks, sizes)


def given_configs(args: argparse.Namespace) -> dict[str, Any]:
    """The pass configuration of the command line, by full names."""
    found = dict(args.pass_config or ())
    return found if args.fast_math is None else found | {FAST_MATH: args.fast_math}


def _specs(texts: list[str], parameters: list[Parameter]) -> dict[str, str]:
    """--inputs by the parameter's name."""
    specs: dict[str, str] = {}
    names = [p.name for p in parameters]
    for text in texts:
        name, equals, spec = text.partition("=")
        if not equals or name not in names:
            raise UsageError(f"--inputs must be NAME=SPEC with one of {list_of(names)}, not {text!r}")
        specs[name] = spec
    return specs


def _inputs(parameters: list[Parameter], specs: dict[str, str], seed: int) -> list[Input]:
    """The words of every parameter that is given. Raises UsageError that lists what has no default."""
    start = {p.name: "zeros" for p in parameters if p.use == "out"}
    wanted = start | {p.name: "normal" for p in parameters if not p.integer and p.shape is not None and p.use != "out"}
    if missing := [p.name for p in parameters if p.name not in specs and p.name not in wanted]:
        kinds = "an integer tensor and a scalar have" if len(missing) > 1 else "it has"
        raise UsageError(f"--inputs must give {list_of([f'{n}=SPEC' for n in missing])}: {kinds} no default")
    return [_input(p, specs.get(p.name, wanted.get(p.name, "")), seed) for p in parameters]


def _input(p: Parameter, spec: str, seed: int) -> Input:
    shape = p.shape or ()
    if math.prod(shape) > MOST_ELEMENTS:
        raise UsageError(f"parameter {p.name} {list(shape)} has more than {MOST_ELEMENTS} elements: give smaller sizes")
    try:
        return Input(p, spec, fill(spec, shape, p.dtype, seed, p.number))
    except ValueError as error:
        raise UsageError(f"--inputs {p.name} {error}") from error


def words_of(array: Any, dtype: DType) -> np.ndarray:
    """The words of an array of `dtype`, as `sim.simulate` gives it."""
    if isinstance(dtype, Integer):
        return np.ascontiguousarray(array).view(dtype.word)
    return to_words(array)[0]


def compare(outcome: Outcome, name: str, words: list[np.ndarray]) -> Compared:
    """The outputs against other words of them, which `name` gave."""
    pairs = zip(outcome.outputs, words, strict=True)
    return Compared(name, {output.parameter.name: output.against(there) for output, there in pairs})
