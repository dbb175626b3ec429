"""Run the kernels of a corpus (tools/corpus.py) on the simulator and on a GPU, and compare every word.

    python tools/corpus_check.py CORPUS_DIR OUT_DIR [--jobs N] [--seconds S] [--blocks B] [--only ID,ID] [--no-gpu]

Each kernel runs in a process of its own with a time limit. Inputs are random; sizes that are symbolic are chosen here.
Large grids are simulated for a few thread blocks only, and what these wrote is compared. OUT_DIR/check.jsonl gets one
line for each kernel: simulated or why not, ran or why not, words compared, wrong, undetermined.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE, TimeoutExpired, run
from typing import Any

import numpy as np

SYMBOLIC = 384  # what a symbolic size becomes
MOST_ELEMENTS = 1 << 28


def inputs_of(pf: Any, outputs: list[int]) -> list[Any]:
    """Random arguments, None for outputs: float tensors as (words, format), integers as arrays, scalars as ints."""
    from sim.arith import convert
    from sim.formats import FP32, Integer, dtype_named

    rng, sizes, made = np.random.default_rng(1), {}, []
    for i, parameter in enumerate(pf.params):
        if parameter not in pf.buffer_map:
            made.append(SYMBOLIC)
            continue
        buffer = pf.buffer_map[parameter]
        shape = tuple(sizes.setdefault(n, SYMBOLIC) if type(n).__name__ == "Var" else int(n) for n in buffer.shape)
        if np.prod(np.array(shape, float)) > MOST_ELEMENTS:
            raise ValueError(f"{buffer.name} {list(shape)} is too large for a check")
        fmt = dtype_named(str(buffer.dtype))
        if i in outputs:
            made.append(None)
        elif isinstance(fmt, Integer):
            made.append(_integers(str(buffer.name), shape, fmt, rng))
        else:
            x = rng.standard_normal(shape, dtype=np.float32)
            made.append((convert(x.view(np.uint32), FP32, fmt), fmt))
    return made


def _integers(name: str, shape: tuple[int, ...], fmt: Any, rng: Any) -> np.ndarray:
    """Indices that stay in bounds as a rule: cumulative lengths rise to the symbolic size, others count from 0."""
    lower = name.lower()
    if "cu_seq" in lower or "offset" in lower:
        return np.linspace(0, SYMBOLIC, shape[0]).astype(fmt.value_type)
    if fmt.bits == 8:
        return rng.integers(0, 2 if fmt.name == "bool" else 100, shape).astype(fmt.value_type)
    return (np.arange(int(np.prod(shape))) % max(1, shape[-1])).reshape(shape).astype(fmt.value_type)


def check(corpus: Path, entry: dict[str, Any], blocks: int, use_gpu: bool) -> dict[str, Any]:
    """One kernel: simulate, run, compare. Returns its line of the report."""
    from tilelang import tvm

    from sim.primfunc import Unsupported, simulate

    pf = tvm.ir.load_json((corpus / f"{entry['id']}.json").read_text())
    count = len(pf.params)
    marked = pf.attrs.get("tilelang_out_idx") if pf.attrs else None
    outputs = sorted({(int(i) + count) % count for i in _list(entry.get("out_idx") if marked is None else marked)})
    line: dict[str, Any] = {k: entry[k] for k in ("id", "file", "function", "family")}
    arrays = inputs_of(pf, outputs)
    given = [a for i, a in enumerate(arrays) if i not in outputs]
    start = time.monotonic()
    try:
        chosen = None if blocks == 0 else _some(pf, blocks)
        kernel = pf.with_attr("tilelang_out_idx", outputs) if outputs else pf
        result = simulate(kernel, *given, pass_configs=entry["pass_configs"] or {}, blocks=chosen)
    except (Unsupported, NotImplementedError) as error:
        return line | {"simulated": False, "why": str(error)[:200]}
    line |= {"simulated": True, "seconds": round(time.monotonic() - start, 1), "events": result.events}
    line["undetermined"] = sum(int(m.sum()) for m in result.undetermined if m is not None)
    return line | (_against_gpu(pf, entry, outputs, given, result) if use_gpu else {})


def _list(x: Any) -> list[int]:
    return [] if x is None else [int(x)] if isinstance(x, int) else [int(i) for i in x]


def _some(pf: Any, blocks: int) -> list[int]:
    """A few numbers of thread blocks: the first ones, and some further on."""
    return sorted({*range(blocks // 2), *(7 * n * n + 3 * n for n in range(blocks - blocks // 2))})


def _against_gpu(pf: Any, entry: dict[str, Any], outputs: list[int], given: list[Any], result: Any) -> dict[str, Any]:
    import tilelang
    import torch

    from sim.formats import from_words, to_words

    like = torch.empty(0, device="cuda")
    try:
        configs = dict(entry["pass_configs"] or {})
        own = bool(pf.attrs and "tilelang_out_idx" in pf.attrs)
        kernel = tilelang.compile(pf, out_idx=None if own else outputs or None, pass_configs=configs)
        tensors = [
            from_words(*a, like) if isinstance(a, tuple) else a if isinstance(a, int) else torch.from_numpy(a).cuda()
            for a in given
        ]
        returned = kernel(*tensors)
        torch.cuda.synchronize()
    except Exception as error:
        return {"ran": False, "why": f"GPU: {str(error).strip().splitlines()[-1][:200]}"}
    from sim.primfunc.run import written

    live = (
        ([returned] if isinstance(returned, torch.Tensor) else list(returned))
        if outputs
        else [tensors[i] for i in written(pf)]
    )
    compared = wrong = 0
    first: list[str] = []
    for number, (mine, mask, there) in enumerate(zip(result.outputs, result.undetermined, live, strict=True)):
        if there.is_floating_point():
            theirs = to_words(there)[0]
            ours = mine[0] if isinstance(mine, tuple) else to_words(mine)[0]
        else:
            theirs, ours = there.cpu().numpy(), np.asarray(mine)
        known = np.ones(theirs.shape, bool) if mask is None else ~mask
        bad = (ours.view(theirs.dtype) != theirs) & known
        compared, wrong = compared + int(known.sum()), wrong + int(bad.sum())
        for place in np.argwhere(bad)[:2]:
            at = tuple(place)
            first.append(
                f"output {number} {list(map(int, at))}: simulated {int(ours[at]):#x}, GPU {int(theirs[at]):#x}"
            )
    return {"ran": True, "compared": compared, "wrong": wrong, "first": first}


def child(corpus: Path, ident: str, blocks: int, use_gpu: bool) -> None:
    """Check one kernel and print its line as the last line."""
    entry = next(e for e in _index(corpus) if e["id"] == ident)
    try:
        line = check(corpus, entry, blocks, use_gpu)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = {"id": ident, "file": entry["file"], "function": entry["function"], "family": entry["family"]}
        line |= {
            "simulated": False,
            "why": f"{type(error).__name__}: {str(error)[:160]} ({Path(where.filename).name}:{where.lineno})",
        }
    print("\n" + json.dumps(line), flush=True)


def _index(corpus: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (corpus / "index.jsonl").read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("corpus-check"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--blocks", type=int, default=4, help="thread blocks to simulate, 0 for all")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-gpu", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.corpus, options.child, options.blocks, not options.no_gpu)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    entries = [e for e in _index(options.corpus) if not options.only or e["id"] in options.only.split(",")]

    def one(entry: dict[str, Any]) -> dict[str, Any]:
        command = [
            sys.executable,
            __file__,
            str(options.corpus),
            "--child",
            entry["id"],
            "--blocks",
            str(options.blocks),
        ]
        about = {k: entry[k] for k in ("id", "file", "function", "family")}
        try:
            done = run(command + ["--no-gpu"] * options.no_gpu, stdout=PIPE, stderr=DEVNULL, timeout=options.seconds)
        except TimeoutExpired:
            return about | {"simulated": False, "why": f"more than {options.seconds:g} s"}
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return (
            json.loads(lines[-1])
            if lines and lines[-1].startswith("{")
            else about | {"simulated": False, "why": "crashed"}
        )

    with ThreadPoolExecutor(options.jobs) as pool, (options.out / "check.jsonl").open("w") as report:
        found = []
        for line in pool.map(one, entries):
            found.append(line)
            report.write(json.dumps(line) + "\n")
            report.flush()
    ran = [x for x in found if x.get("ran")]
    print(f"{len(found)} kernels, {sum(x['simulated'] for x in found)} simulated, {len(ran)} ran,",
          f"{sum(not x['wrong'] for x in ran)} agree, {sum(x['compared'] for x in ran)} words")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
