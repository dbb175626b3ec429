"""The specification of the flash-attention loop: one thread block, one row, one element at a time, on tests/spec.py.

Written from TileLang's example and docs/NUMERICS.md, sections 3 and 4. It shares no code with sim but the MUFU
functions, whose words are measured (tests/test_mufu.py), and the facts of a schedule and of an architecture.
"""

from __future__ import annotations

import numpy as np
import spec

from sim import mufu
from sim.arch import DotProduct
from sim.flash import Schedule
from sim.formats import FP32, Format

MINUS_INF, ZERO = 0xFF800000, 0


def word(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def ex2(x: int, fast_math: bool) -> int:
    return int(mufu.exp2f(np.array([x], np.uint32), fast_math)[0])


def divide(a: int, b: int, fast_math: bool) -> int:
    if not fast_math:
        return spec.div(a, b, FP32)
    return spec.mul(a, int(mufu.rcp(np.array([b], np.uint32))[0]), FP32, ftz=True)


def row_sum(p: list[int], ftz: bool) -> int:
    """Lane t of four adds the columns 8n + 2t, then 8n + 2t + 1; then x += x[t ^ 2], x += x[t ^ 1]."""
    lanes = []
    for t in range(4):
        total = ZERO
        for column in [j for h in (0, 1) for j in range(2 * t + h, len(p), 8)]:
            total = spec.add(total, p[column], FP32, ftz)
        lanes.append(total)
    for offset in (2, 1):
        lanes = [spec.add(lanes[t], lanes[t ^ offset], FP32, ftz) for t in range(4)]
    return lanes[0]


class Row:
    """One query row: its running maximum, sum and output accumulator."""

    def __init__(self, dim: int, schedule: Schedule, unit: DotProduct, scale: int):
        self.m, self.logsum, self.acc_o = MINUS_INF, ZERO, [ZERO] * dim
        self.schedule, self.unit, self.scale = schedule, unit, scale

    def dot(self, a: list[int], b: list[int], c: int) -> int:
        u = self.unit
        return spec.dot(a, b, c, u.L, u.F, u.out, u.floor, u.operand, u.accumulator)

    def scaled_difference(self, a: int, m: int) -> int:
        """a*scale - m*scale as compiled: the right product rounded, the left one fused."""
        ftz = self.schedule.fast_math
        right = spec.mul(m, self.scale, FP32, ftz)
        return spec.fma(a, self.scale, right ^ 0x80000000, FP32, ftz)

    def maximum(self, scores: list[int]) -> int:
        s, ftz = self.schedule, self.schedule.fast_math
        new = MINUS_INF
        for x in scores:
            new = spec.fmax(new, x, FP32, ftz)
        if not s.clear_max:
            new = spec.fmax(MINUS_INF if s.refill_max else self.m, new, FP32, ftz)
        return spec.fmax(new, self.m, FP32, ftz) if s.merge_max else new

    def visit(self, q: list[int], keys: list[list[int]], v: list[list[int]], masked: list[bool]) -> None:
        """One key block: q [dim], keys and v [block_N][dim] words, masked [block_N]."""
        fast, fmt = self.schedule.fast_math, self.unit.operand
        scores = [self.dot(q, key, MINUS_INF if hide else ZERO) for key, hide in zip(keys, masked, strict=True)]
        m = self.maximum(scores)
        rescale = ex2(self.scaled_difference(self.m, m), fast)
        p = [ex2(self.scaled_difference(s, m), fast) for s in scores]
        self.m, self.logsum = m, spec.fma(self.logsum, rescale, row_sum(p, fast), FP32, fast)
        weights = [spec.convert(x, FP32, fmt) for x in p]
        for d in range(len(self.acc_o)):
            c = spec.mul(self.acc_o[d], rescale, FP32, fast)
            self.acc_o[d] = self.dot(weights, [row[d] for row in v], c)

    def output(self, fmt: Format) -> list[int]:
        return [spec.convert(divide(x, self.logsum, self.schedule.fast_math), FP32, fmt) for x in self.acc_o]


def flash_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, schedule: Schedule, unit: DotProduct) -> np.ndarray:
    """Words in, words out: q [batch, seq_q, heads, dim], k and v [batch, seq_kv, heads_kv, dim]."""
    batch, seq_q, heads, dim = q.shape
    seq_kv, groups, out = k.shape[1], heads // k.shape[2], np.zeros_like(q)
    past, N, scale = seq_kv - seq_q, schedule.block_N, word((1.0 / dim) ** 0.5 * 1.44269504)
    zero = [0] * dim
    for b, h, i in np.ndindex(batch, heads, seq_q):
        row = Row(dim, schedule, unit, scale)
        keys, values = (list(x[b, :, h // groups].tolist()) for x in (k, v))
        last = past + (i // schedule.block_M + 1) * schedule.block_M if schedule.causal else seq_kv
        for start in range(0, min(last, seq_kv), N):
            columns = range(start, start + N)
            hide = [j > past + i if schedule.causal else j >= seq_kv for j in columns]
            key_block, value_block = ([x[j] if j < seq_kv else zero for j in columns] for x in (keys, values))
            row.visit(q[b, i, h].tolist(), key_block, value_block, hide)
        out[b, i, h] = row.output(unit.operand)
    return out
