"""The file of a sweep: a heading that says what is swept, then one row a combination, in JSON lines.

A row is appended in one write, so that a sweep that is killed loses what it was computing and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Self

import sim

from .flags import UsageError
from .sweep_axes import Sweep

__all__ = ["Rows"]


class Rows:
    """The rows of a sweep by their number, kept in a file if it has one; nobody else can have it meanwhile.

    with Rows(sweep, Path("sweep.jsonl")) as rows:
        rows.add(row)
    """

    def __init__(self, sweep: Sweep, path: Path | None) -> None:
        self.sweep, self.path, self.file = sweep, path, -1
        self.heading = {"verb": "sweep", "simulator": _simulator()} | sweep.to_json()
        self.found: dict[int, dict[str, Any]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row. Raises UsageError when it cannot be written."""
        self._append(row)
        self.found[row["number"]] = row

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            except OSError as error:
                raise UsageError(f"--out {self.path} cannot be written: {error.strerror}") from error
            try:
                self._lock()
                self._read(self.path.read_bytes())
            except BaseException:
                os.close(self.file)
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            os.close(self.file)  # which gives up the lock, too

    def _lock(self) -> None:
        """Raise UsageError if another process sweeps into the file."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"--out {self.path} is in use by another sweep") from error

    def _read(self, data: bytes) -> None:
        """The rows that are there; half a line at the end is dropped. Raises UsageError for another sweep's file."""
        heading = _line(self.heading)
        if heading.startswith(data):  # empty, or the half of a heading
            os.ftruncate(self.file, 0)
            self._append(self.heading)
            return
        whole, _, half = data.rpartition(b"\n")
        lines = whole.split(b"\n")
        self._check(lines[0])
        combinations = list(self.sweep)
        for number, line in enumerate(lines[1:], 2):
            row = _parsed(line)
            at = row.get("number")
            if not isinstance(at, int) or not 0 <= at < len(combinations) or "verdict" not in row:
                raise UsageError(f"--out {self.path}: line {number} is no row of this sweep")
            if row.get("combination") != json.loads(json.dumps(combinations[at])):
                raise UsageError(f"--out {self.path}: line {number} is not combination {at} of this sweep")
            self.found[at] = row
        os.ftruncate(self.file, len(data) - len(half))

    def _check(self, line: bytes) -> None:
        """Raise UsageError unless the file's heading is this sweep's."""
        there = _parsed(line)
        if there.get("verb") != "sweep":
            raise UsageError(f"--out {self.path} is there and no file of a sweep: name another file")
        here = _parsed(_line(self.heading))
        if there != here:
            raise UsageError(f"--out {self.path} holds another sweep ({_difference(there, here)}): name another file")

    def _append(self, about: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = _line(about)
        try:
            if os.write(self.file, line) != len(line):
                raise OSError(0, "no space is left")
        except OSError as error:
            raise UsageError(f"--out {self.path} cannot be written: {error.strerror}") from error


def _simulator() -> str:
    """A digest of the simulator's own files: rows of one simulator are not mixed with another's."""
    digest = hashlib.sha256()
    for file in sorted(Path(sim.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _line(about: dict[str, Any]) -> bytes:
    return json.dumps(about, allow_nan=False).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    """The object of a line, empty if there is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """What is different first: an axis with its values, or another part of the heading."""
    axes, own = there.pop("axes", {}), here.pop("axes", {})
    for name in [*own, *axes]:
        if axes.get(name) != own.get(name):
            return f"{name} is {axes.get(name, 'not given')} there, {own.get(name, 'not given')} here"
    name = next((n for n in [*here, *there] if there.get(n) != here.get(n)), "axes")
    if name == "axes":
        return "its axes are in another order"
    return f"{name} is {there.get(name)} there, {here.get(name)} here"
