"""Any TileLang kernel: its PrimFunc walked on the tile operators of sim.tile."""

from .frame import Unsupported
from .run import Result, run, simulate, support
from .statements import Need

__all__ = ["Need", "Result", "Unsupported", "run", "simulate", "support"]
