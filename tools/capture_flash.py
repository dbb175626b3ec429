"""Run the flash loop on a GPU in many configurations, compare every word with the simulator, keep some as a capture.

    python tools/capture_flash.py OUT_DIR        writes OUT_DIR/flash.npz, flash.json (the capture) and report.json

The configurations cover what the example's tuner tries and TileLang compiles, each with fast math and without: tiles
and threads, full and causal, dim 64 and 128, both dtypes, groups, ragged lengths, seq_q != seq_kv, every family of
inputs and every variant. Inputs are made again from their family and seed, so the capture holds outputs only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu
from crosscheck.diff import diff
from crosscheck.inputs import DTYPES, Shape, make
from sim import Schedule, flash_attention
from sim.captures import save_capture
from sim.flash import VARIANTS
from sim.formats import to_words

TILES = [  # block_M, block_N, threads
    (64, 64, 128), (128, 64, 128), (64, 128, 128), (128, 128, 128), (128, 128, 256), (128, 64, 256), (64, 256, 128),
    (64, 32, 128), (128, 32, 256), (256, 64, 512),
]  # fmt: skip
FAMILIES = ["normal", "large", "tiny", "special"]


@dataclass(frozen=True)
class Cell:
    """One run: what is computed on which inputs; `kept` cells go into the capture."""

    variant: str
    schedule: Schedule
    shape: Shape
    dtype: str
    inputs: str
    seed: int
    kept: bool

    @property
    def name(self) -> str:
        s = self.schedule
        words = [f"{s.block_M}x{s.block_N}", f"t{s.threads}", f"s{s.num_stages}", "causal" if s.causal else "full"]
        words += [f"d{self.shape.dim}", self.dtype, self.inputs, self.variant, "fast" if s.fast_math else "precise"]
        return "_".join([*words, str(self.seed)])

    def arrays(self) -> tuple[Any, Any, Any]:
        """q, k and v as pairs of words and format."""
        fmt = DTYPES[self.dtype]
        q, k, v = ((words, fmt) for words in make(self.inputs, self.shape, fmt, self.seed))
        return q, k, v


def cells() -> list[Cell]:
    """All configurations, fast math and not."""
    chosen: list[Cell] = []

    def add(tile: tuple[int, int, int], causal: bool, shape: Shape, **other: Any) -> None:
        fields = {
            "variant": "running_max",
            "dtype": "float16",
            "inputs": "normal",
            "num_stages": 2,
            "kept": False,
        } | other
        variant, stages = fields.pop("variant"), fields.pop("num_stages")
        for fast_math in (True, False):
            names = dict(zip(("block_M", "block_N", "threads"), tile, strict=True))
            schedule = Schedule.variant(variant, causal=causal, num_stages=stages, fast_math=fast_math, **names)
            chosen.append(Cell(variant, schedule, shape, seed=len(chosen) // 2, **fields))

    for n, (tile, causal, dim) in enumerate(product(TILES, (False, True), (64, 128))):
        shape = Shape(heads=1, heads_kv=1, seq_q=256, seq_kv=256, dim=dim)
        dtype = ("float16", "bfloat16")[(n + n // 4) % 2]
        add(
            tile,
            causal,
            shape,
            dtype=dtype,
            inputs=FAMILIES[(n + n // 4) % 4],
            num_stages=n % 3,
            kept=dim == 64,
        )
    for n, (inputs, dtype, causal) in enumerate(product(FAMILIES, DTYPES, (False, True))):
        shape = Shape(batch=2, heads=4, heads_kv=2, seq_q=100 + n, seq_kv=150 + 3 * n, dim=64)
        add((64, 64, 128), causal, shape, dtype=dtype, inputs=inputs, num_stages=n % 3, kept=n < 8)
    for n, (variant, causal, inputs) in enumerate(product(VARIANTS, (False, True), ("normal", "large"))):
        shape = Shape(heads=1, heads_kv=1, seq_q=128, seq_kv=192, dim=64)
        add((128, 64, 128), causal, shape, variant=variant, inputs=inputs, dtype=tuple(DTYPES)[n % 2], kept=True)
    add((64, 64, 128), False, Shape(seq_q=1, seq_kv=300, dim=128), kept=True)
    add((64, 64, 128), True, Shape(seq_q=33, seq_kv=33, dim=96), inputs="large", kept=True)
    add((64, 64, 128), False, Shape(seq_q=64, seq_kv=64, dim=192), kept=True)
    add((64, 64, 128), True, Shape(seq_q=65, seq_kv=640, dim=256, heads=2), dtype="bfloat16", num_stages=0)
    add((128, 64, 128), True, Shape(seq_q=1024, seq_kv=1024, dim=128, heads=2), num_stages=2)
    add((64, 64, 128), False, Shape(seq_q=128, seq_kv=128, dim=64), inputs="const:3", variant="block_max", kept=True)
    return chosen


def simulate(cell: Cell) -> np.ndarray:
    """The simulator's words."""
    return to_words(flash_attention(*cell.arrays(), cell.schedule))[0]


def main(out: Path) -> int:
    """Run, compare, write. Returns 0 when every word of every kernel that ran agrees."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = cells()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(simulate, chosen)
        live = gpu.flash_attention_many([(*cell.arrays(), cell.schedule) for cell in chosen], timeout=300)
        report, kept, described = [], {}, []
        for cell, words, result in zip(chosen, made, live, strict=True):
            entry: dict[str, Any] = {"name": cell.name, **_describe(cell)}
            if isinstance(result, Exception):
                report.append(entry | {"error": str(result)})
                continue
            there, fmt = to_words(result)
            found = diff((words, fmt), (there, fmt))
            report.append(
                entry | {"words": found.size, "wrong": found.different, "diff": None if found.same else str(found)}
            )
            if cell.kept:
                kept[cell.name] = (there, fmt)
                described.append({"name": cell.name, **_describe(cell)})
    facts = gpu.device_info() | {"command": "python tools/capture_flash.py tests/captures/h200", "seed": None}
    facts |= {"date": datetime.date.today().isoformat(), "cells": described}
    save_capture(out / "flash.npz", kept, facts)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    ran = [entry for entry in report if "words" in entry]
    wrong = sum(entry["wrong"] for entry in ran)
    print(f"{len(ran)} of {len(report)} ran, {sum(e['words'] for e in ran)} words, {wrong} wrong, {len(kept)} kept")
    for entry in report:
        if entry.get("error") or entry.get("wrong"):
            print(entry["name"], entry.get("error") or entry["diff"])
    return 1 if wrong else 0


def _describe(cell: Cell) -> dict[str, Any]:
    described = asdict(cell)
    del described["kept"]
    return described


def command_line() -> int:
    """Exit code 2 when there is no GPU to run on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="gets flash.npz, flash.json and report.json")
    out = parser.parse_args().out
    if reason := gpu.unavailable():
        print(f"capture_flash: {reason}", file=sys.stderr)
        return 2
    return main(out)


if __name__ == "__main__":
    sys.exit(command_line())
