"""An explanation as one page: no scripts, nothing from elsewhere, and no colour that words do not tell as well."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np

from sim.captures import write_whole
from sim.formats import Format

from .explain_causes import KINDS, Group, Story, formula, hexed
from .explain_map import Births, births
from .explain_text import before, changed_block, headline, lesser, rows, values, where, why
from .explain_timeline import Timeline
from .flags import UsageError
from .text import list_of

__all__ = ["CLASSES", "check_html", "figure", "page", "write_html"]

MOST_PICTURES, MOST_GROUPS, MOST_BLOCKS, MOST_TURNS, MOST_SIDE = 12, 100, 64, 64, 384
# The classes of a word, and a colour of each that colour-blind people tell apart (Okabe and Ito, 2008), dark to light.
CLASSES = {"finite": "#e4e8ec", "-inf": "#56b4e9", "+inf": "#0072b2", "unknown": "#f0e442", "NaN": "#b34700"}
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
.verdict { border-left: .5rem solid; padding: .6rem 1rem; background: #f6f6f6; font-size: 1.1rem; }
.code0 { border-color: #009e73; } .code1 { border-color: #b34700; } .code3 { border-color: #f0e442; }
code, .mono, td.num { font-family: ui-monospace, monospace; font-size: .875rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; }
td.cell { border: 1px solid #bbb; min-width: 1.8rem; padding: .1rem .3rem; text-align: center; }
td.cell + td:not(.cell) { padding-left: .8rem; }
td.name, .word { white-space: nowrap; }
td.born { background: #b34700; color: #fff; font-weight: 600; }
tr.bad td { font-weight: 600; } tr.bad td:first-child { border-left: .3rem solid #b34700; padding-left: .4rem; }
tr.turn th { padding-top: 1rem; } dt { float: left; clear: left; width: 5.5rem; color: #555; }
dd { margin-left: 6rem; overflow-wrap: anywhere; } figure { display: inline-block; margin: 0 1.5rem 1rem 0; }
figure img { image-rendering: pixelated; border: 1px solid #999; display: block; max-width: 100%; }
figure { vertical-align: top; } figcaption { font-size: .875rem; max-width: 16rem; }
.key { display: inline-block; width: .9rem; height: .9rem; border: 1px solid #777;
  margin: 0 .3rem 0 1rem; vertical-align: middle; }
"""


def check_html(path: Path | None) -> None:
    """Raise UsageError unless a page can be written at `path`."""
    if path is None:
        return
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"--html must be the name of a .html file, not {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a directory" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"--html {path} cannot be written: {reason}")


def write_html(path: Path, story: Story, timeline: Timeline | None) -> None:
    """Write the page whole. Raises UsageError."""
    text = page(story, timeline).encode()
    try:
        write_whole(path, lambda stream: stream.write(text))
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written: {error.strerror}") from error


def page(story: Story, timeline: Timeline | None) -> str:
    """The page."""
    own = story.subject
    parts = [f"<h1>{escape(own.title)}</h1>", f'<p class="verdict code{story.code}">{escape(story.verdict)}</p>']
    parts.append(_list([(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in story.notes]))
    parts += _births(births(story), own.flash is not None) + _pictures(story)
    parts += _section("Causes", [_group(story, g) for g in story.groups[:MOST_GROUPS]], len(story.groups) - MOST_GROUPS)
    parts += _changes(story) + (_timeline(timeline) if timeline else [])
    for name, title in (("swallowed", "Born, and swallowed on the way"), ("damage", "Damage without NaN or infinity")):
        groups = story.lesser(name)
        items = [f"<li>{escape(lesser(story, g))}</li>" for g in groups[:MOST_GROUPS]]
        parts += _section(title, ["<ul>", *items, "</ul>"] if items else [], len(groups) - MOST_GROUPS)
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(own.title)}</title>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n' + "\n".join(
        [*parts, "</body></html>\n"]
    )


def _section(title: str, body: list[str], more: int = 0) -> list[str]:
    if not body:
        return []
    return [f"<h2>{title}</h2>", *body, *([f"<p>... and {more} more</p>"] if more > 0 else [])]


def _list(pairs: list[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs if b) + "</dl>"


# maps


def _births(found: list[Births], flash: bool) -> list[str]:
    """A table: thread blocks down, iterations across, in each cell the number of rows that are born bad."""
    if not found:
        return []
    shown, last = found[:MOST_BLOCKS], min(max(each.last for each in found), MOST_TURNS)
    outside = [-1] if any(-1 in each.turns for each in shown) else []
    turns = [*range(last), *outside]
    names = ["outside" if t < 0 else str(t) for t in turns]
    across = f"{'Key blocks' if flash else 'Iterations'} across; " if last else ""
    head = f"<tr><th>Thread block</th>{''.join(f'<th>{n}</th>' for n in names)}<th>Rows</th></tr>"
    lines = []
    for each in shown:
        cells = "".join(_cell(each, turn) for turn in turns)
        name = f'<td class="name">{escape(each.name)}</td>'
        lines.append(f"<tr>{name}{cells}<td>{escape(each.text())}</td></tr>")
    text = f"<p>{across}the number in a cell is how many rows of the tile are born bad there.</p>"
    table = f'<div class="scroll"><table>{head}{"".join(lines)}</table></div>'
    return _section("Where bad values are born", [text, table], len(found) - MOST_BLOCKS)


def _cell(each: Births, turn: int) -> str:
    rows = each.turns.get(turn)
    if rows is None:
        return f'<td class="cell">{"·" if turn < each.last else ""}</td>'
    return f'<td class="cell born">{int(rows.sum())}</td>'


def _pictures(story: Story) -> list[str]:
    """A picture of each head of an output, or of the whole output: one pixel a word."""
    parts, more = [], 0
    for name, (words, fmt) in story.trace.outputs.items():
        if not isinstance(fmt, Format) or not (name in story.bad or name in story.unknown):
            continue
        classes = _classes(words, fmt, story.unknown.get(name))
        planes = _planes(classes, name, story.subject.flash is not None)
        planes = _alike([(title, plane) for title, plane in planes if plane.any()])
        more += max(0, len(planes) - MOST_PICTURES)
        parts += [figure(title, plane) for title, plane in planes[:MOST_PICTURES]]
    keys = " ".join(
        f'<span class="word"><span class="key" style="background:{colour}"></span>{name}</span>'
        for name, colour in CLASSES.items()
    )
    text = f"<p>Rows run down, the last axis to the right. {keys}</p>"
    return _section("Words of the outputs", [text, *parts] if parts else [], more)


def _classes(words: np.ndarray, fmt: Format, unknown: np.ndarray | None) -> np.ndarray:
    """The class of each word, in the order of CLASSES."""
    infinite, negative = fmt.is_inf(words), (words & fmt.word.type(fmt.sign)) != 0
    classes = np.where(infinite, np.where(negative, 1, 2), 0).astype(np.uint8)
    classes[fmt.is_nan(words)] = 4
    if unknown is not None:
        classes[unknown] = 3
    return classes


def _planes(classes: np.ndarray, name: str, flash: bool) -> list[tuple[str, np.ndarray]]:
    """Pictures [rows, columns] with titles."""
    if not flash:
        return [(f"{name} {list(classes.shape)}", classes.reshape(-1, classes.shape[-1] if classes.ndim else 1))]
    batches, _, heads, _ = classes.shape
    return [(f"{name}, batch {b}, head {h}", classes[b, :, h]) for b in range(batches) for h in range(heads)]


def _alike(planes: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """One of each, its title with the number of those that are the same."""
    found: dict[bytes, list[tuple[str, np.ndarray]]] = {}
    for title, plane in planes:
        found.setdefault(plane.tobytes(), []).append((title, plane))
    more = [f" and {len(same) - 1} more alike" if len(same) > 1 else "" for same in found.values()]
    return [(same[0][0] + text, same[0][1]) for same, text in zip(found.values(), more, strict=True)]


def figure(title: str, plane: np.ndarray) -> str:
    """A picture of classes [rows, columns], in the order of CLASSES, and its counts."""
    counts = [_count(plane, n, name) for n, name in enumerate(CLASSES) if (plane == n).any()]
    text = f"{title}: {plane.shape[0]} by {plane.shape[1]}, {list_of(counts)}"
    small = _shrunk(plane)
    high, wide = (max(1, MOST_SIDE // 2 // side) for side in small.shape)  # whole pixels, so that none is lost
    size = f'width="{small.shape[1] * wide}" height="{small.shape[0] * high}"'
    source = "data:image/png;base64," + base64.b64encode(_png(small)).decode()
    return f'<figure><img src="{source}" alt="{escape(text)}" {size}><figcaption>{escape(text)}</figcaption></figure>'


def _count(plane: np.ndarray, n: int, name: str) -> str:
    return f"{int((plane == n).sum())} {name}"


def _shrunk(plane: np.ndarray) -> np.ndarray:
    """At most MOST_SIDE pixels a side; a pixel of several words shows the worst of them."""
    for axis in (0, 1):
        step = -(-plane.shape[axis] // MOST_SIDE)
        if step > 1:
            plane = np.maximum.reduceat(plane, np.arange(0, plane.shape[axis], step), axis=axis)
    return plane


def _png(plane: np.ndarray) -> bytes:
    """A PNG of class numbers, by palette."""
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in CLASSES.values())
    head = struct.pack(">IIBBBBB", plane.shape[1], plane.shape[0], 8, 3, 0, 0, 0)
    lines = np.concatenate(
        [np.zeros((len(plane), 1), np.uint8), plane], axis=1
    ).tobytes()  # each begins with its filter
    chunks = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# causes and the timeline


def _group(story: Story, group: Group) -> str:
    first, place = group.first, group.first.place
    pairs = [("line", f"{place.file}:{place.line}  {place.text}" if place.file else "")]
    if first.operands:
        words = ", ".join(hexed(w, f) for w, f in zip(first.operands, first.formats, strict=True))
        pairs.append(("first", f"{formula(first)} ({words} gives {hexed(first.word, first.format)})"))
    n = story.groups.index(group)
    if n < len(story.before) and story.before[n]:
        pairs.append(("before", before(story.before[n])))
    pairs += [("where", where(story, group)), ("rows", rows(story, group)), ("why", why(story, group))]
    lines = "".join(
        f'<tr><td>{escape(p.buffer)}</td><td>{escape(what)}</td><td class="num">{p.line or ""}</td>'
        f"<td><code>{escape(p.text)}</code></td></tr>"
        for p, what in group.carried
    )
    carried = f'<div class="scroll"><table><tr><th>then</th><th></th><th>line</th></tr>{lines}</table></div>'
    return f"<h3>{escape(headline(group))}</h3>{_list(pairs)}{carried if lines else ''}"


def _changes(story: Story) -> list[str]:
    items = []
    for change in story.changes:
        left = f"still {list_of([KINDS.get(kind, kind) for kind in change.left])}" if change.left else "no bad value"
        items.append(f"<li>{escape(change.what)}: <strong>{escape(left)}</strong></li>")
    title = f"What would change it, each tried on thread block {changed_block(story)}"
    return _section(title, ["<ul>", *items, "</ul>"] if items else [])


def _timeline(timeline: Timeline) -> list[str]:
    """Every step, by turns."""
    lines = []
    for turn, steps in groupby(timeline.shown(), key=lambda s: s.place.iteration):
        lines.append(f'<tr class="turn"><th colspan="3">{escape(timeline.turn_name(turn))}</th></tr>')
        for step in steps:
            cells = f'<td class="num">{step.place.line or ""}</td><td><code>{escape(step.place.buffer)}</code></td>'
            shown = " &nbsp; ".join(escape(text) for text in values(step))
            row_class = ' class="bad"' if step.bad else ""
            lines.append(f'<tr{row_class}>{cells}<td class="mono">{shown}</td></tr>')
    head = "<tr><th>line</th><th>buffer</th><th>value and word</th></tr>"
    table = f'<div class="scroll"><table>{head}{"".join(lines)}</table></div>'
    return _section(escape(f"How {timeline.name} was made"), [f"<p>{escape(timeline.where)}</p>", table])
