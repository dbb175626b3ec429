"""The simulator against words that a real H200 gave: whole kernels and tensor-core products, replayed without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crosscheck.diff import assert_same_words
from crosscheck.inputs import DTYPES, Shape, make
from sim import Schedule, flash_attention, mma, simulate
from sim.arch import arch
from sim.captures import Capture, load_capture
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


OURS = load_capture(H200 / "kernels.npz")


def kept(capture: Capture, label: str) -> object:
    """The words of one output: with their format, or plain integers."""
    return capture.integers[label] if label in capture.integers else capture.arrays[label]


def assert_as_captured(capture: Capture, cell: dict, kernel: object, result: object) -> None:
    """Every output of a simulation has the words of its capture, and none of them is in doubt."""
    assert all(mask is None for mask in result.undetermined)
    for label, made in zip(cell["words"], kernel.outputs(result), strict=True):
        if isinstance(made, np.ndarray):
            np.testing.assert_array_equal(made, kept(capture, label), err_msg=label)
        else:
            assert_same_words(made, kept(capture, label), name=label)


@pytest.mark.parametrize("name", sorted({cell["name"] for cell in OURS.manifest["cells"]}))
def test_our_kernels_give_the_words_of_the_gpu_fast_and_precise(name: str) -> None:
    pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    import kernels

    kernel = kernels.KERNELS[name]
    for cell in (c for c in OURS.manifest["cells"] if c["name"] == name):
        fast_math = cell["fast_math"]
        result = simulate(kernel.prim_func(), *kernel.inputs(), pass_configs={"tl.enable_fast_math": fast_math})
        assert_as_captured(OURS, cell, kernel, result)


def test_the_capture_has_every_kernel_fast_and_precise() -> None:
    pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    import kernels

    both = {(name, fast) for name in kernels.KERNELS for fast in (True, False)}
    assert {(c["name"], c["fast_math"]) for c in OURS.manifest["cells"]} == both


def test_two_launches_in_one_kernel_are_the_two_alone() -> None:
    """Split decoding and its combination: what the first stores to global memory, the second reads."""
    pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    from kernels import KERNELS

    split = simulate(KERNELS["decode_split"].prim_func(), *KERNELS["decode_split"].inputs())
    combined = simulate(KERNELS["decode_combine"].prim_func(), *split.outputs)
    assert_same_words(combined.outputs[0], OURS.arrays["decode_precise_2"])


@pytest.mark.parametrize("blocks", [2, 3])
def test_more_than_two_additions_to_one_place_are_undetermined(blocks: int) -> None:
    """dQ by atomic additions: a place that three key blocks add to depends on their order, two do not."""
    pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    from kernels import backward

    kernel = backward.additions(blocks)
    unknown = simulate(kernel.prim_func(), *kernel.inputs()).undetermined[0]
    assert (unknown is None) if blocks == 2 else (unknown[128:].all() and not unknown[:128].any())
