"""TileLang kernels on CUDA: build them, run them in child processes, capture their words."""

from .errors import GpuUnavailable, KernelError
from .flash import flash_attention_kernel
from .kernel import Kernel
from .launch import device_info, flash_attention, flash_attention_many, run_kernel, run_kernels, unavailable

__all__ = [
    "GpuUnavailable",
    "Kernel",
    "KernelError",
    "device_info",
    "flash_attention",
    "flash_attention_kernel",
    "flash_attention_many",
    "run_kernel",
    "run_kernels",
    "unavailable",
]
