"""What can go wrong between a schedule and its words."""

from __future__ import annotations

__all__ = ["GpuUnavailable", "KernelError", "reason"]


class GpuUnavailable(RuntimeError):
    """No kernel can run here; the message is `gpu.unavailable()`'s sentence."""


class KernelError(RuntimeError):
    """A kernel gave no words.

    kind: "compile" (TileLang or nvcc refuses it, the message has its reason), "run" (CUDA reports an error), "timeout",
    or "crash" (its process ended)
    """

    def __init__(self, message: str, kind: str = "run") -> None:
        super().__init__(message)
        self.kind = kind


def reason(error: BaseException, lines: int = 2) -> str:
    """The first lines of an exception that say why, in one line: nvcc's errors if there are any, else the beginning."""
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in text if ": error" in line or line.startswith(("error", "ptxas"))] or text
    said = " ".join(told[:lines]) or type(error).__name__
    return said if len(said) <= 400 else said[:397] + "..."
