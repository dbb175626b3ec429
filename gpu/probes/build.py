"""Compile scalar.cu and tensor.cu with nvcc and call them through ctypes: words in, words out, host arrays."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

__all__ = ["LIBRARIES", "NoLibrary", "compile_all", "scalar", "scalar_range", "tensor", "use"]

HERE = Path(__file__).resolve().parent
FLAGS = [
    "-gencode",
    "arch=compute_90a,code=sm_90a",
    "-O3",
    "-std=c++17",
    "-shared",
    "-Xcompiler",
    "-fPIC,-fno-gnu-unique",
]
FLAGS += ["-Xlinker", "-Bsymbolic"]  # two compilations of one source in one process
LIBRARIES = {
    "precise": ["scalar.cu"],
    "fast": ["scalar.cu", "-use_fast_math"],
    "tensor": ["tensor.cu"],
}
_directory = Path()


class NoLibrary(RuntimeError):
    """A library was not compiled, or a call into it failed; the message has the reason."""


def compile_all(directory: Path) -> dict[str, str]:
    """Compile what is missing in `directory`. For each library: what the compiler said if it failed, else ""."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    running = {}
    for name, (source, *options) in LIBRARIES.items():
        target = directory / f"{name}.so"
        if target.exists() and target.stat().st_mtime > (HERE / source).stat().st_mtime:
            continue
        command = [nvcc, *FLAGS, *options, str(HERE / source), "-o", str(target)]
        try:
            running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            return dict.fromkeys(LIBRARIES, f"{nvcc}: {error}")
    said = {name: process.communicate()[0] for name, process in running.items()}
    return {
        name: "" if name not in running or running[name].returncode == 0 else said[name][-2000:] for name in LIBRARIES
    }


def use(directory: Path) -> None:
    """Take the libraries from `directory` in this process."""
    global _directory
    _directory = directory


@cache
def _load(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(_directory / f"{name}.so"))
    except OSError as error:
        raise NoLibrary(f"{name}: {error}") from error
    library.message.restype = ctypes.c_char_p
    return library


def _checked(library: ctypes.CDLL, status: int, entry: str) -> None:
    if status:
        raise NoLibrary(f"{entry}: {library.message(status).decode()}")


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def scalar(library: str, entry: str, *operands: np.ndarray) -> np.ndarray:
    """`entry` of scalar.cu on flat uint32 operands of one length."""
    arrays = [np.ascontiguousarray(x, np.uint32) for x in operands]
    out = np.empty(arrays[0].size, np.uint32)
    pointers = [_pointer(x) for x in (*arrays, None, None)[:3]]
    loaded = _load(library)
    _checked(loaded, loaded.run(entry.encode(), *pointers, _pointer(out), ctypes.c_size_t(out.size)), entry)
    return out


def scalar_range(library: str, entry: str, first: int, count: int) -> np.ndarray:
    """`entry` of scalar.cu on the words first, first + 1, ..."""
    out = np.empty(count, np.uint32)
    loaded = _load(library)
    status = loaded.run_range(entry.encode(), ctypes.c_uint32(first), _pointer(out), ctypes.c_size_t(count))
    _checked(loaded, status, entry)
    return out


def tensor(
    entry: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, flags: int = 0, offsets: tuple[int, int] = (128, 256)
) -> np.ndarray:
    """`entry` of tensor.cu: a [tiles, M, K], b [tiles, N, K], c [tiles, M, N] words with the instruction's M and N.

    flags: 1 drops c in the first step, 2 takes a from registers (wgmma); offsets: leading and stride bytes of the
    shared-memory descriptor. Returns d like c.
    """
    a, b, c = (np.ascontiguousarray(x) for x in (a, b, c))
    out = np.empty_like(c)
    loaded = _load("tensor")
    steps = a.shape[-1] * a.itemsize // 32
    status = loaded.run(entry.encode(), *(_pointer(x) for x in (a, b, c, out)), len(a), steps, flags, *offsets)
    _checked(loaded, status, entry)
    return out
