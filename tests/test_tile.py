"""Tile operators: TileLang's rules, one at a time, and what depends on memory that nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest
import spec

from sim.arch import arch
from sim.formats import BF16, E4M3, FP16, FP32
from sim.machine import Exact
from sim.memory import Tensor
from sim.tile import Block, Tile
from sim.values import Value

INF, NEG_INF, NAN = np.inf, -np.inf, np.nan


def block(blocks: int = 1, fast_math: bool = True, arch_name: str = "sm_90") -> Block:
    return Block(Exact(arch(arch_name), fast_math), blocks, threads=128)


def fragment(T: Block, values: object, fmt=FP32, name: str = "x") -> Tile:  # type: ignore[no-untyped-def]
    """A fragment that holds `values` in every block."""
    x = np.asarray(values, np.float32)
    tile = T.alloc_fragment(name, x.shape, fmt)
    tile.assign("test", Value(T.machine, FP32, x.view(np.uint32)[None]))
    return tile


def floats(tile: Tile) -> np.ndarray:
    """The float32 values of the first block."""
    return tile.block.machine.convert(tile.value().data, tile.fmt, FP32)[0].view(np.float32)


REDUCTIONS = {  # operator: (row without NaN, identity, merged with an old value of 5)
    "reduce_max": (3.0, NEG_INF, 5.0),
    "reduce_min": (-4.0, INF, -4.0),
    "reduce_absmax": (4.0, 0.0, 5.0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_drop_nan_and_follow_the_clear_rule(name: str) -> None:
    result, identity, merged = REDUCTIONS[name]
    T = block()
    x = fragment(T, [[3.0, NAN, -4.0], [NAN, NAN, NAN]])
    out = fragment(T, [5.0, 5.0], name="out")
    getattr(T, name)(x, out, dim=1, clear=False)
    assert floats(out).tolist() == [merged, {"reduce_min": 5.0}.get(name, 5.0)]
    getattr(T, name)(x, out, dim=1, clear=True)
    assert floats(out).tolist() == [result, identity]


def test_reduce_max_orders_the_zeros_and_starts_from_the_old_value() -> None:
    T = block()
    out = fragment(T, [NAN, 0.0, -0.0])
    T.reduce_max(fragment(T, [[-0.0, -1.0], [-0.0, -1.0], [0.0, -0.0]]), out, clear=False)
    assert out.value().data[0].tolist() == [0x80000000, 0, 0]  # a NaN loses; +0 is above -0


def test_reduce_max_flushes_subnormals_under_fast_math_only() -> None:
    for fast_math, expected in ((True, 0), (False, 1)):
        T = block(fast_math=fast_math)
        out = T.alloc_fragment("out", (1,), FP32)
        T.reduce_max(fragment(T, np.array([[1, 0x80000001]], np.uint32).view(np.float32)), out)
        assert out.value().data[0].tolist() == [expected]


@pytest.mark.parametrize("fast_math", [True, False])
def test_reduce_sum_adds_in_the_devices_order(fast_math: bool) -> None:
    """Against the specification, with signs, subnormals, infinities and NaN; `clear=False` adds the old value last."""
    from spec_flash import row_sum

    rng = np.random.default_rng(3)
    x = rng.integers(0, 2**32, (40, 24), dtype=np.uint32)
    x[:20] = (x[:20] & 0x807FFFFF) | 0x00800000  # near the least normal: sums become subnormal
    x[20:30] = (x[20:30] & 0x007FFFFF) | 0x3F000000  # ordinary and positive
    old = rng.integers(0, 2**32, 40, dtype=np.uint32)
    for clear in (True, False):
        T = block(fast_math=fast_math)
        out = fragment(T, old.view(np.float32))
        T.reduce_sum(fragment(T, x.view(np.float32)), out, clear=clear)
        sums = [row_sum([int(w) for w in row], fast_math) for row in x]
        expected = sums if clear else [spec.add(int(o), s, FP32, fast_math) for o, s in zip(old, sums, strict=True)]
        assert out.value().data[0].tolist() == expected


def test_copy_converts_and_reads_zero_out_of_bounds() -> None:
    T = block()
    tensor = Tensor("A", np.arange(6, dtype=np.float16).reshape(3, 2).view(np.uint16), FP16)
    shared = T.alloc_shared("A_shared", (4, 2), FP32)
    T.copy(tensor[1:5, :], shared)
    assert floats(shared).tolist() == [[2, 3], [4, 5], [0, 0], [0, 0]]
    narrow = T.alloc_fragment("narrow", (3,), E4M3)
    T.copy(fragment(T, [NAN, INF, -500.0]), narrow)
    assert narrow.value().data[0].tolist() == [0x7F, 0x7E, 0xFE]


def test_copy_drops_writes_out_of_bounds() -> None:
    T = block()
    tensor = Tensor("O", np.full((3,), 0xFFFF, np.uint16), FP16)
    T.copy(fragment(T, [1.0, 2.0, 3.0]), tensor[1:4])
    assert tensor.words.tolist() == [0xFFFF, 0x3C00, 0x4000]


@pytest.mark.parametrize("extents", [[3, 2, 0], [0, 2, 3], [2, 0, 3], [1, 1, 1]])
def test_blocks_read_their_own_rows_and_leave_a_loop_one_by_one(extents: list[int]) -> None:
    T = block(blocks=3)
    tensor = Tensor("A", np.arange(3, dtype=np.float16).view(np.uint16), FP16)
    start = np.array([2, 1, 0])
    own, total = T.alloc_fragment("own", (1,), FP32), T.alloc_fragment("total", (1,), FP32)
    T.copy(tensor[start : start + 1], own)
    T.fill(total, 10.0)
    for _ in T.Pipelined(np.array(extents)):
        (i,) = T.Parallel(1)
        total[i] = total[i] + own[i]
    expected = [10.0 + n * x for n, x in zip(extents, (2.0, 1.0, 0.0), strict=True)]
    assert total.value().data.view(np.float32).ravel().tolist() == expected


def test_what_all_blocks_share_is_held_once_until_some_write_their_own() -> None:
    T = block(blocks=3)
    x = T.alloc_fragment("x", (1,), FP32)
    T.fill(x, 1.0)
    assert x.value().data.shape == (1, 1)
    for k in T.Pipelined(np.array([0, 2, 1])):
        T.fill(x, 2.0 + k)
    assert x.value().data.view(np.float32).ravel().tolist() == [1.0, 3.0, 2.0]


def test_gemm_adds_to_the_live_accumulator() -> None:
    """2048 + 0.5 + 0.5 in one step keeps both halves; from zero and then rounded to fp16 it would not."""
    T = block()
    a, b, c = fragment(T, [[1.0, 1.0]], FP16), fragment(T, [[0.5], [0.5]], FP16), fragment(T, [[2.0**24]])
    T.gemm(a, b, c)
    assert floats(c).tolist() == [[2.0**24]]  # 2^24 + 1 is truncated
    c = fragment(T, [[-(2.0**24)]])
    T.gemm(a, fragment(T, [[0.5, 0.5]], FP16), c, transpose_B=True)
    assert floats(c).tolist() == [[-(2.0**24) + 1]]


def test_a_product_is_fused_with_the_sum_that_uses_it() -> None:
    a = 1.0 + 2.0**-12
    exact = 2.0**-11 + 2.0**-24  # a * a - 1, but a * a alone loses the last term
    T = block()
    x, one = fragment(T, [a]), fragment(T, [-1.0])
    (i,) = T.Parallel(1)
    for fused in (x[i] * a + one[i], one[i] + x[i] * a, x[i] * a - 1.0):
        assert fused.data.view(np.float32).item() == exact
    stored = T.alloc_fragment("stored", (1,), FP32)
    stored[i] = x[i] * a
    assert (stored[i] - 1.0).data.view(np.float32).item() == 2.0**-11


def test_where_pairs_are_packed_fast_math_splits_the_subtraction() -> None:
    """sm_100 and sm_120 (literature): mul2 and sub2 under fast math, one fma without."""
    a = 1.0 + 2.0**-12
    for fast_math, expected in ((True, 2.0**-11), (False, 2.0**-11 + 2.0**-24)):
        T = block(fast_math=fast_math, arch_name="sm_120")
        (i,) = T.Parallel(1)
        assert (fragment(T, [a])[i] * a - 1.0).data.view(np.float32).item() == expected


def test_a_select_does_not_leak_what_it_does_not_take() -> None:
    T = block()
    x, never = fragment(T, [NAN, 1.0]), T.alloc_fragment("never", (2,), FP32)
    i = T.Parallel(2)[0]
    out = T.if_then_else(i >= 1, x[i], 0.0)
    assert out.data.view(np.float32).tolist() == [[0.0, 1.0]] and out.poison is None
    assert T.if_then_else(i >= 1, x[i], never[i]).poison.tolist() == [[True, False]]  # type: ignore[union-attr]


def test_poison_follows_the_data() -> None:
    T = block()
    never, x = T.alloc_fragment("never", (2, 2), FP16), fragment(T, [[1.0, 2.0], [3.0, 4.0]], FP16)
    c = fragment(T, [[0.0, 0.0], [0.0, 0.0]])
    T.gemm(x, never, c)
    assert c.value().poison.all()  # type: ignore[union-attr]
    T.clear(c)
    assert c.value().poison is None
    half = T.alloc_fragment("half", (2, 2), FP32)
    i, j = T.Parallel(2, 2)
    half[i, j] = T.if_then_else(i >= 1, fragment(T, [[1.0, 1.0], [1.0, 1.0]])[i, j], half[i, j])
    row = T.alloc_fragment("row", (2,), FP32)
    T.reduce_sum(half, row)
    assert row.value().poison.tolist() == [[True, False]]  # type: ignore[union-attr]
    T.reduce_sum(fragment(T, [[1.0, 1.0], [1.0, 1.0]]), row, clear=False)
    assert row.value().poison.tolist() == [[True, False]]  # type: ignore[union-attr]


def test_what_is_not_modelled_is_refused_by_name() -> None:
    T = block()
    x, y = fragment(T, [1.0]), fragment(T, [1.0], BF16)
    (i,) = T.Parallel(1)
    with pytest.raises(TypeError, match="operands must have one dtype, not float32 and bfloat16"):
        _ = x[i] + y[i]
    with pytest.raises(NotImplementedError, match="reduce_max is modelled over dim=1"):
        T.reduce_max(x, x, dim=0)
    with pytest.raises(ValueError, match="sm_70 has no modelled dot product of bfloat16"):
        arch("sm_70").dot(BF16)
