"""Run a request: on the simulator, and on the GPU when it is asked for and there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import sim
from sim.arch import arch as find_arch
from sim.flash import Schedule
from sim.formats import Format, to_words

from .flags import UsageError

__all__ = ["Device", "Job", "basis", "find_gpu", "on_gpu", "on_simulator"]

Job = tuple[Any, Any, Any, Schedule]  # q, k, v, schedule


def on_simulator(q: Any, k: Any, v: Any, schedule: Schedule, arch: str) -> tuple[np.ndarray, Format]:
    """Output words of the simulator. Raises UsageError for what it refuses, sim.Undetermined."""
    try:
        return to_words(sim.flash_attention(q, k, v, schedule, arch=arch))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(str(error)) from error


def basis(arch: str) -> str:
    """What the words of an architecture rest on."""
    if find_arch(arch).measured:
        return "measured (H200)"
    return f"literature: nobody here has measured words on {arch}"


@dataclass(frozen=True)
class Device:
    """A GPU that can run the kernels: its name, its architecture, and all that gpu.device_info() says."""

    name: str
    arch: str
    info: dict[str, Any]


def find_gpu(when: str, arch: str) -> tuple[Device | None, str]:
    """The GPU to compare with, or None and why there is none ("" if nobody asked).

    when: auto, off or require. Raises UsageError if it is required and missing, or is of another architecture.
    """
    if when == "off":
        return None, ""
    import gpu

    reason = gpu.unavailable()
    if reason is None:
        info = gpu.device_info()
        found = Device(info["device"], info["arch"].removesuffix("a"), info)
        if found.arch == arch:
            return found, ""
        reason = f"no GPU run: the GPU here is a {found.name} ({found.arch}), and --arch is {arch}"
    if when == "require":
        raise UsageError(f"--gpu require: {reason.removeprefix('no GPU run: ')}")
    return None, reason


def on_gpu(jobs: list[Job]) -> list[tuple[np.ndarray, Format]]:
    """Output words of the TileLang kernels. Raises UsageError with the reason when one does not compile or run."""
    import gpu

    try:
        results = gpu.flash_attention_many(jobs)
    except (gpu.GpuUnavailable, ValueError, TypeError) as error:
        raise UsageError(f"the TileLang kernel did not run: {error}") from error
    for result in results:
        if isinstance(result, gpu.KernelError):
            raise UsageError(f"the TileLang kernel did not run: {result}") from result
    return [to_words(result) for result in results]
