"""The verb `explain`: where every NaN and infinity of an output was born, and how it got there."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from sim.trace import Trace

from .explain_causes import Story, Subject
from .explain_html import check_html, write_html
from .explain_subject import followed, subject
from .explain_text import report
from .explain_timeline import Timeline, before, chosen, first_bad, timeline
from .flags import UsageError, file_name, kernel_flags, report_flags, schedule_flags
from .result import Result
from .run_kernel import block_numbers
from .terminal import Progress, Style

__all__ = ["add", "run"]

NAME = "explain"
CODES = "exit codes: 0 no bad value reaches an output, 1 one does, 2 usage or input, 3 undetermined"
NARROWEST, WIDEST = 40, 160
MOST_BEFORE = 8  # causes whose operands are shown by name


def add(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = "say where every NaN and infinity of an output was born, and what would change it"
    parents = [schedule_flags(kernels=True), kernel_flags(), report_flags(gpu=False)]
    parser = verbs.add_parser(NAME, help=text, description=text, epilog=CODES, parents=parents)
    parser.add_argument("kernel", nargs="?", metavar="FILE.py:FUNCTION", help="(default the flash loop)")
    add = parser.add_argument_group("what is explained").add_argument
    add("--seed-cell", metavar="CASE/VARIANT", help="a cell of the seed's table, as causal256_128x64/block_max")
    add("--blocks", type=block_numbers, metavar="0,3", help="of a kernel: simulate only these thread blocks")
    add(
        "--at", metavar="B,S,H,D", help="the element whose timeline is shown, or OUTPUT:I,J (default the first bad one)"
    )
    add("--html", type=file_name, metavar="FILE.html", help="write it as one page as well")
    parser.set_defaults(run=run, out=None, capture=None, gpu="off")


def run(args: argparse.Namespace, style: Style) -> Result:
    """Explain; exit code 1 when a bad value reaches an output, 3 when words cannot be known, else 0."""
    check_html(args.html)
    explained = subject(args)
    with Progress(3) as progress:
        progress.step("simulating, and following every bad value")
        trace = followed(explained)
        element = chosen(args.at, trace) if args.at is not None else None
        progress.step("trying what would change it")
        story = Story(explained[0], trace, _changes(explained[0], trace))
        story.before.extend(before(explained[0], group.first) for group in story.groups[:MOST_BEFORE])
        progress.step("the timeline of one element")
        found = _timeline(story, element)
    width = min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)
    text = report(story, found, style, width)
    if args.html is not None:
        write_html(args.html, story, found)
        text += f"\n\nwrote {args.html}"
    data = {"verb": NAME} | explained[0].about | story.to_json() | {"timeline": found and found.to_json()}
    return Result(story.code, text, data)


def _changes(own: Subject, trace: Trace) -> list[Any]:
    """What else was tried on the thread block where the first cause is."""
    first = next((c for c in trace.causes if c.block is not None), None)
    return [] if own.flash is None or first is None else list(own.flash.changes(first))


def _timeline(story: Story, element: Any) -> Timeline | None:
    """The timeline of the chosen element, or of the first bad one. Raises UsageError where the chosen one has none."""
    wanted = element or first_bad(story)
    found = timeline(story.subject, story.trace, wanted) if wanted else None
    if element and found is None:
        name, index = element
        raise UsageError(f"--at {name}{list(index)} has no timeline: no thread block, or more than one, makes it")
    return found
