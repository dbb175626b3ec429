"""`python -m crosscheck seed`: fifteen cells, each of them computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fake_gpu
import pytest

import gpu
from crosscheck.cli import main
from crosscheck.seed import CASES
from sim.captures import load_capture, save_capture
from sim.flash import VARIANTS, Schedule

CAPTURES = Path(__file__).parent / "captures" / "h200"
NAN_ROWS = {"causal256_128x64": [[0, 63], [128, 191]], "const0.05": [], "const3": [[0, 127]]}
DIFFS = {"causal256_128x64": 0.001953125, "const0.05": 0.0009765625, "const3": 0.0}
# What the issue says, character by character, on an RTX 5090 and again on an H200.
TABLE = """\
TileLang issue #948: five ways of keeping scores_max
simulated for sm_90; inputs, reference and words captured on the NVIDIA H200

  variant               result                                     words
causal, 256 rows, 128x64 blocks, torch.randn inputs
  running_max           max abs diff 0.001953125                   same as H200
  block_max             NaN 16384 of 32768, rows 0-63 and 128-191  same as H200
  clear_true            max abs diff 0.001953125                   same as H200
  accumulate_max        max abs diff 0.001953125                   same as H200
  clear_true_block_max  NaN 16384 of 32768, rows 0-63 and 128-191  same as H200
full, 128 rows, 64x64 blocks, raw scores 0.32 and then -0.32
  running_max           max abs diff 0.0009765625                  same as H200
  block_max             max abs diff 0.0                           same as H200
  clear_true            max abs diff 0.0009765625                  same as H200
  accumulate_max        max abs diff 0.0009765625                  same as H200
  clear_true_block_max  max abs diff 0.0                           same as H200
full, 128 rows, 64x64 blocks, raw scores 1152 and then -1152
  running_max           max abs diff 0.0                           same as H200
  block_max             NaN 16384 of 16384, all 128 rows           same as H200
  clear_true            max abs diff 0.0                           same as H200
  accumulate_max        max abs diff 0.0                           same as H200
  clear_true_block_max  NaN 16384 of 16384, all 128 rows           same as H200

15 cells, 327680 words: 0 differ from the NVIDIA H200
"""


def changed(folder: Path, name: str, index: tuple[int, ...], bits: int) -> None:
    """A copy of the capture in `folder` with some bits of one word of an array flipped, and a manifest that fits it."""
    capture = load_capture(CAPTURES / "seed.npz")
    arrays = {key: (words.copy(), fmt) for key, (words, fmt) in capture.arrays.items()}
    arrays[name][0][index] ^= bits
    facts = {key: value for key, value in capture.manifest.items() if key not in ("version", "sha256")}
    save_capture(folder / "seed.npz", arrays, facts)


def seed_json(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], str]:
    code = main(["seed", "--json", *flags])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, data, err = seed_json(capsys, "--gpu", "off")
    assert code == 0 and err == TABLE and max(len(line) for line in err.splitlines()) <= 80
    assert data["same"] and data["wrong_words"] == 0
    assert [(cell["case"], cell["variant"]) for cell in data["cells"]] == [(c.name, v) for c in CASES for v in VARIANTS]
    for cell in data["cells"]:
        case = cell["case"]
        block_only = cell["variant"] in ("block_max", "clear_true_block_max")
        assert cell["nan_rows"] == (NAN_ROWS[case] if block_only else [])
        assert cell["nan"] == (16384 if block_only and NAN_ROWS[case] else 0)
        assert cell["captured"]["different"] == 0 and cell["gpu"] is None
        if not block_only:
            assert cell["max_abs_diff"] == DIFFS[case]


def test_the_report_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed", "--gpu", "off", "--variant", "clear_true"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines()[:6] == [*TABLE.splitlines()[:5], TABLE.splitlines()[7]]
    assert out.endswith("3 cells, 65536 words: 0 differ from the NVIDIA H200\n")


def test_the_cases_are_those_of_the_capture() -> None:
    cells = load_capture(CAPTURES / "seed.npz").manifest["cells"]
    made = {(case.name, name): case.schedule(name) for case in CASES for name in VARIANTS}
    assert {(cell["case"], cell["variant"]): Schedule(**cell["schedule"]) for cell in cells} == made


def test_an_architecture_that_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed", "--arch", "sm_120", "--gpu", "off"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("not measured") == 15 and out.count("NaN 16384 of 32768, rows 0-63 and 128-191") == 2
    assert out.endswith("15 cells: no words were measured on sm_120; its arithmetic is from the literature\n")


def test_one_input_word_changes_the_cells_it_reaches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tmp_path, "const0.05__v", (0, 5, 0, 9), 0x0200)
    code, data, err = seed_json(capsys, "--gpu", "off", "--captures", str(tmp_path))
    assert code == 1 and not data["same"]
    different = {
        (c["case"], c["variant"]): c["captured"]["different"] for c in data["cells"] if not c["captured"]["same"]
    }
    assert {case for case, _ in different} == {"const0.05"} and set(different.values()) == {128}
    assert data["wrong_words"] == 128 * 5
    assert "128 differ" in err and "const0.05 running_max: 128 of 16384 words differ\n" in err
    assert "per ULP distance" in err and "first at [0, 0, 0, 9] of float16 [1, 128, 1, 128]" in err
    assert "the capture was made with: python -m gpu.capture" in err


def test_one_captured_nan_payload_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tmp_path, "const3__block_max__o", (0, 7, 0, 1), 0x0001)
    code, data, _ = seed_json(capsys, "--gpu", "off", "--variant", "block_max", "--captures", str(tmp_path))
    assert code == 1 and data["wrong_words"] == 1 and len(data["cells"]) == 3
    assert data["cells"][2]["captured"]["counts"]["nan_payload"] == 1


def test_a_wrong_checksum_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tmp_path, "const3__q", (0, 0, 0, 0), 0x0001)
    shutil.copy(CAPTURES / "seed.json", tmp_path / "seed.json")
    assert main(["seed", "--captures", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and "has sha256" in err
        and "make it again with: python -m gpu.capture" in err
        and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": None}, "must say on which arch it was measured, and says null"),
        ({"device": None}, "must say on which device it was measured, and says null"),
        ({"arch": "foo"}, 'must have an architecture that sim models, as sm_90, or null as arch, not "foo"'),
        ({"device": 5}, "must have a string or null as device, not 5"),
    ],
)
def test_a_manifest_that_does_not_say_what_was_measured(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(tmp_path, "const3__q", (0, 0, 0, 0), 0)
    manifest = tmp_path / "seed.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    assert main(["seed", "--captures", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_an_output_of_another_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = load_capture(CAPTURES / "seed.npz")
    words, fmt = capture.arrays["const3__block_max__o"]
    facts = {key: value for key, value in capture.manifest.items() if key not in ("version", "sha256")}
    save_capture(tmp_path / "seed.npz", capture.arrays | {"const3__block_max__o": (words[:, :5], fmt)}, facts)
    assert main(["seed", "--captures", str(tmp_path)]) == 2
    assert "must hold const3__block_max__o as float16 [1, 128, 1, 128], not float16 [1, 5" in capsys.readouterr().err


def test_a_missing_capture_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed", "--captures", str(tmp_path)]) == 2
    assert str(tmp_path / "seed.npz") in capsys.readouterr().err


def test_flags_that_the_cases_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed", "--block-M", "32"]) == 2
    assert capsys.readouterr().err.startswith("crosscheck seed: --block-M is fixed by the cases of seed")


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.install(monkeypatch)
    assert main(["seed", "--variant", "block_max"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("same as both") == 3
    assert out.endswith("the TileLang kernels on this NVIDIA H200: 0 of 65536 words differ\n")


def test_with_a_gpu_that_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.install(monkeypatch, flip=1)
    assert main(["seed", "--variant", "running_max", "--gpu", "require"]) == 1
    out, _ = capsys.readouterr()
    assert out.count("GPU differs") == 3 and "  1 ULP" in out and max(map(len, out.splitlines())) <= 80
    assert out.endswith("the TileLang kernels on this NVIDIA H200: 3 of 65536 words differ\n")


def test_a_gpu_of_another_architecture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.install(monkeypatch, arch="sm_89")
    assert main(["seed", "--variant", "running_max"]) == 0
    assert "no GPU run: the GPU here is a NVIDIA H200 (sm_89), and --arch is sm_90" in capsys.readouterr().out
    assert main(["seed", "--variant", "running_max", "--gpu", "require"]) == 2
    assert capsys.readouterr().err.startswith("crosscheck seed: --gpu require: the GPU here is")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "no GPU run: nothing here")
    assert main(["seed", "--variant", "running_max"]) == 0
    assert capsys.readouterr().out.endswith("no GPU run: nothing here\n")
    assert main(["seed", "--gpu", "require"]) == 2
    assert capsys.readouterr().err == "crosscheck seed: --gpu require: nothing here\n"
