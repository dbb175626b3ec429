"""Input families: the same words everywhere, and the properties that they are named for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from crosscheck.inputs import DTYPES, FAMILIES, Shape, make
from sim.captures import load_capture
from sim.formats import BF16, FP16, Format, values

CAPTURE = Path(__file__).parent / "captures" / "h200" / "seed.npz"
SHAPE = Shape(batch=2, heads=4, heads_kv=2, seq_q=40, seq_kv=56, dim=24)
# sha256 of the words of q, k and v, little endian, with seed 7; another digest means other words.
DIGESTS = {
    "normal float16": "76e9505f4dcb1d34",
    "normal bfloat16": "457e22a54f68b80e",
    "large float16": "0d57bf3e6bd70c8c",
    "large bfloat16": "0ca581e973c9dc74",
    "tiny float16": "9d881f3227c62269",
    "tiny bfloat16": "cee37223bf85462e",
    "special float16": "3956a8f2c0ef7d7b",
    "special bfloat16": "1b1e3f571efde2e4",
    "const:0.1 float16": "4511cd47774796fd",
    "const:0.1 bfloat16": "53f7da48cc900ef2",
}


def digest(family: str, fmt: Format) -> str:
    words = b"".join(array.astype("<u2").tobytes() for array in make(family, SHAPE, fmt, 7))
    return hashlib.sha256(words).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_words_are_these_on_every_machine(name: str) -> None:
    family, dtype = name.split()
    assert digest(family, DTYPES[dtype]) == DIGESTS[name]


def test_every_family_has_its_digest() -> None:
    assert {name.split()[0] for name in DIGESTS} == {*FAMILIES, "const:0.1"}


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("family", [*FAMILIES, "const:-2.5"])
def test_shapes_and_formats(family: str, fmt: Format) -> None:
    q, k, v = make(family, SHAPE, fmt)
    assert (q.shape, k.shape, v.shape) == (SHAPE.q, SHAPE.kv, SHAPE.kv)
    assert all(array.dtype == fmt.word for array in (q, k, v))


@pytest.mark.parametrize("case", ["const0.05", "const3"])
def test_const_is_the_seed(case: str) -> None:
    captured = load_capture(CAPTURE).arrays
    made = make(case.replace("const", "const:"), Shape(seq_q=128, seq_kv=128), FP16)
    for name, words in zip("qkv", made, strict=True):
        np.testing.assert_array_equal(words, captured[f"{case}__{name}"][0])


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=lambda f: f.name)
def test_normal_is_about_normal(fmt: Format) -> None:
    for words in make("normal", Shape(seq_q=1024, seq_kv=1024), fmt):
        numbers = values(words, fmt)
        assert abs(numbers.mean()) < 0.01 and abs(numbers.std() - 1) < 0.01
        assert abs((np.abs(numbers) < 1).mean() - 0.6827) < 0.01 and np.abs(numbers).max() > 3.5


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=lambda f: f.name)
def test_large_overflows_exp2(fmt: Format) -> None:
    q, k, _ = (values(words[0, :, 0], fmt) for words in make("large", Shape(), fmt))
    scores = q @ k.T / np.sqrt(128) * np.log2(np.e)
    blocks = scores.reshape(256, 4, 64).max(axis=2)
    assert (blocks[:, 0] - blocks[:, 1]).max() > 128  # exp2 of it is infinite in float32
    assert (scores - scores.max(axis=1, keepdims=True)).min() < -149


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=lambda f: f.name)
def test_tiny_has_subnormals_and_is_small(fmt: Format) -> None:
    for words in make("tiny", Shape(), fmt):
        magnitude = words & fmt.word.type(fmt.sign - 1)
        assert ((magnitude > 0) & (magnitude < fmt.min_normal)).mean() > 0.05
        assert (magnitude == 1).any() and np.abs(values(words, fmt)).max() < 2**-7


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=lambda f: f.name)
def test_special_has_a_few(fmt: Format) -> None:
    shape = Shape(batch=2, heads=4, heads_kv=2, seq_q=64, seq_kv=64)
    q, k, v = make("special", shape, fmt, seed=3)
    for words, each in ((q, 2), (v, 2), (k, 1)):
        special = fmt.is_nan(words) | fmt.is_inf(words)
        assert (special.sum(axis=(1, 3)) <= each).all() and (special.sum(axis=(1, 3)) >= 1).all()
        assert (words == fmt.sign).any()
    assert not fmt.is_nan(k).any() and fmt.is_nan(q).any() and fmt.is_inf(q).any()


def test_seed_and_shape_change_what_they_should() -> None:
    q, k, v = make("normal", Shape(), FP16, seed=0)
    other = make("normal", Shape(), FP16, seed=1)
    assert not any(np.array_equal(a, b) for a, b in zip((q, k, v), other, strict=True))
    longer = make("normal", Shape(seq_kv=512), FP16, seed=0)
    np.testing.assert_array_equal(q, longer[0])
    np.testing.assert_array_equal(k, longer[1][:, :256])
    assert not np.array_equal(q, k) and not np.array_equal(k, v)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("gauss", "inputs must be one of normal, large, tiny, special, const:C or a FILE.npz, not 'gauss'"),
        ("const:x", "inputs const:C must have a finite number C, not 'x'"),
        ("const:inf", "inputs const:C must have a finite number C, not 'inf'"),
        ("const:70000", "inputs const:70000 must be finite in float16"),
    ],
)
def test_refusals(family: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        make(family, SHAPE, FP16)
    assert str(error.value) == message


def test_const_of_bfloat16_may_be_larger() -> None:
    assert values(make("const:70000", SHAPE, BF16)[0], BF16).max() == 70144
