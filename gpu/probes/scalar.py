"""Sections `mufu` and `scalar`: instructions and compiled C expressions on words, against sim.mufu and sim.arith."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim import arith, mufu
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, Format, format_named

from .build import scalar, scalar_range
from .families import SCALAR, operands
from .tally import Tally, compare

__all__ = ["mufu_tasks", "scalar_tasks", "work"]

Words = np.ndarray
Task = tuple[Any, ...]
ONE, QUARTER = np.array([[0x3F800000], [0x3E800000]], np.uint32)


@dataclass(frozen=True)
class Case:
    """One entry of scalar.cu in one of its libraries, and what sim makes of the same operands."""

    library: str
    entry: str
    arity: int
    sim: Callable[..., Words]
    claimed: bool = True

    @property
    def name(self) -> str:
        return self.entry if self.library == "precise" else f"{self.entry} ({self.library})"


def _instructions() -> list[Case]:
    """fp32 instructions, with and without .ftz, and what the two division approximations might be."""
    cases = []
    two = {"add": arith.add, "sub": arith.sub, "mul": arith.mul, "max": arith.fmax, "min": arith.fmin}
    for suffix, ftz in (("", False), ("_ftz", True)):
        for name, operator in two.items():
            cases.append(Case("precise", name + suffix, 2, lambda a, b, f=operator, z=ftz: f(a, b, ftz=z)))
        cases.append(Case("precise", "fma" + suffix, 3, lambda a, b, c, z=ftz: arith.fma(a, b, c, ftz=z)))
    return [
        *cases,
        Case("precise", "div_rn", 2, arith.div),
        Case("precise", "sqrt_rn", 1, arith.sqrt),
        Case("precise", "div_approx_ftz", 2, lambda a, b: mufu.divide(a, b, fast_math=True)),
        Case("precise", "div_full_ftz", 2, _div_full, claimed=False),
    ]


def _div_full(a: Words, b: Words) -> Words:
    """div.full.ftz as its SASS reads: both operands scaled by 1/4 where |b| > 2**126."""
    large = (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7E800000)
    a, b = (np.where(large & ~FP32.is_nan(b), arith.mul(x, QUARTER, ftz=True), x) for x in (a, b))
    return arith.mul(a, mufu.rcp(b), ftz=True)


def _expressions(library: str) -> list[Case]:
    """C expressions as one of the two compilations makes them: fast math flushes and approximates."""
    fast = library == "fast"

    def scaled_difference(a: Words, b: Words, c: Words) -> Words:
        return arith.fma(a, c, arith.neg(arith.mul(b, c, ftz=fast)), ftz=fast)

    def case(entry: str, arity: int, sim: Callable[..., Words], claimed: bool = True) -> Case:
        return Case(library, entry, arity, sim, claimed)

    return [
        case("c_add", 2, lambda a, b: arith.add(a, b, ftz=fast)),
        case("c_sub", 2, lambda a, b: arith.sub(a, b, ftz=fast)),
        case("c_mul", 2, lambda a, b: arith.mul(a, b, ftz=fast)),
        case("c_fma", 3, lambda a, b, c: arith.fma(a, b, c, ftz=fast)),
        case("c_mul_add", 3, lambda a, b, c: arith.fma(a, b, c, ftz=fast)),
        case("c_mul_sub", 3, lambda a, b, c: arith.fma(a, b, arith.neg(c), ftz=fast)),
        case("c_sub_mul", 3, lambda a, b, c: arith.fma(arith.neg(a), b, c, ftz=fast)),
        case("c_scaled_difference", 3, scaled_difference),
        case("c_div", 2, lambda a, b: mufu.divide(a, b, fast_math=fast)),
        case("c_fdividef", 2, lambda a, b: mufu.divide(a, b, fast_math=True), claimed=fast),
        case("c_reciprocal", 1, mufu.rcp if fast else lambda a: arith.div(ONE, a)),
        case("c_exp2f", 1, lambda a: mufu.exp2f(a, fast_math=fast)),
        case("c_expf", 1, lambda a: mufu.expf(a, fast_math=fast)),
        case("c_sqrtf", 1, lambda a: mufu.sqrtf(a, fast_math=fast)),
        case("c_rsqrtf", 1, lambda a: mufu.rsqrtf(a, fast_math=fast)),
        case("c_log2f", 1, lambda a: mufu.log2f(a, fast_math=fast)),
        case("c_logf", 1, lambda a: mufu.logf(a, fast_math=fast)),
        case("c_log10f", 1, lambda a: mufu.log10f(a, fast_math=fast)),
        case("c_fmaxf", 2, lambda a, b: arith.fmax(a, b, ftz=fast)),
        case("c_fminf", 2, lambda a, b: arith.fmin(a, b, ftz=fast)),
    ]


def _packed(prefix: str, fmt: Format) -> list[Case]:
    """Half-precision instructions on pairs."""
    two = {"add": arith.add, "sub": arith.sub, "mul": arith.mul, "max": arith.fmax, "min": arith.fmin}
    cases = [Case("precise", f"{prefix}_{n}", 2, lambda a, b, f=f: f(a, b, fmt=fmt)) for n, f in two.items()]
    return [*cases, Case("precise", f"{prefix}_fma", 3, lambda a, b, c: arith.fma(a, b, c, fmt=fmt))]


GROUPS: dict[str, list[Case]] = {
    FP32.name: _instructions() + _expressions("precise") + _expressions("fast"),
    FP16.name: _packed("f16", FP16),
    BF16.name: _packed("bf16", BF16),
}


def _twice(words: Words) -> Words:
    """The word that holds `words` in both halves."""
    bits = 8 * words.itemsize
    return words.astype(np.uint32) << np.uint32(bits) | words


def _narrow(dst: Format, pair: bool) -> Callable[[Words], Words]:
    def sim(words: Words) -> Words:
        narrowed = arith.convert(words, FP32, dst)
        return _twice(narrowed) if pair else narrowed.astype(np.uint32)

    return sim


# Functions of one word, over every input or (fp8) over every input that can matter.
UNARY: dict[str, Case] = {
    case.name: case
    for case in (
        Case("precise", "ex2_ftz", 1, mufu.ex2),
        Case("precise", "rcp_ftz", 1, mufu.rcp),
        Case("precise", "rsqrt_ftz", 1, mufu.rsqrt),
        Case("precise", "sqrt_ftz", 1, mufu.sqrt),
        Case("precise", "lg2_ftz", 1, mufu.lg2),
        Case("precise", "c_rsqrtf", 1, lambda a: mufu.rsqrtf(a, fast_math=False)),
        Case("precise", "c_exp2f", 1, lambda a: mufu.exp2f(a, fast_math=False)),
        Case("precise", "f32_to_f16", 1, _narrow(FP16, pair=False)),
        Case("precise", "f32_to_bf16", 1, _narrow(BF16, pair=False)),
        Case("precise", "f32_to_f16x2", 1, _narrow(FP16, pair=True)),
        Case("precise", "f32_to_bf16x2", 1, _narrow(BF16, pair=True)),
        Case("precise", "f32_to_e4m3x2", 1, _narrow(E4M3, pair=True)),
        Case("precise", "f32_to_e5m2x2", 1, _narrow(E5M2, pair=True)),
    )
}


def _small(src: Format, dst: Format, pair: bool = False) -> Callable[[Words], Words]:
    def sim(words: Words) -> Words:
        converted = arith.convert(words.astype(src.word), src, dst)
        return _twice(converted) if pair else converted.astype(np.uint32)

    return sim


SMALL: dict[str, tuple[Case, int]] = {  # every word of a format of 16 or 8 bits
    "f16_to_f32": (Case("precise", "f16_to_f32", 1, _small(FP16, FP32)), 16),
    "c_half2float": (Case("precise", "c_half2float", 1, _small(FP16, FP32)), 16),
    "bf16_to_f32": (Case("precise", "bf16_to_f32", 1, _small(BF16, FP32)), 16),
    "c_bfloat162float": (Case("precise", "c_bfloat162float", 1, _small(BF16, FP32), claimed=False), 16),
    "f16_to_e4m3x2": (Case("precise", "f16_to_e4m3x2", 1, _small(FP16, E4M3, pair=True)), 16),
    "f16_to_e5m2x2": (Case("precise", "f16_to_e5m2x2", 1, _small(FP16, E5M2, pair=True)), 16),
    "e4m3_to_f16": (Case("precise", "e4m3_to_f16", 1, _small(E4M3, FP16)), 8),
    "e5m2_to_f16": (Case("precise", "e5m2_to_f16", 1, _small(E5M2, FP16)), 8),
}

CHUNK = 1 << 22
LOW_BYTES = np.array(
    [0, 1, 0x7F, 0x80, 0xFF], np.uint32
)  # below any rounding boundary of fp8: only zero or not matters


def mufu_tasks(quick: bool) -> list[Task]:
    chunks = range(5, 1024, 61) if quick else range(1024)
    return [
        ("range", name, i * CHUNK)
        for name in ("ex2_ftz", "rcp_ftz", "rsqrt_ftz", "sqrt_ftz", "lg2_ftz", "c_exp2f", "c_rsqrtf")
        for i in chunks
    ]


def scalar_tasks(quick: bool) -> list[Task]:
    """Small conversions, then random words (one task a format, family and seed), then the long conversions."""
    seeds, count = (1, 1 << 16) if quick else (16, 1 << 18)
    random = [("random", fmt, family, seed, count) for seed in range(seeds) for family in SCALAR for fmt in GROUPS]
    chunks = range(5, 1024, 61) if quick else range(1024)
    ranges = [("range", name, i * CHUNK) for i in chunks for name in ("f32_to_f16", "f32_to_bf16")]
    pairs = [("range", name, i * CHUNK) for i in range(3, 1024, 61) for name in ("f32_to_f16x2", "f32_to_bf16x2")]
    small = [("small", name) for name in SMALL]
    stride = 8 if quick else 1
    fp8 = [("fp8", n, i << 19) for i in range(0, 32, stride) for n in ("f32_to_e4m3x2", "f32_to_e5m2x2")]
    return small + random + fp8 + pairs + ranges


def _unary(case: Case, family: str, x: Words, gpu: Words) -> dict[str, Tally]:
    return {case.name: compare(family, gpu, case.sim(x), lambda i: {"a": x[i]}, case.claimed)}


def _range(name: str, first: int) -> dict[str, Tally]:
    case = UNARY[name]
    gpu = scalar_range(case.library, case.entry, first, CHUNK)
    return _unary(case, "every word", np.arange(first, first + CHUNK, dtype=np.uint64).astype(np.uint32), gpu)


def _fp8(name: str, first: int) -> dict[str, Tally]:
    case = UNARY[name]
    x = ((np.arange(first, first + (1 << 19), dtype=np.uint32) << np.uint32(8))[:, None] | LOW_BYTES).ravel()
    return _unary(case, "every upper 24 bits", x, scalar(case.library, case.entry, x))


def _small_words(name: str) -> dict[str, Tally]:
    case, bits = SMALL[name]
    x = np.arange(1 << bits, dtype=np.uint32)
    return _unary(case, "every word", x, scalar(case.library, case.entry, x))


def _random(fmt_name: str, family: str, seed: int, count: int) -> dict[str, Tally]:
    """Every case of a format on the same words."""
    fmt = format_named(fmt_name)
    rng = np.random.default_rng([seed, list(SCALAR).index(family), fmt.bits, fmt.exponent_bits])
    inputs = {arity: operands(family, fmt, arity, count, rng) for arity in (2, 3)}
    tallies = {}
    for case in GROUPS[fmt_name]:
        words = inputs[max(case.arity, 2)][: case.arity]
        try:
            gpu = scalar(case.library, case.entry, *(x.view(np.uint32) for x in words)).view(fmt.word)
            sim = case.sim(*words)
        except Exception as error:  # one case must not stop the others
            tallies[case.name] = Tally(case.claimed, errors=[f"{type(error).__name__}: {error}"])
            continue

        def inputs_of(i: int, words: list[Words] = words) -> dict[str, Any]:
            return {name: x[i] for name, x in zip("abc", words, strict=False)}

        tallies[case.name] = compare(family, gpu, sim, inputs_of, case.claimed)
    return tallies


_WORK: dict[str, Callable[..., dict[str, Tally]]] = {
    "range": _range,
    "fp8": _fp8,
    "small": _small_words,
    "random": _random,
}


def work(task: Task) -> dict[str, Tally]:
    """Tallies by case."""
    return _WORK[task[0]](*task[1:])
