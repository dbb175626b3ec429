"""Public numeric faults of tile kernels as kernels of ours, with the schedule that is wrong and the one that is right.

CASES has them by name, and controls that look alike and are clean.
"""

from kernels import Kernel

from . import d1, d2, d3, d4, d5, d6, d7, masked_inf
from .case import Case

__all__ = ["CASES", "Case", "on_gpu"]

CASES: dict[str, Case] = {}
for _fault in (d1, d2, d3, d4, d5, d6, d7, masked_inf):
    CASES |= _fault.CASES


def on_gpu() -> dict[str, Kernel]:
    """The kernels whose words a GPU can confirm: those that do not depend on memory that nobody wrote."""
    return {name: case.kernel for name, case in CASES.items() if case.undetermined is None}
