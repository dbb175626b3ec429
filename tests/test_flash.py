"""The flash-attention loop: against a slow model of it, and what its arguments mean."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import spec_flash

from sim import Schedule, Undetermined, flash_attention
from sim.arch import arch
from sim.flash import VARIANTS
from sim.formats import BF16, FP16, FP32, from_words, to_words
from sim.machine import Exact, Recorder

RNG = np.random.default_rng(7)


def inputs(batch=1, seq_q=8, seq_kv=None, heads=1, heads_kv=1, dim=16, size=1.0, fmt=FP16):  # type: ignore[no-untyped-def]
    shapes = [(batch, seq_q, heads, dim)] + [(batch, seq_kv or seq_q, heads_kv, dim)] * 2
    words = [(RNG.standard_normal(s) * size).astype(np.float32).view(np.uint32) for s in shapes]
    from sim import arith

    return [from_words(arith.convert(w, FP32, fmt), fmt) for w in words]


def words(array: object) -> np.ndarray:
    return to_words(array)[0]


CASES = {
    "full": (dict(), Schedule(block_M=4, block_N=4)),
    "full, ragged": (dict(seq_q=7, seq_kv=11), Schedule(block_M=4, block_N=4)),
    "causal, block_M > block_N": (dict(), Schedule(block_M=4, block_N=2, causal=True)),
    "causal, aligned at the end": (dict(seq_q=5, seq_kv=9), Schedule(block_M=2, block_N=4, causal=True)),
    "lost maximum, causal": (dict(), Schedule.variant("block_max", block_M=4, block_N=2, causal=True)),
    "cleared maximum, causal": (dict(), Schedule.variant("clear_true_block_max", block_M=8, block_N=2, causal=True)),
    "accumulated maximum": (dict(size=30.0), Schedule.variant("accumulate_max", block_M=4, block_N=8)),
    "precise": (dict(size=6.0), Schedule(block_M=4, block_N=4, fast_math=False)),
    "precise, lost maximum, large": (
        dict(size=60.0),
        Schedule.variant("block_max", block_M=4, block_N=4, fast_math=False),
    ),
    "large": (dict(size=60.0), Schedule(block_M=4, block_N=4)),
    "groups and batches": (dict(batch=2, heads=4, heads_kv=2, seq_q=4), Schedule(block_M=4, block_N=4)),
    "bfloat16": (dict(fmt=BF16, size=3.0), Schedule(block_M=4, block_N=4, causal=True)),
    "block sizes of one": (dict(seq_q=3), Schedule(block_M=1, block_N=1, causal=True)),
    "tall and wide blocks": (dict(seq_q=12, dim=24), Schedule(block_M=16, block_N=20)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_gives_the_words_of_the_slow_model(case: str) -> None:
    shape, schedule = CASES[case]
    q, k, v = inputs(**shape)
    expected = spec_flash.flash_attention(words(q), words(k), words(v), schedule, arch("sm_90").dot(to_words(q)[1]))
    np.testing.assert_array_equal(words(flash_attention(q, k, v, schedule)), expected)


def test_inf_and_nan_in_the_inputs_give_the_words_of_the_slow_model() -> None:
    q, k, v = inputs(seq_q=12, size=2.0)
    q[0, 1, 0, 2], k[0, 3, 0, 0], v[0, 6, 0, 5], v[0, 9, 0, 6] = np.inf, np.nan, -np.inf, np.nan
    for causal in (False, True):
        schedule = Schedule(block_M=4, block_N=4, causal=causal)
        expected = spec_flash.flash_attention(words(q), words(k), words(v), schedule, arch("sm_90").dot(FP16))
        np.testing.assert_array_equal(words(flash_attention(q, k, v, schedule)), expected)


def test_the_seed_in_its_smallest_form() -> None:
    """Causal, seq 4, 4x2 blocks: the last key block hides rows 0 and 1 wholly; without the max line they are NaN."""
    q, k, v = inputs(seq_q=4)
    lost = flash_attention(q, k, v, Schedule.variant("block_max", block_M=4, block_N=2, causal=True))
    assert np.isnan(lost).all(axis=(0, 2, 3)).tolist() == [True, True, False, False]
    assert not np.isnan(flash_attention(q, k, v, Schedule(block_M=4, block_N=2, causal=True))).any()


def test_a_sink_with_values_of_zero_keeps_the_sign_that_the_first_block_left() -> None:
    """acc_o is -2^-90 when the second block adds products that are zero of large values: every output is -0.

    A zero product once took part in the alignment and wiped the accumulator out.
    """
    q, k, v = (np.zeros((1, s, 1, 128), np.float16) for s in (64, 128, 128))
    q[..., 0], k[0, 127, 0, 0] = 1.0, 90 / (128**-0.5 * 1.44269504)
    v[0, :64], v[0, 64:127] = -1.0, 30000.0
    assert (words(flash_attention(q, k, v, Schedule())) == 0x8000).all()


def test_kinds_of_integers_and_byte_orders() -> None:
    q, k, v = inputs()
    schedule = Schedule(block_M=np.int64(4), block_N=4)  # type: ignore[arg-type]
    swapped = flash_attention(q.astype(">f2"), k, v, schedule)
    np.testing.assert_array_equal(words(swapped), words(flash_attention(q, k, v, Schedule(block_M=4, block_N=4))))


def test_stages_and_threads_do_not_change_a_word() -> None:
    q, k, v = inputs(seq_q=40, dim=32)
    one = flash_attention(q, k, v, Schedule(block_M=16, block_N=16, causal=True))
    other = flash_attention(q, k, v, Schedule(block_M=16, block_N=16, causal=True, num_stages=3, threads=256))
    np.testing.assert_array_equal(words(one), words(other))


@pytest.mark.parametrize("causal", [False, True])
def test_chosen_thread_blocks_give_the_words_of_the_whole_run(causal: bool) -> None:
    q, k, v = inputs(batch=2, heads=4, heads_kv=2, seq_q=10)
    schedule = Schedule(block_M=4, block_N=4, causal=causal)
    whole, some = flash_attention(q, k, v, schedule), flash_attention(q, k, v, schedule, blocks=[(2, 3, 1), (0, 0, 0)])
    simulated = np.zeros(q.shape, bool)
    simulated[1, 8:, 3], simulated[0, :4, 0] = True, True
    np.testing.assert_array_equal(words(some)[simulated], words(whole)[simulated])
    assert (words(some)[~simulated] == 0xFFFF).all()


def test_a_torch_tensor_comes_back_as_one() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = inputs()
    for dtype in (torch.float16, torch.bfloat16):
        tensors = [torch.from_numpy(x).to(dtype) for x in (q, k, v)]
        out = flash_attention(*tensors, Schedule(block_M=4, block_N=4))
        assert isinstance(out, torch.Tensor) and out.dtype is dtype and out.shape == q.shape


def test_the_recorder_hears_every_operator_and_changes_no_word() -> None:
    q, k, v = inputs(seq_q=4)
    schedule = Schedule.variant("block_max", block_M=4, block_N=2, causal=True)
    machines: list[Recorder] = []
    out = flash_attention(q, k, v, schedule, machine=lambda *a: machines.append(Recorder(*a)) or machines[-1])
    np.testing.assert_array_equal(words(out), words(flash_attention(q, k, v, schedule)))
    first = next(e for e in machines[0].events if e.nan)
    assert (first.operator, first.buffer, first.iteration, first.nan) == ("parallel", "acc_s", 1, 4)
    assert "exp2" in first.functions and "mul_sub" in first.functions
    before = next(e for e in machines[0].events if e.buffer == "scores_scale" and e.iteration == 1)
    assert before.infinite == 2  # exp2(finite - -inf) of the two rows that the block hides


def test_memory_that_nobody_wrote_is_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop without the fill of logsum: every output depends on it."""
    from sim.tile import Block

    fill = Block.fill
    monkeypatch.setattr(
        Block, "fill", lambda self, tile, value: None if tile.name == "logsum" else fill(self, tile, value)
    )
    with pytest.raises(Undetermined, match="128 outputs depend on memory that nobody wrote"):
        flash_attention(*inputs(), Schedule(block_M=4, block_N=4))


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


BAD_INPUT = {
    "q must be \\[batch, seq, heads, dim\\]": ((f16(8, 16), f16(1, 8, 1, 16), f16(1, 8, 1, 16)), {}),
    "v must be a NumPy.*not float64": ((f16(1, 8, 1, 16), f16(1, 8, 1, 16), np.zeros((1, 8, 1, 16))), {}),
    "k must be a NumPy.*not list": ((f16(1, 8, 1, 16), [1.0], f16(1, 8, 1, 16)), {}),
    "q must be float16 or bfloat16, not float32": ((np.zeros((1, 8, 1, 16), np.float32),) * 3, {}),
    "the heads of q must be a multiple": ((f16(1, 8, 3, 16), f16(1, 8, 2, 16), f16(1, 8, 2, 16)), {}),
    "v must have the shape of k": ((f16(1, 8, 1, 16), f16(1, 8, 1, 16), f16(1, 9, 1, 16)), {}),
    "k must have the batch and dim of q": ((f16(1, 8, 1, 16), f16(2, 8, 1, 16), f16(2, 8, 1, 16)), {}),
    "seq_kv must be at least seq_q": (
        (f16(1, 8, 1, 16), f16(1, 4, 1, 16), f16(1, 4, 1, 16)),
        {"schedule": Schedule(causal=True)},
    ),
    "without an empty axis": ((f16(1, 0, 1, 16), f16(1, 8, 1, 16), f16(1, 8, 1, 16)), {}),
    "arch must be one of sm_70.*not 'sm_99'": ((f16(1, 8, 1, 16),) * 3, {"arch": "sm_99"}),
    "arch must be one of sm_70.*not \\['sm_90'\\]": ((f16(1, 8, 1, 16),) * 3, {"arch": ["sm_90"]}),
    "blocks must be thread blocks.*not \\(1, 0, 0\\)": ((f16(1, 8, 1, 16),) * 3, {"blocks": [(1, 0, 0)]}),
    "blocks must be thread blocks.*not 3": ((f16(1, 8, 1, 16),) * 3, {"blocks": 3}),
    "blocks must be thread blocks.*not \\(0.5, 0, 0\\)": ((f16(1, 8, 1, 16),) * 3, {"blocks": [(0.5, 0, 0)]}),
    "blocks must be thread blocks.*not 'abc'": ((f16(1, 8, 1, 16),) * 3, {"blocks": ["abc"]}),
    "schedule must be a Schedule.*not 'block_max'": ((f16(1, 8, 1, 16),) * 3, {"schedule": "block_max"}),
    "block_M 1000000 makes a tile of more than": ((f16(1, 8, 1, 32),) * 3, {"schedule": Schedule(block_M=10**6)}),
}


@pytest.mark.parametrize("message", BAD_INPUT)
def test_bad_input_is_refused_in_one_sentence(message: str) -> None:
    arguments, keywords = BAD_INPUT[message]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        flash_attention(*arguments, **keywords)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_M": 0}, "block_M must be an integer of at least 1, not 0"),
        ({"block_N": 2.0}, "block_N must be an integer of at least 1, not 2.0"),
        ({"num_stages": -1}, "num_stages must be an integer of at least 0, not -1"),
        ({"causal": 1}, "causal must be True or False, not 1"),
    ],
)
def test_bad_schedules_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="variant must be one of running_max, .*not 'max'"):
        Schedule.variant("max")
    with pytest.raises(ValueError, match="merge_max is what the variant says"):
        Schedule.variant("block_max", merge_max=True)


def test_the_variants_are_the_seeds_five() -> None:
    assert len(VARIANTS) == len(set(VARIANTS.values())) == 5
    assert Schedule.variant("running_max") == Schedule()


def test_import_sim_loads_numpy_and_nothing_else() -> None:
    """No package outside the standard library but numpy and sim, and no table yet."""
    code = (
        "import sys, numpy; before = set(sys.modules); import sim; new = set(sys.modules) - before;"
        "print(sorted(m for m in new if m.partition('.')[0] not in {*sys.stdlib_module_names, 'numpy', 'sim'}),"
        "'sim.mufu_tables' in new)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split("\n")[0] == "[] False"
    )


def test_a_machine_is_all_that_an_operator_computes_through() -> None:
    """A machine whose exp2 is 1 everywhere gives the mean of V, so no operator has arithmetic of its own."""

    class Flat(Exact):
        def exp2(self, x, fmt):  # type: ignore[no-untyped-def]
            return np.full_like(x, 0x3F800000)

    q, k, v = inputs(seq_q=8)
    v[:] = 2.0
    assert (flash_attention(q, k, v, Schedule(block_M=4, block_N=4), machine=Flat) == 2.0).all()
