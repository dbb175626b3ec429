"""Run the kernels of tests/forms.py on a GPU, compare every word with the simulator, keep the words.

python tools/capture_contraction.py OUT_DIR        writes OUT_DIR/contraction.npz and contraction.json

Each form runs with fast math and without, its inputs those of forms.inputs. Exit code 1 when a word differs or a kernel
does not run.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

FAST = "tl.enable_fast_math"
MODES = {"fast": True, "precise": False}


def cells() -> list[tuple[str, str]]:
    """Every form and mode."""
    import forms

    return [(name, mode) for name in [*forms.FORMS, *forms.WALKS] for mode in MODES]


def label(name: str, mode: str) -> str:
    """The name of a form's words in the capture."""
    return f"{name}_{mode}".replace(" ", "_").replace(",", "").replace("/", "_over_")


def child(first: int, step: int, folder: Path) -> None:
    """Compile and run every `step`-th cell from `first` on; write the words of each."""
    import forms
    import tilelang
    import torch

    from sim.formats import from_words

    like = torch.empty(0, device="cuda")
    for name, mode in cells()[first::step]:
        form = (forms.FORMS | forms.WALKS)[name]
        given = [from_words(*x, like) for x in forms.inputs(form)]
        result = tilelang.compile(form.make(), out_idx=[6], pass_configs={FAST: MODES[mode]})(*given)
        torch.cuda.synchronize()
        words = result.view(torch.int32 if form.dtype == "float32" else torch.int16).cpu().numpy()
        np.save(folder / f"{label(name, mode)}.npy", words)


def main(folder: Path) -> int:
    """Run all in child processes, compare, write. Returns 0 when every word agrees."""
    import forms

    import gpu
    from sim.captures import save_capture
    from sim.formats import format_named
    from sim.primfunc import simulate

    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    workers = os.cpu_count() or 1
    started = [Popen([sys.executable, __file__, str(n), str(workers), str(parts)]) for n in range(workers)]
    for process in started:
        process.wait()
    kept: dict[str, Any] = {}
    described, wrong = [], 0
    for name, mode in cells():
        form, path = (forms.FORMS | forms.WALKS)[name], parts / f"{label(name, mode)}.npy"
        if not path.exists():
            print(name, mode, "did not run")
            wrong += 1
            continue
        fmt = format_named(form.dtype)
        there = np.load(path).view(fmt.word)
        pf = form.make().with_attr("tilelang_out_idx", [6])
        here = simulate(pf, *forms.inputs(form), pass_configs={FAST: MODES[mode]}).outputs[0][0]
        different = int((here != there).sum())
        if different:
            print(name, mode, f"{different} of {there.size} words differ")
        wrong += different
        kept[label(name, mode)] = (there, fmt)
        described.append({"name": name, "fast_math": MODES[mode]})
        path.unlink()
    facts = gpu.device_info() | {"command": "python tools/capture_contraction.py tests/captures/h200", "seed": 948}
    facts |= {"date": datetime.date.today().isoformat(), "cells": described}
    save_capture(folder / "contraction.npz", kept, facts)
    print(f"{len(kept)} of {len(cells())} ran, {wrong} words wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 4:
        sys.exit(child(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1])))
