"""A GPU that is not there: torch answers as if it were, and what a program puts on it stays in the CPU's memory."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Gpu", "install"]

# One GPU of each architecture: its multiprocessors, KiB of shared memory for a thread block (vendor's data sheets).
_SIZES = {
    "sm_70": ("V100", 80, 96),
    "sm_75": ("T4", 40, 64),
    "sm_80": ("A100", 108, 163),
    "sm_86": ("A40", 84, 99),
    "sm_89": ("L40S", 142, 99),
    "sm_90": ("H200", 132, 227),
    "sm_100": ("B200", 148, 227),
    "sm_120": ("RTX 5090", 170, 99),
}
_MEMORY = 80 << 30  # bytes that torch says the GPU has
_FACTORIES = frozenset(
    "arange empty empty_permuted empty_strided eye full linspace logspace ones rand randint randn randperm zeros tensor"
    " as_tensor asarray scalar_tensor tril_indices triu_indices".split()
)
_PROPERTIES = {"device": torch.device("cuda", 0), "is_cuda": True, "is_cpu": False}
_IDLE = (
    "init synchronize set_device empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated set_stream"
).split()
_MARK = "_made_on_gpu"

Arguments = tuple[Any, ...]


def on_gpu(device: Any) -> bool:
    """Whether a device, as torch takes it (a name, a number, a torch.device), is the GPU."""
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, int) or getattr(device, "type", "") == "cuda"


def marked(result: Any) -> Any:
    """The same tensor, which from now on is one that the program made on the GPU or moved there."""
    if isinstance(result, torch.Tensor):
        setattr(result, _MARK, True)
    return result


class Gpu(TorchFunctionMode):
    """While it is entered "cuda" means the CPU, and every tensor says that it is on cuda:0.

    Moves copy where a GPU's would: to the CPU always, to the GPU unless the tensor was made or moved there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func.__self__, "__name__", "") in _PROPERTIES:
            return _PROPERTIES[func.__self__.__name__]
        if func in _MOVES:
            return _MOVES[func](*args, **kwargs)
        device = kwargs.get("device")
        if device is None and name in _FACTORIES:
            device = torch.get_default_device()
        if device is None or isinstance(device, bool) or not on_gpu(device):
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        return marked(func(*args, **kwargs | {"device": "cpu"}))


def _to_cpu(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor.clone()


def _to_gpu(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor if hasattr(tensor, _MARK) else marked(tensor.clone())


def _same(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`tensor.to(...)`: the device is taken out, the rest (a dtype, a layout) is torch's."""
    other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
    if other is not None:
        args, kwargs = (other.dtype, *args[1:]), kwargs | {"device": "cuda"}
    named = kwargs.pop("device", None)
    places = [a for a in args if isinstance(a, str | torch.device) or type(a) is int]
    places += [] if named is None else [named]
    if not places:
        return torch.Tensor.to(tensor, *args, **kwargs)
    if not (on_gpu(places[0]) or torch.device(places[0]).type == "cpu"):
        return torch.Tensor.to(tensor, *args, **kwargs | ({} if named is None else {"device": named}))
    rest = [a for a in args if isinstance(a, torch.dtype)]
    kept = {k: v for k, v in kwargs.items() if k in ("dtype", "memory_format", "copy")}
    moved = torch.Tensor.to(tensor, *rest, **kept) if rest or kept else tensor
    if moved is not tensor:
        return marked(moved) if on_gpu(places[0]) else moved
    return _to_gpu(tensor) if on_gpu(places[0]) else _to_cpu(tensor)


_MOVES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _to_gpu,
    torch.Tensor.cpu: _to_cpu,
    torch.Tensor.to: _to,
    torch.Tensor.pin_memory: _same,
    torch.Tensor.record_stream: lambda *_: None,
    torch.Tensor.get_device: lambda *_: 0,
}


class _Stream:
    """A CUDA stream, or a choice of one or of a device: on the CPU everything is in order anyway."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = record_event = synchronize


class _Generator(torch.Generator):
    """A random generator of the GPU is one of the CPU; it gives other numbers than a GPU's."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls)


def _event(measured: Callable[[str], float]) -> type:
    """CUDA events; between two of them no time is measured."""

    class Event(_Stream):
        def record(self, *_: Any) -> None:
            pass

        wait = record

        def elapsed_time(self, other: Any) -> float:
            return measured("Event.elapsed_time")

    return Event


def _own_backward(cls: Any, **_: Any) -> None:
    """A program's autograd.Function: torch calls its `backward` outside the mode, so that it enters it again."""
    backward = vars(cls).get("backward")
    if backward is None:
        return
    function = getattr(backward, "__func__", backward)

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        with Gpu():
            return function(*args, **kwargs)

    cls.backward = staticmethod(entered)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def install(arch: str, measured: Callable[[str], float]) -> None:
    """Let torch.cuda answer as if one GPU of this architecture were there.

    measured: called with the name of each measurement that a program asks for; its value is what the program gets
    """
    gpu, processors, shared = _SIZES[arch]
    digits = arch.removeprefix("sm_")
    major, minor = int(digits[:-1]), int(digits[-1])
    properties = types.SimpleNamespace(
        name=f"NVIDIA {gpu}, simulated", major=major, minor=minor, multi_processor_count=processors,
        total_memory=_MEMORY, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=shared << 10,
        shared_memory_per_multiprocessor=(shared + 1) << 10, warp_size=32, gcnArchName="",
    )  # fmt: skip
    answers = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": major >= 8, "device_count": 1,
        "current_device": 0, "get_device_name": properties.name, "get_device_capability": (major, minor),
        "get_device_properties": properties, "mem_get_info": (_MEMORY, _MEMORY), "memory_allocated": 0,
        "memory_reserved": 0, "max_memory_allocated": 0, "max_memory_reserved": 0,
    } | dict.fromkeys(_IDLE)  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    for name in "Stream device stream current_stream default_stream".split():
        setattr(torch.cuda, name, _Stream)
    torch.cuda.Event = _event(measured)
    for name in "manual_seed manual_seed_all".split():
        setattr(torch.cuda, name, _seed)
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    for name in "range_push range_pop mark".split():
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    torch.Generator = _Generator
    torch.autograd.Function.__init_subclass__ = classmethod(_own_backward)
