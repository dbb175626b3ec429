"""What differs between GPU architectures, and nothing else. Each number carries its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

__all__ = ["ARCHS", "Arch", "DotProduct", "arch"]

H200 = "measured: H200 (python -m gpu.probes; tests/captures/h200/mma_words.npz)"
LITERATURE = "literature (docs/NUMERICS.md, section 1)"


@dataclass(frozen=True)
class DotProduct:
    """The truncated dot product of one tensor-core instruction (see sim.mma for the rule).

    operand, accumulator: formats of a and b, and of c and d
    L:      products added to the accumulator in one step
    F:      fraction bits kept below the largest exponent of a step
    out:    how a step's sum becomes a word: "rz_fp32", "rne_fp16" or "rz_e8m13" (fp32 with 13 fraction bits)
    floor:  the least exponent that terms are aligned to; None if there is none or nobody knows one
    source: where these numbers come from
    """

    operand: Format
    accumulator: Format
    L: int
    F: int
    out: str
    floor: int | None
    source: str

    @cached_property
    def measured(self) -> bool:
        return self.source.startswith("measured")


@dataclass(frozen=True)
class Arch:
    """One GPU architecture: its name, its tensor core's dot products, and what its compiler does otherwise.

    splits_mul_sub: fp32 loops are packed into pairs (mul2, sub2, fma2), and under fast math `a*b - c` is then a product
                    and a subtraction that does not flush (docs/NUMERICS.md, section 3: read in code, not measured)
    measured:       whole kernels agreed on this architecture in every word
    """

    name: str
    units: tuple[DotProduct, ...]
    splits_mul_sub: bool = False
    measured: bool = False

    def dot(self, operand: Format, accumulator: Format = FP32) -> DotProduct:
        """The tensor core's dot product for these formats. Raises ValueError that lists what there is."""
        for unit in self.units:
            if unit.operand is operand and unit.accumulator is accumulator:
                return unit
        known = ", ".join(f"{u.operand.name} into {u.accumulator.name}" for u in self.units)
        raise ValueError(
            f"{self.name} has no modelled dot product of {operand.name} into {accumulator.name}, only {known}"
        )


def _half(
    L: int, F: int, floor: int | None, floor16: int | None, source: str, bf16: bool = True
) -> tuple[DotProduct, ...]:
    fp32 = tuple(DotProduct(f, FP32, L, F, "rz_fp32", floor, source) for f in ((FP16, BF16) if bf16 else (FP16,)))
    return (*fp32, DotProduct(FP16, FP16, L, F, "rne_fp16", floor16, source))


def _tf32(L: int, F: int, floor: int | None, source: str) -> tuple[DotProduct, ...]:
    return (DotProduct(TF32, FP32, L, F, "rz_fp32", floor, source),)


def _fp8(L: int, F: int, out: str, floor: int | None, source: str) -> tuple[DotProduct, ...]:
    return tuple(DotProduct(f, FP32, L, F, out, floor, source) for f in (E4M3, E5M2))


_AMPERE = _half(8, 24, -132, -20, LITERATURE) + _tf32(4, 24, -132, LITERATURE)

ARCHS = {
    a.name: a
    for a in (
        Arch("sm_70", _half(4, 23, None, -19, LITERATURE, bf16=False)),
        Arch("sm_75", _half(8, 24, None, None, LITERATURE, bf16=False)),
        Arch("sm_80", _AMPERE),
        Arch("sm_86", _AMPERE),
        Arch("sm_89", _AMPERE + _fp8(16, 13, "rz_e8m13", None, LITERATURE)),
        Arch(
            "sm_90",
            _half(16, 25, -133, -21, H200) + _tf32(8, 25, -133, H200) + _fp8(32, 13, "rz_e8m13", None, H200),
            measured=True,
        ),
        Arch("sm_100", _half(16, 25, -133, -21, LITERATURE) + _tf32(8, 25, -133, LITERATURE), splits_mul_sub=True),
        Arch(
            "sm_120",
            _half(16, 25, None, -21, LITERATURE)
            + _tf32(8, 25, None, LITERATURE)
            + _fp8(32, 25, "rz_fp32", None, LITERATURE),
            splits_mul_sub=True,
        ),
    )
}


def arch(name: str) -> Arch:
    """The record of an architecture ("sm_90" or "sm_90a"). Raises ValueError that lists the names."""
    found = ARCHS.get(name.removesuffix("a")) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"arch must be one of {', '.join(ARCHS)}, not {name!r}")
    return found
