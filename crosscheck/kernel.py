"""A TileLang kernel of a user's file: found by name, built with its arguments, its parameters told apart."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sim.formats import DType, Integer, dtype_named

from .flags import UsageError
from .text import list_of

__all__ = ["Kernel", "Parameter", "Target", "arguments_of", "load", "target"]

FAST_MATH = "tl.enable_fast_math"
# Flags of nvcc that say the same as FAST_MATH, and those that change arithmetic in ways that nothing here models.
FAST_FLAGS = ("use_fast_math",)
OTHER_ARITHMETIC = ("fmad", "ftz", "prec-div", "prec-sqrt")


@dataclass(frozen=True)
class Target:
    """FILE.py:FUNCTION as it was written."""

    file: Path
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"


def target(text: str) -> Target:
    """The target of an argument. Raises UsageError."""
    file, _, function = text.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise UsageError(f"KERNEL must be FILE.py:FUNCTION, not {text!r}")
    return Target(Path(file), function)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the PrimFunc.

    shape: of a tensor; None for a scalar
    use:   in, out (nothing reads it, or the call makes it), in/out
    """

    number: int
    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    use: str

    @property
    def integer(self) -> bool:
        return isinstance(self.dtype, Integer)

    def to_json(self) -> dict[str, Any]:
        """The parameter as JSON types."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "dtype": self.dtype.name, "shape": shape, "use": self.use}


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc and how TileLang is to compile it.

    name:         the PrimFunc's own
    made:         the numbers of the parameters that the call makes (out_idx)
    pass_configs: of the kernel and of the command line together, by their full names
    """

    target: Target
    name: str
    prim_func: Any
    made: tuple[int, ...]
    pass_configs: dict[str, Any]
    compile_flags: tuple[str, ...]

    def parameters(self, sizes: dict[str, int]) -> list[Parameter]:
        """Every parameter, its symbolic sizes replaced. Raises UsageError that lists the sizes that are missing."""
        pf = self.prim_func
        symbols = _symbols(pf)
        if unknown := [name for name in sizes if name not in symbols]:
            have = f"whose symbolic sizes are {list_of(sorted(symbols))}" if symbols else "which has no symbolic size"
            raise UsageError(f"--size {unknown[0]} is no size of {self.target.function}, {have}")
        if missing := [name for name in sorted(symbols) if name not in sizes]:
            raise UsageError(f"--size must give {list_of([f'{n}=N' for n in missing])}: a symbolic size has no default")
        read, written = accesses(pf)
        return [self._parameter(i, p, sizes, read, written) for i, p in enumerate(pf.params)]

    def _parameter(self, i: int, p: Any, sizes: dict[str, int], read: set[int], written: set[int]) -> Parameter:
        use = "in" if i not in written else "in/out" if i in read else "out"
        if p not in self.prim_func.buffer_map:
            return Parameter(i, str(p.name), self._dtype(p), None, "in")
        buffer = self.prim_func.buffer_map[p]
        shape = tuple(_evaluated(extent, sizes) for extent in buffer.shape)
        return Parameter(i, str(buffer.name), self._dtype(buffer), shape, "out" if i in self.made else use)

    @staticmethod
    def _dtype(parameter: Any) -> DType:
        try:
            return dtype_named(str(parameter.dtype))
        except ValueError as error:
            raise UsageError(
                f"parameter {parameter.name} has {parameter.dtype}, which is not modelled: {error}"
            ) from error


def load(found: Target, arguments: str, sizes: dict[str, int], pass_configs: dict[str, Any]) -> Kernel:
    """The kernel of a target, built with `arguments` (the inside of a call, in Python literals).

    sizes: of an eager kernel's T.const, by name; they are removed from it. Raises UsageError.
    """
    args, kwargs = arguments_of(arguments)
    with _quiet():
        _need_tilelang()
        module = _module(found)
        _check_configs(pass_configs)
        given = dict(sizes)
        built = _build(found, _function(found, module), args, kwargs, sizes)
    kernel = _kernel(found, *built, pass_configs)
    _check_sizes(kernel, arguments, given, sizes)
    return kernel


def _check_configs(configs: dict[str, Any]) -> None:
    """Raise UsageError for a pass configuration that TileLang does not have, or of another type than its own."""
    from tilelang import tvm

    for key, value in configs.items():
        try:
            with tvm.transform.PassContext(config={key: value}):
                pass
        except Exception as error:
            said, unknown, names = str(error).partition("candidates are:")
            if not unknown:
                raise UsageError(f"--pass-config {key}={value!r}: {' '.join(said.split())}") from error
            keys = [name.strip() for name in names.split(",")]
            close = [k for k in keys if k.endswith(f".{key}")] or difflib.get_close_matches(key, keys, 1)
            hint = f"; it has {close[0]}" if close else ", like tl.enable_fast_math=True"
            raise UsageError(f"--pass-config {key} must be a key of TileLang's{hint}") from error


def _check_sizes(kernel: Kernel, arguments: str, given: dict[str, int], left: dict[str, int]) -> None:
    """Raise UsageError that names the argument which makes a tensor empty; left: the sizes that are symbolic."""
    for buffer in kernel.prim_func.buffer_map.values():
        for extent in buffer.shape:
            names = _names(extent) & set(left)
            if type(extent).__name__ == "IntImm" and int(extent) < 1:
                zero = [f"--size {n}={size}" for n, size in given.items() if size == int(extent)]
                flag = zero[0] if zero else f"--args {arguments}" if arguments else f"KERNEL {kernel.target}"
            elif empty := [n for n in sorted(names) if left[n] < 1]:
                flag = f"--size {empty[0]}={left[empty[0]]}"
            else:
                continue
            shape = [left.get(str(e.name), str(e.name)) if hasattr(e, "name") else e for e in buffer.shape]
            shown = ", ".join(str(each) for each in shape)
            raise UsageError(f"{flag} makes {buffer.name} [{shown}]: every size of a tensor must be at least 1")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What a user's file prints goes to stderr, and TileLang's log nowhere: the sentence says what went wrong."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(level)


def _need_tilelang() -> None:
    from gpu.launch import TILELANG

    try:
        import tilelang
    except ImportError as error:
        raise UsageError(f"KERNEL needs TileLang: pip install tilelang=={TILELANG}") from error
    if tilelang.__version__ != TILELANG:
        raise UsageError(f"KERNEL needs TileLang {TILELANG}, and {tilelang.__version__} is installed")


def arguments_of(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and those by name."""
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in kwargs:
            raise ValueError
        return tuple(ast.literal_eval(each) for each in call.args), {str(k): v for k, v in kwargs.items()}
    except (ValueError, SyntaxError) as error:
        raise UsageError(f"--args must be Python literals as in a call, like 64, causal=True, not {text!r}") from error


def _module(found: Target) -> Any:
    """The user's file, imported; its own folder can be imported from, as when it is run."""
    if not found.file.is_file():
        raise UsageError(f"KERNEL {found.file} is not there")
    sys.path.insert(0, str(found.file.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"_kernel_of_{found.file.stem}", found.file.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _blaming(found, f"KERNEL {found.file} cannot be loaded"):
        spec.loader.exec_module(module)
    return module


def _function(found: Target, module: Any) -> Any:
    """What the file calls FUNCTION."""
    if hasattr(module, found.function):
        return getattr(module, found.function)
    names = [n for n, v in vars(module).items() if _is_kernel(v) or (_is_plain(v) and v.__module__ == module.__name__)]
    have = f"it has {list_of(names)}" if names else "it has no function at all"
    raise UsageError(f"KERNEL {found.file} has no {found.function}: {have}")


def _is_kernel(value: Any) -> bool:
    of_jit = any(hasattr(value, name) for name in ("get_tir", "jit_impl", "prim_func"))
    return type(value).__name__ == "PrimFunc" or (of_jit and not isinstance(value, ModuleType))


def _is_plain(value: Any) -> bool:
    return type(value).__name__ == "function"


Built = tuple[Any, Any, Any, Any]  # PrimFunc, out_idx, pass_configs, compile_flags


def _build(found: Target, value: Any, args: tuple, kwargs: dict, sizes: dict[str, int]) -> Built:
    """The PrimFunc of a jit function, a PrimFunc, a compiled kernel, or a function that returns one of these."""
    value = getattr(value, "jit_impl", value)
    if hasattr(value, "get_tir"):
        pf = _prim_func_of_jit(found, value, args, kwargs, sizes)
        return pf, value.out_idx, value.pass_configs, value.compile_flags
    if _is_plain(value):
        with _blaming(found, f"{found.function} gives no kernel", _signature(found, value)):
            value = value(*args, **kwargs)
        if not _is_kernel(value):
            raise UsageError(f"{_no_kernel(found)}: it returns {_kind(value)}")
        return _build(found, value, (), {}, sizes)
    if not _is_kernel(value):
        raise UsageError(f"{_no_kernel(found)}: it is {_kind(value)}")
    if args or kwargs:
        raise UsageError(f"--args are a builder's arguments, and {found.function} is a PrimFunc, which takes none")
    if type(value).__name__ == "PrimFunc":
        return value, None, None, None
    return value.prim_func, value.out_idx, value.pass_configs, value.compile_flags


def _no_kernel(found: Target) -> str:
    accepted = "a @tilelang.jit function, a PrimFunc or a function that returns one"
    return f"KERNEL {found} must be {accepted}"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _signature(found: Target, value: Any) -> str:
    import inspect

    parameters = (getattr(value, "signature", None) or inspect.signature(value)).parameters.values()
    names = [p.name if p.default is p.empty else f"{p.name}=..." for p in parameters]
    return f"--args do not fit {found.function}({', '.join(names)})"


def _prim_func_of_jit(found: Target, jit: Any, args: tuple, kwargs: dict, sizes: dict[str, int]) -> Any:
    """The PrimFunc of a @tilelang.jit function; the constants of an eager one are in `kwargs` or taken from `sizes`."""
    with _blaming(found, f"{found.function} gives no PrimFunc", _signature(found, jit)):
        try:
            return jit.get_tir(*args, **kwargs)
        except ValueError as error:
            if "constexpr variable" not in str(error):
                raise
    names = {name for each in jit.func.p1_cache.values() for *_, name in (each.matcher or {}).values()} - {*kwargs}
    if missing := sorted(names - {*sizes}):
        raise UsageError(f"--size must give {list_of([f'{name}=N' for name in missing])}: {found.function}'s T.const")
    kwargs = kwargs | {name: sizes.pop(name) for name in sorted(names)}
    with _blaming(found, f"{found.function} gives no PrimFunc", _signature(found, jit)):
        return jit.get_tir(*args, **kwargs)


@contextlib.contextmanager
def _blaming(found: Target, what: str, otherwise: str = "") -> Iterator[None]:
    """A UsageError for whatever the user's code raises: `what`, the reason, the line of the user's file.

    otherwise: what is said instead when no line of the user's file takes part.
    """
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        line = _line(error, found.file)
        reason = " ".join(str(getattr(error, "msg", error)).split())
        reason = reason if len(reason) <= 300 else reason[:297] + "..."
        said = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        if line is None:
            raise UsageError(f"{otherwise or what}: {reason or said}") from error
        raise UsageError(f"{what}: {said} ({found.file}:{line})") from error


def _line(error: BaseException, file: Path) -> int | None:
    """The last line of the user's file on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == file.resolve():
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    return lines[-1] if lines else None


def _kernel(found: Target, pf: Any, out_idx: Any, configs: Any, flags: Any, given: dict[str, Any]) -> Kernel:
    """The kernel with what its attributes and its decorator say."""
    attrs = dict(pf.attrs or {})
    count = len(pf.params)
    marked = attrs.get("tilelang_out_idx", out_idx)
    made = [int(marked)] if isinstance(marked, int) else [int(i) for i in marked or ()]
    names = {str(getattr(k, "value", k)): v for k, v in (configs or {}).items()}
    own = {str(getattr(k, "value", k)): _plain(v) for k, v in dict(attrs.get("tilelang_pass_configs", {})).items()}
    listed = [flags] if isinstance(flags, str) else list(flags or ())
    compile_flags = (*map(str, attrs.get("tilelang_compile_flags", ())), *listed)
    merged = own | names | _fast(compile_flags) | given
    name = str(attrs.get("global_symbol", found.function))
    return Kernel(found, name, pf, tuple(sorted({(i + count) % count for i in made})), merged, compile_flags)


def _plain(value: Any) -> Any:
    """A Python value of an attribute's."""
    return getattr(value, "value", value)


def _fast(flags: tuple[str, ...]) -> dict[str, bool]:
    """What compile flags say of arithmetic. Raises UsageError for what is not modelled."""
    bare = [flag.lstrip("-").partition("=")[0] for flag in " ".join(flags).split()]
    for flag in bare:
        if flag in OTHER_ARITHMETIC:
            raise UsageError(f"the compile flag --{flag} changes arithmetic in a way that is not modelled")
    return {FAST_MATH: True} if any(flag in FAST_FLAGS for flag in bare) else {}


def _symbols(pf: Any) -> set[str]:
    """The names of the variables in the shapes of a PrimFunc's tensors."""
    extents = [extent for buffer in pf.buffer_map.values() for extent in buffer.shape]
    return {name for extent in extents for name in _names(extent)} - {str(p.name) for p in pf.params}


def _names(extent: Any) -> set[str]:
    """The names of the variables in an extent."""
    from tvm.tirx import stmt_functor

    names: set[str] = set()
    stmt_functor.post_order_visit(extent, lambda n: names.add(str(n.name)) if type(n).__name__ == "Var" else None)
    return names


def _evaluated(extent: Any, sizes: dict[str, int]) -> int:
    from tilelang import tvm

    replaced: dict[Any, Any] = {}

    def note(node: Any) -> None:
        if type(node).__name__ == "Var":
            replaced[node] = tvm.tirx.IntImm(node.dtype, sizes[str(node.name)])

    tvm.tirx.stmt_functor.post_order_visit(extent, note)
    found = tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(extent, replaced)) if replaced else extent
    return int(found)


# Calls that name an element or a region, and how each says what is done there: 1 read, 2 write.
MASKS: dict[str, Callable[[Any], int]] = {
    "tl.region": lambda call: int(call.args[1]),
    "tl.access_ptr": lambda call: int(call.args[-1]),
    "tirx.address_of": lambda call: 3,
}


def accesses(pf: Any) -> tuple[set[int], set[int]]:
    """The numbers of the tensors that a PrimFunc reads, and of those that it writes."""
    from tvm.tirx import stmt_functor

    read: set[Any] = set()
    written: set[Any] = set()
    named: set[Any] = set()

    def note_mask(node: Any) -> None:
        if type(node).__name__ == "BufferStore":
            written.add(node.buffer.data)
        name = getattr(getattr(node, "op", None), "name", "")
        if name.startswith("tl.tileop.atomic"):  # its region says that it writes only
            read.update(each.args[0].buffer.data for each in node.args if hasattr(each, "args") and each.args)
        mask = MASKS.get(name)
        if mask and type(node.args[0]).__name__ == "BufferLoad":
            named.add(node.args[0])
            for bit, those in ((1, read), (2, written)):
                if mask(node) & bit:
                    those.add(node.args[0].buffer.data)

    def note_load(node: Any) -> None:
        if type(node).__name__ == "BufferLoad" and node not in named:
            read.add(node.buffer.data)

    stmt_functor.post_order_visit(pf.body, note_mask)
    stmt_functor.post_order_visit(pf.body, note_load)
    tensors = {i: pf.buffer_map[p].data for i, p in enumerate(pf.params) if p in pf.buffer_map}
    return {i for i, data in tensors.items() if data in read}, {i for i, data in tensors.items() if data in written}
