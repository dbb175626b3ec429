"""tools/corpus.py on programs of our own: what it finds, and what it says of programs that give nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tilelang")

TOOL = Path(__file__).parents[1] / "tools" / "corpus.py"

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
