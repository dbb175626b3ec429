"""A sweep: what its rows say, that nothing is lost when it is stopped, and which combinations TileLang would refuse."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sim
from crosscheck import sweep_work
from crosscheck.cli import main, parser
from crosscheck.sweep_axes import Sweep, make_sweep
from crosscheck.sweep_map import letter
from crosscheck.sweep_row import rows

ROOT = Path(__file__).parent.parent
TINY = "--seq 64 --dim 16 --block-M 16,32 --block-N 16,32 --threads 32 --jobs 1".split()
FAULT = f"{ROOT / 'examples' / 'rms_norm_fault.py'}:rms_norm"


def sweep_of(*words: str) -> Sweep:
    return make_sweep(parser().parse_args(["sweep", *words]))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(path: Path) -> list[dict[str, Any]]:
    """The rows of a file by number, without the seconds that they took."""
    found = sorted(lines_of(path)[1:], key=lambda row: row["number"])
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


def swept(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["sweep", *words])
    return (code, *capsys.readouterr())


def test_a_row_says_what_the_simulator_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The NaN of block_max under a causal mask, where the keys of a tile are hidden from some of its rows."""
    out = tmp_path / "s.jsonl"
    code, text, _ = swept(capsys, *TINY, "--variant", "block_max", "--mask", "causal", "--out", str(out))
    found = {(r["combination"]["block_M"], r["combination"]["block_N"]): r for r in lines_of(out)[1:]}
    assert code == 1 and {key: r["verdict"] for key, r in found.items()} == {
        (16, 16): "clean", (16, 32): "clean", (32, 16): "nan", (32, 32): "clean",
    }  # fmt: skip
    bad, (output,) = found[32, 16], found[32, 16]["outputs"]
    assert bad["causes"].keys() == {"inf_minus_inf", "minus_inf_operand"} and "NaN" in bad["why"]
    assert (output["nan_rows"], output["rows"], output["nan_in"]) == (32, 64, ["rows 0-15 and 32-47"])
    assert output["nan"] == bad["float64"]["nan"] == 32 * 16 and bad["float64"]["nan_reference"] == 0
    assert 0 < found[16, 16]["float64"]["max_abs"] < 0.01
    assert "     16 32\n  16  .  .\n  32  N  .\n" in text
    assert "crosscheck explain --variant block_max --block-M 32 --block-N 16 --threads 32 --mask causal" in text


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept(capsys, *TINY)[0] == 0
    assert swept(capsys, *TINY, "--inputs", "normal,special")[0] == 1  # NaN among the inputs reach the output
    code, out, err = swept(capsys, *TINY[:-4], "--threads", "256")
    assert code == 2 and out == "" and "none of 4 combinations can be run, the first because: block_M 16" in err
    undetermined = sim.Undetermined("64 outputs depend on memory that nobody wrote")
    monkeypatch.setattr("crosscheck.sweep_row.followed", lambda _: (_ for _ in ()).throw(undetermined))
    code, out, _ = swept(capsys, *TINY)
    assert code == 3 and "4 undetermined" in out and "16  ?  ?" in out


def test_what_tilelang_refuses_is_skipped_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples' tuner tries block_M 64 with 256 threads, which Schedule.compilable refuses."""
    code, text, _ = swept(capsys, "--tuner", "--seq", "64", "--dim", "16", "--jobs", "1", "--json")
    found = json.loads(text)
    assert code == 0 and len(found["rows"]) == 32
    for row in found["rows"]:
        c = row["combination"]
        schedule = sim.Schedule(
            block_M=c["block_M"], block_N=c["block_N"], threads=c["threads"], num_stages=c["stages"]
        )
        why = schedule.compilable("sm_90", dim=16)
        assert (row["verdict"], row["why"]) == (("refused", why) if why else ("clean", None))
    assert found["verdicts"] == {"clean": 24, "refused": 8}


def test_one_fault_costs_one_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = sim.flash_attention
    monkeypatch.setattr(sim, "flash_attention", lambda *a, **k: 1 // 0 if a[3].block_M == 16 else real(*a, **k))
    code, text, _ = swept(capsys, *TINY, "--json")
    verdicts = [(row["verdict"], row["why"] or "") for row in json.loads(text)["rows"]]
    assert code == 3 and [v for v, _ in verdicts] == ["undetermined"] * 2 + ["clean"] * 2
    assert "a fault of the simulator (ZeroDivisionError" in verdicts[0][1]


def test_stages_are_simulated_once() -> None:
    """They do not change the words; what TileLang refuses is asked for each."""
    sweep = sweep_of(*TINY, "--stages", "0,1,2")
    (first, *others) = sweep_work.groups_of(list(enumerate(sweep)))
    assert [each["stages"] for _, each in first] == [0, 1, 2] and len(others) == 3
    a, b, c = rows(sweep, first)
    assert a["outputs"] is b["outputs"] is c["outputs"] and a["combination"] != b["combination"]


def test_a_kernels_own_stages_are_simulated_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An argument of that name may mean anything: here the kernel's NaN is in one of the two."""
    pytest.importorskip("tilelang")
    file = tmp_path / "k.py"
    text = (ROOT / "examples" / "rms_norm.py").read_text()
    file.write_text(text.replace("block=4", "block=4, stages=0").replace("1e-6", "1e-6 * stages"))
    words = [f"{file}:rms_norm", "--args", "8, 64", "--vary", "stages=0,1", "--inputs", "X=zeros", "--jobs", "1"]
    _, text, _ = swept(capsys, *words, "--json")
    assert [row["verdict"] for row in json.loads(text)["rows"]] == ["nan", "clean"]


def test_a_kernel_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of zeros are NaN without an epsilon; --args, --vary and --inputs are axes."""
    pytest.importorskip("tilelang")
    words = ["--args", "16, 64", "--args", "8, 64", "--vary", "block=2", "--inputs", "X=normal,zeros", "--jobs", "1"]
    code, text, _ = swept(capsys, FAULT, *words, "--json")
    found = json.loads(text)["rows"]
    assert code == 1 and len(found) == 4
    for row in found:
        assert row["verdict"] == ("nan" if row["combination"]["inputs X"] == "zeros" else "clean")
    assert found[1]["combination"] == {"args": "16, 64", "inputs X": "zeros", "block": 2}
    output = found[1]["outputs"][0]
    assert (output["name"], output["words"], output["nan"], output["nan_rows"]) == ("Y", 1024, 1024, 16)


def test_a_call_that_the_builder_refuses_is_a_refused_row(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tilelang")
    code, text, _ = swept(capsys, FAULT, "--args", "16, 64", "--vary", "block=4,'x'", "--jobs", "1", "--json")
    good, bad = json.loads(text)["rows"]
    assert (
        code == 0 and good["verdict"] == "clean" and bad["verdict"] == "refused" and "rms_norm_fault.py" in bad["why"]
    )


def test_what_is_there_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the file, its last line cut in the middle: that row and the missing ones are done, the others kept."""
    out = tmp_path / "s.jsonl"
    assert main(["sweep", *TINY, "--out", str(out)]) == 0
    whole, lines = without_times(out), out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    capsys.readouterr()
    code, _, err = swept(capsys, *TINY, "--out", str(out))
    assert code == 0 and f"{out}: 1 row of 4 are there" in err and without_times(out) == whole
    assert out.read_bytes().startswith(lines[0] + lines[1])
    before = out.read_bytes()
    assert swept(capsys, *TINY, "--out", str(out))[0] == 0 and out.read_bytes() == before


@pytest.mark.parametrize("size", [0, 1, 30])
def test_half_a_heading_is_dropped(size: int, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    assert main(["sweep", *TINY, "--out", str(out)]) == 0
    whole = without_times(out)
    out.write_bytes(out.read_bytes()[:size])
    assert main(["sweep", *TINY, "--out", str(out)]) == 0 and without_times(out) == whole


def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s.jsonl"
    assert main(["sweep", *TINY, "--out", str(out)]) == 0
    lines = out.read_bytes().splitlines(keepends=True)
    number_9, swapped = b'{"number": 9, "verdict": "clean"}\n', lines[1].replace(b'"number": 0', b'"number": 1')
    older = lines[0].replace(b'"simulator": "', b'"simulator": "0')
    for data, words, message in (
        (b"my notes", [], "is there and no file of a sweep"),
        (b"my notes\nand more\n", [], "is there and no file of a sweep"),
        (b"".join(lines), ["--seed", "0,1"], "holds another sweep (seed is not given there, [0, 1] here)"),
        (b"".join(lines), ["--inputs", "tiny"], "holds another sweep (inputs is ['normal'] there, ['tiny'] here)"),
        (older + lines[1], [], "holds another sweep (simulator is 0"),
        (lines[0] + number_9, [], "line 2 is no row of this sweep"),
        (lines[0] + b"{}\n" + lines[1], [], "line 2 is no row of this sweep"),
        (lines[0] + swapped, [], "line 2 is not combination 1 of this sweep"),
    ):
        out.write_bytes(data)
        capsys.readouterr()
        code, text, err = swept(capsys, *TINY, *words, "--out", str(out))
        assert (code, text, out.read_bytes()) == (2, "", data) and message in err and err.count("\n") == 1


def test_an_edited_kernel_is_another_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tilelang")
    file, out = tmp_path / "k.py", tmp_path / "s.jsonl"
    file.write_text((ROOT / "examples" / "rms_norm.py").read_text())
    words = [f"{file}:rms_norm", "--args", "8, 64", "--jobs", "1", "--out", str(out)]
    assert swept(capsys, *words)[0] == 0
    file.write_text(file.read_text().replace("1e-6", "1e-5"))
    code, _, err = swept(capsys, *words)
    assert code == 2 and "holds another sweep (sha256 is" in err


def test_two_sweeps_into_one_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s.jsonl"
    with out.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = swept(capsys, *TINY, "--out", str(out))
        assert code == 2 and "is in use by another sweep" in err
    assert swept(capsys, *TINY, "--out", str(out))[0] == 0


def _listening() -> None:
    """A job in the background of a script ignores SIGINT, and so do its children: not the one that is interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    """Killed, or interrupted as Ctrl-C does (the whole group), in two processes: what it had written is kept."""
    pytest.importorskip("joblib")
    out = tmp_path / "s.jsonl"
    words = [*TINY[:-2], "--jobs", "2", "--seq", "128", "--seed", ",".join(map(str, range(15))), "--out", str(out)]
    line = [sys.executable, "-m", "crosscheck", "sweep", *words]
    log = tmp_path / "err"
    with (
        log.open("w") as file,
        subprocess.Popen(line, cwd=ROOT, stderr=file, start_new_session=True, preexec_fn=_listening) as process,
    ):
        while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= 5):
            time.sleep(0.01)
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        process.wait(timeout=120)
    err = log.read_text()
    there = out.read_bytes().rpartition(b"\n")[0].splitlines()
    assert 5 <= len(there) < 61 and "Traceback" not in err
    if how == signal.SIGINT:
        assert process.returncode == 130 and f"are in {out}; the same command does the others" in err
    assert subprocess.run(line, cwd=ROOT, capture_output=True).returncode == 0
    assert out.read_bytes().splitlines()[: len(there)] == there
    assert sorted(row["number"] for row in lines_of(out)[1:]) == list(range(60))


def test_one_process_or_two_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("joblib")
    for jobs in ("1", "2"):
        assert main(["sweep", *TINY, "--jobs", jobs, "--out", str(tmp_path / jobs)]) == 0
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    capsys.readouterr()
    assert main(["sweep", *TINY, "--jobs", "2", "--out", str(tmp_path / "none")]) == 0
    assert "without joblib in one process" in capsys.readouterr().err
    assert without_times(tmp_path / "1") == without_times(tmp_path / "2") == without_times(tmp_path / "none")


def test_a_backend_that_gives_lists(tmp_path: Path) -> None:
    """Ray's is such a one, and joblib's own multiprocessing."""
    joblib = pytest.importorskip("joblib")
    sweep = sweep_of(*TINY)
    with joblib.parallel_config(backend="multiprocessing"):
        found = list(sweep_work.rows_of(sweep, list(enumerate(sweep)), 2))
    assert [row["verdict"] for row in found] == ["clean"] * 4


def test_on_a_dask_cluster(tmp_path: Path) -> None:
    """The README's example, on two local workers: the same rows."""
    pytest.importorskip("distributed")
    here, there = tmp_path / "here", tmp_path / "there"
    line = [sys.executable, "examples/sweep_on_dask.py", *TINY[:-2], "--out", str(there)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert main(["sweep", *TINY, "--out", str(here)]) == 0 and without_times(here) == without_times(there)


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No script, nothing from elsewhere, what users write is escaped, and each cell has its letter."""
    page = tmp_path / "s.html"
    words = ["--variant", "running_max,block_max", "--mask", "causal", "--html", str(page)]
    assert swept(capsys, *TINY, *words)[0] == 1
    text = page.read_text()
    assert not any(word in text for word in ("<script", "http:", "https:", "src=", "url("))
    assert text.count('<table class="map">') == 2 and text.count(">N</td>") == 1 and text.count(">.</td>") == 7
    assert 'title="1 NaN rows">N</td>' in text and "--variant block_max" in text
    pytest.importorskip("tilelang")
    assert swept(capsys, FAULT, "--args", "8, 64", "--vary", "name='<b>',4", "--jobs", "1", "--html", str(page))[0] == 2
    assert (
        swept(capsys, FAULT, "--args", "8, 64", "--vary", "block='<b>',4", "--jobs", "1", "--html", str(page))[0] == 0
    )
    assert "&lt;b&gt;" in page.read_text() and "<b>" not in page.read_text()


def test_the_axes_and_letters_of_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    """--map chooses the axes; a cell is the worst of its combinations, small when only some of them are so."""
    _, text, _ = swept(capsys, *TINY, "--variant", "block_max", "--mask", "full,causal", "--map", "mask,block_M")
    assert "mask down, block_M across" in text and "causal  .  N" in text and "  block_N 16 " in text
    _, text, _ = swept(capsys, *TINY, "--seed", "0,1")
    assert "a cell is the worst of all seed;" in text
    cells = [Counter(nan=2, refused=1), Counter(nan=1, clean=9), Counter(clean=1, refused=1), Counter(refused=1)]
    assert [letter(cell) for cell in cells] == ["N", "n", ".", "-"] and letter(Counter()) == " "


def test_the_readme_says_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Its table of the tuner's configurations, by the very command that it names."""
    _, _, after = (ROOT / "README.md").read_text().partition("    $ python -m crosscheck sweep ")
    line, _, rest = after.partition("\n")
    block = rest[: re.search(r"^\S", rest, re.MULTILINE).start()]  # type: ignore[union-attr]
    code, text, _ = swept(capsys, *line.split())
    assert code == 1 and text.rstrip() == textwrap.dedent(block).rstrip()


MISTAKES = [
    ("--block-M 64,x", "--block-M must be an integer from 1 to 2147483647, not 'x'"),
    ("--block-M 64,", "--block-M must be an integer from 1 to 2147483647, not ''"),
    ("--variant best", "--variant must be running_max, block_max, clear_true, accumulate_max or clear_true_block_max"),
    ("--fast-math yes", "--fast-math must be on or off, not 'yes'"),
    ("--tuner --block-M 64", "--block-M is what --tuner says"),
    (
        "--inputs normal,gauss",
        "--inputs must be one of normal, large, tiny, special, const:C or a FILE.npz, not 'gauss'",
    ),
    ("--inputs none.npz", "none.npz cannot be read: No such file or directory"),
    ("--vary block=4", "--vary is of a kernel: give FILE.py:FUNCTION too"),
    ("k.py:k --dim 64", "--dim is of the flash loop, and k.py:k is a kernel of its own"),
    ("k.py:k --tuner", "--tuner is of the flash loop, and k.py:k is a kernel of its own"),
    ("k.py:k --vary block", "--vary must be NAME=VALUE,VALUE with numbers, True, False or 'texts', not 'block'"),
    ("k.py:k --vary b=4 b=5", "b is given twice: give all of its values at once"),
    ("k.py:k --inputs X", "--inputs must be NAME=VALUE,VALUE, not 'X'"),
    ("k.py:k", "k.py cannot be read: No such file or directory"),
    (
        "--map seed,dim",
        "--map must be two axes of mask, inputs, variant, fast_math, arch, block_M, block_N, threads and",
    ),
    ("--map dim", "--map must be two axes like block_M,block_N, not 'dim'"),
    ("--html page.txt", "--html must be the name of a .html file, not 'page.txt'"),
    ("--html no/p.html", "--html no/p.html cannot be written: it is a directory, or its folder is not there"),
    ("--out no/s.jsonl", "--out no/s.jsonl cannot be written: No such file or directory"),
    (
        "--seed " + ",".join(map(str, range(400))) + " --seq " + ",".join(map(str, range(1, 400))),
        "the axes give 159600 comb",
    ),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes(line: str, message: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = swept(capsys, *line.split())
    assert (code, out) == (2, "") and err.startswith(f"crosscheck sweep: {message}") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
