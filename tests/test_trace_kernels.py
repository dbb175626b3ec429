"""Causes of the public faults, and of every bad output of our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tracing import bad, reached

from sim import simulate
from sim.formats import values
from sim.trace import Trace, follow

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")

from faults import CASES
from kernels import KERNELS

FIRST = {  # of each fault: the first cause that reaches the last output, its buffer, thread blocks and the rows of it
    "d1_lost": ("minus_inf_operand", "scores_scale", {0}, range(64)),
    "d2_replaced": ("overflow_exp2", "scores_scale", {0}, range(64)),
    "d2_exp2_above": ("overflow_exp2", "scores_scale", {0}, range(64)),
    "d2_sum_above": ("overflow_mul", "logsum", {0}, range(64)),
    "d3_four_splits": ("zero_over_zero", "acc_o", {2}, range(16)),
    "d4_not_cleared": ("uninitialised", "acc", {None}, range(64)),
    "d5_all": ("input", "X", {None}, range(1, 2)),
    "d5_finite": ("input", "X", {None}, range(1)),
    "d6_product": ("input", "V", {None}, range(72)),
    "masked_inf_product": ("input", "K", {None}, range(64)),
}
CLEAN = ("d1_kept", "d1_square", "d1_hidden_from_lowest", "d2_kept", "d2_reversed", "d2_one_block", "d2_fall_200",
         "d3_one_split", "d3_four_blocks", "d4_cleared_before", "d4_cleared_by_gemm", "d6_finite",
         "masked_inf_select")  # fmt: skip

OWN_INFINITY = ("transposed_running_max",)  # the -inf that a running maximum starts from is left where all are NaN


def traced(kernel: Any, special: bool = False, fast: bool = True) -> Trace:
    pf = kernel.prim_func()
    configs = {"tl.enable_fast_math": fast}
    return follow(lambda machine: simulate(pf, *kernel.inputs(special), pass_configs=configs, machine=machine))


@pytest.mark.parametrize("name", FIRST)
def test_the_first_cause_of_a_public_fault(name: str) -> None:
    trace = traced(CASES[name].kernel)
    output = list(trace.outputs)[-1]
    first = next(cause for cause in trace.causes if output in cause.reached)
    kind, buffer, blocks, rows = FIRST[name]
    assert (first.kind, first.place.buffer) == (kind, buffer) and first.block in blocks
    mask = first.reached[output].reshape(-1, first.reached[output].shape[-1])
    assert np.flatnonzero(mask.any(axis=1)).tolist() == list(rows)
    if kind not in ("input",):
        assert first.place.file == f"{name[:2]}.py" and first.place.line > 0


@pytest.mark.parametrize("name", CLEAN)
def test_a_control_has_no_cause(name: str) -> None:
    assert traced(CASES[name].kernel).causes == []


def test_an_infinity_that_a_select_takes_away_is_told_apart() -> None:
    (cause,) = traced(CASES["masked_inf_select"].kernel).swallowed
    assert (cause.kind, cause.place.buffer) == ("input", "K") and cause.elements.tolist() == [[100, 7]]


@pytest.mark.parametrize("name", KERNELS)
def test_bad_outputs_of_our_kernels_have_causes_good_ones_have_none_and_no_word_changes(name: str) -> None:
    kernel = KERNELS[name]
    for fast in (True, False):
        trace = traced(kernel, special=True, fast=fast)
        plain = simulate(kernel.prim_func(), *kernel.inputs(special=True), pass_configs={"tl.enable_fast_math": fast})
        for output, mask in bad(trace).items():
            words, fmt = kernel.outputs(plain)[plain.names.index(output)]
            np.testing.assert_array_equal(trace.outputs[output][0], words)
            unknown = plain.undetermined[plain.names.index(output)]
            known = ~unknown if unknown is not None else np.ones(mask.shape, bool)
            if name in OWN_INFINITY:
                known &= ~fmt.is_inf(words)
            np.testing.assert_array_equal((reached(trace, output) & known), mask & known)
            assert np.isfinite(values(words, fmt)[~mask]).all()
