"""The rule for what TileLang refuses agrees with TileLang, in whether and in why."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from sim.flash import Schedule
from sim.limits import SHARED_KIB, shared_bytes, why_not_compilable

with_tilelang = pytest.mark.skipif(
    importlib.util.find_spec("tilelang") is None, reason="TileLang is not installed (make test installs it)"
)


def words(reason: str | None) -> str | None:
    """TileLang's own words in a reason."""
    found = re.search(r"TileLang says '(.*)'$", reason or "")
    assert reason is None or found, reason
    return found.group(1) if found else None


# block_M, block_N, threads, num_stages, causal, dim, arch, and a part of the reason (None when it compiles):
# every rule, on both sides of its edge.
SAMPLE = [
    (64, 64, 128, 2, True, 128, "sm_90a", None),
    (128, 64, 128, 2, True, 128, "sm_90a", None),
    (64, 8, 128, 1, False, 64, "sm_90a", None),
    (16, 64, 32, 0, True, 64, "sm_90a", None),
    (96, 32, 64, 1, False, 64, "sm_90a", None),
    (256, 64, 128, 1, False, 64, "sm_90a", None),
    (128, 32, 256, 1, True, 96, "sm_90a", None),
    (64, 64, 128, 3, False, 64, "sm_80", None),
    (64, 64, 128, 1, True, 64, "sm_80", None),
    (64, 64, 128, 2, True, 64, "sm_120a", None),
    (1, 64, 128, 0, False, 64, "sm_90a", "M must be divisible by 16, but got 1"),
    (8, 64, 128, 0, False, 64, "sm_90a", "M must be divisible by 16, but got 8"),
    (64, 1, 128, 0, False, 64, "sm_90a", "N must be divisible by 8, but got 1"),
    (64, 64, 128, 0, False, 20, "sm_90a", "N must be divisible by 8, but got 20"),
    (64, 24, 128, 0, False, 64, "sm_90a", "block_K (24) must be a multiple of micro_size_k (16)"),
    (96, 64, 128, 1, False, 64, "sm_90a", "No valid warp partition for T.gemm (Warp-Group MMA): M=96, N=64"),
    (96, 64, 128, 1, False, 64, "sm_80", "Layout infer conflict between acc_s and acc_s_cast"),
    (
        64,
        64,
        96,
        1,
        False,
        64,
        "sm_90a",
        "No valid warp partition for T.gemm: M=64, N=64 cannot be evenly covered by 3 warps",
    ),
    (64, 64, 384, 1, False, 64, "sm_90a", "(Warp-Group MMA): M=64, N=64 cannot be evenly covered by 12 warps"),
    (32, 64, 128, 1, True, 64, "sm_90a", "Layout infer conflict between acc_s and acc_s_cast"),
    (64, 64, 256, 1, True, 64, "sm_90a", "Layout infer conflict between acc_s and acc_s_cast"),
    (256, 64, 256, 1, True, 64, "sm_90a", "Layout infer conflict between acc_s and acc_s_cast"),
    (128, 8, 128, 1, True, 64, "sm_90a", "Layout infer conflict between acc_s and acc_s_cast"),
    (64, 64, 128, 2, True, 64, "sm_80", "Downcast from tirx.Sub to ir.IntImm failed."),
    (64, 64, 128, 2, True, 64, "sm_89", "Downcast from tirx.Sub to ir.IntImm failed."),
]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_the_rule(case: tuple) -> None:
    block_M, block_N, threads, num_stages, causal, dim, arch, part = case
    schedule = Schedule(block_M, block_N, causal, threads, num_stages)
    reason = why_not_compilable(schedule, arch, dim, "float16")
    assert (reason is None) == (part is None) and (part or "") in (reason or "")
    assert schedule.compilable(arch, dim) == reason


@with_tilelang
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_tilelang_agrees(case: tuple) -> None:
    from tilelang import lower, tvm
    from tilelang.backend.target import determine_target

    from gpu.flash import flash_attention_kernel, pass_configs

    block_M, block_N, threads, num_stages, causal, dim, arch, _ = case
    schedule = Schedule(block_M, block_N, causal, threads, num_stages)
    said = words(why_not_compilable(schedule, arch, dim, "float16"))
    kernel = flash_attention_kernel(schedule, 1, 1, 1, 1024, 1024, dim, "float16")
    target = determine_target({"kind": "cuda", "arch": arch}, return_object=True)
    with tvm.transform.PassContext(opt_level=3, config=pass_configs(schedule)), target:
        if said is None:
            made = lower(kernel, target=target)
            sizes = [int(f.attrs["dyn_shared_memory_buf"]) for f in made.device_mod.functions.values()]
            assert sizes == [shared_bytes(schedule, dim)]
        else:
            with pytest.raises(Exception, match=re.escape(said)):
                lower(kernel, target=target)


@with_tilelang
@pytest.mark.parametrize(("block_N", "dim"), [(64, 160), (128, 96)])
def test_ptxas_agrees_about_registers(block_N: int, dim: int) -> None:
    from gpu.errors import KernelError
    from gpu.flash import compile_kernel

    schedule = Schedule(256, block_N, True, 512, 1)
    said = words(why_not_compilable(schedule, "sm_90a", dim, "float16"))
    assert said is not None and why_not_compilable(schedule, "sm_90a", 64, "float16") is None
    with pytest.raises(KernelError, match=re.escape(said)):
        compile_kernel(schedule, 1, 1, 1, 1024, 1024, dim, "float16", target={"kind": "cuda", "arch": "sm_90a"})


def test_what_ran_on_an_h200_is_not_refused() -> None:
    cells = json.loads((Path(__file__).parent / "captures" / "h200" / "flash.json").read_text())["cells"]
    assert len(cells) > 50
    for cell in cells:
        schedule = Schedule(**cell["schedule"])
        assert why_not_compilable(schedule, "sm_90", cell["shape"]["dim"], cell["dtype"]) is None, cell["name"]


# the launch, which needs a GPU to be refused


def test_threads_of_a_block() -> None:
    assert why_not_compilable(Schedule(512, 32, threads=1024), "sm_90", 32, "float16") is None
    reason = why_not_compilable(Schedule(512, 32, threads=1024, num_stages=1), "sm_90", 32, "float16")
    assert reason == "1152 threads, 128 of them for bulk copies: a block has at most 1024"


@pytest.mark.parametrize("arch", SHARED_KIB)
def test_shared_memory(arch: str) -> None:
    fits = max(n for n in range(16, 2048, 16) if shared_bytes(Schedule(64, n), 64) <= SHARED_KIB[arch] * 1024)
    assert why_not_compilable(Schedule(64, fits), arch, 64, "float16") is None
    reason = why_not_compilable(Schedule(64, fits + 16), arch, 64, "float16")
    size = shared_bytes(Schedule(64, fits + 16), 64)
    assert words(reason) == f"Failed to set the allowed dynamic shared memory size to {size}"
    assert f"KiB of shared memory, {arch} has {SHARED_KIB[arch]} KiB" in str(reason)


def test_stages_keep_more_blocks_of_k_and_v() -> None:
    assert [shared_bytes(Schedule(64, 64, num_stages=n), 128) // 1024 for n in range(4)] == [48, 48, 80, 112]


def test_another_dtype() -> None:
    with pytest.raises(ValueError, match="dtype must be float16 or bfloat16, not 'float32'"):
        why_not_compilable(Schedule(), "sm_90", 64, "float32")
    assert why_not_compilable(Schedule(), "sm_70", 64, "bfloat16") == (
        "dtype bfloat16: the tensor core of sm_70 has no bfloat16"
    )


@pytest.mark.parametrize("dim", [0, -16, 128.0, "128", True])
def test_another_dim(dim: object) -> None:
    with pytest.raises(ValueError, match="dim must be a positive integer, not"):
        Schedule().compilable("sm_90", dim=dim)  # type: ignore[arg-type]


def test_another_arch() -> None:
    with pytest.raises(ValueError, match="arch must be one of sm_70"):
        why_not_compilable(Schedule(), "sm_42", 64, "float16")
