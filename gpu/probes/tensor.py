"""Sections `mma` and `wgmma`: tensor-core instructions on tiles of words, against sim.mma."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim import arith
from sim.arch import arch
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format
from sim.mma import dot

from .build import NoLibrary, tensor
from .families import TENSOR, tiles
from .tally import Tally, compare

__all__ = ["KINDS", "choose_layout", "mma_tasks", "run", "self_test", "wgmma_tasks", "work"]

Words = np.ndarray
Task = tuple[Any, ...]
KINDS: dict[str, tuple[Format, Format]] = {
    "mma_f16": (FP16, FP32),
    "mma_bf16": (BF16, FP32),
    "mma_tf32": (TF32, FP32),
    "mma_f16_f16": (FP16, FP16),
    "wgmma_f16": (FP16, FP32),
    "wgmma_bf16": (BF16, FP32),
    "wgmma_tf32": (TF32, FP32),
    "wgmma_e4m3": (E4M3, FP32),
    "wgmma_e5m2": (E5M2, FP32),
    "wgmma_f16_f16": (FP16, FP16),
}
MODES = {"": 0, "c dropped": 1, "a in registers": 2}  # of wgmma: tensor.cu's flags
LAYOUTS = [(128, 256), (256, 128)]  # leading and stride bytes; the second should be wrong
SIDE = 64  # of the square tiles that are compared: one wgmma, or 4 x 8 mma.sync


def step_length(fmt: Format) -> int:
    """K of one instruction: 32 bytes."""
    return 256 // fmt.bits


def run(kind: str, a: Words, b: Words, c: Words, mode: str = "", offsets: tuple[int, int] = LAYOUTS[0]) -> Words:
    """c + a b^T for a [tiles, 64, K], b [tiles, 64, K], c [tiles, 64, 64] on the GPU, same words."""
    if kind.startswith("wgmma"):
        return tensor(kind, a, b, c, MODES[mode], offsets)
    count, k = len(a), a.shape[-1]
    grid = (count, SIDE // 16, SIDE // 8)
    rows = np.broadcast_to(a.reshape(count, -1, 1, 16, k), (*grid, 16, k)).reshape(-1, 16, k)
    columns = np.broadcast_to(b.reshape(count, 1, -1, 8, k), (*grid, 8, k)).reshape(-1, 8, k)
    cells = c.reshape(count, grid[1], 16, grid[2], 8).swapaxes(2, 3).reshape(-1, 16, 8)
    return tensor(kind, rows, columns, cells).reshape(*grid, 16, 8).swapaxes(2, 3).reshape(c.shape)


def self_test(kind: str, mode: str, offsets: tuple[int, int]) -> int:
    """How many of 3 * 64 * 64 results are wrong for small integers, which every unit adds exactly."""
    fmt, acc = KINDS[kind]
    rng = np.random.default_rng(0)
    wrong = 0
    for steps in (1, 2, 4):
        shapes = ((1, SIDE, steps * step_length(fmt)),) * 2 + ((1, SIDE, SIDE),)
        x, y, z = (rng.integers(-3, 4, s) for s in shapes)
        a, b, c = (_integers(v, f) for v, f in ((x, fmt), (y, fmt), (z, acc)))
        expected = x @ y.swapaxes(1, 2) + (0 if mode == "c dropped" else z)
        wrong += int((run(kind, a, b, c, mode, offsets) != _integers(expected, acc)).sum())
    return wrong


def _integers(values: np.ndarray, fmt: Format) -> Words:
    words = values.astype(np.float32).view(np.uint32)
    return words if fmt in (FP32, TF32) else arith.convert(words, FP32, fmt)


def choose_layout(kinds: list[str]) -> tuple[tuple[int, int], dict[str, Any]]:
    """The shared-memory layout that gives right integers for most kinds, and what the self-test saw."""
    report: dict[str, Any] = {}
    for offsets in LAYOUTS if kinds[0].startswith("wgmma") else LAYOUTS[:1]:
        seen: dict[str, Any] = {}
        for kind in kinds:
            for mode in MODES if kind.startswith("wgmma") else [""]:
                try:
                    seen[f"{kind} {mode}".strip()] = self_test(kind, mode, offsets)
                except NoLibrary as error:
                    seen[f"{kind} {mode}".strip()] = str(error)
        report[f"leading {offsets[0]}, stride {offsets[1]}"] = seen
        if any(wrong == 0 for wrong in seen.values()):
            bad = [name for name, wrong in seen.items() if wrong != 0]
            report["verdict"] = "layout right" + (f", but wrong: {', '.join(bad)}" if bad else "")
            return offsets, report
    report["verdict"] = "LAYOUT WRONG: no instruction adds small integers; nothing else of this section means anything"
    return LAYOUTS[0], report


def _tasks(kinds: list[str], quick: bool, offsets: tuple[int, int]) -> list[Task]:
    """One task: 16 tiles of one kind, mode, family and number of K steps. Early tasks reach every kind and family."""
    repeats = {"": 2 if quick else 48, "a in registers": 1 if quick else 8, "c dropped": 1 if quick else 2}
    tasks = []
    for repeat in range(max(repeats.values())):
        for family in TENSOR:
            for kind in kinds:
                for mode in MODES if kind.startswith("wgmma") else [""]:
                    if repeat < repeats[mode]:
                        tasks.append((kind, mode, family, repeat, offsets))
    return tasks


def mma_tasks(quick: bool) -> list[Task]:
    return _tasks([kind for kind in KINDS if kind.startswith("mma")], quick, LAYOUTS[0])


def wgmma_tasks(quick: bool, offsets: tuple[int, int]) -> list[Task]:
    return _tasks([kind for kind in KINDS if kind.startswith("wgmma")], quick, offsets)


def work(task: Task) -> dict[str, Tally]:
    """Tallies by kind and mode."""
    kind, mode, family, repeat, offsets = task
    fmt, acc = KINDS[kind]
    rng = np.random.default_rng([repeat, list(TENSOR).index(family), list(KINDS).index(kind), list(MODES).index(mode)])
    k = step_length(fmt) * (1, 2, 4, 1)[repeat % 4]
    a, b, c = tiles(family, fmt, acc, (16, SIDE, SIDE, k), rng)
    gpu = run(kind, a, b, c, mode, offsets)
    used = np.zeros_like(c) if mode == "c dropped" else c
    sim = dot(a, b, used, arch("sm_90").dot(fmt, acc))

    def inputs_of(i: int) -> dict[str, Any]:
        tile, row, column = np.unravel_index(i, c.shape)
        return {"a": a[tile, row], "b": b[tile, column], "c": used[tile, row, column]}

    return {f"{kind} {mode}".strip(): compare(family, gpu, sim, inputs_of)}
