"""The seed's flash-attention forward loop (TileLang issue #948), and the schedule that it is built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from .arch import Arch
from .arch import arch as find_arch
from .formats import BF16, FP16, FP32, Format, from_words, to_words
from .machine import Exact
from .memory import Tensor
from .report import Undetermined
from .tile import Block

__all__ = ["VARIANTS", "Schedule", "flash_attention"]

_MOST_ELEMENTS = 1 << 24  # of one tile

# The seed's five ways of keeping scores_max: (refill_max, clear_max, merge_max).
VARIANTS = {
    "running_max": (True, False, True),
    "block_max": (True, False, False),
    "clear_true": (False, True, True),
    "accumulate_max": (False, False, False),
    "clear_true_block_max": (False, True, False),
}


@dataclass(frozen=True)
class Schedule:
    """How the flash-attention loop is blocked and how it keeps its row maximum.

    block_M, block_N: query and key rows of a tile, from 1 up (TileLang itself wants multiples of 16)
    causal:      mask keys after the query; with seq_q != seq_kv the last query sees the last key
    threads:     threads of a thread block
    num_stages:  pipeline stages; they do not change the meaning
    refill_max:  T.fill(scores_max, -inf) in each block
    clear_max:   `clear` of T.reduce_max
    merge_max:   T.max with the previous maximum after T.reduce_max
    fast_math:   TL_ENABLE_FAST_MATH
    """

    block_M: int = 64
    block_N: int = 64
    causal: bool = False
    threads: int = 128
    num_stages: int = 0
    refill_max: bool = True
    clear_max: bool = False
    merge_max: bool = True
    fast_math: bool = True

    def __post_init__(self) -> None:
        for name in ("block_M", "block_N", "threads", "num_stages"):
            value, least = getattr(self, name), 0 if name == "num_stages" else 1
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")
            object.__setattr__(self, name, int(value))
        for name in ("causal", "refill_max", "clear_max", "merge_max", "fast_math"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")

    @classmethod
    def variant(cls, name: str, **fields: object) -> Schedule:
        """One of the seed's five ways of keeping scores_max, by name; `fields` are the other fields of a Schedule."""
        if not isinstance(name, str) or name not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {name!r}")
        if fixed := sorted({"refill_max", "clear_max", "merge_max"} & set(fields)):
            raise ValueError(f"{fixed[0]} is what the variant says: give Schedule(...) the fields instead")
        refill_max, clear_max, merge_max = VARIANTS[name]
        return replace(cls(**fields), refill_max=refill_max, clear_max=clear_max, merge_max=merge_max)  # type: ignore[arg-type]

    def compilable(self, arch: str, dim: int = 128, dtype: str = "float16") -> str | None:
        """None when TileLang makes a kernel of this schedule that `arch` can launch, else TileLang's own reason."""
        from .limits import why_not_compilable

        return why_not_compilable(self, arch, dim, dtype)


def flash_attention_block(
    T: Block,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    Output: Tensor,
    schedule: Schedule,
    bx: np.ndarray,
    by: np.ndarray,
    bz: int,
) -> None:
    """The kernel of thread blocks (bx, by, bz), as TileLang's example_gqa_fwd_bshd.py writes it.

    Q, Output: [batch, seq_q, heads, dim]; K, V: [batch, seq_kv, heads_kv, dim]. bx, by: int [T.blocks], the extents of
    the key loop not rising from one block to the next.
    """
    block_M, block_N, dim, dtype, accum_dtype = schedule.block_M, schedule.block_N, Q.words.shape[3], Q.fmt, FP32
    seq_kv = K.words.shape[1]
    past, groups = seq_kv - Q.words.shape[1], Q.words.shape[2] // K.words.shape[2]
    scale = (1.0 / dim) ** 0.5 * 1.44269504  # log2(e)

    Q_shared = T.alloc_shared("Q_shared", (block_M, dim), dtype)
    K_shared = T.alloc_shared("K_shared", (block_N, dim), dtype)
    V_shared = T.alloc_shared("V_shared", (block_N, dim), dtype)
    O_shared = T.alloc_shared("O_shared", (block_M, dim), dtype)
    acc_s = T.alloc_fragment("acc_s", (block_M, block_N), accum_dtype)
    acc_s_cast = T.alloc_fragment("acc_s_cast", (block_M, block_N), dtype)
    acc_o = T.alloc_fragment("acc_o", (block_M, dim), accum_dtype)
    scores_max = T.alloc_fragment("scores_max", (block_M,), accum_dtype)
    scores_max_prev = T.alloc_fragment("scores_max_prev", (block_M,), accum_dtype)
    scores_scale = T.alloc_fragment("scores_scale", (block_M,), accum_dtype)
    scores_sum = T.alloc_fragment("scores_sum", (block_M,), accum_dtype)
    logsum = T.alloc_fragment("logsum", (block_M,), accum_dtype)

    T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
    T.fill(acc_o, 0)
    T.fill(logsum, 0)
    T.fill(scores_max, -T.infinity())

    for k in T.Pipelined(loop_range(schedule, bx, seq_kv, past), num_stages=schedule.num_stages):
        T.copy(K[bz, k * block_N : (k + 1) * block_N, by // groups, :], K_shared)
        i, j = T.Parallel(block_M, block_N)
        if schedule.causal:
            acc_s[i, j] = T.if_then_else(past + bx * block_M + i >= k * block_N + j, 0, -T.infinity())
        else:
            acc_s[i, j] = T.if_then_else(k * block_N + j >= seq_kv, -T.infinity(), 0)
        T.gemm(Q_shared, K_shared, acc_s, transpose_B=True)

        T.copy(scores_max, scores_max_prev)
        if schedule.refill_max:
            T.fill(scores_max, -T.infinity())
        T.reduce_max(acc_s, scores_max, dim=1, clear=schedule.clear_max)
        (i,) = T.Parallel(block_M)
        if schedule.merge_max:
            scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
        scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
        i, j = T.Parallel(block_M, block_N)
        acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
        T.reduce_sum(acc_s, scores_sum, dim=1)
        (i,) = T.Parallel(block_M)
        logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
        T.copy(acc_s, acc_s_cast)

        i, j = T.Parallel(block_M, dim)
        acc_o[i, j] = acc_o[i, j] * scores_scale[i]
        T.copy(V[bz, k * block_N : (k + 1) * block_N, by // groups, :], V_shared)
        T.gemm(acc_s_cast, V_shared, acc_o)

    i, j = T.Parallel(block_M, dim)
    acc_o[i, j] = acc_o[i, j] / logsum[i]
    T.copy(acc_o, O_shared)
    T.copy(O_shared, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])


def loop_range(schedule: Schedule, bx: np.ndarray, seq_kv: int, past: int) -> np.ndarray:
    """Key blocks that each query block bx visits."""
    extent = np.full(np.shape(bx), -(-seq_kv // schedule.block_N))
    return (
        np.minimum(extent, -(-(past + (bx + 1) * schedule.block_M) // schedule.block_N)) if schedule.causal else extent
    )


def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    schedule: Schedule | None = None,
    arch: str = "sm_90",
    blocks: Iterable[tuple[int, int, int]] | None = None,
    machine: Callable[[Arch, bool], Exact] = Exact,
) -> Any:
    """Attention by the seed's kernel, every word as the GPU gives it.

    q: [batch, seq_q, heads, dim]; k, v: [batch, seq_kv, heads_kv, dim], heads a multiple of heads_kv; all float16 or
    all bfloat16: NumPy, ml_dtypes, torch, or pairs of words and Format. Returns the same kind as q. Causal with
    seq_q < seq_kv aligns at the end.
    blocks: only these thread blocks (bx, by, bz), by the head, bz the batch; other rows hold the all-ones NaN word.
    machine: what computes, called with the architecture and fast_math (sim.machine.Exact, Recorder, ...).
    Raises ValueError or TypeError for arguments that do not fit, Undetermined when the words cannot be known.
    """
    schedule = Schedule() if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule must be a Schedule, for example Schedule.variant({str(schedule)!r}), not {schedule!r}"
        )
    (Q, K, V), fmt = _tensors(q, k, v, schedule)
    record, chosen = find_arch(arch), _chosen(blocks, Q, schedule)
    record.dot(fmt)
    Output = Tensor("Output", np.full_like(Q.words, (1 << fmt.bits) - 1), fmt)
    engine = machine(record, schedule.fast_math)
    batch, _, heads, _ = Q.words.shape
    for bz, bx, by in _in_step(chosen, schedule, heads // K.words.shape[2]):
        block = Block(engine, len(bx), schedule.threads)
        block.numbers = (bx * heads + by) * batch + bz
        flash_attention_block(block, Q, K, V, Output, schedule, bx, by, bz)
    if Output.poison is not None and Output.poison.any():
        raise Undetermined(f"{int(Output.poison.sum())} outputs depend on memory that nobody wrote")
    return from_words(Output.words, fmt, like=q)


def _tensors(q: Any, k: Any, v: Any, schedule: Schedule) -> tuple[list[Tensor], Format]:
    """The inputs as global tensors. Raises when their shapes or dtypes do not fit."""
    tensors = []
    for name, array in zip("qkv", (q, k, v), strict=True):
        words, fmt = to_words(array, name)
        if fmt not in (FP16, BF16):
            raise TypeError(f"{name} must be float16 or bfloat16, not {fmt.name}")
        if words.ndim != 4 or 0 in words.shape:
            raise ValueError(f"{name} must be [batch, seq, heads, dim] without an empty axis, not {list(words.shape)}")
        tensors.append(Tensor(name.upper(), words, fmt))
    Q, K, V = tensors
    for name, other in (("k", K), ("v", V)):
        if other.fmt is not Q.fmt:
            raise TypeError(f"{name} must have the dtype of q, {Q.fmt.name}, not {other.fmt.name}")
    (batch, seq_q, heads, dim), (batch_kv, seq_kv, heads_kv, dim_kv) = Q.words.shape, K.words.shape
    if V.words.shape != K.words.shape:
        raise ValueError(f"v must have the shape of k, {list(K.words.shape)}, not {list(V.words.shape)}")
    if batch_kv != batch or dim_kv != dim:
        raise ValueError(f"k must have the batch and dim of q, {batch} and {dim}, not {batch_kv} and {dim_kv}")
    if heads % heads_kv:
        raise ValueError(f"the heads of q must be a multiple of those of k, not {heads} and {heads_kv}")
    sizes = {"block_M": schedule.block_M, "block_N": schedule.block_N}
    for name, size in sizes.items():
        if size * max(dim, schedule.block_M + schedule.block_N - size) > _MOST_ELEMENTS:
            raise ValueError(
                f"{name} {size} makes a tile of more than {_MOST_ELEMENTS} elements, the most that is simulated"
            )
    if schedule.causal and seq_q > seq_kv:
        raise ValueError(f"with a causal mask seq_kv must be at least seq_q, not {seq_kv} with seq_q {seq_q}")
    return tensors, Q.fmt


def _chosen(blocks: Iterable[tuple[int, int, int]] | None, Q: Tensor, schedule: Schedule) -> list[tuple[int, int, int]]:
    """The thread blocks to simulate: those of `blocks`, checked, or all of the grid."""
    batch, seq_q, heads, _ = Q.words.shape
    grid = (-(-seq_q // schedule.block_M), heads, batch)
    if blocks is None:
        return list(np.ndindex(*grid))
    chosen = set()
    for block in blocks if isinstance(blocks, Iterable) else [blocks]:
        triple = (
            isinstance(block, tuple | list) and len(block) == 3 and all(isinstance(n, int | np.integer) for n in block)
        )
        if not triple or not all(0 <= at < size for at, size in zip(block, grid, strict=True)):
            raise ValueError(f"blocks must be thread blocks (bx, by, bz) of the grid {grid}, not {block!r}")
        chosen.add((int(block[0]), int(block[1]), int(block[2])))
    return sorted(chosen)


def _in_step(
    blocks: list[tuple[int, int, int]], schedule: Schedule, groups: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The thread blocks (bz, bx, by) that run in step: those that read the same keys, the longest loops first."""
    step = max(1, 1024 // schedule.block_M)  # enough to spread Python's cost, few enough for the cache
    key = lambda b: (b[2], b[1] // groups)  # noqa: E731
    for (bz, _), same in groupby(sorted(blocks, key=lambda b: (*key(b), -b[0])), key=key):
        members = list(same)
        for first in range(0, len(members), step):
            bx, by, _ = np.array(members[first : first + step]).T
            yield bz, bx, by
