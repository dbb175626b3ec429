"""Inputs that drive a kernel to its worst: each of a kind that a numeric fault needs. Words only, nothing is run.

`flash_candidates` knows the flash loop: its rows all see the same keys, and q and k are made of the scores that are
wanted. `tensor_candidates` knows nothing of a kernel but its tensors and their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arch import Arch
from .arith import convert
from .flash import Schedule
from .formats import FP32, Format, values
from .machine import Exact
from .rounding import greatest

__all__ = ["Candidate", "Flash", "Tensor", "flash_candidates", "tensor_candidates", "toward_zero"]

Array = tuple[np.ndarray, Format]
_MOST_SCORES = 1 << 18  # of one binade that are looked at


@dataclass(frozen=True)
class Candidate:
    """Inputs by name, what they are in words, and the buffers whose values they drive to their limit."""

    what: str
    aims: tuple[str, ...]
    arrays: dict[str, Array]


def toward_zero(x: Any, fmt: Format) -> np.ndarray:
    """Words of the values nearest to x that are not greater in magnitude."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore"):
        words = convert(x.astype(np.float32).view(np.uint32), FP32, fmt)
        lower = words - fmt.word.type(1)
    words = np.where(np.abs(values(words, fmt)) > np.abs(x), lower, words).astype(fmt.word)
    return np.where((words & fmt.word.type(fmt.sign - 1)) == 0, fmt.word.type(0), words)


@dataclass(frozen=True)
class Flash:
    """One head of the flash loop and the bounds of its inputs.

    score: the greatest |q . k| before the scale; qk: the greatest |q| and |k|; v: the greatest |v|
    """

    schedule: Schedule
    arch: Arch
    fmt: Format
    seq: int
    seq_kv: int
    dim: int
    score: float
    qk: float
    v: float

    @property
    def scale(self) -> float:
        return (1.0 / self.dim) ** 0.5 * 1.44269504  # log2(e)

    @property
    def limit(self) -> float:
        """The greatest |q| and |k| that the format has within the bound."""
        return float(values(toward_zero(self.qk, self.fmt), self.fmt))

    @property
    def reach(self) -> float:
        """The greatest score that inputs within the bounds have."""
        return min(self.score, self.dim * self.limit**2)

    def arrays(self, scores: Any, v: Any) -> dict[str, Array]:
        """Inputs whose every query row has these scores with the keys: exactly, where few enough bits say them.

        scores, v: [seq_kv] or one number, v for all of a key's elements. Never greater in magnitude than asked.
        """
        scores = np.broadcast_to(np.asarray(scores, np.float64), (self.seq_kv,))
        q = self._query(float(np.abs(scores).max()))
        k, rest = np.zeros((self.seq_kv, self.dim), self.fmt.word), scores / (q or 1.0)
        for column in range(self.dim):
            k[:, column] = toward_zero(np.clip(rest, -self.limit, self.limit), self.fmt)
            rest = rest - values(k[:, column], self.fmt)
            if not rest.any():
                break
        shape = (1, self.seq_kv, 1, self.dim)
        same = np.broadcast_to(toward_zero(v, self.fmt).reshape(1, -1, 1, 1), shape)
        query = np.broadcast_to(toward_zero(q, self.fmt), (1, self.seq, 1, self.dim))
        return {"q": (query.copy(), self.fmt), "k": (k.reshape(shape), self.fmt), "v": (same.copy(), self.fmt)}

    def _query(self, most: float) -> float:
        """The element that q is full of: a power of two near the root of the greatest score, if it reaches."""
        if not most or not self.limit:
            return 0.0
        power = 2.0 ** np.clip(np.floor(np.log2(most) / 2), self.fmt.emin, np.floor(np.log2(self.limit)))
        return float(power) if most <= self.dim * power * self.limit else self.limit


def flash_candidates(flash: Flash, hints: Sequence[str] = ()) -> Iterator[Candidate]:
    """The directed ones, the simplest first; before them those that drive a buffer of `hints`."""
    families = sorted(_FAMILIES, key=lambda family: not set(family[0]) & set(hints))
    for aims, make in families:
        for what, scores, v in make(flash):
            yield Candidate(what, aims, flash.arrays(scores, v))


Driven = Iterator[tuple[str, Any, Any]]  # what it is, the scores and the values of its keys


def _zeros(flash: Flash) -> Driven:
    yield "zeros", 0, 0


def _falling(flash: Flash) -> Driven:
    """The greatest score in all key blocks but the last one, which has the least."""
    last = (flash.seq_kv - 1) // flash.schedule.block_N * flash.schedule.block_N
    if last:
        yield "the block maximum falls", np.where(np.arange(flash.seq_kv) < last, flash.reach, -flash.reach), flash.v


def _equal(flash: Flash) -> Driven:
    yield "equal maxima", flash.reach, flash.v


def flash_random(flash: Flash, seed: int) -> Candidate:
    """Blocks of scores and values at random, many of them at their bounds; some rows see the scores negated."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 8, flash.schedule.block_N]))
    blocks = -(-flash.seq_kv // size)
    draw = lambda: np.where(rng.random(blocks) < 0.5, rng.choice([-1.0, 0.0, 1.0], blocks), rng.uniform(-1, 1, blocks))  # noqa: E731
    scores, v = (np.repeat(draw(), size)[: flash.seq_kv] for _ in "kv")
    arrays = flash.arrays(scores * flash.reach, v * flash.v)
    q, fmt = arrays["q"]
    q ^= np.where(rng.random((1, flash.seq, 1, 1)) < 0.5, fmt.word.type(fmt.sign), fmt.word.type(0))
    return Candidate(f"random scores, seed {seed}", (), arrays)


def _top(flash: Flash) -> np.float32:
    """The greatest float32 within the bound of the scores."""
    top = np.float32(min(flash.reach, greatest(FP32)))
    return np.float32(np.nextafter(top, np.float32(0))) if float(top) > flash.reach else top


def _scores(flash: Flash) -> np.ndarray:
    """Scores of float32 near the bound, and the greatest ones of the binade below; fewer bits where dim is small."""
    top = _top(flash)
    if not top:
        return np.zeros(0, np.float32)
    below = np.float32(2.0 ** np.floor(np.log2(top)))
    drop = 24 - min(24, (flash.fmt.fraction_bits + 1) * flash.dim)
    found = [
        int(word) - (np.arange(_MOST_SCORES) << drop)
        for word in (top.view(np.uint32), np.nextafter(below, np.float32(0)).view(np.uint32))
    ]
    words = np.concatenate(found) >> drop << drop
    return words[words > FP32.min_normal].astype(np.uint32).view(np.float32)


def _weights(flash: Flash, scores: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the loop makes of scores whose row maximum is `most`: the exponents, weights, and weights as they are cast.

    One fused product and difference, as in T.exp2(acc_s * scale - scores_max * scale).
    """
    machine = Exact(flash.arch, flash.schedule.fast_math)
    factor = machine.constant(flash.scale, FP32)
    words = [np.ascontiguousarray(x).view(np.uint32) for x in (scores, most)]
    exponents = machine.mul_sub(words[0], factor, machine.mul(words[1], factor, FP32), FP32)
    weights = machine.exp2(exponents, FP32)
    cast = machine.convert(weights, FP32, flash.fmt)
    return values(exponents, FP32), values(weights, FP32), values(cast, flash.fmt)


def _fused(flash: Flash) -> Driven:
    """Scores whose product with the scale, rounded once as a maximum and not at all as a score, differ most.

    A row of equal scores then has weights far from 1: the cast weight may overflow or be rounded up, the factor of
    each block is above 1 too, or all of them are 0.
    """
    difference = flash.reach * flash.scale * 2.0**-23  # at most, as an exponent
    blocks = -(-flash.seq_kv // flash.schedule.block_N)
    scores = _scores(flash)
    if not scores.size or max(difference * 2.0**flash.fmt.fraction_bits, difference * blocks / 64) < 0.5:
        return
    exponents, weights, cast = _weights(flash, scores, scores)
    with np.errstate(all="ignore"):
        ratio = np.where(np.isinf(cast), np.inf, np.where(weights > 0, cast / weights, 0))
    yield "a weight that the cast rounds up most", float(scores[ratio.argmax()]), flash.v
    yield "a maximum rounded down most", float(scores[exponents.argmax()]), flash.v
    yield "a maximum rounded up most", float(scores[exponents.argmin()]), flash.v


def _rounded_up(flash: Flash) -> Driven:
    """Beside one greatest score others that are lower, whose weights the cast rounds up, in sum the most."""
    top, others = float(_top(flash)), flash.seq_kv - 1
    if not top or not others:
        return
    depth = min(2.0 / flash.scale, 2 * top)
    scores = (top - np.linspace(0, depth, 1 << 14)).astype(np.float32)
    _, weights, cast = _weights(flash, scores, np.full_like(scores, top))
    with np.errstate(all="ignore"):
        gain = np.nan_to_num((1 + others * cast) / (1 + others * weights))
    lower = float(scores[gain.argmax()])
    yield "weights that are rounded up", np.where(np.arange(flash.seq_kv) == 0, top, lower), flash.v


_FAMILIES: tuple[tuple[tuple[str, ...], Callable[[Flash], Driven]], ...] = (
    (("scores_max", "scores_scale", "acc_s"), _zeros),
    (("scores_scale", "logsum", "acc_o"), _falling),
    (("acc_s", "scores_sum", "logsum", "acc_o"), _equal),
    (("acc_o", "O_shared", "Output"), _rounded_up),
    (("acc_s", "acc_s_cast", "scores_scale", "logsum", "acc_o"), _fused),
)


@dataclass(frozen=True)
class Tensor:
    """A float input of any kernel: its shape, its format, and the greatest magnitude of its elements.

    bound: inf allows infinities
    """

    shape: tuple[int, ...]
    fmt: Format
    bound: float

    def filled(self, signs: Any) -> Array:
        """The bound with these signs and parts of it; with infinities allowed, what is not +1 is at most 1."""
        signs = np.broadcast_to(np.asarray(signs, np.float64), self.shape)
        if np.isinf(self.bound):
            words = np.where(signs == 1, self.fmt.word.type(self.fmt.inf), toward_zero(signs, self.fmt))
            return words.astype(self.fmt.word), self.fmt
        return toward_zero(signs * self.bound, self.fmt), self.fmt


def tensor_candidates(tensors: dict[str, Tensor], hints: Sequence[str] = ()) -> Iterator[Candidate]:
    """All tensors the same, then one of them of another pattern than the rest; those of `hints` first."""
    for what, sign in (("zeros", 0.0), ("the greatest", 1.0), ("the least", -1.0)):
        yield _candidate(f"every input {what}", {n: t.filled(sign) for n, t in tensors.items()}, tensors)
    order = sorted(tensors, key=lambda name: name not in hints)
    for patterns in _patterns(tensors):
        for name in order:
            for what, signs in patterns(tensors[name]):
                arrays = {n: t.filled(signs if n == name else 1.0) for n, t in tensors.items()}
                yield _candidate(f"{name} {what}, the others the greatest", arrays, (name,))


def _candidate(what: str, arrays: dict[str, Array], aims: Any) -> Candidate:
    return Candidate(what, tuple(aims), arrays)


def _patterns(tensors: dict[str, Tensor]) -> Iterator[Callable[[Tensor], Iterator[tuple[str, Any]]]]:
    """Kinds of signs of a tensor, the simplest first."""
    yield lambda t: iter([("the least", -1.0), ("zeros", 0.0)])
    most = max((max(t.shape, default=1) for t in tensors.values()), default=1)
    sizes = [size for size in (8, 16, 32, 64, 128) if size < most]
    for size in (0, *sizes):
        yield lambda t, size=size: _falls(t, size)  # type: ignore[misc]
    yield lambda t: iter([("one element", _one(t))])


def _falls(t: Tensor, size: int) -> Iterator[tuple[str, Any]]:
    """Along each axis but the last of several: the first `size` (0: half) are greatest, the rest least; reversed."""
    for axis in range(max(1, len(t.shape) - 1) if t.shape else 0):
        extent = t.shape[axis]
        first = size or extent // 2
        if 0 < first < extent:
            at = np.arange(extent).reshape([-1 if a == axis else 1 for a in range(len(t.shape))])
            signs = np.where(at < first, 1.0, -1.0)
            yield f"falling after {first} along axis {axis}", signs
            yield f"rising after {first} along axis {axis}", -signs


def _one(t: Tensor) -> np.ndarray:
    signs = np.zeros(t.shape)
    signs.reshape(-1)[-1:] = 1
    return signs


def tensor_random(tensors: dict[str, Tensor], seed: int) -> Candidate:
    """Every tensor of a pattern of its own: one sign, blocks of signs along an axis, or uniform within the bound."""
    rng = np.random.default_rng(seed)
    arrays = {name: t.filled(_drawn(t, rng)) for name, t in tensors.items()}
    return Candidate(f"random patterns, seed {seed}", (), arrays)


def _drawn(t: Tensor, rng: np.random.Generator) -> np.ndarray:
    kind = rng.integers(4)
    if kind == 0 or not t.shape:
        return np.asarray(rng.choice([-1.0, 0.0, 1.0]))
    if kind == 1:
        return rng.uniform(-1, 1, t.shape)
    if kind == 2:
        return rng.choice([-1.0, 0.0, 1.0], t.shape)
    axis = int(rng.integers(max(1, len(t.shape) - 1)))
    size = int(rng.choice([1, 8, 16, 32, 64]))
    signs = np.repeat(rng.choice([-1.0, 0.0, 1.0], -(-t.shape[axis] // size)), size)[: t.shape[axis]]
    return signs.reshape([-1 if a == axis else 1 for a in range(len(t.shape))])
