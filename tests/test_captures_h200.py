"""The simulator against words that a real H200 gave: whole kernels and tensor-core products, replayed without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crosscheck.diff import assert_same_words
from crosscheck.inputs import DTYPES, Shape, make
from sim import Schedule, flash_attention, mma
from sim.arch import arch
from sim.captures import load_capture
from sim.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, to_words

H200 = Path(__file__).parent / "captures" / "h200"
FLASH = load_capture(H200 / "flash.npz")
OPERANDS = {"float16": FP16, "bfloat16": BF16, "float32": TF32, "float8_e4m3": E4M3, "float8_e5m2": E5M2}


@pytest.mark.parametrize("cell", FLASH.manifest["cells"], ids=lambda cell: cell["name"])
def test_the_flash_loop_gives_the_words_of_the_gpu(cell: dict) -> None:
    fmt = DTYPES[cell["dtype"]]
    q, k, v = ((w, fmt) for w in make(cell["inputs"], Shape(**cell["shape"]), fmt, cell["seed"]))
    out = to_words(flash_attention(q, k, v, Schedule(**cell["schedule"])))
    assert_same_words(out, FLASH.arrays[cell["name"]], name=cell["name"])


MMA = load_capture(H200 / "mma_words.npz").arrays
PRODUCTS = sorted(name.removesuffix("__d") for name in MMA if name.endswith("__d"))


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_tensor_core_product_gives_the_words_of_the_gpu(name: str) -> None:
    """KIND__DTYPE__K__INPUTS: d = c + a @ b.T by wgmma or mma.sync; float32 operands are tf32."""
    kind, dtype, _, _ = name.split("__")
    unit = arch("sm_90").dot(OPERANDS[dtype], FP16 if kind == "mmaf16acc" else FP32)
    a, b, c, d = (MMA[f"{name}__{part}"][0] for part in "abcd")
    made = mma.dot(a.view(unit.operand.word), b.view(unit.operand.word), c, unit)
    assert_same_words((made, unit.accumulator), (d, unit.accumulator), name=name)


def test_the_kept_cells_cover_every_axis() -> None:
    """What the README says was measured is what is replayed."""
    cells = FLASH.manifest["cells"]
    schedules = [cell["schedule"] for cell in cells]
    assert {(s["causal"], s["fast_math"]) for s in schedules} == {(a, b) for a in (True, False) for b in (True, False)}
    assert {cell["dtype"] for cell in cells} == set(DTYPES) and {cell["variant"] for cell in cells} >= {"block_max"}
    assert {cell["inputs"] for cell in cells} >= {"normal", "large", "tiny", "special"}
    shapes = [cell["shape"] for cell in cells]
    assert any(s["heads"] > s["heads_kv"] for s in shapes) and any(s["seq_q"] != s["seq_kv"] for s in shapes)
    assert any(np.isnan(FLASH.arrays[c["name"]][0].view(np.float16)).any() for c in cells if c["dtype"] == "float16")
