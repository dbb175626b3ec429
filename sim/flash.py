"""The seed's flash-attention forward loop (TileLang issue #948), and the schedule that it is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["VARIANTS", "Schedule"]

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
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")
        for name in ("causal", "refill_max", "clear_max", "merge_max", "fast_math"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")

    @classmethod
    def variant(cls, name: str, **fields: object) -> Schedule:
        """One of the seed's five ways of keeping scores_max, by name; `fields` are the other fields of a Schedule."""
        if name not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {name!r}")
        refill_max, clear_max, merge_max = VARIANTS[name]
        return replace(cls(**fields), refill_max=refill_max, clear_max=clear_max, merge_max=merge_max)  # type: ignore[arg-type]
