"""The float64 reference and the error report against loops that do one element at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from crosscheck import reference
from crosscheck.inputs import Shape, make
from crosscheck.reference import attention, errors
from sim.arith import convert
from sim.formats import BF16, FP16, FP32, Format, values


def slow_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """Attention of float64 arrays, one output at a time."""
    batches, seq_q, heads, dim = q.shape
    seq_kv, group = k.shape[1], heads // k.shape[2]
    out = np.zeros(q.shape)
    for b, i, h in np.ndindex(batches, seq_q, heads):
        keys = [j for j in range(seq_kv) if not causal or j <= i + seq_kv - seq_q]
        scores = [math.fsum(q[b, i, h] * k[b, j, h // group]) / math.sqrt(dim) for j in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        for d in range(dim):
            seen = [weight * v[b, j, h // group, d] for weight, j in zip(weights, keys, strict=True)]
            out[b, i, h, d] = sum(seen) / math.fsum(weights)
    return out


@pytest.mark.parametrize("block", [1, 400, 1 << 20])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
def test_reference(fmt: Format, causal: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_BYTES", block)
    words = make("normal", Shape(batch=2, heads=4, heads_kv=2, seq_q=9, seq_kv=13, dim=8), fmt)
    expected = slow_attention(*(values(w, fmt) for w in words), causal)
    np.testing.assert_allclose(attention(*words, fmt, causal), expected, rtol=1e-12, atol=1e-14)


def test_infinite_value_that_no_row_sees_yet() -> None:
    q, k, v = make("normal", Shape(seq_q=6, seq_kv=6, dim=4), FP16)
    v[0, 3, 0, 1], v[0, 4, 0, 2] = FP16.inf, FP16.nan
    out = attention(q, k, v, FP16, causal=True)
    assert np.isfinite(out[0, :3]).all()
    assert np.isinf(out[0, 3:, 0, 1]).all() and np.isnan(out[0, 4:, 0, 2]).all()
    assert np.isfinite(out[0, :, 0, [0, 3]]).all()


def test_special_inputs_make_the_same_rows_nan_as_the_slow_one() -> None:
    words = make("special", Shape(heads=2, heads_kv=2, seq_q=12, seq_kv=12, dim=8), FP16, seed=1)
    with np.errstate(all="ignore"):
        q, k, v = (values(w, FP16) for w in words)
        scores = np.einsum("bihd,bjhd->bhij", q, k)
        expected = ~np.isfinite(scores).all(axis=3) & (np.isnan(scores).any(axis=3) | (scores == np.inf).any(axis=3))
    out = attention(*words, FP16)
    assert (np.isnan(out).all(axis=3).transpose(0, 2, 1)[expected]).all()


def exact_ulp(error: Fraction, at: float, fmt: Format) -> float:
    """An error in units of the spacing of `fmt` at a value."""
    exponent = fmt.emin
    while Fraction(2) ** (exponent + 1) <= abs(Fraction(at)):
        exponent += 1
    return float(abs(error) / Fraction(2) ** (min(exponent, fmt.emax) - fmt.fraction_bits))


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("family", ["normal", "tiny", "large"])
def test_errors(family: str, fmt: Format) -> None:
    target = values(make(family, Shape(seq_q=8, seq_kv=8, dim=8), fmt, seed=1)[0], fmt) * (1 + 1 / 300)
    words = convert(target.astype(np.float32).view(np.uint32), FP32, fmt)
    out = values(words, fmt)
    pairs = list(zip(out.reshape(-1).tolist(), target.reshape(-1).tolist(), strict=True))
    ulps = [exact_ulp(Fraction(a) - Fraction(b), b, fmt) for a, b in pairs]
    found = errors(words, fmt, target)
    assert found.max_abs == max(abs(a - b) for a, b in pairs)
    assert found.max_ulp == pytest.approx(max(ulps), rel=1e-9) and found.mean_ulp == pytest.approx(np.mean(ulps))
    assert found.max_ulp <= 0.5001 and found.compared == found.size == 64
    assert found.worst is not None and exact_ulp(
        Fraction(out[found.worst] - target[found.worst]), target[found.worst], fmt
    )


def test_nan_and_infinity_are_left_out_and_counted() -> None:
    one = 0x3C00
    words = np.array([[[[one, FP16.nan, FP16.nan, FP16.inf, FP16.inf, one]]]], np.uint16)
    found = errors(words, FP16, np.array([[[[1.5, np.nan, 1.0, np.inf, 2.0, np.nan]]]]))
    assert (found.size, found.compared, found.max_abs, found.mean_abs) == (6, 1, 0.5, 0.5)
    assert found.max_ulp == 512 and found.worst == (0, 0, 0, 0)
    assert (found.nan, found.nan_reference, found.nan_both) == (2, 2, 1)
    assert (found.infinite, found.infinite_reference) == (2, 1)


def test_nothing_to_compare() -> None:
    words = np.full((1, 1, 1, 2), FP16.nan, np.uint16)
    found = errors(words, FP16, np.zeros((1, 1, 1, 2)))
    assert (found.compared, found.max_abs, found.mean_ulp, found.worst) == (0, 0.0, 0.0, None)
