"""What a command of `explain` says, for its tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crosscheck.cli import main


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 1) -> str:
    """The report of a command that exits `code`."""
    assert main(list(argv)) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def told(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 1) -> Any:
    """Its JSON object."""
    assert main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def flat(text: str) -> str:
    """The report as one line, whatever its width."""
    return " ".join(text.split())
