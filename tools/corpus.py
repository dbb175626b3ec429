"""Collect the PrimFuncs that a folder of TileLang programs builds, on a machine without a GPU, and compute nothing.

    python tools/corpus.py EXAMPLES_DIR OUT_DIR [--files GLOB ...] [--jobs 2] [--limit SECONDS]

Every .py file runs in a child process that believes in a GPU. Where TileLang would compile a PrimFunc the child keeps
it and hands back a kernel that returns empty tensors, so the program goes on to its next kernel; tensors are small
ones on the CPU and large ones without memory, benchmarks are one call, comparisons pass. OUT_DIR then holds

    NNN.json        one distinct PrimFunc as TVM's JSON; read it with `load_prim_func` below
    index.jsonl     a line per PrimFunc: id, file, function, line, pass_configs, out_idx, sha256 of its script, ...
    failed.jsonl    a line per file that gave none, with the reason
    logs/           what each file printed

A second run adds to the folder: known PrimFuncs keep their ids. A file that defines kernels and gives none is run again
as if on each of the other GPU generations. Packages that are not installed are stood in for by blanks, so that programs
which only compare with them still run; installing einops gives a few more PrimFuncs.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

CAPABILITIES = [(9, 0), (10, 0), (12, 0)]  # what the pretended GPU says of itself, in the order of trying
REAL = 1 << 16  # integer tensors of at most so many elements hold values, on the CPU; all others have no memory
FORCED = 1 << 24  # the most elements of a tensor without memory that are made up when a program reads its values
CASES = 4  # how many parameter sets of a parametrised test are run
TRIES = 8  # how many configurations of a tuned kernel are tried until one builds
KERNEL_MARKS = ("T.Kernel(", "tl.Kernel(", "T.prim_func", "tilelang.jit")  # a file with one of these defines kernels


# ---------------------------------------------------------------------------------------------------------------------
# What is collected


@dataclass
class Entry:
    """One line of index.jsonl: where a PrimFunc comes from and what TileLang was told about it."""

    id: str
    file: str  # where the kernel is written, relative to the folder of examples
    line: int
    function: str
    symbol: str  # the PrimFunc's own name
    run: str  # the file whose run built it
    family: str
    pass_configs: dict[str, Any]
    out_idx: list[int] | int | None
    target: str | None
    compile_flags: list[str]
    capability: str
    sha256: str  # of the script's text


@dataclass
class Recorder:
    """Keeps every PrimFunc that a child's program would have compiled; `lines` is the file they are written to.

    capability: what the pretended GPU says of itself; None with a real one.
    """

    root: Path
    run: str
    capability: tuple[int, int] | None
    lines: Path
    seen: set[str] = field(default_factory=set)
    writers: list[Any] = field(default_factory=list)  # the functions under @tilelang.jit whose kernels are being built
    errors: list[str] = field(default_factory=list)

    def keep(self, prim_func: Any, options: dict[str, Any]) -> None:
        """Write the PrimFunc and its compile options down, once; a distinct script is a distinct PrimFunc."""
        from tilelang import tvm

        sha = hashlib.sha256(prim_func.script().encode()).hexdigest()
        if sha in self.seen:
            return
        self.seen.add(sha)
        try:
            entry = asdict(self.describe(prim_func, options, sha)) | {"json": tvm.ir.save_json(prim_func)}
        except Exception as e:
            self.errors.append(f"not stored: {e!r}"[:400])
            return
        with open(self.lines, "a") as f:
            f.write(json.dumps(entry, default=str) + "\n")

    def compiled(self, prim_func: Any, options: dict[str, Any], compile_it: Callable[[], Any]) -> Any:
        """What the program gets where TileLang would compile: here a kernel that computes nothing."""
        self.keep(prim_func, options)
        return Kernel(prim_func, options.get("out_idx"))

    def finish(self) -> None:
        """The program has ended."""

    def describe(self, prim_func: Any, options: dict[str, Any], sha: str) -> Entry:
        file, line, function = self.origin()
        attrs = dict(prim_func.attrs or {})
        configs = dict(attrs.get("tilelang_pass_configs", {})) | (options.get("pass_configs") or {})
        flags = options.get("compile_flags") or []
        out_idx = attrs.get("tilelang_out_idx", options.get("out_idx"))
        return Entry(
            id="",
            file=file,
            line=line,
            function=function,
            symbol=str(attrs.get("global_symbol", function)),
            run=self.run,
            family=file.split("/")[0] if "/" in file else Path(file).stem,
            pass_configs={str(getattr(k, "value", k)): v for k, v in configs.items()},
            out_idx=out_idx if out_idx is None or isinstance(out_idx, int) else [int(i) for i in out_idx],
            target=None if options.get("target") is None else str(options["target"]),
            compile_flags=[flags] if isinstance(flags, str) else [str(f) for f in flags],
            capability="{}.{}".format(*self.capability or torch.cuda.get_device_capability()),
            sha256=sha,
        )

    def origin(self) -> tuple[str, int, str]:
        """File, line and name of the function that wrote the kernel: the one under @tilelang.jit, or the caller."""
        for code in (getattr(w, "__code__", None) for w in reversed(self.writers)):
            if code is not None:
                return self.relative(code.co_filename), code.co_firstlineno, code.co_name
        for frame in callers():
            if self.inside(frame.f_code.co_filename):
                return self.relative(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name
        return self.run, 0, ""

    def inside(self, file: str) -> bool:
        return Path(file).resolve().is_relative_to(self.root)

    def relative(self, file: str) -> str:
        return Path(file).resolve().relative_to(self.root).as_posix() if self.inside(file) else file


def callers() -> Iterator[types.FrameType]:
    """The frames below this call, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def load_prim_func(out_dir: str | Path, entry_id: str) -> Any:
    """The PrimFunc of an entry of the corpus."""
    import tilelang  # noqa: F401  registers TileLang's operators, without which TVM cannot read the file
    from tilelang import tvm

    return tvm.ir.load_json((Path(out_dir) / f"{entry_id}.json").read_text())


# ---------------------------------------------------------------------------------------------------------------------
# A GPU that is not there

FACTORIES = frozenset(
    "arange empty empty_strided eye full linspace logspace ones rand randint randn randperm zeros normal".split()
)
GIVEN = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)  # factories that are given the values
PASSING = frozenset(["allclose", "equal", "assert_close"])  # comparisons of results that nobody computed
UNMOVED = frozenset(["cuda", "cpu", "pin_memory", "record_stream"])  # moves between devices
PROPERTIES = {
    "name": "pretended",
    "multi_processor_count": 132,
    "total_memory": 80 << 30,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
    "L2_cache_size": 50 << 20,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "warp_size": 32,
    "gcnArchName": "",
}
ANSWERS = {  # what functions of torch.cuda return
    "is_available": True,
    "is_bf16_supported": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "pretended",
    "mem_get_info": (80 << 30, 80 << 30),
    "memory_allocated": 0,
    "max_memory_allocated": 0,
}


class PretendedGpu(TorchFunctionMode):
    """Tensors have no memory (they are on torch's meta device), but small ones of integers, which are on the CPU.

    An operation that mixes the two is done without memory. One that needs values of a tensor that has none gets ones.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and owner in ("device", "is_cuda"):
            return torch.device("cuda", 0) if owner == "device" else True
        if func is torch.device:
            return torch.device("cuda", args[0]) if args and isinstance(args[0], int) else func(*args, **kwargs)
        if name in PASSING:
            return True
        if name in UNMOVED:
            return args[0]
        if name == "to":
            return moved(func, args, kwargs)
        new = name in FACTORIES or name.startswith("new_") or kwargs.get("device") is not None
        if next(leaves((args, kwargs), Blank), None) is not None:
            if not new:
                return Blank()
            args, kwargs = mapped((args, kwargs), int, Blank)
        return made(func, args, kwargs) if new else computed(func, args, kwargs)


def moved(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`tensor.to(...)` without the device: what is left may be a dtype."""
    tensor, *rest = args
    rest = [a.dtype if isinstance(a, torch.Tensor) else a for a in rest if not isinstance(a, (str, int, torch.device))]
    if isinstance(kwargs.pop("other", None), torch.Tensor):
        raise TypeError("tensor.to(other=...) is not pretended")
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
    return func(tensor, *rest, **kwargs) if rest or kwargs.get("dtype") is not None else tensor


def made(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A new tensor: its size is found out without memory, and a small one is made again on the CPU."""
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    bare = {k: v for k, v in kwargs.items() if k != "generator"}
    if len(args) > 2 and getattr(func, "__name__", "").startswith("new_") and all(isinstance(a, int) for a in args[1:]):
        args = (args[0], args[1:])
    if func in GIVEN:
        return func(*args, **kwargs)  # small, as somebody wrote them down
    try:
        probe = func(*args, **bare, device="meta")
    except RuntimeError:  # a size is a tensor without memory
        args, bare, kwargs = with_values(args), with_values(bare), with_values(kwargs)
        probe = func(*args, **bare, device="meta")
    if not isinstance(probe, torch.Tensor) or not holds_values(probe) or any(map(is_meta, leaves((args, kwargs)))):
        return probe
    return func(*args, **kwargs, device="cpu")


def computed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation, without memory as soon as one of its tensors has none, or on made-up values where it must."""
    if not any(map(is_meta, leaves((args, kwargs)))):
        return func(*args, **kwargs)
    try:
        return func(*without_memory(args), **without_memory(kwargs))
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        name = getattr(func, "__name__", "")
        if name == "__setitem__":
            return None
        if name == "__getitem__" and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool:
            return args[0].reshape(-1, *args[0].shape[args[1].ndim :])  # as if the mask kept everything
        return func(*with_values(args), **with_values(kwargs))


def holds_values(tensor: torch.Tensor) -> bool:
    """Small integer tensors do: indices and lengths shape what a program does next, numbers hardly ever."""
    return tensor.numel() <= REAL and not tensor.is_floating_point() and not tensor.is_complex()


def is_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta


def leaves(tree: Any, kind: type = torch.Tensor) -> Iterator[Any]:
    """All tensors (or what the kind is) in nested lists, tuples and dicts."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, (list, tuple)):
        yield from itertools.chain.from_iterable(leaves(part, kind) for part in tree)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()), kind)


def mapped(tree: Any, change: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """The same nested structure with every tensor (or what the kind is) changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {k: mapped(v, change, kind) for k, v in tree.items()}
    if type(tree) in (list, tuple, torch.Size):
        return type(tree)(mapped(v, change, kind) for v in tree)
    return tree


def without_memory(tree: Any) -> Any:
    """Scalars keep their value: torch lets them meet tensors of any device, and sizes are made of them."""
    return mapped(tree, lambda t: t if t.is_meta or t.ndim == 0 else t.to("meta"))


def with_values(tree: Any) -> Any:
    """Made-up values for tensors without memory: ones."""

    def change(t: torch.Tensor) -> torch.Tensor:
        if not t.is_meta:
            return t
        if t.numel() > FORCED:
            raise RuntimeError(f"the program reads values of a tensor of shape {tuple(t.shape)} that was not computed")
        return torch.ones(t.shape, dtype=t.dtype)

    return mapped(tree, change)


def new_tensor(shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """An output of a kernel that did not run."""
    probe = torch.empty(tuple(shape), dtype=dtype, device="meta")
    return torch.zeros(tuple(shape), dtype=dtype, device="cpu") if holds_values(probe) else probe


class Event:
    """A CUDA event or stream on which nothing happens; the time between two events is one millisecond."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = 0

    def elapsed_time(self, other: Event) -> float:
        return 1.0

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *exc: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Generator(torch.Generator):
    """A random generator "of the GPU" is one of the CPU."""

    def __new__(cls, device: Any = None) -> Generator:
        return super().__new__(cls)


def pretend_gpu(capability: tuple[int, int]) -> None:
    """Let torch.cuda answer as if one GPU of this compute capability were there and idle."""
    major, minor = capability
    properties = types.SimpleNamespace(**PROPERTIES, major=major, minor=minor)
    answers = ANSWERS | {"get_device_capability": capability, "get_device_properties": properties}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    for name in [n for n, f in vars(torch.cuda).items() if inspect.isfunction(f) and n not in answers]:
        if name == "_lazy_init" or not name.startswith("_"):
            setattr(torch.cuda, name, lambda *args, **kwargs: None)
    for name in "Event Stream device stream current_stream default_stream".split():
        setattr(torch.cuda, name, Event)
    for name in ("profiler", "nvtx"):
        setattr(torch.cuda, name, Event())


def pretend_torch() -> None:
    """The parts of torch that the mode cannot see."""
    torch.set_default_device = lambda device: None
    torch.Generator = Generator

    def backward(tensor: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False) -> None:
        gradient = torch.ones_like(tensor) if gradient is None else gradient.to(tensor.device)
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(
            (tensor,), (gradient,), bool(retain_graph), create_graph, (), allow_unreachable=True, accumulate_grad=True
        )

    torch.Tensor.backward = backward


def shorten_torch() -> None:
    """Leave out what takes long for a result nobody reads, with a GPU or without."""
    import torch.utils.cpp_extension

    torch.compile = lambda model=None, **kwargs: model if callable(model) else lambda f: f
    torch.profiler.profile = Blank
    torch.utils.cpp_extension.load = torch.utils.cpp_extension.load_inline = Blank()
    torch.testing.assert_close = lambda *args, **kwargs: None


# ---------------------------------------------------------------------------------------------------------------------
# Packages that are not installed


class Blank(int):
    """Stands for anything of a package that is not installed: every use gives another blank, or 1 for a number."""

    __name__ = __qualname__ = "blank"

    def __new__(cls, *args: Any, **kwargs: Any) -> Blank:
        return super().__new__(cls, 1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The first tensor among the arguments, or a blank, as often as the caller unpacks; or a decorated function."""
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, Decorated)):
            return Decorated(args[0])
        result = next(leaves((args, kwargs)), Blank())
        count = unpacked(sys._getframe(1))
        return result if count is None else (result,) * count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Blank()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (Blank,)

    def __getitem__(self, key: Any) -> Any:
        return Blank()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Blank]:
        return iter([Blank()] * (unpacked(sys._getframe(1)) or 2))

    def __len__(self) -> int:
        return 1

    def __format__(self, spec: str) -> str:
        return "blank"

    def __enter__(self) -> Blank:
        return self

    def __exit__(self, *exc: Any) -> None:
        pass


class Decorated(Blank):
    """A function under a decorator that is not installed: calls reach the function, other uses give blanks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self.function, instance)


def unpacked(frame: types.FrameType) -> int | None:
    """How many values the frame's present instruction, or what follows, takes apart: `a, b = f(x)` or `f(x)[0]`."""
    later = [i for i in dis.get_instructions(frame.f_code) if i.offset >= frame.f_lasti][:3]
    count = next((i.argval for i in later[:2] if i.opname == "UNPACK_SEQUENCE"), None)
    if count is None and len(later) == 3 and later[2].opname == "BINARY_SUBSCR" and later[1].opname == "LOAD_CONST":
        count = later[1].argval + 1 if isinstance(later[1].argval, int) else None
    return count


def blank_operator(*args: Any) -> Blank:
    return Blank()


for _name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
    setattr(Blank, f"__{_name}__", blank_operator)
    setattr(Blank, f"__r{_name}__", blank_operator)
for _name in "neg pos abs invert".split():
    setattr(Blank, f"__{_name}__", blank_operator)
for _name in "lt le gt ge".split():
    setattr(Blank, f"__{_name}__", lambda *args: True)


class BlankModule(types.ModuleType):
    """A module of a package that is not installed; it is of a version that suits everybody."""

    __path__: list[str] = []
    __file__ = "blank.py"
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Blank()


class BlankFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, last of all, a blank for what a program itself imports and nobody installed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        parent = sys.modules.get(name.rpartition(".")[0])
        if not isinstance(parent, BlankModule) and ("." in name or not self.wanted(top)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def wanted(self, top: str) -> bool:
        importers = (f.f_code.co_filename for f in callers() if not f.f_code.co_filename.startswith("<frozen"))
        outside = (f for f in importers if f != __file__)
        return self.recorder.inside(next(outside, "/")) and top not in ("tilelang", "torch", "tvm")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return BlankModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# ---------------------------------------------------------------------------------------------------------------------
# A compiler that does not compile


class Kernel:
    """What a program gets instead of a compiled kernel: calls return empty tensors of the right shapes."""

    latency = ref_latency = 1.0
    config: dict[str, Any] | None = None
    kernel_source = host_source = ""

    def __init__(self, prim_func: Any, out_idx: list[int] | int | None = None) -> None:
        from tilelang.engine.param import KernelParam

        self.prim_func = prim_func
        count = len(prim_func.params)
        wanted = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
        self.out_idx = [int(i) % count for i in wanted]
        buffers = [prim_func.buffer_map.get(p) for p in prim_func.params]
        self.params = [
            KernelParam.from_var(p) if b is None else KernelParam.from_buffer(b)
            for p, b in zip(prim_func.params, buffers, strict=True)
        ]
        self.artifact = self.adapter = self.torch_function = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = bound_dims(self.prim_func, [i for i in range(len(self.params)) if i not in self.out_idx], args)
        outs = []
        for i in self.out_idx:
            dtype = self.params[i].dtype
            shape = [evaluated(d, values) for d in self.params[i].shape]
            shape = shape if dtype.bits >= 8 else [*shape[:-1], shape[-1] * dtype.bits // 8]  # several in a byte
            outs.append(new_tensor(shape, torch_dtype(dtype)))
        return None if not outs else outs[0] if len(outs) == 1 else outs

    def get_profiler(self, *args: Any, **kwargs: Any) -> Profiler:
        return Profiler(self)

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        return ""

    get_host_source = get_kernel_source

    def update_tuner_result(self, **results: Any) -> Kernel:
        vars(self).update(results)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Blank()


class Profiler:
    """A profiler that finds every result right and every kernel equally fast."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def do_bench(self, func: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> float:
        return bench(func) if func is not None else 1.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)

    func = run_once = __call__

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def bench(fn: Callable[[], Any], *args: Any, quantiles: list[float] | None = None, **kwargs: Any) -> Any:
    """One millisecond, after one call, which may build a kernel."""
    with contextlib.suppress(Exception):
        fn()
    return 1.0 if quantiles is None else [1.0] * len(quantiles)


def bound_dims(prim_func: Any, inputs: list[int], args: tuple[Any, ...]) -> dict[Any, int]:
    """The values of a PrimFunc's symbolic dimensions and scalar parameters in a call with these arguments."""
    from tilelang import tvm

    values: dict[Any, int] = {}
    for i, arg in zip(inputs, args, strict=False):
        param = prim_func.params[i]
        buffer = prim_func.buffer_map.get(param)
        if buffer is None and isinstance(arg, int):
            values[param] = arg
        elif buffer is not None and isinstance(arg, torch.Tensor):
            dims = zip(buffer.shape, arg.shape, strict=False)
            values |= {d: int(n) for d, n in dims if isinstance(d, tvm.tirx.Var)}
    return values


def evaluated(dim: Any, values: dict[Any, int]) -> int:
    """A dimension as a number; one that the arguments do not settle is 1."""
    from tilelang import tvm

    if isinstance(dim, int):
        return dim
    bound = tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(dim, values))
    return int(bound) if isinstance(bound, tvm.tirx.IntImm) else 1


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of a TVM one; bytes stand for what torch does not have."""
    name = str(dtype)
    name = {"float8_e4m3": "float8_e4m3fn", "float4_e2m1fn": "float4_e2m1fn_x2"}.get(name, name)
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.int8


def tuned(tuner: Any, *args: Any, **kwargs: Any) -> types.SimpleNamespace:
    """Instead of tuning: the first configuration that builds."""
    configs = tuner.configs
    if callable(configs):
        positional, named = tuner._kernel_parameters or ((), ())
        configs = configs(*positional, **dict(named))
    compile_config, _ = tuner._ensure_jit_functions()
    positional, named = tuner._kernel_parameters or ((), ())
    names = list(inspect.signature(tuner.fn).parameters)
    given = set(names[: len(positional)]) | set(dict(named))
    error: Exception | None = None
    for config in itertools.islice(configs, TRIES):
        chosen = {k: v for k, v in config.items() if k in names and k not in given}
        try:
            kernel = compile_config(**chosen) if chosen else tuner.jit_compile()
        except Exception as e:
            error = e
            continue
        kernel.config = dict(config)
        return types.SimpleNamespace(latency=1.0, ref_latency=1.0, config=kernel.config, libcode="", kernel=kernel,
                                     func=kernel.prim_func)  # fmt: skip
    raise error or ValueError("no configuration to tune")


def hook_tilelang(recorder: Recorder) -> None:
    """Put the recorder where TileLang builds a PrimFunc and where it would compile one."""
    jit = sys.modules["tilelang.jit"]  # the package's attribute of this name is the decorator

    def cached(func: Any, out_idx: Any = None, *args: Any, **options: Any) -> Any:
        given = options | {"out_idx": out_idx}
        return recorder.compiled(func, given, lambda: compile_it(func, out_idx, *args, **options))

    compile_it, build = jit.cached, jit.JITImpl.get_tir

    def get_tir(impl: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.writers.append(getattr(impl.func, "orig_func", impl.func))
        try:
            prim_func = build(impl, *args, **kwargs)
            recorder.keep(prim_func, vars(impl))
        finally:
            recorder.writers.pop()
        return prim_func

    jit.cached = cached
    jit.JITImpl.get_tir = get_tir


def hook_measuring(capability: tuple[int, int] | None) -> None:
    """Leave out what TileLang does with compiled kernels: tuning, timing and comparing."""
    import tilelang
    import tilelang.autotuner.tuner as tuner
    import tilelang.profiler as profiler
    import tilelang.testing as testing

    tuner.AutoTuner.run = tuned
    profiler.do_bench = profiler.bench.do_bench = bench
    testing.main = testing.torch_assert_close = profiler.torch_assert_close = lambda *args, **kwargs: None
    sys.modules["tilelang.utils.tensor"].torch_assert_close = lambda *args, **kwargs: None
    if capability is not None:
        tuner.AutoTuner.set_compile_args = lambda self, **options: given_options(self, options)
        tilelang.contrib.nvcc.get_target_compute_version = lambda target=None: "{}.{}".format(*capability)


def given_options(tuner: Any, options: dict[str, Any]) -> Any:
    """What AutoTuner.set_compile_args does, less the search for a device."""
    from tilelang.autotuner.param import CompileArgs

    names = inspect.signature(CompileArgs).parameters
    tuner.compile_args = CompileArgs(**{k: v for k, v in options.items() if k in names})
    return tuner


# ---------------------------------------------------------------------------------------------------------------------
# Running one file, in a child


def run_file(path: Path, recorder: Recorder) -> list[str]:
    """Run a program as __main__, then its tests, then what nobody called; returns what went wrong, one line each."""
    errors: list[str] = []
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    sys.meta_path.append(BlankFinder(recorder))
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    code = compiled(path.read_text(), str(path))
    importlib.machinery.SourceFileLoader.source_to_code = lambda loader, data, file, *_, **__: compiled(
        data, file, assertions=not recorder.inside(file)
    )
    with contextlib.nullcontext() if recorder.capability is None else PretendedGpu():
        attempt(lambda: exec(code, vars(module)), errors)
        before = len(recorder.seen)
        for name, test in [(n, f) for n, f in vars(module).items() if n.startswith("test_") and inspect.isfunction(f)]:
            for case in itertools.islice(cases(test), CASES):
                if set(case) >= set(required(test)):
                    attempt(lambda test=test, case=case: test(**case), errors, name)
        if len(recorder.seen) == before:
            for call in uncalled(module, recorder):
                attempt(call, errors)
    return errors + recorder.errors


def compiled(source: str | bytes, file: str, assertions: bool = False) -> types.CodeType:
    """A program's code; its assertions, which are about results that nobody computed, are left out."""
    return compile(source, file, "exec", dont_inherit=True, optimize=-1 if assertions else 1)


def required(function: Callable[..., Any]) -> list[str]:
    """The parameters that have no default."""
    return [n for n, p in inspect.signature(function).parameters.items() if p.default is p.empty]


def attempt(call: Callable[[], Any], errors: list[str], name: str = "") -> None:
    """Call, and keep the last line of what it raises; a program may also end itself."""
    try:
        call()
    except SystemExit as e:
        if e.code not in (None, 0):
            errors.append(f"{name}SystemExit: {e.code}")
    except BaseException as e:
        traceback.print_exc()
        errors.append((f"{name}: " if name else "") + traceback.format_exception_only(e)[-1].strip()[:400])


def cases(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a test's parametrisation, first ones first; one empty case if it has none."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[:2]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        plain = [v if len(names) > 1 else (v,) for v in values]
        rows = [getattr(v, "values", row) for v, row in zip(values, plain)]  # pytest.param keeps its row by this name
        axes.append([dict(zip(names, row)) for row in rows if not callable(row)])
    for choice in itertools.product(*axes):
        yield {k: v for part in choice for k, v in part.items()}


def uncalled(module: types.ModuleType, recorder: Recorder) -> Iterator[Callable[[], Any]]:
    """Calls that need no argument: the program's functions of that kind, and its kernels that have all defaults."""
    from tilelang.jit import JITImpl

    for name, value in list(vars(module).items()):
        kernel = getattr(value, "jit_impl", value)
        function = kernel.func.orig_func if isinstance(kernel, JITImpl) else value
        if not inspect.isfunction(function) or not recorder.inside(function.__code__.co_filename):
            continue
        if required(function):
            continue
        if isinstance(kernel, JITImpl):
            yield value.compile
        elif "main" in name or "run" in name:
            yield value


def child(recorder: Recorder, spool: Path, log: Path) -> None:
    """One file in a process group of its own: records go to the recorder, errors to spool/errors.json."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    work = spool / "cwd"
    work.mkdir()
    os.chdir(work)
    sys.dont_write_bytecode = True
    prepare()
    random.seed(0)
    np.random.seed(0)
    if recorder.capability is not None:
        pretend_torch()
        pretend_gpu(recorder.capability)
    torch.manual_seed(0)
    hook_tilelang(recorder)
    hook_measuring(recorder.capability)
    errors: list[str] = []
    attempt(lambda: errors.extend(run_file(recorder.root / recorder.run, recorder)), errors)
    attempt(recorder.finish, errors)
    (spool / "errors.json").write_text(json.dumps(errors))
    sys.stdout.flush()
    os._exit(0)


# ---------------------------------------------------------------------------------------------------------------------
# All files, in the parent


@dataclass
class Corpus:
    """The folder: what it holds already, and how more is added."""

    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: Path) -> Corpus:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        corpus = cls(folder, lines_of(folder / "index.jsonl"))
        corpus.failed = {line["file"]: line for line in lines_of(folder / "failed.jsonl")}
        return corpus

    def add(self, records: list[dict[str, Any]]) -> int:
        """Store the new ones among these records; returns how many those are."""
        known = {e["sha256"] for e in self.entries}
        added = 0
        for record in records:
            if record["sha256"] in known:
                continue
            known.add(record["sha256"])
            text = record.pop("json")
            record["id"] = f"{len(self.entries):03d}"
            (self.folder / f"{record['id']}.json").write_text(text)
            with open(self.folder / "index.jsonl", "a") as f:
                f.write(json.dumps(record) + "\n")
            self.entries.append(record)
            added += 1
        return added

    def write_failed(self) -> None:
        """failed.jsonl: the files that were run and gave no PrimFunc, nor did another file's run of their kernels."""
        gave = {e["file"] for e in self.entries}
        self.failed = {f: line for f, line in sorted(self.failed.items()) if f not in gave}
        text = "".join(json.dumps(line) + "\n" for line in self.failed.values())
        (self.folder / "failed.jsonl").write_text(text)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that may be missing or end in the middle of a line."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines


@dataclass
class Job:
    """A file that is being run."""

    run: str
    spool: Path
    process: Any
    limit: float  # seconds
    deadline: float
    late: bool = False  # ended because of its limit


def run_files(
    files: list[str],
    jobs: int,
    start: Callable[[str], Job],
    finish: Callable[[Job, list[str]], Any],
    end: float = math.inf,
) -> list[str]:
    """Run the files, `jobs` at a time; returns those that were not started before the clock was at `end`.

    `start` makes a file's child; `finish` is told what went wrong, one line each.
    """
    waiting, running = list(reversed(files)), []
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < jobs and time.monotonic() < end:
            running.append(start(waiting.pop()))
        rest = min(j.deadline for j in running) - time.monotonic()
        wait([j.process.sentinel for j in running], timeout=max(0.0, rest))
        for job in [j for j in running if not j.process.is_alive() or time.monotonic() >= j.deadline]:
            running.remove(job)
            finish(job, ended(job))
            shutil.rmtree(job.spool, ignore_errors=True)
    return waiting[::-1]


def started(recorder: Recorder, spool: Path, logs: Path, limit: float) -> Job:
    """A child that runs the recorder's file for at most `limit` seconds."""
    log = (logs / (recorder.run.replace("/", "__") + ".txt")).resolve()
    process = multiprocessing.get_context("fork" if can_fork() else "spawn").Process(
        target=child, args=(recorder, spool, log)
    )
    process.start()
    return Job(recorder.run, spool, process, limit, time.monotonic() + limit)


def can_fork() -> bool:
    """Whether a forked child can use the GPU: not where asking for one has already started CUDA in this process."""
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(child, 0)[1] == 0


def ended(job: Job) -> list[str]:
    """End what is left of a file's process group; what went wrong."""
    job.late = job.process.is_alive()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.process.pid, signal.SIGKILL)
    job.process.join()
    errors = job.spool / "errors.json"
    reasons = json.loads(errors.read_text()) if errors.exists() else []
    if job.late:
        reasons.append(f"ended after {job.limit:g} s")
    elif not errors.exists():
        reasons.append(f"the process died with exit code {job.process.exitcode}")
    return reasons


def collect(root: Path, files: list[str], corpus: Corpus, capability: tuple[int, int], jobs: int, limit: float) -> None:
    """Run the files on a pretended GPU and add what they give to the corpus."""

    def start(run: str) -> Job:
        spool = Path(tempfile.mkdtemp(prefix="corpus-"))
        return started(Recorder(root, run, capability, spool / "records.jsonl"), spool, corpus.folder / "logs", limit)

    run_files(files, jobs, start, lambda job, reasons: store(job, reasons, corpus, root))


def store(job: Job, reasons: list[str], corpus: Corpus, root: Path) -> None:
    """Add what a file gave to the corpus, or note why it gave nothing."""
    records = lines_of(job.spool / "records.jsonl")
    added = corpus.add(records)
    corpus.failed[job.run] = {
        "file": job.run,
        "reason": reasons[0] if reasons else "builds no kernel",
        "more": reasons[1:],
        "defines_kernels": defines_kernels(root / job.run),
        "late": job.late,
    }
    if records:
        del corpus.failed[job.run]
    print(f"{len(corpus.entries):4} {added:+3} of {len(records):2}  {job.run}  {'; '.join(reasons)[:160]}", flush=True)


def defines_kernels(file: Path) -> bool:
    source = file.read_text()
    return any(mark in source for mark in KERNEL_MARKS)


def found(root: Path, globs: list[str]) -> list[str]:
    """The .py files under the root that match one of the patterns, in the patterns' order."""
    files = [p.relative_to(root).as_posix() for g in globs for p in sorted(root.glob(g)) if p.suffix == ".py"]
    return list(dict.fromkeys(files))


def check(folder: Path) -> str:
    """Load every entry in a fresh process and compare its script with the one that was recorded."""
    command = [sys.executable, __file__, "--check", str(folder)]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def check_here(folder: Path) -> None:
    """Print how many entries load as what was recorded, and which do not."""
    bad = []
    entries = lines_of(folder / "index.jsonl")
    for e in entries:
        try:
            script = load_prim_func(folder, e["id"]).script()
        except Exception as error:
            bad.append(f"{e['id']}: {error!r}"[:200])
            continue
        if hashlib.sha256(script.encode()).hexdigest() != e["sha256"]:
            bad.append(f"{e['id']}: the script changed")
    print("\n".join([f"{len(entries) - len(bad)} of {len(entries)} entries load as recorded", *bad]))


def summary(corpus: Corpus) -> str:
    """Counts, and the reasons of the files that define kernels and gave none, most frequent first."""
    files = {e["file"] for e in corpus.entries}
    missing = [line for line in corpus.failed.values() if line["defines_kernels"]]
    head = f"{len(corpus.entries)} distinct PrimFuncs from {len(files)} files; {len(missing)} more files define kernels"
    reasons = Counter(line["reason"][:140] for line in missing)
    return "\n".join([head, *(f"{n:4}  {reason}" for reason, n in reasons.most_common())])


def prepare() -> None:
    """What all children need, loaded once before they are forked; nothing here touches the GPU."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    shorten_torch()
    import tilelang  # noqa: F401

    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--files", nargs="+", default=["**/*.py"], help="patterns relative to the examples, in order")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one file")
    args = parser.parse_args()
    root, corpus = args.examples.resolve(), Corpus.at(args.out)
    files = found(root, args.files)
    prepare()
    for capability in CAPABILITIES:
        collect(root, files, corpus, capability, args.jobs, args.limit)
        corpus.write_failed()
        failed = {f for f, line in corpus.failed.items() if line["defines_kernels"] and not line.get("late")}
        files = [f for f in files if f in failed]
    print(summary(corpus))
    print(check(args.out))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check_here(Path(sys.argv[2]))
    else:
        main()
