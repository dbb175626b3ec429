"""Contraction: the simulator gives the terms of tests/forms.py, and compiled code has the same."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tilelang", reason="a PrimFunc is TileLang's")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import contraction
import forms
from capture_contraction import label

from crosscheck.diff import assert_same_words
from sim.captures import load_capture
from sim.formats import format_named
from sim.primfunc import simulate

CAPTURE = load_capture(Path(__file__).parent / "captures" / "h200" / "contraction.npz")
NEEDS_COMPILER = pytest.mark.skipif(
    contraction.missing() is not None, reason=f"no compiled code: {contraction.missing()}"
)
NAMES = dict(enumerate("ABCDXY", 1))


def simulated(form: forms.Form, fast_math: bool) -> set[str]:
    """What the simulator stores for a form, as text."""
    machines: list[Any] = []

    def machine(arch: Any, fast: bool) -> contraction.Symbolic:
        machines.append(contraction.Symbolic(arch, fast, NAMES))
        return machines[-1]

    pf = form.make()
    count = forms.THREADS * form.each
    word = np.uint32 if form.dtype == "float32" else np.uint16
    given = [(np.full(count, n, word), format_named(form.dtype)) for n in NAMES]
    simulate(pf.with_attr("tilelang_out_idx", [6]), *given, pass_configs={contraction.FAST: fast_math}, machine=machine)
    (found,) = machines
    return {found.terms.text(x) for x in found.stored["Output"]}


@pytest.mark.parametrize("fast_math", [False, True], ids=["precise", "fast"])
@pytest.mark.parametrize("name", forms.FORMS)
def test_the_simulator_fuses_what_the_compiler_does(name: str, fast_math: bool) -> None:
    form = forms.FORMS[name]
    assert simulated(form, fast_math) == {form.expected(fast_math)}


@pytest.mark.parametrize("name", forms.WALKS)
def test_the_simulator_has_the_shapes_of_compiled_loops(name: str) -> None:
    machines: list[Any] = []

    def machine(arch: Any, fast: bool) -> contraction.Symbolic:
        machines.append(contraction.Symbolic(arch, fast))
        return machines[-1]

    walk = forms.WALKS[name]
    simulate(walk.make().with_attr("tilelang_out_idx", [6]), *forms.inputs(walk), machine=machine)
    found = machines[0].terms.shapes(machines[0].roots)
    assert " ".join(sorted(map(contraction.say, found))) == walk.shapes


@NEEDS_COMPILER
@pytest.mark.parametrize("name", forms.WALKS)
def test_compiled_loops_have_these_shapes(name: str) -> None:
    pf = forms.WALKS[name].make().with_attr("tilelang_out_idx", [6])
    said = contraction.held(pf, {})
    assert said.startswith("held"), said


@pytest.mark.parametrize("cell", CAPTURE.manifest["cells"], ids=lambda c: f"{c['name']}-{c['fast_math']}")
def test_the_simulator_gives_the_words_of_the_gpu(cell: dict[str, Any]) -> None:
    form = (forms.FORMS | forms.WALKS)[cell["name"]]
    pf = form.make().with_attr("tilelang_out_idx", [6])
    made = simulate(pf, *forms.inputs(form), pass_configs={contraction.FAST: cell["fast_math"]}).outputs[0]
    there = CAPTURE.arrays[label(cell["name"], "fast" if cell["fast_math"] else "precise")]
    assert_same_words(made, there, name=cell["name"])


def test_the_capture_has_every_form_fast_and_precise() -> None:
    assert {(c["name"], c["fast_math"]) for c in CAPTURE.manifest["cells"]} == {
        (name, fast) for name in forms.FORMS | forms.WALKS for fast in (True, False)
    }


@cache
def compiled(fast_math: bool) -> dict[str, list[str]]:
    """What compiled code stores for every form, as text; all forms in one source."""
    symbols = {f"form_{n}": form.make() for n, form in enumerate(forms.FORMS.values())}
    configs = {contraction.FAST: fast_math}
    code = contraction.together(
        {s: contraction.source(pf.with_attr("global_symbol", s), configs) for s, pf in symbols.items()}
    )
    found = contraction.compiled(code, configs)
    names = contraction.parameters(code)
    return {k: contraction.structure(lines, names[k]) for k, lines in found.items()}


@NEEDS_COMPILER
@pytest.mark.parametrize("fast_math", [False, True], ids=["precise", "fast"])
@pytest.mark.parametrize("name", forms.FORMS)
def test_the_compiler_does_what_the_form_says(name: str, fast_math: bool) -> None:
    form, n = forms.FORMS[name], list(forms.FORMS).index(name)
    expected = form.expected(fast_math)
    if "?" in expected:
        pytest.skip("a function that CUDA expands")
    assert set(compiled(fast_math)[f"form_{n}_kernel"]) == {expected}


def test_the_basis_says_when_contraction_was_held_against_a_kernels_compiled_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import kernels

    import sim
    from sim.primfunc.lowering import held_record

    monkeypatch.setenv("TILEWORDS_CACHE", str(tmp_path))
    kernel = kernels.KERNELS["rms_norm"]
    pf, given, fast = kernel.prim_func(), kernel.inputs(), {"tl.enable_fast_math": True}
    held_record(kernel.make(), "sm_90a", fast).touch()
    basis = [sim.simulate(pf, *given, pass_configs=configs).basis for configs in (fast, {})]
    assert basis[0].endswith("by rule, held against this kernel's compiled code") and basis[1].endswith("by rule")
