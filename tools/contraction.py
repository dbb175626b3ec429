"""Hold the rule by which products are fused against compiled code, on a machine without a GPU.

    python tools/contraction.py ours[:NAME] | FILE.py:FUNCTION | CORPUS/NNN.json ... [--math fast|precise|both|own]
                                [--loops]

The kernel is compiled as TileLang compiles it, and its SASS is read as terms: fma(x, y, mul(z, 0.5)). The simulator
runs the same PrimFunc on terms instead of words. Both give a set of shapes: every fma, mul and add with what its
operands are (another of these, a constant, or anything else). Unrolling, replication over threads and sharing change
how often a shape occurs, not the set. A line for each kernel: held, differs (with the shapes that one side lacks) or
not held (why). FUNCTION makes a PrimFunc. --loops also prints how many arithmetic instructions
stand in each innermost loop of the SASS.

Exit codes: 0 no kernel differs, 1 one does, 2 bad usage, 3 nothing could be compared (nvcc or nvdisasm is missing).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sim.formats import FP32, Format
from sim.machine import Exact
from sim.primfunc.lowering import held_record

FAST = "tl.enable_fast_math"
ARITHMETIC = ("fma", "mul", "add")
FUNCTIONS = {  # a one-line kernel for each function that CUDA expands into arithmetic
    "div": "a[i] / b[i]", "div3": "a[i] / 3.0f", "rdiv": "3.0f / a[i]", "rcp": "1.0f / a[i]", "exp2": "exp2f(a[i])",
    "exp": "expf(a[i])", "log2": "log2f(a[i])", "log": "logf(a[i])", "rsqrt": "rsqrtf(a[i])", "sqrt": "sqrtf(a[i])",
    "tanh": "tanhf(a[i])", "floor": "floorf(a[i])", "neg": "-a[i]",
}  # fmt: skip


class Terms:
    """Expressions by number, equal ones once: (operation, operands...). Number 0 is the constant zero."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.constant(0.0)

    def term(self, operation: str, *operands: Any) -> int:
        node = (operation, *operands)
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def constant(self, value: float) -> int:
        with np.errstate(over="ignore"):
            return self.term("const", int(np.float32(value).view(np.uint32)) & 0x7FFFFFFF)

    def minus(self, x: int) -> int:
        """-x; signs of constants are dropped."""
        node = self.nodes[x]
        if node[0] == "const":
            return x
        return int(node[1]) if node[0] == "neg" else self.term("neg", x)

    def absolute(self, x: int) -> int:
        while self.nodes[x][0] == "neg":
            x = self.nodes[x][1]
        return x

    def text(self, x: int, deep: int = 99) -> str:
        """A term as text, commuted to one order: fma(a, b, -mul(c, d))."""
        name, *operands = self.nodes[x]
        if name == "neg":
            return "-" + self.text(operands[0], deep)
        if name == "const":
            return f"{np.uint32(operands[0]).view(np.float32):.9g}"
        if name == "leaf":
            return str(operands[0])
        if deep == 0:
            return name if name in ARITHMETIC else "x"
        if name == "add" and operands[0] == operands[1]:  # a doubling
            name, operands = "mul", [self.constant(2.0), operands[0]]
        parts = [self.text(o, deep - 1) for o in operands]
        if name in ("fma", "mul"):
            signs = sum(p.startswith("-") for p in parts[:2]) % 2
            first = sorted(p.lstrip("-") for p in parts[:2])
            parts[:2] = ["-" + first[0] if signs else first[0], first[1]]
        elif name in ("add", "max", "min"):
            parts.sort(key=lambda p: p.lstrip("-"))
        return f"{name}({', '.join(parts)})"

    def kind(self, x: int) -> str:
        """What an operand is: fma, mul, add, a constant, "?" (anything) or "x" (something else)."""
        node = self.nodes[self.absolute(x)]
        if node[0] == "const":
            return self.text(self.absolute(x))
        return "?" if node[0] == "select" else node[0] if node[0] in (*ARITHMETIC, "?") else "x"

    def shape(self, x: int) -> tuple[Any, ...]:
        """An arithmetic term and what its operands are, in one order."""
        name, *operands = self.nodes[x]
        kinds = [self.kind(o) for o in operands]
        return (name, tuple(sorted(kinds[:2])), *kinds[2:])

    def shapes(self, roots: Iterable[int]) -> set[tuple[Any, ...]]:
        """The shapes of all arithmetic that the roots are made of."""
        found, waiting, seen = set(), list(roots), set()
        while waiting:
            x = waiting.pop()
            if x in seen:
                continue
            seen.add(x)
            name, *operands = self.nodes[x]
            if name in ARITHMETIC:
                found.add(self.shape(x))
            if name not in ("const", "leaf"):
                waiting += operands
        return found


class Symbolic(Exact):
    """The machine whose values are numbers of terms. roots: terms that leave it; stored: by buffer, what was stored.

    names: words of global memory that stand for a named leaf.
    """

    def __init__(self, arch: Any, fast_math: bool, names: dict[int, str] | None = None):
        super().__init__(arch, fast_math)
        self.terms, self.names = Terms(), names or {}
        self.roots: set[int] = set()
        self.stored: dict[str, list[int]] = {}
        self.functions: set[str] = set()
        self._rng = np.random.default_rng(0)

    def dtype(self, fmt: Any) -> np.dtype:
        return np.dtype(np.uint32) if isinstance(fmt, Format) else np.dtype(fmt.word)

    def _map(self, make: Any, *arrays: np.ndarray) -> np.ndarray:
        """make(numbers...) for each element, called once for equal ones."""
        arrays = tuple(np.broadcast_arrays(*arrays))
        flat = np.stack([x.reshape(-1).astype(np.int64) for x in arrays])
        unique, inverse = np.unique(flat, axis=1, return_inverse=True)
        made = np.array([make(*(int(n) for n in column)) for column in unique.T], np.uint32)
        return made[inverse.reshape(-1)].reshape(arrays[0].shape)

    def from_words(self, words: np.ndarray, fmt: Any) -> np.ndarray:
        return self._map(lambda w: self.terms.term("leaf", self.names.get(w, "x")), words)

    def to_words(self, x: np.ndarray, fmt: Any) -> np.ndarray:
        self.roots |= {int(n) for n in np.unique(x)}
        return np.zeros(x.shape, fmt.word)

    def wrote(self, operator: str, buffer: str, iteration: int | None, x: np.ndarray, fmt: Any) -> None:
        self.stored[buffer] = [int(n) for n in np.unique(x)]

    def through_memory(self, x: np.ndarray, fmt: Any) -> np.ndarray:
        return self._map(lambda a: self.terms.term("load", a), x)

    def constant(self, value: float, fmt: Format) -> np.ndarray:
        return np.asarray(self.terms.constant(value), np.uint32)

    def convert(self, x: np.ndarray, src: Any, dst: Any) -> np.ndarray:
        return self._map(lambda a: a if self.terms.nodes[a][0] == "const" else self.terms.term("cvt", a), x)

    def add(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p, q: self.terms.term("add", p, q), a, b)

    def sub(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self.add(a, self.neg(b, fmt), fmt)

    def mul(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(self._product, a, b)

    def _product(self, a: int, b: int) -> int:
        """A product; of two constants a constant."""
        x, y = (self.terms.nodes[n] for n in (a, b))
        if x[0] == y[0] == "const":
            return self.terms.constant(float(np.multiply(*(np.uint32(n[1]).view(np.float32) for n in (x, y)))))
        return self.terms.term("mul", a, b)

    def neg(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(self.terms.minus, a)

    def mul_add(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p, q, r: self.terms.term("fma", p, q, r), a, b, c)

    def mul_sub(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        return self.mul_add(a, b, self.neg(c, fmt), fmt)

    def sub_mul(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, fmt: Format) -> np.ndarray:
        return self.mul_add(self.neg(a, fmt), b, c, fmt)

    def reciprocal(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p: self.terms.term("rcp", p), a)

    def div(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        if self.fast_math:
            one, other = self.terms.constant(1.0), self.reciprocal(b, fmt)
            return self._map(lambda p, q: q if p == one else self.terms.term("mul", p, q), a, other)
        self.functions.add("div")
        return self._map(lambda p, q: self.terms.term("?", p, q), a, b)

    def max(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p, q: self.terms.term("max", p, q), a, b)

    def min(self, a: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p, q: self.terms.term("min", p, q), a, b)

    def abs(self, a: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p: self.terms.term("abs", p), a)

    def ordered(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        self.to_words(x, fmt)
        return self._rng.standard_normal(x.shape)  # a comparison goes either way

    def _function(self, name: str, x: np.ndarray, fmt: Format) -> np.ndarray:
        name = name.removesuffix("f")
        self.functions.add(name)
        instruction = {"log2": "lg2", "exp2": "ex2", "rsqrt": "rsq", "sqrt": "sqrt"}.get(name, "?")
        return self._map(lambda p: self.terms.term(instruction if self.fast_math else "?", p), x)

    def _rounded(self, function: Any, x: np.ndarray, fmt: Format) -> np.ndarray:
        return self._map(lambda p: self.terms.term("?", p), x)

    def dot(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, operand: Format, accumulator: Format) -> np.ndarray:
        for x in (a, b, c):
            self.to_words(x, FP32)
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2]) + (a.shape[-2], b.shape[-2])
        return np.full(shape, self.terms.term("leaf", "dot"), np.uint32)

    def reduce(self, op: str, x: np.ndarray, order: Any, fmt: Format) -> np.ndarray:
        if op == "sum":
            return super().reduce(op, x, order, fmt)
        self.to_words(x, fmt)
        return np.full(x.shape[:-1], self.terms.term("leaf", "x"), np.uint32)

    def _sum_in_order(self, x: np.ndarray, fmt: Format) -> np.ndarray:
        total = np.zeros(x.shape[1:], np.uint32)
        for step in x:
            total = self.add(total, step, fmt)
        return total

    def join_lanes(self, total: np.ndarray, fmt: Format) -> np.ndarray:
        lanes = total.shape[-1]
        while lanes > 1:  # what comes from another thread is no product
            total, lanes = (
                self._map(lambda p: self.terms.term("add", p, self.terms.term("leaf", "x")), total),
                lanes // 2,
            )
        return total[..., 0]


# compiled code


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, or from the nvidia packages that come with torch."""
    found = shutil.which(name)
    inside = sorted(Path(sysconfig.get_paths()["purelib"]).glob(f"nvidia/*/bin/{name}"))
    return found or (str(inside[0]) if inside else None)


def missing() -> str | None:
    """None when kernels can be compiled and read here, else what is missing."""
    for name in ("nvcc", "nvdisasm"):
        if tool(name) is None:
            return f"{name} is not installed"
    return None


def source(pf: Any, configs: dict[str, Any], arch: str = "sm_90a") -> str:
    """The CUDA source that TileLang makes of a PrimFunc."""
    from tilelang import tvm
    from tilelang.backend.target import determine_target
    from tilelang.engine.lower import lower

    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    with target, tvm.transform.PassContext(opt_level=3, config=configs):
        return str(lower(pf, target=target, enable_device_compile=False).kernel_source)


def compiled(code: str, configs: dict[str, Any], arch: str = "sm_90a") -> dict[str, list[str]]:
    """The SASS of each kernel of a CUDA source, compiled with the flags that TileLang uses."""
    from tilelang.backend.target import determine_target
    from tilelang.cuda.backend import tilelang_callback_cuda_compile

    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    binary = tilelang_callback_cuda_compile(code, target, configs)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(bytes(binary))
        file.flush()
        text = subprocess.run(
            [tool("nvdisasm") or "", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    return _split(text)


def _split(text: str) -> dict[str, list[str]]:
    """Lines of each function: instructions, and labels that end with a colon."""
    functions: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"\.text\.(\w+):", line):
            lines = functions.setdefault(found.group(1), [])
        elif found := re.match(r"(\.L_x_\d+):", line):
            lines.append(found.group(1) + ":")
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s*(.*?)\s*;", line):
            lines.append(found.group(1))
    return functions


class Reader:
    """Reads SASS as terms. terms of arithmetic are kept in `seen`, those that are stored to global memory in `stored`.

    pointers: constant-bank offsets of the kernel's pointers -> names of what they point to.
    """

    def __init__(self, terms: Terms, pointers: dict[int, str] | None = None):
        self.terms, self.pointers = terms, pointers or {}
        self.seen: set[int] = set()
        self.stored: list[int] = []
        self.registers: dict[str, int] = {}
        self.behind: dict[str, str] = {}  # registers that hold an address -> what it points to

    def read(self, lines: list[str]) -> Reader:
        """All lines in order; where paths meet, a register that differs may be anything."""
        places = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
        waiting: dict[str, list[dict[str, int]]] = {}
        reached = True
        for n, line in enumerate(lines):
            if line.endswith(":"):
                states = waiting.get(line[:-1], []) + ([self.registers] if reached else [])
                self.registers = self._meet(states)
                for end in range(n, len(lines)):
                    if (jump := _jump(lines[end])) and places.get(jump) == n:
                        self._forget(lines[n : end + 1])
                reached = True
                continue
            if jump := _jump(line):
                waiting.setdefault(jump, []).append(dict(self.registers))
                reached = line.startswith("@")
                continue
            self._instruction(line)
        return self

    def _meet(self, states: list[dict[str, int]]) -> dict[str, int]:
        if not states:
            return {}
        return {r: x for r, x in states[0].items() if all(other.get(r) == x for other in states[1:])}

    def _forget(self, lines: list[str]) -> None:
        """What a loop writes is unknown at its head."""
        for line in lines:
            found = re.match(r"(?:@!?U?P\d+ )?\S+\s+(R\d+)", line)
            if found:
                first = int(found.group(1)[1:])
                for k in range(128 if "GMMA" in line else 4):
                    self.registers.pop(f"R{first + k}", None)

    def operand(self, text: str) -> int:
        """A register, a literal or memory as a term."""
        text = text.replace(".reuse", "").strip()
        if text.startswith("-"):
            return self.terms.minus(self.operand(text[1:]))
        if text.startswith("|"):
            return self.terms.term("abs", self.operand(text.strip("|")))
        name = re.sub(r"\.(H[01]_H[01]|64|F32|B\d)", "", text)
        if name in ("RZ", "URZ"):
            return 0
        if re.fullmatch(r"R\d+", name):
            return self.registers.get(name, self.terms.term("?", self.terms.term("leaf", name)))
        if re.fullmatch(r"0x[0-9a-f]+", name):
            return self.terms.constant(float(np.uint32(int(name, 16)).view(np.float32)))
        try:
            return self.terms.constant(float(name.replace("INF", "inf").replace("QNAN", "nan")))
        except ValueError:
            return self.terms.term("leaf", "x")

    def _instruction(self, line: str) -> None:
        found = re.match(r"(@!?U?PT?\d* )?(\S+)\s*(.*)", line)
        assert found is not None
        guard, name, rest = found.groups()
        operands = [x.strip() for x in rest.split(",")]
        if re.fullmatch(r"U?P[T\d]", operands[0]) and len(operands) > 1 and re.fullmatch(r"R\d+", operands[1]):
            operands = operands[1:]  # a shuffle, which writes a predicate too
        operation, target = name.split(".")[0], operands[0]
        if operation == "STG":
            first, width = int(operands[-1][1:] if re.fullmatch(r"R\d+", operands[-1]) else -1), _width(name)
            self.stored += [self.operand(f"R{first + k}" if first >= 0 else operands[-1]) for k in range(width)]
            return
        term = self._term(operation, name, operands[1:])
        if not re.fullmatch(r"R\d+", target):
            self._point(target, rest)
            return
        if term is not None and self.terms.nodes[term][0] in ARITHMETIC:
            self.seen.add(term)
        if guard and term is not None and target in self.registers:
            term = self.terms.term("select", term, self.registers[target])
        first = int(target[1:])
        if operation == "LDG":
            self._load(first, name, rest)
            return
        self._point(target, rest)
        for k in range(128 if "GMMA" in name else _width(name)):
            self.registers[f"R{first + k}"] = self.terms.term("leaf", "x") if term is None else term

    def _term(self, operation: str, name: str, operands: list[str]) -> int | None:
        """What an instruction computes, None for what is no arithmetic."""
        if operation in ("FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2") and not (
            operation[0] == "H" and ".F32" in name
        ):
            values = [self.operand(x) for x in operands if not re.fullmatch(r"!?P[T\d]", x)]
            kind = {"A": "add", "M": "mul"}.get(operation[1], "fma")
            if kind == "fma" and len(operands) == 4:  # a word as a pair of float16
                pair = np.array([float(x) for x in operands[:1:-1]], np.float16)
                return self.terms.constant(float(pair.view(np.float32)[0]))
            if kind == "fma" and operation[0] == "H" and operands[2].lstrip("-") == "RZ" and operands[2][0] == "-":
                return self.terms.term("mul", *values[:2])
            if kind == "fma" and operation[0] == "F" and values[2] == 0 and operands[2].startswith("-"):
                return self.terms.term("mul", *values[:2])
            if kind == "add" and operation[0] == "F" and "-RZ" in operands[:2]:
                return values[operands[0] == "-RZ"]
            if kind == "add" and 0 in values and "abs" in (self.terms.nodes[v][0] for v in values):
                return max(values)  # a magnitude, flushed
            return self.terms.term(kind, *values[: 3 if kind == "fma" else 2])  # a literal pair is one literal twice
        if operation in ("FMNMX", "HMNMX2"):
            return self.terms.term(
                "max" if operands[-1].startswith("!") else "min", *(self.operand(x) for x in operands[:2])
            )
        if operation == "FSEL":
            return self.terms.term("select", *(self.operand(x) for x in operands[:2]))
        if operation == "MUFU":
            return self.terms.term(name.split(".")[1].lower(), self.operand(operands[0]))
        if operation == "MOV" or name.startswith("IMAD.MOV"):
            return self.operand(operands[-1])
        return None

    def _point(self, target: str, rest: str) -> None:
        """Follow which pointer an address register comes from."""
        offsets = [int(x, 16) for x in re.findall(r"c\[0x0\]\[(0x[0-9a-f]+)\]", rest)]
        sources = [self.pointers[o] for o in offsets if o in self.pointers]
        sources += [self.behind[r] for r in re.findall(r"U?R\d+", rest.partition(",")[2]) if r in self.behind]
        if sources:
            self.behind[target] = sources[0]
        else:
            self.behind.pop(target, None)

    def _load(self, first: int, name: str, rest: str) -> None:
        found = re.search(r"\[(R\d+)\.", rest)
        pointer = self.behind.get(found.group(1), "x") if found else "x"
        for k in range(_width(name)):
            self.registers[f"R{first + k}"] = self.terms.term("leaf", pointer)
            self.behind.pop(f"R{first + k}", None)


def _width(name: str) -> int:
    return 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1


def _jump(line: str) -> str | None:
    found = re.match(r"(?:@!?U?P\d+ )?BRA.*?`\((\.L_x_\d+)\)", line)
    return found.group(1) if found else None


def structure(lines: list[str], parameters: list[str], first: int = 0x210) -> list[str]:
    """What a kernel without loops stores, as text; leaves are the parameters' names."""
    reader = Reader(Terms(), {first + 8 * n: name for n, name in enumerate(parameters)}).read(lines)
    return [reader.terms.text(x) for x in reader.stored]


def loops(lines: list[str]) -> list[Counter[str]]:
    """How often each arithmetic instruction stands outside of loops, and in each innermost loop, in program order."""
    places = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    spans = sorted((places[j], n) for n, line in enumerate(lines) if (j := _jump(line)) and places.get(j, n) < n)
    counts = [Counter() for _ in range(len(spans) + 1)]
    for n, line in enumerate(lines):
        inner = [k for k, (a, b) in enumerate(spans) if a <= n <= b]
        word = line.split()[1 if line.startswith("@") else 0].split(".")[0]
        if word in ("FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2", "HFMA2", "HMUL2", "HADD2"):
            counts[1 + min(inner, key=lambda k: spans[k][1] - spans[k][0]) if inner else 0][word] += 1
    return counts


# comparison


def matches(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two shapes may be the same: "?" may be anything, and a product with 2 is a doubling."""
    a, b = (("add", (s[1][1], s[1][1])) if s[0] == "mul" and s[1][0] == "2" else s for s in (a, b))
    if a[0] != b[0] or len(a) != len(b):
        return False

    def same(p: str, q: str) -> bool:
        return p == q or "?" in (p, q)

    pairs = [(a[1], b[1]), (a[1], b[1][::-1])]
    return any(all(same(*x) for x in zip(p, q)) for p, q in pairs) and all(same(*x) for x in zip(a[2:], b[2:]))


@cache
def expansions(fast: bool, arch: str) -> dict[str, set[tuple[Any, ...]]]:
    """The shapes that CUDA's functions expand to, read from one-line kernels."""
    body = "\n".join(
        f'extern "C" __global__ void f_{name}(const float* a, const float* b, float* o)'
        f"{{ int i = threadIdx.x; o[i] = {text}; }}"
        for name, text in FUNCTIONS.items()
    )
    found = {}
    for name, lines in compiled(body, {FAST: fast}, arch).items():
        reader = Reader(Terms()).read(lines)
        shapes = {reader.terms.shape(x) for x in reader.seen}
        loose = {
            (s[0], tuple("?" if k == "x" else k for k in s[1]), *("?" if k == "x" else k for k in s[2:]))
            for s in shapes
        }
        found[name.removeprefix("f_")] = loose
    return found


def compare(pf: Any, configs: dict[str, Any], arrays: list[Any], arch: str = "sm_90a", blocks: Any = None) -> str:
    """ "held", "differs: ..." or "not held: ..." for one kernel; arrays: arguments as of sim.simulate."""
    from sim.primfunc import Unsupported, simulate

    if (reason := missing()) is not None:
        return f"not held: {reason}"
    machines: list[Symbolic] = []

    def machine(record: Any, fast_math: bool) -> Symbolic:
        machines.append(Symbolic(record, fast_math))
        return machines[-1]

    fast = bool(configs.get(FAST, False))
    try:
        simulate(pf, *arrays, pass_configs=configs, blocks=blocks, machine=machine)
        functions = compiled(source(pf, configs, arch), configs, arch)
    except (Unsupported, NotImplementedError, RuntimeError, ValueError) as error:
        return f"not held: {str(error).strip().splitlines()[0][:160]}"
    ours = machines[0].terms.shapes(machines[0].roots)
    theirs: set[tuple[Any, ...]] = set()
    for lines in functions.values():
        reader = Reader(Terms()).read(lines)
        theirs |= {reader.terms.shape(x) for x in reader.seen}
    names = machines[0].functions | {"neg"} | ({"rcp", "div3", "rdiv"} if "div" in machines[0].functions else set())
    expanded = {shape for name in names for shape in expansions(fast, arch).get(name, ())}
    lacking = sorted(s for s in theirs if not any(matches(s, o) for o in ours | expanded))
    extra = sorted(s for s in ours if not any(matches(_first_turn(s), o) for o in theirs))
    if not lacking and not extra:
        return f"held: {len(ours)} shapes"
    return "differs:" + "".join(f" compiled {say(s)}" for s in lacking) + "".join(f" simulated {say(s)}" for s in extra)


def _first_turn(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """A shape whose operands are what a loop starts with: compiled code has these in registers, or folds them."""
    loose = lambda kind: "?" if kind in ("0", "1", "inf") else kind  # noqa: E731
    return (shape[0], tuple(loose(k) for k in shape[1]), *(loose(k) for k in shape[2:]))


def say(shape: tuple[Any, ...]) -> str:
    return f"{shape[0]}({', '.join([*shape[1], *shape[2:]])})"


def together(sources: dict[str, str]) -> str:
    """Several kernels' sources as one: what stands before the first kernel once, by line."""
    heads, bodies = [], []
    for code in sources.values():
        first = code.index('extern "C" __global__')
        heads += [line for line in code[:first].splitlines() if line.startswith("#include <tl")]
        bodies.append(code[first:])
    return "\n".join([*dict.fromkeys(heads), *bodies])


def parameters(code: str) -> dict[str, list[str]]:
    """The names of each kernel's parameters."""
    found = re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(([^)]*)\) \{", code)
    return {name: [re.split(r"[ *]", p.strip())[-1] for p in text.split(",")] for name, text in found}


# which kernels


def held(pf: Any, configs: dict[str, Any], arch: str = "sm_90a") -> str:
    """Whether the rule holds for a kernel: "held", "differs: ..." or "not held: why". Inputs are zeros."""
    outputs, arrays = arguments(pf)
    marked = pf.with_attr("tilelang_out_idx", outputs) if outputs else pf
    return compare(marked, configs, arrays, arch, blocks=few(pf))


def few(pf: Any) -> list[int] | None:
    """The thread blocks to simulate: two, or all where each grid has one."""
    from tilelang import tvm

    grids: list[bool] = []

    def note(node: Any) -> None:
        binding = node.thread_binding if type(node).__name__ == "For" else None
        if binding is not None and str(binding.thread_tag).startswith("blockIdx"):
            grids.append(type(node.extent).__name__ == "IntImm" and int(node.extent) == 1)

    tvm.tirx.stmt_functor.post_order_visit(pf.body, note)
    return None if all(grids) else [0, 1]


SYMBOLIC = 256  # what a size that is not known becomes


def arguments(pf: Any) -> tuple[list[int], list[Any]]:
    """The parameters that a kernel returns, and arguments for the others: zeros, which are terms here, and indices."""
    from sim.formats import Integer, dtype_named

    marked, count = pf.attrs.get("tilelang_out_idx") if pf.attrs else None, len(pf.params)
    outputs = sorted({(int(i) + count) % count for i in ([marked] if isinstance(marked, int) else marked or [])})
    made: list[Any] = []
    for parameter in (p for i, p in enumerate(pf.params) if i not in outputs):
        if parameter not in pf.buffer_map:
            made.append(SYMBOLIC)
            continue
        buffer = pf.buffer_map[parameter]
        shape = tuple(SYMBOLIC if type(n).__name__ == "Var" else int(n) for n in buffer.shape)
        fmt = dtype_named(str(buffer.dtype))
        if isinstance(fmt, Integer):
            numbers = np.arange(int(np.prod(shape))) % (2 if fmt.name == "bool" else max(1, shape[-1]))
            made.append(numbers.reshape(shape).astype(fmt.value_type))
        else:
            made.append((np.zeros(shape, fmt.word), fmt))
    return outputs, made


def _chosen(what: str) -> Iterator[tuple[str, Any, dict[str, Any], list[Any] | None]]:
    """Names, PrimFuncs, pass configurations and inputs of the kernels that an argument names."""
    if what.partition(":")[0] == "ours":
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
        import kernels

        for name, kernel in kernels.KERNELS.items():
            if name == what.partition(":")[2] or what == "ours":
                yield name, kernel.prim_func(), {}, kernel.inputs()
    elif what.endswith(".json"):
        from tilelang import tvm

        path = Path(what)
        index = [json.loads(line) for line in (path.parent / "index.jsonl").read_text().splitlines()]
        entry = next(e for e in index if e["id"] == path.stem)
        yield f"{path.stem} {entry['function']}", tvm.ir.load_json(path.read_text()), entry["pass_configs"], None
    else:
        file, _, name = what.rpartition(":")
        spec = importlib.util.spec_from_file_location("kernels_of_the_caller", file)
        if spec is None or spec.loader is None:
            raise SystemExit(f"kernels must be ours, a corpus's NNN.json or FILE.py:FUNCTION, not {what!r}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield name, getattr(module, name)(), {}, None


def main(arguments: list[str]) -> int:
    """Compare the kernels that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--math", choices=("fast", "precise", "both", "own"), default="both", help="own: as configured")
    parser.add_argument("--loops", action="store_true")
    chosen = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"nothing can be compared: {reason}", file=sys.stderr)
        return 3
    maths = {"fast": [True], "precise": [False], "both": [True, False], "own": [None]}[chosen.math]
    differs = 0
    for name, pf, configs, given in (each for what in chosen.kernels for each in _chosen(what)):
        for fast in maths:
            settings = configs if fast is None else {**configs, FAST: fast}
            said = held(pf, settings) if given is None else compare(pf, settings, given, blocks=few(pf))
            differs += said.startswith("differs")
            if said.startswith("held"):  # Result.basis says so from now on
                record = held_record(pf, "sm_90a", settings)
                record.parent.mkdir(parents=True, exist_ok=True)
                record.touch()
            print(name, "fast" if settings.get(FAST) else "precise", said, flush=True)
            if chosen.loops:
                for kernel, lines in compiled(source(pf, settings), settings).items():
                    print("", kernel, *(dict(c) for c in loops(lines)), flush=True)
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
