"""crosscheck.diff against a slow version that looks at one element at a time and counts values one by one."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck.diff import KINDS, assert_same_words, diff, ordinals
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

FORMATS = (FP32, FP16, BF16, E4M3, E5M2)


@cache
def decode(word: int, fmt: Format) -> int | str:
    """The value of a word in units of the smallest subnormal value, or "nan", "inf", "-inf"."""
    negative, rest = divmod(word, 1 << (fmt.bits - 1))
    exponent, fraction = divmod(rest, 1 << fmt.fraction_bits)
    last = (1 << fmt.exponent_bits) - 1
    if fmt.infinities and exponent == last:
        return "nan" if fraction else ("-inf" if negative else "inf")
    if not fmt.infinities and rest == (1 << (fmt.bits - 1)) - 1:
        return "nan"
    significand = fraction if exponent == 0 else fraction + (1 << fmt.fraction_bits)
    value = significand << (max(exponent, 1) - 1)
    return -value if negative else value


@cache
def places(fmt: Format) -> dict[int, int]:
    """Every finite value of a format of at most 16 bits -> its place among the sorted values."""
    finite = {v for word in range(1 << fmt.bits) if not isinstance(v := decode(word, fmt), str)}
    return {value: place for place, value in enumerate(sorted(finite))}


def distance(a: int, b: int, fmt: Format) -> int:
    """Steps from one value to the other: for float32, counted binade by binade from zero."""
    if fmt.bits <= 16:
        return abs(places(fmt)[a] - places(fmt)[b])

    def steps(x: int) -> int:
        total, low, high, spacing = 0, 0, 2 << fmt.fraction_bits, 1
        while abs(x) > high:
            total += (high - low) // spacing
            low, high, spacing = high, high * 2, spacing * 2
        total += (abs(x) - low) // spacing
        return -total if x < 0 else total

    return abs(steps(a) - steps(b))


def classify(a: int, b: int, fmt: Format) -> tuple[str, int]:
    """Class and ULP distance of one pair of words."""
    if a == b:
        return "same", 0
    x, y = decode(a, fmt), decode(b, fmt)
    if x == "nan" or y == "nan":
        return ("nan_payload" if x == y else "nan"), 0
    if isinstance(x, str) or isinstance(y, str):
        return "infinity", 0
    if x == 0 and y == 0:
        return "sign_of_zero", 0
    return "value", distance(x, y, fmt)


def bucket(ulp: int) -> str:
    low, high = 1, 1
    while ulp > high:
        low, high = high + 1, high * 2
    return str(high) if low == high else f"{low}-{high}"


def edge_words(fmt: Format) -> list[int]:
    """Both zeros, the ends of the subnormal, normal and finite ranges, infinities, NaNs with payloads; both signs."""
    top = (1 << (fmt.bits - 1)) - 1
    one = ((1 << (fmt.exponent_bits - 1)) - 1) << fmt.fraction_bits
    positive = [
        0,
        1,
        2,
        fmt.min_normal - 1,
        fmt.min_normal,
        one - 1,
        one,
        one + 1,
        fmt.max_finite - 1,
        fmt.max_finite,
        top,
        top - 1,
    ]
    positive += [fmt.exponent_mask, fmt.exponent_mask + 1]
    return [word | sign for word in positive for sign in (0, 1 << (fmt.bits - 1))]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Format, list[tuple[int, int]]]:
    """A format and pairs of words: equal, neighbours, edges, anything."""
    fmt = draw(st.sampled_from(FORMATS))
    word = st.one_of(st.sampled_from(edge_words(fmt)), st.integers(0, (1 << fmt.bits) - 1))
    near = st.tuples(word, st.integers(-9, 9)).map(lambda p: (p[0], (p[0] + p[1]) % (1 << fmt.bits)))
    flipped = word.map(lambda w: (w, w ^ (1 << (fmt.bits - 1))))
    return fmt, draw(st.lists(st.one_of(near, flipped, st.tuples(word, word)), max_size=40))


@given(pairs())
def test_diff_is_the_slow_one(case: tuple[Format, list[tuple[int, int]]]) -> None:
    fmt, found = case
    a, b = (np.array([pair[side] for pair in found], fmt.word) for side in (0, 1))
    slow = [classify(*pair, fmt) for pair in found]
    result = diff((a, fmt), (b, fmt), first=3)
    counts = Counter(kind for kind, _ in slow)
    assert result.counts == {kind: counts[kind] for kind in KINDS}
    assert result.ulp == Counter(bucket(ulp) for kind, ulp in slow if kind == "value")
    assert result.max_ulp == max((ulp for _, ulp in slow), default=0)
    wrong = [i for i, (kind, _) in enumerate(slow) if kind != "same"]
    assert result.first == ((wrong[0],) if wrong else None)
    assert result.same == (not wrong) and result.different == len(wrong) and result.size == len(found)
    for item, i in zip(result.listed, wrong, strict=False):
        assert (item.index, item.kind, item.actual_word, item.expected_word) == ((i,), slow[i][0], *found[i])
        assert item.ulp == (slow[i][1] if slow[i][0] in ("value", "sign_of_zero") else None)
    assert len(result.listed) == min(3, len(wrong))


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda f: f.name)
def test_every_pair_of_8_bit_words(fmt: Format) -> None:
    words = np.arange(256, dtype=np.uint8)
    a, b = np.repeat(words, 256), np.tile(words, 256)
    slow = [classify(x, y, fmt) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    result = diff((a, fmt), (b, fmt))
    counts = Counter(kind for kind, _ in slow)
    assert result.counts == {kind: counts[kind] for kind in KINDS}
    assert result.ulp == Counter(bucket(ulp) for kind, ulp in slow if kind == "value")


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
def test_ordinals_of_every_16_bit_word(fmt: Format) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    finite = ~(fmt.is_nan(words) | fmt.is_inf(words))
    zero = places(fmt)[0]
    expected = [places(fmt)[decode(word, fmt)] - zero for word in words[finite].tolist()]  # type: ignore[index]
    assert ordinals(words[finite], fmt).tolist() == expected


def test_message() -> None:
    a = np.array([[1.0, -0.0, np.inf], [2.0, 1.0, 0.5]], np.float16)
    b = np.array([[1.0, 0.0, -np.inf], [2.002, np.nan, 0.5]], np.float16)
    assert diff(a, b).message("o", "simulated", "H200").splitlines() == [
        "o: 4 of 6 words differ",
        "  value                        1",
        "    per ULP distance: 1: 1",
        "  sign of zero                 1",
        "  NaN against number           1",
        "  infinity                     1",
        "  first at [0, 1] of float16 [2, 3]",
        "  index   simulated       H200",
        "  [0, 1]  0x8000     -0   0x0000  0        0 ULP",
        "  [0, 2]  0x7c00     inf  0xfc00  -inf     infinity",
        "  [1, 0]  0x4000     2    0x4001  2.00195  1 ULP",
        "  [1, 1]  0x3c00     1    0x7e00  nan      NaN against number",
    ]
    assert str(diff(a, a)) == "result: same, 6 words (float16 [2, 3])"
    assert "... and 2 more" in str(diff(a, b, first=2))


def test_assertion_carries_the_message() -> None:
    a, b = np.array([1, 2, 3], np.float32), np.array([1, 2, 4], np.float32)
    assert_same_words(a, a)
    with pytest.raises(AssertionError, match=r"^scores: 1 of 3 words differs\n"):
        assert_same_words(a, b, "scores")


def test_operands_may_be_arrays_tensors_or_words() -> None:
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    numbers = np.array([0.5, -3.0, 1.5], np.float32)
    words = (np.array([0x3F00, 0xC040, 0x3FC0], np.uint16), BF16)
    assert diff(torch.from_numpy(numbers).to(torch.bfloat16), numbers.astype(ml_dtypes.bfloat16)).same
    assert diff(torch.from_numpy(numbers).to(torch.bfloat16), words).same
    assert diff((words[0].view(np.int16), BF16), words).same


def test_empty_scalar_and_strided() -> None:
    assert diff(np.zeros((0, 3), np.float16), np.zeros((0, 3), np.float16)).same
    assert diff(np.array(1.0, np.float32), np.array(2.0, np.float32)).first == ()
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert diff(a.T, np.ascontiguousarray(a.T)).same
    assert diff((a.view(np.uint32)[:, ::2], FP32), np.ascontiguousarray(a[:, ::2])).same


def test_refusals() -> None:
    a = np.zeros((2, 3), np.float16)
    with pytest.raises(ValueError, match=r"^actual and expected must have the same shape, not \[2, 3\] and \[3, 2\]$"):
        diff(a, a.T)
    with pytest.raises(ValueError, match=r"^actual and expected must have the same format, not float16 and float32$"):
        diff(a, a.astype(np.float32))
    with pytest.raises(TypeError, match=r"^expected must be a NumPy, ml_dtypes or torch array of .*, not float64$"):
        diff(a, a.astype(np.float64))
    with pytest.raises(TypeError, match=r"^actual must be words of 16 bits for float16, not uint32$"):
        diff((a.view(np.uint16).astype(np.uint32), FP16), a)
    with pytest.raises(TypeError, match="ignored bits"):
        diff((np.zeros(1, np.uint32), TF32), (np.zeros(1, np.uint32), TF32))


def test_json_is_strict() -> None:
    import json

    found = diff(np.array([np.nan, np.inf, 1], np.float32), np.array([1, -np.inf, 2], np.float32))
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["counts"]["nan"] == 1 and data["listed"][1]["expected"] == "-inf" and data["different"] == 3
