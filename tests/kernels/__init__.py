"""TileLang kernels of our own from several families, to hold the walk of a PrimFunc to a GPU's words.

KERNELS has them by name; each says how it is made, its inputs and how many outputs it makes (kernels.entry.Kernel).
"""

from . import backward, decode, flash, gemms, linear, loops, operators, rows, sparse
from .entry import Kernel

__all__ = ["KERNELS", "Kernel"]

KERNELS: dict[str, Kernel] = {}
for _family in (flash, backward, decode, sparse, linear, rows, gemms, operators, loops):
    assert not KERNELS.keys() & _family.KERNELS.keys(), f"two kernels of one name in {_family.__name__}"
    KERNELS |= _family.KERNELS
