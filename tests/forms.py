"""The smallest kernels of each rule of contraction, and the terms that compiled code has for them (read in SASS).

A form is what a kernel stores, as text: fma(A, B, mul(C, D)) has the product of A and B fused and that of C and D
rounded. Inputs are A, B, C, D, X, Y; with `each` elements a thread. tests/test_contraction.py holds the simulator to
the texts on any machine, and the texts to compiled code where nvcc is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T

THREADS = 128
ORDER = "ABCDXY"


@dataclass(frozen=True)
class Form:
    """step: o = step(p, a, b, c, d, x, y), where p = product(...) is a fragment of its own if there is one.

    precise, fast: the texts without and with fast math, one if they are the same. order: in which inputs are loaded.
    """

    step: Callable[..., Any]
    precise: str
    fast: str = ""
    product: Callable[..., Any] | None = None
    each: int = 1
    dtype: str = "float32"
    order: str = ORDER
    through_copy: bool = False

    def expected(self, fast_math: bool) -> str:
        return self.fast if fast_math and self.fast else self.precise

    def make(self) -> Any:
        """The PrimFunc, its output last."""
        N, dtype, step, order = THREADS * self.each, self.dtype, self.step, self.order
        product = self.product or (lambda a, *_: a)

        @T.prim_func
        def main(
            A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype), D: T.Tensor((N,), dtype),
            X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype), Output: T.Tensor((N,), dtype),
        ):  # fmt: skip
            with T.Kernel(1, threads=THREADS):
                a, b, c, d = (T.alloc_fragment((N,), dtype) for _ in range(4))
                x, y, p, q, o = (T.alloc_fragment((N,), dtype) for _ in range(5))
                if order == "ABCDXY":
                    T.copy(A, a)
                    T.copy(B, b)
                    T.copy(C, c)
                    T.copy(D, d)
                else:
                    T.copy(D, d)
                    T.copy(C, c)
                    T.copy(B, b)
                    T.copy(A, a)
                T.copy(X, x)
                T.copy(Y, y)
                for i in T.Parallel(N):
                    p[i] = product(a[i], b[i], c[i], d[i])
                if self.through_copy:
                    T.copy(p, q)
                else:
                    for i in T.Parallel(N):
                        q[i] = p[i]
                for i in T.Parallel(N):
                    o[i] = step(q[i] if self.through_copy else p[i], a[i], b[i], c[i], d[i], x[i], y[i])
                T.copy(o, Output)

        return main


def ab(a: Any, b: Any, *_: Any) -> Any:
    return a * b


FORMS = {
    # one product and an addition
    "product plus": Form(lambda p, a, b, c, *_: a * b + c, "fma(A, B, C)"),
    "plus product": Form(lambda p, a, b, c, *_: c + a * b, "fma(A, B, C)"),
    "product minus": Form(lambda p, a, b, c, *_: a * b - c, "fma(A, B, -C)"),
    "minus product": Form(lambda p, a, b, c, *_: c - a * b, "fma(-A, B, C)"),
    "negated product plus": Form(lambda p, a, b, c, *_: -(a * b) + c, "fma(-A, B, C)"),
    "three factors": Form(lambda p, a, b, c, d, *_: a * b * c + d, "fma(C, mul(A, B), D)"),
    "maximum between": Form(lambda p, a, b, c, d, *_: T.max(a * b, c) + d, "add(D, max(C, mul(A, B)))"),
    # two products
    "sum of products": Form(lambda p, a, b, c, d, *_: a * b + c * d, "fma(A, B, mul(C, D))"),
    "older right product": Form(lambda p, a, b, c, d, *_: c * d + a * b, "fma(A, B, mul(C, D))"),
    "older right product, loaded last": Form(
        lambda p, a, b, c, d, *_: a * b + c * d, "fma(C, D, mul(A, B))", order="DCBAXY"
    ),
    "older right product in a loop": Form(
        lambda p, a, b, c, d, *_: c * d + a * b, "fma(C, D, mul(A, B))", each=8
    ),
    "difference of products": Form(lambda p, a, b, c, d, *_: a * b - c * d, "fma(A, B, -mul(C, D))"),
    "difference, older right": Form(lambda p, a, b, c, d, *_: c * d - a * b, "fma(C, D, -mul(A, B))"),
    "three products": Form(
        lambda p, a, b, c, d, x, y: a * b + c * d + x * y, "fma(X, Y, fma(A, B, mul(C, D)))"
    ),
    "sum of products plus": Form(lambda p, a, b, c, d, x, y: a * b + c * d + x, "add(X, fma(A, B, mul(C, D)))"),
    "plus two products": Form(lambda p, a, b, c, d, x, y: x + a * b + c * d, "fma(C, D, fma(A, B, X))"),
    "product of a fused sum": Form(
        lambda p, a, b, c, d, x, y: (a * b + c) * d + x * y, "fma(D, fma(A, B, C), mul(X, Y))"
    ),
    "literal factors": Form(lambda p, a, b, *_: a * 3.0 + b * 2.0, "fma(3, A, mul(2, B))"),
    "the same twice": Form(lambda p, a, b, *_: a * b + a * b, "fma(A, B, mul(A, B))"),
    # division and functions that end in a product
    "quotient plus": Form(lambda p, a, b, c, *_: a / b + c, "add(?(A, B), C)", "fma(A, rcp(B), C)"),
    "third plus": Form(lambda p, a, b, *_: a / 3.0 + b, "add(?(A, 3), B)", "fma(0.333333343, A, B)"),
    "1/255 plus": Form(lambda p, a, b, *_: a / 255.0 + b, "add(?(A, 255), B)", "fma(0.00392156886, A, B)"),
    "eighth plus": Form(lambda p, a, b, *_: a / 8.0 + b, "fma(0.125, A, B)"),
    "log plus": Form(lambda p, a, b, *_: T.log(a) + b, "add(?(A), B)", "fma(0.693147182, lg2(A), B)"),
    # what TileLang's simplifier cancels
    "the same subtracted": Form(lambda p, a, b, *_: (a - a) * b, "0"),
    "an addend subtracted": Form(lambda p, a, b, c, *_: (a + b) - b, "A"),
    "a product added and subtracted": Form(lambda p, a, b, c, *_: (c + a * b) - c, "mul(A, B)"),
    "a sum subtracted": Form(lambda p, a, b, c, *_: a - (b + a), "add(0, -B)"),
    "another order is not the same": Form(lambda p, a, b, *_: a * b - b * a, "add(mul(A, B), -mul(A, B))"),
    "subtracted and added": Form(lambda p, a, b, *_: (a - b) + b, "add(B, add(A, -B))"),
    # one product with several uses
    "through a fragment": Form(lambda p, a, b, c, *_: p + c, "fma(A, B, C)", product=ab),
    "through a copy": Form(lambda p, a, b, c, *_: p + c, "fma(A, B, C)", product=ab, through_copy=True),
    "two sums": Form(
        lambda p, a, b, c, d, *_: T.max(p + c, p - d), "max(fma(A, B, -D), fma(A, B, C))", product=ab
    ),
    "a sum and another use": Form(
        lambda p, a, b, c, *_: T.max(p + c, p), "max(add(C, mul(A, B)), mul(A, B))", product=ab
    ),
    "written twice": Form(
        lambda p, a, b, c, *_: T.max(p + c, b * a), "max(add(C, mul(A, B)), mul(A, B))", product=ab
    ),
    "addend of one, product of the other": Form(
        lambda p, a, b, c, d, x, y: T.max(a * b + p, p + x), "max(fma(A, B, mul(C, D)), fma(C, D, X))",
        product=lambda a, b, c, d: c * d,
    ),
    "subtrahend beside a product": Form(
        lambda p, a, b, c, d, x, y: T.max(x - p, c * d - p), "max(add(X, -mul(A, B)), fma(C, D, -mul(A, B)))",
        product=ab,
    ),
    "both terms of a difference": Form(lambda p, a, b, *_: p - b * a, "add(mul(A, B), -mul(A, B))", product=ab),
}  # fmt: skip
_TWICE = "max(fma(A, B, C), mul(A, B))"
for _dtype in ("float16", "bfloat16"):
    for _each in (1, 2):
        _more = {
            name: Form(FORMS[name].step, FORMS[name].precise, product=FORMS[name].product, dtype=_dtype, each=_each)
            for name in ("product plus", "minus product", "sum of products", "difference of products",
                         "product of a fused sum", "through a fragment", "two sums", "a sum and another use")
        }  # fmt: skip
        # in 16 bits equal products are not one, and the left one is fused
        _more["written twice"] = Form(FORMS["written twice"].step, _TWICE, product=ab, dtype=_dtype, each=_each)
        _more["older right product"] = Form(
            FORMS["older right product"].step, "fma(C, D, mul(A, B))", dtype=_dtype, each=_each
        )
        FORMS |= {f"{name}, {_dtype} by {_each}": form for name, form in _more.items()}


@dataclass(frozen=True)
class Walk:
    """A kernel with loops, branches or sums: the shapes of its arithmetic, an operand being mul, add, fma or x."""

    build: Callable[[], Any]
    shapes: str
    each: int = 2
    dtype: str = "float32"

    def make(self) -> Any:
        return self.build()


N = THREADS * 2


def outside_of_a_loop() -> Any:
    """A product of what does not change in a loop is made before it."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
        D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
        Output: T.Tensor((N,), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=THREADS) as bx:
            a, b, o = (T.alloc_fragment((THREADS,), "float32") for _ in range(3))
            T.copy(A[bx * THREADS], a)
            T.copy(B[bx * THREADS], b)
            T.copy(X[bx * THREADS], o)
            for _k in T.serial(bx + 3):
                for i in T.Parallel(THREADS):
                    o[i] = o[i] + a[i] * b[i]
            T.copy(o, Output[bx * THREADS])

    return main


def after_a_branch() -> Any:
    """A product that one path has made is made on the other too, and both meet: log-sum-exp after a masked block."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
        D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
        Output: T.Tensor((N,), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=THREADS) as bx:
            a, b, q, o, x = (T.alloc_fragment((THREADS,), "float32") for _ in range(5))
            T.copy(A[bx * THREADS], a)
            T.copy(B[bx * THREADS], b)
            T.copy(C[bx * THREADS], q)
            T.copy(D[bx * THREADS], o)
            T.copy(X[bx * THREADS], x)
            if bx > 0:
                for i in T.Parallel(THREADS):
                    q[i] = x[i]
                for k in T.Parallel(THREADS):
                    o[k] = a[k] * b[k] - q[k] * 3.0
            for i in T.Parallel(THREADS):
                o[i] = o[i] + q[i] * 3.0
            T.copy(o, Output[bx * THREADS])

    return main


def over_a_loop(needed: bool) -> Callable[[], Any]:
    """A product that is made before a loop and added after it; `needed`: so is what it is made of."""

    def make() -> Any:
        @T.prim_func
        def main(
            A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
            D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
            Output: T.Tensor((N,), "float32"),
        ):  # fmt: skip
            with T.Kernel(2, threads=THREADS) as bx:
                a, b, p, o = (T.alloc_fragment((THREADS,), "float32") for _ in range(4))
                x = T.alloc_shared((THREADS,), "float32")
                T.copy(A[bx * THREADS], a)
                T.copy(B[bx * THREADS], b)
                T.copy(C[bx * THREADS], o)
                for i in T.Parallel(THREADS):
                    a[i] = a[i] + o[i]
                for i in T.Parallel(THREADS):
                    p[i] = a[i] * b[i]
                for _k in T.serial(bx + 3):
                    T.copy(X[bx * THREADS], x)
                    for i in T.Parallel(THREADS):
                        o[i] = T.max(o[i], x[THREADS - 1 - i])
                for i in T.Parallel(THREADS):
                    o[i] = p[i] + o[i]
                for i in T.Parallel(THREADS):
                    Output[bx * THREADS + i] = T.max(T.max(o[i], a[i]), b[i]) if needed else o[i]

        return main

    return make


def summed(stored: bool) -> Callable[[], Any]:
    """Products in a sum over a row; `stored`: they leave the fragment as well."""

    def make() -> Any:
        @T.prim_func
        def main(
            A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
            D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
            Output: T.Tensor((N,), "float32"),
        ):  # fmt: skip
            with T.Kernel(1, threads=THREADS):
                a, b, p = (T.alloc_fragment((2, THREADS), "float32") for _ in range(3))
                total = T.alloc_fragment((2,), "float32")
                for i, j in T.Parallel(2, THREADS):
                    a[i, j] = A[i * THREADS + j]
                    b[i, j] = B[i * THREADS + j]
                for i, j in T.Parallel(2, THREADS):
                    p[i, j] = a[i, j] * b[i, j]
                T.reduce_sum(p, total, dim=1)
                for i, j in T.Parallel(2, THREADS):
                    Output[i * THREADS + j] = T.max(total[i], p[i, j]) if stored else total[i]

        return main

    return make


def converted(narrow: str, looping: bool) -> Callable[[], Any]:
    """A product of a value of a narrow type, which is used twice or does not change in a loop."""

    def make() -> Any:
        @T.prim_func
        def main(
            A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
            D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
            Output: T.Tensor((N,), "float32"),
        ):  # fmt: skip
            with T.Kernel(2, threads=THREADS) as bx:
                a, b, o = (T.alloc_fragment((THREADS,), "float32") for _ in range(3))
                h = T.alloc_fragment((THREADS,), narrow)
                T.copy(A[bx * THREADS], a)
                T.copy(B[bx * THREADS], b)
                T.copy(C[bx * THREADS], o)
                for i in T.Parallel(THREADS):
                    h[i] = T.cast(a[i], narrow)
                if looping:
                    for _k in T.serial(bx + 3):
                        for i in T.Parallel(THREADS):
                            o[i] = o[i] + T.cast(h[i], "float32") * b[i]
                else:
                    for i in T.Parallel(THREADS):
                        o[i] = T.max(T.cast(h[i], "float32") * b[i], o[i])
                    for i in T.Parallel(THREADS):
                        o[i] = o[i] - T.cast(h[i], "float32") * b[i]
                T.copy(o, Output[bx * THREADS])

        return main

    return make


def from_shared_memory() -> Any:
    """A copy to registers between two uses of a product of shared memory: it is one product."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
        D: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
        Output: T.Tensor((N,), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=THREADS) as bx:
            a = T.alloc_shared((THREADS,), "float32")
            o, x = (T.alloc_fragment((THREADS,), "float32") for _ in range(2))
            T.copy(A[bx * THREADS], a)
            T.copy(C[bx * THREADS], o)
            for i in T.Parallel(THREADS):
                o[i] = T.max(a[i] * 1.7, o[i])
            T.copy(X[bx * THREADS], x)
            for i in T.Parallel(THREADS):
                o[i] = o[i] * (x[i] + a[i] * 1.7)
            T.copy(o, Output[bx * THREADS])

    return main


WALKS = {
    "outside of a loop": Walk(outside_of_a_loop, "add(add, mul) add(mul, x) mul(x, x)"),
    "after a branch": Walk(after_a_branch, "add(fma, mul) add(mul, x) fma(x, x, mul) mul(3, x)"),
    "over a loop": Walk(over_a_loop(False), "add(mul, x) add(x, x) mul(add, x)"),
    "over a loop, operands needed": Walk(over_a_loop(True), "add(x, x) fma(add, x, x)"),
    "of float16, twice": Walk(converted("float16", False), "fma(x, x, x) mul(x, x)"),
    "of float16, in a loop": Walk(converted("float16", True), "fma(x, x, fma) fma(x, x, x)"),
    "of float8, twice": Walk(converted("float8_e4m3fn", False), "fma(x, x, x) mul(x, x)"),
    "of bfloat16, twice": Walk(converted("bfloat16", False), "add(mul, x) mul(x, x)"),
    "of bfloat16, in a loop": Walk(converted("bfloat16", True), "add(add, mul) add(mul, x) mul(x, x)"),
    "from shared memory": Walk(from_shared_memory, "add(mul, x) mul(1.70000005, x) mul(add, x)"),
    "in a sum": Walk(summed(False), "add(add, x) add(fma, x) fma(x, x, 0) fma(x, x, fma)"),
    "in a sum and stored": Walk(summed(True), "add(0, mul) add(add, mul) add(add, x) mul(x, x)"),
}


def inputs(form: Form | Walk) -> list[Any]:
    """A, B, C, D, X, Y as words: about normal."""
    from kernels.entry import normal

    return [normal(THREADS * form.each, dtype=form.dtype)(n) for n in range(6)]
