"""The tensor core's dot product agrees with the specification, and that with words worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import spec
import words
from hypothesis import given, settings
from words import assert_same, spec_dot

from sim import mma
from sim.arch import ARCHS, DotProduct, arch
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, TF32


def unit_name(unit: DotProduct) -> str:
    return f"{unit.operand.name}-{unit.accumulator.name}-L{unit.L}-F{unit.F}-{unit.out}-floor{unit.floor}"


# The units of all architectures, each once.
UNITS = [*{unit_name(unit): unit for arch in ARCHS.values() for unit in arch.units}.values()]
HOPPER = {"rz_fp32": arch("sm_90").dot(FP16, FP32), "rne_fp16": arch("sm_90").dot(FP16, FP16)}
every_unit = pytest.mark.parametrize("unit", UNITS, ids=unit_name)


# the specification itself, against words worked out by hand

ONE, MINUS, TINY = 0x3C00, 0xBC00, 0x0C00  # fp16 1, -1, 2^-12
FP32_ONE = 0x3F800000


@pytest.mark.parametrize(
    ("products", "c", "want"),
    [
        ([], 0x80000000, 0x00000000),  # an exact zero is +0
        ([(ONE, 0x8000)], 0x80000000, 0x00000000),
        ([(ONE, ONE)], 0x33000000, FP32_ONE),  # 1 + 2^-25 is cut to 24 bits
        ([(ONE, ONE), (MINUS, ONE)], 0x33000000, 0x33000000),  # but 2^-25 is still a term beside 1
        ([(ONE, ONE), (MINUS, ONE)], 0x32800000, 0x00000000),  # and 2^-26 is not
        ([(TINY, 0x0800)] * 15, FP32_ONE, 0x3F800003),  # 15 * 2^-25 = 3.75 * 2^-23, added before it is cut
        ([(TINY, 0x0400)] * 15, FP32_ONE, FP32_ONE),  # 15 * 2^-26, each cut to nothing
        ([(TINY, 0x8400)], FP32_ONE, FP32_ONE),  # toward zero: not below 1
        ([(TINY, 0x8800)], FP32_ONE, 0x3F7FFFFF),  # 1 - 2^-25: RZ at 24 bits below 1 is 1 - 2^-24
        ([(0x3E00, 0x3E00), (0xBE00, 0x3E00)], 0x33000000, 0x33000000),  # 1.5 * 1.5 has exponent 0, not 1
        ([(0x3E00, 0x3E00), (0x4080, 0xBC00)], 0x33000000, 0x00000000),  # 2.25 * -1 has exponent 1
        ([(0x0001, ONE), (0x8001, ONE)], 0x25000000, 0x00000000),  # 2^-24, exponent -14 as any subnormal, hides 2^-53
        ([(0x7C00, 0x0000)], 0x00000000, 0x7FFFFFFF),
        ([(0x7C00, ONE), (0x7C00, MINUS)], 0x00000000, 0x7FFFFFFF),
        ([(0x7C00, ONE)], 0xFF800000, 0x7FFFFFFF),
        ([(0x7BFF, 0x7BFF)], 0xFF800000, 0xFF800000),
        ([(0xFE01, 0x0000)], 0x00000000, 0x7FFFFFFF),
        ([(ONE, ONE)], 0x7F7FFFFF, 0x7F7FFFFF),
        ([(0x7BFF, 0x7BFF)] * 16, 0x7F7FFFFF, 0x7F7FFFFF),
    ],
)
def test_specified_step_by_hand(products: list[tuple[int, int]], c: int, want: int) -> None:
    a, b = [x for x, _ in products], [y for _, y in products]
    assert spec.dot_step(a, b, c, 25, "rz_fp32", -133, FP16, FP32) == want


def test_specified_outputs_by_hand() -> None:
    # fp32's largest value and one ulp of it: RZ overflows to infinity
    assert spec.dot_step([0x7F00], [0x3F80], 0x7F7FFFFF, 25, "rz_fp32", -133, BF16, FP32) == 0x7F800000
    # products beyond fp32 cancel inside a step
    assert spec.dot_step([0x7F00, 0x7F00], [0x7F00, 0xFF00], FP32_ONE, 25, "rz_fp32", -133, BF16, FP32) == 0
    assert spec.dot_step([0x7F00] * 2, [0x7F00, 0xFF01], 0, 25, "rz_fp32", -133, BF16, FP32) == 0xFF800000
    # 2049 in fp16 is a tie and goes to even; 2051 as well
    assert spec.dot_step([0x6800, ONE], [ONE, ONE], 0, 25, "rne_fp16", -21, FP16, FP16) == 0x6800
    assert spec.dot_step([0x6801, ONE], [ONE, ONE], 0, 25, "rne_fp16", -21, FP16, FP16) == 0x6802
    assert spec.dot_step([0x7BFF], [ONE], 0x4C00, 25, "rne_fp16", -21, FP16, FP16) == 0x7C00
    assert spec.dot_step([0x7C00], [0], 0, 25, "rne_fp16", -21, FP16, FP16) == 0x7FFF
    # 13 fraction bits: 1 + 2^-13 is kept, 1 + 2^-14 is not
    assert spec.dot_step([0x38], [0x38], 0x39000000, 13, "rz_e8m13", None, E4M3, FP32) == 0x3F800400
    assert spec.dot_step([0x38], [0x38], 0x38800000, 13, "rz_e8m13", None, E4M3, FP32) == FP32_ONE
    assert spec.dot_step([0x38, 0x7F], [0x38, 0], 0, 13, "rz_e8m13", None, E4M3, FP32) == 0x7FFFFFFF
    # terms are multiples of 2^(-133 - 25): 2^-70 * 2^-89 is one below, 2^-70 * 2^-79 is fp32's smallest word
    assert spec.dot_step([0x1C80], [0x1800], 0, 25, "rz_fp32", -133, BF16, FP32) == 0x00000001
    assert spec.dot_step([0x1C80] * 3, [0x1780] * 3, 0, 25, "rz_fp32", -133, BF16, FP32) == 0x00000001  # 1.5 of them
    # tf32 ignores the low 13 bits
    assert spec.dot_step([0x3F801FFF], [0x3F800001], 0, 25, "rz_fp32", -133, TF32, FP32) == FP32_ONE


def test_specified_steps_follow_each_other() -> None:
    # 2^-25 twice beside 1: in one step they carry, in two each is cut
    assert spec.dot([TINY] * 4, [0x0800] * 4, FP32_ONE, 4, 25, "rz_fp32", -133, FP16, FP32) == FP32_ONE + 1
    assert spec.dot([TINY] * 4, [0x0800] * 4, FP32_ONE, 2, 25, "rz_fp32", -133, FP16, FP32) == FP32_ONE


# sim.mma against the specification


@every_unit
@pytest.mark.parametrize("family", [*words.DOT_FAMILIES])
@settings(max_examples=3)
@given(seed=words.seeds)
def test_dot_is_the_specification(family: str, unit: DotProduct, seed: int) -> None:
    a, b, c = words.matrices(family, seed, unit, unit.L * (1 + seed % 2))
    check(a, b, c, unit)


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: DotProduct) -> None:
    got, want = mma.dot(a, b, c, unit), spec_dot(a, b, c, unit)
    wrong = [
        f"a {hex_list(a[m])}\nb {hex_list(b[n])}\nc {c[m, n]:#x}: got {got[m, n]:#x}, want {want[m, n]:#x}"
        for m, n in np.argwhere(got != want)
    ]
    assert not wrong, f"{len(wrong)} of {want.size} words differ, in {unit_name(unit)}\n{wrong[0]}"
    assert_same(got, want, unit.accumulator)


def hex_list(row: np.ndarray) -> str:
    return "[" + ", ".join(f"{int(word):#x}" for word in row) + "]"


@every_unit
def test_one_product_and_an_accumulator(unit: DotProduct) -> None:
    """Where nothing hides the smallest facts: every edge of the operand alone, against accumulators at the edges."""
    fmt, acc = unit.operand, unit.accumulator
    rng = np.random.default_rng(948)
    a = words.matrix(rng, fmt, (12, 1), fmt.emin - 1, fmt.emax, [0, 1, 2**fmt.fraction_bits - 1])
    b = words.matrix(rng, fmt, (12, 1), fmt.emin - 1, fmt.emax, [0, 1, 2**fmt.fraction_bits - 1])
    c = rng.choice(np.array(words.all_edges(acc), acc.word), (12, 12))
    check(a, b, c, unit)


@every_unit
def test_every_exponent(unit: DotProduct) -> None:
    """Products of one exponent, a few up and down, at every third exponent that there is; c zero or among them."""
    fmt, acc, rng = unit.operand, unit.accumulator, np.random.default_rng(948)
    for exponent in range(2 * fmt.emin - 2, 2 * fmt.emax + 1, 3):
        half = exponent // 2
        a = words.matrix(rng, fmt, (1, unit.L), half - 1, half + 1)
        b = words.matrix(rng, fmt, (1, unit.L), exponent - half - 1, exponent - half + 1)
        for c in (np.zeros((1, 1), acc.word), words.matrix(rng, acc, (1, 1), exponent - 2, exponent + 2)):
            check(a, b, c, unit)


@every_unit
@pytest.mark.parametrize("K", [1, 3])
def test_k_is_padded_with_zeros(unit: DotProduct, K: int) -> None:
    K = unit.L + K
    a, b, c = words.matrices("special", 948, unit, K)
    padded = [np.pad(x, ((0, 0), (0, 2 * unit.L - K))) for x in (a, b)]
    assert_same(mma.dot(a, b, c, unit), mma.dot(*padded, c, unit), unit.accumulator)
    check(a, b, c, unit)


@every_unit
@pytest.mark.parametrize("family", ["wide", "special", "cancelling"])
def test_order_matters_between_steps_only(unit: DotProduct, family: str) -> None:
    a, b, c = words.matrices(family, 948, unit, 3 * unit.L)
    order = np.concatenate([np.random.default_rng(n).permutation(unit.L) + n * unit.L for n in range(3)])
    whole = mma.dot(a, b, c, unit)
    assert_same(mma.dot(a[:, order], b[:, order], c, unit), whole, unit.accumulator)
    for start in range(0, 3 * unit.L, unit.L):
        c = mma.dot(a[:, start : start + unit.L], b[:, start : start + unit.L], c, unit)
    assert_same(c, whole, unit.accumulator)


@every_unit
def test_leading_axes_are_a_loop(unit: DotProduct) -> None:
    many = [words.matrices(family, 948, unit, 2 * unit.L) for family in ("normal", "wide", "special", "floor")]
    a, b, c = (np.stack(part).reshape(2, 2, *part[0].shape) for part in zip(*many))
    before = a.copy(), b.copy(), c.copy()
    got = mma.dot(a, b, c, unit)
    want = np.stack([mma.dot(*part, unit) for part in many]).reshape(got.shape)
    assert_same(got, want, unit.accumulator)
    assert all(np.array_equal(x, y) for x, y in zip((a, b, c), before))


@every_unit
def test_strided_operands(unit: DotProduct) -> None:
    a, b, c = words.matrices("wide", 948, unit, 2 * unit.L)
    views = [np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3] for x in (a, b, c)]
    assert_same(mma.dot(*views, unit), mma.dot(a, b, c, unit), unit.accumulator)
    assert_same(mma.dot(a, np.asfortranarray(b), c, unit), mma.dot(a, b, c, unit), unit.accumulator)


def test_tf32_ignores_the_low_thirteen_bits() -> None:
    unit = arch("sm_90").dot(TF32)
    a, b, c = words.matrices("wide", 948, unit, 16)
    kept = np.uint32(0xFFFFE000)
    assert_same(mma.dot(a, b, c, unit), mma.dot(a & kept, b & kept, c, unit), FP32)


@every_unit
def test_a_zero_product_takes_no_part_beside_a_small_accumulator(unit: DotProduct) -> None:
    """0 times the largest operand: c comes back as if it were alone, however small."""
    fmt, acc, rng = unit.operand, unit.accumulator, np.random.default_rng(948)
    c = words.matrix(rng, acc, (1, 200), -98, 10)  # from 2^-100 up is where the narrow step works
    check(np.zeros((1, 1), fmt.word), np.full((200, 1), fmt.max_finite, fmt.word), c, unit)


def test_a_long_k() -> None:
    """16 steps, so that a step's rounding is the next step's accumulator often."""
    for unit in (*HOPPER.values(), arch("sm_90").dot(E4M3), arch("sm_90").dot(E5M2)):
        a, b, c = words.matrices("normal", 948, unit, 16 * unit.L)
        check(a, b, c, unit)
