"""What a user calls a kernel, as a PrimFunc with its outputs and pass configuration, and its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats import FP32, TF32, DType, Integer, from_words, to_words
from ..memory import Tensor
from .frame import Unsupported, dtype_of
from .statements import Statements

__all__ = ["TILELANG", "Kernel", "Tensors", "as_array", "kernel_of", "sizes_of", "written"]

TILELANG = "0.1.15"


@dataclass
class Kernel:
    """A PrimFunc, the parameters that it returns (None: it says itself), its pass configuration, its name."""

    prim_func: Any
    out_idx: Any
    pass_configs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.prim_func.attrs["global_symbol"]) if self.prim_func.attrs else "main"

    def outputs(self) -> list[int]:
        """The parameters that the kernel returns; none when the caller passes all tensors."""
        attrs, count = self.prim_func.attrs, len(self.prim_func.params)
        marked = attrs.get("tilelang_out_idx") if self.out_idx is None and attrs else self.out_idx
        marked = [] if marked is None else [marked] if isinstance(marked, int) else marked
        return sorted({(int(i) + count) % count for i in marked})


def kernel_of(kernel: Any, arrays: tuple = (), args: tuple = (), kwargs: dict[str, Any] | None = None) -> Kernel:
    """The Kernel of a PrimFunc, a @tilelang.jit function or a compiled kernel. Arguments as of `simulate`."""
    try:
        import tilelang
    except ImportError as error:
        raise Unsupported("a TileLang kernel without TileLang installed (pip install tilelang==0.1.15)") from error
    if tilelang.__version__ != TILELANG:
        raise Unsupported(f"TileLang {tilelang.__version__} (only {TILELANG}: check its operators' lowering first)")
    if type(kernel).__name__ == "PrimFunc":
        return Kernel(kernel, None, _own_configs(kernel))
    if hasattr(kernel, "prim_func"):
        configs = _named(getattr(kernel, "pass_configs", None)) | _own_configs(kernel.prim_func)
        return Kernel(kernel.prim_func, getattr(kernel, "out_idx", None), configs)
    kernel = getattr(kernel, "jit_impl", kernel)
    if not hasattr(kernel, "get_tir"):
        raise TypeError(
            f"kernel must be a PrimFunc, a @tilelang.jit function or a compiled kernel, not {type(kernel).__name__}"
        )
    tensors = () if not getattr(kernel.func, "tensor_args", None) else tuple(_Shaped(a) for a in arrays)
    pf = kernel.get_tir(*tensors, *args, **(kwargs or {}))
    return Kernel(pf, kernel.out_idx, _named(kernel.pass_configs) | _own_configs(pf))


def _named(configs: Any) -> dict[str, Any]:
    return {str(getattr(k, "value", k)): v for k, v in (configs or {}).items()}


def _own_configs(pf: Any) -> dict[str, Any]:
    """What T.annotate_pass_configs left on the PrimFunc."""
    return _named(pf.attrs.get("tilelang_pass_configs") if pf.attrs else None)


class _Shaped:
    """A tensor argument of an eager kernel: TileLang asks only for its shape, strides and dtype."""

    def __init__(self, array: Any):
        words = array[0] if isinstance(array, tuple) else array
        self.shape = tuple(int(n) for n in words.shape)
        self.dtype = array[1].name if isinstance(array, tuple) else array.dtype

    def stride(self) -> tuple[int, ...]:
        return tuple(int(np.prod(self.shape[axis + 1 :])) for axis in range(len(self.shape)))


class Tensors:
    """The global memory of one run.

    by_parameter: a Tensor for each tensor parameter; outputs: the numbers of those that are given back;
    sizes: the values of symbolic sizes and scalar parameters
    """

    def __init__(self, kernel: Kernel, arrays: tuple):
        pf, self.outputs = kernel.prim_func, kernel.outputs()
        inputs = [i for i in range(len(pf.params)) if i not in self.outputs]
        if len(arrays) != len(inputs):
            names = [str(pf.params[i].name).removesuffix("_handle") for i in inputs]
            raise ValueError(f"arrays must be {', '.join(names) or 'none'}, not {len(arrays)} of them")
        given = dict(zip(inputs, arrays, strict=True))
        self.buffers = pf.buffer_map
        self.sizes = sizes_of(pf, given)
        self.by_parameter: dict[Any, Tensor] = {}
        resolve = Statements({}, self.sizes)
        for i, parameter in enumerate(pf.params):
            if parameter in pf.buffer_map:
                buffer = pf.buffer_map[parameter]
                shape = resolve.shape(buffer.shape)
                self.by_parameter[parameter] = _tensor(buffer, shape, dtype_of(buffer), given.get(i))
        self.outputs = self.outputs or written(pf)
        self.found = [self.by_parameter[pf.params[i]] for i in self.outputs]
        self.in_place = [(given[i], self.by_parameter[pf.params[i]]) for i in written(pf) if i in given]
        for array, tensor in self.in_place:
            flags = getattr(array[0] if isinstance(array, tuple) else array, "flags", None)
            if flags is not None and not flags.writeable:
                raise ValueError(f"{tensor.name} must be writable: the kernel stores to it")

    def by_data(self) -> dict[Any, Tensor]:
        """The tensors by the data variable of their buffers."""
        return {self.buffers[p].data: tensor for p, tensor in self.by_parameter.items()}

    def write_back(self) -> None:
        """Store what the kernel wrote into the arrays that the caller passed."""
        for array, tensor in self.in_place:
            if isinstance(array, tuple):
                array[0][...] = tensor.words.view(array[0].dtype)
            else:
                array[...] = as_array(tensor, array)


def as_array(tensor: Tensor, like: Any) -> Any:
    """The words of a tensor as an array of the kind of `like`."""
    if not isinstance(tensor.fmt, Integer):
        return from_words(tensor.words, FP32 if tensor.fmt is TF32 else tensor.fmt, like)
    values = tensor.words.view(bool if tensor.fmt.name == "bool" else tensor.fmt.value_type)
    if type(like).__module__.partition(".")[0] != "torch":
        return values
    import torch

    return torch.from_numpy(values).to(like.device)


def sizes_of(pf: Any, given: dict[int, Any]) -> dict[Any, Any]:
    """Symbolic sizes from the arrays that are passed, and scalar parameters."""
    sizes: dict[Any, Any] = {}
    for i, parameter in enumerate(pf.params):
        if parameter in pf.buffer_map:
            if i in given:
                _bind_sizes(pf.buffer_map[parameter], given[i], sizes)
        else:
            sizes[parameter] = (int if isinstance(dtype_of(parameter), Integer) else float)(given[i])
    return sizes


def _bind_sizes(buffer: Any, array: Any, sizes: dict[Any, Any]) -> None:
    """Give each symbolic size of a buffer its value from the array that is passed."""
    shape = getattr(array[0] if isinstance(array, tuple) else array, "shape", None)
    if shape is None:
        raise TypeError(
            f"{buffer.name} must be an array, a tensor or a pair (words, Format), not {type(array).__name__}"
        )
    if len(shape) != len(buffer.shape) or 0 in shape:
        raise ValueError(f"{buffer.name} must have {len(buffer.shape)} axes, none of them empty, not {list(shape)}")
    for symbol, size in zip(buffer.shape, shape, strict=True):
        if type(symbol).__name__ == "Var" and sizes.setdefault(symbol, int(size)) != int(size):
            raise ValueError(f"{buffer.name} has {symbol.name} = {int(size)}, another tensor {sizes[symbol]}")


def _tensor(buffer: Any, shape: tuple[int, ...], fmt: DType, array: Any) -> Tensor:
    if array is None:
        return Tensor.unwritten(str(buffer.name), shape, fmt)
    if isinstance(fmt, Integer):
        words = _integer_words(array, fmt, str(buffer.name))
    else:
        words, own = to_words(array, str(buffer.name))
        if own is not fmt and not (own is FP32 and fmt is TF32):
            accepted = FP32.name if fmt is TF32 else fmt.name
            raise TypeError(f"{buffer.name} must be {accepted}, not {own.name}")
    if words.shape != shape:
        raise ValueError(f"{buffer.name} must have shape {list(shape)}, not {list(words.shape)}")
    return Tensor(str(buffer.name), words, fmt)


def _integer_words(array: Any, fmt: Integer, name: str) -> np.ndarray:
    """A fresh copy of an integer array's words. Raises TypeError for another dtype."""
    values = np.array(array.detach().cpu() if hasattr(array, "detach") else array, order="C")
    accepted = ("bool", "uint8") if fmt.name == "bool" else (fmt.name,)
    if values.dtype.name not in accepted:
        raise TypeError(f"{name} must be {fmt.name}, not {values.dtype.name}")
    return values.view(fmt.word)


def written(pf: Any) -> list[int]:
    """The parameters that the PrimFunc stores to."""
    found = stores(pf.body)
    return [i for i, p in enumerate(pf.params) if p in pf.buffer_map and pf.buffer_map[p].data in found]


def stores(body: Any) -> set[Any]:
    """The data variables of the buffers that a statement stores to."""
    from tvm.tirx import stmt_functor

    written: set[Any] = set()

    def note(node: Any) -> None:
        kind = type(node).__name__
        if kind == "BufferStore":
            written.add(node.buffer.data)
        elif kind == "Call" and getattr(node.op, "name", "") == "tl.region" and int(node.args[1]) & 2:
            written.add(node.args[0].buffer.data)
        elif kind == "Call" and getattr(node.op, "name", "").startswith("tl.atomic_"):
            target = getattr(node.args[0], "args", [None])[0]  # of a T.access_ptr
            if type(target).__name__ == "BufferLoad":
                written.add(target.buffer.data)

    stmt_functor.post_order_visit(body, note)
    return written
