"""Which schedules TileLang 0.1.15 refuses to make a kernel of, and why, by rule.

The simulator runs any block size; a GPU does not. The rules follow TileLang in the order of its checks (the warps of a
gemm, the layout of acc_s, the instruction's K, the pipeline, registers, the launch) and were found by lowering 680
configurations of the seed's loop and compiling 60; tests/test_limits.py holds them against TileLang itself.
"""

from __future__ import annotations

from .arch import arch as find_arch
from .flash import Schedule

__all__ = ["SHARED_KIB", "shared_bytes", "why_not_compilable"]

# Shared memory that one block may ask for, KiB (CUDA programming guide, table of compute capabilities).
SHARED_KIB = {
    "sm_70": 96,
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_89": 99,
    "sm_90": 227,
    "sm_100": 227,
    "sm_120": 99,
}


def why_not_compilable(schedule: Schedule, arch: str, dim: int, dtype: str) -> str | None:
    """None when TileLang makes a kernel of `schedule` that `arch` can launch, else one sentence with TileLang's reason.

    arch: "sm_90" or "sm_90a"; dim: the heads' dimension; dtype: "float16" or "bfloat16". Several query and key blocks
    are meant: where one holds the whole sequence TileLang drops the loop, and compiles a little more. Raises ValueError
    for an unknown arch or dtype, or a dim that is no positive integer.
    """
    record = find_arch(arch)
    arch = record.name
    if dtype not in ("float16", "bfloat16"):
        raise ValueError(f"dtype must be float16 or bfloat16, not {dtype!r}")
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ValueError(f"dim must be a positive integer, not {dim!r}")
    if not any(unit.operand.name == dtype for unit in record.units):
        return f"dtype {dtype}: the tensor core of {arch} has no {dtype}"
    return (
        _partition(schedule, arch, schedule.block_N, dim)
        or _short(schedule, arch, dim)
        or _partition(schedule, arch, dim, schedule.block_N)
        or _layout(schedule, arch, dim)
        or _tma(schedule, arch)
        or _instruction(schedule, arch, dim)
        or _pipeline(schedule, arch)
        or _registers(schedule, arch, dim)
        or _launch(schedule, arch, dim)
    )


def shared_bytes(schedule: Schedule, dim: int) -> int:
    """Bytes of dynamic shared memory of the kernel: Q (reused for O), and K and V once for each pipeline stage."""
    return 2 * dim * (schedule.block_M + 2 * schedule.block_N * max(1, schedule.num_stages))


def _says(what: str, words: str) -> str:
    return f"{what}: TileLang says '{words}'"


def _wgmma(schedule: Schedule, arch: str, K: int) -> bool:
    """Whether a gemm with this K becomes a Hopper warp-group instruction."""
    return arch == "sm_90" and schedule.block_M >= 64 and schedule.threads // 32 % 4 == 0 and K % 16 == 0


def _rows_of_warps(schedule: Schedule, wgmma: bool, N: int) -> int:
    """Warps side by side in M under the policy FullRow, as many as fit; 0 if no partition fits."""
    warps, group = schedule.threads // 32, 4 if wgmma else 1
    for m in range(warps - warps % group, 0, -group):
        if warps % m == 0 and schedule.block_M % (16 * m) == 0 and N % (8 * (warps // m)) == 0:
            return m
    return 0


def _partition(schedule: Schedule, arch: str, N: int, K: int) -> str | None:
    """Why a gemm of block_M x N x K cannot be spread over the warps."""
    M, warps, wgmma = schedule.block_M, schedule.threads // 32, _wgmma(schedule, arch, K)
    if M % 16:
        return _says(f"block_M {M}", f"M must be divisible by 16, but got {M}")
    if N % 8:
        what = f"block_N {N}" if N == schedule.block_N else f"dim {N}"
        return _says(what, f"N must be divisible by 8, but got {N}")
    if _rows_of_warps(schedule, wgmma, N):
        return None
    kind, group = (" (Warp-Group MMA)", ", with m_warp a multiple of 4") if wgmma else ("", "")
    return _says(
        f"block_M {M} with threads {schedule.threads}",
        f"No valid warp partition for T.gemm{kind}: M={M}, N={N} cannot be evenly covered by {warps} warps "
        f"(policy=FullRow). Each warp must own a multiple of 16 rows and 8 columns{group}",
    )


def _layout(schedule: Schedule, arch: str, dim: int) -> str | None:
    """Why acc_s, made by one gemm and cast for the next, cannot be laid out for both.

    Each warp must hold whole rows (its share is not split in N), and the same rows in both: a warp-group instruction
    deals out rows in blocks of 64, mma.sync in one piece, and the second gemm wants its left operand in one piece.
    """
    words = "Layout infer conflict between acc_s and acc_s_cast in T.Parallel loop"
    M, warps = schedule.block_M, schedule.threads // 32
    for N, K in ((schedule.block_N, dim), (dim, schedule.block_N)):
        if _rows_of_warps(schedule, _wgmma(schedule, arch, K), N) < warps:
            return _says(f"block_M {M} is too small for threads {schedule.threads}, 16 rows for each warp", words)
    first, second = _wgmma(schedule, arch, dim), _wgmma(schedule, arch, schedule.block_N)
    if M > 16 * warps and (first != second or (first and warps > 4)):
        return _says(f"block_M {M} is too large for threads {schedule.threads}, 16 rows for each warp", words)
    return None


def _bulk(schedule: Schedule, arch: str) -> bool:
    """Whether a pipelined loop's tiles come by bulk tensor copies (TMA), which 128 more threads issue."""
    return schedule.num_stages >= 1 and arch in ("sm_90", "sm_100", "sm_120")


def _tma(schedule: Schedule, arch: str) -> str | None:
    """Why a tile cannot be copied in bulk."""
    if not _bulk(schedule, arch):
        return None
    for what, rows, source in (("block_M", schedule.block_M, "Q"), ("block_N", schedule.block_N, "K")):
        if rows > 256 and rows % 64:
            words = f"TMA box dim {rows} (mode 1) exceeds the cap 256 and cannot be cleanly split, src={source}"
            return _says(f"{what} {rows}", words)
    return None


def _short(schedule: Schedule, arch: str, dim: int) -> str | None:
    """Why a dim below 16 has no instruction."""
    if dim < 16 and dim not in (4, 8):
        return _says(f"dim {dim}", f"Unsupported k_dim {dim}")
    return None


def _instruction(schedule: Schedule, arch: str, dim: int) -> str | None:
    """Why a gemm's K does not suit mma.sync (8, or a multiple of 16), or 8 columns a warp-group instruction."""
    for what, K in (("dim", dim), ("block_N", schedule.block_N)):
        if K % 16 and K != 8:
            return _says(f"{what} {K}", f"block_K ({K}) must be a multiple of micro_size_k (16)")
    if dim == 8 and _wgmma(schedule, arch, schedule.block_N):
        return _says("dim 8", "WGMMA operand layout contiguity (k_major=True) disagrees with the row-major expectation")
    return None


def _pipeline(schedule: Schedule, arch: str) -> str | None:
    """Why the loop cannot be pipelined.

    Causal, its trip count depends on the block, which older GPUs' copies need; bulk copies wait for whole warps.
    """
    stages, threads = schedule.num_stages, schedule.threads
    if schedule.causal and stages >= 2 and arch in ("sm_80", "sm_86", "sm_89"):
        what = f"causal with num_stages {stages} on {arch} (a fault of TileLang; 0 and 1 compile)"
        return _says(what, "Downcast from tirx.Sub to ir.IntImm failed.")
    if _bulk(schedule, arch) and threads % 32:
        words = "[ThreadSync] Cannot lower a required shared-memory sync inside a divergent region with "
        return _says(f"threads {threads}", f"{words}{threads} participating threads (not a multiple of 32)")
    return None


def _registers(schedule: Schedule, arch: str, dim: int) -> str | None:
    """Why ptxas finds too few registers: an accumulator that an instruction works on cannot be spilled.

    A block's 65536 registers are shared by its threads, the 128 that issue bulk copies included. A warp-group
    instruction of n columns needs n/2 and some for its operands, 30 with a left operand in registers and 26 without;
    with 96 registers, wide tiles of acc_s and acc_o together are too many (found by trying, 128 columns beside 96).
    """
    threads = schedule.threads + 128 * _bulk(schedule, arch)
    has, N = min(255, 65536 // threads // 8 * 8), schedule.block_N
    first, second = _wgmma(schedule, arch, dim), _wgmma(schedule, arch, N)
    for what, n, wgmma, others in (("block_N", N, first, 26), ("dim", dim, second, 30)):
        if wgmma and n <= 256 and n // 2 + others > has:
            words = f"Insufficient registers ({has}) to compile instruction"
            return _says(f"{what} {n} needs {n // 2 + others} registers in each of {threads} threads", words)
    if first and second and has <= 96 and N > 96 and dim > 64:
        words = f"Register allocation failed with register count of '{has}'"
        return _says(f"block_N {N} and dim {dim} need more registers than {threads} threads have", words)
    return None


def _launch(schedule: Schedule, arch: str, dim: int) -> str | None:
    """Why a compiled kernel cannot be launched."""
    threads = schedule.threads + 128 * _bulk(schedule, arch)
    if threads > 1024:
        return f"{threads} threads, {threads - schedule.threads} of them for bulk copies: a block has at most 1024"
    need, limit = shared_bytes(schedule, dim), SHARED_KIB[arch] * 1024
    if need > limit:
        what = f"{need // 1024} KiB of shared memory, {arch} has {SHARED_KIB[arch]} KiB"
        return _says(what, f"Failed to set the allowed dynamic shared memory size to {need}")
    return None
