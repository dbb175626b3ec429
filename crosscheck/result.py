"""What a verb hands back, and the exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DIFFERS", "SAME", "UNDETERMINED", "USAGE", "Result"]

SAME = 0
DIFFERS = 1
USAGE = 2
UNDETERMINED = 3


@dataclass(frozen=True)
class Result:
    """A finished verb: exit code, report to read, and the same as one JSON object."""

    code: int
    text: str
    data: dict[str, Any]
