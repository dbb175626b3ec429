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

__all__ = ["KINDS", "choose_layout", "run", "self_test", "tasks", "work"]

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


def _tested(test: tuple[str, str, tuple[int, int]]) -> int | str:
    try:
        return self_test(*test)
    except NoLibrary as error:
        return str(error)


def choose_layout(prefix: str, pool: Any) -> tuple[tuple[int, int], list[tuple[str, str]], dict[str, Any]]:
    """Which shared-memory layout adds small integers rightly: its offsets, the kinds and modes that do, what was seen.

    pool: starts a process for each test, so that an instruction that faults spoils nothing else
    """
    wgmma = prefix == "wgmma"
    pairs = [(kind, mode) for kind in KINDS if kind.startswith(prefix) for mode in (MODES if wgmma else [""])]
    report: dict[str, Any] = {}
    for offsets in LAYOUTS if wgmma else LAYOUTS[:1]:
        wrong = pool.map(_tested, [(*pair, offsets) for pair in pairs], chunksize=1)
        seen = {" ".join(pair).strip(): w for pair, w in zip(pairs, wrong, strict=True)}
        report[
            f"wrong of {3 * SIDE * SIDE}" + (f" with leading {offsets[0]}, stride {offsets[1]}" if wgmma else "")
        ] = seen
        usable = [pair for pair, w in zip(pairs, wrong, strict=True) if w == 0]
        if usable:
            bad = [name for name, w in seen.items() if w != 0]
            report["verdict"] = f"{len(usable)} of {len(pairs)} add small integers" + (f"; not {bad}" if bad else "")
            return offsets, usable, report
    faults = {w for w in wrong if isinstance(w, str)}
    report["verdict"] = f"NOTHING RUNS: {faults}" if faults else "LAYOUT WRONG: no instruction adds small integers"
    return LAYOUTS[0], [], report


def tasks(usable: list[tuple[str, str]], offsets: tuple[int, int], quick: bool) -> list[Task]:
    """One task: 16 tiles of one kind, mode, family and number of K steps. Early tasks reach every kind and family."""
    repeats = {"": 2 if quick else 48, "a in registers": 1 if quick else 8, "c dropped": 1 if quick else 2}
    return [
        (kind, mode, family, repeat, offsets)
        for repeat in range(max(repeats.values()))
        for family in TENSOR
        for kind, mode in usable
        if repeat < repeats[mode]
    ]


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
