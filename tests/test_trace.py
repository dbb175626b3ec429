"""Where bad values come from: every one has a cause, and without its cause it is good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracing import bad, follow_with, reached, without

from sim import VARIANTS, Schedule, flash_attention, simulate
from sim.arch import arch
from sim.captures import load_capture
from sim.formats import E4M3, FP16, FP32, Format, values
from sim.tile import Block
from sim.trace import Cause, Trace, follow
from sim.tracer import Tracer

H200 = Path(__file__).parent / "captures" / "h200"
Run = Callable[[Callable[..., Any]], Any]


def kinds(causes: list[Cause]) -> set[tuple[str, str]]:
    return {(cause.kind, cause.place.buffer) for cause in causes}


def rows(cause: Cause) -> list[int]:
    """The query rows that a cause of flash attention reaches."""
    return np.flatnonzero(cause.reached["Output"].any(axis=(0, 2, 3))).tolist()


# the seed

CASES = {
    "causal256_128x64": {"block_M": 128, "block_N": 64, "causal": True, "num_stages": 2},
    "const0.05": {"num_stages": 2},
    "const3": {"num_stages": 2},
}


@pytest.fixture(scope="module")
def seed() -> Callable[[str, str], Trace]:
    capture = load_capture(H200 / "seed.npz")

    def trace(case: str, variant: str) -> Trace:
        q, k, v = (capture.arrays[f"{case}__{name}"] for name in "qkv")
        schedule = Schedule.variant(variant, **CASES[case])
        found = follow(lambda machine: flash_attention(q, k, v, schedule, machine=machine))
        words, _ = found.outputs["Output"]
        np.testing.assert_array_equal(words, capture.arrays[f"{case}__{variant}__o"][0])
        return found

    return trace


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES)
def test_every_nan_of_the_seed_has_a_cause_and_nothing_else_has(seed: Any, case: str, variant: str) -> None:
    trace = seed(case, variant)
    np.testing.assert_array_equal(reached(trace, "Output"), bad(trace)["Output"])


@pytest.mark.parametrize("variant", ["block_max", "clear_true_block_max"])
def test_the_wholly_masked_block_of_the_seed_makes_the_factor_infinite_and_the_scores_nan(
    seed: Any, variant: str
) -> None:
    trace = seed("causal256_128x64", variant)
    factor, scores = ([c for c in trace.causes if c.place.buffer == name] for name in ("scores_scale", "acc_s"))
    assert len(trace.causes) == 4 and kinds(trace.causes) == {
        ("minus_inf_operand", "scores_scale"),
        ("inf_minus_inf", "acc_s"),
    }
    for block, first in ((0, 0), (1, 128)):
        for found in (factor, scores):
            (cause,) = (c for c in found if c.block == block)
            assert cause.place.iteration == (2 * block + 1,)  # the last key block
            assert rows(cause) == list(range(first, first + 64))
            assert cause.function == "mul_sub" and cause.operands[2] == 0xFF800000  # the maximum is -inf
        assert {c.count for c in factor} == {64} and {c.count for c in scores} == {64 * 64}
    assert "T.exp2(acc_s[i, j] * scale" in scores[0].place.text
    assert [(p.buffer, what) for p, what in factor[0].carried][:3] == [
        ("scores_scale", "+inf"), ("logsum", "NaN"), ("acc_o", "+inf")]  # fmt: skip


def test_a_fall_of_the_maximum_overflows_the_factor_and_then_the_sum_and_the_division(seed: Any) -> None:
    trace = seed("const3", "block_max")
    assert kinds(trace.causes) == {("overflow_exp2", "scores_scale")}
    assert [(p.buffer, what) for p, what in trace.causes[0].carried] == [
        ("scores_scale", "+inf"), ("logsum", "+inf"), ("acc_o", "+inf"), ("acc_o", "+inf"), ("acc_o", "NaN"),
        ("O_shared", "NaN"), ("Output", "NaN")]  # fmt: skip


def test_weights_that_all_flush_to_zero_are_damage_and_no_cause(seed: Any) -> None:
    trace = seed("const3", "running_max")
    assert not trace.causes and {c.kind for c in trace.damage} == {"weights_flushed"}


# provenance itself


def _flash_faults() -> Iterator[tuple[str, Run]]:
    """Schedules, masks and inputs that overflow, of the loop written by hand."""
    for n in range(60):
        rng = np.random.default_rng(n)
        rows, dim = int(rng.choice([32, 48, 80])), 16
        q, k, v = ((rng.standard_normal((1, rows, 1, dim))).astype(np.float16) for _ in range(3))
        fault = ("mask", "fall", "input", "overflow")[n % 4]
        block_M, block_N = (32, 16) if fault == "mask" else (int(rng.choice([16, 32])), 16)
        variant = "block_max" if fault in ("mask", "fall") else str(rng.choice(list(VARIANTS)))
        if fault == "fall":
            k = np.where(np.arange(rows)[None, :, None, None] < 16, 30, -30).astype(np.float16) * np.ones_like(k)
            q = np.full_like(q, 6)
        elif fault == "input":
            array = (q, k, v)[n // 4 % 3]
            array[0, rng.integers(rows), 0, rng.integers(dim)] = rng.choice([np.inf, -np.inf, np.nan])
        elif fault == "overflow":
            v[0, rng.integers(rows)] = 65504
            q[0, rng.integers(rows)] = k[0, rng.integers(rows)] = 60000
        schedule = Schedule.variant(variant, block_M=block_M, block_N=block_N, causal=fault != "fall",
                                    fast_math=bool(n % 2))  # fmt: skip

        def run(machine: Any, q: Any = q, k: Any = k, v: Any = v, schedule: Schedule = schedule) -> Any:
            return flash_attention(q, k, v, schedule, machine=machine)

        yield f"flash {fault} {n}", run


FAMILIES = ("flash_grouped", "flash_sink", "decode_split", "decode_combine", "linear_chunked", "softmax", "rms_norm",
            "cast_fp8_token", "gemm_float16", "gemm_e4m3", "reduce_sum_bfloat16", "backward_query_blocks")  # fmt: skip


def _kernel_faults() -> Iterator[tuple[str, Run]]:
    """One word of an input of a kernel becomes infinite, NaN or the greatest number."""
    from kernels import KERNELS

    for name in FAMILIES:
        kernel = KERNELS[name]
        pf = kernel.prim_func()
        for n in range(15):
            rng, given = np.random.default_rng(n), kernel.inputs()
            floats = [i for i, x in enumerate(given) if isinstance(x, tuple)]
            which = floats[n % len(floats)]
            words, fmt = given[which][0].copy(), given[which][1]
            word = [fmt.inf if fmt.infinities else fmt.nan, fmt.nan, fmt.max_finite][n // 2 % 3] | fmt.sign * (n % 2)
            places = rng.integers(words.size, size=1)
            words.reshape(-1)[places] = word
            given[which] = words, fmt

            def run(machine: Any, pf: Any = pf, given: Any = given, fast: bool = bool(n % 2)) -> Any:
                arrays = [(x[0].copy(), x[1]) if isinstance(x, tuple) else x for x in given]
                return simulate(pf, *arrays, machine=machine, pass_configs={"tl.enable_fast_math": fast})

            yield f"{name} {n}", run


def _rounds(run: Run, trace: Trace, output: str, at: tuple[int, ...]) -> int:
    """Take the causes of one bad output away, and only those, until it is good: how often that was needed.

    More than once only where a bad value hid another fault of the same input.
    """
    gone: list[Cause] = []
    for count in range(1, 5):
        causes = trace.of(output, at)
        assert causes, f"{output}{list(at)} is bad for no reason"
        before = {(c.call, c.block) for c in gone}
        assert not before & {(c.call, c.block) for c in causes}, "what was taken away is still a cause"
        gone += causes
        trace = follow_with(without(gone), run)
        words, fmt = trace.outputs[output]
        if np.isfinite(values(words[at], fmt)):
            return count
    raise AssertionError(f"{output}{list(at)} is bad without {kinds(gone)}")


@pytest.mark.parametrize("faults", [_flash_faults, _kernel_faults])
def test_without_its_causes_and_nothing_else_an_output_is_finite(faults: Any) -> None:
    if faults is _kernel_faults:
        pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
    rounds = []
    for name, run in faults():
        trace, rng = follow(run), np.random.default_rng(0)
        for output, mask in bad(trace).items():
            np.testing.assert_array_equal(reached(trace, output), mask, err_msg=name)
            places = np.argwhere(mask)
            rounds += [_rounds(run, trace, output, tuple(at)) for at in places[rng.permutation(len(places))[:2]]]
    assert len(rounds) >= 100 and rounds.count(1) > 0.95 * len(rounds)


# damage


def test_a_finite_mask_gives_masked_keys_a_weight_where_a_row_has_no_other() -> None:
    """A mask of -2^20: the first four rows see no key at all."""

    def run(machine: Any, mask: float = -(2.0**20)) -> Any:
        T = Block(machine(arch("sm_90"), True), 1, 128)
        scores = T.alloc_fragment("scores", (16, 8), FP32)
        scores_max = T.alloc_fragment("scores_max", (16,), FP32)
        i, j = T.Parallel(16, 8)
        scores[i, j] = T.if_then_else(i >= j + 4, 1.0, mask)
        T.reduce_max(scores, scores_max, dim=1)
        i, j = T.Parallel(16, 8)
        scores[i, j] = T.exp2(scores[i, j] * 1.0 - scores_max[i] * 1.0)

    (damage,) = follow(run).damage
    assert damage.kind == "masked_weight" and set(damage.elements[:, 0]) == {0, 1, 2, 3} and damage.count == 32
    assert follow(lambda machine: run(machine, -np.inf)).damage == []


def test_a_weight_that_is_rounded_up_overflows_an_output_of_the_greatest_number() -> None:
    """Two keys share a row; the greater weight is rounded up to float16 and both values are 65504."""
    q, k = np.zeros((1, 16, 1, 16), np.float16), np.zeros((1, 16, 1, 16), np.float16)
    v = np.full((1, 16, 1, 16), 65504, np.float16)
    q[..., 0], k[0, 0, 0, 0] = 1, 2.2
    for n in range(40):
        k[0, 0, 0, 0] = 2 + n / 16
        trace = follow(lambda m: flash_attention(q, k, v, Schedule(block_M=16, block_N=16), machine=m))
        if bad(trace)["Output"].any():
            assert {c.kind for c in trace.causes} == {"overflow_convert"}
            assert {c.kind for c in trace.damage} == {"rounded_up"}
            return
    pytest.fail("no output overflows")


def test_a_sum_of_16_bits_that_stands_still_and_a_cast_that_saturates() -> None:
    machine = Tracer(arch("sm_90"), False)
    machine.started(Block(machine, 1, 128))

    def one(x: float, fmt: Format) -> np.ndarray:
        return machine.constant(x, fmt).reshape(1, 1)

    machine.add(one(2048, FP16), one(1, FP16), FP16)
    machine.add(one(2048, FP16), one(2, FP16), FP16)
    machine.convert(one(500, FP32), FP32, E4M3)
    machine.convert(one(448, FP32), FP32, E4M3)
    assert [(d.kind, d.function) for d in machine.damage] == [
        ("saturated_sum", "add"),
        ("saturated_convert", "convert"),
    ]
