"""What a stream can show: colour, block glyphs, and progress on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

__all__ = ["Progress", "Style"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Style:
    """How a report may be written to a stream.

    color:   the stream is a terminal and NO_COLOR is not set
    unicode: the stream is a terminal whose encoding is UTF-8
    """

    def __init__(self, stream: TextIO) -> None:
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.color = terminal and not os.environ.get("NO_COLOR")
        self.unicode = terminal and (stream.encoding or "").lower().replace("-", "") == "utf8"

    def paint(self, text: str, style: str) -> str:
        """`text` in bold, dim, red, green or yellow, or as it is when there is no colour."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.color else text


class Progress:
    """One line on stderr that says what runs now, only when stderr is a terminal; it leaves nothing behind.

        with Progress(15) as progress:
            progress.step("simulating const3 block_max")
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.started = steps, 0, time.monotonic()
        self.shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def step(self, text: str) -> None:
        """The next step begins."""
        self.done += 1
        if self.shown:
            line = f"[{self.done} of {self.steps}] {text} ({time.monotonic() - self.started:.0f} s)"
            sys.stderr.write("\r\x1b[K" + line[: os.get_terminal_size(sys.stderr.fileno()).columns - 1])
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
