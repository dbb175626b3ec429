"""Recover the coefficient tables of MUFU ex2, rcp, rsqrt, sqrt and lg2 from measured words alone.

    python tools/recover_mufu.py            write sim/mufu_tables.py
    python tools/recover_mufu.py --check    recover, compare with the committed file; exit 1 if they differ

The captures `mufu_delta.npz` and `mufu_sqrt_delta.npz` hold, for every mantissa, the measured word minus the correctly
rounded word, `mufu_lg2.npz` the measured word minus a prediction. The hardware interpolates: with constants a, s, t, B
of each function and one row (C0, C1, C2) for each group of leading bits,

    M = ((C0 << a) + C1*x + C2*(sq(x) << s) + B) >> t        x: the low bits of the mantissa, M: a 24-bit significand

(of lg2: M the logarithm of the mantissa in units of 2**-36; the word is what adding the exponent and cutting to 24 bits
leaves of it)
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
CAPTURES = [ROOT / "tests" / "captures" / "h200" / name for name in ("mufu_delta.npz", "mufu_sqrt_delta.npz")]
LG2_CAPTURE = ROOT / "tests" / "captures" / "h200" / "mufu_lg2.npz"
TABLES = ROOT / "sim" / "mufu_tables.py"
MANTISSAS = 1 << 23


@dataclass(frozen=True)
class Interpolation:
    """The fixed-point constants of one function (Oberman & Siu, ARITH-17, 2005, fitted to the H200 words).

    rows:       number of rows; x has `low_bits` bits
    c0_shift:   a;  square_shift: s, and squared: whether x is doubled before it is squared;  bias: B;  shift: t
    negative_c1, negative_c2: the signs of C1 and C2, which the hardware holds as magnitudes of 16 and 10 bits
    doubled_c1:  C1 is even and twice 16 bits in the upper half of the rows
    exact_one:   whether x = 0 of row 0 (rsqrt of a power of four, M = 2**24; lg2 of 1, M = 0) has a path of its own:
                 its neighbours' row gives another M there, and no other row fits them all
    """

    rows: int
    low_bits: int
    c0_shift: int
    square_shift: int
    doubled: int
    bias: int
    shift: int
    negative_c1: bool
    negative_c2: bool = False
    doubled_c1: bool = False
    exact_one: bool = False

    def squares(self) -> np.ndarray:
        """sq(x) << s for every x of a row, int64 [2**low_bits]."""
        return truncated_square(np.arange(1 << self.low_bits) << self.doubled) << self.square_shift


FUNCTIONS = {
    "ex2": Interpolation(64, 17, 13, 0, 0, 0x77E2, 15, False),
    "rcp": Interpolation(128, 16, 13, 0, 1, 0x47E7, 15, True),
    "rsqrt": Interpolation(128, 17, 14, 2, 0, 0x7FFF, 16, True, exact_one=True),
    "sqrt": Interpolation(128, 17, 15, 1, 0, 0x7FFF, 17, False, negative_c2=True, doubled_c1=True),
    "lg2": Interpolation(64, 17, 12, 1, 0, 0x3345, 2, False, negative_c2=True, exact_one=True),
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


def measured_lg2_words(capture: Path) -> np.ndarray:
    """lg2.approx.ftz words of every x in [1, 2), then of every x in [0.5, 1), little-endian uint32.

    The capture has the differences d from a prediction as four byte planes of 2*|d|, less one if d < 0. Predicted are
    the correctly rounded word for m in [1, 2), and for m/2 the measured value at m less one, rounded.
    """

    def add(predicted: np.ndarray, planes: np.ndarray) -> np.ndarray:
        folded = np.ascontiguousarray(planes.T).view("<u4")[:, 0]
        return predicted.view(np.uint32) + ((folded >> np.uint32(1)) ^ -(folded & np.uint32(1)))

    with np.load(capture) as planes:
        first = add(np.log2(1.0 + np.arange(MANTISSAS) / MANTISSAS).astype(np.float32), planes["lg2_0"])
        second = add((first.view(np.float32).astype(np.float64) - 1).astype(np.float32), planes["lg2_-1"])
    return np.concatenate([first, second]).astype("<u4")


def measured_words() -> dict[str, np.ndarray]:
    """The measured words, little-endian uint32: [2**23] for ex2 and rcp, [2 * 2**23] for the others.

    The two parts are x in [1, 2) and [2, 4) for the roots, [1, 2) and [0.5, 1) for lg2.
    """
    mantissa = 1.0 + np.arange(MANTISSAS) / MANTISSAS
    exact = {
        "ex2": np.exp2(mantissa),
        "rcp": 1.0 / mantissa,
        "rsqrt_1_2": 1.0 / np.sqrt(mantissa),
        "rsqrt_2_4": 1.0 / np.sqrt(2.0 * mantissa),
        "sqrt_1_2": np.sqrt(mantissa),
        "sqrt_2_4": np.sqrt(2.0 * mantissa),
    }
    words: dict[str, np.ndarray] = {}
    for capture in CAPTURES:
        with np.load(capture) as delta:
            words |= {k: (correctly_rounded(exact[k]).astype(np.int64) + delta[k]).astype("<u4") for k in delta.files}
    halves = {root: np.concatenate([words[f"{root}_1_2"], words[f"{root}_2_4"]]) for root in ("rsqrt", "sqrt")}
    return {"ex2": words["ex2"], "rcp": words["rcp"], **halves, "lg2": measured_lg2_words(LG2_CAPTURE)}


def bounds(name: str, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value of (C0 << a) + C1*x + C2*(sq(x) << s) that give the words, int64 [rows, x]."""
    spec = FUNCTIONS[name]
    if name == "lg2":
        low, high = lg2_bounds(words)
    else:
        exponent = {"ex2": 128, "rcp": 126, "rsqrt": 126, "sqrt": 127}[name]  # of M = 2**23
        low = high = words.astype(np.int64) - (exponent << 23) + (1 << 23)
    low, high = (low << spec.shift) - spec.bias, ((high + 1) << spec.shift) - 1 - spec.bias
    return low.reshape(spec.rows, -1), high.reshape(spec.rows, -1)


def lg2_bounds(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest M of each mantissa, int64 [2**23], from the words of x in [1, 2) and in [0.5, 1).

    In [1, 2) the word is M, in [0.5, 1) it is -(2**36 - 1 - M) (a one's complement), cut to 24 bits.
    """
    magnitude = words & np.uint32(0x7FFFFFFF)
    unit = np.maximum((magnitude >> 23).astype(np.int64) - 127 + 36 - 23, 0)  # log2 of the word's last place, in M
    low = (magnitude.view(np.float32).astype(np.float64) * 2.0**36).astype(np.int64)
    high = low + (1 << unit) - 1
    (low, low_half), (high, high_half) = np.split(low, 2), np.split(high, 2)
    ones = (1 << 36) - 1
    return np.maximum(low, ones - high_half), np.minimum(high, ones - low_half)


def ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def least_triple(
    x: np.ndarray, square: np.ndarray, low: np.ndarray, high: np.ndarray, c0_shift: int, c2s: np.ndarray
) -> tuple[int, int, int] | None:
    """The least (C2, C1, C0) with low <= (C0 << a) + C1*x + C2*square <= high at the given points, or None.

    c2s: the candidates for C2, ascending. For each, C1 is bounded by the slopes between all pairs of points.
    """
    i, j = np.triu_indices(len(x), 1)  # x ascending, so x[j] > x[i]
    for chunk in np.array_split(c2s, ceil_div(len(c2s), 64)):
        lows, highs = (bound - chunk[:, None] * square for bound in (low, high))
        first = ceil_div(lows[:, j] - highs[:, i], x[j] - x[i]).max(axis=1)
        last = ((highs[:, j] - lows[:, i]) // (x[j] - x[i])).min(axis=1)
        for c2, bottom, top, c1_first, c1_last in zip(chunk, lows, highs, first, last, strict=True):
            for c1 in range(c1_first, c1_last + 1):
                c0 = ceil_div((bottom - c1 * x).max(), 1 << c0_shift)
                if c0 << c0_shift <= (top - c1 * x).min():
                    return int(c0), c1, int(c2)
    return None


def recover_row(
    x: np.ndarray, square: np.ndarray, low: np.ndarray, high: np.ndarray, spec: Interpolation
) -> tuple[int, int, int]:
    """(C0, C1, C2) that keeps the bounds at every x without exception. Raises ArithmeticError if none does."""
    points = set(np.linspace(0, len(x) - 1, 9).astype(int).tolist())
    c2s = np.arange(1 << 10) - (1023 if spec.negative_c2 else 0)
    while True:
        at = np.array(sorted(points))
        triple = least_triple(x[at], square[at], low[at], high[at], spec.c0_shift, c2s)
        if triple is None:
            raise ArithmeticError("no coefficients give the measured words")
        c0, c1, c2 = triple
        made = (c0 << spec.c0_shift) + c1 * x + c2 * square
        if (made >= low).all() and (made <= high).all():
            return triple
        points |= {int((made - low).argmin()), int((made - high).argmax())}
        c2s = c2s[c2s >= c2]


def recover(name: str, words: np.ndarray) -> np.ndarray:
    """The table of one function, int64 [rows, 3]: C0, C1, C2. Raises ArithmeticError unless it gives every word."""
    spec = FUNCTIONS[name]
    x, square = np.arange(1 << spec.low_bits), spec.squares()
    table = np.empty((spec.rows, 3), np.int64)
    for row, (low, high) in enumerate(zip(*bounds(name, words), strict=True)):
        kept = slice(1 if spec.exact_one and row == 0 else 0, None)
        table[row] = recover_row(x[kept], square[kept], low[kept], high[kept], spec)
    c0, c1, c2 = table.T
    c1, c2 = -c1 if spec.negative_c1 else c1.copy(), -c2 if spec.negative_c2 else c2
    if spec.doubled_c1:
        if (c1[spec.rows // 2 :] & 1).any():
            raise ArithmeticError(f"{name}: C1 is odd")
        c1[spec.rows // 2 :] >>= 1
    if any((c >> bits).any() for c, bits in ((c0, 26), (c1, 16), (c2, 10))):
        raise ArithmeticError(f"{name}: a coefficient does not fit in 26, 16 and 10 bits")
    return table


def module_text(tables: dict[str, np.ndarray], words: dict[str, np.ndarray]) -> str:
    """The source of sim/mufu_tables.py."""
    lines = [
        '"""MUFU coefficient tables; written by tools/recover_mufu.py, do not edit.',
        "",
        "Sources (H200, every mantissa), each with its sha256:",
        *(f"{path.relative_to(ROOT)}\n    {sha256(path.read_bytes())}" for path in (*CAPTURES, LG2_CAPTURE)),
        "A row is (C0, C1, C2); of the rows that give the same words, the least in (C2, C1, C0) order.",
        "WORDS_SHA256: of the measured words, little-endian uint32, all mantissas (roots: x in [1, 2), then [2, 4);",
        "lg2: [1, 2), then [0.5, 1)).",
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
    words = measured_words()
    for name in FUNCTIONS:
        print(f"{name:5}  {len(words[name])} words  sha256 {sha256(words[name].tobytes())}", flush=True)
    text = module_text({name: recover(name, words[name]) for name in FUNCTIONS}, words)
    if check:
        same = TABLES.exists() and TABLES.read_text() == text
        print(f"{TABLES.relative_to(ROOT)} {'agrees' if same else 'DIFFERS'}")
        return 0 if same else 1
    TABLES.write_text(text)
    print(f"wrote {TABLES.relative_to(ROOT)}, 0 words differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
