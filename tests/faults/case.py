"""What a case of a fault is: a kernel with its inputs, and what the simulator must say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels import Kernel

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """One schedule of a fault, or a control that must be reported clean.

    kernel:       the kernel and its inputs; its last output is the one that is judged
    nan:          the index of exactly those elements that are NaN; None for a clean result
    undetermined: the fragment that nobody wrote, where no word of the output can be known; no GPU can confirm it
    """

    kernel: Kernel
    nan: Any = None
    undetermined: str | None = None
