"""Formats: what is derived from a format's facts, and arrays to words and back."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import spec
import words

from sim.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, TF32, Format, format_named, from_words, to_words, values

every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)


def some_words(fmt: Format) -> np.ndarray:
    """Every word of a narrow format; edges and random words of a wide one."""
    if fmt.bits < 32:
        return words.every(fmt)
    rng = Random(948)
    return np.array(words.all_edges(FP32) + [rng.getrandbits(32) for _ in range(5000)], np.uint32)


@pytest.mark.parametrize(
    ("fmt", "bits", "bias", "emin", "emax", "min_normal", "max_finite", "largest"),
    [
        (FP32, 32, 127, -126, 127, 0x00800000, 0x7F7FFFFF, 2.0**128 - 2.0**104),
        (TF32, 32, 127, -126, 127, 0x00800000, 0x7F7FE000, 2.0**128 - 2.0**117),
        (FP16, 16, 15, -14, 15, 0x0400, 0x7BFF, 65504.0),
        (BF16, 16, 127, -126, 127, 0x0080, 0x7F7F, 2.0**128 - 2.0**120),
        (E4M3, 8, 7, -6, 8, 0x08, 0x7E, 448.0),
        (E5M2, 8, 15, -14, 15, 0x04, 0x7B, 57344.0),
    ],
    ids=lambda x: x.name if isinstance(x, Format) else None,
)
def test_derived_facts(
    fmt: Format, bits: int, bias: int, emin: int, emax: int, min_normal: int, max_finite: int, largest: float
) -> None:
    assert (fmt.bits, fmt.word.itemsize * 8, fmt.bias, fmt.emin, fmt.emax) == (bits, bits, bias, emin, emax)
    assert (fmt.min_normal, fmt.max_finite, fmt.sign) == (min_normal, max_finite, 1 << (bits - 1))
    assert values(np.array([max_finite, min_normal]), fmt).tolist() == [largest, 2.0**emin]


@every_format
def test_fields_fill_the_word(fmt: Format) -> None:
    ignored = (1 << fmt.unused_bits) - 1
    assert fmt.sign + fmt.exponent_mask + fmt.fraction_mask + ignored == (1 << fmt.bits) - 1


@every_format
def test_infinity(fmt: Format) -> None:
    if fmt is E4M3:
        with pytest.raises(ValueError, match="float8_e4m3fn has no infinity"):
            fmt.inf  # noqa: B018
    else:
        assert values(np.array([fmt.inf, fmt.inf | fmt.sign]), fmt).tolist() == [np.inf, -np.inf]


@every_format
def test_values_are_exact(fmt: Format) -> None:
    some = some_words(fmt)
    numbers = [spec.decode(word, fmt) for word in some.tolist()]
    special = {spec.NAN: np.nan, spec.INF: np.inf}
    want = np.array([sign * float(special.get(magnitude, magnitude)) for sign, magnitude in numbers])
    got = values(some, fmt)
    same = np.where(np.isnan(want), np.isnan(got), (got == want) & (np.signbit(got) == np.signbit(want)))
    assert same.all(), [hex(word) for word in some[~same][:5]]


@every_format
def test_is_nan_and_is_inf(fmt: Format) -> None:
    some = some_words(fmt)
    kinds = [spec.kind(word, fmt) for word in some.tolist()]
    for kind, predicate in ((spec.NAN, fmt.is_nan), (spec.INF, fmt.is_inf)):
        wrong = some[predicate(some) != np.array([k is kind for k in kinds])]
        assert not wrong.size, f"is_{kind.value} is wrong for {[hex(word) for word in wrong[:5]]}"


@every_format
def test_the_nan_word_is_nan(fmt: Format) -> None:
    assert spec.kind(fmt.nan, fmt) is spec.NAN and fmt.is_nan(np.array([fmt.nan], fmt.word)).all()


@every_format
def test_format_named(fmt: Format) -> None:
    assert format_named(fmt.name) is fmt


def test_format_named_lists_the_names() -> None:
    with pytest.raises(ValueError, match="dtype must be one of float32, .*float8_e5m2, not 'float64'"):
        format_named("float64")


def array_of(fmt: Format, kind: str) -> Any:
    """Every word of a narrow format (float32: some) as an array of a library, made without sim."""
    some = some_words(fmt)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return torch.from_numpy(some.view(f"i{fmt.bits // 8}").copy()).view(getattr(torch, fmt.name))
    if fmt in (FP32, FP16):
        return some.view(fmt.name)
    return some.view(getattr(pytest.importorskip("ml_dtypes"), fmt.name))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("fmt", [FP32, FP16, BF16, E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_arrays_to_words_and_back(fmt: Format, kind: str) -> None:
    array = array_of(fmt, kind)
    got, found = to_words(array)
    assert found is fmt
    words.assert_same(got, some_words(fmt), fmt)
    back = from_words(got, fmt, like=array)
    assert type(back) is type(array) and back.dtype == array.dtype
    words.assert_same(to_words(back)[0], some_words(fmt), fmt)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_to_words_makes_a_fresh_array_of_any_layout(kind: str) -> None:
    array = array_of(FP16, kind)[:24].reshape(4, 6)
    got, _ = to_words(array.T)
    assert got.shape == (6, 4) and got.flags.c_contiguous and got.flags.owndata | (got.base is not None)
    words.assert_same(got, np.arange(24, dtype=np.uint16).reshape(4, 6).T, FP16)
    got[:] = 0x3C00
    words.assert_same(to_words(array)[0], np.arange(24, dtype=np.uint16).reshape(4, 6), FP16)


@pytest.mark.parametrize("array", [np.zeros(2), np.zeros(2, np.int32), [1.0, 2.0]], ids=["float64", "int32", "list"])
def test_to_words_names_the_argument_it_refuses(array: Any) -> None:
    with pytest.raises(TypeError, match="q must be a NumPy, ml_dtypes or torch array of .*, not (float64|int32|list)"):
        to_words(array, "q")
