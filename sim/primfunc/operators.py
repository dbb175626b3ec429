"""Tile operators of a PrimFunc: each translated to the tile operator of sim.tile that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import FP32, TF32, DType, Format, Integer
from ..tile import gemm_poison
from ..values import Index, Value, lift, select
from .atomics import ATOMICS
from .expressions import as_index, condition
from .frame import Frame, Unsupported
from .reductions import REDUCTIONS
from .region import Region

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["OPERATORS"]

Run = Callable[[Frame], None]


def _fill(statements: Statements, call: Any) -> Run:
    target, value = Region(statements, call.args[0]), statements.translator.expression(call.args[1])

    def run(frame: Frame) -> None:
        x = value(frame)
        if isinstance(target.fmt, Format) and not isinstance(x, Value):
            x = frame.constant(float(x), target.fmt) if not isinstance(x, Index) else frame.from_integer(x, target.fmt)
        x = frame.block.as_value(x, target.fmt)
        data = lift(x.data, len(target.shape))
        target.write(frame, Value(x.machine, x.fmt, np.broadcast_to(data, (data.shape[0], *target.shape))), "fill")

    return run


def _copy(statements: Statements, call: Any) -> Run:
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    source.matched(target)
    target.matched(source)
    if source.shape != target.shape:
        raise Unsupported(f"a copy of {source.extents} to {target.extents}")
    convert, keep = _conversion(source.fmt, target.fmt), statements.translator.contraction.keeps(call)
    number = statements.stage(source.access, target.access)

    def run(frame: Frame) -> None:
        if number in frame.plans.lost:  # the warps that use the fragment do not see this copy
            frame.block.report("producer_only", target.name, "copy")
            return
        target.write(frame, convert(frame, source.read(frame)), "copy", keep)

    return run


def _conversion(source: DType, target: DType) -> Callable[[Frame, Value], Value]:
    """How a copy casts; float formats convert as they are stored."""
    if isinstance(source, Format):
        if isinstance(target, Format):
            return lambda frame, x: x
        return lambda frame, x: frame.block.as_value(frame.to_integer(x, target), target)

    def from_integer(frame: Frame, x: Value) -> Value:
        at = Index(x.data.view(source.value_type).astype(np.int64), poison=x.poison)
        return frame.block.as_value(at, target) if isinstance(target, Integer) else frame.from_integer(at, target)

    return (lambda frame, x: x) if source is target else from_integer


def _transpose(statements: Statements, call: Any) -> Run:
    """target[..., j, i] = source[..., i, j]."""
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    extents = source.sizes()
    if source.fmt is not target.fmt or (*extents[:-2], extents[-1], extents[-2]) != target.sizes():
        raise Unsupported(f"a transpose of {source.fmt.name} {extents} to {target.fmt.name} {target.sizes()}")

    def run(frame: Frame) -> None:
        value = source.read(frame).reshaped(extents)
        data, poison = (None if x is None else np.swapaxes(x, -1, -2) for x in (value.data, value.poison))
        target.write(frame, Value(value.machine, value.fmt, data, poison).reshaped(target.shape), "transpose")

    return run


def _im2col(statements: Statements, call: Any) -> Run:
    """Rows of image patches: element [m, k] of the tile is the pixel that output pixel m meets under weight k.

    The image is [N, H, W, C], weights are numbered by height, width, channel; outside of the image is 0.
    """
    image, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    kernel, stride, dilation, pad = (int(x) for x in call.args[4:8])
    steps = [statements.translator.expression(x) for x in call.args[2:4]]
    if image.fmt is not target.fmt or len(image.sizes()) != 4 or not image.access.is_global or len(target.shape) != 2:
        raise Unsupported(f"im2col of {image.name} into {target.name}: a 4-D image into a 2-D tile of its dtype")
    (_, H, W, C), (rows, columns) = image.sizes(), target.shape
    high, wide = ((n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in (H, W))

    def run(frame: Frame) -> None:
        with frame.block.walking(target.shape):
            i, j = frame.block.Parallel(rows, columns)
            m, k = (as_index(step(frame)) * size + x for step, size, x in zip(steps, target.shape, (i, j), strict=True))
            row = _spread(m, wide, high, stride), _spread(m, 1, wide, stride)
            tap = k.apply(np.floor_divide, kernel * C), k.apply(np.floor_divide, C).apply(np.mod, kernel)
            y, x = (r + t * dilation - pad for r, t in zip(row, tap, strict=True))
            key = m.apply(np.floor_divide, high * wide), y, x, k.apply(np.mod, C)
            found = image.access.get(frame).load(key, frame.block)
        target.write(frame, found, "im2col")

    return run


def _spread(m: Index, step: int, count: int, stride: int) -> Index:
    """The first pixel of output pixel m along an axis: (m / step % count) * stride."""
    return m.apply(np.floor_divide, step).apply(np.mod, count) * stride


def _device_assert(statements: Statements, call: Any) -> Run:
    """T.device_assert: a block for which it does not hold is reported; what it computes goes on."""
    test = statements.translator.expression(call.args[0])
    said = str(call.args[1].value).partition("\n")[0] if len(call.args) > 1 else ""
    message = said or "a condition"

    def run(frame: Frame) -> None:
        holds = condition(test(frame))
        if holds is False or isinstance(holds, Index) and not holds.at.all():
            frame.block.report("device_assert", message, "device_assert")

    return run


def _gemm(statements: Statements, call: Any) -> Run:
    a, b, c = (Region(statements, call.args[i]) for i in range(3))
    transpose_A, transpose_B = bool(call.args[3]), bool(call.args[4])
    clear = statements.translator.expression(call.args[9])
    if a.fmt is not b.fmt:
        raise Unsupported(f"a gemm of {a.fmt.name} and {b.fmt.name}")
    if isinstance(a.fmt, Integer) and isinstance(c.fmt, Integer):
        return _integer_gemm(a, b, c, transpose_A, transpose_B, clear)
    if not (isinstance(a.fmt, Format) and isinstance(c.fmt, Format)):
        raise Unsupported(f"a gemm of {a.fmt.name} into {c.fmt.name}")
    operand = TF32 if a.fmt is FP32 else a.fmt
    statements.gemms.append((operand, c.fmt, statements.where))

    def run(frame: Frame) -> None:
        x, y, machine = a.read(frame), b.read(frame), frame.block.machine
        z = _kept(frame, clear, c)
        if z.poison is not None:
            frame.block.report("uninitialised", c.name, "gemm")
        left = np.swapaxes(x.data, -1, -2) if transpose_A else x.data
        right = y.data if transpose_B else np.swapaxes(y.data, -1, -2)
        data = machine.dot(left, right, z.data, operand, z.fmt)
        poison = gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
        c.write(frame, Value(machine, z.fmt, data, poison), "gemm")

    return run


def _kept(frame: Frame, clear: Any, accumulator: Region) -> Value:
    """What a gemm adds to: the accumulator, or 0 in the thread blocks where clear_accum holds."""
    cleared, old = condition(clear(frame)), accumulator.read(frame)
    zero = Value(old.machine, old.fmt, np.zeros((1, *accumulator.shape), old.data.dtype))
    if isinstance(cleared, bool):
        return zero if cleared else old
    found: Value = select(cleared, zero, old)
    return found


def _integer_gemm(a: Region, b: Region, c: Region, transpose_A: bool, transpose_B: bool, clear: Any) -> Run:
    """int8 into int32: exact, modulo 2^32."""

    def run(frame: Frame) -> None:
        x, y, z = a.read(frame), b.read(frame), _kept(frame, clear, c)
        left, right, old = (v.data.view(v.fmt.value_type).astype(np.int64) for v in (x, y, z))
        left = np.swapaxes(left, -1, -2) if transpose_A else left
        right = np.swapaxes(right, -1, -2) if transpose_B else right
        total = np.matmul(left, right) + old
        poison = gemm_poison(x.poison, y.poison, z.poison, transpose_A, transpose_B)
        c.write(frame, frame.block.as_value(Index(total, poison=poison), c.fmt), "gemm")

    return run


OPERATORS: dict[str, Callable[[Any, Any], Run]] = {
    "tl.tileop.fill": _fill,
    "tl.tileop.copy": _copy,
    "tl.tileop.tma_copy": _copy,
    "tl.tileop.async_copy": _copy,
    "tl.tileop.transpose": _transpose,
    "tl.tileop.im2col": _im2col,
    "tl.tileop.gemm": _gemm,
    "tl.tileop.wgmma_gemm": _gemm,
    "tl.device_assert": _device_assert,
    "tl.device_assert_with_msg": _device_assert,
    **REDUCTIONS,
    **ATOMICS,
}
