"""The seed's flash-attention forward loop (TileLang issue #948) as a TileLang kernel, built from a Schedule.

The tile operators and their order are those of TileLang's example_gqa_fwd_bshd.py; what the example fixes (data type,
how scores_max is kept, one sequence length) is an argument here. Annotations stay objects (no `from __future__ import
annotations`), because TileLang reads the parameters' shapes from them.
"""

from typing import Any

from sim.flash import Schedule

from .errors import KernelError, reason

__all__ = ["compile_kernel", "flash_attention_kernel", "pass_configs"]


def pass_configs(schedule: Schedule) -> dict[str, Any]:
    """TileLang's pass configuration for `schedule`: fast math or not, the rest as TileLang chooses."""
    import tilelang

    return {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH.value: schedule.fast_math}


def compile_kernel(
    schedule: Schedule,
    batch: int,
    heads: int,
    heads_kv: int,
    seq_q: int,
    seq_kv: int,
    dim: int,
    dtype: str,
    target: Any = "auto",
) -> Any:
    """The compiled kernel, called as kernel(q, k, v) with CUDA tensors; arguments as flash_attention_kernel.

    target: TileLang's; {"kind": "cuda", "arch": "sm_90a"} compiles on a machine without a GPU. Raises KernelError of
    kind "compile" with TileLang's own reason.
    """
    import tilelang

    kernel = flash_attention_kernel(schedule, batch, heads, heads_kv, seq_q, seq_kv, dim, dtype)
    try:
        return tilelang.compile(kernel, target=target, out_idx=[3], pass_configs=pass_configs(schedule))
    except Exception as error:
        what = f"block_M {schedule.block_M}, block_N {schedule.block_N}, threads {schedule.threads}, dim {dim}, {dtype}"
        raise KernelError(f"the kernel does not compile ({what}): {reason(error)}", "compile") from error


def flash_attention_kernel(
    schedule: Schedule, batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int, dim: int, dtype: str
) -> Any:
    """The PrimFunc main(Q, K, V, Output); Output [batch, seq_q, heads, dim] is argument 3.

    Q: [batch, seq_q, heads, dim], K and V: [batch, seq_kv, heads_kv, dim], all of `dtype` (float16 or bfloat16); the
    accumulators are float32. Raises ValueError when heads is no multiple of heads_kv or dtype is another one.
    """
    import tilelang.language as T

    if dtype not in ("float16", "bfloat16"):
        raise ValueError(f"dtype must be float16 or bfloat16, not {dtype!r}")
    if heads_kv < 1 or heads % heads_kv:
        raise ValueError(f"heads must be a multiple of heads_kv, not {heads} with heads_kv {heads_kv}")
    block_M, block_N, causal = schedule.block_M, schedule.block_N, schedule.causal
    refill_max, clear_max, merge_max = schedule.refill_max, schedule.clear_max, schedule.merge_max
    threads, num_stages = schedule.threads, schedule.num_stages
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    past, groups, accum_dtype = seq_kv - seq_q, heads // heads_kv, "float32"
    full_row = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor([batch, seq_q, heads, dim], dtype),
        K: T.Tensor([batch, seq_kv, heads_kv, dim], dtype),
        V: T.Tensor([batch, seq_kv, heads_kv, dim], dtype),
        Output: T.Tensor([batch, seq_q, heads, dim], dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)

            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))

            loop_range = T.ceildiv(seq_kv, block_N)
            if causal:
                loop_range = T.min(T.ceildiv(seq_kv, block_N), T.ceildiv(past + (bx + 1) * block_M, block_N))

            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by // groups, :], K_shared)
                if causal:
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(
                            past + bx * block_M + i >= k * block_N + j, 0, -T.infinity(accum_dtype)
                        )
                else:
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(k * block_N + j >= seq_kv, -T.infinity(accum_dtype), 0)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=full_row)

                T.copy(scores_max, scores_max_prev)
                if refill_max:
                    T.fill(scores_max, -T.infinity(accum_dtype))
                T.reduce_max(acc_s, scores_max, dim=1, clear=clear_max)
                if merge_max:
                    for i in T.Parallel(block_M):
                        scores_max[i] = T.max(scores_max[i], scores_max_prev[i])

                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)

                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by // groups, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=full_row)

            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])

    return main
