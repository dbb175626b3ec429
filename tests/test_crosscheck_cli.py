"""The command line: verbs, one sentence for each mistake, exit codes, and what goes to which stream."""

from __future__ import annotations

import ctypes
import importlib.metadata
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_gpu
import numpy as np
import pytest

import gpu
import sim
from crosscheck import cli, seed, terminal
from crosscheck.cli import main
from crosscheck.inputs import Shape, make
from sim.captures import load_arrays, load_capture, save_arrays
from sim.formats import BF16, FP16, FP32, from_words, to_words

ROOT = Path(__file__).parent.parent
SMALL = ["--seq", "32", "--dim", "16", "--block-M", "16", "--block-N", "16", "--gpu", "off"]


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on stderr of a command that exits 2 and prints nothing else."""
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return err.strip()


MISTAKES = [
    ("", "crosscheck: VERB must be given, one of seed, run, "),
    ("foo", "crosscheck: VERB must be one of 'seed', 'run', "),
    ("run --block-M 0", "crosscheck run: --block-M must be an integer from 1 to 2147483647, not '0'"),
    ("run --block-N 1.5", "crosscheck run: --block-N must be an integer from 1 to 2147483647, not '1.5'"),
    ("run --threads -1", "crosscheck run: --threads must be an integer from 1 to 2147483647, not '-1'"),
    ("run --stages x", "crosscheck run: --stages must be an integer from 0 to 2147483647, not 'x'"),
    ("run --mask sliding", "crosscheck run: --mask must be full or causal, not 'sliding'"),
    ("run --variant max", "crosscheck run: --variant must be running_max, block_max, clear_true, accumulate_max or"),
    ("run --dtype float32", "crosscheck run: --dtype must be float16 or bfloat16, not 'float32'"),
    ("run --arch sm_91", "crosscheck run: --arch must be one of sm_70, sm_75, sm_80,"),
    ("run --gpu maybe", "crosscheck run: --gpu must be auto, off or require, not 'maybe'"),
    ("run --inputs gauss", "crosscheck run: --inputs must be one of normal, large, tiny, special, const:C or a FILE"),
    ("run --inputs const:x", "crosscheck run: --inputs const:C must have a finite number C, not 'x'"),
    ("run --inputs const:1e6", "crosscheck run: --inputs const:1e6 must be finite in float16"),
    ("run --inputs none.npz", "crosscheck run: --inputs none.npz is not there"),
    ("run --heads 3 --heads-kv 2", "crosscheck run: --heads must be a multiple of --heads-kv, not 3 with --heads-kv 2"),
    ("run --mask causal --seq-kv 64", "crosscheck run: --mask causal needs at least as many keys (--seq-kv) as"),
    ("run --seq 2000000000", "crosscheck run: --batch, --heads, --seq and --dim give q [1, 2000000000, 1, 128], more"),
    ("run --seed", "crosscheck run: --seed expected one argument"),
    ("run --fast-math=3", "crosscheck run: --fast-math/--no-fast-math takes no value, not '3'"),
    ("run --block 16", "crosscheck run: unknown flag --block (--help lists them)"),
    ("seed --var=block_max", "crosscheck seed: unknown flag --var (--help lists them)"),
    ("seed FILE", "crosscheck seed: one argument too many: FILE"),
    ("--foo", "crosscheck: unknown flag --foo (--help lists them)"),
    ("run --seq ٦٤", "crosscheck run: --seq must be an integer from 1 to 2147483647, not '٦٤'"),
    ("run --seq 6_4", "crosscheck run: --seq must be an integer from 1 to 2147483647, not '6_4'"),
    ("run --inputs const:1_0", "crosscheck run: --inputs const:C must have a finite number C, not '1_0'"),
    ("run --block-M 1000000", "crosscheck run: --block-M and --block-N give a tile of 1000000x64, more than 16777216"),
    ("run --block-N 200000", "crosscheck run: --block-N and --dim give a tile of 200000x128, more than 16777216"),
    ("run --seq 65536", "crosscheck run: --batch, --heads, --seq, --seq-kv and --dim give 549755813888 products, more"),
    ("run --seq-kv 999999", "crosscheck run: --batch, --heads, --seq-kv or --seq and --dim give k [1, 999999, 1, 128]"),
    ("run --out=", "crosscheck run: --out must be the name of a file, not ''"),
    ("diff . b.npz", "crosscheck diff: A.npz: . is a directory"),
    ("run --out o.txt", "crosscheck run: --out must be the name of a .npz file, not 'o.txt'"),
    ("run --out no/o.npz", "crosscheck run: --out no/o.npz cannot be written: there is no folder no"),
    ("run --arch sm_75 --dtype bfloat16", "crosscheck run: sm_75 has no modelled dot product of bfloat16"),
    ("diff a.npz", "crosscheck diff: the following arguments are required: B.npz"),
    ("diff a.npz b.npz", "crosscheck diff: A.npz: a.npz is not there"),
    ("capture", "crosscheck capture: the following arguments are required: FILE.npz"),
    ("capture o.txt", "crosscheck capture: FILE.npz must be the name of a .npz file, not 'o.txt'"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line or "nothing" for line, _ in MISTAKES])
def test_mistakes(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *line.split()).startswith(message)
    assert not list(tmp_path.iterdir())


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and main(["run", "--help"]) == 0
    assert "--heads-kv" in capsys.readouterr().out


def test_every_schedule_flag_is_in_every_verb_that_runs_one() -> None:
    parser = cli.parser()
    for verb, more in (("seed", []), ("run", []), ("capture", ["x.npz"])):
        args = vars(parser.parse_args([verb, *more]))
        assert [args[name] for name in seed.SCHEDULE_FLAGS] == [None] * len(seed.SCHEDULE_FLAGS)


def test_run_reports_nan_rows_map_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    line = "run --variant block_max --block-M 128 --mask causal --dim 32 --gpu off --seed 3"
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines.pop(2) == "  words      measured (H200)"
    assert lines[0] == "block_max, 128x64 blocks, causal, fast math, simulated for sm_90" and err == ""
    assert lines[2:4] == [
        "  inputs     normal, seed 3, float16",
        "             q [1, 256, 1, 32], k and v [1, 256, 1, 32]",
    ]
    assert "  NaN        4096 of 8192" in lines and "             rows 0-63 and 128-191" in lines
    assert any(line.startswith("  error      max ") for line in lines) and "ULP of float16" in out
    assert lines[-1] == "head 0  " + ("#" * 16 + "." * 16) * 2 and max(map(len, lines)) <= 80


def test_run_json_and_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--heads", "2", "--heads-kv", "1", "--seq-kv", "40", "--mask", "causal", "--no-fast-math", "--seed", "5"]
    assert main(["run", *SMALL, *flags, "--json", "--out", str(tmp_path / "o.npz")]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert err.startswith("running_max, 16x16 blocks, causal, precise math") and out.count("\n") == 1
    assert data["schedule"]["fast_math"] is False and data["kv"] == [1, 40, 1, 16] and data["gpu"] is None
    assert data["errors"]["compared"] == 1024 and 0 < data["errors"]["mean_abs"] <= data["errors"]["max_abs"] < 0.01
    words = make("normal", Shape(heads=2, seq_q=32, seq_kv=40, dim=16), FP16, 5)
    schedule = sim.Schedule(block_M=16, block_N=16, causal=True, fast_math=False)
    expected = to_words(sim.flash_attention(*(from_words(w, FP16) for w in words), schedule))[0]
    np.testing.assert_array_equal(load_arrays(tmp_path / "o.npz")["o"][0], expected)


def test_run_on_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    path, shape = str(tmp_path / "qkv.npz"), Shape(seq_q=32, seq_kv=32, dim=16)
    save_arrays(path, {name: (w, BF16) for name, w in zip("qkv", make("normal", shape, BF16, 2), strict=True)})
    blocks = ["--block-M", "16", "--block-N", "16", "--gpu", "off", "--json"]
    assert main(["run", "--inputs", path, *blocks]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main(["run", *SMALL, "--json", "--dtype", "bfloat16", "--seed", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"] == from_file["errors"]
    assert main(["run", "--inputs", path, *blocks, "--seq", "32", "--dtype", "bfloat16"]) == 0
    capsys.readouterr()
    assert error_of(capsys, "run", "--inputs", path, "--seq", "64").endswith(
        f"--seq 64 disagrees with {path}, which holds 32"
    )
    assert "--dtype float16 disagrees" in error_of(capsys, "run", "--inputs", path, "--dtype", "float16")
    assert "--seed makes inputs" in error_of(capsys, "run", "--inputs", path, "--seed", "1")


def test_files_that_do_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "qkv.npz")

    def refused(**shapes: tuple[int, ...]) -> str:
        save_arrays(path, {name: (np.zeros(shape, np.uint16), FP16) for name, shape in shapes.items()})
        return error_of(capsys, "run", "--inputs", path)

    a, b = (1, 32, 2, 16), (1, 32, 1, 16)
    assert "must hold arrays q, k and v, and has no v" in refused(q=a, k=b)
    assert "not [1, 32, 2, 16], [1, 32, 1, 16] and [1, 32, 2, 16]" in refused(q=a, k=b, v=a)
    assert "must hold q [batch, seq, heads, dim]" in refused(q=a[1:], k=b, v=b)
    assert "of one batch and dim" in refused(q=a, k=(1, 32, 1, 8), v=(1, 32, 1, 8))
    assert "heads a multiple of heads_kv" in refused(q=b, k=a, v=a)
    save_arrays(path, {name: (np.zeros(a, np.uint32), FP32) for name in "qkv"})
    assert "all of float16 or bfloat16" in error_of(capsys, "run", "--inputs", path)


def test_diff(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in ("a.npz", "b.npz", "c.npz"))
    x = np.zeros((1, 8, 1, 4), np.uint16)
    y = x.copy()
    y[0, 2:5] = 0x8000
    save_arrays(a, {"o": (x, FP16), "p": (x, FP16)})
    save_arrays(b, {"o": (y, FP16), "p": (x, FP16)})
    save_arrays(c, {"o": (x[0], FP16), "p": (x, BF16), "z": (x, FP16)})
    assert main(["diff", a, a]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 arrays, all the same"
    assert main(["diff", a, b]) == 1
    out = capsys.readouterr().out
    assert "o: 12 of 32 words differ\n  sign of zero                12\n" in out
    assert "  in rows 2-4\n" in out and out.endswith("2 arrays, 1 different\n")
    assert main(["diff", a, c, "--json"]) == 1
    out, err = capsys.readouterr()
    reasons = {item["name"]: item["reason"] for item in json.loads(out)["arrays"]}
    assert reasons == {
        "o": "A and B must have the same shape, not [1, 8, 1, 4] and [8, 1, 4]",
        "p": "A and B must have the same format, not float16 and bfloat16",
        "z": "only in B",
    }
    assert err.endswith("3 arrays, 3 different\n")


def test_run_against_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.install(monkeypatch)
    assert main(["run", *SMALL, "--gpu", "require"]) == 0
    assert "  GPU        same words on the NVIDIA H200" in capsys.readouterr().out
    fake_gpu.install(monkeypatch, flip=0x8000)
    assert main(["run", *SMALL, "--gpu", "auto"]) == 1
    out = capsys.readouterr().out
    assert "simulator against NVIDIA H200: 1 of 512 words differs" in out and "  in row 0\n" in out


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.install(monkeypatch, error=gpu.KernelError("no such tile", "compile"))
    assert main(["run", *SMALL, "--gpu", "auto"]) == 0
    assert "no GPU run: the TileLang kernel did not run: no such tile" in capsys.readouterr().out
    assert "no such tile" in error_of(capsys, "run", *SMALL, "--gpu", "require")


def test_capture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new.npz"
    flags = [*SMALL[:-2], "--no-fast-math", "--seed", "4"]
    monkeypatch.setattr(gpu, "unavailable", lambda: "no GPU run: nothing here")
    assert error_of(capsys, "capture", str(path), *flags) == "crosscheck capture: no GPU run: nothing here"
    assert not list(tmp_path.iterdir())
    fake_gpu.install(monkeypatch)
    assert main(["capture", str(path), *flags]) == 0
    assert f"wrote {path} and {path.with_suffix('.json')}: q, k, v, o" in capsys.readouterr().out
    capture = load_capture(path)
    assert sorted(capture.arrays) == ["k", "o", "q", "v"] and capture.manifest["seed"] == 4
    command = capture.manifest["command"].split()
    assert command[:4] == ["python", "-m", "crosscheck", "capture"] and "--no-fast-math" in command
    assert main(["run", "--inputs", str(path), *SMALL[4:], "--no-fast-math", "--out", str(tmp_path / "o.npz")]) == 0
    np.testing.assert_array_equal(load_arrays(tmp_path / "o.npz")["o"][0], capture.arrays["o"][0])


def test_undetermined_is_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise sim.Undetermined("4 outputs depend on memory that nobody wrote")

    monkeypatch.setattr(sim, "flash_attention", unknown)
    assert main(["run", *SMALL]) == 3
    out, err = capsys.readouterr()
    assert (out, err) == ("", "crosscheck run: undetermined: 4 outputs depend on memory that nobody wrote\n")
    assert main(["run", *SMALL, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["undetermined"].startswith("4 outputs")


def test_interrupt_is_130_and_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(seed, "run", interrupted)
    assert main(["seed"]) == 130
    assert capsys.readouterr() == ("", "")


def test_no_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(sim, "flash_attention", full)
    assert error_of(capsys, "run", *SMALL).endswith("is too large: there is not enough memory")


def test_what_words_of_another_architecture_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "--arch", "sm_80", "--json"]) == 0
    out, err = capsys.readouterr()
    said = "literature: nobody here has measured words on sm_80"
    assert json.loads(out)["words"] == said and f"  words      {said}\n" in err


def test_two_empty_files_are_not_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = str(tmp_path / "a.npz")
    for arrays in ({}, {"o": (np.zeros(0, np.uint16), FP16)}):
        save_arrays(a, arrays)
        assert error_of(capsys, "diff", a, a).endswith("must hold words to compare, and both are empty")


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("tilewords ")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "tilewords of a clone that is not installed\n"


@pytest.mark.parametrize("verb", ["seed", "run", "diverge", "support", "diff", "capture"])
def test_every_verb_says_its_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert "exit codes: 0 " in capsys.readouterr().out


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A command line of crosscheck in a shell, with its redirections."""
    command = f"{sys.executable} -m crosscheck {line}"
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", ["--help", " ".join(["run", *SMALL]), " ".join(["run", *SMALL, "--json"])])
def test_a_full_disk_is_a_sentence(line: str) -> None:
    done = shell(f"{line} >/dev/full")
    assert done.returncode == 2 and done.stderr.startswith("crosscheck: the report cannot be written: No space left")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("line", "code"), [("run --seq x 2>/dev/full", 2), ("run --seq x 2>&-", 2), ("--help >&-", 0)])
def test_streams_that_take_nothing(line: str, code: int) -> None:
    done = shell(line)
    assert done.returncode == code and done.stdout == done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    done = shell(" ".join(["run", *SMALL, closed]))
    assert done.returncode == 0 and done.stderr == "" and ("simulated" in done.stdout) == (closed == "2>&-")


def test_an_interrupt_while_it_loads_is_130() -> None:
    code = """
import sys, crosscheck.__main__
assert "numpy" not in sys.modules
class Stop:
    def find_spec(self, name, *_):
        if name == "numpy": raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.exit(crosscheck.__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["-m gpu.probes --out OUT", "tools/capture_flash.py OUT", "tools/capture_flash.py"])
def test_gpu_tools_without_a_gpu_create_nothing(command: str, tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        words = [sys.executable, *command.replace("OUT", str(tmp_path / "out")).split()]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
        assert "no GPU run: " in done.stderr if "OUT" in command else "OUT_DIR" in done.stderr
        assert not list(tmp_path.iterdir())


def test_broken_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "crosscheck", "run", *SMALL]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == "" and done.returncode == 141


def test_loading_the_command_line_loads_no_gpu_package() -> None:
    code = "import sys, crosscheck.cli; print(sorted(set(sys.modules) & {'torch', 'tilelang', 'ml_dtypes', 'gpu'}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "UTF-8"

    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.Style(Screen()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert terminal.Style(io.StringIO()).paint("x", "red") == "x" and not terminal.Style(io.StringIO()).unicode
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.Style(Screen()).paint("x", "red") == "x" and terminal.Style(Screen()).unicode


def test_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Screen(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.Progress(2) as progress:
            progress.step("simulating")
        text = stream.getvalue()
        assert ("[1 of 2] simulating (0 s)" in text and text.endswith("\r\x1b[K")) if shown else text == ""
