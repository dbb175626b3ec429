"""The verb `minimise`: the smallest schedule and inputs that still fail in the same way, as a test and its inputs."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from sim.captures import save_arrays
from sim.formats import Format
from sim.minimise import Case, Minimised, minimise, minimise_schedule

from .flags import UsageError, file_name, flag, kernel_flags, report_flags, request, schedule_flags
from .job import Input, Job, make_job
from .kernel import Kernel, Parameter, arguments_of, load
from .minimise_test import of_kernel, of_schedule
from .result import DIFFERS, Result
from .run import one_input
from .run_kernel import check_flags
from .search import cause_text, simulated
from .terminal import Progress, Style

__all__ = ["add", "run"]

NAME = "minimise"
CODES = "exit codes: 1 the failure was made smaller, 2 usage or input: nothing fails"
SMALLEST_COMPILED = 16  # side of a tile


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "shrink a failing schedule, or kernel, and its inputs; write a test that fails until it is mended"
    parents = [schedule_flags(kernels=True), kernel_flags(), report_flags(gpu=False)]
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=CODES, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    add = parser.add_argument_group("what is kept, and written").add_argument
    what = "the test; its inputs beside it as .npz (default test_minimised.py)"
    add("--out", type=file_name, metavar="FILE.py", default=Path("test_minimised.py"), help=what)
    add("--output", nargs="+", metavar="NAME", help="of a kernel: these outputs alone count (default all)")
    add("--compilable", action="store_true", help="keep the flash loop's tiles as TileLang compiles them")
    parser.set_defaults(run=run, capture=None, blocks=None, gpu="off")


def run(args: argparse.Namespace, style: Style) -> Result:
    """Minimise and write; exit code 1, because something fails."""
    out = args.out
    if out.suffix != ".py" or not out.parent.is_dir():
        raise UsageError(f"--out must be a .py file in a folder that is there, not {str(out)!r}")
    with Progress(1) as progress:
        progress.step("shrinking")
        shown = (lambda runs: progress.detail(f"shrinking, {runs} runs")) if progress.shown else None
        try:
            text, found, sizes = (_schedule if args.kernel is None else _kernel)(args, shown)
        except ValueError as error:
            raise UsageError(str(error)) from error
    _write(out, text, found.case)
    shapes = {name: list(np.shape(_plain(array))) for name, array in found.case.arrays.items()}
    nonzero = {name: int(np.count_nonzero(_plain(array))) for name, array in found.case.arrays.items()}
    cause = found.trace.causes[0]
    lines = [style.paint(f"{', '.join(f'{k} {v}' for k, v in sizes.items()) or 'as it was'}", "bold")]
    lines += [f"  {name:<12} {shapes[name]}, {nonzero[name]} not zero" for name in shapes]
    lines += [
        f"  first cause  {cause_text(cause)}",
        f"  {found.runs} runs",
        f"  wrote {out} and {out.with_suffix('.npz')}",
    ]
    place = {"kind": cause.kind, "operator": cause.place.operator, "buffer": cause.place.buffer}
    data = {"verb": NAME, "sizes": sizes, "shapes": shapes, "nonzero": nonzero, "cause": place, "runs": found.runs}
    return Result(DIFFERS, "\n".join(lines), data | {"test": str(out)})


def _plain(array: Any) -> Any:
    """The words or integers of an input."""
    return array[0] if isinstance(array, tuple) else array


def _write(out: Path, text: str, case: Case) -> None:
    floats = {n: a for n, a in case.arrays.items() if isinstance(a, tuple)}
    integers = {n: np.asarray(a) for n, a in case.arrays.items() if not isinstance(a, tuple)}
    try:
        out.write_text(text)
        save_arrays(out.with_suffix(".npz"), floats, integers)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from error


def _schedule(args: argparse.Namespace, shown: Any) -> tuple[str, Minimised, dict[str, Any]]:
    for name in ("args", "size", "pass_config", "output"):
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is of a kernel: give FILE.py:FUNCTION too")
    args.inputs = one_input(args.inputs)
    asked = request(args)
    least = SMALLEST_COMPILED if args.compilable else 2
    schedule, found = minimise_schedule(asked.schedule, *asked.arrays(), asked.arch, least, shown)
    text = of_schedule(asked.variant, schedule, asked.arch, cause_text(found.trace.causes[0]))
    return text, found, {"variant": asked.variant} | found.case.sizes


# kernels of a file


@dataclass
class _Builder:
    """Builds the kernel of a job with other sizes: what its arguments say in integers, and its symbolic sizes."""

    job: Job
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        self.built: dict[tuple[Any, ...], tuple[Kernel, list[Parameter]] | None] = {}

    def refuse(self, sizes: dict[str, int]) -> None:
        """Kernels of these sizes cannot be simulated."""
        self.built[tuple(sizes.items())] = None

    def sizes(self) -> dict[str, int]:
        named = {f"argument {n}": x for n, x in enumerate(self.args)} | self.kwargs
        return {n: x for n, x in named.items() if isinstance(x, int) and not isinstance(x, bool)} | self.job.sizes

    def arguments(self, sizes: dict[str, int]) -> str:
        """The builder's arguments as in a call."""
        args = [repr(sizes.get(f"argument {n}", x)) for n, x in enumerate(self.args)]
        return ", ".join(args + [f"{n}={sizes.get(n, x)!r}" for n, x in self.kwargs.items()])

    def symbols(self, sizes: dict[str, int]) -> dict[str, int]:
        return {n: sizes[n] for n in self.job.sizes}

    def kernel(self, sizes: dict[str, int]) -> tuple[Kernel, list[Parameter]] | None:
        """The kernel and its parameters; None where it cannot be built."""
        key = tuple(sizes.items())
        if key not in self.built:
            own = self.job.kernel
            try:
                left = self.symbols(sizes)
                made = load(own.target, self.arguments(sizes), left, own.pass_configs)
                self.built[key] = made, made.parameters(left)
            except UsageError:
                self.built[key] = None
        return self.built[key]

    def of(self, case: Case) -> Job:
        """The job of a case. Raises ValueError where there is none."""
        made = self.kernel(case.sizes)
        if made is None:
            raise ValueError("no kernel of these sizes")
        by_name = {p.name: p for p in made[1]}
        inputs = [Input(by_name[n], "minimised", _words(array)) for n, array in case.arrays.items()]
        return replace(self.job, kernel=made[0], parameters=made[1], inputs=inputs,
                       outputs=[by_name[p.name] for p in self.job.outputs])  # fmt: skip


def _words(array: Any) -> np.ndarray:
    found = np.asarray(_plain(array))
    return found if isinstance(array, tuple) else found.view(f"u{found.itemsize}")


def _typed(x: Input) -> Any:
    dtype = x.parameter.dtype
    return (x.words, dtype) if isinstance(dtype, Format) else x.words.view(dtype.value_type)


def _kernel(args: argparse.Namespace, shown: Any) -> tuple[str, Minimised, dict[str, Any]]:
    out, args.out = args.out, None  # which `run` keeps for the flash loop
    check_flags(args)
    args.out, job = out, make_job(args)
    builder = _Builder(job, *arguments_of(args.args or ""))
    case = Case(builder.sizes(), {x.parameter.name: _typed(x) for x in job.inputs})
    found = minimise(case, partial(_simulated, builder), partial(_smaller, builder), args.output or (), shown)
    sizes, made = found.case.sizes, builder.of(found.case)
    here = Path(os.path.relpath(job.kernel.target.file.resolve(), out.parent.resolve()))
    infinite = any(isinstance(a, tuple) and a[1].infinities and a[1].is_inf(a[0]).any() for a in case.arrays.values())
    text = of_kernel(made, here, builder.arguments(sizes), builder.symbols(sizes), found.trace.causes[0],
                     args.output or [], infinite)  # fmt: skip
    return text, found, sizes


def _simulated(builder: _Builder, case: Case) -> Callable[[Callable[..., Any]], Any]:
    """As `simulated`, with what the simulator refuses as a case that is none."""
    run = simulated(builder.of(case))

    def refusing(machine: Callable[..., Any]) -> Any:
        try:
            return run(machine)
        except UsageError as error:
            builder.refuse(case.sizes)
            raise ValueError(str(error)) from error

    return refusing


def _smaller(builder: _Builder, case: Case) -> Iterator[Case]:
    """One size halved, then two of them together; the inputs cut to the new shapes in three ways."""
    able = [name for name, size in case.sizes.items() if size > 1]
    for names in [*((name,) for name in able), *combinations(able, 2)]:
        sizes = case.sizes | {name: case.sizes[name] // 2 for name in names}
        made = builder.kernel(sizes)
        if made is not None:
            yield from _fitted(case, sizes, made[1])


def _fitted(case: Case, sizes: dict[str, int], parameters: list[Parameter]) -> Iterator[Case]:
    """The case with these sizes, its inputs cut to the shapes of the parameters; none where a shape grows."""
    shapes = {p.name: p.shape or () for p in parameters}
    same = all(np.shape(_plain(array)) == shapes[n] for n, array in case.arrays.items())
    for part in (_first,) if same else (_first, _every, _last):
        try:
            yield Case(sizes, {n: _cut(array, shapes[n], part) for n, array in case.arrays.items()})
        except ValueError:
            return


def _cut(array: Any, shape: tuple[int, ...], part: Callable[[int, int], slice]) -> Any:
    """An array cut to a shape. Raises ValueError where it is smaller."""
    plain = np.asarray(_plain(array))
    if len(shape) != plain.ndim or any(new > old for new, old in zip(shape, plain.shape, strict=True)):
        raise ValueError("a shape grows")
    found = plain[tuple(part(old, new) for old, new in zip(plain.shape, shape, strict=True))].copy()
    return (found, array[1]) if isinstance(array, tuple) else found


def _first(old: int, new: int) -> slice:
    return slice(0, new)


def _last(old: int, new: int) -> slice:
    return slice(old - new, old)


def _every(old: int, new: int) -> slice:
    step = math.ceil(old / new) if new else 1
    return slice(0, old, step) if len(range(0, old, step)) == new else slice(0, new)
