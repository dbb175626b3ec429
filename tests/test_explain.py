"""The verb `explain`: what it says of the seed and of other schedules holds against the words themselves."""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explaining import flat, said, told

from crosscheck.cli import main
from crosscheck.explain_causes import Story
from crosscheck.explain_flash import Flash
from crosscheck.explain_html import CLASSES, figure, page
from crosscheck.explain_subject import of_flash
from crosscheck.explain_text import chosen_turns
from crosscheck.explain_timeline import timeline
from sim import Schedule
from sim.captures import load_capture, save_arrays
from sim.formats import FP16, values
from sim.trace import Cause, Place, follow

TESTS = Path(__file__).parent
SEED = load_capture(TESTS / "captures" / "h200" / "seed.npz")
MASKED = ["explain", "--seed-cell", "causal256_128x64/block_max"]
FALLING = ["explain", "--seed-cell", "const3/block_max"]
SMALL = ["--mask", "causal", "--seq", "64", "--dim", "16", "--block-M", "32", "--block-N", "16"]


# the seed


def test_the_masked_key_block_of_the_seed_is_named_as_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = flat(said(capsys, *MASKED))
    assert text.count("thread blocks 0-1: the last key block of each") == 2
    assert (
        "16384 NaN in the 32768 words of Output, rows 0-63 and 128-191: an operand of -inf makes scores_scale +inf"
        in text
    )
    assert text.count("the causal mask hides the whole key block from these rows: all their scores are -inf") == 2
    assert "scores_max_prev = 11.2548 0x413413cf; scores_max = -inf 0xff800000" in text
    assert "acc_s = all 64: -inf 0xff800000, the whole row is masked" in text
    assert "an infinity minus an infinity makes acc_s NaN (mul_sub, 8192 values)" in text


def test_the_causes_of_the_seed_are_kept_apart_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = told(capsys, *MASKED)
    keys = ("kind", "operator", "buffer", "file", "block", "iteration", "rows", "count")
    found = [tuple(cause[key] for key in keys) for cause in data["causes"]]
    for block, rows in ((0, [[0, 63]]), (1, [[128, 191]])):
        place = "flash.py", block, 2 * block + 1, rows
        assert ("minus_inf_operand", "parallel", "scores_scale", *place, 64) in found
        assert ("inf_minus_inf", "parallel", "acc_s", *place, 4096) in found
    assert len(found) == 4 and data["swallowed"] == data["damage"] == []
    assert {cause["operands"][2] for cause in data["causes"]} == {"0xff800000"}


def test_an_overflowed_factor_is_followed_to_the_division(capsys: pytest.CaptureFixture[str]) -> None:
    data = told(capsys, *FALLING, "--at", "0,70,0,3")
    cause = data["causes"][0]
    assert (cause["kind"], cause["function"], cause["operands"]) == ("overflow_exp2", "exp2", ["0x4392e66c"])
    went = [(step["buffer"], step["value"]) for step in cause["carried"]]
    assert went[:5] == [
        ("scores_scale", "+inf"),
        ("logsum", "+inf"),
        ("acc_o", "+inf"),
        ("acc_o", "+inf"),
        ("acc_o", "NaN"),
    ]
    last = {s["buffer"]: s["values"][0]["word"] for s in data["timeline"]["steps"] if s["iteration"] == [1]}
    assert (last["scores_scale"], last["logsum"], last["acc_o"]) == ("0x7f800000",) * 3
    assert data["timeline"]["steps"][-1]["values"][0]["word"] == "0x7fff"


def test_damage_is_told_where_no_value_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    text = flat(said(capsys, "explain", "--seed-cell", "const3/running_max", code=0))
    assert "No bad value reaches an output; damage without one: weights that are all flushed to zero." in text
    assert "exp2(-293.8) = 0" in text and "Causes" not in text


def test_a_key_block_is_masked_only_where_a_row_sees_none_of_its_keys() -> None:
    """Against the mask itself, for a row of each thread block and each key block."""
    own = flash(64, "block_max", True, block_M=32, block_N=16)
    for block, row, turn in np.ndindex(8, 32, 4):
        place = Place("parallel", "acc_s", iteration=(turn,))
        cause = Cause("", "mul_sub", place, block, np.array([[row, 0]]), (32, 16), (), (), 0, "float32")
        query = block // 4 * 32 + row
        assert own.masked(cause) == (not any(query >= key for key in range(turn * 16, turn * 16 + 16)))


# what would change it


def test_what_is_said_to_change_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Each change, asked for as a schedule of its own."""
    changes = {
        each["change"][:4]: each["clean"]
        for each in told(capsys, "explain", "--variant", "block_max", *SMALL)["changes"]
    }
    own = {"keep": [*SMALL], "squa": [*SMALL[:-4], "--block-M", "16", "--block-N", "16", "--variant", "block_max"],
           "prec": [*SMALL, "--no-fast-math", "--variant", "block_max"]}  # fmt: skip
    assert set(changes) == set(own) and set(changes.values()) == {True, False}
    for name, flags in own.items():
        assert main(["explain", *flags]) == (0 if changes[name] else 1), name
    capsys.readouterr()


def test_the_other_order_of_key_blocks_is_tried_on_the_inputs_in_that_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    q, k, v = (SEED.arrays[f"const3__{name}"] for name in "qkv")
    order = np.r_[64:128, 0:64]
    save_arrays(tmp_path / "i.npz", {"q": q, "k": (k[0][:, order], k[1]), "v": (v[0][:, order], v[1])})
    assert {"change": "the key blocks in the other order", "clean": True, "left": []} in told(capsys, *FALLING)[
        "changes"
    ]
    said(capsys, "explain", "--variant", "block_max", "--inputs", str(tmp_path / "i.npz"), code=0)


# the timeline


def flash(seq: int, variant: str, causal: bool, **fields: Any) -> Flash:
    q, k, v = (np.random.default_rng(n).standard_normal((2, seq, 2, 16)).astype(np.float16) for n in range(3))
    words = [(x.view(np.uint16), FP16) for x in (q, k, v)]
    return Flash(Schedule.variant(variant, causal=causal, **fields), "sm_90", *words)


@pytest.mark.parametrize("seq", [64, 70])
def test_a_timeline_ends_in_the_word_of_the_output_and_passes_through_the_row_s_maximum(seq: int) -> None:
    """Ragged tiles too; the maximum and the sum are computed here from the scores that the timeline shows."""
    own = flash(seq, "running_max", True, block_M=32, block_N=16)
    subject, trace = of_flash("", own, "", {}), follow(own.run)
    words = trace.outputs["Output"][0]
    for index in np.random.default_rng(seq).integers((2, seq, 2, 16), size=(6, 4)).tolist():
        found = timeline(subject, trace, ("Output", tuple(index)))
        assert found is not None and found.maker.element == (index[1] % 32, index[3])
        assert int(words[tuple(index)]) in {each.word for each in found.steps[-1].shown}
        turns = -(-min(index[1] // 32 * 32 + 32, seq) // 16)
        assert {s.place.iteration for s in found.steps} == {(), *((k,) for k in range(turns))}
        q, k = (values(x[0], FP16)[index[0], :, index[2]] for x in (own.q, own.k))
        seen = [s.shown[0].value for s in found.steps if s.place.buffer == "scores_max"]
        np.testing.assert_allclose(seen[-1], (q[index[1]] @ k[: index[1] + 1].T).max(), rtol=1e-3)


def test_of_many_turns_the_first_bad_one_and_the_ends_are_shown() -> None:
    bad = [n >= 9 for n in range(40)]
    assert chosen_turns(bad) == [0, 1, 8, 9, 38, 39] and chosen_turns(bad[:6]) == list(range(6))


# pages and windows


class Reader(HTMLParser):
    """The pictures and the text of a page; whatever could load or run something is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[dict[str, Any]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        assert tag not in ("script", "link", "iframe", "object") and "href" not in given
        assert not any(name.startswith("on") for name in given)
        if tag == "img":
            assert given["src"].startswith("data:image/png;base64,")
            self.pictures.append(given)

    def handle_data(self, data: str) -> None:
        self.text += data


def pixels(source: str) -> np.ndarray:
    """The colours of a PNG with a palette, [rows, columns, 3]."""
    data, at, chunks = b64decode(source.partition(",")[2]), 8, {}
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        chunks[kind] = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + chunks[kind]) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        at += 12 + length
    wide, high = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(high, 1 + wide)
    assert not lines[:, 0].any()
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[lines[:, 1:]]


def test_a_page_shows_every_bad_word_without_scripts_and_without_a_net() -> None:
    own = flash(48, "block_max", True, block_M=32, block_N=16)
    subject, trace = of_flash("block_max", own, "", {}), follow(own.run)
    text = page(Story(subject, trace, []), None)
    reader = Reader()
    reader.feed(text)
    assert not re.search(r"https?:|@import|url\(", text)
    words, fmt = trace.outputs["Output"]
    (picture,) = reader.pictures  # all heads are alike
    assert "Output, batch 0, head 0 and 3 more alike" in reader.text and "NaN" in picture["alt"]
    colours = pixels(picture["src"])
    nan = fmt.is_nan(words)[0, :, 0]
    assert nan.any() and not nan.all()
    np.testing.assert_array_equal((colours == colours[0, 0]).all(axis=2), nan == nan[0, 0])


def test_a_picture_of_a_great_output_loses_no_bad_word() -> None:
    plane = np.zeros((3000, 900), np.uint8)
    plane[1234, 567] = list(CLASSES).index("NaN")
    reader = Reader()
    reader.feed(figure("Output", plane))
    colours = pixels(reader.pictures[0]["src"])
    assert max(colours.shape) <= 384 and ((colours != colours[0, 0]).any(axis=2)).sum() == 1
    assert "2699999 finite and 1 NaN" in reader.text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_wider_than_the_window(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for argv in (MASKED, FALLING, ["explain", "--inputs", "special", "--heads", "2", *SMALL]):
        text = said(capsys, *argv)
        assert max(map(len, text.splitlines())) <= width and "\x1b" not in text


def test_a_page_is_written_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, *FALLING, "--html", str(tmp_path / "a.html"))
    before = (tmp_path / "a.html").read_text()
    assert before.startswith("<!doctype html>") and before.endswith("</html>\n")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main([*MASKED, "--html", str(tmp_path / "a.html")]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "a.html").read_text() == before and len(list(tmp_path.iterdir())) == 1


MISTAKES = [
    ("--seed-cell const3", "--seed-cell must be CASE/VARIANT with CASE causal256_128x64, const0.05 or const3, and"),
    ("--seed-cell const3/max", "--seed-cell must be CASE/VARIANT with CASE"),
    ("--seed-cell const3/block_max --seq 64", "--seq is fixed by --seed-cell (--arch is free)"),
    (
        "--seed-cell const3/block_max --at 0,0,0",
        "--at must be 4 numbers, an index of Output [1, 128, 1, 128], not '0,0,0'",
    ),
    ("--seed-cell const3/block_max --at 0,128,0,0", "--at must be 4 numbers, an index of Output [1, 128, 1, 128], not"),
    ("--seed-cell const3/block_max --at Y:0", "--at must name an output, Output, not 'Y'"),
    ("--html page.txt", "--html must be the name of a .html file, not 'page.txt'"),
    ("--html no/page.html", "--html no/page.html cannot be written: there is no folder no"),
    ("--args 3", "--args is of a kernel: give FILE.py:FUNCTION too"),
    ("--blocks 0", "--blocks is of a kernel: give FILE.py:FUNCTION too"),
    ("k.py:f --seed-cell const3/block_max", "--seed-cell is of the seed's table, and k.py:f is a kernel of its own"),
    ("k.py:f --block-M 64", "--block-M is of the flash loop, and k.py:f is a kernel of its own"),
    ("--inputs const:x", "--inputs const:C must have a finite number C, not 'x'"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_mistakes(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"crosscheck explain: {message}") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces, in order; `...` stands for what is left out between them."""
    monkeypatch.setenv("COLUMNS", "116")
    section = (TESTS.parent / "README.md").read_text().split("## Where a NaN comes from\n")[1].split("\n## ")[0]
    command, *lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    assert command.startswith("$ python -m crosscheck explain ")
    text, at = said(capsys, *command.split()[4:]), 0
    for piece in "\n".join(lines).removesuffix("\n...").split("\n...\n"):
        assert piece in text[at:], piece
        at = text.index(piece, at) + len(piece)
