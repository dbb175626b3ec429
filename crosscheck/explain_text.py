"""An explanation for a terminal, as wide as the window."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from sim.trace import Place
from sim.trace_steps import Step

from .explain_causes import KINDS, Group, Story, formula, hexed, number
from .explain_map import births
from .explain_timeline import Timeline
from .result import SAME, UNDETERMINED
from .rows import ASCII_CELLS, UNICODE_CELLS, nan_map, phrase
from .terminal import Style
from .text import count, list_of

__all__ = ["before", "chosen_turns", "headline", "lesser", "report", "rows", "values", "where", "why"]

MOST_GROUPS, MOST_BLOCKS, MOST_TURNS = 12, 16, 6
LABEL = 9  # columns of a label


class Page:
    """Lines of a report: folded at `width` columns."""

    def __init__(self, width: int, style: Style):
        self.width, self.style, self.lines = width, style, [""][:0]

    def add(self, text: str, indent: int = 0, hang: int = 0, paint: str = "") -> None:
        """A paragraph, its first line `indent` columns in and the rest `hang` more."""
        room = max(self.width, indent + hang + 20)
        folded = textwrap.wrap(text, room, initial_indent=" " * indent, subsequent_indent=" " * (indent + hang),
                               break_on_hyphens=False)  # fmt: skip
        self.lines += [self.style.paint(line, paint) if paint else line for line in folded or [""]]

    def labelled(self, label: str, text: str, paint: str = "") -> None:
        """A text beside a label."""
        start = len(self.lines)
        self.add(text, indent=4 + LABEL)
        self.lines[start] = f"    {label:<{LABEL}}" + self.lines[start][4 + LABEL :]
        if paint:
            self.lines[start:] = [self.style.paint(line, paint) for line in self.lines[start:]]

    def cut(self, text: str, paint: str = "") -> None:
        """One line, cut where the window ends."""
        text = text if len(text) <= self.width else text[: self.width - 3] + "..."
        self.lines.append(self.style.paint(text, paint) if paint else text)

    def head(self, text: str) -> None:
        self.lines.append("")
        self.add(text, paint="bold")


def report(story: Story, timeline: Timeline | None, style: Style, width: int) -> str:
    """The whole report."""
    page = Page(width, style)
    page.add(story.subject.title, paint="bold")
    for line in story.notes:
        page.add(line, indent=2, hang=11)
    page.lines.append("")
    page.add(story.verdict, paint={SAME: "green", UNDETERMINED: "yellow"}.get(story.code, "red"))
    _maps(story, page)
    _causes(story, page)
    _changes(story, page)
    if timeline is not None:
        _timeline(timeline, page)
    for name, title in (("swallowed", "born, and swallowed on the way"), ("damage", "damage without NaN or infinity")):
        _lesser(story, name, title, page)
    return "\n".join(page.lines)


# maps


def _maps(story: Story, page: Page) -> None:
    found, cells = births(story), UNICODE_CELLS if page.style.unicode else ASCII_CELLS
    flash = story.subject.flash
    if found:
        across = "key blocks" if flash else "iterations"
        loops = any(each.last for each in found)
        page.head("Rows where bad values are born" + (f": thread blocks down, {across} across" if loops else ""))
        if loops:
            page.add(f"{cells[0]} none  {cells[1]} some  {cells[2]} all rows of the tile", indent=2)
        lines = [(each.name, each.cells(cells), each.text()) for each in found[:MOST_BLOCKS]]
        wide = [max(len(line[n]) for line in lines) for n in (0, 1)]
        for name, glyphs, text in lines:
            beside = (f"{glyphs:<{wide[1]}}  " if loops else "") + text
            if 2 + wide[0] + 2 + len(beside) <= page.width:
                page.add(f"{name:<{wide[0]}}  {beside}", indent=2)
            else:
                page.add(name, indent=2)
                page.add(beside, indent=4)
        if len(found) > MOST_BLOCKS:
            page.add(f"... and {len(found) - MOST_BLOCKS} more thread blocks", indent=2)
    if flash and story.bad:
        page.head("Bad words of Output")
        picture = nan_map(story.bad["Output"], page.style.unicode, width=min(64, _power(page.width - 20)))
        page.lines += ["  " + line for line in picture.replace("all NaN", "all bad").splitlines()]


def _power(size: int) -> int:
    """The greatest power of 2 that is not more, at least 16."""
    return 1 << (max(size, 16).bit_length() - 1)


# causes


def _causes(story: Story, page: Page) -> None:
    if not story.groups:
        return
    page.head("Causes")
    for n, group in enumerate(story.groups[:MOST_GROUPS], 1):
        _group(story, group, n, page)
    if len(story.groups) > MOST_GROUPS:
        page.add(f"... and {len(story.groups) - MOST_GROUPS} more causes (--json has all)", indent=2)


def _group(story: Story, group: Group, n: int, page: Page) -> None:
    first, place = group.first, group.first.place
    page.add(f"{n}. {headline(group)}", indent=2, hang=3, paint="red" if first.function else "yellow")
    if place.file:
        page.cut(f"    {'line':<{LABEL}}{place.file}:{place.line}" + (f"  {place.text}" if place.text else ""))
    if first.operands:
        words = [hexed(w, f) for w, f in zip(first.operands, first.formats, strict=True)]
        page.labelled("first", f"{formula(first)}  ({', '.join(words)} gives {hexed(first.word, first.format)})")
    if n <= len(story.before) and story.before[n - 1]:
        page.labelled("before", before(story.before[n - 1]))
    page.labelled("where", where(story, group))
    page.labelled("rows", rows(story, group))
    if reason := why(story, group):
        page.labelled("why", reason, paint="yellow")
    _carried(group, page)


def headline(group: Group) -> str:
    """What a cause is, in one line."""
    first, kind = group.first, KINDS.get(group.first.kind, group.first.kind)
    if first.kind == "input":
        given = f"{first.place.buffer}{first.elements[0].tolist()} = {first.carried[0][1] if first.carried else 'bad'}"
        more = f" and {group.count - 1} more" if group.count > 1 else ""
        return f"{kind} is bad: {given} ({hexed(first.word, first.format)}){more}"
    if not first.function:
        return f"{kind}: {first.place.buffer} in {first.place.operator}"
    makes = f"makes {first.place.buffer} {first.carried[0][1]}" if first.carried else f"in {first.place.buffer}"
    return f"{kind} {makes} ({first.function}, {count(group.count, 'value')})"


def where(story: Story, group: Group) -> str:
    """The thread blocks and iterations of a cause."""
    flash, blocks = story.subject.flash, group.blocks
    if not blocks:
        return "global memory" if group.first.kind == "input" else "every thread block"
    text = phrase(np.isin(np.arange(blocks[-1] + 2), blocks), "thread block")
    if flash:
        return f"{text}: {flash.turns_text(group.causes)}"
    turns = sorted({c.place.iteration for c in group.causes if c.place.iteration})
    if not turns:
        return text
    shown = [", ".join(map(str, turn)) for turn in turns]
    return f"{text}: iteration{'s' if len(shown) > 1 else ''} " + list_of(
        shown if len(shown) <= 6 else [*shown[:5], f"{len(shown) - 5} more"]
    )


def rows(story: Story, group: Group) -> str:
    """The rows of the outputs that a cause reaches."""
    texts = [
        f"{'; '.join(story.subject.rows_text(mask))}" + (f" of {name}" if len(story.trace.outputs) > 1 else "")
        for name, mask in group.reached.items()
    ]
    return "; ".join(texts)


def before(steps: Sequence[Step]) -> str:
    """What the statement of a cause found in the row of its first element."""
    texts = []
    for step in steps:
        text = f"{step.place.buffer} = {', '.join(values(step))}"
        masked = len(step.shown) == 1 and step.shown[0].what.startswith("all ") and step.shown[0].value == -np.inf
        texts.append(text + (", the whole row is masked" if masked else ""))
    return "; ".join(texts)


def why(story: Story, group: Group) -> str:
    return story.subject.flash.why(group.causes) if story.subject.flash else ""


def _carried(group: Group, page: Page) -> None:
    """Where the first of the causes went."""
    wide = max((len(place.buffer) + len(what) for place, what in group.carried), default=0) + 1
    for n, (place, what) in enumerate(group.carried):
        page.cut(f"    {'then' if not n else '':<{LABEL}}{f'{place.buffer} {what}':<{wide}} {_line(place)}")


def _line(place: Place) -> str:
    return f"{place.line:>4}  {place.text}" if place.line else place.operator


def _changes(story: Story, page: Page) -> None:
    if not story.changes:
        return
    page.head(f"What would change it, each tried on thread block {changed_block(story)}")
    for change in story.changes:
        kinds = [KINDS.get(kind, kind) for kind in change.left]
        text = f"- {change.what}: " + (f"still {list_of(kinds)}" if kinds else "no bad value")
        page.add(text, indent=2, hang=2, paint="" if kinds else "green")


def changed_block(story: Story) -> int | None:
    """The thread block that changes were tried on."""
    return next((c.block for c in story.causes if c.block is not None), None)


def _lesser(story: Story, name: str, title: str, page: Page) -> None:
    """Causes that reach no output, in a line each."""
    groups = story.lesser(name)
    if not groups:
        return
    page.head(title[0].upper() + title[1:])
    for group in groups[:MOST_GROUPS]:
        page.add(f"- {lesser(story, group)}", indent=2, hang=2)
    if len(groups) > MOST_GROUPS:
        page.add(f"... and {len(groups) - MOST_GROUPS} more (--json has all)", indent=2)


def lesser(story: Story, group: Group) -> str:
    """A cause that reaches no output, in one line."""
    first, by = group.first, group.first.swallowed_by
    at = f" ({first.place.file}:{first.place.line})" if first.place.file else ""
    text = f"{headline(group)}{at}, {where(story, group)}"
    if first.operands and first.kind != "input":
        text += f": {formula(first)}"
    if by:
        place = f"{by[0].buffer or by[0].operator} at {by[0].file}:{by[0].line}" if by[0].file else by[0].buffer
        text += f"; swallowed by {by[1]} ({place})" if by[1] else f"; last seen in {place}"
    return text


# the timeline


def _timeline(timeline: Timeline, page: Page) -> None:
    page.head(f"How {timeline.name} was made")
    page.add(timeline.where, indent=2)
    turns = [(turn, list(steps)) for turn, steps in groupby(timeline.shown(), key=lambda s: s.place.iteration)]
    kept = chosen_turns([any(s.bad for s in steps) for _, steps in turns])
    last = -1
    for n in kept:
        if n > last + 1:
            page.add(f"... {count(n - last - 1, 'turn')} left out (--json and --html have all)", indent=2)
        turn, steps = turns[n]
        page.add(timeline.turn_name(turn), indent=2, paint="bold")
        for step in steps:
            _step(step, page)
        last = n


def chosen_turns(bad: Sequence[bool]) -> list[int]:
    """Which turns are shown: the first two, the last two, the first bad one and the one before it."""
    if len(bad) <= MOST_TURNS:
        return list(range(len(bad)))
    first = bad.index(True) if True in bad else 0
    return sorted({0, 1, max(first - 1, 0), first, len(bad) - 2, len(bad) - 1})


def _step(step: Step, page: Page) -> None:
    """A store in as few lines as its values need."""
    head = f"    {step.place.line or '':>4}  {step.place.buffer:<16}"
    room, lines = page.width - len(head) - 1, [""][:0]
    for text in values(step):
        if lines and len(lines[-1]) + 3 + len(text) <= room:
            lines[-1] += "   " + text
        else:
            lines += textwrap.wrap(text, max(room, 20))
    for n, line in enumerate(lines):
        text = (head if not n else " " * len(head)) + " " + line
        page.lines.append(page.style.paint(text, "red") if step.bad else text)


def values(step: Step) -> Iterator[str]:
    for shown in step.shown:
        digits = shown.fmt.bits // 4 + 2
        what = f"{shown.what}: " if shown.what else ""
        yield f"{what}{number(shown.word, shown.fmt)} {shown.word:#0{digits}x}"
    if step.whole and not step.loaded:
        yield "(whole tile)"
