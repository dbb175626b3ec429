"""Arrays in files: words with their format, and captures (words from a real GPU with a manifest beside them).

Words are stored in an `.npz`, one unsigned integer array NAME for each array, and a string entry `NAME__dtype` that
names its format; float16 and float32 arrays may also be stored as such, then without `NAME__dtype`. A capture is such
an `.npz` and a `.json` manifest beside it with its sha256, where and how it was measured, and free `cells` that say
what the arrays are. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .arch import arch
from .formats import FORMATS, FP16, FP32, Format

__all__ = [
    "FACTS",
    "VERSION",
    "Arrays",
    "Capture",
    "CaptureError",
    "load_arrays",
    "load_capture",
    "save_arrays",
    "save_capture",
    "write_whole",
]

VERSION = 1
# What every manifest says about the measurement; a value nobody knows is null.
FACTS = ("device", "driver", "cuda", "tilelang", "torch", "arch", "command", "date", "seed")
# What a manifest's values may be: a check, and how the error says it.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "sha256": (lambda value: isinstance(value, str), "a string"),
    **dict.fromkeys(FACTS, (lambda value: value is None or isinstance(value, str), "a string or null")),
    "arch": (lambda value: value is None or _is_arch(value), "an architecture that sim models, as sm_90, or null"),
    "seed": (lambda value: value is None or type(value) is int, "an integer or null"),
    "integers": (lambda value: _is_list(value, str), "a list of names"),
    "cells": (lambda value: _is_list(value, dict), "a list of objects"),
}

Arrays = dict[str, tuple[np.ndarray, Format]]
_SUFFIX = "__dtype"
_DAMAGE = (ValueError, OSError, EOFError, KeyError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class CaptureError(ValueError):
    """A file of arrays that cannot be used; the message names the file, what is wrong and what is accepted."""


@dataclass(frozen=True)
class Capture:
    """Words from a real GPU.

    arrays:   name -> (words, format)
    integers: name -> array of plain integers, the ones that the manifest's `integers` names (counts, differences)
    manifest: the JSON object, FACTS and `cells` among it
    """

    arrays: Arrays
    integers: dict[str, np.ndarray] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


def load_arrays(path: str | os.PathLike[str]) -> Arrays:
    """The arrays of an `.npz` file: name -> (words, format). Raises CaptureError.

    float16 and float32 arrays become words too; every other array needs its NAME__dtype entry.
    """
    return _arrays(Path(path), _entries(Path(path)))


def save_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, tuple[np.ndarray, Format]],
    integers: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write an `.npz` of words, and of plain `integers` that only a capture's manifest can declare, in one step.

    The file appears under a temporary name and is renamed when complete; the same arrays give the same bytes. Raises
    CaptureError for words of another width than their format's.
    """
    entries: dict[str, np.ndarray] = dict(integers or {})
    for name, (words, fmt) in arrays.items():
        if np.asarray(words).dtype != fmt.word:
            raise CaptureError(f"{name} must be {fmt.word} words for {fmt.name}, not {np.asarray(words).dtype}")
        entries |= {name: words, name + _SUFFIX: np.array(fmt.name)}
    write_whole(Path(path), lambda stream: _write_npz(stream, entries))


def load_capture(path: str | os.PathLike[str]) -> Capture:
    """The capture in `path` (.npz) and the manifest beside it (.json). Raises CaptureError.

    The sha256 is checked before any array is read; the error of a damaged capture carries the command that makes it
    again.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    again = f"; make it again with: {manifest['command']}" if manifest.get("command") else ""
    try:
        _check_sum(path, manifest["sha256"])
        entries = _entries(path)
        names = manifest.get("integers", [])
        integers = {name: _integer(path, name, entries) for name in names}
        return Capture(_arrays(path, {n: a for n, a in entries.items() if n not in integers}), integers, manifest)
    except CaptureError as error:
        raise CaptureError(f"{error}{again}") from error.__cause__


def save_capture(
    path: str | os.PathLike[str],
    arrays: Mapping[str, tuple[np.ndarray, Format]],
    facts: Mapping[str, Any],
    integers: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a capture: the words to `path` (.npz), the manifest beside it (.json).

    facts: the manifest's FACTS, `cells`, and whatever else says what the arrays are; `version`, `sha256` and `integers`
    are filled in here. Raises CaptureError when a fact is missing.
    """
    path = Path(path)
    manifest_path = _manifest_path(path)
    if missing := [name for name in FACTS if name not in facts]:
        raise CaptureError(f"the manifest of {path} must say {', '.join(missing)} (null when not known)")
    save_arrays(path, arrays, integers)
    manifest: dict[str, Any] = {"version": VERSION, "sha256": _sum(path), **{name: facts[name] for name in FACTS}}
    if integers:
        manifest["integers"] = sorted(integers)
    manifest |= {name: value for name, value in facts.items() if name not in manifest}
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    write_whole(manifest_path, lambda stream: stream.write(text.encode()))


def _manifest_path(path: Path) -> Path:
    if path.suffix != ".npz":
        raise CaptureError(f"a capture's path must end in .npz, not {path.name!r}")
    return path.with_suffix(".json")


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest beside `path`, of a known version and with every fact."""
    manifest_path = _manifest_path(path)
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaptureError(f"{path} has no manifest: a capture needs {manifest_path} beside it") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{manifest_path} is not a readable JSON manifest ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else type(manifest).__name__
        raise CaptureError(f"{manifest_path} has manifest version {found!r}; this program reads version {VERSION}")
    if missing := [name for name in ("sha256", *FACTS) if name not in manifest]:
        raise CaptureError(f"{manifest_path} must say {', '.join(missing)} (null when not known)")
    for name, (fits, kind) in _KINDS.items():
        if name in manifest and not fits(manifest[name]):
            raise CaptureError(f"{manifest_path} must have {kind} as {name}, not {_short(manifest[name])}")
    return manifest


def _is_arch(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(arch(value))
    except ValueError:
        return False


def _is_list(value: Any, of: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, of) for item in value)


def _short(value: Any) -> str:
    """The JSON of a value, its beginning when it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_sum(path: Path, expected: str) -> None:
    try:
        found = _sum(path)
    except OSError as error:
        raise CaptureError(f"{path} cannot be read ({error.strerror})") from error
    if found != expected:
        raise CaptureError(f"{path} has sha256 {found[:16]}..., its manifest says {str(expected)[:16]}...")


def _entries(path: Path) -> dict[str, np.ndarray]:
    """Every array of an `.npz`, unpickling nothing."""
    _check_file(path)
    if not zipfile.is_zipfile(path):
        raise CaptureError(f"{path} is not an .npz file, or is cut short; an .npz of unsigned words is accepted")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: _entry(path, archive, name) for name in archive.files}
    except CaptureError:
        raise
    except _DAMAGE as error:
        raise CaptureError(f"{path} is damaged ({_why(error)}); an .npz of unsigned words is accepted") from error


def _check_file(path: Path) -> None:
    """Raise CaptureError unless there is a file to read."""
    if path.is_dir():
        raise CaptureError(f"{path} is a directory; an .npz file of words is wanted")
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise CaptureError(f"{path} is not there; an .npz file of words is wanted") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} cannot be read ({getattr(error, 'strerror', error)})") from error


def _why(error: BaseException) -> str:
    """What is damaged, on one line; NumPy's advice to unpickle is no advice for words."""
    text = " ".join(str(error).split())
    return "its headers cannot be read" if "pickle" in text or not text else text


def _entry(path: Path, archive: Any, name: str) -> np.ndarray:
    try:
        array = archive[name]
    except ValueError as error:
        if not str(error).startswith("Object arrays"):
            raise
        what = "holds Python objects, which are never read; store unsigned words"
        raise CaptureError(f"{path} entry {name} {what}") from None
    if not isinstance(array, np.ndarray):
        raise CaptureError(f"{path} entry {name} is no array; an .npz of unsigned words is accepted")
    return array


def _arrays(path: Path, entries: Mapping[str, np.ndarray]) -> Arrays:
    names = [name for name in entries if not name.endswith(_SUFFIX)]
    if orphans := [name for name in entries if name.endswith(_SUFFIX) and name[: -len(_SUFFIX)] not in entries]:
        raise CaptureError(f"{path} has {orphans[0]} without the array {orphans[0][: -len(_SUFFIX)]}")
    return {name: _words(path, name, entries) for name in names}


def _words(path: Path, name: str, entries: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Format]:
    """Words and format of one entry."""
    array, said = entries[name], entries.get(name + _SUFFIX)
    own = {"float16": FP16, "float32": FP32}.get(array.dtype.name)
    if said is None and own is None:
        raise CaptureError(
            f"{path} entry {name} is {array.dtype} without an entry {name}{_SUFFIX}; "
            f"store unsigned words and their format's name, one of {', '.join(FORMATS)}"
        )
    fmt = own if said is None else FORMATS.get(str(said))
    if fmt is None:
        raise CaptureError(f"{path} entry {name}{_SUFFIX} is {str(said)!r}; it must be one of {', '.join(FORMATS)}")
    if fmt is own:
        return array.astype(array.dtype.newbyteorder("="), order="C").view(fmt.word), fmt
    if array.dtype.kind != "u" or array.dtype.itemsize != fmt.word.itemsize:
        raise CaptureError(f"{path} entry {name} is {array.dtype}; {fmt.name} words are {fmt.word.name}")
    return array.astype(fmt.word, order="C"), fmt


def _integer(path: Path, name: str, entries: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in entries or entries[name].dtype.kind not in "iu":
        found = entries[name].dtype if name in entries else "not there"
        raise CaptureError(f"{path} entry {name} is {found}; its manifest declares an integer array")
    return entries[name]


def _write_npz(stream: IO[bytes], entries: Mapping[str, np.ndarray]) -> None:
    """An `.npz` of `entries` whose bytes depend on nothing else (no time stamps)."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in entries.items():
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name, then rename it: readers see the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
