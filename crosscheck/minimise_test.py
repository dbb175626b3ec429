"""The test file that `minimise` writes: it fails while the fault is there."""

from __future__ import annotations

from pathlib import Path

from sim.flash import Schedule
from sim.trace import Cause

from .job import Job
from .search import cause_text

__all__ = ["of_kernel", "of_schedule"]

UNKNOWN = ("uninitialised", "race", "atomic_order")  # kinds of causes that leave words undetermined

SCHEDULE = '''"""{variant}: a bad output, shrunk by `crosscheck minimise`.

First cause: {cause}.
The inputs are beside this file. It passes once SCHEDULE keeps its output finite.
"""

from pathlib import Path

from sim import Schedule, flash_attention
from sim.captures import load_arrays
from sim.search import bad_outputs

INPUTS = load_arrays(Path(__file__).with_suffix(".npz"))
SCHEDULE = {schedule}


def test_the_output_is_finite() -> None:
    output = flash_attention(INPUTS["q"], INPUTS["k"], INPUTS["v"], SCHEDULE, arch="{arch}")
    assert not bad_outputs(output), "the output has NaN or an infinity"
'''

KERNEL = '''"""{function} of {file}: a bad output, shrunk by `crosscheck minimise`.

First cause: {cause}.
The inputs are beside this file. It passes once the kernel is mended.
"""

from pathlib import Path

import numpy as np

from crosscheck.kernel import load, target
from sim import simulate
from sim.formats import format_named
from sim.search import bad_outputs

HERE = Path(__file__).parent
KERNEL = HERE / "{file}"
ARGUMENTS = {arguments!r}
SIZES = {sizes!r}
CONFIGS = {configs!r}
FORMATS = {formats!r}
INPUTS = np.load(Path(__file__).with_suffix(".npz"))


def given(name: str):
    """An input as the simulator takes it: words with their format, integers, or a number."""
    if name in FORMATS:
        return INPUTS[name], format_named(FORMATS[name])
    return INPUTS[name] if INPUTS[name].ndim else int(INPUTS[name])


def test_the_output_is_{what}() -> None:
    kernel = load(target(f"{{KERNEL}}:{function}"), ARGUMENTS, dict(SIZES), CONFIGS).prim_func
    {made}result = simulate(kernel, *map(given, {names!r}), arch="{arch}", pass_configs=CONFIGS)
    {check}
'''


def of_schedule(variant: str, schedule: Schedule, arch: str, cause: str) -> str:
    """The test of a schedule of the flash loop."""
    return SCHEDULE.format(variant=variant, schedule=_folded(schedule), arch=arch, cause=cause)


def _folded(schedule: Schedule) -> str:
    fields = "".join(f"    {name}={value!r},\n" for name, value in vars(schedule).items())
    return f"Schedule(\n{fields})"


def of_kernel(job: Job, file: Path, arguments: str, sizes: dict[str, int], cause: Cause, outputs: list[str],
              infinite: bool) -> str:  # fmt: skip
    """The test of a kernel in `file`, which is relative to the test. infinite: its inputs are, so only NaN is bad."""
    numbers = [p.number for p in job.outputs] if job.made else []
    pf = "kernel = kernel.with_attr" if numbers else "kernel = kernel.without_attr"
    made = f'{pf}("tilelang_out_idx", {numbers})\n    ' if numbers else ""
    if not numbers and "tilelang_out_idx" in (job.kernel.prim_func.attrs or {}):
        made = f'{pf}("tilelang_out_idx")\n    '
    unknown = cause.kind in UNKNOWN
    bad = f"bad_outputs(result, only_nan={infinite}, names={outputs!r})"
    check = "assert all(mask is None for mask in result.undetermined), list(map(str, result.events))"
    return KERNEL.format(
        function=job.kernel.target.function, file=file.as_posix(), cause=cause_text(cause), arguments=arguments,
        sizes=sizes, configs=job.kernel.pass_configs, arch=job.arch, made=made,
        names=[x.parameter.name for x in job.inputs],
        formats={x.parameter.name: x.parameter.dtype.name for x in job.inputs if not x.parameter.integer},
        what="determined" if unknown else "finite",
        check=check if unknown else f'assert not {bad}, "an output has NaN{"" if infinite else " or an infinity"}"',
    )  # fmt: skip
