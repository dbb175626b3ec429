"""Arrays in files come back word for word; what cannot be used is refused with a sentence that says why."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sim import captures
from sim.captures import FACTS, CaptureError, load_arrays, load_capture, save_arrays, save_capture
from sim.formats import BF16, FORMATS, FP16, FP32, Format

H200 = Path(__file__).parent / "captures" / "h200"
COMMAND = "python -m gpu.capture old.npz new.npz"
ONE = np.array([[1, 0x7FFF, 0xFFFF]], np.uint16)


def facts(**other: object) -> dict[str, object]:
    return dict.fromkeys(FACTS) | {"device": "NVIDIA H200", "arch": "sm_90", "command": COMMAND} | other


def every_word(fmt: Format) -> np.ndarray:
    """All words of a narrow format, the edges of a wide one."""
    if fmt.bits <= 16:
        return np.arange(2**fmt.bits, dtype=fmt.word).reshape(-1, 2)
    return np.array([[0, 1, fmt.sign], [fmt.exponent_mask, fmt.nan, 2**fmt.bits - 1]], fmt.word)


def npz(path: Path, **entries: object) -> Path:
    np.savez(path, **entries)  # type: ignore[arg-type]
    return path


# what goes in comes out


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_words_come_back(tmp_path: Path, fmt: Format) -> None:
    save_arrays(tmp_path / "a.npz", {"x": (every_word(fmt), fmt), "scalar": (np.zeros((), fmt.word), fmt)})
    arrays = load_arrays(tmp_path / "a.npz")
    words, found = arrays["x"]
    assert found is fmt and words.dtype == fmt.word and np.array_equal(words, every_word(fmt))
    assert arrays["scalar"][0].shape == () and list(arrays) == ["x", "scalar"]


@pytest.mark.parametrize("fmt", [FP16, FP32], ids=lambda fmt: fmt.name)
def test_numpy_floats_need_no_dtype_entry(tmp_path: Path, fmt: Format) -> None:
    floats = every_word(fmt).view(fmt.name)
    for name, array in (("plain", floats), ("swapped", floats.astype(floats.dtype.newbyteorder()))):
        words, found = load_arrays(npz(tmp_path / f"{name}.npz", x=array, x__dtype=fmt.name))["x"]
        assert found is fmt
        nan = fmt.is_nan(every_word(fmt))
        assert np.array_equal(words[~nan], every_word(fmt)[~nan]) and fmt.is_nan(words)[nan].all()
    assert np.array_equal(load_arrays(npz(tmp_path / "bare.npz", x=floats))["x"][0], every_word(fmt))


def test_a_name_may_be_anything(tmp_path: Path) -> None:
    names = ["file", "const0.05__q", "a b", "é"]
    save_arrays(tmp_path / "a.npz", dict.fromkeys(names, (ONE, FP16)))
    assert list(load_arrays(tmp_path / "a.npz")) == names


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        save_arrays(tmp_path / name, {"x": (ONE, FP16)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_capture_comes_back(tmp_path: Path) -> None:
    delta = np.array([-1, 0, 1], np.int8)
    cells = [{"case": "one", "o": "x"}]
    save_capture(tmp_path / "c.npz", {"x": (ONE, FP16)}, facts(seed=0, cells=cells), {"delta": delta})
    capture = load_capture(tmp_path / "c.npz")
    assert np.array_equal(capture.arrays["x"][0], ONE) and capture.arrays["x"][1] is FP16
    assert np.array_equal(capture.integers["delta"], delta) and capture.integers["delta"].dtype == np.int8
    assert capture.manifest["version"] == 1 and capture.manifest["cells"] == cells and capture.manifest["seed"] == 0


@pytest.mark.parametrize("path", sorted(H200.glob("*.json")), ids=lambda path: path.stem)
def test_the_shipped_captures_load(path: Path) -> None:
    capture = load_capture(path.with_suffix(".npz"))
    assert capture.manifest["device"] == "NVIDIA H200" and capture.manifest["arch"] == "sm_90"
    assert capture.arrays or capture.integers
    for cell in capture.manifest.get("cells", []):
        named = [
            cell[name]
            for name in ("q", "k", "v", "o", "a", "b", "c", "d", "reference")
            if isinstance(cell.get(name), str)
        ]
        assert set(named) <= set(capture.arrays)


# a file appears whole or not at all


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": (ONE, FP16)})
    before = path.read_bytes()

    def fail(stream: io.BufferedWriter, entries: object) -> None:
        stream.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(captures, "_write_npz", fail)
    with pytest.raises(OSError, match="no space"):
        save_arrays(path, {"x": (ONE + 1, FP16)})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.npz"]


def test_the_file_is_renamed_into_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    replace = Path.replace

    def watch(source: Path, target: Path) -> Path:
        seen.append((source.parent, load_arrays(source)["x"][1], target))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", watch)
    save_arrays(tmp_path / "a.npz", {"x": (ONE, FP16)})
    assert seen == [(tmp_path, FP16, tmp_path / "a.npz")]


# what is refused


def refused(path: Path, *told: str) -> None:
    """load_arrays refuses `path` with one sentence that names it and has `told`."""
    with pytest.raises(CaptureError) as caught:
        load_arrays(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for words in told:
        assert words in message, message


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", "is not there")
    refused(tmp_path, "is a directory")
    refused(tmp_path / "a.npz" / "b.npz", "is not there")


@pytest.mark.parametrize("keep", [0, 10, 200, -30])
def test_a_file_cut_short(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": (every_word(BF16), BF16)})
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "cut short")


def test_a_file_with_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": (every_word(BF16), BF16)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(path, "is damaged")


def test_another_kind_of_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ONE)
    refused(tmp_path / "a.npy", "not an .npz file")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.txt", "words")
    refused(tmp_path / "b.npz", "x.txt is no array")


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "boom"),)

    refused(npz(tmp_path / "a.npz", x=np.array([Bomb()], object)), "entry x", "Python objects", "unsigned words")
    assert not (tmp_path / "boom").exists()


def test_damage_is_told_without_pickle(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": (ONE, FP16)})
    path.write_bytes(b"before" + path.read_bytes())
    refused(path, "is damaged (its headers cannot be read)")


def test_words_without_their_format(tmp_path: Path) -> None:
    refused(npz(tmp_path / "a.npz", x=ONE), "entry x is uint16 without an entry x__dtype", "float16, bfloat16")
    refused(npz(tmp_path / "b.npz", x=np.zeros(3)), "entry x is float64 without")


def test_a_format_nobody_knows(tmp_path: Path) -> None:
    refused(npz(tmp_path / "a.npz", x=ONE, x__dtype="float8_e4m3"), "x__dtype is 'float8_e4m3'", "float8_e4m3fn")
    refused(npz(tmp_path / "b.npz", x=ONE, x__dtype=np.arange(2)), "x__dtype is '[0 1]'", "must be one of")


@pytest.mark.parametrize(
    "words", [ONE.astype(np.uint32), ONE.view(np.int16), ONE.astype(np.float64)], ids=lambda w: w.dtype.name
)
def test_words_of_another_width(tmp_path: Path, words: np.ndarray) -> None:
    refused(
        npz(tmp_path / "a.npz", x=words, x__dtype="bfloat16"), f"entry x is {words.dtype}", "bfloat16 words are uint16"
    )


def test_a_format_without_its_array(tmp_path: Path) -> None:
    refused(npz(tmp_path / "a.npz", y__dtype="float16"), "y__dtype without the array y")


def test_words_of_another_width_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="x must be uint32 words for float32, not uint16"):
        save_arrays(tmp_path / "a.npz", {"x": (ONE, FP32)})
    assert not os.listdir(tmp_path)


# captures


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    save_capture(tmp_path / "c.npz", {"x": (ONE, FP16)}, facts())
    return tmp_path / "c.npz"


def edit(path: Path, **changes: object) -> None:
    manifest = path.with_suffix(".json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


def refused_capture(path: Path, *told: str) -> None:
    with pytest.raises(CaptureError) as caught:
        load_capture(path)
    for words in (path.stem, *told):
        assert words in str(caught.value)


def test_a_capture_without_its_manifest(capture: Path) -> None:
    capture.with_suffix(".json").unlink()
    refused_capture(capture, "has no manifest", "c.json beside it")


def test_a_manifest_that_is_no_json(capture: Path) -> None:
    capture.with_suffix(".json").write_text("{")
    refused_capture(capture, "not a readable JSON manifest")


@pytest.mark.parametrize("version", [2, "1", None])
def test_a_manifest_of_another_version(capture: Path, version: object) -> None:
    edit(capture, version=version)
    refused_capture(capture, f"version {version!r}", "reads version 1")


def test_a_manifest_that_says_too_little(capture: Path) -> None:
    manifest = capture.with_suffix(".json")
    said = json.loads(manifest.read_text())
    del said["driver"], said["sha256"]
    manifest.write_text(json.dumps(said))
    refused_capture(capture, "must say sha256, driver")


@pytest.mark.parametrize(
    ("name", "value"),
    [("sha256", None), ("device", 5), ("arch", "foo"), ("arch", ["sm_90"]), ("command", {}), ("seed", "0"),
     ("seed", True), ("integers", 5), ("integers", [5]), ("integers", "x"), ("cells", {}), ("cells", ["one"])],
)  # fmt: skip
def test_a_manifest_of_other_types(capture: Path, name: str, value: object) -> None:
    edit(capture, **{name: value})
    refused_capture(capture, f" as {name}, not {json.dumps(value)}")


def test_a_fact_may_be_null(capture: Path) -> None:
    edit(capture, **dict.fromkeys(FACTS))
    assert load_capture(capture).manifest["arch"] is None


def test_a_capture_that_was_changed(capture: Path) -> None:
    save_arrays(capture, {"x": (ONE + 1, FP16)})
    refused_capture(capture, "has sha256", "its manifest says", f"make it again with: {COMMAND}")


def test_a_capture_cut_short(capture: Path) -> None:
    capture.write_bytes(capture.read_bytes()[:100])
    refused_capture(capture, "has sha256", COMMAND)


def test_a_capture_whose_words_are_gone(capture: Path) -> None:
    capture.unlink()
    refused_capture(capture, "cannot be read", COMMAND)


def test_integers_that_are_not_there(capture: Path) -> None:
    edit(capture, integers=["delta"])
    refused_capture(capture, "entry delta is not there", "integer array", COMMAND)


def test_a_capture_is_an_npz(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="must end in .npz, not 'c.dat'"):
        load_capture(tmp_path / "c.dat")


def test_a_fact_must_be_said(tmp_path: Path) -> None:
    said = facts()
    del said["driver"]
    with pytest.raises(CaptureError, match="must say driver"):
        save_capture(tmp_path / "c.npz", {"x": (ONE, FP16)}, said)
    assert not os.listdir(tmp_path)
