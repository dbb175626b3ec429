"""The heat maps of a sweep as one page: no script, nothing from elsewhere, and letters beside the colours."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from .flags import UsageError
from .sweep_axes import Sweep, command, named_values
from .sweep_map import LETTERS, WORDS, Layout, Map, legend, letter, worst
from .sweep_row import BAD

__all__ = ["check_html", "write_html"]

MOST = 500  # rows of the table of what is not clean
# Okabe and Ito's palette, which colour-blind people tell apart.
COLOURS = {"clean": "#56b4e9", "nan": "#d55e00", "inf": "#e69f00", "damage": "#f0e442", "undetermined": "#cc79a7",
           "refused": "#e8e8e8"}  # fmt: skip
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; color: #111; background: #fff; margin: 2em; }
.maps { display: flex; flex-wrap: wrap; gap: 1.5em 2.5em; margin: 1.5em 0; }
table { border-collapse: collapse; } caption { text-align: left; font-weight: 600; padding-bottom: .3em; }
th { font-weight: 400; padding: .1em .5em; text-align: right; } td { padding: .15em .5em; }
.map td, .key { min-width: 1.6em; height: 1.6em; text-align: center; border: 2px solid #fff; }
.key { display: inline-block; margin-left: 1em; } .list td { border-top: 1px solid #ddd; vertical-align: top; }
code { font-size: 13px; }
"""


def check_html(path: Path | None) -> None:
    """Raise UsageError unless a page can be written at `path`."""
    if path is None:
        return
    if path.suffix != ".html":
        raise UsageError(f"--html must be the name of a .html file, not {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--html {path} cannot be written: it is a directory, or its folder is not there")


def write_html(
    path: Path, sweep: Sweep, rows: list[dict[str, Any]], axes: Layout, found: list[Map], lines: list[str]
) -> None:
    """Write the page. lines: the report's first lines, the first of them its title. Raises UsageError."""
    title, used = escape(lines[0]), Counter(row["verdict"] for row in rows)
    body = [f"<h1>{title}</h1>", "<pre>" + escape("\n".join(lines[1:])) + "</pre>", _legend(axes, used)]
    body += ['<div class="maps">', *(_map(each) for each in found), "</div>", *_bad(sweep, rows)]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    page = f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written: {error.strerror}") from error


def _legend(axes: Layout, used: Counter[str]) -> str:
    about = [escape(line) for line in legend(axes, [])]
    keys = [_key(verdict) + f" {WORDS[verdict]} ({used[verdict]})" for verdict in LETTERS if used[verdict]]
    return f"<p>{'. '.join(about)}</p><p>{''.join(keys)}</p>"


def _key(verdict: str) -> str:
    return f'<span class="key" style="background:{COLOURS[verdict]}">{LETTERS[verdict]}</span>'


def _map(each: Map) -> str:
    heads = "".join(f"<th>{escape(value)}</th>" for value in each.across)
    lines = [
        f'<table class="map"><caption>{escape(f"{each.group} {each.title}".strip())}</caption><tr><th></th>{heads}</tr>'
    ]
    for i, value in enumerate(each.down):
        cells = (_cell(each.cells.get((i, j), Counter())) for j in range(len(each.across)))
        lines.append(f"<tr><th>{escape(value)}</th>{''.join(cells)}</tr>")
    return "".join(lines) + "</table>"


def _cell(cell: Counter[str]) -> str:
    verdict = worst(cell)
    if verdict is None:
        return "<td></td>"
    says = ", ".join(f"{cell[each]} {WORDS[each]}" for each in LETTERS if cell[each])
    return f'<td style="background:{COLOURS[verdict]}" title="{says}">{letter(cell)}</td>'


def _bad(sweep: Sweep, rows: list[dict[str, Any]]) -> list[str]:
    """What is not clean, each with its sentence and the command that explains it."""
    bad = [row for row in rows if row["verdict"] in (*BAD, "undetermined")]
    if not bad:
        return []
    lines = ['<h2>Not clean</h2><table class="list">']
    for row in bad[:MOST]:
        what, code = named_values(row["combination"], sweep.varied), command(sweep, row["combination"], "explain")
        cells = [_key(row["verdict"]), escape(what), f"{escape(row['why'] or '')}<br><code>{escape(code)}</code>"]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return [*lines, "</table>", *([f"<p>... and {len(bad) - MOST} more</p>"] if len(bad) > MOST else [])]
