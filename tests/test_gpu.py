"""What holds of the GPU side on a machine without a GPU: kernels compile, refusals say why, children are watched."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import capture, kernel, launch
from gpu.errors import reason
from gpu.launch import ask_many
from sim.captures import FACTS, load_capture, save_arrays, save_capture
from sim.flash import VARIANTS, Schedule
from sim.formats import FP16

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
SHAPE = (1, 2, 1, 100, 200, 64, "bfloat16")  # batch, heads, heads_kv, seq_q, seq_kv, dim, dtype
tilelang_installed = importlib.util.find_spec("tilelang") is not None
with_tilelang = pytest.mark.skipif(not tilelang_installed, reason="TileLang is not installed (make test installs it)")


# the kernel


@with_tilelang
@pytest.mark.parametrize("name", VARIANTS)
def test_the_kernel_has_the_operators_of_its_variant(name: str) -> None:
    schedule = Schedule.variant(name, block_M=128, causal=True)
    text = str(gpu.flash_attention_kernel(schedule, *SHAPE))
    refill, clear, merge = VARIANTS[name]
    assert text.count('T.infinity("float32") * T.float32(-1.0)') == 2 + refill  # before the loop, the mask, the refill
    assert f'"max", 1, T.bool({clear})' in text
    assert ("T.max(scores_max[i], scores_max_prev[i])" in text) == merge
    order = [
        text.index(part)
        for part in ("T.gemm(T.region(Q_shared", '"max"', "T.exp2", '"sum"', "T.gemm(T.region(acc_s_cast")
    ]
    assert order == sorted(order)


@with_tilelang
def test_the_kernel_compiles_without_a_gpu() -> None:
    from gpu.flash import compile_kernel

    source = compile_kernel(Schedule(causal=True, num_stages=2), *SHAPE, target=HOPPER).get_kernel_source()
    assert "wgmma" in source


@with_tilelang
@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (Schedule(block_M=8), "block_M 8, block_N 64, threads 128, dim 64, bfloat16): Check failed"),
        (Schedule(block_M=8), "M must be divisible by 16, but got 8"),
        (Schedule(block_M=96), "No valid warp partition for T.gemm"),
        (Schedule(block_M=16), "Layout infer conflict between acc_s and acc_s_cast"),
    ],
)
def test_a_kernel_that_does_not_compile_says_why(schedule: Schedule, told: str) -> None:
    from gpu.flash import compile_kernel

    with pytest.raises(gpu.KernelError) as caught:
        compile_kernel(schedule, *SHAPE, target=HOPPER)
    assert caught.value.kind == "compile" and told in str(caught.value) and "\n" not in str(caught.value)


@with_tilelang
def test_the_kernel_names_a_bad_argument() -> None:
    with pytest.raises(ValueError, match="heads must be a multiple of heads_kv, not 3 with heads_kv 2"):
        gpu.flash_attention_kernel(Schedule(), 1, 3, 2, 64, 64, 64, "float16")
    with pytest.raises(ValueError, match="dtype must be float16 or bfloat16, not 'float32'"):
        gpu.flash_attention_kernel(Schedule(), 1, 2, 2, 64, 64, 64, "float32")


def test_a_reason_is_one_line() -> None:
    assert reason(RuntimeError("\n first \n\n second\nthird")) == "first second"
    assert reason(RuntimeError("log\nk.cu(3): error: no such thing\nmore")) == "k.cu(3): error: no such thing"
    assert reason(ValueError()) == "ValueError" and len(reason(ValueError("x" * 900))) == 400


# whether kernels can run


def test_importing_gpu_imports_no_compiler() -> None:
    code = "import sys, gpu; assert not {'torch', 'tilelang', 'tvm'} & set(sys.modules); gpu.unavailable()"
    subprocess.run(
        [sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True, cwd=Path(__file__).parents[1]
    )


def no_package(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def no_library(name: str) -> None:
    raise OSError(name)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with everything, as far as `unavailable` can see; the test takes something away."""
    launch._no_device.cache_clear()
    monkeypatch.setattr(launch.importlib.metadata, "version", lambda name: launch.TILELANG)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(launch, "CDLL", lambda name: None)
    monkeypatch.setattr(launch, "device_info", lambda: {"device": "NVIDIA H200", "torch": "2.13.0"})
    return monkeypatch


def test_available(tools: pytest.MonkeyPatch) -> None:
    assert gpu.unavailable() is None


@pytest.mark.parametrize(
    ("where", "name", "what", "told"),
    [
        (
            launch.importlib.metadata,
            "version",
            no_package,
            r"TileLang is not installed \(pip install tilelang==0.1.15\)",
        ),
        (
            launch.importlib.metadata,
            "version",
            lambda name: "0.1.14",
            "TileLang 0.1.14 is installed, the kernels need 0.1.15",
        ),
        (launch.importlib.util, "find_spec", lambda name: None, "torch is not installed"),
        (launch, "CDLL", no_library, "no CUDA device"),
        (launch, "device_info", lambda: {"device": None, "torch": "2.13.0"}, "torch 2.13.0 sees no CUDA device"),
    ],
)
def test_unavailable(tools: pytest.MonkeyPatch, where: object, name: str, what: object, told: str) -> None:
    tools.setattr(where, name, what)
    q = np.zeros((1, 64, 1, 64), np.float16)
    launch._no_device.cache_clear()
    with pytest.raises(gpu.GpuUnavailable, match=f"^no GPU run: .*{told}"):
        gpu.flash_attention(q, q, q, Schedule())
    launch._no_device.cache_clear()


@with_tilelang
def test_device_info_tells_the_versions() -> None:
    info = gpu.device_info()
    assert info["tilelang"] == launch.TILELANG and set(info) == {
        "device",
        "driver",
        "cuda",
        "torch",
        "tilelang",
        "arch",
    }


# children

# A worker for tests. A request's `do` says what becomes of it; every answer tells the process.
WORKER = """
import json, os, signal, sys, time
for line in sys.stdin:
    request = json.loads(line)
    do = request["do"]
    said = {"ok": True, "process": os.getpid(), "number": request["number"]}
    if do == "hang":
        time.sleep(600)
    if do == "crash":
        print("a last word", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if do == "exit":
        sys.exit(3)
    if do == "babble":
        said = "no answer"
    if do in ("compile", "run"):
        said = {"ok": False, "kind": do, "message": "told why"}
    time.sleep(request.get("seconds", 0))
    print(said if do == "babble" else json.dumps(said), flush=True)
"""
DUMMY = (sys.executable, "-c", WORKER)


def ask(*actions: str, workers: int = 1, timeout: float = 30, seconds: float = 0) -> list:
    requests = [{"do": do, "number": i, "seconds": seconds} for i, do in enumerate(actions)]
    return ask_many(requests, workers, timeout, DUMMY)


def test_a_child_serves_several_requests() -> None:
    answers = ask(*["work"] * 5)
    assert [answer["number"] for answer in answers] == [0, 1, 2, 3, 4]
    assert len({answer["process"] for answer in answers}) == 1


def test_children_work_side_by_side() -> None:
    start = time.monotonic()
    answers = ask(*["work"] * 8, workers=8, seconds=1)
    assert len({answer["process"] for answer in answers}) == 8 and time.monotonic() - start < 7
    assert [answer["number"] for answer in answers] == list(range(8))


def test_no_requests_no_children() -> None:
    assert ask() == []


def test_a_hung_child_is_ended_and_replaced() -> None:
    start = time.monotonic()
    before, hung, after = ask("work", "hang", "work", timeout=2)
    assert time.monotonic() - start < 20
    assert hung.kind == "timeout" and str(hung) == "the kernel gave no result within 2 s and was ended"
    assert before["process"] != after["process"]
    with pytest.raises(ProcessLookupError):
        import os

        os.kill(before["process"], 0)


@pytest.mark.parametrize(
    ("do", "kind", "told"),
    [
        ("crash", "crash", "crashed with SIGSEGV; its last words: a last word"),
        ("exit", "crash", "crashed with exit status 3"),
        ("babble", "crash", "which is no answer"),
        ("compile", "compile", "told why"),
        ("run", "run", "told why"),
    ],
)
def test_a_failure_costs_its_own_request_only(do: str, kind: str, told: str) -> None:
    before, failed, after = ask("work", do, "work")
    assert isinstance(failed, gpu.KernelError) and failed.kind == kind and told in str(failed)
    assert (before["process"] == after["process"]) == (do == "compile")


def test_a_worker_that_cannot_start() -> None:
    (answer,) = ask_many([{"do": "work"}], 1, 30, (sys.executable, "-c", "import nothing_of_that_name"))
    assert answer.kind == "crash" and "exit status 1" in str(answer) and "nothing_of_that_name" in str(answer)


# jobs

# A worker for tests that writes 1 + i to the output of the i-th job, or refuses block_M 8.
ONES = """
import json, sys
from sim.captures import load_arrays, save_arrays
for line in sys.stdin:
    request = json.loads(line)
    said = {"ok": True}
    if request["schedule"]["block_M"] == 8:
        said = {"ok": False, "kind": "compile", "message": "M must be divisible by 16, but got 8"}
    else:
        save_arrays(request["output"], {"o": load_arrays(request["input"])["q"]})
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose kernels answer q, and do not compile with block_M 8."""
    monkeypatch.setattr(launch, "unavailable", lambda: None)
    monkeypatch.setattr(
        launch,
        "ask_many",
        lambda requests, workers, timeout: ask_many(requests, workers, timeout, (sys.executable, "-c", ONES)),
    )


def array(shape: tuple[int, ...], dtype: str = "float16") -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.uint16).view(dtype).reshape(shape)


def test_results_are_arrays_like_q(echo: None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (make test installs it)")
    q, k = array((1, 8, 2, 4)), array((1, 6, 1, 4))
    tensors = [torch.from_numpy(each).to(torch.bfloat16) for each in (q, k, k)]
    plain, tensor = gpu.flash_attention_many([(q, k, k, Schedule()), (*tensors, Schedule())], workers=2, timeout=60)
    assert plain.dtype == np.float16 and np.array_equal(plain.view(np.uint16), q.view(np.uint16))
    assert tensor.dtype == torch.bfloat16 and torch.equal(tensor.view(torch.int16), tensors[0].view(torch.int16))


def test_one_refused_job_leaves_the_others(echo: None) -> None:
    q = array((1, 8, 1, 4))
    jobs = [(q, q, q, Schedule()), (q, q, q, Schedule(block_M=8)), (q, q, q, Schedule())]
    first, refused, last = gpu.flash_attention_many(jobs, workers=2, timeout=60)
    assert first.shape == last.shape == q.shape and refused.kind == "compile"
    with pytest.raises(gpu.KernelError, match="M must be divisible by 16"):
        gpu.flash_attention(q, q, q, Schedule(block_M=8))


@pytest.mark.parametrize(
    ("error", "told", "shapes", "dtypes"),
    [
        (TypeError, "q must be float16 or bfloat16", [(1, 2, 3, 4)] * 3, ["float32"] * 3),
        (
            TypeError,
            "k must be float16 or bfloat16 like q, not float32",
            [(1, 2, 3, 4)] * 3,
            ["float16", "float32", "float16"],
        ),
        (ValueError, r"q must be \[batch, seq, heads, dim\]", [(2, 3, 4)] * 3, ["float16"] * 3),
        (ValueError, "k and v must be", [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 8)], ["float16"] * 3),
        (ValueError, "k and v must be", [(1, 2, 3, 4), (1, 2, 2, 4), (1, 2, 2, 4)], ["float16"] * 3),
    ],
)
def test_arrays_that_do_not_fit(echo: None, error: type, told: str, shapes: list, dtypes: list) -> None:
    with pytest.raises(error, match=told):
        gpu.flash_attention(*(np.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes)), Schedule())


# any kernel

# A worker for tests that gives each output the words of the argument with its number, and crashes on a scalar 666.
COPY = """
import json, sys, numpy as np
from gpu.kernel import load_arguments
for line in sys.stdin:
    request = json.loads(line)
    given = load_arguments(request["input"], request["arguments"])
    if 666 in [each for each in given if isinstance(each, int)]:
        sys.exit(3)
    np.savez(request["output"], **{str(i): given[i][0] for i in request["outputs"]})
    print(json.dumps({"ok": True, "said": request["pass_configs"]}), flush=True)
"""


def copied(*arguments: kernel.Argument, outputs: tuple[int, ...]) -> list[np.ndarray]:
    return gpu.run_kernel(gpu.Kernel("{}", arguments, outputs, False, {"tl.enable_fast_math": True}), timeout=30)


def test_a_request_carries_words_of_every_dtype_and_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "unavailable", lambda: None)
    worker = (sys.executable, "-c", COPY)
    monkeypatch.setattr(launch, "ask_many", lambda requests, workers, timeout: ask_many(requests, 1, timeout, worker))
    x, flags = np.arange(6, dtype=np.uint16).reshape(2, 3), np.ones((), np.uint8)
    first, second = copied((x, "bfloat16"), 5, (flags, "bool"), outputs=(0, 2))
    assert np.array_equal(first, x) and second.shape == () and second.dtype == np.uint8
    with pytest.raises(gpu.KernelError, match="exit status 3"):
        copied((x, "bfloat16"), 666, outputs=(0,))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        ("float16", "u2"),
        ("bfloat16", "u2"),
        ("float32", "u4"),
        ("float8_e4m3fn", "u1"),
        ("int64", "u8"),
        ("bool", "u1"),
    ],
)
def test_a_call_keeps_every_word(dtype: str, word: str, made: bool) -> None:
    """A kernel that returns a tensor, and one that writes to its own: NaN words too."""
    torch = pytest.importorskip("torch", reason="torch is not installed (make test installs it)")
    words = (np.arange(12) * 23 % (2 if dtype == "bool" else 256)).astype(word).reshape(3, 4)

    def called(x: Any, number: int) -> Any:
        assert x.dtype is getattr(torch, dtype) and number == 7
        if made:
            return x.clone()
        return x.copy_(x.flip(0))

    found = kernel.call(called, [(words, dtype), 7], [0], made, device="cpu")
    assert found[0].dtype == word and np.array_equal(found[0], words if made else words[::-1])


@with_tilelang
def test_a_prim_func_that_does_not_compile_says_why() -> None:
    with pytest.raises(gpu.KernelError, match="the kernel does not compile: ") as caught:
        kernel.compile_prim_func("no PrimFunc", [0], True, {}, [])
    assert caught.value.kind == "compile"


# captures


def test_a_capture_is_measured_again(echo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = dict.fromkeys(("device", "driver", "cuda", "torch", "tilelang"), "here") | {"arch": "sm_90"}
    monkeypatch.setattr(capture, "device_info", lambda: info)
    q, o = np.arange(32, dtype=np.uint16).reshape(1, 8, 1, 4), np.zeros((1, 8, 1, 4), np.uint16)
    cell = {"q": "q", "k": "q", "v": "q", "o": "o", "schedule": {"block_M": 64}}
    facts = dict.fromkeys(FACTS, "there") | {"arch": "sm_80", "seed": 1, "cells": [cell], "about": "x"}
    save_capture(tmp_path / "old.npz", {"q": (q, FP16), "o": (o, FP16)}, facts)
    assert capture.main([str(tmp_path / "old.npz"), str(tmp_path / "new.npz")]) == 0
    new = load_capture(tmp_path / "new.npz")
    assert np.array_equal(new.arrays["o"][0], q) and new.manifest["cells"] == [cell] and new.manifest["about"] == "x"
    assert new.manifest["device"] == "here" and "old.npz" in new.manifest["command"]


def test_a_capture_that_names_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_arrays(tmp_path / "old.npz", {})
    assert capture.main([str(tmp_path / "old.npz"), str(tmp_path / "new.npz")]) == 2
    assert "has no manifest" in capsys.readouterr().err
    save_capture(tmp_path / "old.npz", {}, dict.fromkeys(FACTS))
    assert capture.main([str(tmp_path / "old.npz"), str(tmp_path / "new.npz")]) == 2
    assert "has no cells that name the arrays" in capsys.readouterr().err
    assert json.loads((tmp_path / "old.json").read_text())["version"] == 1
