"""Small pieces of prose that every report shares."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

__all__ = ["count", "json_number", "list_of", "plural", "shape", "wrapped"]


def plural(noun: str, number: int = 2) -> str:
    """The noun for that many."""
    if number == 1:
        return noun
    return noun + ("es" if noun.endswith("ch") else "s")


def count(number: int, noun: str) -> str:
    """The number and the noun: 1 row, 2 rows."""
    return f"{number} {plural(noun, number)}"


def list_of(texts: list[str], word: str = "and") -> str:
    """As in prose: a, a and b, a, b and c."""
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + f" {word} " + texts[-1]


def shape(array: np.ndarray) -> str:
    """The array's shape as [1, 256, 1, 128]."""
    return str(list(array.shape))


def json_number(value: float) -> Any:
    """The number, or a string ("nan", "inf", "-inf") for what JSON cannot hold."""
    return value if np.isfinite(value) else repr(float(value))


def wrapped(text: str, indent: str = "") -> list[str]:
    """The text as lines of at most 80 columns."""
    return textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=indent)
