"""Run tests/kernels.py on a GPU, with fast math and without, compare every word with the simulator, keep the words.

python tools/capture_kernels.py OUT_DIR        writes OUT_DIR/kernels.npz and kernels.json
"""

from __future__ import annotations

import datetime
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

FAST = "tl.enable_fast_math"


def child(name: str, fast: bool, out: Path) -> None:
    """Compile and run one kernel; write its output's words."""
    import kernels
    import tilelang
    import torch

    from sim.captures import save_arrays
    from sim.formats import from_words, to_words

    like = torch.empty(0, device="cuda")
    tensors = [from_words(words, fmt, like) for words, fmt in kernels.inputs(name)]
    kernel = tilelang.compile(kernels.KERNELS[name][0](), out_idx=[len(tensors)], pass_configs={FAST: fast})
    result = kernel(*tensors)
    torch.cuda.synchronize()
    save_arrays(out, {"o": to_words(result)})


def main(folder: Path) -> int:
    """Run all in child processes, compare, write. Returns 0 when every word agrees."""
    import kernels

    import gpu
    from crosscheck.diff import diff
    from sim.captures import load_arrays, save_capture
    from sim.primfunc import simulate

    folder.mkdir(parents=True, exist_ok=True)
    cells = [(name, fast) for name in kernels.KERNELS for fast in (True, False)]

    def one(cell: tuple[str, bool]) -> Any:
        path = folder / f"{cell[0]}_{cell[1]}.npz"
        command = [sys.executable, __file__, str(folder), cell[0], str(int(cell[1])), str(path)]
        done = run(command, capture_output=True, timeout=300, text=True)
        if not path.exists():
            return done.stderr.strip().splitlines()[-1:]
        found = load_arrays(path)["o"]
        path.unlink()
        return found

    kept, wrong, described = {}, 0, []
    with ThreadPoolExecutor(12) as pool:
        for (name, fast), there in zip(cells, pool.map(one, cells), strict=True):
            if not isinstance(there, tuple):
                print(name, fast, "did not run:", *there)
                continue
            pf = kernels.KERNELS[name][0]()
            made = simulate(
                pf.with_attr("tilelang_out_idx", [len(pf.params) - 1]), *kernels.inputs(name), pass_configs={FAST: fast}
            )
            found = diff(made.outputs[0], there)
            wrong += found.different
            print(name, "fast" if fast else "precise", found.message() if not found.same else "same")
            kept[f"{name}_{'fast' if fast else 'precise'}"] = there
            described.append({"name": name, "fast_math": fast})
    facts = gpu.device_info() | {"command": "python tools/capture_kernels.py tests/captures/h200", "seed": 948}
    save_capture(folder / "kernels.npz", kept, facts | {"date": datetime.date.today().isoformat(), "cells": described})
    print(f"{len(kept)} of {len(cells)} ran, {wrong} words wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 5:
        sys.exit(child(sys.argv[2], sys.argv[3] == "1", Path(sys.argv[4])))
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1])))
