"""Any TileLang PrimFunc on CUDA: what a request to the worker says, and how the worker compiles and calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import KernelError, reason

__all__ = ["Argument", "Kernel", "call", "compile_prim_func", "load_arguments", "save_arguments"]

Argument = tuple[np.ndarray, str] | int  # words and dtype name of a tensor, or a scalar


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc with its arguments, as TileLang is to compile and call it.

    prim_func: the PrimFunc as TVM's JSON
    arguments: in the order of the parameters; without those of `outputs` when they are `made`
    outputs:   the numbers of the parameters whose words are wanted
    made:      the call makes the outputs (TileLang's out_idx); else they are arguments that it writes to
    """

    prim_func: str
    arguments: tuple[Argument, ...]
    outputs: tuple[int, ...]
    made: bool
    pass_configs: dict[str, Any] = field(default_factory=dict)
    compile_flags: tuple[str, ...] = ()


def save_arguments(path: str, arguments: tuple[Argument, ...]) -> list[Any]:
    """Write the tensors' words to an `.npz`; return what JSON can hold of the arguments: dtype names and scalars."""
    arrays = {str(i): each[0] for i, each in enumerate(arguments) if not isinstance(each, int)}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # NumPy's stub takes a keyword's array for allow_pickle
    return [each if isinstance(each, int) else each[1] for each in arguments]


def load_arguments(path: str, described: list[Any]) -> list[Argument]:
    """What `save_arguments` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return [(arrays[str(i)], each) if isinstance(each, str) else each for i, each in enumerate(described)]


def compile_prim_func(text: str, outputs: list[int], made: bool, pass_configs: dict, compile_flags: list[str]) -> Any:
    """The compiled kernel. Raises KernelError of kind "compile" with TileLang's own reason."""
    import tilelang

    try:
        pf = tilelang.tvm.ir.load_json(text)
        return tilelang.compile(
            pf,
            target="cuda",
            out_idx=outputs if made else None,
            pass_configs=pass_configs or None,
            compile_flags=compile_flags or None,
        )
    except Exception as error:
        raise KernelError(f"the kernel does not compile: {reason(error)}", "compile") from error


def call(
    kernel: Any, arguments: list[Argument], outputs: list[int], made: bool, device: str = "cuda"
) -> list[np.ndarray]:
    """The words of the outputs after one call."""
    import torch

    passed = [each if isinstance(each, int) else _tensor(*each, device) for each in arguments]
    returned = kernel(*passed)
    if device == "cuda":
        torch.cuda.synchronize()
    if not made:
        return [_words(passed[i]) for i in outputs]
    return [_words(each) for each in (returned if isinstance(returned, list | tuple) else [returned])]


def _tensor(words: np.ndarray, dtype: str, device: str) -> Any:
    import torch

    flat = torch.from_numpy(words.reshape(-1).view(np.uint8).copy()).to(device)
    return flat.view(getattr(torch, dtype)).reshape(words.shape)


def _words(tensor: Any) -> np.ndarray:
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    return flat.view(f"u{tensor.element_size()}").reshape(tuple(tensor.shape))
