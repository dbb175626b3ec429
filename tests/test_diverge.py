"""`crosscheck diverge`: taps of an H200 agree, a planted fault is named, taps that change words are left out.

The captures are made on a GPU by the commands in their manifests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="a kernel is TileLang's")

import fake_gpu

import gpu
import sim
from crosscheck.cli import main
from crosscheck.diverge_taps import Found, make_plan
from crosscheck.flags import UsageError
from gpu.taps import Taps
from sim import Schedule
from sim.captures import save_arrays
from sim.formats import FP16
from sim.machine import Exact
from sim.primfunc.lowering import Plan

ROOT = Path(__file__).parent.parent
FILE = str(Path(__file__).parent / "own_kernels.py")
CAPTURES = Path(__file__).parent / "captures" / "h200"
FLASH, NORM = CAPTURES / "taps_flash.npz", CAPTURES / "taps_norm.npz"


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captures name their kernels from there."""
    monkeypatch.chdir(ROOT)


def diverge(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a command that exits `code`."""
    assert main(["diverge", *map(str, argv), "--json"]) == code, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence of a command that exits 2."""
    assert main(["diverge", *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err.strip().removeprefix("crosscheck diverge: ")


# taps recorded on an H200


@pytest.mark.parametrize(
    ("capture", "words", "operators"), [(FLASH, 91712, 21), (NORM, 8224, 4)], ids=["flash", "norm"]
)
def test_recorded_taps_agree_in_every_word(
    capture: Path, words: int, operators: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diverge(capsys, "--against", capture)
    assert found["same"] and found["first"] is None and found["against"].endswith("NVIDIA H200")
    assert (found["taps"]["words"], len(found["taps"]["sites"])) == (words, operators)


def rounded_product(self: Exact, a: Any, b: Any, c: Any, fmt: Any) -> Any:
    """a * b + c rounded twice: the fma is missing."""
    return self.add(self.mul(a, b, fmt), c, fmt)


def rounded_difference(self: Exact, a: Any, b: Any, c: Any, fmt: Any) -> Any:
    return self.sub(self.mul(a, b, fmt), c, fmt)


def from_zero(self: Exact, a: Any, b: Any, c: Any, operand: Any, accumulator: Any) -> Any:
    """A product from zero that is added to the accumulator afterwards."""
    product = DOT(self, a, b, np.zeros_like(c), operand, accumulator)
    return self.add(c, product, accumulator)


def backwards(self: Plan, data: Any) -> Any:
    """A thread adds its elements in the opposite order."""
    return STEPS(self, data)[::-1]


def last_bit(name: str) -> Callable:
    """The machine's function `name` with the last bit of each result flipped."""
    function = getattr(Exact, name)
    return lambda self, x, fmt: function(self, x, fmt) ^ 1


DOT, STEPS = Exact.dot, Plan._steps
FAULTS: list[tuple[Path, type, str, Callable, str, str, list[int]]] = [
    (FLASH, Exact, "mul_add", rounded_product, "parallel", "logsum", [1]),
    (FLASH, Exact, "mul_sub", rounded_difference, "parallel", "acc_s", [0]),
    (FLASH, Exact, "exp2", last_bit("exp2"), "parallel", "scores_scale", [0]),
    (FLASH, Exact, "dot", from_zero, "gemm", "acc_o", [1]),
    (FLASH, Plan, "_steps", backwards, "reduce_sum", "scores_sum", [0]),
    (NORM, Exact, "rsqrt", last_bit("rsqrt"), "parallel", "scale", []),
    (NORM, Plan, "_steps", backwards, "reduce_sum", "scale", []),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f[0].stem}-{f[2]}")
def test_a_planted_fault_is_named(
    fault: tuple, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator, its tile and the iteration in which the fault is first seen."""
    capture, where, name, function, operator, buffer, iterations = fault
    monkeypatch.setattr(where, name, function)
    first = diverge(capsys, "--against", capture, code=1)["first"]
    assert (first["operator"], first["buffer"], first["iterations"]) == (operator, buffer, iterations)
    assert first["diff"]["listed"][0]["actual_word"] != first["diff"]["listed"][0]["expected_word"]


def readme() -> tuple[str, str]:
    """What the README says that the command prints, and what it would print with a fault in the simulator."""
    section = (ROOT / "README.md").read_text().split("## The first operator that differs\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    good, bad = "\n".join(lines).split("\n  first divergence: ")
    return good.strip("\n"), "  first divergence: " + bad.strip("\n")


def test_the_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the place, both words, what was not tapped before it, and what the outputs hide."""
    good, bad = readme()
    command, _, printed = good.removeprefix("$ ").partition("\n")
    assert command == "python -m crosscheck diverge --against tests/captures/h200/taps_norm.npz"
    assert main(command.split()[3:]) == 0
    assert capsys.readouterr().out.strip("\n") == printed
    monkeypatch.setattr(Plan, "_steps", backwards)
    assert main(command.split()[3:]) == 1
    assert capsys.readouterr().out.strip("\n").endswith("\n\n" + bad)


# the taps


def flash_kernel() -> Any:
    schedule = Schedule.variant("running_max", causal=True, block_M=16, block_N=16, threads=32)
    return gpu.flash_attention_kernel(schedule, 1, 1, 1, 48, 48, 16, "float16")


def qkv() -> list[tuple[np.ndarray, Any]]:
    draw = np.random.default_rng(5)
    return [(draw.standard_normal((1, 48, 1, 16)).astype(np.float16).view(np.uint16), FP16) for _ in range(3)]


@pytest.mark.parametrize("blocks", [[0, 1, 2], [1, 2], [0, 2]], ids=str)
def test_a_tap_holds_what_the_tile_holds_after_its_operator(blocks: list[int]) -> None:
    """Against `watch`, which sees the stores of the kernel itself; with the turns and thread blocks that are chosen."""
    seen: dict[tuple[int, int], np.ndarray] = {}

    def watch(values: np.ndarray, block: int, iteration: int | None) -> None:
        if iteration is not None:
            seen[block, iteration] = values.copy()

    pf = flash_kernel()
    plain = sim.simulate(pf.with_attr("tilelang_out_idx", [3]), *qkv(), watch={"logsum": watch})
    taps = Taps(pf, {}, True)
    (site,) = (s for s in taps.sites if s.buffer == "logsum" and s.operator == "parallel")
    assert (site.turns, site.grid, site.shape) == ((3,), 3, (16,))
    tapped = taps.tapped([site.number], blocks, 2).with_attr("tilelang_out_idx", [3, 4])
    result = sim.simulate(tapped, *qkv())
    assert result.outputs[1][0].shape == (len(blocks), 2, 16)
    for slot, block in enumerate(blocks):
        for turn in range(2):
            unknown = result.undetermined[1][slot, turn] if result.undetermined[1] is not None else False
            if (block, turn) in seen:
                assert not np.any(unknown)
                np.testing.assert_array_equal(result.outputs[1][0][slot, turn].view(np.float32), seen[block, turn])
            else:
                assert np.all(unknown)
    np.testing.assert_array_equal(result.outputs[0][0], plain.outputs[0][0])


def test_the_sites_of_a_kernel() -> None:
    """Every store to a tile in program order, with the loops around it; the fused product of a norm is marked."""
    names = [(s.operator, s.buffer) for s in Taps(flash_kernel(), {}, True).sites]
    assert names[:5] == [("copy", "Q_shared"), ("fill", "acc_o"), ("fill", "logsum"), ("fill", "scores_max"),
                         ("copy", "K_shared")]  # fmt: skip
    assert names[-3:] == [("gemm", "acc_o"), ("parallel", "acc_o"), ("copy", "O_shared")] and len(names) == 21
    import tapped_kernels

    nested = Taps(tapped_kernels.nested.get_tir(), {}, False).sites
    assert [(s.buffer, s.loops, s.turns) for s in nested] == [
        ("x", (), ()), ("x", (1,), (2,)), ("x", (1, 2), (2, 3)), ("y", (1,), (2,)), ("x", (), ())
    ]  # fmt: skip
    squares = [s.fused for s in Taps(tapped_kernels.squares.get_tir(), {}, False).sites]
    assert squares == [False, True, False]


def test_operators_are_ordered_as_they_run() -> None:
    """Turn by turn: the inner loop of each turn before what follows it in the same turn."""
    import tapped_kernels

    sites = Taps(tapped_kernels.nested.get_tir(), {}, False).sites
    ran = [(0, ())]
    for turn in range(2):
        ran += [(1, (turn,)), *((2, (turn, inner)) for inner in range(3)), (3, (turn,))]
    ran += [(4, ())]
    none = np.zeros(0, np.uint32)
    orders = [Found(sites[n], 0, turns, none, none > 0, none).order for n, turns in ran]
    assert orders == sorted(orders) and len(set(orders)) == len(orders)


# with a GPU (which simulates)


def install(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[gpu.Kernel, list[str], list[np.ndarray]], None]) -> None:
    """A GPU whose words `spoil(kernel, names of its taps, words)` changes."""
    fake_gpu.install(monkeypatch)
    honest = gpu.run_kernels

    def run_kernels(kernels: list[gpu.Kernel], workers: int | None = None, timeout: float = 120) -> list[Any]:
        answers = honest(kernels)
        for kernel, words in zip(kernels, answers, strict=True):
            names = sorted(set(re.findall(r"tap_\d+_[a-z]\w*?(?=_handle)", kernel.prim_func)))
            spoil(kernel, names, words)
        return answers

    monkeypatch.setattr(gpu, "run_kernels", run_kernels)


SQUARES = [str(Path(__file__).parent / "tapped_kernels.py") + ":squares"]


def test_taps_that_change_the_outputs_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tile whose taps do it is found and named; the other tiles are tapped and compared.

    A tap of a product that a sum fuses rounds it: the simulator, which is the GPU here, does as the H200 does.
    """
    fake_gpu.install(monkeypatch)
    found = diverge(capsys, *SQUARES, "--taps", "squares,total,x")
    (why,) = found["taps"]["left_out"]
    assert re.fullmatch(r"the taps of squares: they change \d+ words of the GPU's Y", why)
    assert [s["buffer"] for s in found["taps"]["sites"]] == ["x", "total"] and found["same"]
    named = diverge(capsys, *SQUARES)["taps"]
    assert [s["buffer"] for s in named["sites"]] == ["x", "total"]
    assert "squares after parallel" in named["left_out"][0] and "is fused with a later sum" in named["left_out"][0]


def test_taps_that_change_the_outputs_only_together_are_compared_one_tile_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(kernel: gpu.Kernel, names: list[str], words: list[np.ndarray]) -> None:
        words[0].reshape(-1)[0] ^= len(names) > 1

    install(monkeypatch, spoil)
    found = diverge(capsys, *SQUARES)
    assert [s["buffer"] for s in found["taps"]["sites"]] == ["x", "total"] and found["same"]
    assert found["taps"]["left_out"][0] == "all taps at once: they change 1 word of the GPU's Y"


@pytest.mark.parametrize("other_taps", [False, True])
def test_what_differs_is_tapped_alone_once_more(
    other_taps: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what other taps do to an operator is not taken for a fault of it."""

    def spoil(kernel: gpu.Kernel, names: list[str], words: list[np.ndarray]) -> None:
        if names and (len(names) > 1 or not other_taps):
            words[-1].reshape(-1)[1] ^= 1

    install(monkeypatch, spoil)
    found = diverge(capsys, *SQUARES, code=1)
    assert (found["first"]["buffer"], found["first"]["different"], found["alone"]) == ("total", 1, not other_taps)
    assert found["outputs"]["Y"]["same"]


def test_an_output_that_differs_without_a_tap_that_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(kernel: gpu.Kernel, names: list[str], words: list[np.ndarray]) -> None:
        words[0].reshape(-1)[0] ^= 1

    install(monkeypatch, spoil)
    assert main(["diverge", *SQUARES]) == 1
    said = capsys.readouterr().out
    assert "no divergence: " in said and "Y without taps: 1 of 32 words differs" in said
    assert "stored by thread block 0\n" in said
    assert "no tapped operator differs: what does is not tapped, or its tap hides it" in said


def test_a_capture_keeps_what_the_gpu_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is enough to compare again; narrower taps may be asked for, another kernel or start may not."""

    def spoil(kernel: gpu.Kernel, names: list[str], words: list[np.ndarray]) -> None:
        if names:
            words[-1].reshape(-1)[3] ^= 1

    install(monkeypatch, spoil)
    out = tmp_path / "taps.npz"
    diverge(capsys, *SQUARES, "--seed", "3", "--capture", out, code=1)
    again = diverge(capsys, "--against", out, code=1)
    assert (again["first"]["buffer"], again["seed"], again["alone"]) == ("total", 3, None)
    assert diverge(capsys, "--against", out, "--taps", "x")["same"]
    assert "was measured on other words of X" in error_of(capsys, "--against", out, "--seed", "4")
    assert "--blocks is what --against" in error_of(capsys, "--against", out, "--blocks", "0")
    other = [SQUARES[0].replace("squares", "nested"), "--inputs", "X=normal"]
    assert "was measured on" in error_of(capsys, *other, "--against", out)


# what is not possible


def test_errors_are_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "no GPU run: there is none")
    said = error_of(capsys, *SQUARES)
    assert said == "there is none: give a capture of taps instead, --against CAPTURE.npz"
    fake_gpu.install(monkeypatch)
    assert "--taps must name tiles that the kernel stores to with operators, squares, total or x, not y" in error_of(
        capsys, *SQUARES, "--taps", "y"
    )
    assert "copy, parallel or reduce_sum, not gemm" in error_of(capsys, *SQUARES, "--operators", "gemm")
    assert error_of(capsys, *SQUARES, "--taps", "x,,y").startswith("--taps must be names like acc_s,scores_max")
    assert "0 to 1, not 7" in error_of(capsys, *SQUARES, "--blocks", "7")
    assert "is no capture of `diverge --capture`" in error_of(capsys, "--against", CAPTURES / "flash.npz")


def test_memory_bounds_what_is_tapped() -> None:
    """First thread blocks are left out, then turns of the loops, and it is said."""
    taps = Taps(flash_kernel(), {}, True)
    whole = make_plan(taps, None, None, None, None, 256)
    assert (whole.blocks, whole.turns, whole.chosen, whole.left_out) == ((0, 1, 2), 3, None, ())
    assert whole.bytes() == sum(array_bytes(whole, n) for n in whole.sites)
    large = Taps(gpu.flash_attention_kernel(Schedule(), 1, 1, 1, 64 * 64, 64 * 64, 128, "float16"), {}, True)
    some = make_plan(large, None, None, None, None, 64)
    assert some.bytes() <= 64 * 2**20 and 1 < len(some.blocks) < 64 and some.turns == 64
    assert some.left_out == (f"thread blocks {len(some.blocks)} to 63: --blocks chooses, --limit allows more",)
    few = make_plan(large, None, None, [5], None, 2)
    assert few.bytes() <= 2 * 2**20 and few.blocks == (5,) and few.turns < 64
    with pytest.raises(UsageError, match="--limit 1 MiB is too small"):
        make_plan(large, None, None, list(range(64)), None, 1)


def array_bytes(plan: Any, number: int) -> int:
    dtype = plan.taps.sites[number].dtype
    return int(np.prod(plan.shape(number))) * np.dtype(dtype).itemsize


def test_a_kernel_that_the_simulator_refuses_is_compared_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By classes and rows; nothing is tapped."""
    fake_gpu.install(monkeypatch)
    words = np.arange(128, dtype=np.uint16).reshape(8, 16)
    monkeypatch.setattr(gpu, "run_kernels", lambda kernels, timeout: [[words.copy()] for _ in kernels])
    assert "--reference FILE.npz" in error_of(capsys, f"{FILE}:with_threads")
    save_arrays(tmp_path / "y.npz", {"Y": (words, FP16)})
    argv = [f"{FILE}:with_threads", "--reference", tmp_path / "y.npz"]
    assert diverge(capsys, *argv)["outputs"]["Y"]["same"]
    words[2:4, 5] = 0x7E00
    assert main(["diverge", *map(str, argv)]) == 1
    said = capsys.readouterr().out
    assert "Y: 2 of 128 words differ" in said and "NaN against number" in said and "in rows 2-3" in said
