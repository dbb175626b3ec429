"""Where TileLang would compile a kernel for a GPU it is given one that is simulated.

What is put in place, all of it public: the constructor of JITKernel, AutoTuner.run, do_bench and Profiler.do_bench, the
answer of TVM whether a CUDA device exists, and TileLang's detector of the CUDA target.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
from pathlib import Path
from typing import Any

import tilelang
import tilelang.autotuner.tuner as tuner
import tilelang.profiler as profiler
import torch
from tilelang import tvm
from tilelang.autotuner.param import AutotuneResult
from tilelang.backend.target import register_target_detector
from tilelang.engine.param import KernelParam
from tilelang.ir import get_stmt_span
from tilelang.jit.abi import prepare_tvm_ffi_callee_allocated_outputs as with_outputs
from tilelang.jit.adapter import BaseKernelAdapter
from tilelang.jit.kernel import JITKernel

from ..arch import arch as find_arch
from ..primfunc import Unsupported
from ..primfunc.kernel import written
from ..primfunc.run import target_of
from .session import Session, as_torch

__all__ = ["install"]

_FAST = "tl.enable_fast_math"
_OTHER_ARITHMETIC = ("fmad", "ftz", "prec-div", "prec-sqrt")


class Simulated(BaseKernelAdapter):
    """What a compiled kernel calls instead of the GPU."""

    def __init__(self, session: Session, kernel: Any, prim_func: Any, out_idx: Any):
        prim_func, returned = with_outputs(prim_func, out_idx)
        self.session, self.prim_func, self.target = session, prim_func, kernel.target
        self.configs = _configs(kernel.pass_configs, kernel.compile_flags)
        self.where = _where(prim_func.body)
        self.stored = {_name(prim_func.params[i]) for i in written(prim_func)}
        buffers = [prim_func.buffer_map.get(p) for p in prim_func.params]
        super().__init__(None, [_parameter(p, b) for p, b in zip(prim_func.params, buffers, strict=True)], returned)

    def _convert_torch_func(self) -> Any:
        return self.call

    def call(self, *args: Any) -> Any:
        """Outputs as a compiled kernel returns them: nothing, a tensor, or a list in the order of out_idx."""
        expected = len(self.params) - len(self.result_idx)
        if len(args) != expected:
            raise ValueError(f"Kernel expected {expected} inputs, but {len(args)} are provided.")
        tensors = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        named = dict(zip(self._names(), tensors, strict=True))
        _check({n: t for n, t in named.items() if isinstance(t, torch.Tensor)}, self.stored)
        result = self.session.run(self.prim_func, self.configs, self.where, tensors)
        if not self.result_idx:
            return None
        made = dict(zip(sorted(self.result_idx), map(as_torch, result.outputs), strict=True))
        outputs = [made[i] for i in self.result_idx]
        return outputs[0] if len(outputs) == 1 else outputs

    def _names(self) -> list[str]:
        return [_name(p) for i, p in enumerate(self.prim_func.params) if i not in self.result_idx]

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The CUDA source; TileLang writes it without a GPU."""
        with tvm.transform.PassContext(opt_level=3, config=self.configs), self.target:
            return str(tilelang.lower(self.prim_func, target=self.target).kernel_source)

    def get_host_source(self) -> str:
        raise Unsupported("the host's source of a simulated kernel")


def _name(parameter: Any) -> str:
    return str(parameter.name).removesuffix("_handle")


def _parameter(parameter: Any, buffer: Any) -> Any:
    return KernelParam.from_var(parameter) if buffer is None else KernelParam.from_buffer(buffer)


def _configs(pass_configs: Any, compile_flags: Any) -> dict[str, Any]:
    """A kernel's pass configuration; nvcc's own flag for fast math says the same as TileLang's."""
    configs = {str(getattr(k, "value", k)): v for k, v in (pass_configs or {}).items()}
    for flag in " ".join(compile_flags or ()).split():
        bare = flag.lstrip("-").partition("=")[0]
        if bare in _OTHER_ARITHMETIC:
            raise Unsupported(f"the compile flag {flag}, which changes arithmetic")
        configs |= {_FAST: True} if bare == "use_fast_math" else {}
    return configs


def _where(body: Any) -> str:
    """The first source line of a kernel, outside TileLang's own macros."""
    lines: list[tuple[int, str]] = []
    own = str(Path(tilelang.__file__).parent)

    def note(node: Any) -> None:
        span = get_stmt_span(node) if isinstance(node, tvm.tirx.Stmt) else None
        if span is not None and not span.source_name.name.startswith(own):
            lines.append((span.line, Path(span.source_name.name).name))

    tvm.tirx.stmt_functor.post_order_visit(body, note)
    return f"{min(lines)[1]}:{min(lines)[0]}" if lines else ""


def _check(tensors: dict[str, Any], stored: set[str]) -> None:
    """Raise ValueError for gaps in memory, which a compiled kernel refuses too, and Unsupported for shared memory.

    Tensors may share memory where the kernel stores to none of them.
    """
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, not of strides {list(tensor.stride())}")
    spans = {n: range(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for n, t in tensors.items()}
    for one, other in itertools.combinations(spans, 2):
        shared = max(spans[one].start, spans[other].start) < min(spans[one].stop, spans[other].stop)
        if shared and stored & {one, other}:
            raise Unsupported(f"a call whose tensors {one} and {other} share memory, where the kernel stores to one")


def _init(session: Session) -> Any:
    """The constructor of compiled kernels."""
    original = JITKernel.__init__
    signature = inspect.signature(original)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        loaded = options["from_database"]
        options["from_database"] = True  # all but the compilation
        original(*given.args, **given.kwargs)
        if self.target.kind.name != "cuda":
            options["from_database"] = loaded
            original(*given.args, **given.kwargs)
            return
        if "cutedsl" in self.target.keys:
            raise Unsupported("a kernel for the target cutedsl")
        self.adapter = Simulated(session, self, options["func"], options["out_idx"])
        self.torch_function = self.adapter.func

    return init


def _tuned(session: Session) -> Any:
    """Instead of tuning: the first configuration that TileLang can lower."""

    def run(self: Any, *_: Any, **__: Any) -> Any:
        positional, named = self._kernel_parameters or ((), ())
        configs = self.configs(*positional, **dict(named)) if callable(self.configs) else self.configs
        build = self.jit_compile or (lambda **config: self.compile_args.compile_program(self.fn(**config)))
        names = list(inspect.signature(self.fn).parameters)
        given = {*names[: len(positional)], *dict(named)}
        if any(key in given for key in (configs[0] if configs else ())):
            kernel = build()
            return AutotuneResult(libcode="", func=kernel.prim_func, kernel=kernel)
        failed: Exception | None = None
        for number, config in enumerate(configs):
            chosen = {k: v for k, v in config.items() if k in names}
            chosen |= {tuner._PASS_CONFIGS_KEY: config["pass_configs"]} if "pass_configs" in config else {}
            try:
                kernel = build(**chosen)
                source = kernel.get_kernel_source()
            except Exception as error:
                failed = error
                continue
            kernel.update_tuner_result(latency=math.nan, config=dict(config), ref_latency=math.nan)
            session.notes.tuned.append(
                f"{kernel.prim_func.attrs['global_symbol']}: configuration {number + 1} of {len(configs)}, "
                f"the first that compiles: {config}"
            )
            return AutotuneResult(math.nan, dict(config), math.nan, source, kernel.prim_func, kernel)
        raise RuntimeError("no configuration of the autotuner compiles") from failed

    return run


def _benchmarks(session: Session) -> None:
    """do_bench calls nothing and gives NaN, one for each of the quantiles that are asked for."""

    def do_bench(*_: Any, quantiles: Any = None, **__: Any) -> Any:
        value = session.notes.measured("do_bench")
        return value if quantiles is None or len(quantiles) == 1 else [value] * len(quantiles)

    profiler.do_bench = profiler.bench.do_bench = do_bench
    profiler.Profiler.do_bench = do_bench


def _device(arch: str) -> None:
    """TVM finds one CUDA device of this architecture, and so do tilelang.testing's marks."""
    device, digits = tvm.runtime.Device, arch.removeprefix("sm_")
    exists, version = device.exist.fget, device.compute_version.fget
    found = lambda self: self.dlpack_device_type() == tvm.cuda(0).dlpack_device_type() and self.index == 0  # noqa: E731
    device.exist = property(lambda self: found(self) or exists(self))
    device.compute_version = property(lambda self: f"{digits[:-1]}.{digits[-1]}" if found(self) else version(self))


def install(session: Session) -> None:
    """Simulate every kernel that is compiled for CUDA from now on."""
    tilelang.disable_cache()
    os.environ["TILELANG_AUTO_TUNING_DISABLE_CACHE"] = "1"
    _device(session.arch)
    target = {"kind": "cuda", "arch": target_of(find_arch(session.arch))}
    register_target_detector("cuda", lambda: tvm.target.Target(target), override=True)
    JITKernel.__init__ = _init(session)
    tuner.AutoTuner.run = _tuned(session)
    _benchmarks(session)
