"""A GPU for tests of the command line: it gives the simulator's words, or wrong ones on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpu
import sim
from sim import flash_attention
from sim.formats import Integer, dtype_named, to_words


def install(
    monkeypatch: pytest.MonkeyPatch, arch: str = "sm_90a", flip: int = 0, error: Exception | None = None
) -> None:
    """Give `gpu` a device: it flips the bits of `flip` in the first word of each kernel, or gives `error` instead."""
    facts = {"device": "NVIDIA H200", "arch": arch, "driver": None, "cuda": None, "torch": None, "tilelang": None}

    def many(jobs: list[Any]) -> list[Any]:
        outs = [flash_attention(*job, arch="sm_90") for job in jobs]
        for words, _ in outs:
            words.reshape(-1)[0] ^= flip
        return [error] * len(jobs) if error else outs

    def run_kernel(kernel: gpu.Kernel, timeout: float = 120) -> list[np.ndarray]:
        if error:
            raise error
        outs = _simulated(kernel)
        outs[0].reshape(-1)[0] ^= flip
        return outs

    def run_kernels(kernels: list[gpu.Kernel], workers: int | None = None, timeout: float = 120) -> list[Any]:
        return [run_kernel(kernel, timeout) for kernel in kernels]

    monkeypatch.setattr(gpu, "run_kernels", run_kernels)
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu, "device_info", lambda: facts)
    monkeypatch.setattr(gpu, "flash_attention_many", many)
    monkeypatch.setattr(gpu, "run_kernel", run_kernel)


def _simulated(kernel: gpu.Kernel) -> list[np.ndarray]:
    """The words of a request's outputs, from what the request says and nothing else."""
    from tilelang import tvm

    pf = tvm.ir.load_json(kernel.prim_func)
    pf = pf.with_attr("tilelang_out_idx", list(kernel.outputs)) if kernel.made else pf
    result = sim.simulate(pf, *map(_array, kernel.arguments), pass_configs=kernel.pass_configs)
    return [
        each.view(f"u{each.itemsize}") if isinstance(each, np.ndarray) else to_words(each)[0] for each in result.outputs
    ]


def _array(argument: Any) -> Any:
    if isinstance(argument, int):
        return argument
    words, dtype = argument[0].copy(), dtype_named(argument[1])
    return words.view(dtype.value_type) if isinstance(dtype, Integer) else (words, dtype)
