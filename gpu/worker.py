"""The process that compiles and runs kernels: `python -m gpu.worker`, one JSON line in and one out for each request.

A request is {"input": NPZ, "output": NPZ, "schedule": {...}}, where NPZ holds the words of q, k and v (`sim.captures`),
or {"input": NPZ, "output": NPZ, "prim_func": JSON, ...}, any kernel with the fields of `gpu.kernel.Kernel`. The answer
is {"ok": true}, or {"ok": false, "kind": KIND, "message": TEXT} with KIND as in KernelError. {"info": true} is answered
with what `gpu.device_info` returns. CUDA gives no second chance in a process whose kernel failed, so the
process ends after an error of kind "run".
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

from sim.captures import load_arrays, save_arrays
from sim.flash import Schedule
from sim.formats import from_words, to_words

from .errors import KernelError, reason
from .flash import compile_kernel
from .kernel import call, compile_prim_func, load_arguments

__all__ = ["info", "run", "run_kernel", "serve"]


def run_kernel(request: dict[str, Any]) -> None:
    """Compile and run any kernel, write its outputs' words under their parameters' numbers. Raises KernelError."""
    outputs, made = request["outputs"], request["made"]
    kernel = compile_prim_func(request["prim_func"], outputs, made, request["pass_configs"], request["compile_flags"])
    try:
        words = call(kernel, load_arguments(request["input"], request["arguments"]), outputs, made)
    except Exception as error:
        raise KernelError(f"the kernel does not run: {reason(error, lines=1)}", "run") from error
    np.savez(request["output"], **{str(i): each for i, each in zip(outputs, words, strict=True)})  # type: ignore[arg-type]


def run(request: dict[str, Any]) -> None:
    """Compile and run the kernel of a schedule, write the words of its output `o`. Raises KernelError."""
    import torch

    arrays = load_arrays(request["input"])
    (q, fmt), (k, _), (v, _) = arrays["q"], arrays["k"], arrays["v"]
    batch, seq_q, heads, dim = q.shape
    schedule = Schedule(**request["schedule"])
    kernel = compile_kernel(schedule, batch, heads, k.shape[2], seq_q, k.shape[1], dim, fmt.name)
    try:
        like = torch.empty(0, device="cuda")
        output = kernel(*(from_words(words, fmt, like) for words in (q, k, v)))
        torch.cuda.synchronize()
        words, fmt = to_words(output)
    except Exception as error:
        raise KernelError(f"the kernel does not run: {reason(error)}", "run") from error
    save_arrays(request["output"], {"o": (words, fmt)})


def info() -> dict[str, Any]:
    """The device that kernels run on and the versions that make them; `device` is None without a CUDA device."""
    import tilelang
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if device else None
    return {
        "device": device,
        "driver": _driver(),
        "cuda": _nvcc() or torch.version.cuda,
        "torch": torch.__version__,
        "tilelang": tilelang.__version__,
        "arch": arch,
    }


def _driver() -> str | None:
    """The driver's version, as the kernel module tells it."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def _nvcc() -> str | None:
    """The version of the nvcc that TileLang compiles with."""
    try:
        from tilelang.contrib.nvcc import get_cuda_version

        return ".".join(map(str, get_cuda_version()[:2]))
    except Exception:
        return None


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    try:
        if request.get("info"):
            return {"ok": True, **info()}
        run_kernel(request) if "prim_func" in request else run(request)
        return {"ok": True}
    except KernelError as error:
        return {"ok": False, "kind": error.kind, "message": str(error)}
    except Exception as error:
        return {"ok": False, "kind": "run", "message": f"{type(error).__name__}: {reason(error)}"}


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more, or one failed in a way that the process cannot survive."""
    for line in requests:
        said = answer(json.loads(line))
        print(json.dumps(said), file=answers, flush=True)
        if said.get("kind") == "run":
            break


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the compiler prints goes to the log
    serve(sys.stdin, channel)
