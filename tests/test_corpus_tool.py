"""tools/corpus.py and tools/corpus_check.py on programs of our own, without a GPU: what they find, compare and say."""

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tilelang")

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "corpus.py"

KERNELS = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[-1], pass_configs={"tl.enable_fast_math": True})
def scaled(rows, columns):
    @T.prim_func
    def scale(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(rows, threads=128) as row:
            for j in T.Parallel(columns):
                Y[row, j] = X[row, j] * T.float16(2)

    return scale


@tilelang.jit
def negated(X, block: int = 128):
    N = T.const("N")
    X: T.Tensor[[N], "float32"]
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, block), threads=128) as b:
        for i in T.Parallel(block):
            Y[b * block + i] = -X[b * block + i]
    return Y


@tilelang.autotune(configs=[{"threads": 64}, {"threads": 128}])
@tilelang.jit(out_idx=[1])
def copied(N, threads=None):
    @T.prim_func
    def copy(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=threads) as _:
            T.copy(X, Y)

    return copy


if __name__ == "__main__":
    kernel = scaled(1 << 16, 1 << 16)
    y = kernel(torch.randn(1 << 16, 1 << 16, device="cuda", dtype=torch.float16))
    assert y.shape == (1 << 16, 1 << 16) and torch.isfinite(y).all()
    lengths = torch.randint(256, 512, (4,), device="cuda")
    z = negated(torch.randn(int(lengths.max()) // 256 * 256, device="cuda"))
    torch.testing.assert_close(z, -z)
    kernel.get_profiler().assert_allclose(lambda x: x * 2)
    copied(z.shape[0])
    assert torch.cuda.get_device_capability() == (9, 0)
    raise ValueError("only after three kernels")
"""
PROGRAMS = {
    "family/kernels.py": KERNELS,
    "family/again.py": "import kernels\n\n\ndef test_again():\n    kernels.scaled(1 << 16, 1 << 16)\n",
    "crash.py": "import nobody_has_this\n\nnobody_has_this.runs(1)\nraise KeyError('no such thing')\n",
    "hang.py": "while True:  # tilelang.jit\n    pass\n",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The folder that the tool makes of the programs, and what it printed."""
    root = tmp_path_factory.mktemp("examples")
    for name, text in PROGRAMS.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    out = root.parent / "corpus"
    files = ["family/kernels.py", "**/*.py"]
    command = [sys.executable, TOOL, root, out, "--files", *files, "--jobs", "1", "--limit", "10"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_kernels_of_every_style_are_found(corpus):
    entries = lines(corpus[0] / "index.jsonl")
    assert [e["function"] for e in entries] == ["scaled", "negated", "copied"]
    assert [e["symbol"] for e in entries] == ["scale", "negated", "copy"]
    assert [e["out_idx"] for e in entries] == [[-1], [-1], [1]]
    decorators = ["@tilelang.jit(out_idx=[-1]", "@tilelang.jit\n", "@tilelang.autotune"]
    assert [e["line"] for e in entries] == [KERNELS[: KERNELS.index(d)].count("\n") + 1 for d in decorators]
    assert {(e["file"], e["run"], e["family"]) for e in entries} == {("family/kernels.py",) * 2 + ("family",)}
    assert entries[0]["pass_configs"] == {"tl.enable_fast_math": True}


def test_entries_load_in_a_fresh_process(corpus):
    assert "3 of 3 entries load as recorded" in corpus[1]
    assert sorted(p.name for p in corpus[0].glob("*.json")) == ["000.json", "001.json", "002.json"]


def test_files_without_kernels_are_reported_with_their_reason(corpus):
    failed = {line["file"]: line for line in lines(corpus[0] / "failed.jsonl")}
    assert set(failed) == {"crash.py", "hang.py"}
    assert failed["crash.py"]["reason"] == "KeyError: 'no such thing'"
    assert not failed["crash.py"]["defines_kernels"]
    assert failed["hang.py"]["reason"] == "ended after 10 s"
    assert failed["hang.py"]["defines_kernels"]


# corpus_check


def check_tool(*arguments):
    command = [sys.executable, ROOT / "tools" / "corpus_check.py", *arguments]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tool():
    """tools/corpus_check.py as a module."""
    spec = importlib.util.spec_from_file_location("corpus_check", ROOT / "tools" / "corpus_check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["corpus_check"] = module
    spec.loader.exec_module(module)
    return module


def doubled(T, rows=64, columns=32):
    @T.prim_func
    def double(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(rows, threads=32) as row:
            for j in T.Parallel(columns):
                Y[row, j] = X[row, j] * T.float16(2)

    return double


@pytest.fixture
def checked(tool, tmp_path, monkeypatch):
    """The line of `double` after a call on a GPU that `run` stands in for: X alone is given, or Y too (in place)."""
    import tilelang.language as T
    import torch

    def check(run, out_idx, *tensors, seconds=30.0):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        checker = tool.Checker(
            ROOT, "here.py", None, tmp_path / "check.jsonl", claims=tmp_path, built=tmp_path / "built", seconds=seconds
        )
        kernel = types.SimpleNamespace(prim_func=doubled(T), out_idx=out_idx, torch_function=run)
        kernel.adapter = types.SimpleNamespace()
        checker.compiled(kernel.prim_func, {"out_idx": out_idx}, lambda: kernel)
        for _ in range(2 if tensors else 0):
            kernel.torch_function(*tensors)
        checker.finish()
        (line,) = tool.read(tmp_path / "check.jsonl")
        return line

    return check


def normal(seed=0):
    import torch

    return torch.from_numpy(np.random.default_rng(seed).standard_normal((64, 32)).astype(np.float16))


def test_a_call_is_compared_word_by_word(checked):
    line = checked(lambda x: x * 2, [1], normal())
    assert line["simulated"], line["why"]
    assert line["ran"] and (line["compared"], line["wrong"]) == (64 * 32, 0)
    assert (line["blocks"], line["of"], line["undetermined"], line["launches"]) == (64, 64, 0, 1)


def test_one_wrong_word_is_found_and_named(checked):
    def run(x):
        y = x * 2
        y[63, 5] = -0.0
        return y

    x = normal()
    x[63, 5] = 0.0
    line = checked(run, [1], x)
    assert (line["compared"], line["wrong"]) == (64 * 32, 1)
    assert line["first"] == ["Y[63, 5]: simulated 0x0, GPU 0x8000"]


def test_tensors_in_place_are_compared_with_what_the_first_call_was_given(checked):
    line = checked(lambda x, y: (y.copy_(x * 2), x.zero_()), [], normal(), normal(1))
    assert (line["compared"], line["wrong"], line["simulated"]) == (64 * 32, 0, True)


def test_without_time_a_few_blocks_are_compared(checked):
    line = checked(lambda x: x * 2, [1], normal(), seconds=0.0)
    assert (line["blocks"], line["compared"], line["wrong"]) == (2, 64, 0)
    assert "undetermined" not in line


def test_a_call_that_fails_says_so(checked, tool, tmp_path):
    def run(x):
        raise RuntimeError("no such device")

    with pytest.raises(RuntimeError):
        checked(run, [1], normal())
    (line,) = tool.read(tmp_path / "check.jsonl")
    assert (line["simulated"], line["ran"]) == (True, False)
    assert line["why_not_run"].startswith("the call fails: RuntimeError: no such device")


def test_a_kernel_that_is_not_called_gets_normal_numbers(checked, tool, monkeypatch):
    monkeypatch.setattr(tool, "made_up_inputs", lambda kernel: [normal()])
    line = checked(lambda x: x * 2, [1])
    assert (line["inputs"], line["compared"], line["wrong"]) == ("made up", 64 * 32, 0)


def test_what_is_too_large_is_not_copied_and_said(checked, tool, monkeypatch):
    monkeypatch.setattr(tool, "MOST_BYTES", 1 << 11)
    line = checked(lambda x: x * 2, [1], normal())
    assert line["ran"] and "compared" not in line and "more than is copied" in line["why"]


def test_a_simulation_without_end_costs_only_itself(tool, monkeypatch):
    monkeypatch.setattr(tool, "GRACE", 0.5)

    def simulate(blocks):
        while True:
            pass

    line = tool.compare(simulate, [64], {}, seconds=0)
    assert not line["simulated"] and line["why"] == "2 thread blocks take more than 0.5 s"


@pytest.mark.parametrize("count", [1, 2, 3, 64, 132, 1000])
def test_blocks_are_spread_over_the_grid_and_every_one_has_its_turn(tool, count):
    order = tool.spread(count)
    assert sorted(order) == list(range(count))
    assert {order[0], order[min(1, count - 1)]} == {0, count - 1}


def test_the_line_that_tells_most_is_kept(tool, tmp_path):
    about = {"file": "a.py", "line": 1, "sha256": "1"}
    compared = about | {"ran": True, "simulated": True, "compared": 3, "wrong": 0}
    unsimulated = about | {"ran": True, "simulated": False}
    uncalled = about | {"ran": False, "why_not_run": "the programs do not call it"}
    failed = about | {"ran": False, "why_not_run": "the call fails: no memory"}
    order = [uncalled, failed, unsimulated, compared]
    for less, more in zip(order, order[1:]):
        for lines in ([less, more], [more, less]):
            tool.rewrite(tmp_path / "check.jsonl", lines)
            assert tool.read(tmp_path / "check.jsonl") == [more]


def test_without_a_gpu_it_tells_what_can_be_simulated(tmp_path):
    (tmp_path / "programs" / "family").mkdir(parents=True)
    (tmp_path / "programs" / "family" / "kernels.py").write_text(KERNELS)
    printed = check_tool(tmp_path / "programs", tmp_path / "out", "--no-gpu", "--jobs", "1")
    found = lines(tmp_path / "out" / "check.jsonl")
    assert [(x["function"], x["simulated"], x["ran"]) for x in found] == [
        ("scaled", True, False),
        ("negated", True, False),
        ("copied", True, False),
    ]
    assert "| family | 3 | 3 | 0 | 0 |" in printed
    assert "* 3 not run: no GPU" in printed
    assert printed.endswith(check_tool("--table", tmp_path / "out"))
    (file,) = lines(tmp_path / "out" / "files.jsonl")
    assert file["built"] and file["reasons"] == ["ValueError: only after three kernels"]


def test_the_readme_shows_the_table_of_the_stored_run():
    printed = check_tool("--table", ROOT / "docs" / "upstream")
    assert printed.startswith("| examples | PrimFuncs |")
    assert printed in (ROOT / "README.md").read_text()
