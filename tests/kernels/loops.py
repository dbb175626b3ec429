"""Kernels of our own for what elements and thread blocks do by themselves: atomics, exchanges, break, casts to 64 bits.

Annotations stay objects (no `from __future__ import annotations`): TileLang reads the parameters' shapes from them.
"""

from typing import Any

import numpy as np
import tilelang.language as T

from .entry import F16, F32, Kernel, normal, words_of, zeros


def shared_atomics(dtype: str, times: int) -> Any:
    """Sums, greatest and least numbers of `times` elements each, in shared memory."""

    def make() -> Any:
        @T.prim_func
        def main(X: T.Tensor((4, 64 * times), dtype), Y: T.Tensor((4, 3, 64), dtype)):
            with T.Kernel(4, threads=128) as bx:
                found = T.alloc_shared((3, 64), dtype)
                T.clear(found)
                for i in T.Parallel(64 * times):
                    T.atomic_add(found[0, i // times], X[bx, i])
                    T.atomic_max(found[1, i % 64], X[bx, i])
                    T.atomic_min(found[2, i % 64], X[bx, i])
                T.copy(found, Y[bx, :, :])

        return main

    return make


def extremes(dtype: str) -> Any:
    """The greatest and least float of all thread blocks, by atomics in global memory."""

    def make() -> Any:
        @T.prim_func
        def main(X: T.Tensor((8, 128), dtype), Y: T.Tensor((128,), dtype), Z: T.Tensor((128,), dtype)):
            with T.Kernel(8, threads=128) as bx:
                for i in T.Parallel(128):
                    T.atomic_max(Y[i], X[bx, i])
                    T.atomic_min(Z[i], X[bx, i])

        return main

    return make


def as_64_bits(source: str, target: str) -> Any:
    """Floats as integers of 64 bits."""

    def make() -> Any:
        @T.prim_func
        def main(X: T.Tensor((128,), source), Y: T.Tensor((128,), target)):
            with T.Kernel(1, threads=128):
                for i in T.Parallel(128):
                    Y[i] = T.Cast(target, X[i])

        return main

    return make


def sorted_rows() -> Any:
    """A bitonic sort in shared memory: in each turn, elements exchange in pairs."""

    @T.prim_func
    def main(X: T.Tensor((4, 256), "float32"), Y: T.Tensor((4, 256), "float32")):
        with T.Kernel(4, threads=256) as bx:
            x = T.alloc_shared((256,), "float32")
            T.copy(X[bx, :], x)
            T.sync_threads()
            for n in T.serial(8):
                for m in T.serial(n + 1):
                    for i in T.Parallel(256):
                        j = i ^ (1 << (n - m))
                        if i < j:
                            up = (i & (2 << n)) == 0
                            if (up and x[i] > x[j]) or (not up and x[i] < x[j]):
                                kept = T.alloc_var("float32")
                                kept = x[i]
                                x[i] = x[j]
                                x[j] = kept
                    T.sync_threads()
            T.copy(x, Y[bx, :])

    return main


def left_early() -> Any:
    """Each thread block, and each element, adds numbers until one that is too large; small ones do not count."""

    @T.prim_func
    def main(X: T.Tensor((16, 128), "float32"), Y: T.Tensor((16, 128), "float32"), Z: T.Tensor((16,), "float32")):
        with T.Kernel(16, threads=128) as bx:
            total = T.alloc_var("float32")
            for i in T.Parallel(128):
                total = 0.0
                for k in T.serial(16):
                    if X[(bx + k) % 16, i] > 2.0:
                        break
                    if X[(bx + k) % 16, i] < -1.0:
                        continue
                    total = total + X[(bx + k) % 16, i]
                Y[bx, i] = total
            kept = T.alloc_fragment((1,), "float32")
            kept[0] = 0.0
            for k in T.serial(128):
                if X[bx, k] > 3.0:
                    break
                if X[bx, k] < 0.0:
                    continue
                kept[0] = kept[0] + X[bx, k]
            Z[bx] = kept[0]

    return main


def _edges(dtype: str) -> Any:
    """Floats beside the ends of the integers of 64 bits, infinities and NaN among them."""
    from sim.arith import convert
    from sim.formats import FP32, dtype_named

    given = [0.0, -0.5, 2.9, -2.9, 2.0**31, 2.0**62, 2.0**63, 2.0**64, 1.5e19, -(2.0**63), -1e20, 65504.0, -65504.0]
    x = np.array([*given, np.inf, -np.inf, np.nan], np.float32)
    x = np.concatenate([x, np.ldexp(np.linspace(1, 2, 112, dtype=np.float32), np.arange(112) - 40).astype(np.float32)])
    fmt = dtype_named(dtype)
    return convert(x.view(np.uint32), FP32, fmt), fmt


KERNELS: dict[str, Kernel] = {
    "shared_atomics_int32": Kernel(shared_atomics("int32", 4), [words_of(4, 256, dtype="int32")]),
    "shared_atomics_pairs": Kernel(shared_atomics(F32, 2), [normal(4, 128, dtype=F32)]),
    "extremes_float32": Kernel(extremes(F32), [normal(8, 128, dtype=F32), zeros(128), zeros(128)], 0),
    "extremes_float16": Kernel(
        extremes(F16), [normal(8, 128, dtype=F16), zeros(128, dtype=F16), zeros(128, dtype=F16)], 0
    ),
    "float32_as_int64": Kernel(as_64_bits(F32, "int64"), [_edges(F32)]),
    "float32_as_uint64": Kernel(as_64_bits(F32, "uint64"), [_edges(F32)]),
    "sorted_rows": Kernel(sorted_rows, [normal(4, 256, dtype=F32)]),
    "left_early": Kernel(left_early, [normal(16, 128, dtype=F32)], 2),
}
