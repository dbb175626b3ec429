"""`python -m sim`: programs of our own, as a user would write them for a GPU, run unchanged without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tilelang")

ROOT = Path(__file__).parents[1]
IMPORTS = """
import sys
import tilelang
import tilelang.language as T
import tilelang.testing
import torch
"""
SCALED = """
@tilelang.jit(out_idx=[-1])
def scaled(rows, columns, factor):
    @T.prim_func
    def scale(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(rows, threads=128) as row:
            for j in T.Parallel(columns):
                Y[row, j] = X[row, j] * T.float16(factor)

    return scale
"""


def sim(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own."""
    (folder / "program.py").write_text(IMPORTS + SCALED + program)
    return python(folder, *options, "program.py", *arguments)


def python(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{path}:{ROOT}"}
    return subprocess.run([sys.executable, "-m", "sim", *arguments], cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=600)  # fmt: skip


def said(run: subprocess.CompletedProcess[str], kernel: str) -> list[str]:
    """A kernel's row of the summary: line, runs, blocks, (seconds,) NaN, infinities, undetermined."""
    row = next(line.split() for line in run.stderr.splitlines() if line.split()[:1] == [kernel])
    return row[1:-4] + row[-3:]


# what runs

STYLES = """
@tilelang.jit
def negated(X, block: int = 128):
    N = T.const("N")
    X: T.Tensor[[N], "float32"]
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, block), threads=128) as b:
        for i in T.Parallel(block):
            Y[b * block + i] = -X[b * block + i]
    return Y


@tilelang.jit
def doubled(N):
    @T.prim_func
    def double(X: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                X[i] = X[i] * 2

    return double


@tilelang.autotune(configs=[{"block": 0}, {"block": 64}, {"block": 128}])
@tilelang.jit(out_idx=[1])
def copied(N, block=None):
    @T.prim_func
    def copy(X: T.Tensor((N,), "bfloat16"), Y: T.Tensor((N,), "bfloat16")):
        with T.Kernel(N // block, threads=128) as b:
            T.copy(X[b * block], Y[b * block : (b + 1) * block])

    return copy


assert sys.argv == ["program.py", "--seed", "3"] and torch.cuda.is_available()
assert torch.cuda.get_device_capability() == (9, 0)
kernel = scaled(4, 256, 2)
x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
assert x.is_cuda and torch.equal(kernel(x), x * 2)  # lazy, out_idx
kernel.get_profiler().assert_allclose(lambda x: x * 2, rtol=0, atol=0)
v = torch.arange(512.0).cuda()
assert torch.equal(negated(v), -v)  # eager
n = torch.arange(256, dtype=torch.int32, device=v.device)
assert doubled(256)(n) is None and n.tolist() == list(range(0, 512, 2))  # in place
w = torch.randn(512, device="cuda").to(torch.bfloat16)
tuned = copied(512)
assert tuned.config == {"block": 64} and torch.equal(tuned(w), w)
assert kernel.get_profiler().do_bench() != 1 and "__global__" in kernel.get_kernel_source()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(), end.record(), torch.cuda.synchronize()
print(start.elapsed_time(end), *tilelang.profiler.do_bench(lambda: 1 / 0, quantiles=[0.5, 0.9]))
"""


def test_every_style_of_kernel_runs(tmp_path: Path) -> None:
    run = sim(tmp_path, STYLES, "--seed", "3")
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("\nnan nan nan\n")
    assert said(run, "scale") == ["program.py:12", "2", "4", "0", "0", "0"]
    assert said(run, "negated")[1:3] == ["1", "4"]
    assert said(run, "double")[1:3] == said(run, "copy")[1:2] + ["1"] == ["1", "1"]
    assert "do_bench: 2 calls gave NaN at once" in run.stderr
    assert "copy: configuration 2 of 3, the first that compiles: {'block': 64}" in run.stderr


MOVES = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.full((1,), 2.0, device="cuda")


made = torch.zeros(4, device="cuda")
home = made.cpu()
made += 1
assert home.sum() == 0 and made.cuda() is made and made.to("cuda") is made and made.to(0) is made
plain = torch.zeros(4)
moved = plain.cuda()
moved += 1
assert plain.sum() == 0 and moved.to("cuda:0", torch.float16).dtype == torch.float16
assert plain.to(device="cuda", dtype=torch.int32).dtype == torch.int32 and plain.to(moved).dtype == plain.dtype
assert torch.zeros(2).to("meta").is_meta
x = torch.ones(4, device="cuda", requires_grad=True)
Twice.apply(x).sum().backward()
assert x.grad.tolist() == [2.0] * 4
with torch.device("cuda"):
    assert torch.ones(3).device == torch.device("cuda", 0)
generator = torch.Generator(device="cuda").manual_seed(0)
assert torch.randn(3, generator=generator, device="cuda").get_device() == 0
with torch.random.fork_rng():
    torch.cuda.manual_seed(0)
    first = torch.randn(3, device="cuda")
torch.cuda.manual_seed_all(0)
assert torch.equal(torch.randn(3, device="cuda"), first)
assert torch.nn.Linear(4, 4).cuda().to("cuda")(made).shape == (4,)
kernel = scaled(4, 256, 2)
for bad in (torch.zeros(256, 4, dtype=torch.float16, device="cuda").T, torch.zeros(4, 256, device="cuda")):
    try:
        kernel(bad)
    except (TypeError, ValueError) as error:
        print(error)
"""


def test_tensors_move_as_between_a_cpu_and_a_gpu(tmp_path: Path) -> None:
    run = sim(tmp_path, MOVES)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "X must be contiguous, not of strides [1, 4]\nX must be float16, not float32\n"


FAULTS = """
@tilelang.jit(out_idx=[1])
def halved(N):
    @T.prim_func
    def half(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N // 2):
                Y[i] = X[i] - X[i + N // 2]

    return half


@tilelang.jit
def threaded(N):
    @T.prim_func
    def thread(X: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            X[T.get_thread_binding()] = T.float32(0)

    return thread


@tilelang.jit
def added(N):
    @T.prim_func
    def add(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                Y[i] = X[i] + Y[i]

    return add


x = torch.ones(256, device="cuda")
x[::128] = torch.inf
halved(256)(x)
x[0] = 1
added(256)(x, x.clone())
for call in (lambda: threaded(256)(x), lambda: added(256)(x, x)):
    try:
        call()
    except NotImplementedError as error:
        print(error)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("own", "code"), [("0", 3), ("5", 5)])
def test_the_summary_tells_of_every_fault(tmp_path: Path, own: str, code: int) -> None:
    """3 for outputs that cannot be known, unless the program has an exit code of its own."""
    run = sim(tmp_path, FAULTS, own)
    assert run.returncode == code, run.stderr
    assert said(run, "half")[1:] == ["1", "1", "1", "0", "128"]  # inf - inf, and half of Y that nobody wrote
    assert said(run, "add")[1:] == ["1", "1", "0", "1", "0"]  # an infinity that was given
    assert "half (program.py:22): 1 NaN or infinite value, the first inf_minus_inf in sub (program.py:24)" in run.stderr
    assert "half (program.py:22): 128 outputs cannot be known" in run.stderr
    assert run.stdout.splitlines() == [
        "a thread's own index (tx) is not supported (program.py:34)",
        "a call whose tensors X and Y share memory, where the kernel stores to one is not supported",
    ]
    assert "not simulated  thread (program.py:33): a thread's own index" in run.stderr


# limits

SLOW = """
@tilelang.jit(out_idx=[1])
def looped(blocks, turns):
    @T.prim_func
    def loop(X: T.Tensor((blocks, 128), "float32"), Y: T.Tensor((blocks, 128), "float32")):
        with T.Kernel(blocks, threads=128) as b:
            x = T.alloc_fragment((128,), "float32")
            T.copy(X[b, 0], x)
            for _ in T.serial(turns):
                for i in T.Parallel(128):
                    x[i] = x[i] * T.float32(0.5) + T.float32(1)
            T.copy(x, Y[b, 0])

    return loop


scaled(4, 256, 2)(torch.ones(4, 256, device="cuda", dtype=torch.float16))
looped(int(sys.argv[1]), int(sys.argv[2]))(torch.ones(int(sys.argv[1]), 128, device="cuda"))
"""


@pytest.mark.parametrize(
    ("blocks", "turns", "reason"),
    [("65536", "200", "would take about "), ("4", "100000000", "takes more than --limit 4 s")],
)
def test_a_kernel_that_takes_too_long_is_not_run(tmp_path: Path, blocks: str, turns: str, reason: str) -> None:
    """One is known before it starts, by a sample of its thread blocks; one of few blocks is stopped."""
    run = sim(tmp_path, SLOW, blocks, turns, options=("--limit", "4"))
    assert run.returncode == 1 and said(run, "scale")[1:3] == ["1", "4"], run.stderr
    assert f"TooLong: loop (program.py:22) {reason}" in run.stderr
    assert f"not simulated  loop (program.py:22): {reason}" in run.stderr


def test_blocks_samples_and_says_so(tmp_path: Path) -> None:
    """What only other thread blocks would write does not count as undetermined."""
    run = sim(tmp_path, SLOW, "64", "2", options=("--blocks", "4"))
    assert run.returncode == 0, run.stderr
    assert said(run, "loop")[1:] == ["1", "4", "of", "64", "0", "0", "0"]
    assert "partial        loop (program.py:22): other thread blocks were left out" in run.stderr
    assert said(run, "scale")[1:] == ["1", "4", "0", "0", "0"]


# programs and usage

TESTS = """
@tilelang.testing.requires_cuda
@tilelang.testing.requires_cuda_compute_version(10)
def test_new():
    x = torch.ones(4, 256, device="cuda", dtype=torch.float16)
    torch.testing.assert_close(scaled(4, 256, 3)(x), x * 3, rtol=0, atol=0)


@tilelang.testing.requires_cuda_compute_version_eq(9, 0)
def test_other():
    assert False


def test_wrong():
    assert scaled(4, 256, 3)(torch.ones(4, 256, device="cuda", dtype=torch.float16)).sum() == 0
"""


def test_pytest_sees_the_gpu_of_arch(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(IMPORTS + SCALED + TESTS)
    run = python(tmp_path, "--arch", "sm_100", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py")
    assert run.returncode == 1 and "1 failed, 1 passed, 1 skipped" in run.stdout, run.stdout + run.stderr
    assert "simulated for sm_100" in run.stderr and said(run, "scale")[1] == "2"


def test_a_programs_error_is_told_from_its_first_line(tmp_path: Path) -> None:
    run = sim(tmp_path, "raise LookupError('nothing')")
    lines = run.stderr.splitlines()
    assert run.returncode == 1 and lines[1].endswith('program.py", line 17, in <module>'), run.stderr
    assert "LookupError: nothing" in lines and "no kernel ran" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SCRIPT.py must be given, or -m MODULE"),
        (["none.py"], "SCRIPT.py must be a file, and none.py is none"),
        (["--limit", "0", "none.py"], "--limit must be a number of seconds greater than 0, not 0"),
        (["--blocks", "0", "none.py"], "--blocks must be a number of thread blocks, 1 or more, not 0"),
    ],
)
def test_wrong_usage_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = python(tmp_path, *arguments)
    assert run.returncode == 2 and run.stderr == f"python -m sim: {message}\n"


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("torch", "raise ImportError('no torch')", "torch must be installed (pip install torch): no torch"),
        (
            "tilelang",
            "__version__ = '0.2'",
            "TileLang 0.1.15 must be installed (pip install tilelang==0.1.15), not 0.2",
        ),
    ],
)
def test_what_is_not_installed_is_named(tmp_path: Path, module: str, text: str, message: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{module}.py").write_text(text)
    (tmp_path / "program.py").write_text("")
    run = python(tmp_path, "program.py", path=str(tmp_path / "other"))
    assert run.returncode == 2 and run.stderr == f"python -m sim: {message}\n"
