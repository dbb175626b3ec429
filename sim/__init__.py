"""Replay TileLang kernels on a CPU, word for word, with NumPy alone."""

from .flash import VARIANTS, Schedule, flash_attention
from .primfunc import Result, Unsupported, run, simulate
from .tile import Undetermined

__all__ = ["VARIANTS", "Result", "Schedule", "Undetermined", "Unsupported", "flash_attention", "run", "simulate"]
