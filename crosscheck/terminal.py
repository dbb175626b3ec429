"""What a stream can show: colour, block glyphs, and progress on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import Self, TextIO

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
    """One line on stderr that says what runs and for how long, when stderr is a terminal; it leaves nothing behind.

    with Progress(15) as progress:
        progress.step("simulating const3 block_max")
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.text, self.started = steps, 0, "", time.monotonic()
        self.shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.finished = threading.Event()
        self.clock = threading.Thread(target=self._tick, daemon=True)

    def step(self, text: str) -> None:
        """The next step begins."""
        self.done, self.text = self.done + 1, text
        self._draw()

    def detail(self, text: str) -> None:
        """How far the step is; shown at the clock's next tick."""
        self.text = text

    def _draw(self) -> None:
        if self.shown and self.text:
            line = f"[{self.done} of {self.steps}] {self.text} ({time.monotonic() - self.started:.0f} s)"
            sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()

    def _tick(self) -> None:
        while not self.finished.wait(1):
            self._draw()

    def __enter__(self) -> Self:
        if self.shown:
            self.clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.finished.set()
            self.clock.join()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
