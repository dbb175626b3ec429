"""Section `facts`: directed inputs for what no model claims yet, and the words that the GPU gives for them.

Every row also has sim's word, to show at a glance where the simulator's present rule differs.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sim import arith, mufu
from sim.arch import arch
from sim.formats import FP16, FP32, Format
from sim.mma import dot

from .build import scalar, scalar_range
from .families import operands
from .tally import hexadecimal
from .tensor import KINDS, SIDE, run, step_length

__all__ = ["scalar_facts", "tensor_facts"]

Words = np.ndarray
Product = tuple[int, int]  # sign and exponent of one product: sign * 2**exponent
Facts = dict[str, Callable[[], Any]]
FTZ_LEAST = Fraction(1, 1 << 126)


# ---- tensor core -----------------------------------------------------------------------------------------------------


def power(fmt: Format, exponent: int, sign: int = 1) -> int:
    """The word of sign * 2**exponent, subnormal if need be."""
    if not fmt.emin - fmt.fraction_bits <= exponent <= fmt.emax:
        raise ValueError(f"{fmt.name} has no 2**{exponent}")
    if exponent >= fmt.emin:
        word = (exponent + fmt.bias) << fmt.fraction_bits
    else:
        word = 1 << (exponent - fmt.emin + fmt.fraction_bits)
    return (word << fmt.unused_bits) | (fmt.sign if sign < 0 else 0)


class Dots:
    """Single dot products of one kind: each is a list of products (powers of two, or zero) and an accumulator word."""

    def __init__(self, kind: str, offsets: tuple[int, int]) -> None:
        self.kind, self.offsets = kind, offsets
        self.fmt, self.acc = KINDS[kind]
        self.least = 2 * (self.fmt.emin - self.fmt.fraction_bits)  # exponent of the least product

    def operands_of(self, product: Product) -> tuple[int, int]:
        sign, exponent = product
        if sign == 0:  # a zero product: the "exponent" is its sign
            return 0, self.fmt.sign if exponent < 0 else 0
        first = exponent // 2
        return power(self.fmt, first), power(self.fmt, exponent - first, sign)

    def __call__(self, cases: list[tuple[list[Product], int]]) -> tuple[Words, Words]:
        """The GPU's and sim's words of each (products, accumulator word)."""
        count, k = len(cases), step_length(self.fmt)
        a = np.zeros((-(-count // SIDE) * SIDE, k), self.fmt.word)
        b, c = np.zeros_like(a), np.zeros(len(a), self.acc.word)
        for i, (products, accumulator) in enumerate(cases):
            c[i] = accumulator
            for j, product in enumerate(products):
                a[i, j], b[i, j] = self.operands_of(product)
        a, b = a.reshape(-1, SIDE, k), b.reshape(-1, SIDE, k)
        cells = np.zeros((len(a), SIDE, SIDE), self.acc.word)
        diagonal = np.arange(SIDE)
        cells[:, diagonal, diagonal] = c.reshape(-1, SIDE)
        results = (
            run(self.kind, a, b, cells, offsets=self.offsets),
            dot(a, b, cells, arch("sm_90").dot(self.fmt, self.acc)),
        )
        gpu, sim = (x[:, diagonal, diagonal].ravel()[:count] for x in results)
        return gpu, sim

    def rows(self, named: dict[str, tuple[list[Product], int]]) -> list[dict[str, Any]]:
        gpu, sim = self(list(named.values()))
        return [
            {"case": name, "c": hexadecimal(self.acc.word.type(c)), "gpu": hexadecimal(g), "sim": hexadecimal(s)}
            for (name, (_, c)), g, s in zip(named.items(), gpu, sim, strict=True)
        ]

    def last_kept(self, cases: dict[tuple[int, int], tuple[list[Product], int, int]]) -> dict[str, Any]:
        """For cases (i, j) -> (products, c, word if the last term, 2**-j, is lost): the last j kept, for each i.

        j = 0 stands for no such term: if the GPU gives another word there, "gpu alone" has it and the row says nothing.
        """
        gpu, sim = self([(products, c) for products, c, _ in cases.values()])
        table: dict[str, list[Any]] = {"i": [], "last j tried": [], "gpu keeps to": [], "sim keeps to": []}
        table |= {"gaps": [], "gpu alone": []}
        lost = np.array([word for _, _, word in cases.values()], self.acc.word)
        keys = list(cases)
        for i in sorted({i for i, _ in keys}):
            at = [n for n, key in enumerate(keys) if key[0] == i]
            alone = [n for n in at if keys[n][1] == 0]
            at = [n for n in at if keys[n][1] != 0]
            js = np.array([keys[n][1] for n in at])
            table["gpu alone"] += [hexadecimal(gpu[n]) for n in alone if gpu[n] != lost[n]]
            kept = [js[(words[at] != lost[at])] for words in (gpu, sim)]
            table["i"].append(i)
            table["last j tried"].append(int(js.max()))
            table["gpu keeps to"].append(int(kept[0].max()) if len(kept[0]) else None)
            table["sim keeps to"].append(int(kept[1].max()) if len(kept[1]) else None)
            table["gaps"].append(bool(len(kept[0])) and len(kept[0]) != int(kept[0].max() - js.min() + 1))
        table["as sim"] = [bool(np.array_equal(gpu, sim))]
        return table


def _floor_fp32(dots: Dots) -> dict[str, Any]:
    """2**-i - 2**-j: the result is 2**-i if the second term is lost, less if it is kept. Which j is the last kept?"""
    acc, least = dots.acc, -dots.least
    tops = [*range(0, 50), *range(50, 110, 10), *range(110, 150)]

    def js(i: int, end: int) -> list[int]:
        return [0, *range(i + 1, min(i + 45, end) + 1)]

    def lost(i: int) -> int:
        return power(acc, -i)

    def less(j: int) -> list[Product]:
        return [(-1, -j)] if j else []

    end = min(least, 230)
    return {
        "product 2^-i minus product 2^-j": dots.last_kept(
            {(i, j): ([(1, -i), *less(j)], 0, lost(i)) for i in tops if i < end for j in js(i, end)}
        ),
        "c = 2^-i minus product 2^-j": dots.last_kept(
            {(i, j): (less(j), lost(i), lost(i)) for i in tops if i < end for j in js(i, end)}
        ),
        "product 2^-i minus c = 2^-j": dots.last_kept(
            {
                (i, j): ([(1, -i)], power(acc, -j, -1) if j else 0, lost(i))
                for i in tops
                if i <= min(148, least)
                for j in js(i, 149)
            }
        ),
    }


def _floor_fp16(dots: Dots) -> dict[str, Any]:
    """2**-i + half a unit + 2**-j: a tie to even (2**-i) if the last term is lost, one unit more if it is kept."""

    def cases(as_c: bool) -> dict[tuple[int, int], tuple[list[Product], int, int]]:
        made = {}
        for i in range(0, 25):
            half, top = max(-i - FP16.fraction_bits - 1, -25), power(FP16, -i)
            if i == 24:
                continue  # one unit plus half: the tie goes up in any case
            for j in (0, *range(-half + 1, -dots.least + 1)):
                terms = [(1, half)] if as_c else [(1, -i), (1, half)]
                made[i, j] = (terms + ([(1, -j)] if j else []), top if as_c else 0, top)
        return made

    alone = {(25, j): ([(1, -25)] + ([(1, -j)] if j else []), 0, 0) for j in (0, *range(26, -dots.least + 1))}
    return {
        "product 2^-i + half a unit + 2^-j": dots.last_kept(cases(False)),
        "c = 2^-i + half a unit + 2^-j": dots.last_kept(cases(True)),
        "product 2^-25 + 2^-j (half of the least subnormal)": dots.last_kept(alone),
    }


def _accumulator_alone(dots: Dots) -> list[dict[str, Any]]:
    """c with zero products: significands of all ones at many exponents, subnormals, zeros, infinities and a NaN."""
    acc = dots.acc
    mask = acc.fraction_mask
    fields = [f for f in (1, 2, 3, 5, 8, 12, 13, 14, 20, acc.bias, 2 * acc.bias) if f <= 2 * acc.bias]
    words = [(f << acc.fraction_bits) | mask for f in fields] + [
        mask,
        mask >> 1,
        mask >> 4,
        1,
        2,
        3,
        0,
        acc.inf,
        acc.inf + 1,
    ]
    words += [w | acc.sign for w in words]
    return dots.rows({f"c alone {i}": ([], w) for i, w in enumerate(words)})


def _signs(dots: Dots) -> list[dict[str, Any]]:
    """Zeros and results that become zero: which sign?"""
    acc, least = dots.acc, dots.least
    minus_zero, tiny = acc.sign, power(acc, acc.emin - acc.fraction_bits, -1)
    named: dict[str, tuple[list[Product], int]] = {
        "no products": ([], minus_zero),
        "one product +0": ([(0, 1)], minus_zero),
        "one product -0": ([(0, -1)], minus_zero),
        "all products -0": ([(0, -1)] * step_length(dots.fmt), minus_zero),
        "all products -0, c +0": ([(0, -1)] * step_length(dots.fmt), 0),
        "1 - 1": ([(1, 0), (-1, 0)], 0),
        "1 - 1, c -0": ([(1, 0), (-1, 0)], minus_zero),
        "-1 product, c 1": ([(-1, 0)], power(acc, 0)),
        "1 product, c -1": ([(1, 0)], power(acc, 0, -1)),
        "1 - 1 - least product": ([(1, 0), (-1, 0), (-1, least if least > -200 else -120)], 0),
        "1 - 1, c least negative": ([(1, 0), (-1, 0)], tiny),
        "c least negative, no products": ([], tiny),
        "-1 + 1 ulp below, c 0": ([(-1, 0), (1, -1), (1, -2), (1, -2)], 0),
    }
    for exponent in (
        -9,
        -12,
        -17,
        -18,
        -24,
        -25,
        -26,
        -32,
        -40,
        -46,
        -47,
        -48,
        -120,
        -149,
        -150,
        -157,
        -158,
        -159,
        -160,
        -175,
    ):
        if exponent >= least:
            named[f"product -2^{exponent}"] = ([(-1, exponent)], 0)
            named[f"product -2^{exponent}, c -0"] = ([(-1, exponent)], minus_zero)
            named[f"product -2^{exponent} twice"] = ([(-1, exponent)] * 2, 0)
    return dots.rows(named)


def _subnormal_operands(dots: Dots) -> dict[str, Any]:
    """As the first scan, with a first product of subnormal operands: at which exponent does such a product count?"""
    fmt, acc = dots.fmt, dots.acc
    report = {}
    for name, first in (("normal", fmt.emin), ("subnormal", fmt.emin - 1), ("least", fmt.emin - fmt.fraction_bits)):
        table: dict[str, list[int]] = {"gpu keeps to": [], "sim keeps to": []}
        a = np.zeros((1, SIDE, step_length(fmt)), fmt.word)
        b, c = np.zeros_like(a), np.zeros((1, SIDE, SIDE), acc.word)
        js = -first + np.arange(SIDE)  # c = -2**-j against the product 2**first * 1
        a[:, :, 0], b[:, :, 0] = power(fmt, first), power(fmt, 0)
        c[0, :, 0] = [power(acc, -int(j), -1) for j in js]
        gpu = run(dots.kind, a, b, c, offsets=dots.offsets)[0, :, 0]
        sim = dot(a, b, c, arch("sm_90").dot(fmt, acc))[0, :, 0]
        for column, words in (("gpu keeps to", gpu), ("sim keeps to", sim)):
            table[column] = [int(js[words != power(acc, first)].max())]
        report[f"{name} operand 2^{first} times 1, minus c = 2^-j"] = table
    return report


def _of_kind(fact: Callable[[Dots], Any], kind: str, offsets: tuple[int, int]) -> Any:
    return fact(Dots(kind, offsets))


def tensor_facts(kinds: list[str], offsets: tuple[int, int]) -> Facts:
    """The facts of these kinds, with the layout of their operands."""
    facts: Facts = {}
    for kind in kinds:
        fmt, acc = KINDS[kind]
        chosen: dict[str, Callable[[Dots], Any]] = {"where terms are cut": _floor_fp16 if acc is FP16 else _floor_fp32}
        if acc is FP32 and fmt.exponent_bits < 8:
            chosen["subnormal operands"] = _subnormal_operands
        chosen |= {"accumulator alone": _accumulator_alone, "sign of zero": _signs}
        for name, fact in chosen.items():
            facts[f"{kind}: {name}"] = partial(_of_kind, fact, kind, offsets)
    return facts


# ---- scalar ----------------------------------------------------------------------------------------------------------


def _value(word: int) -> Fraction:
    """The exact value of a finite fp32 word."""
    field, fraction = word >> 23 & 0xFF, word & 0x7FFFFF
    magnitude = Fraction(fraction + (1 << 23 if field else 0)) * Fraction(2) ** (max(field, 1) - 150)
    return -magnitude if word >> 31 else magnitude


def _zone(exact: Fraction) -> str:
    """Where an exact result just below 2**-126 lies: what each rule of rounding would make of it."""
    gap = FTZ_LEAST - abs(exact)
    if gap <= 0:
        return "2^-126 or above"
    if gap <= Fraction(1, 1 << 151):
        return "rounds up to 2^-126 with 24 bits"
    if gap <= Fraction(1, 1 << 150):
        return "rounds up to 2^-126 only in the subnormal grid"
    return "below"


def _tininess() -> dict[str, Any]:
    """Exact results just below 2**-126 under ftz: flushed, or rounded up to 2**-126 first? Sums cannot lie there."""
    a, b, _ = operands("border", FP32, 3, 1 << 15, np.random.default_rng(0))
    a, b = a & np.uint32(0x7FFFFFFF), b & np.uint32(0x7FFFFFFF)
    zero = np.zeros_like(a)
    # fma with c = 2**-126 and a small negative product: -2**-j and a little more or less
    least = np.full(64, FP32.min_normal, np.uint32)
    small = [power(FP32, -70 - int(j) % 16, -1) for j in range(64)]
    x = np.array(small, np.uint32) + np.repeat(np.array([0, 1, 0x400000, 0x7FFFFF], np.uint32), 16)
    y = np.full(64, power(FP32, -75), np.uint32)
    sim_fma = partial(arith.fma, ftz=True)
    sim_mul, sim_div = partial(arith.mul, ftz=True), partial(mufu.divide, fast_math=True)
    cases: dict[str, tuple[str, str, tuple[Words, ...], Callable[..., Fraction], Callable[..., Words]]] = {
        "mul.ftz": ("precise", "mul_ftz", (a, b), _product, sim_mul),
        "fma.ftz, c = 0": ("precise", "fma_ftz", (a, b, zero), _product, sim_fma),
        "fma.ftz, c = 2^-126": ("precise", "fma_ftz", (x, y, least), _product, sim_fma),
        "a * b, fast": ("fast", "c_mul", (a, b), _product, sim_mul),
        "a / b, fast": (
            "fast",
            "c_div",
            (a, b),
            lambda p, q: _product(p, int(mufu.rcp(np.array(q, np.uint32)))),
            sim_div,
        ),
        "mul (no ftz)": ("precise", "mul", (a, b), _product, arith.mul),
    }
    return {name: _zones(*case) for name, case in cases.items()}


def _product(a: int, b: int, c: int = 0) -> Fraction:
    return _value(a) * _value(b) + _value(c)


def _zones(
    library: str, entry: str, words: tuple[Words, ...], exact: Callable[..., Fraction], sim: Callable[..., Words]
) -> dict[str, Any]:
    """For each zone of the exact result: how many results are 2**-126, zero, another; three examples."""
    words = tuple(w[: 1 << 12] for w in words)
    results = scalar(library, entry, *words), sim(*words)
    zones: dict[str, Any] = {}
    for *inputs, gpu, modelled in zip(*(w.tolist() for w in words), *(r.tolist() for r in results), strict=True):
        if any(w >> 23 & 0xFF == 0xFF for w in inputs):
            continue
        zone = zones.setdefault(
            _zone(exact(*inputs)), {"2^-126": 0, "zero": 0, "other": 0, "unlike sim": 0, "rows": []}
        )
        zone["2^-126" if gpu == FP32.min_normal else "zero" if gpu & 0x7FFFFFFF == 0 else "other"] += 1
        zone["unlike sim"] += gpu != modelled
        if len(zone["rows"]) < 3:
            zone["rows"].append(hexadecimal(np.array([*inputs, gpu, modelled], np.uint32)))
    return zones


def _directed(library: str, entry: str, sim: Callable[..., Words], *columns: list[int]) -> list[list[str]]:
    """Rows of operand words, the GPU's word, sim's word, over all combinations of the columns."""
    grid = [g.ravel() for g in np.meshgrid(*(np.array(c, np.uint32) for c in columns), indexing="ij")]
    return [hexadecimal(np.array(row)) for row in zip(*grid, scalar(library, entry, *grid), sim(*grid), strict=True)]


SPECIALS = [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0x7F800000]
SPECIALS += [0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0x7FC12345]


def _large_divisors() -> dict[str, Any]:
    a = [0, 1, 0x3F800000, 0x7F7FFFFF, 0xC0490FDB, 0x7F800000, 0x00800000]
    b = [
        0x7E000000,
        0x7E000001,
        0x7E7FFFFF,
        0x7E800000,
        0x7E800001,
        0x7EFFFFFF,
        0x7F000000,
        0x7F7FFFFF,
        0xFE800001,
        0x7F800000,
    ]
    return {
        "a / b, fast": _directed("fast", "c_div", lambda x, y: mufu.divide(x, y, fast_math=True), a, b),
        "div.approx.ftz": _directed("precise", "div_approx_ftz", lambda x, y: mufu.divide(x, y, fast_math=True), a, b),
        "1 / b, fast": _directed("fast", "c_reciprocal", mufu.rcp, b),
    }


def _special_pairs() -> dict[str, Any]:
    """Only the rows that differ from sim, with how many rows there were."""
    cases = {
        "max": ("precise", "max", arith.fmax),
        "max.ftz": ("precise", "max_ftz", lambda x, y: arith.fmax(x, y, ftz=True)),
        "min": ("precise", "min", arith.fmin),
        "min.ftz": ("precise", "min_ftz", lambda x, y: arith.fmin(x, y, ftz=True)),
        "add.ftz": ("precise", "add_ftz", lambda x, y: arith.add(x, y, ftz=True)),
        "mul.ftz": ("precise", "mul_ftz", lambda x, y: arith.mul(x, y, ftz=True)),
        "a / b, precise": ("precise", "c_div", arith.div),
        "a / b, fast": ("fast", "c_div", lambda x, y: mufu.divide(x, y, fast_math=True)),
    }
    report: dict[str, Any] = {}
    for name, (library, entry, sim) in cases.items():
        rows = _directed(library, entry, sim, SPECIALS, SPECIALS)
        report[name] = {"rows": len(rows), "differ": [row for row in rows if row[-1] != row[-2]]}
    zeros = [0, 0x80000000]
    report["max of zeros"] = _directed("precise", "c_fmaxf", arith.fmax, zeros, zeros)
    report["min of zeros"] = _directed("precise", "c_fminf", arith.fmin, zeros, zeros)
    return report


def _sqrt_words(out: Path) -> dict[str, Any]:
    """sqrt.approx.ftz, for tools/recover_mufu.py: every mantissa of [1, 4), as differences from the rounded root."""
    first, count = 127 << 23, 1 << 24
    words = scalar_range("precise", "sqrt_ftz", first, count)
    values = np.arange(first, first + count, dtype=np.uint32).view(np.float32).astype(np.float64)
    delta = words.view(np.int32) - np.sqrt(values).astype(np.float32).view(np.int32)
    np.savez_compressed(out / "mufu_sqrt_delta.npz", sqrt_1_2=delta[: count // 2].astype(np.int8),
                        sqrt_2_4=delta[count // 2 :].astype(np.int8))  # fmt: skip
    return {"file": "mufu_sqrt_delta.npz", "least": int(delta.min()), "greatest": int(delta.max())}


def _zigzag_planes(delta: Words) -> Words:
    """Signed differences as four byte planes [4, n] of 2*|d|, less one if d < 0: the upper planes are mostly zero."""
    d = delta.astype(np.int64)
    zigzag = np.where(d < 0, -2 * d - 1, 2 * d).astype("<u4")
    return np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, 4).T)


LG2_EXPONENTS = (-100, -20, -3, -2, 1, 2, 20, 100)  # x = 2**k * m, every 64th m


def _lg2_words(out: Path) -> dict[str, Any]:
    """lg2.approx.ftz, for tools/recover_mufu.py: mantissas of [1, 2) and [0.5, 1), every 64th at other exponents.

    As `_zigzag_planes` of int32 words minus a prediction. lg2_0: np.log2 in float64, rounded. lg2_K (x = 2**K * m):
    the measured value at m plus K, exact in float64, rounded.
    """
    one, count = 127 << 23, 1 << 23
    mantissas = np.arange(one, one + count, dtype=np.uint32)
    base = scalar_range("precise", "lg2_ftz", one, count)
    rounded = np.log2(mantissas.view(np.float32).astype(np.float64)).astype(np.float32)
    planes = {"lg2_0": _zigzag_planes(base.view(np.int32).astype(np.int64) - rounded.view(np.int32))}
    for exponent in (-1, *LG2_EXPONENTS):
        m = slice(None) if exponent == -1 else slice(None, None, 64)
        x = mantissas[m] + np.uint32((exponent << 23) & 0xFFFFFFFF)
        words = scalar("precise", "lg2_ftz", x)
        predicted = (base[m].view(np.float32).astype(np.float64) + exponent).astype(np.float32)
        planes[f"lg2_{exponent}"] = _zigzag_planes(words.view(np.int32).astype(np.int64) - predicted.view(np.int32))
    path = out / "mufu_lg2.npz"
    np.savez_compressed(path, **planes)  # type: ignore[arg-type]
    return {"file": path.name, "bytes": path.stat().st_size, "at 1": hexadecimal(base[:4])}


LOGARITHM_COLUMNS = [
    ("precise", e) for e in ("rsqrt", "sqrt", "lg2", "c_rsqrtf", "c_log2f", "c_logf", "c_log10f", "c_expf")
]
LOGARITHM_COLUMNS += [("fast", e) for e in ("c_sqrtf", "c_rsqrtf", "c_log2f", "c_logf", "c_log10f", "c_expf")]


def _logarithm_samples(out: Path) -> dict[str, Any]:
    """Words of logarithms and roots, fast and precise: any words, words near 1, subnormals, specials."""
    rng = np.random.default_rng(11)
    draws = [rng.integers(0, 1 << 32, 6144), rng.integers(126 << 23, 128 << 23, 5120), rng.integers(0, 1 << 23, 2048)]
    draws += [np.int64(0x3F800000) + np.arange(-1200, 1201), np.array(SPECIALS, np.int64)]
    x = np.concatenate(draws).astype(np.uint32)
    columns = {e if library == "precise" else f"{e}_fast": scalar(library, e, x) for library, e in LOGARITHM_COLUMNS}
    path = out / "mufu_logarithms.npz"
    np.savez_compressed(path, x=x, **columns)  # type: ignore[arg-type]
    return {"file": path.name, "bytes": path.stat().st_size}


def scalar_facts(out: Path) -> Facts:
    return {
        "results just below 2^-126": _tininess,
        "large divisors": _large_divisors,
        "special pairs": _special_pairs,
        "sqrt.approx.ftz": lambda: _sqrt_words(out),
        "lg2.approx.ftz": lambda: _lg2_words(out),
        "logarithms and roots": lambda: _logarithm_samples(out),
    }
