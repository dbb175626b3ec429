"""A GPU for tests of the command line: it gives the simulator's words, or wrong ones on purpose."""

from __future__ import annotations

from typing import Any

import pytest

import gpu
from sim import flash_attention


def install(
    monkeypatch: pytest.MonkeyPatch, arch: str = "sm_90a", flip: int = 0, error: Exception | None = None
) -> None:
    """Give `gpu` a device: it flips the bits of `flip` in the first word of each kernel, or gives `error` instead."""
    facts = {"device": "NVIDIA H200", "arch": arch, "driver": None, "cuda": None, "torch": None, "tilelang": None}

    def many(jobs: list[Any]) -> list[Any]:
        outs = [flash_attention(*job, arch="sm_90") for job in jobs]
        for words, _ in outs:
            words.reshape(-1)[0] ^= flip
        return [error] * len(jobs) if error else outs

    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu, "device_info", lambda: facts)
    monkeypatch.setattr(gpu, "flash_attention_many", many)
