"""The table of `prove --tuner`: which of the tuner's tiles are safe for each variant, for all inputs within bounds."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from sim.flash import VARIANTS
from sim.prove import prove

from .bounds import flash_bounds
from .flags import UsageError, flag, given
from .prove_question import Question, of_flash, within
from .result import DIFFERS, SAME, UNDETERMINED, Result
from .sweep_axes import TUNER
from .terminal import Progress, Style

__all__ = ["table"]

MASKS = ("full", "causal")
FIXED = ("variant", "mask", "block_M", "block_N", "threads", "stages")
VERDICTS = {"proved": "good", "refuted": "bad", "open": "plain"}


def table(args: argparse.Namespace, style: Style) -> Result:
    """Prove or refute every variant with every mask and tile; 0 all proved, 1 one is refuted, else 3.

    Threads and stages change neither masks nor the bounds of a sum, so that a tile stands for all of them.
    """
    for name in FIXED:
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is what --tuner says")
    tiles = [(m, n) for m in dict.fromkeys(TUNER["block_M"]) for n in dict.fromkeys(TUNER["block_N"])]
    bounds = flash_bounds(args)
    cells: dict[tuple[str, str], list[str]] = {}  # mask and variant -> the verdicts of the tiles
    rows: list[dict[str, Any]] = []
    with Progress(len(MASKS) * len(VARIANTS) * len(tiles)) as progress:
        for mask in MASKS:
            for variant in VARIANTS:
                for block_M, block_N in tiles:
                    progress.step(f"proving {variant}, {mask}, {block_M}x{block_N}")
                    args.mask, args.variant, args.block_M, args.block_N = mask, variant, block_M, block_N
                    asked = of_flash(args, bounds)
                    row = {"variant": variant, "mask": mask, "block_M": block_M, "block_N": block_N} | _judged(asked)
                    rows.append(row)
                    cells.setdefault((mask, variant), []).append(str(row["verdict"]))
    found = Counter(row["verdict"] for row in rows)
    code = DIFFERS if found["refuted"] else UNDETERMINED if found["open"] else SAME
    sizes = [f"{given(args, 'seq')} queries of {given(args, 'dim')} {given(args, 'dtype')}", given(args, "arch")]
    lines = [", ".join(["the tuner's tiles", *sizes]), f"for all inputs with {within(bounds)}", ""]
    lines.append(f"{'':<30}" + "".join(f"{f'{m}x{n}':<9}" for m, n in tiles).rstrip())
    for (mask, variant), verdicts in cells.items():
        painted = " ".join(style.paint(f"{v:<8}", VERDICTS[v]) for v in verdicts)
        lines.append(f"  {mask:<7} {variant:<20} {painted}".rstrip())
    why = Counter(row["why"] for row in rows if row["verdict"] == "refuted")
    lines += ["", ", ".join(f"{count} {name}" for name, count in found.items())]
    lines += [f"  refuted: {count} by {text}" for text, count in why.items()]
    return Result(code, "\n".join(lines), {"verb": "prove", "tuner": rows, "bounds": dict(bounds.tensors)})


def _judged(asked: Question) -> dict[str, Any]:
    proof = prove(asked.simulate, asked.bounds)
    if proof.proved:
        return {"verdict": "proved", "why": ""}
    found = asked.search([place.buffer for _, place in proof.stuck])
    if found is None:
        return {"verdict": "open", "why": f"{proof.stuck[0][0]} into {proof.stuck[0][1].buffer}" if proof.stuck else ""}
    cause = found.trace.causes[0]
    return {"verdict": "refuted", "why": f"{found.what}: {cause.kind} in {cause.place.buffer}"}
