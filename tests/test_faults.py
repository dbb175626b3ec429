"""Public faults as kernels of ours: a GPU's words, which elements are NaN, what cannot be known, clean controls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_captures_h200 import assert_as_captured

from sim import Schedule, Undetermined, flash_attention, run, simulate
from sim.captures import load_capture
from sim.formats import values

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")

from faults import CASES, on_gpu

H200 = load_capture(Path(__file__).parent / "captures" / "h200" / "faults.npz")
CELLS = {(cell["name"], cell["fast_math"]): cell for cell in H200.manifest["cells"]}
MODES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "precise"])


def simulated(name: str, fast: bool) -> object:
    kernel = CASES[name].kernel
    return simulate(kernel.prim_func(), *kernel.inputs(), pass_configs={"tl.enable_fast_math": fast})


@pytest.mark.parametrize("name", on_gpu())
def test_a_fault_and_its_controls_give_the_words_of_the_gpu_and_nan_only_where_said(name: str) -> None:
    case = CASES[name]
    for fast in (True, False):
        result = simulated(name, fast)
        assert_as_captured(H200, CELLS[name, fast], case.kernel, result)
        nan = np.isnan(values(*case.kernel.outputs(result)[-1]))
        expected = np.zeros(nan.shape, bool)
        if case.nan is not None:
            expected[case.nan] = True
        np.testing.assert_array_equal(nan, expected)


def test_every_fault_has_a_wrong_case_and_a_clean_one() -> None:
    for fault in ("d1", "d2", "d3", "d4", "d5", "d6", "d7", "masked_inf"):
        cases = [case for name, case in CASES.items() if name.startswith(f"{fault}_")]
        wrong = [case for case in cases if case.nan is not None or case.undetermined]
        assert wrong and (len(wrong) < len(cases) or fault == "d5"), fault


def _words(name: str, fast: bool = False, output: int = -1) -> np.ndarray:
    label = CELLS[name, fast]["words"][output]
    return H200.arrays[label][0]


def test_d1_needs_no_more_than_four_rows_and_blocks_of_4_by_2() -> None:
    """TileLang compiles no such block; the smallest schedule that shows the fault is the simulator's alone."""
    q, k, v = (np.random.default_rng(n).standard_normal((1, 4, 1, 16)).astype(np.float16) for n in range(3))
    for block_N, rows in ((2, [True, True, False, False]), (4, [False] * 4)):
        schedule = Schedule.variant("block_max", block_M=4, block_N=block_N, causal=True)
        assert np.isnan(flash_attention(q, k, v, schedule)).all(axis=(0, 2, 3)).tolist() == rows


def test_d2_below_the_threshold_is_right_without_fast_math_and_zero_with_it() -> None:
    """A row sum above 2^126 is finite, but its approximate reciprocal is not a normal number."""
    for name in ("d2_sum_below", "d2_exp2_below"):
        assert (_words(name, fast=False) == 0x3C00).all() and (_words(name, fast=True) == 0).all()


def test_d2_right_and_clean_cases_are_exactly_one() -> None:
    for name in ("d2_kept", "d2_reversed", "d2_one_block", "d2_fall_200"):
        assert (_words(name) == 0x3C00).all(), name


def test_d3_splits_without_keys_have_lse_minus_infinity_and_the_guarded_result_is_that_of_one_split() -> None:
    lse = values(*H200.arrays[CELLS["d3_four_splits", False]["words"][1]])
    assert np.isneginf(lse[:, 1:]).all() and np.isfinite(lse[:, 0]).all()
    np.testing.assert_array_equal(_words("d3_guarded"), _words("d3_one_split"))


@MODES
def test_d4_is_undetermined_and_names_the_fragment_that_nobody_wrote(fast: bool) -> None:
    result = simulated("d4_not_cleared", fast)
    assert result.undetermined[0] is not None and result.undetermined[0].all()
    reported = [(event.kind, event.buffer, event.operator) for event in result.events]
    assert ("uninitialised", CASES["d4_not_cleared"].undetermined, "gemm") in reported
    with pytest.raises(Undetermined, match="uninitialised of acc"):
        run(CASES["d4_not_cleared"].kernel.prim_func(), *CASES["d4_not_cleared"].kernel.inputs())


def test_d4_cleared_in_either_way_is_sixteen() -> None:
    for name in ("d4_cleared_before", "d4_cleared_by_gemm"):
        assert (values(*H200.arrays[CELLS[name, True]["words"][0]]) == 16).all()
        assert simulated(name, True).events == []


@MODES
def test_d5_nan_stays_and_an_infinity_takes_its_row_down(fast: bool) -> None:
    """Words of e4m3: 1 and -2 over 4/448 are 112 and -224, 4 is 448; the other row keeps nothing but a NaN."""
    scale, y = _words("d5_all", fast, 0), _words("d5_all", fast)
    assert y[0, :4].tolist() == [0x6E, 0xF6, 0x7F, 0x7E] and scale[1] == 0x7F800000
    assert y[1, :4].tolist() == [0x00, 0x80, 0x7F, 0x00]
    assert not (y[:2, 4:] != 0).any()
    assert _words("d5_finite", fast)[1, :4].tolist() == [0x6E, 0xF6, 0x7E, 0x7E]


@MODES
def test_d7_is_undetermined_and_names_the_copy_that_the_computing_warps_do_not_see(fast: bool) -> None:
    result = simulated("d7_producer_alone", fast)
    assert result.undetermined[0] is not None and result.undetermined[0].all()
    (event,) = result.events
    assert (event.kind, event.buffer, event.operator) == ("producer_only", "scale", "copy")
    assert event.where.startswith("d7.py:")
    for name in ("d7_without_stages", "d7_through_shared"):
        assert simulated(name, fast).events == []


def test_d7_the_code_that_tilelang_makes_fills_one_scale_and_reads_another() -> None:
    """What TileLang 0.1.15 compiles: the producer's branch fills scale_producer_ws, the other one declares its own."""
    import tilelang

    source = {}
    for name in ("d7_producer_alone", "d7_through_shared"):
        pf = CASES[name].kernel.make()
        try:
            compiled = tilelang.compile(pf, out_idx=[-1], target={"kind": "cuda", "arch": "sm_90a"})
        except Exception as error:
            pytest.skip(f"TileLang does not compile here: {str(error).splitlines()[0]}")
        source[name] = compiled.get_kernel_source()
    producer, consumer = source["d7_producer_alone"].split("} else {", 1)
    assert "scale_producer_ws + " in producer and "scale_producer_ws" not in consumer
    declared, used = consumer.split("float scale[4];", 1)
    assert "(scale + " in used and not any(f"(scale{at} = " in used for at in ("", " + 0)", " + (i"))
    assert "producer_ws" not in source["d7_through_shared"]
