"""Run a folder of TileLang programs on a GPU, simulate the kernels that they call, and compare every word.

    python tools/corpus_check.py EXAMPLES_DIR OUT_DIR [--files GLOB ...] [--jobs N] [--seconds S] [--no-gpu] ...
    python tools/corpus_check.py --table OUT_DIR

Each .py file runs in a child process as tools/corpus.py runs it, but with the real GPU. At the first call of each
distinct PrimFunc the inputs are copied, the kernel runs, and some of its thread blocks, or all, are simulated on the
same inputs; every word that these blocks determine is compared. Files that build no kernel on this GPU are run again
with a pretended newer one. Without a GPU (--no-gpu) the one on this machine is pretended as well, and only what can be
simulated is told. OUT_DIR/check.jsonl has a line per distinct PrimFunc, OUT_DIR/files.jsonl one per file with what went
wrong; both are written as results come, and a second run adds to them. --table prints the counts in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import corpus  # noqa: E402  the tool beside this one

MOST_BYTES = 3 << 29  # of a kernel's tensors: larger ones are not copied
FIRST = 2  # thread blocks that are simulated first
GRACE = 20  # seconds by which a simulation may outlast its budget of three times --seconds
OTHER_HARDWARE = {  # what TileLang and the programs say on a GPU that lacks something
    r"requires Blackwell|tcgen05_gemm\(\) missing": "needs sm_100",
    "SM120 or newer": "needs sm_120",
    r"k_pack|\bhip\b|tl\.tvm_mfma\"": "needs an AMD GPU",
}
ENDED = "its program was ended"  # by a time limit, say
ARCHS = {(9, 0): "sm_90", (10, 0): "sm_100", (12, 0): "sm_120"}


# ---------------------------------------------------------------------------------------------------------------------
# One kernel


class TimeLimit(BaseException):
    """A kernel's simulation took too long; no Exception, so that nobody on the way takes it for theirs."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in the block after so many seconds, in whatever thread it runs (autograd has its own)."""
    stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
    thread = ctypes.c_ulong(threading.get_ident())
    timer = threading.Timer(seconds, stop, [thread, ctypes.py_object(TimeLimit)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def words(array: Any) -> np.ndarray:
    """The words of an output, simulated or a tensor, as unsigned integers."""
    from sim.formats import to_words

    if isinstance(array, tuple):
        return np.asarray(array[0])
    if isinstance(array, torch.Tensor) and not array.is_floating_point():
        array = array.detach().cpu().numpy()
    if isinstance(array, np.ndarray) and array.dtype.kind in "iub":
        return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return to_words(array)[0]


@dataclass
class Comparison:
    """The tensors that the GPU left, by parameter; which words were simulated and which differed, in all rounds."""

    live: dict[str, Any]
    gpu: dict[str, np.ndarray] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    wrong: dict[str, np.ndarray] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)

    def add(self, result: Any) -> None:
        """Compare what a simulation determined."""
        for name, array, unknown in zip(result.names, result.outputs, result.undetermined, strict=True):
            if name not in self.gpu:
                self.gpu[name] = words(self.live[name])
                self.known[name], self.wrong[name] = np.zeros((2, *self.gpu[name].shape), bool)
            gpu, simulated = self.gpu[name], words(array)
            if simulated.shape != gpu.shape:
                raise ValueError(f"{name} has shape {list(gpu.shape)}, simulated {list(simulated.shape)}")
            known = np.ones(simulated.shape, bool) if unknown is None else ~unknown
            bad = known & (simulated != gpu)
            for at in np.argwhere(bad & ~self.wrong[name])[: 4 - len(self.first)]:
                at = tuple(int(n) for n in at)
                self.first.append(f"{name}{list(at)}: simulated {simulated[at]:#x}, GPU {gpu[at]:#x}")
            self.known[name] |= known
            self.wrong[name] |= bad

    def counts(self) -> dict[str, Any]:
        """Words compared and wrong, with the first of these; undetermined are the others, once all blocks are done."""
        compared = sum(int(k.sum()) for k in self.known.values())
        counts = {"compared": compared, "wrong": sum(int(w.sum()) for w in self.wrong.values())}
        counts["undetermined"] = sum(k.size for k in self.known.values()) - compared
        return counts | ({"first": self.first} if self.first else {})


def launches(prim_func: Any, values: dict[Any, int]) -> list[int | None]:
    """The number of thread blocks of each launch, None where the arguments do not tell."""
    from tilelang import tvm

    found: list[dict[str, int | None]] = []

    def note(node: Any) -> None:
        if type(node).__name__ != "For" or node.thread_binding is None:
            return
        tag = str(node.thread_binding.thread_tag)
        if not found or tag in found[-1]:
            found.append({})
        size = tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(node.extent, values))
        found[-1][tag] = int(size) if isinstance(size, tvm.tirx.IntImm) else None

    tvm.tirx.stmt_functor.post_order_visit(prim_func.body, note)
    return [None if None in grid.values() else math.prod(grid.values()) for grid in found]


def spread(count: int) -> list[int]:
    """All numbers below count, the first and the last one first and each next one far from those before."""
    step = next(s for s in range(max(1, round(count * 0.618)), count + 2) if math.gcd(s, count) == 1)
    return list(dict.fromkeys([0, count - 1, *((k * step) % count for k in range(count))]))


def rounds(count: int, seconds: float) -> Iterator[list[int] | None]:
    """Sets of thread blocks to simulate, None for all: a few first, more as long as that takes less than the budget."""
    order, size, done, start = spread(count), FIRST, 0, time.monotonic()
    if count <= FIRST:
        yield None
        return
    while done < count:
        before = time.monotonic()
        yield sorted(order[done : done + size])
        done += size
        now = time.monotonic()
        a_block, left = (now - before) / size, seconds - (now - start)
        if count * a_block <= left:
            yield None
            return
        size = min(4 * size, int(left / a_block))
        if size < 1:
            return


def compare(simulate: Callable[..., Any], grids: list[int | None], live: dict[str, Any], seconds: float) -> dict:
    """Simulate a kernel's thread blocks and compare them with the tensors that the GPU left."""
    largest = max((g or 0 for g in grids), default=0)
    blocks, start, comparison = 0, time.monotonic(), Comparison(live)
    line: dict[str, Any] = {"simulated": True}
    try:
        with time_limit(3 * seconds + GRACE):
            for chosen in rounds(largest or FIRST + 1, seconds):
                comparison.add(simulate(blocks=chosen))
                blocks = largest if chosen is None else blocks + len(chosen)
    except TimeLimit:
        if not blocks:
            line = {"simulated": False, "why": f"{FIRST} thread blocks take more than {3 * seconds + GRACE:g} s"}
    except Exception as error:
        line = {"simulated": False, "why": reason(error)}
    line |= {"blocks": blocks, "of": largest or None, "seconds": round(time.monotonic() - start, 1)}
    counts = comparison.counts()
    return line | ({k: n for k, n in counts.items() if k != "undetermined"} if blocks < largest else counts)


def reason(error: BaseException) -> str:
    """Why something failed, one line; where in the simulator, if it is no refusal by name."""
    text = next((t.strip() for t in str(error).splitlines() if t.strip()), "")[:200]
    if isinstance(error, NotImplementedError):
        return text
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"


def unsupported(prim_func: Any, configs: dict[str, Any], arch: str) -> str | None:
    """None, or why the PrimFunc cannot be simulated; nothing is computed."""
    from sim.primfunc import support

    try:
        needs = support(prim_func, arch=arch, pass_configs=configs)
    except Exception as error:
        return reason(error)
    missing = [f"{n.what} is not supported" + (f" ({n.where})" if n.where else "") for n in needs if not n.supported]
    return "; ".join(dict.fromkeys(missing)) or None


# ---------------------------------------------------------------------------------------------------------------------
# One file, in its child


@dataclass
class Checker(corpus.Recorder):
    """Checks every PrimFunc that a program compiles; `lines` is check.jsonl, to which all children append."""

    claims: Path = Path()  # a folder: whoever makes the file of a PrimFunc's number checks it
    built: Path = Path()  # a file that says that the program built a PrimFunc
    seconds: float = 10
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)  # the start of the PrimFunc's line, by number
    waiting: dict[str, Any] = field(default_factory=dict)  # PrimFuncs that were not called yet
    kernels: dict[str, Any] = field(default_factory=dict)  # those of them that were compiled, and how they are called

    def keep(self, prim_func: Any, options: dict[str, Any]) -> str:
        """The PrimFunc's number, which its script and its pass configuration give; the first time its line begins."""
        entry = self.describe(prim_func, options, "")
        text = prim_func.script() + json.dumps(entry.pass_configs, sort_keys=True, default=str)
        sha = hashlib.sha256(text.encode()).hexdigest()[:16]
        if sha not in self.seen:
            self.seen.add(sha)
            self.built.touch()
            names = ("file", "line", "function", "symbol", "family", "run", "capability", "pass_configs")
            self.origins[sha] = {"sha256": sha} | {n: getattr(entry, n) for n in names}
            self.waiting[sha] = prim_func
            if self.capability is not None:
                self.support(sha, "no GPU")
        return sha

    def compiled(self, prim_func: Any, options: dict[str, Any], compile_it: Callable[[], Any]) -> Any:
        sha = self.keep(prim_func, options)
        if self.capability is not None:
            return corpus.Kernel(prim_func, options.get("out_idx"))
        try:
            kernel = compile_it()
        except Exception as error:
            self.support(sha, f"TileLang does not compile it: {reason(error)}")
            raise
        if not getattr(kernel, "checked", False):
            kernel.checked, run = True, kernel.torch_function
            self.kernels[sha] = kernel, run
            kernel.torch_function = kernel.adapter.func = lambda *args: self.call(sha, kernel, run, args)
        return kernel

    def write(self, sha: str, line: dict[str, Any]) -> None:
        with open(self.lines, "a") as f:
            f.write(json.dumps(self.origins[sha] | line, default=str).replace(f"{self.root}/", "") + "\n")

    def claim(self, name: str) -> bool:
        try:
            (self.claims / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def arch(self) -> str:
        return ARCHS.get(self.capability or torch.cuda.get_device_capability(), "sm_90")

    def configs(self, sha: str, kernel: Any = None) -> dict[str, Any]:
        """The pass configuration; nvcc's own flag for fast math says the same as TileLang's."""
        flags = " ".join(getattr(kernel, "compile_flags", None) or [])
        return self.origins[sha]["pass_configs"] | ({"tl.enable_fast_math": True} if "use_fast_math" in flags else {})

    def support(self, sha: str, why_not_run: str) -> None:
        """The line of a PrimFunc that does not run: whether it can be simulated."""
        prim_func = self.waiting.pop(sha, None)
        if prim_func is not None and self.claim(f"{sha}.support"):
            why = unsupported(prim_func, self.configs(sha), self.arch())
            line = {"simulated": why is None} | ({"why": why} if why else {})
            self.write(sha, line | {"ran": False, "why_not_run": why_not_run})

    def call(self, sha: str, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], made_up: bool = False) -> Any:
        """A call of a compiled kernel: the first one of each PrimFunc is checked."""
        self.kernels.pop(sha, None)
        if sha not in self.waiting or not self.claim(sha):
            self.waiting.pop(sha, None)
            return run(*args)
        self.write(sha, {"simulated": False, "why": ENDED, "ran": False, "why_not_run": ENDED})
        size = sum(t.numel() * t.element_size() for t in args if isinstance(t, torch.Tensor))
        given = copies(args) if size <= MOST_BYTES else None
        try:
            returned = run(*args)
            torch.cuda.synchronize()
        except Exception as error:
            self.support(sha, f"the call fails: {reason(error)}")
            raise
        del self.waiting[sha]
        if given is None:
            line = {"simulated": False, "why": f"tensors of {size >> 20} MiB are more than is copied"}
        else:
            line = self.check(sha, kernel, given, args, returned)
        self.write(sha, line | {"ran": True} | ({"inputs": "made up"} if made_up else {}))
        return returned

    def check(self, sha: str, kernel: Any, given: list[Any], args: tuple[Any, ...], returned: Any) -> dict[str, Any]:
        """Simulate on copies of the inputs and compare with what the GPU left in `args` and returned."""
        from sim.primfunc import simulate

        prim_func, configs = kernel.prim_func, self.configs(sha, kernel)
        inputs = [i for i in range(len(prim_func.params)) if i not in kernel.out_idx]
        if kernel.out_idx:
            prim_func = prim_func.with_attr("tilelang_out_idx", sorted(kernel.out_idx))

        def simulated(blocks: list[int] | None) -> Any:
            return simulate(prim_func, *copies(given), arch=self.arch(), pass_configs=configs, blocks=blocks)

        try:
            grids = launches(prim_func, corpus.bound_dims(prim_func, inputs, tuple(given)))
            seconds = self.seconds * min(len(grids), 3)  # of several launches only whole grids determine the last one
            return {"launches": len(grids)} | compare(simulated, grids, named(kernel, args, returned), seconds)
        except Exception as error:
            return {"simulated": False, "why": reason(error)}

    def finish(self) -> None:
        """Call what was compiled and never called, where any numbers will do; tell of the rest what can be told."""
        for sha, (kernel, run) in list(self.kernels.items()):
            inputs = made_up_inputs(kernel)
            if sha in self.waiting and inputs is not None:
                with contextlib.suppress(Exception):
                    self.call(sha, kernel, run, tuple(inputs), made_up=True)
        for sha in list(self.waiting):
            self.support(sha, "the programs do not call it")


def copies(args: Iterable[Any]) -> list[Any]:
    return [a.detach().to("cpu", copy=True) if isinstance(a, torch.Tensor) else a for a in args]


def named(kernel: Any, args: tuple[Any, ...], returned: Any) -> dict[str, Any]:
    """The tensors of a call by parameter: those that it was given, and those that it returned."""
    results = [] if not kernel.out_idx else [returned] if isinstance(returned, torch.Tensor) else returned
    passed, returns = iter(args), dict(zip(kernel.out_idx, results, strict=True))
    tensors = {}
    for i, parameter in enumerate(kernel.prim_func.params):
        tensor, buffer = returns[i] if i in returns else next(passed), kernel.prim_func.buffer_map.get(parameter)
        if buffer is not None:
            tensors[str(buffer.name)] = tensor
    return tensors


def made_up_inputs(kernel: Any) -> list[torch.Tensor] | None:
    """Normal numbers for a kernel whose inputs are all float tensors of known sizes; None for any other."""
    made = []
    for i, parameter in enumerate(kernel.prim_func.params):
        buffer = kernel.prim_func.buffer_map.get(parameter)
        if i in kernel.out_idx:
            continue
        if buffer is None or not all(type(n).__name__ == "IntImm" for n in buffer.shape):
            return None
        shape, dtype = [int(n) for n in buffer.shape], corpus.torch_dtype(buffer.dtype)
        if not dtype.is_floating_point or 2 * math.prod(shape) > MOST_BYTES:
            return None
        made.append(torch.randn(shape, device="cuda").to(dtype))
    return made


# ---------------------------------------------------------------------------------------------------------------------
# All files, in the parent


def rank(line: dict[str, Any]) -> int:
    """How much a line tells of its PrimFunc: compared, ran, called in vain, not called."""
    called = line.get("why_not_run") not in ("no GPU", "the programs do not call it")
    return 4 * ("compared" in line) + 2 * line["ran"] + (called and line.get("why_not_run") != ENDED)


def read(path: Path) -> list[dict[str, Any]]:
    """A line per PrimFunc, the one that tells most; in the order of files and lines."""
    best: dict[str, dict[str, Any]] = {}
    for line in corpus.lines_of(path):
        if line["sha256"] not in best or rank(line) >= rank(best[line["sha256"]]):
            best[line["sha256"]] = line
    return sorted(best.values(), key=lambda x: (x["file"], x["line"], x["sha256"]))


def rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_turn(files: list[str]) -> list[str]:
    """The files, one of each folder in turn, so that a run that is cut off has seen all folders."""
    seen: Counter[str] = Counter()
    place = {}
    for file in files:
        family = file.split("/")[0]
        place[file] = seen[family]
        seen[family] += 1
    return sorted(files, key=place.__getitem__)


@dataclass
class Run:
    """The files are run on the real GPU (capability None) or on a pretended one, as `options` say, until `end`."""

    root: Path
    options: argparse.Namespace
    capability: tuple[int, int] | None
    end: float
    claims: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="claims-")))
    empty: list[str] = field(default_factory=list)  # files that define kernels and built none

    def files(self, files: list[str]) -> list[str]:
        """Run the files; returns those to try on another GPU."""
        for left in corpus.run_files(files, self.options.jobs, self.start, self.finish, self.end):
            self.note(left, False, ["not started within the limit of the whole run"])
        return self.empty

    def start(self, run: str) -> corpus.Job:
        out, spool = self.options.out, Path(tempfile.mkdtemp(prefix="check-"))
        checker = Checker(self.root, run, self.capability, out / "check.jsonl")
        checker.claims, checker.built, checker.seconds = self.claims, spool / "built", self.options.seconds
        limit = max(0.1, min(self.options.file_limit, self.end - time.monotonic()))
        return corpus.started(checker, spool, out / "logs", limit)

    def finish(self, job: corpus.Job, reasons: list[str]) -> None:
        built = (job.spool / "built").exists()
        if not built and not job.late and corpus.defines_kernels(self.root / job.run):
            self.empty.append(job.run)
        self.note(job.run, built, reasons)

    def note(self, file: str, built: bool, reasons: list[str]) -> None:
        """One line of files.jsonl, and one for whoever looks on."""
        line = {"file": file, "capability": self.capability, "built": built, "reasons": reasons}
        line["defines_kernels"] = corpus.defines_kernels(self.root / file)
        with open(self.options.out / "files.jsonl", "a") as f:
            f.write(json.dumps(line).replace(f"{self.root}/", "") + "\n")
        left = f"{self.end - time.monotonic():5.0f} s left " if self.end < math.inf else ""
        print(f"{left}{file} {'' if built else '(no kernel)'} {'; '.join(reasons)[:160]}".rstrip(), flush=True)


def run(options: argparse.Namespace) -> int:
    """Run everything and print the table."""
    root, end = options.examples.resolve(), time.monotonic() + options.limit
    options.out = options.out.resolve()
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    files = in_turn(corpus.found(root, options.files))
    corpus.prepare()
    for capability in [corpus.CAPABILITIES[0] if options.no_gpu else None, *corpus.CAPABILITIES[1:]]:
        files = Run(root, options, capability, end).files(files)
    rewrite(options.out / "check.jsonl", read(options.out / "check.jsonl"))
    print(table(options.out))
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# The table


def agrees(line: dict[str, Any]) -> bool:
    return bool(line["ran"] and line.get("compared") and not line["wrong"])


def short(text: str) -> str:
    """A reason without the names, numbers and places that tell kernels apart."""
    for pattern, meaning in OTHER_HARDWARE.items():
        if re.search(pattern, text):
            return meaning
    text = re.sub(r" \([^()]*:\d+[^()]*\)", "", text.split("; ")[0])
    text = re.sub(r"\b(buffer|tensor|parameter|view of) '?\w+'?", r"\1 X", text)
    return re.sub(r"\b(0x[0-9a-f]+|\d+)\b", "N", text)[:110]


def table(folder: Path) -> str:
    """Markdown: the counts of each folder of programs, each reason with its count, files that build no kernel."""
    lines = read(folder / "check.jsonl")
    families = sorted({x["family"] for x in lines})
    rows = [("all", lines), *((f, [x for x in lines if x["family"] == f]) for f in families)]
    head = ["| examples | PrimFuncs | simulate | ran on the GPU | agree in every word |", "|---|---|---|---|---|"]
    counted = [(len(x), sum(y["simulated"] for y in x), sum(y["ran"] for y in x), sum(map(agrees, x))) for _, x in rows]
    body = [f"| {name} | {' | '.join(map(str, c))} |" for (name, _), c in zip(rows, counted, strict=True)]
    compared, wrong = (sum(x.get(key, 0) for x in lines) for key in ("compared", "wrong"))
    total = f"{compared:,} words compared, {wrong:,} differ."
    return "\n".join([*head, *body, "", total, "", *reasons(lines), *kernelless(folder / "files.jsonl")])


def kernelless(path: Path) -> list[str]:
    """A line for each file that defines kernels and builds none, with what went wrong first."""
    files: dict[str, list[dict[str, Any]]] = {}
    for line in corpus.lines_of(path):
        if line["defines_kernels"]:
            files.setdefault(line["file"], []).append(line)
    none = {f: runs for f, runs in files.items() if not any(r["built"] for r in runs)}
    why = {f: next(iter(runs[0]["reasons"]), "nothing in it is called") for f, runs in none.items()}
    return [f"* no kernel: {f}: {short(text)}" for f, text in sorted(why.items())]


def reasons(lines: list[dict[str, Any]]) -> list[str]:
    """A line for each reason why PrimFuncs do not simulate, do not run or do not agree, the most frequent first."""
    why: Counter[str] = Counter()
    for x in lines:
        if not x["simulated"]:
            why[f"not simulated: {short(x['why'])}"] += 1
        if not x["ran"]:
            why[f"not run: {short(x['why_not_run'])}"] += 1
        if x["ran"] and x["simulated"] and not x.get("compared"):
            why["no word compared: the chosen thread blocks determine none"] += 1
        if x.get("wrong"):
            why[f"differs: {x['file']}, {x['function']}"] += 1
    return [f"* {n} {text}" for text, n in sorted(why.items(), key=lambda pair: (-pair[1], pair[0]))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?", default=Path("corpus-check"))
    parser.add_argument("--files", nargs="+", default=["**/*.py"], help="patterns relative to the examples, in order")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=10, help="to simulate one kernel")
    parser.add_argument("--file-limit", type=float, default=300, help="seconds for one file")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds for everything")
    parser.add_argument("--no-gpu", action="store_true", help="pretend one, and tell only what can be simulated")
    parser.add_argument("--table", type=Path, help="print the table of an OUT_DIR and run nothing")
    options = parser.parse_args()
    if options.table:
        if not (options.table / "check.jsonl").exists():
            parser.error("--table must be a folder with a check.jsonl")
        print(table(options.table))
        return 0
    if options.examples is None or not options.examples.is_dir():
        parser.error("EXAMPLES_DIR must be a folder of TileLang programs")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
