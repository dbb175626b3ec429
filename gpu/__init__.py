"""TileLang kernels on CUDA: build them, run them in child processes, capture their words."""

from .errors import GpuUnavailable, KernelError
from .flash import flash_attention_kernel
from .launch import device_info, flash_attention, flash_attention_many, unavailable

__all__ = [
    "GpuUnavailable",
    "KernelError",
    "device_info",
    "flash_attention",
    "flash_attention_kernel",
    "flash_attention_many",
    "unavailable",
]
