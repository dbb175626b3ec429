"""Kernels of five families: with the fault the proof does not go through, mended it does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import simulate
from sim.formats import Format
from sim.prove import Bounds, Proof, prove

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")

INTEGERS = {"Choice": [0, 1], "Mask": [1], "cu_seqlens": [0, 10, 24]}
OUTPUTS = ("Output", "Lse", "Partial")


def proof(name: str, mended: bool, monkeypatch: pytest.MonkeyPatch) -> Proof:
    """For all inputs of magnitudes up to 4, V up to 100."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent / "schedules"), *sys.path])
    pf = importlib.import_module(name).attention(mended=mended)
    arrays: list[Any] = []
    bounds = {}
    for p in pf.params:
        buffer = pf.buffer_map[p]
        shape, own = [int(x) for x in buffer.shape], str(buffer.name)
        if own in INTEGERS:
            arrays.append(np.broadcast_to(np.array(INTEGERS[own], str(buffer.dtype)), shape).copy())
            continue
        fmt: Format = importlib.import_module("sim.formats").format_named(str(buffer.dtype))
        arrays.append((np.zeros(shape, fmt.word), fmt))
        if own not in OUTPUTS:
            bounds[own] = 100.0 if own == "V" else 4.0
    return prove(lambda machine: simulate(pf, *arrays, machine=machine), Bounds(bounds))


@pytest.mark.parametrize("name", ["native_sparse", "block_sparse", "mla_split", "sink", "variable_length"])
def test_the_mended_kernel_is_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proof(name, True, monkeypatch).proved


@pytest.mark.parametrize(
    ("name", "buffer"), [("native_sparse", "scores_scale"), ("block_sparse", "scores_scale"), ("sink", "logsum")]
)
def test_the_proof_stops_where_the_fault_is(name: str, buffer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proof(name, False, monkeypatch)
    assert not found.proved and found.stuck[0][1].buffer == buffer


def test_a_split_without_keys_is_bad_for_every_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proof("mla_split", False, monkeypatch).certain["Partial"].any()
