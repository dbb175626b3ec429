"""Any TileLang kernel: its PrimFunc walked on the tile operators of sim.tile."""

from .frame import Unsupported
from .run import Result, run, simulate

__all__ = ["Result", "Unsupported", "run", "simulate"]
