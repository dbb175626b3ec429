"""`crosscheck run FILE.py:FUNCTION` and `support`: any kernel simulated, compared with a GPU and with captures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="a kernel is TileLang's")

import fake_gpu

import gpu
import sim
from crosscheck import terminal
from crosscheck.cli import main
from crosscheck.diff import diff
from crosscheck.specs import fill
from sim.captures import load_capture
from sim.formats import BF16, FP16, FP32, INTEGERS

ROOT = Path(__file__).parent.parent
FILE = str(Path(__file__).parent / "own_kernels.py")
EAGER = [f"{FILE}:eager", "--size", "M=16", "N=16"]
GATHER = [f"{FILE}:gather", "--size", "rows=32", "--inputs", "Index=randint:0:32"]


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a run without a GPU (unless the arguments say otherwise) that exits `code`."""
    gpu_flag = [] if "--gpu" in argv else ["--gpu", "off"]
    assert main(["run", *argv, *gpu_flag, "--json"]) == code, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence of a command that exits 2."""
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err.strip().replace(FILE, "FILE").removeprefix(f"crosscheck {argv[0]}: ")


# the forms of a kernel


def uses(found: dict[str, Any]) -> list[tuple[str, str, Any, str, str | None]]:
    return [(p["name"], p["dtype"], p["shape"], p["use"], p["input"]) for p in found["parameters"]]


@pytest.mark.parametrize(
    "argv",
    [
        [f"{FILE}:lazy", "--args", "16"],
        [f"{FILE}:lazy", "--args", "n=16, dtype='float16'"],
        [f"{FILE}:plain", "--args", "16"],
        EAGER,
        [f"{FILE}:eager", "--args", "factor=2.0, M=16, N=16"],
    ],
    ids=["jit", "by name", "plain", "eager with --size", "eager with --args"],
)
def test_every_form_of_a_kernel_that_doubles(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same parameters, and the words of x + x, seen in the capture of a GPU that simulates its request."""
    fake_gpu.install(monkeypatch)
    found = run(capsys, *argv, "--gpu", "on", "--capture", str(tmp_path / "y.npz"))
    assert uses(found) == [("X", "float16", [16, 16], "in", "normal"), ("Y", "float16", [16, 16], "out", None)]
    x = fill("normal", (16, 16), FP16, 0, 0).view(np.float16)
    np.testing.assert_array_equal(load_capture(tmp_path / "y.npz").arrays["Y"][0], (x + x).view(np.uint16))
    assert found["compared"][0]["same"] and found["outputs"] == [
        {"name": "Y", "words": 256, "nan": 0, "infinities": 0, "zeros": 0, "undetermined": 0}
    ]


def test_a_kernel_in_place_with_a_dtype_that_numpy_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, f"{FILE}:in_place", "--inputs", "X=value:inf")
    assert uses(found) == [("X", "bfloat16", [16, 16], "in/out", "value:inf")]
    assert found["outputs"][0]["infinities"] == 256


def test_symbolic_sizes_indices_and_integer_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, *GATHER[:3], "--inputs", "Index=range", "X=zeros")
    assert found["parameters"][0]["shape"] == [32, 4] and found["parameters"][3]["dtype"] == "int32"
    assert [(o["name"], o["zeros"]) for o in found["outputs"]] == [("Y", 32), ("Next", 0)]


def test_a_scalar_is_given_like_a_tensor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    found = run(capsys, f"{FILE}:shifted", "--inputs", "X=ones", "n=value:3", "--gpu", "on")
    assert uses(found)[1] == ("n", "int32", None, "in", "value:3")
    assert found["outputs"][0]["zeros"] == 3 * 16 and found["compared"][0]["same"]


def test_pass_configs_of_the_command_line_win(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "rms_norm.py") + ":rms_norm"
    flags = ["--args", "4, 256", "--pass-config", "tl.enable_fast_math=false"]
    assert run(capsys, example, *flags)["pass_configs"] == {"tl.enable_fast_math": False}
    assert run(capsys, example, *flags[:2])["pass_configs"] == {"tl.enable_fast_math": True}


# exit codes and what is undetermined


def test_what_nobody_wrote_is_undetermined_unless_its_start_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, f"{FILE}:half_written", code=3)["outputs"][0]["undetermined"] == 128
    found = run(capsys, f"{FILE}:half_written", "--inputs", "Y=ones", "X=zeros")
    assert (found["outputs"][0]["undetermined"], found["outputs"][0]["zeros"]) == (0, 128)
    assert main(["run", f"{FILE}:half_written", "--gpu", "off"]) == 3
    assert "  unknown    Y first at [8, 0], rows 8-15\n" in capsys.readouterr().out


def test_chosen_blocks_leave_the_rest_out(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run(capsys, *EAGER, "--blocks", "1")["outputs"]
    assert (found["undetermined"], found["other_blocks"]) == (0, 128)
    assert main(["run", *EAGER, "--gpu", "off", "--blocks", "1"]) == 0
    assert "undetermined  of other blocks\n" in capsys.readouterr().out
    said = error_of(capsys, "run", *EAGER, "--blocks", "7")
    assert said.endswith("blocks must be numbers of thread blocks, 0 to 1, not 7")


def test_what_chosen_blocks_cannot_know_counts_and_what_others_decide_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (found,) = run(capsys, f"{FILE}:half_known", "--blocks", "1,2", code=3)["outputs"]
    assert (found["undetermined"], found["other_blocks"]) == (16, 32)
    (found,) = run(capsys, f"{FILE}:adds", "--inputs", "Y=zeros", "--blocks", "1")["outputs"]
    assert (found["undetermined"], found["other_blocks"]) == (0, 32)
    assert run(capsys, f"{FILE}:adds", "--inputs", "Y=ones", code=3)["outputs"][0]["undetermined"] == 32
    (found,) = run(capsys, f"{FILE}:adds", "--inputs", "Y=ones", "--blocks", "1,3", code=3)["outputs"]
    assert (found["undetermined"], found["other_blocks"]) == (16, 16)


def test_arguments_may_begin_with_a_minus(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("-5", "-5, 'float16'", "n=-5"):
        assert error_of(capsys, "run", f"{FILE}:lazy", "--args", text) == (
            f"--args {text} makes X [-5, 16]: every size of a tensor must be at least 1"
        )


def test_against_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The request that a GPU gets is enough for it to give the same words, in every form; one wrong bit is found."""
    fake_gpu.install(monkeypatch)
    for argv in (
        EAGER,
        [f"{FILE}:lazy", "--args", "16"],
        GATHER,
        [f"{FILE}:in_place"],
        [*GATHER, "Y=ones", "Next=zeros"],
    ):
        found = run(capsys, *argv, "--gpu", "on")
        assert found["compared"][0]["same"] and found["device"] == "NVIDIA H200", argv
    fake_gpu.install(monkeypatch, flip=1)
    assert main(["run", *EAGER, "--gpu", "on"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  Y against NVIDIA H200: 1 of 256 words differs" in lines
    assert lines[-1].startswith("    [0, 0]  0x") and lines[-1].endswith("1 ULP")
    different = run(capsys, *GATHER, "--gpu", "on", code=1)["compared"][0]["outputs"]
    assert not different["Y"]["same"] and different["Next"]["same"]


def test_undetermined_words_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpu.install(monkeypatch)
    assert main(["run", f"{FILE}:half_written", "--gpu", "on"]) == 3
    assert "Y against NVIDIA H200: same, 128 words (128 more cannot be known)" in capsys.readouterr().out
    fake_gpu.install(monkeypatch, flip=1)
    assert main(["run", f"{FILE}:half_written", "--gpu", "on"]) == 1


def test_a_kernel_that_crashes_costs_the_comparison_and_not_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpu.install(
        monkeypatch, error=gpu.KernelError("the kernel gave no result within 2 s and was ended", "timeout")
    )
    assert main(["run", *EAGER]) == 1
    out = capsys.readouterr().out
    assert "  Y       256    0" in out and out.endswith("GPU: the kernel gave no result within 2 s and was ended\n")
    fake_gpu.install(monkeypatch, error=gpu.KernelError("no such tile", "compile"))
    assert main(["run", *EAGER]) == 0 and "no GPU run: no such tile" in capsys.readouterr().out
    assert main(["run", *EAGER, "--gpu", "on"]) == 2


# captures


def test_a_capture_is_replayed_on_its_inputs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "words.npz")
    fake_gpu.install(monkeypatch, flip=1)
    assert main(["run", *GATHER, "X=special", "--seed", "3", "--capture", path]) == 1
    assert f"wrote {path} and words.json" in capsys.readouterr().out
    capture = load_capture(path)
    (cell,) = capture.manifest["cells"]
    assert sorted(capture.arrays) == ["Y"] and sorted(capture.integers) == ["Next"] and capture.manifest["seed"] == 3
    assert [(i["name"], i["spec"], len(i["sha256"])) for i in cell["inputs"]] == [
        ("X", "special", 64),
        ("Index", "randint:0:32", 64),
    ]
    assert "--size rows=32 --inputs Index=randint:0:32 X=special" in capture.manifest["command"]
    found = run(capsys, f"{FILE}:gather", "--against", path, code=1)["compared"][0]["outputs"]
    assert found["Y"]["different"] == 1 and found["Y"]["first"] == [0, 0] and found["Next"]["same"]
    said = error_of(capsys, "run", f"{FILE}:gather", "--against", path, "--seed", "4", "--gpu", "off")
    assert said.startswith(f"--against {path} was measured on other words of X")
    assert "is no capture of" in error_of(
        capsys, "run", f"{FILE}:gather", "--against", str(ROOT / "tests/captures/h200/seed.npz"), "--gpu", "off"
    )


def test_a_capture_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "words.npz")
    monkeypatch.setattr(gpu, "unavailable", lambda: "no GPU run: nothing here")
    assert error_of(capsys, "run", *EAGER, "--capture", path) == "--gpu require: nothing here"
    fake_gpu.install(monkeypatch, error=gpu.KernelError("crashed", "crash"))
    assert main(["run", *EAGER, "--capture", path]) == 1
    assert "not written: the GPU gave no words" in capsys.readouterr().out and not list(tmp_path.iterdir())


# mistakes

MISTAKES = [
    ("run own.py", "KERNEL must be FILE.py:FUNCTION, not 'own.py'"),
    ("run none.py:f", "KERNEL none.py is not there"),
    (
        "run FILE:nope",
        "KERNEL FILE has no nope: it has eager, lazy, plain, gather, in_place, shifted, half_written,",
    ),
    (
        "run FILE:rows",
        "KERNEL FILE:rows must be a @tilelang.jit function, a PrimFunc or a function that returns one: it",
    ),
    (
        "run FILE:number --args 3",
        "KERNEL FILE:number must be a @tilelang.jit function, a PrimFunc or a function that re",
    ),
    ("run FILE:broken --args 3", "broken gives no kernel: ValueError: 3 is not a size (FILE:92)"),
    ("run FILE:lazy", "--args do not fit lazy(n, dtype=...): missing a required argument: 'n'"),
    ("run FILE:plain --args 1,2", "--args do not fit plain(n): plain() takes 1 positional argument but 2 were given"),
    ("run FILE:lazy --args os", "--args must be Python literals as in a call, like 64, causal=True, not 'os'"),
    ("run FILE:gather --args 3", "--args are a builder's arguments, and gather is a PrimFunc, which takes none"),
    ("run FILE:eager --size M=3", "--size must give N=N: eager's T.const"),
    ("run FILE:gather", "--size must give rows=N: a symbolic size has no default"),
    ("run FILE:gather --size rows=8", "--inputs must give Index=SPEC: it has no default"),
    ("run FILE:in_place --size n=8", "--size n is no size of in_place, which has no symbolic size"),
    ("run FILE:in_place --size n", "--size must be NAME=N with an integer N, not 'n'"),
    (
        "run FILE:gather --size rows=0 --inputs Index=zeros",
        "--size rows=0 makes X [0, 4]: every size of a tensor must be at least 1",
    ),
    ("run FILE:eager --size M=0 N=16", "--size M=0 makes X [0, 16]: every size of a tensor must be at least 1"),
    (
        "run FILE:in_place --pass-config foo=1",
        "--pass-config foo must be a key of TileLang's, like tl.enable_fast_math",
    ),
    (
        "run FILE:in_place --pass-config enable_fast_math=1",
        "--pass-config enable_fast_math must be a key of TileLang's; it has tl.enable_fast_math",
    ),
    (
        "support FILE:in_place --pass-config tl.enable_fast_math='x'",
        "--pass-config tl.enable_fast_math='x': Expect config tl.enable_fast_math to have type ir.IntImm",
    ),
    (
        "run FILE:conflicting",
        "KERNEL FILE:conflicting: a kernel that TileLang does not lower for sm_90a (Layout infer conflict between most "
        "and y in T.Parallel loop) is not supported",
    ),
    ("diff none.npz none.npz", "A.npz: none.npz is not there; an .npz file of words is wanted"),
    ("run FILE:in_place --inputs Z=ones", "--inputs must be NAME=SPEC with one of X, not 'Z=ones'"),
    ("run FILE:in_place --inputs X=gauss", "--inputs X must be normal, uniform, large, tiny, special, zeros, ones, "),
    (
        "run FILE:in_place --pass-config x",
        "--pass-config must be KEY=VALUE with True, False, a number or a 'text', not",
    ),
    ("run FILE:in_place --blocks a", "--blocks must be numbers of thread blocks like 0,3, not 'a'"),
    ("run FILE:in_place --block-M 64", "--block-M is of the flash loop, and FILE:in_place is a kernel of its own"),
    ("run FILE:in_place --gpu off --capture a.npz", "--capture keeps the GPU's words, and --gpu is off"),
    ("run FILE:in_place --against a.npz", "--against a.npz has no manifest"),
    ("run FILE:shifted", "--inputs must give X=SPEC and n=SPEC: an integer tensor and a scalar have no default"),
    ("run FILE:reads_only", "KERNEL FILE:reads_only writes to none of its parameters"),
    ("run FILE:with_threads", "KERNEL FILE:with_threads: "),
    ("run --blocks 0", "--blocks is of a kernel: give FILE.py:FUNCTION too"),
    ("run --inputs normal large", "--inputs of the flash loop is one family or file, not 2"),
    ("support FILE:nope", "KERNEL FILE has no nope"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_mistakes(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *line.replace("FILE:", f"{FILE}:").split()).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import torch\nimport nothing_of_that_name\n",
            "ModuleNotFoundError: No module named 'nothing_of_that_name' (own.py:2)",
        ),
        ("x = = 2\n", "SyntaxError: invalid syntax (own.py:1)"),
        ("import sys\n\nsys.exit(4)\n", "SystemExit: 4 (own.py:3)"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_its_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(text)
    assert error_of(capsys, "run", "own.py:f") == f"KERNEL own.py cannot be loaded: {message}"


def test_what_a_file_prints_is_not_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loud.py"
    path.write_text("print('hello')\n" + Path(FILE).read_text())
    assert main(["run", f"{path}:in_place", "--gpu", "off", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "in_place" and err.startswith("hello\n")


def test_a_fault_of_the_simulator_is_a_sentence_that_says_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any, **__: Any) -> None:
        return [].pop()

    monkeypatch.setattr(sim, "simulate", faulty)
    said = error_of(capsys, "run", *EAGER, "--gpu", "off")
    assert "a fault of the simulator, which does not run it (IndexError: pop from empty list at test_crossc" in said


# inputs


@pytest.mark.parametrize(
    "fmt", [FP16, BF16, FP32, *(INTEGERS[n] for n in ("int8", "int32", "bool"))], ids=lambda f: f.name
)
def test_zeros_ones_and_values(fmt: Any) -> None:
    one = {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000}.get(fmt.name, 1)
    assert fill("ones", (2, 3), fmt, 0, 0).tolist() == [[one] * 3] * 2
    assert fill("value:1", (2,), fmt, 0, 0).tolist() == [one] * 2 and not fill("zeros", (2,), fmt, 0, 0).any()
    assert fill("ones", (2, 3), fmt, 0, 0).dtype == fmt.word


def test_values_that_are_special() -> None:
    words = [int(fill(f"value:{x}", (), FP16, 0, 0)) for x in ("nan", "inf", "-inf", "-0.0", "65504")]
    assert words == [0x7FFF, 0x7C00, 0xFC00, 0x8000, 0x7BFF]


# The first words of a stream; others mean that a capture's inputs are no longer made.
WORDS = {
    "normal": [0x3F07, 0xB5D6, 0xBD19],
    "uniform": [0x2D89, 0x382D, 0x3B5F],
    "large": [0x4F07, 0xC5D6, 0xCD19],
    "tiny": [0x01C2, 0x8003, 0x828D],
    "randint:-3:5": [0x4400, 0x3C00, 0x4200],
    "range": [0x0000, 0x3C00, 0x4000],
}


@pytest.mark.parametrize("spec", WORDS)
def test_words_are_these_on_every_machine(spec: str) -> None:
    words = fill(spec, (4, 8), FP16, 0, 1)
    assert words.reshape(-1)[:3].tolist() == WORDS[spec]
    assert (fill(spec, (4, 8), FP16, 0, 2) != words).any() == (spec != "range")


def test_special_has_infinities_or_nan_and_a_negative_zero() -> None:
    words = fill("special", (64, 64), FP16, 5, 0)
    bad = FP16.is_nan(words) | FP16.is_inf(words)
    assert 1 <= bad.sum() <= 4 and (words == 0x8000).sum() >= 1


def test_randint_stays_within_its_bounds() -> None:
    numbers = fill("randint:-2:3", (1000,), INTEGERS["int32"], 0, 0).view(np.int32)
    assert sorted({*numbers.tolist()}) == [-2, -1, 0, 1, 2]


def test_files(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", a=x, w=x.view(np.uint16), i=np.array([1, 300]))
    assert (fill(f"@{tmp_path}/x.npy", (2, 3), FP16, 0, 0) == x.view(np.uint16)).all()
    assert (fill(f"@{tmp_path}/x.npz:w", (2, 3), BF16, 0, 0) == x.view(np.uint16)).all()
    assert fill(f"@{tmp_path}/x.npz:i", (2,), INTEGERS["int32"], 0, 0).tolist() == [1, 300]


@pytest.mark.parametrize(
    ("spec", "dtype", "message"),
    [
        ("normal", INTEGERS["int32"], "is int32, and normal makes floats: give zeros, ones, value:N, range or randint"),
        ("value:1e6", FP16, "value:1e6 must be at most 65504 in float16"),
        ("value:x", FP16, "value:X needs a number X, inf, -inf or nan, not 'x'"),
        ("value:1.5", INTEGERS["int8"], "is int8, and value:X needs an integer X, not '1.5'"),
        ("range", INTEGERS["int8"], "range must stay in int8's range, -128 to 127"),
        ("randint:3:1", FP16, "randint:LO:HI needs integers LO < HI, not '3:1'"),
        ("@x.npy", FP16, "needs x.npy, which is not there"),
        ("@x", FP16, "must be @file.npy or @file.npz:KEY, not '@x'"),
        ("@a.npy", FP16, "must have shape [20, 30], and a.npy has [2]"),
        ("@a.npy", FP32, "must be float32 or its words as uint32, and a.npy is float16"),
        ("@a.npz:z", FP16, "needs an array z, and a.npz has a"),
    ],
)
def test_specs_that_do_not_fit(
    spec: str, dtype: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros(2, np.float16))
    np.savez("a.npz", a=np.zeros(2, np.float16))
    with pytest.raises(ValueError) as error:
        fill(spec, (20, 30), dtype, 0, 0)
    assert str(error.value).startswith(message)


def test_a_difference_of_integers_is_told_by_index_and_values() -> None:
    left, right = np.array([[1, -2], [3, 4]], np.int32), np.array([[1, -2], [3, 99]], np.int32)
    found = diff((left, INTEGERS["int32"]), (right, INTEGERS["int32"]))
    assert (found.different, found.first, found.ulp) == (1, (1, 1), {})
    assert "[1, 1]  0x00000004  4  0x00000063  99" in found.message()


# support


def test_support_groups_counts_and_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(kernel: Any, **options: Any) -> list[sim.Need]:
        assert type(kernel).__name__ == "PrimFunc" and options == {
            "arch": "sm_80",
            "pass_configs": {"tl.disable_tma_lower": 1},
        }
        there = [sim.Need("copy", f"x/k.py:{line}", True) for line in (3, 5, 5)]
        return [*there, sim.Need("barrier", "k.py:7", False), sim.Need("float16", "", True)]

    monkeypatch.setattr(sim, "support", needs)
    argv = ["support", f"{FILE}:lazy", "--args", "16", "--arch", "sm_80", "--pass-config", "tl.disable_tma_lower=1"]
    assert main(argv) == 2
    assert capsys.readouterr().out.splitlines()[1:] == [
        "",
        "  supported  count  lines",
        "  copy       3      k.py:3, 5",
        "  float16    1",
        "",
        "  missing  count  lines",
        "  barrier  1      k.py:7",
        "",
        "3 things needed, 1 missing",
    ]
    assert main([*argv, "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    assert not data["supported"] and data["needs"][0]["where"] == ["x/k.py:3", "x/k.py:5"]


def test_support_of_a_real_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", f"{FILE}:in_place"]) == 0
    assert capsys.readouterr().out.endswith("none missing\n")


# progress and the README


def test_progress_counts_thread_blocks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    monkeypatch.setattr(terminal.Progress, "detail", lambda self, text: said.append(text))
    monkeypatch.setattr(terminal.Progress, "__exit__", lambda self, *_: None)
    monkeypatch.setattr(terminal.Progress, "__enter__", lambda self: setattr(self, "shown", True) or self)
    run(capsys, *EAGER)
    assert said[-1] == "simulating for sm_90, 2 of 2 thread blocks"


def transcripts() -> list[tuple[str, str]]:
    """Each command of the README that the section "Your own kernel" shows, and what it says that it prints."""
    section = (ROOT / "README.md").read_text().split("## Your own kernel\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    blocks = "\n".join(lines).split("$ ")[1:]
    return [(command, printed.strip("\n")) for command, _, printed in (block.partition("\n") for block in blocks)]


@pytest.mark.parametrize(("command", "printed"), transcripts(), ids=[command for command, _ in transcripts()])
def test_the_readme_shows_what_the_commands_print(
    command: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "crosscheck"]
    assert main(words[3:]) == 0
    assert capsys.readouterr().out.strip("\n") == printed


def test_the_examples_differ_in_their_fault_alone() -> None:
    good, bad = ((ROOT / "examples" / f"{name}.py").read_text().splitlines() for name in ("rms_norm", "rms_norm_fault"))
    assert [(a, b) for a, b in zip(good, bad, strict=True) if a != b][2:] == [
        (
            "                scale[i] = T.rsqrt(scale[i] / columns + 1e-6)",
            "                scale[i] = T.rsqrt(scale[i] / columns)",
        )
    ]
