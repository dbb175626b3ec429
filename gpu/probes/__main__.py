"""Run the probes and write one report: python -m gpu.probes [--only a,b,c,d] [--out DIR] [--quick]

    a  approximations over all inputs     b  scalar arithmetic and conversions
    c  tensor core                        d  open points, as plain facts

Each section runs in a process of its own with a time limit, and stops by itself a little before it, so that what it has
counted is kept. DIR gets report.json, probes.json (its counts), differences.npz (the first differences) and
mufu_*.npz (words of approximations). The exit status is 0 when every section finished and no claimed case differs, 2
for bad usage or a machine that cannot run them.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import build
from .tally import Tally

ROOT = Path(__file__).resolve().parents[2]
# section: letter, seconds. In this order, so that what is cheap and new comes first.
SECTIONS = {
    "facts_scalar": ("d", 60),
    "facts_mma": ("d", 30),
    "facts_wgmma": ("d", 30),
    "wgmma": ("c", 110),
    "mma": ("c", 70),
    "scalar": ("b", 120),
    "mufu": ("a", 130),
}
GRACE = 15  # seconds that a section gets beyond its own limit before it is ended


def _report(out: Path, section: str, content: dict[str, Any], differences: dict[str, np.ndarray] | None = None) -> None:
    (out / f"{section}.json").write_text(json.dumps(content))
    if differences:
        np.savez_compressed(out / f"{section}.npz", **differences)  # type: ignore[arg-type]


def _arrays(tallies: dict[str, Tally]) -> dict[str, np.ndarray]:
    """`CASE__COLUMN`: the saved differences of each case, one row each (rows of one length only)."""
    arrays = {}
    for name, tally in tallies.items():
        for column in ("a", "b", "c", "gpu", "sim"):
            values = [np.asarray(d[column]) for d in tally.differences if column in d]
            values = [v for v in values if v.shape == values[0].shape]
            if values:
                arrays[f"{name.replace(' ', '_')}__{column}"] = np.stack(values)
    return arrays


def _guarded(job: tuple[Callable[[Any], dict[str, Tally]], Any]) -> dict[str, Tally]:
    work, task = job
    try:
        return work(task)
    except Exception as error:
        return {str(task[:2]): Tally(errors=[f"{type(error).__name__}: {error}"])}


def _results(results: Any, deadline: float) -> Iterator[dict[str, Tally]]:
    """What the pool gives until the deadline; raises TimeoutError there."""
    while True:
        try:
            yield results.next(timeout=max(0.1, deadline - time.monotonic()))
        except StopIteration:
            return
        except multiprocessing.TimeoutError as error:
            raise TimeoutError from error


def _self_test(prefix: str, libraries: Path, jobs: int) -> Any:
    """tensor.choose_layout, a process for each test."""
    from . import tensor

    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, initializer=build.use, initargs=(libraries,), maxtasksperchild=1) as pool:
        return tensor.choose_layout(prefix, pool)


def _compare_section(section: str, out: Path, libraries: Path, quick: bool, jobs: int, deadline: float) -> None:
    """Run a section's tasks in parallel and write its tallies, all of them or those that were in time."""
    from . import scalar, tensor

    start, done = time.monotonic(), 0
    tallies: dict[str, Tally] = {}
    content: dict[str, Any] = {}
    work: Callable[[Any], dict[str, Tally]] = scalar.work
    if section in ("mma", "wgmma"):
        offsets, usable, content["self-test"] = _self_test(section, libraries, jobs)
        tasks, work = tensor.tasks(usable, offsets, quick), tensor.work
    else:
        tasks = scalar.mufu_tasks(quick) if section == "mufu" else scalar.scalar_tasks(quick)
    with multiprocessing.get_context("fork").Pool(jobs, initializer=build.use, initargs=(libraries,)) as pool:
        content["finished"] = bool(tasks)
        try:
            for found in _results(pool.imap_unordered(_guarded, ((work, task) for task in tasks)), deadline):
                done += 1
                for name, tally in found.items():
                    tallies.setdefault(name, Tally()).merge(tally)
        except TimeoutError:
            content["finished"] = False
        pool.terminate()
    content |= {"tasks": [done, len(tasks)], "seconds": round(time.monotonic() - start, 1)}
    content["cases"] = {name: tallies[name].summary() for name in sorted(tallies)}
    _report(out, section, content, _arrays(tallies))


def _facts_section(section: str, out: Path, libraries: Path, jobs: int) -> None:
    """Run a section's facts one after another; the report is written anew after each."""
    from . import facts

    start = time.monotonic()
    content: dict[str, Any] = {"finished": False, "facts": {}}
    if section == "facts_scalar":
        found = facts.scalar_facts(out)
    else:
        offsets, usable, content["self-test"] = _self_test(section.removeprefix("facts_"), libraries, jobs)
        found = facts.tensor_facts([kind for kind, mode in usable if mode == ""], offsets)
    build.use(libraries)
    for name, fact in found.items():
        try:
            content["facts"][name] = fact()
        except Exception as error:  # one fact must not stop the others
            content["facts"][name] = {"error": f"{type(error).__name__}: {error}"}
        content |= {"seconds": round(time.monotonic() - start, 1)}
        _report(out, section, content)
    _report(out, section, content | {"finished": bool(found)})


def _child(options: argparse.Namespace) -> int:
    out, libraries = Path(options.out), Path(options.build)
    if options.section.startswith("facts"):
        _facts_section(options.section, out, libraries, options.jobs)
    else:
        deadline = time.monotonic() + SECTIONS[options.section][1]
        _compare_section(options.section, out, libraries, options.quick, options.jobs, deadline)
    return 0


def _run_section(section: str, parts: Path, libraries: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One section in a child process, ended with all that it started when it overruns."""
    command = [sys.executable, "-m", "gpu.probes", "--section", section, "--out", str(parts), "--build", str(libraries)]
    command += ["--jobs", str(options.jobs), *(["--quick"] if options.quick else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    log = parts / f"{section}.log"
    with log.open("w") as stream:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            child.wait(SECTIONS[section][1] + GRACE)
            ended = None if child.returncode == 0 else f"exit status {child.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"no end after {SECTIONS[section][1] + GRACE} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    part = parts / f"{section}.json"
    content = json.loads(part.read_text()) if part.exists() else {"finished": False}
    if ended:
        content |= {"finished": False, "error": f"{ended}: {log.read_text()[-1500:]}"}
    return content


def _machine() -> dict[str, str]:
    def said(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)

    return {
        "gpu": said("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"),
        "nvcc": said("nvcc", "--version").rpartition("\n")[2],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python -m gpu.probes", *sys.argv[1:]]),
    }


def _lines(section: str, content: dict[str, Any]) -> Iterator[str]:
    """What to print of a section."""
    state = "" if content.get("finished") else "  NOT FINISHED"
    yield f"{section}: {content.get('seconds', '?')} s{state}"
    if "error" in content:
        yield f"    {content['error']}"
    if "self-test" in content:
        yield f"    self-test: {content['self-test']['verdict']}"
    cases = content.get("cases", {})
    good = [c for c in cases.values() if not c["wrong"] and not c.get("errors")]
    yield f"    {len(good)} cases agree, {sum(c['compared'] for c in good)} words" if cases else ""
    for name, case in cases.items():
        if case["wrong"] or case.get("errors"):
            mark = "" if case["claimed"] else " (not claimed)"
            yield f"    {name}{mark}: {case['wrong']} of {case['compared']} words differ"
            yield from (f"        {error}" for error in case.get("errors", [])[:1])
            yield from (f"        {difference}" for difference in case.get("first", [])[:3])
    for name, fact in content.get("facts", {}).items():
        if isinstance(fact, dict) and "error" in fact:
            yield f"    {name}: {fact['error']}"
        else:
            differing = list(_unlike_sim(fact))
            yield f"    {name}: {f'{len(differing)} differ from sim' if differing else 'as sim'}"
            yield from (f"        {row}" for row in differing[:12])


def _unlike_sim(fact: Any) -> Iterator[str]:
    """The rows of a fact where the GPU's word or place is not sim's."""
    if isinstance(fact, dict) and "gpu keeps to" in fact:
        columns = [fact.get(name, [""] * len(fact["gpu keeps to"])) for name in ("i", "gpu keeps to", "sim keeps to")]
        yield from (f"i {i}: gpu keeps to {g}, sim to {s}" for i, g, s in zip(*columns, strict=True) if g != s)
        if fact.get("gpu alone"):
            yield f"first term alone: {fact['gpu alone']}"
    elif isinstance(fact, dict) and "gpu" in fact and "sim" in fact:
        if fact["gpu"] != fact["sim"]:
            yield str(fact)
    elif isinstance(fact, dict):
        for name, part in fact.items():
            yield from (f"{name}: {row}" for row in _unlike_sim(part))
    elif isinstance(fact, list) and fact and all(isinstance(x, str) for x in fact):
        if len(fact) > 2 and fact[-1] != fact[-2]:
            yield " ".join(fact)
    elif isinstance(fact, list):
        for part in fact:
            yield from _unlike_sim(part)


def _failed(content: dict[str, Any]) -> bool:
    cases = content.get("cases", {}).values()
    return not content.get("finished") or any(c["claimed"] and (c["wrong"] or c.get("errors")) for c in cases)


def _counts(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a report: the machine, and for each case the words compared and the wrong ones."""
    kept = {
        section: {
            name: {k: case[k] for k in ("compared", "wrong", "claimed")} for name, case in content["cases"].items()
        }
        for section, content in report["sections"].items()
        if content.get("cases")
    }
    machine = report["machine"] | {"command": "python -m gpu.probes"}
    return {"machine": machine, "quick": report["quick"], "cases": kept}


def _merge_differences(parts: Path, out: Path) -> None:
    arrays: dict[str, Any] = {}
    for section in SECTIONS:
        if (parts / f"{section}.npz").exists():
            with np.load(parts / f"{section}.npz") as part:
                arrays |= {f"{section}__{name}": part[name] for name in part.files}
    if arrays:
        np.savez_compressed(out / "differences.npz", **arrays)


def _missing(libraries: str | None) -> str | None:
    """What the machine lacks to run the probes, in one sentence; None when it lacks nothing."""
    try:
        found = ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return "no GPU run: there is no CUDA device (the NVIDIA driver's libcuda.so.1 is not installed)"
    if not found:
        return "no GPU run: the NVIDIA driver sees no CUDA device"
    compiled = libraries and all((Path(libraries) / f"{name}.so").exists() for name in build.LIBRARIES)
    if not compiled and not shutil.which("nvcc") and not Path("/usr/local/cuda/bin/nvcc").exists():
        return "no GPU run: nvcc, which compiles the probes, is neither on PATH nor in /usr/local/cuda/bin"
    return None


def _options() -> argparse.Namespace:
    """The flags; ends the program with code 2 for those that cannot be."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m gpu.probes", description=summary, allow_abbrev=False)
    parser.add_argument("--only", default="a,b,c,d", help="letters of the parts, or names of sections")
    parser.add_argument("--out", default="probes-out", help="directory of the report")
    parser.add_argument("--build", help="directory of the compiled libraries, reused when they are there")
    parser.add_argument("--quick", action="store_true", help="a small part of the inputs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {*SECTIONS, *(letter for letter, _ in SECTIONS.values())}
    if unknown := [name for name in options.only.split(",") if name not in known]:
        parser.error(f"--only must name parts or sections, of {', '.join(sorted(known))}, not {unknown[0]!r}")
    return options


def main() -> int:
    options = _options()
    if options.section:
        return _child(options)
    if reason := _missing(options.build):
        print(f"python -m gpu.probes: {reason}", file=sys.stderr)
        return 2
    chosen = set(options.only.split(","))
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": _machine(), "quick": options.quick, "sections": {}}
    with tempfile.TemporaryDirectory() as scratch:
        parts = Path(scratch) / "parts"
        libraries = Path(options.build).resolve() if options.build else Path(scratch) / "build"
        for directory in (parts, libraries):
            directory.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        report["compile errors"] = {name: said for name, said in build.compile_all(libraries).items() if said}
        print(f"compiled in {time.monotonic() - start:.0f} s {report['compile errors'] or ''}", flush=True)
        for section, (letter, _) in SECTIONS.items():
            if letter not in chosen and section not in chosen:
                continue
            report["sections"][section] = content = _run_section(section, parts, libraries, options)
            print("\n".join(line for line in _lines(section, content) if line), flush=True)
            _merge_differences(parts, out)
            for extra in parts.glob("mufu_*.npz"):
                (out / extra.name).write_bytes(extra.read_bytes())
            (out / "report.json").write_text(json.dumps(report, indent=1))
            (out / "probes.json").write_text(json.dumps(_counts(report), indent=1) + "\n")
    return int(bool(report["compile errors"]) or any(_failed(c) for c in report["sections"].values()))


if __name__ == "__main__":
    sys.exit(main())
