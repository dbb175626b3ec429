"""Run a TileLang kernel on the CPU: `run` gives the outputs, `simulate` all that is known of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arch import arch as find_arch
from ..formats import DType, Integer, dtype_named, from_words, to_words
from ..machine import Exact
from ..tile import Block, Index, Tensor, Undetermined, either
from .expressions import Translator
from .frame import Frame, Unsupported
from .lowering import Plan, make_plan, reduction_plans
from .statements import Program, Statements, Uses

__all__ = ["Result", "run", "simulate"]

TILELANG = "0.1.15"
_TARGET = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


@dataclass
class Result:
    """What a kernel gave.

    outputs:      the output tensors, in the order of the parameters
    undetermined: for each output a bool mask of the elements that cannot be known, or None
    events:       (kind, buffer, operator) of what a kernel should not do: out_of_bounds, race
    basis:        what the words rest on, one line
    """

    outputs: list[Any]
    undetermined: list[np.ndarray | None]
    events: list[tuple[str, str, str]] = field(default_factory=list)
    basis: str = ""


def run(kernel: Any, *arrays: Any, arch: str = "sm_90", args: tuple = (), kwargs: dict | None = None,
        pass_configs: dict | None = None) -> Any:  # fmt: skip
    """The outputs of `kernel`: one array, or a list of them. Raises Undetermined where a word cannot be known.

    Arguments as of `simulate`.
    """
    result = simulate(kernel, *arrays, arch=arch, args=args, kwargs=kwargs, pass_configs=pass_configs)
    unknown = sum(int(mask.sum()) for mask in result.undetermined if mask is not None)
    if unknown:
        raise Undetermined(f"{unknown} outputs depend on memory that nobody wrote, or on a race")
    return result.outputs[0] if len(result.outputs) == 1 else result.outputs


def simulate(kernel: Any, *arrays: Any, arch: str = "sm_90", args: tuple = (), kwargs: dict | None = None,
             pass_configs: dict | None = None, blocks: Iterable[int] | None = None) -> Result:  # fmt: skip
    """Run `kernel` (a PrimFunc, a @tilelang.jit function or a compiled kernel) on the CPU, word for word.

    arrays: the tensors of the PrimFunc without those of out_idx; args, kwargs: a jit function's builder arguments.
    blocks: only these thread blocks of each launch, by their number in the grid (the last blockIdx fastest); what they
    do not write of an output is undetermined.
    Raises Unsupported by name and source line before anything is computed.
    """
    pf, out_idx, configs = _prim_func(kernel, args, kwargs or {})
    configs = configs if pass_configs is None else pass_configs
    record = find_arch(arch)
    tensors, outputs, sizes = _tensors(pf, arrays, out_idx)
    statements = Statements({pf.buffer_map[p].data: t for p, t in tensors.items()}, sizes)
    statements.uses = Uses(pf.body)
    statements.statement(pf.body)
    plans = _Plans(pf, _TARGET.get(record.name, record.name), configs, statements)
    found = [tensors[pf.params[i]] for i in outputs]
    for tensor in found if blocks is not None else ():
        tensor.stored = np.zeros(tensor.words.shape, bool)
    machine = Exact(record, bool(configs.get("tl.enable_fast_math", False)))
    events: list[tuple[str, str, str]] = []
    for program in statements.programs:
        events += _launch(program, machine, plans, sizes, None if blocks is None else list(blocks))
    like = arrays[0] if arrays else None
    return Result(
        [_as_array(t, like) for t in found],
        [_unknown(t) for t in found],
        sorted(set(events)),
        f"{'measured' if record.measured else 'literature'} arithmetic of {record.name}; contraction by rule",
    )


def _unknown(tensor: Tensor) -> np.ndarray | None:
    """The elements that cannot be known: poison, and what the chosen blocks did not write."""
    mask = either(tensor.poison, None if tensor.stored is None else ~tensor.stored)
    return mask if mask is not None and mask.any() else None


def _as_array(tensor: Tensor, like: Any) -> Any:
    if isinstance(tensor.fmt, Integer):
        return tensor.words.view(tensor.fmt.value_type)
    return from_words(tensor.words, tensor.fmt, like)


def _prim_func(kernel: Any, args: tuple, kwargs: dict) -> tuple[Any, list[int] | None, dict[str, Any]]:
    """The PrimFunc, its out_idx and its pass configuration."""
    try:
        import tilelang
    except ImportError as error:
        raise Unsupported("a TileLang kernel without TileLang installed (pip install tilelang==0.1.15)") from error
    if tilelang.__version__ != TILELANG:
        raise Unsupported(f"TileLang {tilelang.__version__} (only {TILELANG}: check its operators' lowering first)")
    if type(kernel).__name__ == "PrimFunc":
        return kernel, None, {}
    if hasattr(kernel, "prim_func"):
        return kernel.prim_func, getattr(kernel, "out_idx", None), dict(getattr(kernel, "pass_configs", None) or {})
    kernel = getattr(kernel, "jit_impl", kernel)
    if hasattr(kernel, "get_tir"):
        configs = {getattr(k, "value", k): v for k, v in (kernel.pass_configs or {}).items()}
        return kernel.get_tir(*args, **kwargs), kernel.out_idx, configs
    raise TypeError(
        f"kernel must be a PrimFunc, a @tilelang.jit function or a compiled kernel, not {type(kernel).__name__}"
    )


def _tensors(pf: Any, arrays: tuple, out_idx: Any) -> tuple[dict[Any, Tensor], list[int], dict[Any, Any]]:
    """The tensors by parameter, which of them are outputs, and the values of symbolic sizes and scalar parameters."""
    count = len(pf.params)
    marked = pf.attrs.get("tilelang_out_idx") if out_idx is None and pf.attrs else out_idx
    outputs = sorted({(int(i) + count) % count for i in ([marked] if isinstance(marked, int) else marked or [])})
    inputs = [i for i in range(count) if i not in outputs]
    if len(arrays) != len(inputs):
        raise ValueError(
            f"arrays must be the {len(inputs)} tensors {[str(pf.params[i].name) for i in inputs]}, not {len(arrays)}"
        )
    tensors: dict[Any, Tensor] = {}
    given = dict(zip(inputs, arrays, strict=True))
    sizes: dict[Any, Any] = {}
    for i, parameter in enumerate(pf.params):
        if parameter not in pf.buffer_map:
            sizes[parameter] = int(given[i])
        elif i in given:
            _bind_sizes(pf.buffer_map[parameter], given[i], sizes)
    resolve = Statements({}, sizes)
    for i, parameter in enumerate(pf.params):
        if parameter in pf.buffer_map:
            buffer = pf.buffer_map[parameter]
            tensors[parameter] = _tensor(
                buffer, resolve.shape(buffer.shape), dtype_named(str(buffer.dtype)), given.get(i)
            )
    return tensors, outputs or written(pf), sizes


def _bind_sizes(buffer: Any, array: Any, sizes: dict[Any, Any]) -> None:
    """Give each symbolic size of a buffer its value from the array that is passed."""
    shape = array[0].shape if isinstance(array, tuple) else array.shape
    for symbol, size in zip(buffer.shape, shape, strict=False):
        if type(symbol).__name__ == "Var" and sizes.setdefault(symbol, int(size)) != int(size):
            raise ValueError(f"{buffer.name} has {symbol.name} = {int(size)}, another tensor {sizes[symbol]}")


def _tensor(buffer: Any, shape: tuple[int, ...], fmt: DType, array: Any) -> Tensor:
    if array is None:
        tensor = Tensor(str(buffer.name), np.zeros(shape, fmt.word), fmt)
        tensor.poison = np.ones(shape, bool)
        return tensor
    if isinstance(fmt, Integer):
        words = (
            np.array(array, fmt.value_type).view(fmt.word) if fmt.name != "bool" else np.array(array).astype(np.uint8)
        )
    else:
        words, own = to_words(array, str(buffer.name))
        if own is not fmt:
            raise TypeError(f"{buffer.name} must be {fmt.name}, not {own.name}")
    if words.shape != shape:
        raise ValueError(f"{buffer.name} must have shape {list(shape)}, not {list(words.shape)}")
    return Tensor(str(buffer.name), words, fmt)


def written(pf: Any) -> list[int]:
    """The parameters that the PrimFunc stores to."""
    from tvm.tirx import stmt_functor

    written: set[Any] = set()

    def note(node: Any) -> None:
        kind = type(node).__name__
        if kind == "BufferStore":
            written.add(node.buffer.data)
        elif kind == "Call" and getattr(node.op, "name", "") == "tl.region" and int(node.args[1]) & 2:
            written.add(node.args[0].buffer.data)

    stmt_functor.post_order_visit(pf.body, note)
    return [i for i, p in enumerate(pf.params) if p in pf.buffer_map and pf.buffer_map[p].data in written]


class _Plans:
    """The orders of sums, asked of the compiler when the first one is needed."""

    def __init__(self, pf: Any, target: str, configs: dict[str, Any], statements: Statements):
        self.pf, self.target, self.configs, self.statements = pf, target, configs, statements
        self.made: dict[int, Plan] = {}
        self.found: list[Any] | None = None

    def __call__(self, number: int, extents: tuple[int, ...], dim: int) -> Plan:
        if number not in self.made:
            if self.found is None:
                self.found = reduction_plans(self.pf, self.target, self.configs, self.statements.reductions)
            call, loop, layouts = self.found[number]
            self.made[number] = make_plan(call, loop, layouts, evaluate)
        return self.made[number]


def evaluate(e: Any, values: dict[Any, np.ndarray]) -> np.ndarray:
    """An integer expression's values for arrays of its variables."""

    def refuse(load: Any) -> Any:
        raise Unsupported("a load in a layout", load)

    frame = Frame(Block(None, 1, 1))  # type: ignore[arg-type]
    for variable, array in values.items():
        frame.bind(variable, Index(np.asarray(array)[None]))
    found = Translator(refuse).expression(e)(frame)
    return found.at[0] if isinstance(found, Index) else np.asarray(found)


def _launch(
    program: Program, machine: Exact, plans: _Plans, sizes: dict[Any, Any], blocks: list[int] | None
) -> list[tuple[str, str, str]]:
    """Run all thread blocks of one launch, some of them in step."""
    empty = Frame(Block(machine, 1, program.threads))
    empty.define(sizes)
    extents = []
    for _, _, extent in program.grid:
        size = extent(empty)
        if isinstance(size, Index):
            raise Unsupported("a grid whose extent is not a number")
        extents.append(int(size))
    grid = np.indices(extents).reshape(len(extents), -1)
    if blocks is not None:
        grid = grid[:, [b for b in blocks if b < grid.shape[1]]]
    step, events = 64, []
    for first in range(0, grid.shape[1], step):
        part = grid[:, first : first + step]
        frame = Frame(Block(machine, part.shape[1], program.threads))
        frame.plans = plans
        frame.define(sizes)
        for (variable, _, _), at in zip(program.grid, part, strict=True):
            frame.bind(variable, int(at[0]) if (at == at[0]).all() else Index(at.copy()))
        program.run(frame)
        events += frame.block.reports
    return events
