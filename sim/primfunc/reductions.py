"""Reductions and scans of a tile, in the order in which the device adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import BF16, FP16, Format, Integer
from ..machine import Exact
from ..values import Index, Value
from .frame import Frame, Unsupported
from .region import Region

if TYPE_CHECKING:
    from .statements import Statements

__all__ = ["REDUCTIONS"]

Run = Callable[[Frame], None]
_MERGE = {"sum": "add", "abssum": "add", "max": "max", "absmax": "max", "min": "min"}
_INTEGER = {"sum": np.add, "max": np.maximum, "min": np.minimum, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
            "bitxor": np.bitwise_xor}  # fmt: skip
_SEGMENT = 32  # elements that a warp scans at once (src/tl_templates/cuda/scan.h of TileLang 0.1.15)


def _reduce(statements: Statements, call: Any) -> Run:
    """Source elements become the target's dtype, then merge."""
    source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
    op, dim, clear = str(call.args[2].value), int(call.args[3]), bool(call.args[4])
    spread = bool(call.annotations and call.annotations.get("nan_propagate"))
    number, extents = statements.reductions, source.sizes()
    statements.reductions += 1
    if isinstance(source.fmt, Integer) and isinstance(target.fmt, Integer) and op in _INTEGER:
        return _reduce_integers(source, target, _INTEGER[op], dim, clear)
    if op not in _MERGE or not (isinstance(source.fmt, Format) and isinstance(target.fmt, Format)):
        raise Unsupported(f"reduce {op} of {source.fmt.name} into {target.fmt.name}")
    if spread and (target.fmt not in (FP16, BF16) or source.fmt is not target.fmt):
        raise Unsupported(f"reduce with nan_propagate of {source.fmt.name} into {target.fmt.name}")
    fmt, ordered, contraction = target.fmt, _MERGE[op] == "add", statements.translator.contraction
    fused, first_only = contraction.keeps(call), contraction.keeps_first(call)
    if ordered:
        statements.sums.append(number)

    def run(frame: Frame) -> None:
        value, machine = source.read(frame).reshaped(extents), frame.block.machine
        if source.fmt is not fmt:
            value = frame.convert(value, fmt)
        if ordered:
            out = _sum(frame.plans(number), machine, value if fused else value.rounded(), op, fmt, first_only)
        else:
            out = _extreme(machine, value.data, op, dim, fmt)
        result = Value(machine, fmt, out.reshape((out.shape[0], *target.shape)), _any(value.poison, dim, target.shape))
        old = None if clear else target.read(frame)
        if old is not None:
            result = old.combine(_MERGE[op], result)
        if spread:
            result = _spread(result, value.data, dim, old)
        target.write(frame, result, f"reduce_{op}")

    return run


def _spread(result: Value, source: np.ndarray, dim: int, old: Value | None) -> Value:
    """nan_propagate: the NaN word wherever a source element, or what the target held, is NaN (__hmax_nan)."""
    machine, fmt = result.machine, result.fmt
    data = result.data
    sources = [np.moveaxis(source, dim + 1, -1)] + ([] if old is None else [old.data[..., None]])
    for x in sources:
        spread = machine.spread_nan(x, fmt).reshape(-1, *data.shape[1:])
        data = machine.select(fmt.is_nan(machine.to_words(spread, fmt)), spread, data)
    return Value(machine, fmt, data, result.poison)


def _sum(plan: Any, machine: Exact, value: Value, op: str, fmt: Format, first_only: bool) -> np.ndarray:
    """A sum in the plan's order; products that are still open are fused with the additions (first_only: of Plan)."""
    if op == "abssum":
        return np.asarray(plan.sum(machine, machine.abs(value.data, fmt), fmt))
    if value.factors is not None:
        return np.asarray(plan.sum_products(machine, *value.factors, fmt, first_only))
    return np.asarray(plan.sum(machine, value.data, fmt))


def _extreme(machine: Exact, data: np.ndarray, op: str, dim: int, fmt: Format) -> np.ndarray:
    """max, min and absmax, in any order: NaN is dropped. absmax starts from 0, the others from an infinity."""
    if op == "absmax":
        data = machine.abs(data, fmt)
    out = machine.reduce("min" if op == "min" else "max", np.moveaxis(data, dim + 1, -1), None, fmt)
    return machine.max(machine.constant(0.0, fmt), out, fmt) if op == "absmax" else out


def _any(poison: np.ndarray | None, dim: int, shape: tuple[int, ...]) -> np.ndarray | None:
    if poison is None:
        return None
    found = np.asarray(poison.any(axis=dim + 1))
    return found.reshape((found.shape[0], *shape))


def _reduce_integers(source: Region, target: Region, function: Any, dim: int, clear: bool) -> Run:
    extents, fmt = source.sizes(), target.fmt

    def run(frame: Frame) -> None:
        value = source.read(frame).reshaped(extents)
        out = function.reduce(value.data.view(value.fmt.value_type).astype(np.int64), axis=dim + 1)
        out = out.reshape((out.shape[0], *target.shape))
        poison = _any(value.poison, dim, target.shape)
        if not clear:
            old = target.read(frame)
            out = function(out, old.data.view(fmt.value_type).astype(np.int64))
            poison = old.poison if poison is None else poison if old.poison is None else poison | old.poison
        target.write(frame, frame.block.as_value(Index(out, poison=poison), fmt), "reduce")

    return run


def _scanned(merge: str, identity: float) -> Callable[[Any, Any], Run]:
    """cumsum and cummax: a warp scans 32 elements along the axis at a time and carries the last result on."""

    def make(statements: Statements, call: Any) -> Run:
        source, target = Region(statements, call.args[0]), Region(statements, call.args[1])
        dim, reverse, fmt, extents = int(call.args[2]), bool(call.args[3]), source.fmt, source.sizes()
        if not isinstance(fmt, Format) or fmt is not target.fmt:
            raise Unsupported(f"cum{merge} of {fmt.name} into {target.fmt.name}")

        def run(frame: Frame) -> None:
            value, machine = source.read(frame).reshaped(extents), frame.block.machine
            data = np.moveaxis(value.data, dim + 1, -1)
            out = _scan(machine, data, merge, machine.constant(identity, fmt), reverse, fmt)
            out = np.moveaxis(out, -1, dim + 1)
            poison = None
            if value.poison is not None:  # what reaches an element is not followed
                poison = np.broadcast_to(value.poison.any(axis=dim + 1, keepdims=True), out.shape)
            target.write(frame, Value(machine, fmt, out, poison).reshaped(source.shape), "scan")

        return run

    return make


def _scan(machine: Exact, x: np.ndarray, merge: str, identity: np.ndarray, reverse: bool, fmt: Format) -> np.ndarray:
    """x [..., N] scanned inclusively, its segments padded with the identity at the end of the axis."""
    n, function = x.shape[-1], getattr(machine, merge)
    x = np.concatenate([x, np.full((*x.shape[:-1], -n % _SEGMENT), identity)], axis=-1)
    x = x[..., ::-1] if reverse else x
    carry, parts = np.full((*x.shape[:-1], 1), identity), []
    for first in range(0, x.shape[-1], _SEGMENT):
        part, offset = x[..., first : first + _SEGMENT], 1
        while offset < _SEGMENT:
            moved = function(part[..., offset:], part[..., :-offset], fmt)
            part = np.concatenate([part[..., :offset], moved], axis=-1)
            offset *= 2
        part = function(part, carry, fmt)
        carry = part[..., -1:]
        parts.append(part)
    out = np.concatenate(parts, axis=-1)
    return (out[..., ::-1] if reverse else out)[..., :n]


REDUCTIONS: dict[str, Callable[[Any, Any], Run]] = {
    "tl.tileop.reduce": _reduce,
    "tl.tileop.cumsum": _scanned("add", 0.0),
    "tl.tileop.cummax": _scanned("max", float("-inf")),
}
