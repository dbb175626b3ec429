"""Run the kernels of tests/kernels and tests/faults on a GPU, compare every word with the simulator, keep the words.

python tools/capture_kernels.py OUT_DIR [--special] [NAME ...]

Writes OUT_DIR/kernels.npz and faults.npz with their manifests: each kernel with fast math (NAME_fast) and without
(NAME_precise, only where it differs); a second output is NAME_fast_1. The manifest's cells say which arrays are whose.
Where the simulator says that a word is undetermined, nothing is compared. With names only those kernels run, with
--special the inputs have infinities, NaN, the greatest numbers and subnormals among them; then nothing is written. Exit
code 1 when a word differs or a kernel does not run.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

MODES = {"fast": True, "precise": False}


def known() -> dict[str, dict[str, Any]]:
    """The kernels by name, for each file that is written."""
    import faults
    import kernels

    return {"kernels": kernels.KERNELS, "faults": faults.on_gpu()}


def on_device(kernel: Any, inputs: list[Any], fast: bool) -> list[np.ndarray]:
    """The words that this machine's GPU gives for each output."""
    import tilelang
    import torch

    from sim.formats import from_words

    like = torch.empty(0, device="cuda")
    given = [
        from_words(*x, like) if isinstance(x, tuple) else torch.from_numpy(x).cuda() if hasattr(x, "shape") else x
        for x in inputs
    ]
    pf = kernel.make()
    compiled = tilelang.compile(
        pf, out_idx=list(range(len(given), len(pf.params))) or None, pass_configs={"tl.enable_fast_math": fast}
    )
    result = compiled(*given)
    torch.cuda.synchronize()
    from sim.primfunc.kernel import written

    found = ([given[i] for i in written(pf)]) if not kernel.made else result if kernel.made > 1 else [result]
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [t.contiguous().view(signed[t.element_size()]).cpu().numpy() for t in found]


def child(group: str, name: str, out: Path, special: bool) -> None:
    """Compile, run and simulate one kernel in both modes; write the words of both."""
    from sim.primfunc import simulate

    kernel, arrays = known()[group][name], {}
    for mode, fast in MODES.items():
        for n, words in enumerate(on_device(kernel, kernel.inputs(special), fast)):
            arrays[f"gpu_{mode}_{n}"] = words
        np.savez(out, **arrays)
        inputs = kernel.inputs(special)  # again, because a kernel may write to them
        result = simulate(kernel.prim_func(), *inputs, pass_configs={"tl.enable_fast_math": fast})
        for n, (x, unknown) in enumerate(zip(kernel.outputs(result), result.undetermined, strict=True)):
            arrays[f"sim_{mode}_{n}"] = x[0] if isinstance(x, tuple) else x
            arrays[f"known_{mode}_{n}"] = np.ones(x[0].shape if isinstance(x, tuple) else x.shape, bool)
            if unknown is not None:
                arrays[f"known_{mode}_{n}"] = ~unknown
        np.savez(out, **arrays)


def start(cell: tuple[str, str], folder: Path, special: bool) -> tuple[dict[str, np.ndarray], str]:
    """What a child process found, and why it failed."""
    path = folder / f"{cell[0]}_{cell[1]}.npz"
    command = [sys.executable, __file__, "--child", *cell, str(path), *["--special"] * special]
    try:
        done = run(command, capture_output=True, timeout=400, text=True)
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason"])[-1]
    except TimeoutExpired:
        reason = "no answer in 400 s"
    arrays = dict(np.load(path)) if path.exists() else {}
    return arrays, reason


def compare(name: str, arrays: dict[str, np.ndarray]) -> tuple[int, int]:
    """Print what differs. Returns the words that differ and the words compared."""
    wrong = total = 0
    for key in [k for k in arrays if k.startswith("gpu_") and "sim_" + k[4:] in arrays]:
        there = arrays[key]
        here, sure = arrays["sim_" + key[4:]].view(there.dtype), arrays["known_" + key[4:]]
        different = (there != here) & sure
        total += int(sure.sum())
        wrong += int(different.sum())
        if different.any():
            at = np.argwhere(different)
            first = [(i.tolist(), hex(int(there[tuple(i)])), hex(int(here[tuple(i)]))) for i in at[:4]]
            print(f"  {name} {key[4:]}: {len(at)} of {there.size} words differ; place, GPU, simulator: {first}")
    return wrong, total


def write(path: Path, kernels: dict[str, Any], found: dict[str, dict[str, np.ndarray]]) -> None:
    """The words of one group as a capture."""
    import gpu
    from sim.captures import save_capture

    words, integers, cells = {}, {}, []
    for name, arrays in found.items():
        formats = kernels[name].formats()
        for mode, fast in MODES.items():
            cells.append({"name": name, "fast_math": fast, "words": []})
            for n, fmt in enumerate(formats):
                there, first = arrays[f"gpu_{mode}_{n}"], arrays[f"gpu_fast_{n}"]
                kept = "fast" if np.array_equal(there, first) else mode
                label = f"{name}_{kept}" + (f"_{n}" if n else "")
                cells[-1]["words"].append(label)
                if hasattr(fmt, "fraction_bits"):
                    words[label] = (there.view(fmt.word), fmt)
                else:
                    integers[label] = there.view(fmt.value_type)
    facts = gpu.device_info() | {"command": "python tools/capture_kernels.py tests/captures/h200", "seed": 948}
    facts |= {"date": datetime.date.today().isoformat(), "cells": cells}
    save_capture(path, words, facts, integers or None)


def main(folder: Path, names: list[str], special: bool) -> int:
    """Run all in child processes, compare, write. Returns 0 when every kernel ran and every word agrees."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = known()
    cells = [(group, name) for group, kernels in groups.items() for name in kernels if not names or name in names]
    wrong, total, failed = 0, 0, 0
    found: dict[str, dict[str, Any]] = {group: {} for group in groups}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(min(14, os.cpu_count() or 1)) as pool:
        answers = pool.map(lambda cell: start(cell, Path(scratch), special), cells)
        for (group, name), (arrays, reason) in zip(cells, answers, strict=True):
            different, compared = compare(name, arrays)
            wrong, total, failed = wrong + different, total + compared, failed + bool(reason)
            print(name, reason or ("same" if not different else "differs"), compared)
            if not reason:
                found[group][name] = arrays
    for group, kernels in groups.items():
        if not names and not special:
            write(folder / f"{group}.npz", kernels, found[group])
    print(f"{len(cells)} kernels, {failed} failed; {wrong} of {total} words differ")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    special = "--special" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--special"]
    if arguments[:1] == ["--child"]:
        sys.exit(child(arguments[1], arguments[2], Path(arguments[3]), special))
    if not arguments:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(arguments[0]), arguments[1:], special))
