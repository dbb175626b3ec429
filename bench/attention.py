"""How fast the exact simulator is, beside NumPy float32 attention in the same run, one thread each.

    python -m bench [--quick]

Prints products per second of the tensor-core model and, for each size, seconds of both and their ratio. Each pair is
timed in turn (A B A B ...) and the median of each is taken, so that a busy machine slows both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

from sim import Schedule, flash_attention, mma  # noqa: E402
from sim.arch import arch  # noqa: E402
from sim.formats import FP16  # noqa: E402
from sim.trace import follow  # noqa: E402

Call = Callable[[], object]


def in_turn(*calls: Call, rounds: int = 5) -> list[float]:
    """The median seconds of each call, timed in turn after one warm-up."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, taken in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            if turn:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """The plain float32 attention that people write in NumPy; one head, [seq, dim]."""
    scores = (q @ k.T) * np.float32(1 / np.sqrt(q.shape[1]))
    if causal:
        scores[np.triu_indices(len(q), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ v


def bench_products(rounds: int) -> None:
    """Products per second of c + a @ b.T, float16 into float32 on sm_90, beside NumPy's float32 matmul."""
    rng, unit = np.random.default_rng(0), arch("sm_90").dot(FP16)
    print("tensor-core products, sm_90 float16, one thread")
    print(f"  {'M x N x K':<18} {'exact M/s':>10} {'float32 matmul M/s':>20} {'ratio':>8}")
    for M, N, K in ((1024, 64, 128), (1024, 128, 64), (2048, 128, 128)):
        a, b = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((N, K)).astype(np.float16)
        c, wide, narrow = np.zeros((M, N), np.uint32), a.astype(np.float32), b.astype(np.float32)
        exact, plain = in_turn(
            partial(mma.dot, a.view(np.uint16), b.view(np.uint16), c, unit),
            partial(np.matmul, wide, narrow.T),
            rounds=rounds,
        )
        rate, peer = M * N * K / exact / 1e6, M * N * K / plain / 1e6
        print(f"  {f'{M} x {N} x {K}':<18} {rate:>10.0f} {peer:>20.0f} {peer / rate:>7.0f}x", flush=True)


def bench_attention(sizes: tuple[int, ...], rounds: int) -> None:
    """Whole attention, batch 1, 1 head, dim 128, 128x64 blocks."""
    rng = np.random.default_rng(0)
    print("attention, B 1, H 1, D 128, 128x64 blocks, one thread")
    print(f"  {'seq':>5} {'mask':<7} {'exact s':>9} {'NumPy float32 s':>16} {'ratio':>8}")
    for seq in sizes:
        q, k, v = (rng.standard_normal((1, seq, 1, 128)).astype(np.float16) for _ in range(3))
        wide = [x[0, :, 0].astype(np.float32) for x in (q, k, v)]
        for causal in (False, True):
            schedule = Schedule(block_M=128, block_N=64, causal=causal)
            ours, peer = partial(flash_attention, q, k, v, schedule), partial(numpy_attention, *wide, causal)
            exact, plain = in_turn(ours, peer, rounds=rounds)
            mask = "causal" if causal else "full"
            print(f"  {seq:>5} {mask:<7} {exact:>9.3f} {plain:>16.4f} {exact / plain:>7.0f}x", flush=True)


def bench_walk(sizes: tuple[int, ...], rounds: int) -> None:
    """The TileLang kernel walked by sim.run, beside the hand-written loop that gives the same words."""
    try:
        import tilelang  # noqa: F401
    except ImportError:
        print("the walk of the TileLang kernel: not measured, TileLang is not installed")
        return
    from gpu.flash import flash_attention_kernel, pass_configs
    from sim import run

    print("the TileLang kernel walked, the same attention")
    print(f"  {'seq':>5} {'mask':<7} {'walked s':>9} {'hand loop s':>16} {'ratio':>8}")
    rng = np.random.default_rng(0)
    for seq in sizes:
        q, k, v = (rng.standard_normal((1, seq, 1, 128)).astype(np.float16) for _ in range(3))
        for causal in (False, True):
            schedule = Schedule(block_M=128, block_N=64, causal=causal)
            kernel = flash_attention_kernel(schedule, 1, 1, 1, seq, seq, 128, "float16")
            kernel = kernel.with_attr("tilelang_out_idx", [3])
            walk = partial(run, kernel, q, k, v, pass_configs=pass_configs(schedule))
            walked, loop = in_turn(walk, partial(flash_attention, q, k, v, schedule), rounds=rounds)
            mask = "causal" if causal else "full"
            print(f"  {seq:>5} {mask:<7} {walked:>9.3f} {loop:>16.3f} {walked / loop:>7.2f}x", flush=True)


def bench_trace(sizes: tuple[int, ...], rounds: int) -> None:
    """A traced run beside the untraced one: random inputs that stay clean, and a maximum that falls (every row bad)."""
    rng = np.random.default_rng(0)
    print("attention traced (sim.trace.follow), D 64, 128x64 blocks")
    print(f"  {'seq':>5} {'run':<14} {'traced s':>9} {'untraced s':>16} {'ratio':>8}")
    for seq in sizes:
        q, k, v = (rng.standard_normal((1, seq, 1, 64)).astype(np.float16) for _ in range(3))
        three = np.full_like(q, 3)
        falls = np.where(np.arange(seq)[None, :, None, None] < seq // 2, three, -three)
        for name, inputs, variant, causal in (
            ("clean, full", (q, k, v), "running_max", False),
            ("clean, causal", (q, k, v), "running_max", True),
            ("bad, full", (three, falls, v), "block_max", False),
            ("bad, causal", (q, k, v), "block_max", True),
        ):
            schedule = Schedule.variant(variant, block_M=128, block_N=64, causal=causal)
            run = partial(flash_attention, *inputs, schedule)
            traced, plain = in_turn(partial(follow, lambda machine, run=run: run(machine=machine)), run, rounds=rounds)
            print(f"  {seq:>5} {name:<14} {traced:>9.3f} {plain:>16.3f} {traced / plain:>7.2f}x", flush=True)


def main(quick: bool) -> None:
    """All of this page; `quick` for a look, not for quoting."""
    bench_products(rounds=3 if quick else 7)
    bench_attention((256,) if quick else (256, 1024, 2048), rounds=1 if quick else 3)
    bench_walk((256,) if quick else (256, 1024), rounds=1 if quick else 5)
    bench_trace((256,) if quick else (256, 1024), rounds=1 if quick else 5)
