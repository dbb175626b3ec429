"""Replay TileLang kernels on a CPU, word for word, with NumPy alone."""

from .flash import VARIANTS, Schedule, flash_attention
from .primfunc import Need, Result, Unsupported, run, simulate, support
from .report import Report, Undetermined

__all__ = [
    "VARIANTS",
    "Need",
    "Report",
    "Result",
    "Schedule",
    "Undetermined",
    "Unsupported",
    "flash_attention",
    "run",
    "simulate",
    "support",
]
