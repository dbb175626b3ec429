"""TIR expressions as Python functions of a frame: translated once, evaluated for all lanes and loop elements at once.

An integer is a Python int where it is the same everywhere, else an Index; a float is a Value. Every node type and every
call that is not in the tables here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..formats import FP32, TF32, DType, Format, Integer
from ..values import Index, Value, either, lift, select
from .contraction import Contraction, exact_reciprocal
from .frame import Frame, Unsupported, dtype_of

__all__ = ["Evaluate", "Translator", "as_index", "condition"]

Evaluate = Callable[[Frame], Any]

_INTEGER: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}
_FLOAT: dict[str, Callable[[Value, Value], Value]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Max": lambda a, b: a.combine("max", b),
    "Min": lambda a, b: a.combine("min", b),
}
_DIVISIONS = ("Div", "Mod", "FloorDiv", "FloorMod")
_COMPARE = ("EQ", "NE", "LT", "LE", "GT", "GE")
_UNARY = {"tirx.fabs": "abs", "tirx.nearbyint": "nearbyint"} | {
    f"tirx.{name}": name for name in ("exp2", "exp", "log2", "log", "rsqrt", "sqrt", "floor", "ceil", "trunc")
}
_ANY_FORMAT = ("abs", "floor", "ceil", "trunc", "nearbyint")  # exact in every format
_UNSIGNED_WRAPS = ("Add", "Sub", "Mul", "tirx.shift_left")


def as_index(x: Any) -> Index:
    """An integer as an Index of one element."""
    return x if isinstance(x, Index) else Index(np.asarray(x).reshape(1))


def _integer(name: str, a: Any, b: Any) -> Any:
    """An integer operation; Python's where both operands are the same everywhere."""
    function = _INTEGER[name]
    if isinstance(a, Index):
        return a.apply(function, b)
    if isinstance(b, Index):
        return b.apply(function, a, swap=True)
    result = function(a, b)
    return bool(result) if result.dtype == bool else int(result)


def condition(x: Any) -> bool | Index:
    """A boolean expression's result: one bool, or an Index of bools."""
    if isinstance(x, Index):
        return bool(x.at.flat[0]) if x.at.size == 1 and x.poison is None else Index(x.at != 0, poison=x.poison)
    return bool(x)


class Translator:
    """Translates expressions; `load` makes the function that reads a buffer (the statements know the buffers)."""

    def __init__(self, load: Callable[[Any], Evaluate], need: Callable[[str], None] = lambda what: None):
        self._load, self._need = load, need
        self.refused: dict[Any, str] = {}  # variables that have no value here, and what they are
        self.contraction = Contraction()

    def expression(self, e: Any) -> Evaluate:
        """The function that evaluates `e`. Raises Unsupported by name."""
        e = self.contraction.cancelled(e)
        kind = type(e).__name__
        if kind == "IntImm":
            value = int(e.value)
            return lambda frame: value
        if kind == "FloatImm":
            return self._constant(float(e.value), dtype_of(e))
        if kind == "Var":
            if e in self.refused:
                raise Unsupported(self.refused[e])
            return lambda frame: frame.read(e)
        if kind == "BufferLoad":
            return self._load(e)
        if kind == "Cast":
            return self._cast(e)
        if kind == "Select":
            return self._select(e.condition, e.true_value, e.false_value)
        if kind == "Not":
            inner = self.expression(e.a)
            return lambda frame: _negate(inner(frame))
        if kind == "Call":
            found = self._call(e)
            self._need(f"{e.op.name} of {e.dtype}" if e.op.name in _UNARY else e.op.name)
            return found
        if hasattr(e, "a") and hasattr(e, "b"):
            return self._binary(kind, e.a, e.b, str(e.dtype), self.contraction.operand(e), self.contraction.entering(e))
        raise Unsupported(f"expression {kind}")

    def _constant(self, value: float, fmt: DType) -> Evaluate:
        assert isinstance(fmt, Format)
        return lambda frame: frame.constant(value, fmt)

    def _binary(
        self, kind: str, left: Any, right: Any, dtype: str, fused: str | None = None, entering: bool = False
    ) -> Evaluate:
        operand = dtype_of(left)
        a, b = self.expression(left), self.expression(right)
        if isinstance(operand, Integer):
            if kind in _DIVISIONS:
                return lambda frame: _divided(kind, a(frame), b(frame), frame)
            if kind not in _INTEGER:
                raise Unsupported(f"integer {kind}")
            if kind in ("And", "Or"):
                return lambda frame: _lazy(kind, a, b, frame)
            wraps = operand.bits if not operand.signed and kind in _UNSIGNED_WRAPS else 0
            if wraps:
                return lambda frame: _integer("tirx.bitwise_and", _integer(kind, a(frame), b(frame)), (1 << wraps) - 1)
            return lambda frame: _integer(kind, a(frame), b(frame))
        if kind in _COMPARE:
            return lambda frame: _compare(kind, a(frame), b(frame))
        if kind not in _FLOAT or kind == "Div" and operand is not FP32 or operand is TF32:
            raise Unsupported(f"{operand.name} {kind}")
        if kind in ("Add", "Sub"):
            return _sum(_FLOAT[kind], a, b, fused, entering)
        if kind == "Mul" and _is(right, -1.0):
            return lambda frame: -a(frame)
        if kind == "Div" and type(right).__name__ == "FloatImm":
            return _scaled(a, b, float(np.float32(right.value)))
        function = _FLOAT[kind]
        return lambda frame: function(a(frame), b(frame))

    def _cast(self, e: Any) -> Evaluate:
        inner, source, target = self.expression(e.value), dtype_of(e.value), dtype_of(e)
        if isinstance(source, Integer) and isinstance(target, Integer):
            return lambda frame: _wrap(inner(frame), target)
        if isinstance(source, Integer):
            return lambda frame: frame.from_integer(as_index(inner(frame)), target)
        if isinstance(target, Integer):
            return lambda frame: frame.to_integer(inner(frame), target)
        return lambda frame: frame.convert(inner(frame), target)

    def _select(self, chosen: Any, left: Any, right: Any) -> Evaluate:
        test, a, b = self.expression(chosen), self.expression(left), self.expression(right)

        def choose(frame: Frame) -> Any:
            taken = condition(test(frame))
            if isinstance(taken, bool):
                return a(frame) if taken else b(frame)
            if taken.at.all() and taken.poison is None:
                return a(frame)
            if not taken.at.any() and taken.poison is None:
                return b(frame)
            with frame.guard(taken):
                x = a(frame)
            with frame.guard(_negate(taken)):
                y = b(frame)
            return select(taken, x, y)

        return choose

    def _clamp(self, x: Any, low: Any, high: Any) -> Evaluate:
        a, b, c = (self.expression(e) for e in (x, low, high))
        if isinstance(dtype_of(x), Integer):
            return lambda frame: _integer("Min", _integer("Max", a(frame), b(frame)), c(frame))
        return lambda frame: _clamped(a(frame), b(frame), c(frame))

    def _sigmoid(self, e: Any) -> Evaluate:
        """1 / (1 + expf(0 - x)), as TileLang writes it out."""
        inner, fmt = self.expression(e.args[0]), dtype_of(e)
        if fmt is not FP32:
            raise Unsupported(f"tirx.sigmoid of {fmt.name}")

        def run(frame: Frame) -> Value:
            one = frame.constant(1.0, fmt)
            return one / (one + (frame.constant(0.0, fmt) - inner(frame)).apply("exp"))

        return run

    def _inverted(self, e: Any) -> Evaluate:
        inner, dtype = self.expression(e.args[0]), dtype_of(e)
        assert isinstance(dtype, Integer)
        return lambda frame: _wrap(_integer("tirx.bitwise_xor", inner(frame), -1), dtype)

    def _call(self, e: Any) -> Evaluate:
        name = e.op.name
        if name in ("tirx.if_then_else", "tl.if_then_else"):
            return self._select(*e.args)
        if name == "tl.infinity":
            return self._constant(float("inf"), dtype_of(e))
        if name in _INTEGER:
            return self._binary(name, e.args[0], e.args[1], str(e.dtype))
        if name in _UNARY and isinstance(fmt := dtype_of(e), Format):
            if fmt is not FP32 and _UNARY[name] not in _ANY_FORMAT:
                raise Unsupported(f"{name} of {fmt.name}")
            inner, function = self.expression(e.args[0]), _UNARY[name]
            return lambda frame: frame.unary(function, inner(frame))
        if name in ("tirx.isnan", "tirx.isinf"):
            inner, test = self.expression(e.args[0]), name[5:]
            return lambda frame: frame.classify(test, inner(frame))
        if name == "tl.clamp":
            return self._clamp(*e.args)
        if name == "tirx.reinterpret":
            inner, target = self.expression(e.args[0]), dtype_of(e)
            source = dtype_of(e.args[0])
            if source.bits != target.bits:
                raise Unsupported(f"reinterpret from {source.name} to {target.name}")
            return lambda frame: frame.reinterpret(inner(frame), source, target)
        if name == "tirx.sigmoid":
            return self._sigmoid(e)
        if name == "tirx.bitwise_not":
            return self._inverted(e)
        if name in ("tirx.likely", "tl.likely"):
            return self.expression(e.args[0])
        raise Unsupported(f"function {name}")


def _sum(
    function: Callable[[Value, Value], Value], a: Evaluate, b: Evaluate, fused: str | None, entering: bool
) -> Evaluate:
    """a + b or a - b, where the operand that `fused` names is a product that the compiler contracts with it.

    entering: the left one instead, in the turn of a loop in which it is one
    """

    def run(frame: Frame) -> Value:
        left, right = a(frame), b(frame)
        which = "a" if entering and left.factors is not None else fused
        chosen = {"a": left, "b": right}.get(which or "")
        if chosen is not None and chosen.factors is None:
            raise Unsupported("a fused product that not all running blocks hold")
        return function(left if which == "a" else left.rounded(), right if which == "b" else right.rounded())

    return run


def _scaled(a: Evaluate, b: Evaluate, divisor: float) -> Evaluate:
    """a / divisor, a literal: a product with the reciprocal with fast math, or when that is exact."""

    def run(frame: Frame) -> Value:
        x = a(frame)
        if divisor and np.isfinite(divisor) and (x.machine.fast_math or exact_reciprocal(divisor)):
            return x * (1.0 / divisor)
        return x / b(frame)

    return run


def _is(e: Any, value: float) -> bool:
    return type(e).__name__ == "FloatImm" and float(e.value) == value


def _clamped(x: Value, low: Value, high: Value) -> Value:
    rank = max(v.data.ndim for v in (x, low, high)) - 1
    a, b, c = (lift(v.data, rank) if v.data.ndim else v.data for v in (x, low, high))
    return Value(x.machine, x.fmt, x.machine.clamp(a, b, c, x.fmt), either(x.poison, either(low.poison, high.poison)))


def _negate(x: Any) -> Any:
    return Index(np.logical_not(x.at), poison=x.poison) if isinstance(x, Index) else not x


def _lazy(kind: str, a: Evaluate, b: Evaluate, frame: Frame) -> Any:
    """`and` and `or`: the right operand is evaluated only where it matters."""
    left = condition(a(frame))
    if isinstance(left, bool):
        return condition(b(frame)) if left == (kind == "And") else left
    with frame.guard(left if kind == "And" else _negate(left)):
        right = b(frame)
    return _integer(kind, left, right)


def _divided(kind: str, a: Any, b: Any, frame: Frame) -> Any:
    """An integer division or remainder: C's toward zero, or floored. Division by zero is reported and unknown."""
    divisor = as_index(b)
    zero = divisor.at == 0
    if zero.any():
        really = Index(zero) if frame.guarded is None else Index(zero).apply(np.logical_and, frame.guarded)
        if really.at.any():
            lane = np.unravel_index(int(np.argmax(really.at)), really.at.shape)[0] if len(really.at) > 1 else None
            operator = "division" if kind.endswith("Div") else "remainder"
            frame.block.report("division_by_zero", "an integer", operator, None if lane is None else int(lane))
        b = Index(np.where(zero, 1, divisor.at), poison=either(divisor.poison, zero))
    if kind in ("FloorDiv", "FloorMod"):
        return _integer(kind, a, b)
    result = as_index(a).apply(_quotient if kind == "Div" else _remainder, b)
    return result if isinstance(a, Index) or isinstance(b, Index) else int(result.at[0])


def _quotient(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """C's integer division: toward zero."""
    return np.abs(p) // np.abs(q) * np.sign(p) * np.sign(q)


def _remainder(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return p - _quotient(p, q) * q


def _wrap(x: Any, target: Integer) -> Any:
    """An integer in `target`'s range, as a C conversion."""
    if target.name == "bool":
        return condition(x)
    if isinstance(x, Index):
        return Index(x.at.astype(target.value_type).astype(np.int64), x.axis, x.poison)
    return int(np.asarray(int(x)).astype(target.value_type))


def _compare(kind: str, a: Value, b: Value) -> Index:
    """A comparison of floats: false with NaN, but for !=."""
    rank = max(a.data.ndim, b.data.ndim) - 1
    x, y = (lift(v.data, rank) if v.data.ndim else v.data for v in (a, b))
    result = np.asarray(a.machine.compare(kind, x, y, a.fmt))
    return Index(result.reshape((1,) + result.shape) if not result.ndim else result, poison=either(a.poison, b.poison))
