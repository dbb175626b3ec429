"""Run kernels on the GPU in child processes with a time limit, so that a crash or a hang costs a report, not the run.

The parent imports neither TileLang nor torch. A child (`gpu.worker`) serves one request after another; one that hangs
or dies is ended, its request gets the error, and the next request gets a fresh child.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import asdict, replace
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from sim.captures import Arrays, load_arrays, save_arrays
from sim.flash import Schedule
from sim.formats import BF16, FP16, from_words, to_words

from .errors import GpuUnavailable, KernelError
from .kernel import Kernel, save_arguments

__all__ = [
    "TILELANG",
    "Job",
    "device_info",
    "flash_attention",
    "flash_attention_many",
    "run_kernel",
    "run_kernels",
    "unavailable",
]

TILELANG = "0.1.15"  # the version whose kernels the simulator is checked against
WORKER = (sys.executable, "-P", "-m", "gpu.worker")
Job = tuple[Any, Any, Any, Schedule]  # q, k, v, schedule


def flash_attention(q: Any, k: Any, v: Any, schedule: Schedule, timeout: float = 120) -> Any:
    """The output of the kernel of `schedule` on this machine's GPU, an array of the same kind as `q`.

    q: [batch, seq_q, heads, dim], k and v: [batch, seq_kv, heads_kv, dim], float16 or bfloat16, NumPy, ml_dtypes or
    torch; timeout: seconds for compiling and running. Raises GpuUnavailable, KernelError, and ValueError or TypeError
    for arrays that do not fit together.
    """
    (result,) = flash_attention_many([(q, k, v, schedule)], workers=1, timeout=timeout)
    if isinstance(result, KernelError):
        raise result
    return result


def flash_attention_many(jobs: Sequence[Job], workers: int | None = None, timeout: float = 120) -> list[Any]:
    """The outputs of many kernels, compiled in parallel: for each job (q, k, v, schedule) its array or its KernelError.

    workers: child processes at a time (default: one for each core); timeout: seconds for each job. Raises
    GpuUnavailable, and ValueError or TypeError for a job whose arrays do not fit together.
    """
    if sentence := unavailable():
        raise GpuUnavailable(sentence)
    with tempfile.TemporaryDirectory(prefix="gpu-flash-") as folder:
        requests = [_request(Path(folder), i, *job) for i, job in enumerate(jobs)]
        answers = ask_many(requests, workers or os.cpu_count() or 1, timeout)
        return [_result(*each) for each in zip(requests, answers, jobs, strict=True)]


def run_kernel(kernel: Kernel, timeout: float = 120) -> list[np.ndarray]:
    """The words of a kernel's outputs on this machine's GPU, in the order of `kernel.outputs`.

    timeout: seconds for compiling and running. Raises GpuUnavailable and KernelError.
    """
    (result,) = run_kernels([kernel], workers=1, timeout=timeout)
    if isinstance(result, KernelError):
        raise result
    return result


def run_kernels(
    kernels: Sequence[Kernel], workers: int | None = None, timeout: float = 120
) -> list[list[np.ndarray] | KernelError]:
    """The words of the outputs of many kernels, compiled in parallel, or the KernelError of each.

    workers: child processes at a time (default: one for each core); timeout: seconds for each kernel. Raises
    GpuUnavailable.
    """
    if sentence := unavailable():
        raise GpuUnavailable(sentence)
    with tempfile.TemporaryDirectory(prefix="gpu-kernel-") as folder:
        requests = [_kernel_request(Path(folder), i, kernel) for i, kernel in enumerate(kernels)]
        answers = ask_many(requests, workers or os.cpu_count() or 1, timeout)
        return [_kernel_words(*each) for each in zip(requests, answers, kernels, strict=True)]


def _kernel_request(folder: Path, number: int, kernel: Kernel) -> dict[str, Any]:
    """Write a kernel's arguments to `folder` and describe it for the worker."""
    names = {"input": str(folder / f"{number}.npz"), "output": str(folder / f"{number}.out.npz")}
    arguments = save_arguments(names["input"], kernel.arguments)
    return asdict(replace(kernel, arguments=())) | {"arguments": arguments} | names


def _kernel_words(request: dict[str, Any], answer: Any, kernel: Kernel) -> list[np.ndarray] | KernelError:
    if isinstance(answer, KernelError):
        return answer
    with np.load(request["output"], allow_pickle=False) as outputs:
        return [outputs[str(i)] for i in kernel.outputs]


def unavailable() -> str | None:
    """None when kernels can run here, else one sentence that says what is missing."""
    try:
        version = importlib.metadata.version("tilelang")
    except importlib.metadata.PackageNotFoundError:
        return f"no GPU run: TileLang is not installed (pip install tilelang=={TILELANG})"
    if version != TILELANG:
        return f"no GPU run: TileLang {version} is installed, the kernels need {TILELANG}"
    if importlib.util.find_spec("torch") is None:
        return "no GPU run: torch is not installed (pip install torch)"
    return _no_device()


@cache
def _no_device() -> str | None:
    """None when torch, in a child, sees a CUDA device. A machine without the driver is told at once."""
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return "no GPU run: there is no CUDA device (the NVIDIA driver's libcuda.so.1 is not installed)"
    try:
        info = device_info()
    except KernelError as error:
        return f"no GPU run: asking for the CUDA device failed ({error})"
    if info["device"] is None:
        return f"no GPU run: torch {info['torch']} sees no CUDA device"
    return None


@cache
def device_info() -> dict[str, Any]:
    """device, driver, cuda (the nvcc that compiles), torch, tilelang and arch; asked of a child, once.

    Raises KernelError when the child cannot say, for example without TileLang.
    """
    (said,) = ask_many([{"info": True}], workers=1, timeout=60)
    if isinstance(said, KernelError):
        raise said
    return {name: value for name, value in said.items() if name != "ok"}


def ask_many(
    requests: Sequence[dict[str, Any]], workers: int, timeout: float, command: Sequence[str] = WORKER
) -> list[Any]:
    """The answer to each request, or the KernelError that says why there is none.

    workers: the children that run `command` at a time; timeout: seconds for each request.
    """
    answers: list[Any] = [None] * len(requests)
    waiting = deque(range(len(requests)))
    children = [_Child(command) for _ in range(max(1, min(workers, len(requests))))]
    try:
        while waiting or any(child.serves is not None for child in children):
            for child in children:
                if child.serves is None and waiting:
                    child.start((i := waiting.popleft()), requests[i], timeout)
            busy = [child for child in children if child.serves is not None]
            ready = wait([child.answers.fileno() for child in busy], min(child.left() for child in busy))
            for child in busy:
                if child.answers.fileno() in ready or child.left() <= 0:
                    child.finish(answers)
    finally:
        for child in children:
            child.end()
    return answers


class _Child:
    """A worker process: started when it is first given a request, and again after it was lost."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.serves: int | None = None  # the number of the request that it works on

    def start(self, number: int, request: dict[str, Any], timeout: float) -> None:
        """Give the child a request; it has `timeout` seconds from now."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self._spawn()
        self.serves, self.timeout, self.deadline, self.said = number, timeout, time.monotonic() + timeout, b""
        try:
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()
        except BrokenPipeError:
            pass  # it died on the way; its answer, end of file, tells

    def left(self) -> float:
        """Seconds until the deadline, not below 0."""
        return max(0.0, self.deadline - time.monotonic())

    def finish(self, answers: list[Any]) -> None:
        """Take what the child said into `answers`, if it said all of it or can say no more."""
        assert self.serves is not None
        said = self.answers.fileno()
        more = os.read(said, 1 << 16) if wait([said], 0) else b""
        self.said += more
        if self.said.endswith(b"\n"):
            answers[self.serves], lost = _answer(self.said)
        elif more and self.left() > 0:
            return
        else:
            answers[self.serves], lost = self._lost(), True
        self.serves = None
        if lost:
            self.end()

    def end(self) -> None:
        """End the process and all that it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for stream in (self.requests, self.answers, self.log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.process = None

    def _spawn(self) -> None:
        self.log = tempfile.TemporaryFile()
        path = [str(Path(__file__).parents[1]), *filter(None, sys.path)]  # what can be imported here, and there
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        self.process = subprocess.Popen(
            self.command, stdin=PIPE, stdout=PIPE, stderr=self.log, env=environment, start_new_session=True
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout

    def _lost(self) -> KernelError:
        """The error of a child that hangs or has died."""
        assert self.process is not None
        try:
            code = self.process.wait(self.left())
        except subprocess.TimeoutExpired:
            return KernelError(f"the kernel gave no result within {self.timeout:g} s and was ended", "timeout")
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").split("\n")
        last = next((f"; its last words: {line.strip()[:200]}" for line in reversed(lines) if line.strip()), "")
        return KernelError(f"the kernel's process crashed with {how}{last}", "crash")


def _answer(line: bytes) -> tuple[dict[str, Any] | KernelError, bool]:
    """What a child said, and whether it is lost after saying it."""
    try:
        said = json.loads(line)
    except ValueError:
        return KernelError(f"the kernel's process said {line[:80]!r}, which is no answer", "crash"), True
    if said["ok"]:
        return said, False
    return KernelError(said["message"], said["kind"]), said["kind"] == "run"


def _request(folder: Path, number: int, q: Any, k: Any, v: Any, schedule: Schedule) -> dict[str, Any]:
    """Write a job's words to `folder` and describe it for the worker."""
    arrays = {name: to_words(array, name) for name, array in (("q", q), ("k", k), ("v", v))}
    _check(arrays)
    names = {"input": str(folder / f"{number}.npz"), "output": str(folder / f"{number}.out.npz")}
    save_arrays(names["input"], arrays)
    return {**names, "schedule": asdict(schedule)}


def _check(arrays: Arrays) -> None:
    """Raise a ValueError or TypeError for arrays that do not fit together."""
    (q, fmt), (k, _), (v, _) = arrays["q"], arrays["k"], arrays["v"]
    for name, (words, other) in arrays.items():
        if fmt not in (FP16, BF16) or other is not fmt:
            raise TypeError(f"{name} must be float16 or bfloat16 like q, not {other.name} with q {fmt.name}")
        if words.ndim != 4 or 0 in words.shape:
            raise ValueError(f"{name} must be [batch, seq, heads, dim] with no dimension of 0, not {words.shape}")
    if k.shape != v.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"k and v must be [batch, seq_kv, heads_kv, dim], with q's batch and dim, heads_kv a divisor of q's heads, "
            f"not {k.shape} and {v.shape} with q {q.shape}"
        )


def _result(request: dict[str, Any], answer: Any, job: Job) -> Any:
    """The job's output as an array like its q, or its KernelError."""
    if isinstance(answer, KernelError):
        return answer
    words, fmt = load_arrays(request["output"])["o"]
    return from_words(words, fmt, job[0])
