"""Single operators of a PrimFunc: what they mean, on numbers that float32 holds exactly, and what is reported.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")

import tilelang
import tilelang.language as T
from kernels import operators
from kernels.entry import F32

import sim


def small(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Integers from -4 to 4: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def run(kernel: Any, *arrays: Any, **settings: Any) -> Any:
    return sim.run(kernel.with_attr("tilelang_out_idx", [len(kernel.params) - 1]), *arrays, **settings)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_is_the_running_sum_of_each_tile(dim: int, reverse: bool) -> None:
    x = small(128, 80)
    tiles = x.reshape(2, 64, 80)
    flipped = np.flip(tiles, dim + 1) if reverse else tiles
    want = np.cumsum(flipped, axis=dim + 1)
    want = np.flip(want, dim + 1) if reverse else want
    np.testing.assert_array_equal(run(operators.cumsum(dim, reverse)(), x), want.reshape(x.shape))


def test_cumsum_adds_in_the_order_of_a_warp_scan() -> None:
    """Halves of 32 are joined last: 1 + (2**24 + 1) keeps what (1 + 2**24) + 1 loses."""
    x = np.zeros((128, 80), np.float32)
    x[:, 0], x[:, 1], x[:, 2], x[:, 3] = 2.0**24, 0, 1, 1
    assert run(operators.cumsum(1, False)(), x)[0, 3] == 2.0**24 + 2


@pytest.mark.parametrize(("op", "dim"), [("sum", 0), ("sum", 1), ("absmax", 1), ("max", 0)])
def test_a_reduction_into_float32_takes_what_the_target_holds(op: str, dim: int) -> None:
    x = small(128, 128, dtype=np.float16)
    tiles = x.astype(np.float32).reshape(2, 64, 128)
    want = np.abs(tiles) if op == "absmax" else tiles
    want = want.sum(axis=dim + 1) + 0.5 if op == "sum" else np.maximum(want.max(axis=dim + 1), 0.5)
    np.testing.assert_array_equal(run(operators.reduce_into_float32(op, "float16", dim)(), x), want)


def test_a_transposed_tile_has_its_rows_running_maxima() -> None:
    x = small(128, 64, dtype=np.float16)
    x[5, 7] = np.nan  # a maximum drops it
    want = np.fmax.accumulate(x.reshape(2, 64, 64).swapaxes(1, 2), axis=2)
    np.testing.assert_array_equal(run(operators.transposed_running_max(), x), want)


def test_nan_propagate_keeps_what_a_maximum_drops() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays")
    x = small(128, 128).astype(ml_dtypes.bfloat16)
    x[3, 4] = np.nan
    top = run(operators.max_with_nan(), x)
    assert np.isnan(top.astype(np.float32)).tolist() == [i == 3 for i in range(128)]


def test_atomics_on_integers_are_the_same_in_any_order() -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (256, 128)).astype(np.int32)
    y, z = sim.run(operators.histogram(), x, np.zeros(64, np.int32), np.zeros(1, np.int32))
    np.testing.assert_array_equal(y, np.bincount(x.ravel() & 63, minlength=64))
    assert z == [(x & 1023).max()]


def test_integers_are_reduced() -> None:
    x = small(128, 128)
    last = 127 - np.argmax(x[:, ::-1], axis=1)
    np.testing.assert_array_equal(run(operators.best_index(), x), last)


def test_im2col_gathers_patches_with_padding_and_stride() -> None:
    x, w = small(2, 16, 16, 32, dtype=np.float16), small(9 * 32, 64, dtype=np.float16)
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + 16 : 2, j : j + 16 : 2] for i in range(3) for j in range(3)]
    want = np.concatenate(taps, axis=-1).reshape(128, 9 * 32) @ w.astype(np.float32)
    np.testing.assert_array_equal(run(operators.convolution(), x, w), want)


def test_a_second_launch_reads_memory_of_the_whole_grid() -> None:
    x = small(256, 128, dtype=np.float16)
    np.testing.assert_array_equal(run(operators.two_launches(), x), x.astype(np.float32).sum(axis=0))


def test_a_later_launch_cannot_know_what_blocks_that_do_not_run_have_stored() -> None:
    pf = operators.two_launches().with_attr("tilelang_out_idx", [1])
    mask = sim.simulate(pf, small(256, 128, dtype=np.float16), blocks=[0]).undetermined[0]
    assert mask is not None and mask.all()


def test_a_later_launch_knows_nothing_where_no_chosen_block_belongs_to_the_first() -> None:
    x, sums, rows = small(32, 64), np.zeros(2, np.float32), np.zeros((32, 64), np.float32)
    result = sim.simulate(operators.launch_after_a_smaller_one(), x, sums, rows, blocks=[5])
    mask = dict(zip(result.names, result.undetermined, strict=True))["Y"]
    assert mask is not None and mask.all()
    whole = sim.simulate(operators.launch_after_a_smaller_one(), x, sums, rows)
    np.testing.assert_array_equal(rows, x + x.reshape(2, -1).sum(axis=1)[np.arange(32) % 2][:, None])
    assert all(mask is None for mask in whole.undetermined)


def test_a_variable_in_a_parallel_loop_is_each_elements_own() -> None:
    x = small(64, 128)
    want = np.array([[sum(x[i, (j + k) % 128] for k in range(i % 32 % 4 + 1)) for j in range(128)] for i in range(64)])
    np.testing.assert_array_equal(run(operators.variables(), x), want)


def leaked() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            last = T.alloc_var("float32")
            last = 0.0
            for i in T.Parallel(64):
                last = X[i]
            for i in T.Parallel(64):
                Y[i] = last

    return main


def test_a_variable_after_a_parallel_loop_is_known_only_where_all_elements_left_the_same() -> None:
    np.testing.assert_array_equal(run(leaked(), np.full(64, 3, np.float32)), np.full(64, 3, np.float32))
    with pytest.raises(sim.Undetermined, match="64 outputs") as caught:
        run(leaked(), np.arange(64, dtype=np.float32))
    assert caught.value.result.undetermined[0].all()


def searched() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                n = T.alloc_var("int32")
                n = 0
                while n * n < X[i]:
                    n = n + 1
                Y[i] = n

    return main


def test_a_while_loop_in_a_parallel_loop_goes_on_for_each_element_by_itself() -> None:
    x = np.arange(64, dtype=np.int32)
    np.testing.assert_array_equal(run(searched(), x), np.ceil(np.sqrt(x)).astype(np.int32))


def ragged() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64, 16), "float16"), N: T.Tensor((1,), "int32"), Y: T.Tensor((64, 16), "float16")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((32, 16), "float16")
            T.copy(X[N[0] : N[0] + 32, :], x)
            T.copy(x, Y[0:32, :])
            T.copy(X[0 : N[0], :], x)
            T.copy(x, Y[32:64, :])

    return main


def test_a_copy_whose_extent_is_not_known_moves_the_whole_tile() -> None:
    x = small(64, 16, dtype=np.float16)
    np.testing.assert_array_equal(run(ragged(), x, np.array([16], np.int32)), np.concatenate([x[16:48], x[:32]]))


def added(places: int) -> Any:
    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((places, 64), "float32")):
        with T.Kernel(4, threads=64) as bx:
            for i in T.Parallel(64):
                T.atomic_add(Y[bx % places, i], X[bx, i])

    return main


def test_tensors_are_written_in_place_and_given_back() -> None:
    x, y = small(4, 64), np.zeros((4, 64), np.float32)
    out = sim.run(added(4), x, y)
    assert (out == x).all() and (y == x).all()


def test_two_float_additions_to_zero_are_known_and_four_are_not() -> None:
    x = small(4, 64)
    assert (sim.run(added(2), x, np.zeros((2, 64), np.float32)) == x[:2] + x[2:]).all()
    with pytest.raises(sim.Undetermined, match="atomic_order of Y in atomic_add"):
        sim.run(added(1), x, np.zeros((1, 64), np.float32))


def test_additions_are_unknown_when_not_all_blocks_run() -> None:
    mask = sim.simulate(added(2), small(4, 64), np.zeros((2, 64), np.float32), blocks=[0]).undetermined[0]
    assert mask is not None and mask.all()


def histogram(dtype: str, times: int) -> Any:
    """Counts and maxima in shared memory; each bin gets `times` elements of a thread block."""

    @T.prim_func
    def main(X: T.Tensor((2, 64), dtype), Y: T.Tensor((2, 64), dtype), Z: T.Tensor((2, 64), dtype)):
        with T.Kernel(2, threads=64) as bx:
            total = T.alloc_shared((64,), dtype)
            most = T.alloc_shared((64,), dtype)
            T.clear(total)
            T.fill(most, -100)
            for i in T.Parallel(64):
                T.atomic_add(total[i // times], X[bx, i])
                T.atomic_max(most[i // times], X[bx, i])
            T.copy(total, Y[bx, :])
            T.copy(most, Z[bx, :])

    return main.with_attr("tilelang_out_idx", [1, 2])


@pytest.mark.parametrize(("dtype", "times"), [("int32", 8), ("float32", 2), ("float32", 4)])
def test_atomics_in_shared_memory_are_known_where_their_order_does_not_matter(dtype: str, times: int) -> None:
    x = small(2, 64, dtype=np.dtype(dtype)) + np.dtype(dtype).type(5)  # above 0: no zeros of two signs
    bins = x.reshape(2, -1, times)
    result = sim.simulate(histogram(dtype, times), x)
    sums, most = result.outputs
    known = dtype == "int32" or times == 2
    mask = np.zeros((2, 64), bool) if result.undetermined[0] is None else result.undetermined[0]
    assert (mask[:, : 64 // times] == (not known)).all() and not mask[:, 64 // times :].any()
    assert [event.kind for event in result.events] == ([] if known else ["atomic_order"])
    np.testing.assert_array_equal(sums[:, : 64 // times], bins.sum(axis=2))  # integers below 2**24
    np.testing.assert_array_equal(most[:, : 64 // times], bins.max(axis=2))
    assert result.undetermined[1] is None and (most[:, 64 // times :] == -100).all()


def greatest(function: Any) -> Any:
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(8):
                function(Y[i], X[bx, i])

    return main


def test_the_greatest_float_of_atomics_is_known_but_for_nan_zeros_of_both_signs_and_what_fast_math_flushes() -> None:
    x = small(4, 8) + np.float32(0.5)
    x[0, :4] = np.nan, -0.0, 1e-40, -0.0
    x[1:, 1], x[1:, 2], x[1:, 3] = 0.0, -1.0, -1.0
    start = np.full(8, -100, np.float32)
    for fast, lost in ((False, [0, 1]), (True, [0, 1, 2])):
        y = start.copy()
        configs = {"tl.enable_fast_math": fast}
        (mask,) = sim.simulate(greatest(T.atomic_max), x, y, pass_configs=configs).undetermined
        assert mask is not None and np.flatnonzero(mask).tolist() == lost
        np.testing.assert_array_equal(y[4:], x[:, 4:].max(axis=0))
        assert np.signbit(y[3]) and y[3] == 0
    y = -start
    sim.simulate(greatest(T.atomic_min), x, y)
    np.testing.assert_array_equal(y[4:], x[:, 4:].min(axis=0))


def marked() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32) as bx:
            T.evaluate(T.call_extern("handle", "TL_IKET_EVENT", 1, "begin"))
            for i in T.Parallel(32):
                Y[bx * 32 + i] = X[bx * 32 + i]
                T.evaluate(T.call_extern("handle", "TL_IKET_EVENT_U32", 2, "stored", i))

    return main


def test_marks_for_a_profiler_change_nothing() -> None:
    x = small(64)
    np.testing.assert_array_equal(run(marked(), x), x)


def spoken() -> Any:
    @T.prim_func
    def main(X: T.Tensor((2, 4), "float16"), Y: T.Tensor((2, 4), "float16")):
        with T.Kernel(2, threads=32) as bx:
            x = T.alloc_fragment((4,), "float16")
            T.copy(X[bx, 0], x)
            T.print(x, msg="row")
            T.print(bx + 1, msg="next")
            T.device_assert(bx < 1, "only one block")
            T.copy(x, Y[bx, 0])

    return main


def test_print_prints_and_a_failed_assertion_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    pf = spoken().with_attr("tilelang_out_idx", [1])
    result = sim.simulate(pf, np.arange(8, dtype=np.float16).reshape(2, 4))
    lines = capsys.readouterr().out.splitlines()
    assert "row (block 1): x[3] = 7.0" in lines and "next (block 0): 1" in lines and len(lines) == 10
    assert [str(event).partition(" (")[0] for event in result.events] == ["device_assert of only one block"]


def test_watch_calls_back_with_values_block_and_iteration() -> None:
    seen: list[tuple[float, int, Any]] = []
    x, w = small(2, 16, 16, 32, dtype=np.float16), small(9 * 32, 64, dtype=np.float16)
    out = run(operators.convolution(), x, w, watch={"acc": lambda a, *where: seen.append((a[0, 0], *where))})
    assert [where for _, *where in seen][:3] == [[0, None], [1, None], [0, 0]] and len(seen) == 20
    assert seen[-2:] == [(out[0, 0], 0, 8), (out[64, 0], 1, 8)]


def test_what_does_not_fit_is_one_sentence() -> None:
    x = small(256, 128, dtype=np.float16)
    for wrong, said in (
        ({"watch": {"acc": print}}, "watch must name tiles of the kernel, one of out, parts, x, not 'acc'"),
        ({"blocks": "x"}, "blocks must be numbers of thread blocks, 0 or greater, not 'x'"),
        ({"blocks": [0, 4]}, "blocks must be numbers of thread blocks, 0 to 3, not 4"),
        ({"arch": "sm_1"}, "arch must be one of sm_70, .*, not 'sm_1'"),
    ):
        with pytest.raises(ValueError, match=said):
            run(operators.two_launches(), x, **wrong)
    with pytest.raises(TypeError, match="watch must map tiles to functions .*, not to 5"):
        run(operators.two_launches(), x, watch={"parts": 5})
    with pytest.raises(sim.Unsupported, match="tl.disable_safe_memory_legalize: what it reads out of bounds"):
        run(operators.two_launches(), x, pass_configs={"tl.disable_safe_memory_legalize": True})
    for array, said in (
        (x[0], r"X must have 2 axes, none of them empty, not \[128\]"),
        (x[:0], r"X must have 2 axes, none of them empty, not \[0, 128\]"),
    ):
        with pytest.raises(ValueError, match=said):
            run(operators.two_launches(), array)
    y = np.zeros((2, 64), np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="Y must be writable: the kernel stores to it"):
        sim.run(added(2), small(4, 64), y)
    with pytest.raises(TypeError, match="X must be an array, a tensor or a pair .*, not list"):
        run(operators.two_launches(), [1.0])


def test_progress_counts_thread_blocks() -> None:
    seen: list[tuple[int, int]] = []
    run(operators.two_launches(), small(256, 128, dtype=np.float16), progress=lambda *n: seen.append(n))
    assert seen == [(4, 5), (5, 5)]


@tilelang.jit
def scaled(X, Y, factor: float = 2.0, block: int = 32):
    N = T.const("N")
    X: T.Tensor[[N], F32]
    Y: T.Tensor[[N], F32]
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            Y[bx * block + i] = X[bx * block + i] * factor


def test_an_eager_kernel_takes_tensors_and_its_other_arguments_by_name() -> None:
    x, y = small(80), np.zeros(80, np.float32)
    assert (sim.run(scaled, x, y, kwargs={"factor": 4.0, "block": 16}) == 4 * x).all()
    assert all(need.supported for need in sim.support(scaled, kwargs={"N": 80}))


def moved() -> Any:
    """Y lies in 8x8 squares; the second launch reads it as it lies."""

    @T.prim_func
    def main(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((64, 32), "float32"), Z: T.Tensor((64, 32), "float32")):
        with T.Kernel(4, threads=64) as bx:
            T.annotate_layout({Y: T.Layout(Y.shape, lambda i, j: [i // 8, j // 8, i % 8, j % 8])})
            x = T.alloc_shared((16, 32), "float32")
            T.copy(X[bx * 16, 0], x)
            T.copy(x, Y[bx * 16, 0])
        with T.Kernel(4, threads=64) as bx:
            T.copy(Y[bx * 16 : bx * 16 + 16, :], Z[bx * 16 : bx * 16 + 16, :])

    return main


def test_an_annotated_layout_moves_the_elements_of_a_tensor_inside_its_launch() -> None:
    x = small(64, 32)
    squares = x.reshape(8, 8, 4, 8).swapaxes(1, 2).reshape(64, 32)
    y, z = sim.run(moved().with_attr("tilelang_out_idx", [1, 2]), x)
    np.testing.assert_array_equal(y, squares)
    np.testing.assert_array_equal(z, squares)


def test_an_annotated_layout_of_a_kernel_that_was_saved_is_the_same() -> None:
    from tilelang import tvm

    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    saved = tvm.ir.load_json(tvm.ir.save_json(moved()))
    for kernel in (moved(), saved):
        y, z = sim.simulate(kernel, x, np.zeros_like(x), np.zeros_like(x)).outputs
        np.testing.assert_array_equal(y, x.reshape(8, 8, 4, 8).swapaxes(1, 2).reshape(64, 32))
        np.testing.assert_array_equal(z, y)


def halves() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            low = T.view(Y, (128,), "uint16")
            for i in T.Parallel(32):
                low[2 * i] = T.Cast("uint16", 0)
            for i in T.Parallel(8):
                Y[i] = X[i]

    return main


def test_an_element_is_known_when_all_of_its_bytes_were_written() -> None:
    mask = sim.simulate(halves().with_attr("tilelang_out_idx", [1]), small(64)).undetermined[0]
    assert mask is not None and not mask[:8].any() and mask[8:].all()


def beyond() -> Any:
    @T.prim_func
    def main(X: T.Tensor((60,), "float32"), Y: T.Tensor((60,), "float32")):
        with T.Kernel(2, threads=32) as bx:
            x = T.alloc_shared((32,), "float32")
            T.copy(X[bx * 32], x)
            for i in T.Parallel(32):
                Y[bx * 32 + i] = x[i]
            for i in T.Parallel(32):
                if i < 31:
                    Y[i] = x[i + bx * 4]

    return main


def test_accesses_out_of_bounds_are_reported_with_line_block_and_index() -> None:
    """A store to global memory is dropped, a read of a tile is unknown; a copy's ragged edge is no fault."""
    result = sim.simulate(beyond().with_attr("tilelang_out_idx", [1]), small(60))
    said = [(e.kind, e.buffer, e.operator, e.block, e.index) for e in result.events if e.kind == "out_of_bounds"]
    assert said == [("out_of_bounds", "Y", "parallel", 1, (60,)), ("out_of_bounds", "x", "load", 1, (32,))]
    lines = [int(e.where.partition(":")[2]) for e in result.events if e.kind == "out_of_bounds"]
    assert lines[1] - lines[0] == 3


def cleared_in_the_first_block() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((2, 64, 64), "float32")):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.copy(X, x)
            T.fill(acc, 1.0)
            T.gemm(x, x, acc, clear_accum=(bx == 0))
            T.copy(acc, Y[bx, 0, 0])

    return main


def test_clear_accum_may_differ_between_thread_blocks() -> None:
    x = small(64, 64, dtype=np.float16)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(run(cleared_in_the_first_block(), x), [wide @ wide, wide @ wide + 1])


def half_filled() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((64,), "float32")
            for i in T.Parallel(64):
                if i < 32:
                    x[i] = X[i]
            for i in T.Parallel(64):
                x[i] = x[i] + 1.0
            T.copy(x, Y)

    return main


def test_an_output_that_cannot_be_known_has_a_reason_with_a_line() -> None:
    (event,) = sim.simulate(half_filled().with_attr("tilelang_out_idx", [1]), small(64)).events
    assert (event.kind, event.buffer, event.operator) == ("uninitialised", "x", "load")
    with pytest.raises(sim.Undetermined, match=r"32 outputs .*: uninitialised of x in load \(test_operators.py:\d+\)"):
        run(half_filled(), small(64))


def reversed_in_place(step: int) -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32):
            x = T.alloc_shared((64,), "float32")
            T.copy(X, x)
            for i in T.Parallel(32):
                x[i] = x[i + step] + 1.0
            T.copy(x, Y)

    return main


def test_an_element_that_reads_what_another_element_of_its_loop_stores_is_a_race() -> None:
    x = small(64)
    result = sim.simulate(reversed_in_place(1).with_attr("tilelang_out_idx", [1]), x)
    assert [(e.kind, e.buffer, e.index) for e in result.events] == [("race", "x", (1,))]
    assert result.undetermined[0] is not None and result.undetermined[0].tolist() == [i < 31 for i in range(64)]
    known = run(reversed_in_place(32), x)  # it reads what the loop does not store
    np.testing.assert_array_equal(known, np.concatenate([x[32:] + 1, x[32:]]))


def two_statements(where: str, step: int) -> Any:
    """y[i] = x[i + step] in a loop that has stored x[i], or stores it afterwards (below 0)."""

    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_shared((64,), "float32")
            T.copy(X, own)
            for i in T.Parallel(32):
                if where == "before":
                    own[i] = 2.0 * X[i]
                    Y[i] = own[i + step]
                else:
                    Y[i] = own[i + step]
                    own[i] = 2.0 * X[i]
            T.copy(own[32:64], Y[32:64])

    return main


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_element_that_loads_what_another_one_stores_in_another_statement_is_a_race(where: str) -> None:
    x = small(64)
    result = sim.simulate(two_statements(where, 30).with_attr("tilelang_out_idx", [1]), x)
    assert [(e.kind, e.buffer, e.index) for e in result.events] == [("race", "own", (30,))]
    assert result.events[0].where.startswith("test_operators.py:")
    assert result.undetermined[0] is not None and np.flatnonzero(result.undetermined[0]).tolist() == [0, 1]
    np.testing.assert_array_equal(run(two_statements(where, 32), x), np.concatenate([x[32:], x[32:]]))
    own = run(two_statements(where, 0), x)
    np.testing.assert_array_equal(own[:32], 2 * x[:32] if where == "before" else x[:32])


def added_again(scope: str) -> Any:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16, 8), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_shared((16,), "float32") if scope == "shared" else T.alloc_fragment((16,), "float32")
            for i, j in T.Parallel(16, 8):
                total[i] = X[i] + 1.0
                Y[i, j] = total[i]
                if scope == "shared":
                    total[i] = X[i]

    return main


def test_elements_that_store_the_same_words_do_not_race_until_one_stores_another() -> None:
    x = small(16)
    kept = run(added_again("fragment"), x)
    np.testing.assert_array_equal(kept, np.repeat(x[:, None] + 1, 8, axis=1))
    with pytest.raises(sim.Undetermined, match="128 outputs cannot be known: race of total in parallel"):
        run(added_again("shared"), x)


def exchanged_in_pairs(step: int) -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32):
            x = T.alloc_shared((64,), "float32")
            T.copy(X, x)
            for i in T.Parallel(64):
                j = i ^ step
                if i < j and x[i] > x[j]:
                    larger = T.alloc_var("float32")
                    larger = x[i]
                    x[i] = x[j]
                    x[j] = larger
            T.copy(x, Y)

    return main


def test_elements_that_exchange_what_no_other_element_touches_do_not_meet() -> None:
    x = small(64)
    want = np.sort(x.reshape(16, 2, 2), axis=1).reshape(64)
    np.testing.assert_array_equal(run(exchanged_in_pairs(2), x), want)


def counted_and_read(whose: int) -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32"), N: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                T.atomic_add(N[i], X[i])
                Y[i] = N[i ^ whose]

    return main


def test_a_load_beside_an_atomic_addition_of_another_element_is_a_race() -> None:
    x, nothing = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    for whose, lost in ((0, 0), (1, 64)):
        result = sim.simulate(counted_and_read(whose), x, nothing.copy(), nothing.copy())
        masks = [0 if mask is None else int(mask.sum()) for mask in result.undetermined]
        assert masks[result.names.index("Y")] == lost
        assert {event.kind for event in result.events} == ({"race"} if lost else set())


def test_what_starts_at_an_unwritten_number_is_unknown() -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            n = T.alloc_local((1,), "int32")
            T.copy(X, Y)
            for i in T.serial(n[0], n[0] + 1):
                Y[i] = 1.0

    mask = sim.simulate(main.with_attr("tilelang_out_idx", [1]), small(64)).undetermined[0]
    assert mask is not None and mask.all()


def divided(how: str) -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), N: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            for i in T.Parallel(32):
                n = N[bx * 32 + i]
                if how == "floored":
                    Y[bx * 32 + i] = X[bx * 32 + i] // n
                elif how == "truncated":
                    Y[bx * 32 + i] = T.truncmod(X[bx * 32 + i], n)
                elif how == "chosen":
                    Y[bx * 32 + i] = T.if_then_else(n != 0, X[bx * 32 + i] % n, -1)
                elif n != 0:
                    Y[bx * 32 + i] = T.truncdiv(X[bx * 32 + i], n)

    return main


@pytest.mark.filterwarnings("error")
def test_what_an_integer_is_divided_by_zero_is_unknown_where_it_is_really_divided() -> None:
    x, n, y = small(64, dtype=np.int32), small(64, dtype=np.int32)[::-1].copy(), np.full(64, 9, np.int32)
    zero = n == 0
    safe = np.where(zero, 1, n)
    want = {"floored": x // safe, "truncated": np.fmod(x, safe), "chosen": np.where(zero, -1, x % safe)}
    for how, expected in want.items():
        result = sim.simulate(divided(how), x, n, y.copy())
        unknown = np.zeros(64, bool) if result.undetermined[0] is None else result.undetermined[0]
        np.testing.assert_array_equal(unknown, zero & (how != "chosen"))
        np.testing.assert_array_equal(result.outputs[0][~unknown], expected[~unknown])
        kinds = [event.kind for event in result.events]
        assert kinds == ([] if how == "chosen" else ["division_by_zero"])
    guarded = sim.simulate(divided("guarded"), x, n, y.copy())
    np.testing.assert_array_equal(guarded.outputs[0], np.where(zero, 9, (x / safe).astype(np.int32)))
    assert guarded.undetermined == [None] and not guarded.events


def cast_to(dtype: str) -> Any:
    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = T.Cast(dtype, X[i])

    return main


def test_a_float_becomes_an_integer_of_32_bits_first() -> None:
    """nvcc 13.0 makes cvt.rzi.s32.f32 of `(signed char)x` and stores the low byte; NaN is 0."""
    x = np.array([300, -300, 2.9, -2.9, np.inf, -np.inf, np.nan, 3e9], np.float32)
    top, low = 2**31 - 1, -(2**31)
    np.testing.assert_array_equal(run(cast_to("int32"), x), [300, -300, 2, -2, top, low, 0, top])
    np.testing.assert_array_equal(run(cast_to("int8"), x), [44, -44, 2, -2, -1, 0, 0, -1])
    np.testing.assert_array_equal(run(cast_to("uint8"), x), [44, 0, 2, 0, 255, 0, 0, 3000000000 % 256])


def test_a_float_becomes_an_integer_of_64_bits_saturating_and_nan_is_the_sign_bit() -> None:
    """PTX ISA, cvt: NaN is 1 << 63 where the destination has 64 bits."""
    x = np.array([-2.9, 2.0**62, 1e20, -1e20, np.inf, -np.inf, np.nan, 2.0**63], np.float32)
    top, low = 2**63 - 1, -(2**63)
    np.testing.assert_array_equal(run(cast_to("int64"), x), [-2, 2**62, top, low, top, low, low, top])
    words = np.array([0, 2**62, 2**64 - 1, 0, 2**64 - 1, 0, 2**63, 2**63], np.uint64)
    np.testing.assert_array_equal(run(cast_to("uint64"), x), words)


def left(how: str) -> Any:
    """Numbers are added until a 0 (for all of a thread block, or for each element), 1 does not count."""

    @T.prim_func
    def main(X: T.Tensor((8, 16), "int32"), Y: T.Tensor((8, 16), "int32")):
        with T.Kernel(8, threads=32) as bx:
            total = T.alloc_var("int32")
            if how == "blocks":
                total = 0
                for k in T.serial(16):
                    if X[bx, k] == 0:
                        break
                    if X[bx, k] == 1:
                        continue
                    total = total + X[bx, k]
                    Y[bx, k] = total
            else:
                for i in T.Parallel(16):
                    total = 0
                    k = T.alloc_var("int32")
                    k = 0
                    while k < 8:
                        k = k + 1
                        if X[k - 1, i] == 0:
                            break
                        if X[k - 1, i] == 1:
                            continue
                        total = total + X[k - 1, i]
                    if bx == 0:
                        Y[bx, i] = total
                    for n in T.serial(8):
                        if bx == 1:
                            if X[n, i] == 0:
                                break
                            Y[bx, i] = n

    return main


def until_zero(numbers: np.ndarray) -> list[int]:
    """The sums so far of each number that counts, -1 for those that do not."""
    found, total = [], 0
    for n in numbers.tolist():
        if n == 0:
            break
        total += n if n != 1 else 0
        found.append(total if n != 1 else -1)
    return found + [-1] * (len(numbers) - len(found))


def test_break_and_continue_leave_a_loop_or_a_turn_of_it_for_each_block_or_element() -> None:
    x, y = small(8, 16, dtype=np.int32), np.full((8, 16), -1, np.int32)
    sim.simulate(left("blocks"), x, y)
    np.testing.assert_array_equal(y, [until_zero(row) for row in x])
    y[...] = -1
    sim.simulate(left("elements"), x, y)
    np.testing.assert_array_equal(y[0], [([0] + [n for n in until_zero(col) if n != -1])[-1] for col in x.T])
    first_zero = np.where((x == 0).any(axis=0), (x == 0).argmax(axis=0), 8)
    np.testing.assert_array_equal(y[1], first_zero - 1)


def with_threads() -> Any:
    @T.prim_func
    def main(X: T.Tensor((8, 16), "float16"), Y: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((8, 16), "float16")
            b = T.alloc_barrier(128)
            T.copy(X, x)
            T.mbarrier_arrive(b)
            Y[0, 0] = T.tanh(x[0, 0])

    return main


def test_a_refusal_names_what_and_the_source_line() -> None:
    with pytest.raises(sim.Unsupported, match=r"buffer \w+ in scope 'shared.barrier' .*\(test_operators.py:\d+\)"):
        run(with_threads(), np.zeros((8, 16), np.float16))
    missing = [need for need in sim.support(with_threads()) if not need.supported]
    assert [need.what.split()[0] for need in missing][0] == "buffer" and "tirx.tanh" in missing[-1].what
    assert all(need.where.startswith("test_operators.py:") for need in missing)
    assert not any(need.supported and "tanh" in need.what for need in sim.support(with_threads()))


def test_integers_of_another_dtype_are_refused() -> None:
    with pytest.raises(TypeError, match="N must be int32, not int64"):
        run(ragged(), small(64, 16, dtype=np.float16), np.array([16]))


def shifted_by() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), a: T.float32, n: T.int32, Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.if_then_else(i < n, X[i] + a, X[i])

    return main


def test_scalar_parameters_are_integers_and_floats() -> None:
    x = small(64)
    np.testing.assert_array_equal(run(shifted_by(), x, 0.5, 8), x + np.where(np.arange(64) < 8, np.float32(0.5), 0))


def test_a_kernel_that_reads_its_threads_index_is_refused_with_its_line() -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            Y[tx] = X[tx]

    assert [need.what for need in sim.support(main) if not need.supported] == ["a thread's own index (tx)"]
    with pytest.raises(
        sim.Unsupported, match=r"a thread's own index \(tx\) is not supported \(test_operators.py:\d+\)"
    ):
        run(main, small(64))


def test_a_gemm_that_an_architecture_does_not_have_is_refused_before_running() -> None:
    from kernels import KERNELS

    pf = KERNELS["gemm_e4m3"].prim_func()
    with pytest.raises(sim.Unsupported, match="sm_80 has no modelled dot product of float8_e4m3fn"):
        sim.simulate(pf, *KERNELS["gemm_e4m3"].inputs(), arch="sm_80")


def unwritten_branch() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            n = T.alloc_local((1,), "int32")
            T.copy(X, Y)
            if n[0] > 3:
                Y[0] = 1.0

    return main


def unwritten_extent() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            n = T.alloc_local((1,), "int32")
            T.copy(X, Y)
            for i in T.serial(n[0]):
                Y[i] = 1.0

    return main


@pytest.mark.parametrize(("kernel", "lost"), [(unwritten_branch, 1), (unwritten_extent, 64)])
def test_what_a_branch_on_memory_that_nobody_wrote_may_store_is_unknown(kernel: Any, lost: int) -> None:
    """Both sides of an if may run; a loop of unknown extent may do anything."""
    result = sim.simulate(kernel().with_attr("tilelang_out_idx", [1]), small(64))
    mask = result.undetermined[0]
    assert mask is not None and mask.tolist() == [i < lost for i in range(64)]
    assert [(event.kind, event.buffer) for event in result.events] == [("uninitialised", "a condition")]


def unwritten_index(load: bool) -> Any:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            n = T.alloc_shared((64,), "int32")
            for i in T.Parallel(32):
                n[i] = 63 - i
            for i in T.Parallel(64):
                if load:
                    Y[i] = X[n[i]]
                else:
                    Y[n[i]] = X[i]

    return main


def test_what_is_read_at_an_unknown_index_is_unknown_and_a_store_there_may_be_anywhere() -> None:
    x = small(64)
    for load, known in ((True, 32), (False, 0)):
        result = sim.simulate(unwritten_index(load).with_attr("tilelang_out_idx", [1]), x)
        mask = result.undetermined[0]
        assert mask is not None and (~mask[:known]).all() and mask[known:].all()
        np.testing.assert_array_equal(result.outputs[0][:known], x[:-33:-1][:known])


def exchanged(step: int) -> Any:
    @T.prim_func
    def main(X: T.Tensor((200, 4), "float32"), Y: T.Tensor((200, 4), "float32")):
        with T.Kernel(200, threads=32) as bx:
            for j in T.Parallel(4):
                Y[bx * step // 2, j] = X[bx, j]

    return main


def test_blocks_that_store_different_words_to_one_place_race_however_far_apart() -> None:
    x = np.arange(800, dtype=np.float32).reshape(200, 4)
    result = sim.simulate(exchanged(1), x, np.zeros((200, 4), np.float32))
    assert result.undetermined[0][:100].all()
    (event,) = result.events
    assert (event.kind, event.buffer, event.block, event.index) == ("race", "Y", 0, (0, 0))
    assert event.where.startswith("test_operators.py:")
    assert (sim.run(exchanged(1), np.ones_like(x), np.zeros_like(x))[:100] == 1).all()
    assert not sim.simulate(exchanged(2), x, np.zeros((200, 4), np.float32)).events


def numbered(scope: str) -> Any:
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32, 32), "float32")):
        with T.Kernel(32, threads=32) as bx:
            own = T.alloc_shared((32,), "int32") if scope == "shared" else T.alloc_fragment((32,), "int32")
            for i in T.Parallel(32):
                own[i] = bx
            for i in T.Parallel(32):
                if i < 16:
                    Y[bx, i] = X[bx] * 2.0
                else:
                    Y[bx, i] = own[i]

    return main


@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_a_number_of_each_thread_block_is_the_same_for_all_its_elements(scope: str) -> None:
    x = small(32)
    want = np.where(np.arange(32) < 16, 2 * x[:, None], np.arange(32, dtype=np.float32)[:, None])
    np.testing.assert_array_equal(run(numbered(scope), x), want)


def read_and_stored(store: bool, elsewhere: int) -> Any:
    """Block 1 stores, or adds to, the word of Y that block 0 has loaded (elsewhere 0), or one that nobody loads."""

    @T.prim_func
    def main(Y: T.Tensor((64,), "int32"), Z: T.Tensor((4, 32), "int32")):
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(32):
                if bx == 0:
                    Z[bx, i] = Y[i]
                else:
                    Z[bx, i] = bx
            if bx == 1:
                for i in T.Parallel(32):
                    if store:
                        Y[i + elsewhere] = i
                    else:
                        T.atomic_add(Y[i + elsewhere], 1)

    return main


@pytest.mark.parametrize("store", [True, False], ids=["store", "atomic"])
def test_a_block_that_changes_what_another_one_has_loaded_races_with_all_that_one_stores(store: bool) -> None:
    y, z = np.full(64, 7, np.int32), np.zeros((4, 32), np.int32)
    result = sim.simulate(read_and_stored(store, 0), y.copy(), z.copy())
    (event,) = result.events
    assert (event.kind, event.buffer, event.block, event.index) == ("race", "Y", 1, (0,))
    mask = result.undetermined[1]
    assert result.undetermined[0] is None and mask is not None and mask[0].all() and not mask[1:].any()
    assert not sim.simulate(read_and_stored(store, 32), y.copy(), z.copy()).events
    same = np.arange(64, dtype=np.int32)  # it stores what is there already
    assert bool(sim.simulate(read_and_stored(store, 0), same, z.copy()).events) is not store


def stored_beside_atomics() -> Any:
    @T.prim_func
    def main(Y: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            for i in T.Parallel(32):
                if bx == 0:
                    Y[i] = 1
                else:
                    T.atomic_add(Y[i + 16], 1)

    return main


def test_a_plain_store_beside_another_blocks_atomic_is_a_race() -> None:
    result = sim.simulate(stored_beside_atomics(), np.zeros(64, np.int32))
    mask = result.undetermined[0]
    assert {event.kind for event in result.events} == {"race"} and mask is not None
    assert np.flatnonzero(mask).tolist() == list(range(16, 32))


def half_sums() -> Any:
    @T.prim_func
    def main(X: T.Tensor((64, 128), "float16"), Y: T.Tensor((64,), "float16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 128), "float16")
            y = T.alloc_fragment((64,), "float16")
            T.copy(X, x)
            T.reduce_sum(x, y, dim=1)
            T.copy(y, Y)

    return main


def test_contiguous_half_precision_is_summed_in_pairs_of_accumulators() -> None:
    """A thread holds 8 neighbours: it adds the even and the odd ones, joins the two, then 16 threads join."""
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float16)
    pairs = np.zeros((64, 16, 2), np.float16)
    for n in range(4):
        pairs = pairs + x.reshape(64, 16, 4, 2)[:, :, n]
    total = pairs[..., 0] + pairs[..., 1]
    for offset in (8, 4, 2, 1):
        total = total + total[:, np.arange(16) ^ offset]
    np.testing.assert_array_equal(run(half_sums(), x), total[:, 0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_other_architectures_go_the_same_way_and_say_that_nobody_measured_them(arch: str) -> None:
    from kernels import KERNELS

    kernel = KERNELS["flash_grouped"]
    result = sim.simulate(kernel.prim_func(), *kernel.inputs(), arch=arch)
    assert "literature" in result.basis and arch in result.basis
    assert result.undetermined == [None] and not result.events
