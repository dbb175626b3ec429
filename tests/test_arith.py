"""Scalar arithmetic agrees with the specification, and the specification with words worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import spec
import words
from hypothesis import given, settings
from hypothesis import strategies as st
from words import assert_same

from sim import arith
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

FMTS = [FP32, FP16, BF16]
BINARY = ["add", "sub", "mul", "fmax", "fmin"]
FLUSHING = [*BINARY, "fma"]
by_name = pytest.mark.parametrize("fmt", FMTS, ids=lambda fmt: fmt.name)


def elementwise(operator: Callable[..., int], fmt: Format, /, *operands: np.ndarray, **options: object) -> np.ndarray:
    """An operator of the specification, element by element."""
    return np.array([operator(*row, **options) for row in zip(*(x.tolist() for x in operands))], fmt.word)


def check(name: str, fmt: Format, a: np.ndarray, b: np.ndarray, c: np.ndarray, **ftz: bool) -> None:
    """One operator of sim.arith against the specification; it looks at as many of a, b, c as it has operands."""
    operands = {"fma": {"a": a, "b": b, "c": c}, "sqrt": {"a": a}}.get(name, {"a": a, "b": b})
    got = getattr(arith, name)(*operands.values(), fmt=fmt, **ftz)
    assert_same(got, elementwise(getattr(spec, name), fmt, *operands.values(), fmt=fmt, **ftz), fmt, **operands)


def check_convert(some: np.ndarray, src: Format, dst: Format) -> None:
    want = elementwise(spec.convert, dst, some, src=src, dst=dst)
    assert_same(arith.convert(some, src, dst), want, dst, word=some)


# the specification itself, against words worked out by hand

ONE, ULP, HALF_ULP = 0x3F800000, 0x34000000, 0x33800000  # 1, 2^-23, 2^-24


@pytest.mark.parametrize(
    ("name", "operands", "want"),
    [
        ("add", (ONE, HALF_ULP), ONE),  # a tie goes to even
        ("add", (ONE + 1, HALF_ULP), ONE + 2),
        ("add", (ONE, HALF_ULP + 1), ONE + 1),
        ("add", (0x7F7FFFFF, 0x73000000), 0x7F800000),  # half an ulp above the largest finite value
        ("add", (0x7F7FFFFF, 0x72FFFFFF), 0x7F7FFFFF),
        ("add", (0x00000000, 0x80000000), 0x00000000),
        ("add", (0x80000000, 0x80000000), 0x80000000),
        ("add", (0xBF800000, ONE), 0x00000000),
        ("add", (0x7F800000, 0xFF800000), 0x7FFFFFFF),
        ("add", (0xFFC12345, ONE), 0x7FFFFFFF),  # payload and sign are dropped
        ("sub", (0x00000000, 0x00000000), 0x00000000),
        ("sub", (0x80000000, 0x00000000), 0x80000000),
        ("mul", (ONE + 1, ONE + 1), ONE + 2),  # 1 + 2^-22 + 2^-46
        ("mul", (0x7F7FFFFF, 0xC0000000), 0xFF800000),
        ("mul", (0x00000000, 0xFF800000), 0x7FFFFFFF),
        ("mul", (0x80000000, 0x40000000), 0x80000000),
        ("mul", (0x00000001, 0x3F000000), 0x00000000),  # half the smallest subnormal: a tie
        ("mul", (0x00000003, 0x3F000000), 0x00000002),
        ("mul", (0x00000001, 0xBF000001), 0x80000001),
        ("fma", (ONE + 1, ONE - 2, 0xBF800000), 0xA8800000),  # (1 + 2^-23) (1 - 2^-23) - 1 = -2^-46
        ("fma", (HALF_ULP + 1, ONE - 2, ONE + 1), ONE + 1),  # 2^-70 below a tie, which 53 bits do not see
        ("fma", (HALF_ULP, ONE, ONE + 1), ONE + 2),
        ("fma", (0x7F800000, 0x00000000, 0x7FC00000), 0x7FFFFFFF),
        ("fma", (0x7F7FFFFF, 0x7F7FFFFF, 0xFF800000), 0xFF800000),  # a product beyond fp32 is not infinite
        ("fma", (0x80000000, ONE, 0x00000000), 0x00000000),
        ("fma", (0x80000000, ONE, 0x80000000), 0x80000000),
        ("div", (ONE, 0x40400000), 0x3EAAAAAB),  # 1 / 3
        ("div", (ONE, 0x80000000), 0xFF800000),
        ("div", (0x80000000, 0x7F800000), 0x80000000),
        ("div", (0x00000000, 0x00000000), 0x7FFFFFFF),
        ("div", (0x7F800000, 0x7F800000), 0x7FFFFFFF),
        ("sqrt", (0x40000000,), 0x3FB504F3),
        ("sqrt", (0x00000001,), 0x1A3504F3),  # 2^-149: 2^-75 times the root of 2
        ("sqrt", (0x80000000,), 0x80000000),
        ("sqrt", (0xBF800000,), 0x7FFFFFFF),
        ("fmax", (0x80000000, 0x00000000), 0x00000000),
        ("fmin", (0x00000000, 0x80000000), 0x80000000),
        ("fmax", (0xFF800000, 0x7FC00000), 0xFF800000),
        ("fmax", (0xFF800000, 0xFF7FFFFF), 0xFF7FFFFF),
        ("fmin", (0x7FC00001, 0xFFC00001), 0x7FFFFFFF),
    ],
)
def test_specification_by_hand(name: str, operands: tuple[int, ...], want: int) -> None:
    assert getattr(spec, name)(*operands, fmt=FP32) == want


@pytest.mark.parametrize(
    ("word", "src", "dst", "want"),
    [
        (0x477FF000, FP32, FP16, 0x7C00),  # 65520: half an ulp above the largest finite value
        (0x477FEFFF, FP32, FP16, 0x7BFF),
        (0x33000000, FP32, FP16, 0x0000),  # 2^-25: half the smallest subnormal
        (0x33000001, FP32, FP16, 0x0001),
        (0xFF800001, FP32, FP16, 0x7FFF),
        (0x3F808000, FP32, BF16, 0x3F80),
        (0x3F818000, FP32, BF16, 0x3F82),
        (0x7F7FFFFF, FP32, BF16, 0x7F80),
        (0x43E80000, FP32, E4M3, 0x7E),  # 464, a tie with what would follow 448
        (0x4E6E6B28, FP32, E4M3, 0x7E),  # 1e9
        (0xFF800000, FP32, E4M3, 0xFE),
        (0xFFC00000, FP32, E4M3, 0x7F),
        (0x3A800000, FP32, E4M3, 0x00),  # 2^-10: half the smallest subnormal
        (0x3B400000, FP32, E4M3, 0x02),  # 3 * 2^-10
        (0x7F800000, FP32, E5M2, 0x7B),
        (0x47700000, FP32, E5M2, 0x7B),  # 61440
        (0x0001, FP16, FP32, 0x33800000),
        (0xFE00, FP16, FP32, 0x7FFFFFFF),
        (0x7E00, FP16, FP16, 0x7E00),  # a move keeps the word
        (0x7E, E4M3, FP32, 0x43E00000),  # 448
        (0xFC, E5M2, FP16, 0xFC00),
    ],
)
def test_specified_conversions_by_hand(word: int, src: Format, dst: Format, want: int) -> None:
    assert spec.convert(word, src, dst) == want


@pytest.mark.parametrize(
    ("a", "b", "before", "after", "delivered"),
    [
        (0x3F7FFFFF, 0x00800000, 0, 0, 0x00800000),  # 2^-126 (1 - 2^-24): a subnormal tie, 24 bits hold it
        (0x20000001, 0x1FFFFFFE, 0, 0x00800000, 0x00800000),  # 2^-126 (1 - 2^-46): 24 bits round it up
        (0x3F7FFFFE, 0x00800000, 0, 0, 0),  # 2^-126 (1 - 2^-23), the largest subnormal
        (0x3F800000, 0x80800000, 0x80800000, 0x80800000, 0x80800000),
        (0x3F000000, 0x80800000, 0x80000000, 0x80000000, 0x80000000),
    ],
)
def test_specified_tininess_by_hand(a: int, b: int, before: int, after: int, delivered: int) -> None:
    product = spec.times(spec.decode(a, FP32), spec.decode(b, FP32))
    zero = 0x80000000 if product.sign < 0 else 0
    for rule, want in (("before", before), ("after", after), ("delivered", delivered)):
        assert (zero if spec.is_tiny(product, FP32, rule) else spec.round_(product, FP32)) == want


# sim.arith against the specification


@by_name
@pytest.mark.parametrize("name", FLUSHING)
@settings(max_examples=40)
@given(family=st.sampled_from([*words.FAMILIES]), seed=words.seeds, ftz=st.booleans())
def test_operator_is_the_specification(name: str, fmt: Format, family: str, seed: int, ftz: bool) -> None:
    check(name, fmt, *words.triples(family, seed, fmt, 32), ftz=ftz)


@pytest.mark.parametrize("name", ["div", "sqrt"])
@given(family=st.sampled_from([*words.FAMILIES]), seed=words.seeds)
def test_precise_div_and_sqrt_are_ieee(name: str, family: str, seed: int) -> None:
    a, b, c = words.triples(family, seed, FP32, 96)
    check(name, FP32, *((c & np.uint32(FP32.sign - 1), b, c) if name == "sqrt" else (a, b, c)))


@pytest.mark.parametrize("name", [*FLUSHING, "div", "sqrt"])
def test_twenty_thousand_words_of_each_operator(name: str) -> None:
    fmts, flushing = (FMTS, [{"ftz": False}, {"ftz": True}]) if name in FLUSHING else ([FP32], [{}])
    size = 20_000 // (len(fmts) * len(flushing))
    for fmt in fmts:
        for ftz in flushing:
            parts = [words.triples(family, 948, fmt, size // len(words.FAMILIES) + 1) for family in words.FAMILIES]
            check(name, fmt, *map(np.concatenate, zip(*parts)), **ftz)


@by_name
@pytest.mark.parametrize("name", ["add", "mul", "fmax"])
def test_every_pair_of_edges(name: str, fmt: Format) -> None:
    edges = np.array(words.all_edges(fmt), fmt.word)
    a, b = (grid.ravel() for grid in np.meshgrid(edges, edges))
    check(name, fmt, a, b, b)


@by_name
@given(data=st.data())
def test_operators_in_terms_of_each_other(fmt: Format, data: st.DataObject) -> None:
    a, b, c = data.draw(words.arrays(fmt, 3))
    sign, one = fmt.word.type(fmt.sign), np.full_like(a, fmt.bias << fmt.fraction_bits)
    for name in ("add", "mul", "fmax", "fmin"):
        operator = getattr(arith, name)
        assert_same(operator(a, b, fmt), operator(b, a, fmt), fmt, a=a, b=b)
    assert_same(arith.sub(a, b, fmt), arith.add(a, b ^ sign, fmt), fmt, a=a, b=b)
    assert_same(arith.fma(a, one, c, fmt), arith.add(a, c, fmt), fmt, a=a, c=c)
    product = arith.mul(a, b, fmt)
    assert_same(arith.fma(a, b, np.where(product & sign, sign, 0).astype(fmt.word), fmt), product, fmt, a=a, b=b)


@by_name
@given(data=st.data())
def test_ftz_changes_nothing_but_subnormals(fmt: Format, data: st.DataObject) -> None:
    a, b, c = (arith.flush(x, fmt) for x in data.draw(words.arrays(fmt, 3)))
    kept = arith.fma(a, b, c, fmt)
    flushed = arith.fma(a, b, c, fmt, ftz=True)
    same = (arith.flush(kept, fmt) == kept) & (kept & fmt.word.type(fmt.sign - 1) != fmt.min_normal)
    assert_same(flushed[same], kept[same], fmt, a=a[same], b=b[same], c=c[same])


# conversions and flush: every narrow word


@pytest.mark.parametrize("src", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_every_narrow_word_converts_up(src: Format) -> None:
    every = words.every(src)
    check_convert(every, src, FP32)


@pytest.mark.parametrize("dst", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("src", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_narrow_words_convert_to_each_other(src: Format, dst: Format) -> None:
    """Every 8-bit word; of 16-bit words the edges and every seventh, which ends in every possible way."""
    some = words.every(src)
    if src.bits == 16:
        some = np.concatenate([np.array(words.all_edges(src), src.word), some[::7]])
    check_convert(some, src, dst)


def between(dst: Format, low: np.ndarray) -> np.ndarray:
    """float32 words of the middle between neighbouring words of dst (low and the next), and the words beside it."""
    middles = []
    for word in low.tolist():
        x, y = spec.decode(word, dst).magnitude, spec.decode(word + 1, dst).magnitude
        middles.append(spec.round_(spec.Number(+1, (x + y) / 2), FP32))
    positive = (np.array(middles, np.uint32)[:, None] + np.array([-1, 0, 1])).astype(np.uint32).ravel()
    return np.concatenate([positive, positive | np.uint32(FP32.sign)])


@pytest.mark.parametrize("dst", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_ties_between_narrow_words(dst: Format) -> None:
    low = words.every(dst)[: dst.max_finite]
    if dst.bits == 16:
        low = np.unique(np.concatenate([low[:64], low[-64:], np.random.default_rng(948).choice(low, 1000)]))
    check_convert(between(dst, low), FP32, dst)


@pytest.mark.parametrize("dst", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_float32_words_convert(dst: Format) -> None:
    """Edges of both formats and random words, most of them within the range of dst."""
    rng = Random(948)
    largest, ulp = spec.convert(dst.max_finite, dst, FP32), 1 << (FP32.fraction_bits - dst.fraction_bits)
    beyond = [largest + n * ulp // 2 + step for n in range(-2, 4) for step in (-1, 0, 1)]
    inside = [words.finite(rng, FP32, dst.emin - dst.fraction_bits - 2, dst.emax + 2) for _ in range(6000)]
    anywhere = [rng.getrandbits(32) for _ in range(2000)]
    some = np.array(words.all_edges(FP32) + beyond + inside + anywhere, np.uint32)
    check_convert(some, FP32, dst)


@pytest.mark.parametrize("fmt", [FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_up_and_back_keeps_every_word_but_nan(fmt: Format) -> None:
    every = words.every(fmt)
    back = arith.convert(arith.convert(every, fmt, FP32), FP32, fmt)
    want = np.where(fmt.is_nan(every), fmt.word.type(fmt.nan), every)
    if fmt is E5M2:  # infinity saturates on the way back
        want[fmt.is_inf(every)] -= fmt.word.type(1)
    assert_same(back, want, fmt, word=every)


@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_a_conversion_to_the_same_format_is_a_move(fmt: Format) -> None:
    some = np.array(words.all_edges(fmt), np.uint32) if fmt is FP32 else words.every(fmt)
    assert_same(arith.convert(some, fmt, fmt), some, fmt, word=some)


@by_name
def test_flush(fmt: Format) -> None:
    """Every 16-bit word; of float32 the edges and random words around the smallest normal value."""
    if fmt is FP32:
        rng = Random(948)
        near = [rng.getrandbits(FP32.fraction_bits + 2) | rng.getrandbits(1) * FP32.sign for _ in range(4000)]
        some = np.array(words.all_edges(fmt) + near, np.uint32)
    else:
        some = words.every(fmt)
    assert_same(arith.flush(some, fmt), elementwise(spec.flush, fmt, some, fmt=fmt), fmt, word=some)


# arrays


@by_name
def test_operands_broadcast_and_stay_as_they_are(fmt: Format) -> None:
    a, b = np.array(words.all_edges(fmt), fmt.word)[:, None], np.array(words.all_edges(fmt), fmt.word)[None, ::3]
    before = a.copy(), b.copy()
    for name in BINARY:
        for ftz in (False, True):
            got = getattr(arith, name)(a, b, fmt, ftz=ftz)
            full = np.broadcast_arrays(a, b)
            assert_same(got, getattr(arith, name)(full[0].copy(), full[1].copy(), fmt, ftz=ftz), fmt)
    assert arith.fma(a, b, a[:, :, None], fmt).shape == (a.shape[0], a.shape[0], b.shape[1])
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])


@by_name
@pytest.mark.parametrize("name", FLUSHING)
def test_an_element_does_not_depend_on_its_neighbours(name: str, fmt: Format) -> None:
    """One word alone gives what it gives in an array, so that a short cut for a whole array is one for each element."""
    operator = getattr(arith, name)
    for family in words.FAMILIES:
        operands = words.triples(family, 948, fmt, 40)[: 3 if name == "fma" else 2]
        alone = [operator(*(x[n : n + 1] for x in operands), fmt) for n in range(40)]
        assert_same(np.concatenate(alone), operator(*operands, fmt), fmt, **dict(zip("abc", operands)))


@by_name
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...], fmt: Format) -> None:
    x = np.full(shape, fmt.bias << fmt.fraction_bits, fmt.word)
    results = [getattr(arith, name)(x, x, fmt, ftz=True) for name in BINARY]
    results += [arith.fma(x, x, x, fmt), arith.flush(x, fmt), arith.convert(x, fmt, fmt)]
    for got in results:
        assert np.shape(got) == shape and np.asarray(got).dtype == fmt.word
    assert np.shape(arith.convert(x, fmt, FP32)) == shape and np.shape(arith.convert(x, fmt, E4M3)) == shape


@by_name
def test_strided_and_reversed_operands(fmt: Format) -> None:
    edges = np.array(words.all_edges(fmt), fmt.word)
    a, b = edges[::-2], edges[1::2][: len(edges[::-2])]
    for name in BINARY:
        operator = getattr(arith, name)
        assert_same(operator(a, b, fmt), operator(a.copy(), b.copy(), fmt), fmt, a=a, b=b)
    assert_same(arith.convert(a, fmt, E4M3), arith.convert(a.copy(), fmt, E4M3), E4M3, word=a)


def test_a_cast_to_tfloat32_adds_half_a_unit_and_the_cast_back_clears_what_is_unused() -> None:
    words = np.array([0x3F800000, 0x3F801000, 0x3F800FFF, 0x7F7FF000, 0x7F800000, 0x7F800001, 0xFFC12345], np.uint32)
    stored = arith.convert(words, FP32, TF32)
    assert stored.tolist() == [0x3F801000, 0x3F802000, 0x3F801FFF, 0x7F800000, 0x7F800000, 0x7F800001, 0xFFC12345]
    back = arith.convert(stored, TF32, FP32)
    assert back.tolist() == [0x3F800000, 0x3F802000, 0x3F800000, 0x7F800000, 0x7F800000, 0x7F800000, 0xFFC12000]
