"""Recover the coefficient tables of MUFU ex2, rcp and rsqrt from measured words alone.

    python tools/recover_mufu.py            write sim/mufu_tables.py
    python tools/recover_mufu.py --check    recover, compare with the committed file; exit 1 if they differ

The capture `mufu_delta.npz` holds, for every mantissa, the measured word minus the correctly rounded word. The hardware
interpolates: with constants a, s, t, B of each function and one row (C0, C1, C2) for each group of leading bits,

    M = ((C0 << a) + C1*x + C2*(sq(x) << s) + B) >> t        x: the low bits of the mantissa, M: a 24-bit significand

so each measured M says  M << t  <=  (C0 << a) + C1*x + C2*(sq(x) << s) + B  <  (M + 1) << t,  two linear inequalities
in three unknown integers. A row is solved exactly: every mantissa of the row must come out right. Several triples may
do so; they give the same words for every input, and the one taken is the least in (C2, C1, C0) order. Constraints are
added where the least solution of those so far fails, which keeps it a lower bound; the first that fails nowhere is
therefore the least of all.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests" / "captures" / "h200" / "mufu_delta.npz"
TABLES = ROOT / "sim" / "mufu_tables.py"
MANTISSAS = 1 << 23


@dataclass(frozen=True)
class Interpolation:
    """The fixed-point constants of one function (Oberman & Siu, ARITH-17, 2005, fitted to the H200 words).

    rows:       number of rows; x has `low_bits` bits
    c0_shift:   a;  square_shift: s, and squared: whether x is doubled before it is squared;  bias: B;  shift: t
    negative_c1: the sign of C1, which the row stores as a magnitude of 16 bits
    exact_one:   whether x = 0 of row 0 (rsqrt of a power of four, M = 2**24) has a path of its own: its neighbours' row
                 gives M = 2**24 - 1 there, and no other row fits them all
    """

    rows: int
    low_bits: int
    c0_shift: int
    square_shift: int
    doubled: int
    bias: int
    shift: int
    negative_c1: bool
    exact_one: bool = False

    def squares(self) -> np.ndarray:
        """sq(x) << s for every x of a row, int64 [2**low_bits]."""
        return truncated_square(np.arange(1 << self.low_bits) << self.doubled) << self.square_shift


FUNCTIONS = {
    "ex2": Interpolation(64, 17, 13, 0, 0, 0x77E2, 15, False),
    "rcp": Interpolation(128, 16, 13, 0, 1, 0x47E7, 15, True),
    "rsqrt": Interpolation(128, 17, 14, 2, 0, 0x7FFF, 16, True, exact_one=True),
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def truncated_square(x: np.ndarray) -> np.ndarray:
    """The hardware's squarer on 17-bit x: each partial product loses its bits below 2**18, the sum its last bit."""
    total = np.zeros_like(x)
    for bit in range(17):
        total += ((x >> bit) & 1) * (x >> (18 - bit))
    return total >> 1


def correctly_rounded(values: np.ndarray) -> np.ndarray:
    """fp32 words of the functions' exact values, from float64 `values`.

    No value here lies within 10 float64 ulp of a tie between two fp32 words, and NumPy's functions err by less than 2;
    except rsqrt at mantissa 3807459 of [2, 4): 1 ulp, on the right side (by exact fractions; sqrt and / are IEEE).
    """
    return values.astype(np.float32).view(np.uint32)


def measured_words(capture: Path) -> dict[str, np.ndarray]:
    """The words of the capture, little-endian uint32: [2**23] for ex2 and rcp, [2 * 2**23] (x in [1, 4)) for rsqrt."""
    mantissa = 1.0 + np.arange(MANTISSAS) / MANTISSAS
    exact = {
        "ex2": np.exp2(mantissa),
        "rcp": 1.0 / mantissa,
        "rsqrt_1_2": 1.0 / np.sqrt(mantissa),
        "rsqrt_2_4": 1.0 / np.sqrt(2.0 * mantissa),
    }
    with np.load(capture) as delta:
        words = {k: (correctly_rounded(v).astype(np.int64) + delta[k]).astype("<u4") for k, v in exact.items()}
    return {"ex2": words["ex2"], "rcp": words["rcp"], "rsqrt": np.concatenate([words["rsqrt_1_2"], words["rsqrt_2_4"]])}


def significands(name: str, words: np.ndarray) -> np.ndarray:
    """M of each word, int64, relative to the exponent that the function's formula fixes (so 2**24 is possible)."""
    exponent = 128 if name == "ex2" else 126
    return words.astype(np.int64) - (exponent << 23) + (1 << 23)


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def least_triple(
    x: np.ndarray, square: np.ndarray, low: np.ndarray, spec: Interpolation, c2s: np.ndarray
) -> tuple[int, int, int] | None:
    """The least (C2, C1, C0) with low <= (C0 << a) + C1*x + C2*square < low + 2**t at the given points, or None.

    c2s: the candidates for C2, ascending. For each, C1 is bounded by the slopes between all pairs of points.
    """
    i, j = np.triu_indices(len(x), 1)  # x ascending, so x[j] > x[i]
    width = (1 << spec.shift) - 1
    for chunk in np.array_split(c2s, ceil_div(len(c2s), 64)):
        lows = low - chunk[:, None] * square
        rise = lows[:, j] - lows[:, i]
        first = ceil_div(rise - width, x[j] - x[i]).max(axis=1)
        last = ((rise + width) // (x[j] - x[i])).min(axis=1)
        for c2, at, c1_first, c1_last in zip(chunk, lows, first, last, strict=True):
            for c1 in range(c1_first, c1_last + 1):
                c0 = ceil_div((at - c1 * x).max(), 1 << spec.c0_shift)
                if c0 << spec.c0_shift <= (at + width - c1 * x).min():
                    return int(c0), c1, int(c2)
    return None


def recover_row(x: np.ndarray, target: np.ndarray, square: np.ndarray, spec: Interpolation) -> tuple[int, int, int]:
    """(C0, C1, C2) that gives `target` (M at every x) without exception. Raises ArithmeticError if none does."""
    low = (target << spec.shift) - spec.bias
    points = set(np.linspace(0, len(x) - 1, 9).astype(int).tolist())
    c2s = np.arange(1 << 10)
    while True:
        at = np.array(sorted(points))
        triple = least_triple(x[at], square[at], low[at], spec, c2s)
        if triple is None:
            raise ArithmeticError("no coefficients give the measured words")
        c0, c1, c2 = triple
        excess = (c0 << spec.c0_shift) + c1 * x + c2 * square - low
        if excess.min() >= 0 and excess.max() < 1 << spec.shift:
            return triple
        points |= {int(excess.argmin()), int(excess.argmax())}
        c2s = c2s[c2s >= c2]


def recover(name: str, words: np.ndarray) -> np.ndarray:
    """The table of one function, int64 [rows, 3]: C0, C1, C2. Raises ArithmeticError unless it gives every word."""
    spec = FUNCTIONS[name]
    x, square = np.arange(1 << spec.low_bits), spec.squares()
    targets = significands(name, words).reshape(spec.rows, 1 << spec.low_bits)
    starts = [1 if spec.exact_one and row == 0 else 0 for row in range(spec.rows)]
    table = np.array([recover_row(x[s:], t[s:], square[s:], spec) for s, t in zip(starts, targets, strict=True)])
    c0, c1, c2 = (column[:, None] for column in table.T)
    made = ((c0 << spec.c0_shift) + c1 * x + c2 * square + spec.bias) >> spec.shift
    if spec.exact_one:
        made[0, 0] = 1 << 24
    if not np.array_equal(made, targets):
        raise ArithmeticError(f"{name}: {(made != targets).sum()} words differ")
    sign = -1 if spec.negative_c1 else 1
    if not (0 <= table[:, 0].min() and table[:, 0].max() < 1 << 26 and ((sign * table[:, 1]) >> 16 == 0).all()):
        raise ArithmeticError(f"{name}: a coefficient does not fit in 26, 16 and 10 bits")
    return table


def module_text(tables: dict[str, np.ndarray], words: dict[str, np.ndarray], capture: Path) -> str:
    """The source of sim/mufu_tables.py."""
    lines = [
        '"""MUFU coefficient tables; written by tools/recover_mufu.py, do not edit.',
        "",
        f"Source: {capture.relative_to(ROOT)} (H200, every mantissa), sha256",
        sha256(capture.read_bytes()) + ".",
        "A row is (C0, C1, C2); of the rows that give the same words, the least in (C2, C1, C0) order.",
        "WORDS_SHA256: of the measured words, little-endian uint32, all mantissas (rsqrt: x in [1, 2), then [2, 4)).",
        '"""',
        "",
        "WORDS_SHA256 = {",
    ]
    lines += [f'    "{name}": "{sha256(words[name].tobytes())}",' for name in tables]
    lines += ["}", ""]
    for name, table in tables.items():
        rows = [f"(0x{c0:07X}, {c1}, {c2})," for c0, c1, c2 in table.tolist()]
        body = ["    " + " ".join(rows[i : i + 4]) for i in range(0, len(rows), 4)]
        lines += [f"{name.upper()} = (", *body, ")  # fmt: skip", ""]
    return "\n".join(lines[:-1]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed tables, write nothing")
    check = parser.parse_args().check
    words = measured_words(CAPTURE)
    for name in FUNCTIONS:
        print(f"{name:5}  {len(words[name])} words  sha256 {sha256(words[name].tobytes())}", flush=True)
    text = module_text({name: recover(name, words[name]) for name in FUNCTIONS}, words, CAPTURE)
    if check:
        same = TABLES.exists() and TABLES.read_text() == text
        print(f"{TABLES.relative_to(ROOT)} {'agrees' if same else 'DIFFERS'}")
        return 0 if same else 1
    TABLES.write_text(text)
    print(f"wrote {TABLES.relative_to(ROOT)}, 0 words differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
