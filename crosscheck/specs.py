"""What a tensor of any kernel holds, by a SPEC: the same words on every machine.

normal, uniform, large, tiny and special are random floats; zeros, ones, value:X, range and randint:LO:HI are for floats
and integers; @file.npy and @file.npz:KEY read a file. Random bits are made as in `crosscheck.inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sim.arith import convert
from sim.formats import FP16, FP32, DType, Format, Integer, values

from .inputs import bits_of, normal_array, rounded, tiny_array, uniform16
from .text import list_of

__all__ = ["RANDOM", "SPECS", "fill"]

Shape = tuple[int, ...]


def fill(spec: str, shape: Shape, dtype: DType, seed: int, stream: int) -> np.ndarray:
    """Words of `dtype`. stream: the tensor's number, so that tensors of one seed differ. Raises ValueError."""
    if spec.startswith("@"):
        return _from_file(spec[1:], shape, dtype)
    name, _, rest = spec.partition(":")
    if name not in SPECS or bool(rest) != (name in ("value", "randint")):
        names = list_of([*(_USAGE.get(name, name) for name in SPECS), "@file.npy", "@file.npz:KEY"], "or")
        raise ValueError(f"must be {names}, not {spec!r}")
    if isinstance(dtype, Integer) and name in RANDOM_FLOATS:
        raise ValueError(f"is {dtype.name}, and {name} makes floats: give zeros, ones, value:N, range or randint:LO:HI")
    return SPECS[name](shape, dtype, seed, stream, rest)


def _normal(shape: Shape, fmt: Format, seed: int, stream: int, _: str) -> np.ndarray:
    """About normal with unit variance."""
    return normal_array(shape, fmt, seed, stream)


def _large(shape: Shape, fmt: Format, seed: int, stream: int, _: str) -> np.ndarray:
    """About normal, 16 times as large."""
    return normal_array(shape, fmt, seed, stream, exponent=4)


def _tiny(shape: Shape, fmt: Format, seed: int, stream: int, _: str) -> np.ndarray:
    """Subnormal and small values."""
    return tiny_array(shape, fmt, seed, stream)


def _uniform(shape: Shape, fmt: Format, seed: int, stream: int, _: str) -> np.ndarray:
    """[0, 1) in steps of 2**-16."""
    integers = uniform16(bits_of(seed, stream), math.prod(shape))
    return rounded(integers.astype(np.float32), -16, fmt).reshape(shape)


def _special(shape: Shape, fmt: Format, seed: int, stream: int, _: str) -> np.ndarray:
    """Normal with four -0 and then four infinities or NaNs at random places, fewer in a small tensor."""
    words = normal_array(shape, fmt, seed, stream)
    flat = words.reshape(-1)
    bad = [fmt.nan, fmt.nan | fmt.sign] + ([fmt.inf, fmt.inf | fmt.sign, fmt.inf | 1] if fmt.infinities else [])
    for n, draw in enumerate(bits_of(seed, (1 << 16) + stream).random_raw(min(8, flat.size)).tolist()):
        flat[draw % flat.size] = fmt.sign if n < 4 else bad[(draw >> 40) % len(bad)]
    return words


def _value(shape: Shape, dtype: DType, seed: int, stream: int, text: str) -> np.ndarray:
    """Everywhere the number X, rounded once to float32 and once to the format, as a constant in a kernel is."""
    return np.full(shape, _word(text, dtype), dtype.word)


def _zeros(shape: Shape, dtype: DType, seed: int, stream: int, _: str) -> np.ndarray:
    return np.zeros(shape, dtype.word)


def _ones(shape: Shape, dtype: DType, seed: int, stream: int, _: str) -> np.ndarray:
    return _value(shape, dtype, seed, stream, "1")


def _range(shape: Shape, dtype: DType, seed: int, stream: int, _: str) -> np.ndarray:
    """0, 1, 2, ... in the order of memory."""
    return _numbers(np.arange(math.prod(shape), dtype=np.int64), dtype, "range").reshape(shape)


def _randint(shape: Shape, dtype: DType, seed: int, stream: int, rest: str) -> np.ndarray:
    """Integers from LO to HI - 1."""
    try:
        low, high = (int(each) for each in rest.split(":"))
        if not low < high <= low + 2**32:
            raise ValueError
    except ValueError:
        raise ValueError(f"randint:LO:HI needs integers LO < HI, not {rest!r}") from None
    size = math.prod(shape)
    raw = np.atleast_1d(bits_of(seed, stream).random_raw(size)) if size else np.zeros(0, np.uint64)
    return _numbers((raw >> np.uint64(32)).astype(np.int64) * (high - low) // 2**32 + low, dtype, rest).reshape(shape)


SPECS: dict[str, Callable[[Shape, DType, int, int, str], np.ndarray]] = {
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "tiny": _tiny,
    "special": _special,
    "zeros": _zeros,
    "ones": _ones,
    "value": _value,
    "range": _range,
    "randint": _randint,
}
RANDOM_FLOATS = ("normal", "uniform", "large", "tiny", "special")
RANDOM = (*RANDOM_FLOATS, "randint")
_USAGE = {"value": "value:X", "randint": "randint:LO:HI"}


def _word(text: str, dtype: DType) -> int:
    """The word of a number."""
    if isinstance(dtype, Integer):
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"is {dtype.name}, and value:X needs an integer X, not {text!r}") from None
        return int(_numbers(np.array([number], object), dtype, f"value:{text}")[0])
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"value:X needs a number X, inf, -inf or nan, not {text!r}") from None
    if math.isnan(value):
        return int(dtype.nan)
    if math.isinf(value) and dtype.infinities:
        return int(dtype.inf | (dtype.sign if value < 0 else 0))
    largest = float(values(np.array(dtype.max_finite, dtype.word), dtype))
    if abs(value) > largest:
        raise ValueError(f"value:{text} must be at most {largest:.9g} in {dtype.name}")
    return int(convert(np.array([value], np.float32).view(np.uint32), FP32, dtype)[0])


def _numbers(numbers: np.ndarray, dtype: DType, what: str) -> np.ndarray:
    """Words of integers. Raises ValueError unless an integer dtype holds them; a float rounds them."""
    if not isinstance(dtype, Integer):
        return rounded(numbers.astype(np.float32), 0, dtype)
    if dtype.name == "bool":
        low, high = 0, 1
    else:
        limits = np.iinfo(dtype.value_type)
        low, high = int(limits.min), int(limits.max)
    if numbers.size and not low <= int(numbers.min()) <= int(numbers.max()) <= high:
        raise ValueError(f"{what} must stay in {dtype.name}'s range, {low} to {high}")
    return numbers.astype(dtype.value_type).view(dtype.word)


def _from_file(name: str, shape: Shape, dtype: DType) -> np.ndarray:
    """The words of a file's array, of this very shape and dtype."""
    path, colon, key = name.partition(".npz:")
    if colon:
        words = _from_npz(Path(path + ".npz"), key, dtype)
    elif name.endswith(".npy"):
        words = _as_words(_loaded(Path(name)), name, dtype)
    else:
        raise ValueError(f"must be @file.npy or @file.npz:KEY, not '@{name}'")
    if words.shape != shape:
        raise ValueError(f"must have shape {list(shape)}, and {name} has {list(words.shape)}")
    return words


def _from_npz(path: Path, key: str, dtype: DType) -> np.ndarray:
    """An entry of an .npz, words with their format (`sim.captures`) or a plain array."""
    archive = _loaded(path)
    if key not in archive:
        raise ValueError(f"needs an array {key}, and {path} has {list_of(sorted(archive)) if archive else 'none'}")
    if f"{key}__dtype" in archive:
        words, named = archive[key], str(archive[f"{key}__dtype"])
        if named != dtype.name or words.dtype != dtype.word:
            raise ValueError(f"must be {dtype.name}, and {path}:{key} is {named} in {words.dtype}")
        return words
    return _as_words(archive[key], f"{path}:{key}", dtype)


def _loaded(path: Path) -> Any:
    """The array of an .npy, or those of an .npz by name; nothing is unpickled."""
    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ValueError(f"needs {path}, which is not there") from None
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"needs {path}, which cannot be read ({error})") from error


def _as_words(array: np.ndarray, name: str, dtype: DType) -> np.ndarray:
    """Words of an array whose dtype is the tensor's; unsigned integers of its width are words of a float format."""
    if isinstance(dtype, Integer):
        if array.dtype.kind not in "iub":
            raise ValueError(f"must be {dtype.name}, and {name} is {array.dtype}")
        return _numbers(array.astype(np.int64), dtype, name)
    own = {FP16: np.float16, FP32: np.float32}.get(dtype)
    if array.dtype == own or array.dtype == dtype.word:
        return np.ascontiguousarray(array).view(dtype.word)
    raise ValueError(f"must be {dtype.name} or its words as {dtype.word}, and {name} is {array.dtype}")
