"""sim.mufu against words measured on an H200: every mantissa, and random words of each instruction and C function."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sim import mufu, mufu_tables

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT / "tests" / "captures" / "h200"
NAN, INF, NEGATIVE = 0x7FFFFFFF, 0x7F800000, 0x80000000
MANTISSAS = np.arange(127 << 23, 128 << 23, dtype=np.uint32)  # [1, 2)
BINADE = np.uint32(1 << 23)


def assert_words(made: np.ndarray, expected: np.ndarray, x: np.ndarray) -> None:
    wrong = np.flatnonzero(made != expected)
    lines = [f"f({x[i]:#010x}) = {made[i]:#010x}, measured {expected[i]:#010x}" for i in wrong[:8]]
    assert not len(wrong), "\n".join([f"{len(wrong)} of {made.size} words differ", *lines])


INSTRUCTIONS = {"ex2": "ex2_ftz", "rcp": "rcp_ftz", "rsqrt": "rsq_ftz", "sqrt": "sqrt_ftz", "lg2": "lg2_ftz"}


@pytest.mark.parametrize("name, column", INSTRUCTIONS.items())
def test_sampled_words(name: str, column: str) -> None:
    with np.load(CAPTURES / "mufu_samples.npz") as samples:
        assert_words(getattr(mufu, name)(samples["x"]), samples[column], samples["x"])


def test_precise_exp2f_is_ex2_that_keeps_subnormals() -> None:
    with np.load(CAPTURES / "mufu_samples.npz") as samples:
        assert_words(mufu.exp2f(samples["x"], fast_math=False), samples["ex2"], samples["x"])


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_mantissa(name: str) -> None:
    """The simulator's words are the measured ones: same sha256 as the recovery script's, from the capture alone."""
    also = {"rsqrt": MANTISSAS + BINADE, "sqrt": MANTISSAS + BINADE, "lg2": MANTISSAS - BINADE}
    x = np.concatenate([MANTISSAS, also.get(name, MANTISSAS[:0])])
    words = getattr(mufu, name)(x).astype("<u4")
    assert hashlib.sha256(words.tobytes()).hexdigest() == mufu_tables.WORDS_SHA256[name]


@pytest.mark.parametrize("k", [-100, -20, -3, -2, -1, 1, 2, 20, 100])
def test_lg2_at_other_exponents(k: int) -> None:
    """At 2**k * m the word is what the capture says: its difference from lg2(m) + k, rounded."""
    with np.load(CAPTURES / "mufu_lg2.npz") as capture:
        folded = capture[f"lg2_{k}"].T.astype(np.int64) @ (1 << np.array([0, 8, 16, 24]))
    m = MANTISSAS[:: MANTISSAS.size // folded.size]
    predicted = (mufu.lg2(m).view(np.float32).astype(np.float64) + k).astype(np.float32).view(np.uint32)
    expected = predicted + np.where(folded & 1, -(folded + 1) // 2, folded // 2)
    x = (m.astype(np.int64) + (k << 23)).astype(np.uint32)
    assert_words(mufu.lg2(x), expected, x)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("name", ["expf", "log10f", "log2f", "logf", "rsqrtf"])
def test_c_function(name: str, fast_math: bool) -> None:
    """Words of any size, around 1, subnormals, zeros, infinities and NaN."""
    with np.load(CAPTURES / "mufu_logarithms.npz") as samples:
        expected = samples[f"c_{name}_fast" if fast_math else f"c_{name}"]
        assert_words(getattr(mufu, name)(samples["x"], fast_math), expected, samples["x"])


def test_fast_sqrtf() -> None:
    with np.load(CAPTURES / "mufu_logarithms.npz") as samples:
        assert_words(mufu.sqrtf(samples["x"], fast_math=True), samples["c_sqrtf_fast"], samples["x"])


def test_tables_are_what_the_capture_gives() -> None:
    command = [sys.executable, "tools/recover_mufu.py", "--check"]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


SPECIAL = {
    "ex2": [
        (0x00000000, 0x3F800000), (0x80000000, 0x3F800000), (0x00000001, 0x3F800000), (0x807FFFFF, 0x3F800000),
        (0xB3000000, 0x3F800000),  # -2**-25: no fraction bit is kept
        (0xBF800000, 0x3F000000), (0xC2FC0000, 0x00800000), (0xC2FC0001, 0),  # -1, -126, just below
        (0x43000000, INF), (INF, INF), (NEGATIVE | INF, 0), (0x7F800001, NAN), (0xFFC00000, NAN),
    ],
    "rcp": [
        (0, INF), (NEGATIVE, NEGATIVE | INF), (0x007FFFFF, INF), (0x807FFFFF, NEGATIVE | INF), (INF, 0),
        (NEGATIVE | INF, NEGATIVE), (0x7E800000, 0x00800000), (0x7E800001, 0), (0xFE800001, NEGATIVE),
        (0x00800000, 0x7E800000), (0xBF800000, 0xBF800000), (0xFF800001, NAN), (0x7FC00000, NAN),
    ],
    "rsqrt": [
        (0, INF), (NEGATIVE, NEGATIVE | INF), (0x007FFFFF, INF), (0x807FFFFF, NEGATIVE | INF), (INF, 0),
        (NEGATIVE | INF, NAN), (0xBF800000, NAN), (0x80800000, NAN), (0x7FC00000, NAN), (0x40800000, 0x3F000000),
        (0x00800000, 0x5F000000),
    ],
    "sqrt": [
        (0, 0), (NEGATIVE, NEGATIVE), (0x007FFFFF, 0), (0x807FFFFF, NEGATIVE), (INF, INF), (NEGATIVE | INF, NAN),
        (0xBF800000, NAN), (0x80800000, NAN), (0x7FC00000, NAN), (0x40800000, 0x40000000), (0x00800000, 0x20000000),
    ],
    "lg2": [
        (0, NEGATIVE | INF), (NEGATIVE, NEGATIVE | INF), (0x007FFFFF, NEGATIVE | INF), (0x807FFFFF, NEGATIVE | INF),
        (INF, INF), (NEGATIVE | INF, NAN), (0xBF800000, NAN), (0x80800000, NAN), (0x7FC00000, NAN), (0x3F800000, 0),
        (0x40000000, 0x3F800000), (0x3F000000, 0xBF7FFFFE), (0x3F800001, 0x3495F600), (0x3F7FFFFF, 0xB24B4000),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_words(name: str) -> None:
    x, expected = np.array(SPECIAL[name], np.uint32).T
    assert_words(getattr(mufu, name)(x), expected, x)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_any_shape_and_block(name: str) -> None:
    """A word does not depend on its neighbours: not on the shape, nor on whether its block holds special values."""
    operator = getattr(mufu, name)
    x = np.random.default_rng(0).integers(0, 1 << 32, (3, 5, 7, 331), dtype=np.uint32)
    flat = operator(x)
    assert flat.shape == x.shape and flat.dtype == np.uint32
    assert np.array_equal(operator(x[::-1].swapaxes(0, 2)), flat[::-1].swapaxes(0, 2))
    assert all(operator(word) == flat[0, 0, 0, i] for i, word in enumerate(x[0, 0, 0, :64]))
    assert operator(x[:0]).shape == (0, 5, 7, 331)


def test_divide() -> None:
    """Fast: a times the approximate reciprocal, flushed, so 0 beyond 2**126. Precise: IEEE."""
    a = np.array([0x3F800000, 0x40400000, 0x7F000000, 0x00000000, 0x3F800000, 0x00400000], np.uint32)
    b = np.array([0x40400000, 0x40400000, 0x7E800001, 0x00000000, 0x80000000, 0x3F800000], np.uint32)
    fast = np.array([0x3EAAAAAB, 0x3F800000, 0x00000000, NAN, NEGATIVE | INF, 0x00000000], np.uint32)
    precise = np.array([0x3EAAAAAB, 0x3F800000, 0x3FFFFFFE, NAN, NEGATIVE | INF, 0x00400000], np.uint32)
    assert_words(mufu.divide(a, b, fast_math=True), fast, b)
    assert_words(mufu.divide(a, b, fast_math=False), precise, b)


def test_import_loads_no_table() -> None:
    code = "import sys, sim.mufu; sys.exit('sim.mufu_tables' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
