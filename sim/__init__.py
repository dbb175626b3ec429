"""Replay TileLang kernels on a CPU, word for word, with NumPy alone."""

from .flash import VARIANTS, Schedule, flash_attention
from .tile import Undetermined

__all__ = ["VARIANTS", "Schedule", "Undetermined", "flash_attention"]
