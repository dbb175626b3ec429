"""Which products the compiler contracts with the additions that use them, decided from the text of a whole kernel.

The rules are those of docs/NUMERICS.md, section 3, each read in SASS: a product is fused when all its uses are
additions or subtractions that can take it, and is rounded in all of them otherwise. Uses are followed through
fragments, local buffers, variables and copies between them; equal products of the same values are one product with the
uses of all. What the rules do not settle is kept as a question.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

__all__ = ["Contraction"]

_REGISTERS = ("local.fragment", "local", "local.var")
_HALF = ("float16", "bfloat16")
_FOLDED = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv}  # TVM folds x*0
_UNROLLED = 16  # turns of a loop over registers that the compiler certainly unrolls
_SMALL = 4  # float32 of a thread that one vector access takes: longer fragments are walked by a loop


class _Version:
    """What a buffer or variable holds from one store on.

    product: the product that was stored, when it may stay open. parents: what the paths that meet here hold.
    loops: the serial loops around the place. order: its place in the program. read: the last piece of code that
    reads it, infinity when a later turn does.
    """

    def __init__(self, order: int, loops: tuple[Any, ...]):
        self.order, self.loops = order, loops
        self.product: _Product | None = None
        self.parents: list[_Version] = []
        self.looping = False  # one of the parents is the end of the loop that starts here
        self.read = -1.0

    def is_read(self, place: float) -> None:
        """A piece of code reads this, and so what the paths left that meet here."""
        if place > self.read:
            self.read = place
            for n, parent in enumerate(self.parents):
                parent.is_read(float("inf") if n and self.looping else place)

    def products(self, seen: set[int] | None = None) -> Iterator[_Product]:
        """The products that may be here."""
        seen = set() if seen is None else seen
        if id(self) not in seen:
            seen.add(id(self))
            if self.product is not None:
                yield self.product
            for parent in self.parents:
                yield from parent.products(seen)


class _Product:
    """One product of the compiled code: whether something other than an addition uses it.

    cleared: it lies in the accumulator of a wgmma that clears it. The first half of the compiler takes that for a use
    and fuses nothing; the second does, up to the next shuffle or barrier. operands: the values that it is made of,
    None for one that nothing else has. reloaded: one of them is memory that the same piece of code has stored.
    """

    def __init__(self, walk: _Walk, home: tuple[Any, ...], rank: float):
        self.scope, self.home, self.rank, self.statement = walk.scope, home, rank, walk.statements
        self.joins, self.pieces, self.place = walk.joins, walk.pieces, walk.place
        self.rounded = self.cleared = self.reloaded = False
        self.added: set[tuple[int, int]] = set()  # where additions use it: the piece of code, `joins`
        self.operands: list[_Version | None] = []

    def dying(self) -> int:
        """How many of its operands nothing reads after the piece of code that makes it, nor in its loop's next turn."""
        inside = lambda v: len(v.loops) >= len(self.home)  # noqa: E731
        distinct = {id(v): v for v in self.operands if v is None or inside(v) and v.read <= self.place}
        return len(distinct) + max(0, self.operands.count(None) - 1)


class Contraction:
    """The decisions for one kernel. body: its statement (None: nothing is fused); fast_math: TL_ENABLE_FAST_MATH.

    questions: sentences about what the rules leave open; a word of such a kernel should be checked on a GPU.
    """

    def __init__(self, body: Any = None, fast_math: bool = False):
        self.fast_math, self.questions = fast_math, []  # type: bool, list[str]
        self._sums: dict[Any, tuple[str, _Product | None, _Product | None]] = {}
        self._stores: dict[Any, _Product | None] = {}
        self._take: dict[Any, str | None] = {}
        self._entering: dict[Any, _Product] = {}
        self._cancelled: dict[Any, Any] = {}
        self._crossing: list[tuple[_Product, bool]] = []  # made before a loop, branch (True) or transfer, added after
        self._far: list[_Product] = []  # made in an earlier statement than an addition of theirs
        if body is not None:
            _Walk(self).statement(body)
            self._decide()

    def cancelled(self, e: Any) -> Any:
        """`e` after TileLang's own simplifier, which cancels floats as if none were NaN or rounded.

        x - x is 0, (x + y) - y and (y + x) - y are x, x - (x + y) and x - (y + x) are 0 - y, where the two x are the
        same expression. Read in the CUDA source that TileLang 0.1.15 writes.
        """
        name = type(e).__name__
        if name not in _FOLDED or "float" not in str(e.dtype):
            return e
        if e not in self._cancelled:
            a, b = self.cancelled(e.a), self.cancelled(e.b)
            new = e if a.same_as(e.a) and b.same_as(e.b) else _FOLDED[name](a, b)
            self._cancelled[e] = _cancelled(new) if type(new).__name__ == "Sub" else new
        return self._cancelled[e]

    def operand(self, e: Any) -> str | None:
        """Which operand of the addition or subtraction `e` is the fused product: "a", "b" or None."""
        return self._take.get(e)

    def entering(self, e: Any) -> bool:
        """Whether the left operand of `e` is a product in the first turn of an unrolled loop: then it is fused."""
        return e in self._entering and not self._entering[e].rounded

    def keeps(self, s: Any) -> bool:
        """Whether the product that the store, copy or sum `s` takes is not rounded there."""
        product = self._stores.get(s)
        return product is not None and not product.rounded

    def keeps_first(self, s: Any) -> bool:
        """Whether the sum `s` fuses products only in what it adds before its first all-reduce."""
        product = self._stores.get(s)
        return product is not None and product.cleared

    def ask(self, sentence: str) -> None:
        if sentence not in self.questions:
            self.questions.append(sentence)

    def _decide(self) -> None:
        for kind, p, q in self._sums.values():
            if kind == "Sub" and p is not None and q is not None and not p.rounded:
                q.rounded = True  # of `a*s - m*s` the left product is the fused one, and m*s is needed
        for product, parted in self._crossing:
            product.rounded |= parted and product.dying() > 1  # it costs fewer registers than what it is made of
        if any(not product.rounded for product, _ in self._crossing):
            self.ask("a product made before a loop, branch or transfer and added after it")
        if any(product.rounded for product in self._far):
            self.ask("a product with other uses that is added in a later statement")
        for e, (kind, p, q) in self._sums.items():
            left, right = (x is not None and not x.rounded for x in (p, q))
            both = left and right and kind == "Add"
            self._take[e] = self._first(e, p, q) if both else "a" if left else "b" if right else None

    def _first(self, e: Any, p: Any, q: Any) -> str:
        """Of a*b + c*d the product whose operands were there first; in a loop of registers and in 16 bits the left."""
        if q.rank < p.rank and str(e.dtype) not in _HALF:
            self.ask("a*b + c*d whose right product has the older operands")
            return "b"
        if p.reloaded or q.reloaded:
            self.ask("a*b + c*d of elements of memory that were just stored")
        return "a"


class _Walk:
    """Walks a kernel in program order and notes products, their uses and what buffers hold."""

    def __init__(self, found: Contraction):
        self.found = found
        self.state: dict[Any, _Version] = {}
        self.scope: tuple[Any, ...] = ()  # ("loop", For, unrolled) and ("arm", IfThenElse, which) around the place
        self.axes: dict[Any, int] = {}  # variables of the T.Parallel loop -> extent
        self.serial: dict[Any, tuple[Any, ...]] = {}  # variables of serial loops -> the loops up to it
        self.guarded = False  # in an if inside a T.Parallel loop
        self.threads = 1
        self.epoch = 0  # of shared memory
        self.statements = 0
        self.made = 0  # products of the statement so far
        self.crossing = found._crossing
        self.joins = 0  # loops, branches and transfers that have ended
        self.shared: set[Any] = set()  # fragments of sums: several threads hold the same
        self.pieces = 0  # the same without transfers: pieces of code between branches
        self.place = 0  # loops and arms that have begun or ended
        self.fresh: dict[Any, int] = {}  # memory -> the piece of code that stored an element last
        self.written: set[Any] = set()
        self._made: dict[Any, _Version] = {}
        self._numbers: dict[Any, int] = {}
        self._products: dict[str, list[_Product]] = {}

    @property
    def loops(self) -> tuple[Any, ...]:
        return tuple(part[1] for part in self.scope if part[0] == "loop")

    def version(self, key: Any) -> _Version:
        """The version of a place in the program; a loop's body is walked twice and makes it once."""
        if key not in self._made:
            self._made[key] = _Version(len(self._made) + 1, self.loops)
        return self._made[key]

    def held(self, data: Any) -> _Version:
        if data not in self.state:
            first = self._made.setdefault(("first", data), _Version(0, ()))
            self.state[data] = first
        return self.state[data]

    # statements

    def statement(self, s: Any) -> None:
        self.statements, self.made = self.statements + 1, 0
        method = getattr(self, "_" + type(s).__name__.lower(), None)
        if method is not None:
            method(s)

    def _seqstmt(self, s: Any) -> None:
        for part in s.seq:
            self.statement(part)

    def _sblockrealize(self, s: Any) -> None:
        self._sblock(s.block)

    def _sblock(self, s: Any) -> None:
        for n in s.annotations.get("tl.launch_threads") or ():
            self.threads *= int(n)
        self.statement(s.body)

    def _attrstmt(self, s: Any) -> None:
        self.statement(s.body)

    def _for(self, s: Any) -> None:
        if s.thread_binding is not None:
            self.threads = 1
            return self.statement(s.body)
        if int(s.kind) == 1:
            return self._parallel(s)
        self.other(s.min)
        self.other(s.extent)
        self.serial[s.loop_var] = (*self.loops, s)
        trips = int(s.extent) if type(s.extent).__name__ == "IntImm" else None
        self._loop(s, s.body, trips)

    def _while(self, s: Any) -> None:
        self._loop(s, s.body, None, s.condition)

    def _parallel(self, s: Any) -> None:
        outer = self.axes
        while type(s).__name__ == "For" and int(s.kind) == 1:
            self.axes = {**self.axes, s.loop_var: int(s.extent) if type(s.extent).__name__ == "IntImm" else -1}
            s = s.body
        self.statement(s)
        self.axes = outer

    def _loop(self, s: Any, body: Any, trips: int | None, test: Any = None) -> None:
        """A serial loop: what it stores is, at its head, what was there before or what its end leaves."""
        before, scope = dict(self.state), self.scope
        stored = list(dict.fromkeys(_stored(body)))
        self.scope = (*scope, ("loop", s, trips is not None and trips > 0))
        heads = {}
        for data in stored:
            heads[data] = self.version(("head", s, data))
            heads[data].looping, heads[data].parents = True, [self.held(data)]
        counted = self.statements, self.joins, self.pieces, self.place + 1
        for _ in range(1 if trips == 1 else 2):
            self.statements, self.joins, self.pieces, self.place = counted
            self.state |= heads
            if test is not None:
                self.other(test)
            self.statement(body)
            for data in stored if trips != 1 else ():
                heads[data].parents = [heads[data].parents[0], self.held(data)]
        end, self.scope = self.state, scope
        self._parted()
        if trips is None or trips < 1:
            for data in stored:
                self.state[data] = self._met(("after", s, data), before.get(data), end[data])

    def _ifthenelse(self, s: Any) -> None:
        self.other(s.condition)
        before, scope, ends = dict(self.state), self.scope, []
        guarded, self.guarded = self.guarded, self.guarded or bool(self.axes)
        for arm, body in enumerate((s.then_case, s.else_case)):
            self.state, self.scope = dict(before), (*scope, ("arm", s, arm))
            self.place += not self.axes
            if body is not None:
                self.statement(body)
            ends.append(self.state)
        self.scope, self.guarded, self.state = scope, guarded, dict(before)
        if not self.axes:
            self._parted()
        for data in dict.fromkeys([*ends[0], *ends[1]]):
            self.state[data] = self._met(("merge", s, data), *(end.get(data) for end in ends))

    def _met(self, key: Any, one: _Version | None, other: _Version | None) -> _Version:
        """What two paths leave: one version when it is the same."""
        if one is other and one is not None:
            return one
        first = self.version(("unwritten", key))
        met = self.version(key)
        met.parents = [one or first, other or first]
        return met

    def _bufferstore(self, s: Any) -> None:
        value = self.value(s.value)
        for index in s.indices:
            self.other(index)
        data = s.buffer.data
        if s.buffer.scope() not in _REGISTERS:
            self.use(value)
            self._written(s, data, s.buffer.scope())
            self.fresh[data] = self.pieces
            return
        whole = self._whole(s.buffer, s.indices) and not self.guarded and set(self.axes) <= set(s.indices)
        if isinstance(value, _Product) and whole:
            self.found._stores[s] = value
        else:
            self.use(value)
        new = self.version(("store", s))
        new.product = value if isinstance(value, _Product) and whole else None
        if not whole and self.held(data) is not new:
            new.parents, new.looping = [self.held(data)], True
        self.state[data] = new

    def _written(self, s: Any, data: Any, scope: str) -> None:
        """Shared or global memory was stored to: what is read later is something else."""
        self.written.add(data)
        self.state[data] = self.version(("written", s, data))
        if scope.startswith("shared"):
            self.epoch = self._numbers.setdefault(s, len(self._numbers) + 1)

    def _bind(self, s: Any) -> None:
        value = self.value(s.value)
        new = self.version(("bind", s))
        new.product = value if isinstance(value, _Product) else None
        if not isinstance(value, _Product):
            self.use(value)
        self.state[s.var] = new

    def _evaluate(self, s: Any) -> None:
        call = s.value
        name = getattr(getattr(call, "op", None), "name", "")
        if name == "tl.tileop.copy" and self._moved(call):
            return
        if name == "tl.tileop.reduce" and str(call.args[2].value) == "sum" and self._summed(call):
            self._write(call, call.args[1])
            return
        if name in ("tl.tileop.gemm", "tl.tileop.wgmma_gemm") and _only_written(call.args[2]):
            if by_wgmma(call, self.threads):
                for product in self.held(call.args[2].args[0].buffer.data).products():
                    product.cleared = True
        for argument in getattr(call, "args", ()):
            if _only_written(argument):
                for index in argument.args[0].indices:
                    self.other(index)
            else:
                self.other(argument)
        if name == "tl.tileop.copy" and call.args[0].args[0].buffer.data in self.shared:
            self._parted()  # one of them stores it
        for argument in getattr(call, "args", ()):
            self._write(call, argument)
            region = getattr(getattr(argument, "op", None), "name", "") == "tl.region"
            self.joins += region and argument.args[0].buffer.scope() == "global"  # one thread starts the transfer
        if name not in ("tl.tileop.copy", "tl.tileop.fill") or _in_shared(call):
            self.epoch = self._numbers.setdefault(s, len(self._numbers) + 1)  # threads may have met at a barrier

    def _write(self, call: Any, argument: Any) -> None:
        """A new version of the buffer that an operand of a tile operator names, if the operator stores to it."""
        name = getattr(getattr(argument, "op", None), "name", "")
        if name == "tl.region" and int(argument.args[1]) & 2 or name == "tl.access_ptr":
            buffer = argument.args[0].buffer
            if buffer.scope() in _REGISTERS:
                self.state[buffer.data] = self.version(("operator", call, buffer.data))
            else:
                self._written(call, buffer.data, buffer.scope())

    def _moved(self, call: Any) -> bool:
        """A copy of a whole tile in registers to another: the target holds what the source does."""
        source, target = (_whole_region(x) for x in call.args[:2])
        if source is None or target is None or str(source.dtype) != str(target.dtype):
            return False
        version = self.held(source.data)
        self.state[target.data] = version
        self.found._stores[call] = version.product
        return True

    def _summed(self, call: Any) -> bool:
        """T.reduce_sum of products: they are used by additions."""
        source = _whole_region(call.args[0])
        product = None if source is None else self.held(source.data).product
        self.found._stores[call] = product
        if product is None:
            self.other(call.args[0])
        elif len(product.home) < len(self.loops):
            product.rounded = True
        else:
            self._adds(product)
            self._crosses(product)
        target = _whole_region(call.args[1])
        if target is not None:
            self.shared.add(target.data)
        if not bool(call.args[4]):
            self.other(call.args[1])
        return True

    # expressions

    def use(self, value: Any) -> None:
        """Something other than an addition uses a value: a product is rounded."""
        for product in value.products() if isinstance(value, _Version) else [value] if value is not None else []:
            product.rounded = True

    def other(self, e: Any) -> None:
        self.use(self.value(e))

    def value(self, e: Any) -> _Product | _Version | None:
        """What an expression is: a product, the meeting of paths that may hold one, or neither."""
        e = self.found.cancelled(e)
        kind = type(e).__name__
        if kind == "BufferLoad":
            for index in e.indices:
                self.other(index)
            self.held(e.buffer.data).is_read(self.place)
            return self._loaded(self.held(e.buffer.data), self._whole(e.buffer, e.indices))
        if kind == "Var":
            if e in self.state:
                self.state[e].is_read(self.place)
            return self._loaded(self.state[e], True) if e in self.state else None
        if kind in ("Mul", "Div") and "float" in str(e.dtype):
            return self._multiplied(e)
        if kind in ("Add", "Sub") and "float" in str(e.dtype):
            self._added(e, kind)
            return None
        if kind == "Call" and getattr(e.op, "name", "") == "tirx.log" and self.found.fast_math:
            self.other(e.args[0])
            return self._product(e)
        for child in _children(e):
            self.other(child)
        return None

    def _loaded(self, version: _Version, whole: bool) -> _Product | _Version | None:
        if version.product is not None and whole:
            return version.product
        return version if any(True for _ in version.products()) else None

    def _multiplied(self, e: Any) -> _Product | _Version | None:
        left = self.value(e.a)
        if type(e).__name__ == "Mul" and _is_one(e.b):  # a negation, or nothing
            return left
        self.use(left)
        self.other(e.b)
        return self._product(e) if type(e).__name__ == "Mul" or self._reciprocal(e) else None

    def _reciprocal(self, e: Any) -> bool:
        """Whether a division is a product with a reciprocal: with fast math but for 1/x, else by a power of two."""
        if str(e.dtype) != "float32" or _is_one(e.a):
            return False
        return self.found.fast_math or type(e.b).__name__ == "FloatImm" and exact_reciprocal(float(e.b.value))

    def _added(self, e: Any, kind: str) -> None:
        _, _, loops, _ = self._text(e, {})
        values = [self.value(x) for x in (e.a, e.b)]
        first = self._first_turn(values[0])
        if first is not None:
            self.found._entering[e], values[0] = first, None
        operands = [self._addend(x, loops) for x in values]
        self.found._sums[e] = (kind, operands[0], operands[1])
        if kind == "Add" and str(e.dtype) == "float32":
            for product in operands:
                if product is not None and product.statement < self.statements and product.scope == self.scope:
                    self.found._far.append(product)

    def _first_turn(self, value: Any) -> _Product | None:
        """The product that a variable holds in the first turn of a short loop over registers, which is unrolled."""
        if not (isinstance(value, _Version) and value.looping and self.axes and self.loops):
            return None
        loop, entry = self.loops[-1], value.parents[0].product
        trips = getattr(getattr(loop, "extent", None), "value", None)
        if entry is None or trips is None or not 0 < int(trips) <= _UNROLLED or not _unrolled(loop):
            return None
        return entry if entry.home == self.loops[:-1] and value.loops == self.loops else None

    def _adds(self, product: _Product) -> None:
        """An addition uses a product; one that is added in several pieces of code is rounded once for all."""
        product.added.add((self.pieces, self.joins))
        if len({piece for piece, _ in product.added}) > 1:
            product.rounded = True
        elif len(product.added) > 1:
            self.found.ask("a product that is added on both sides of a transfer")

    def _crosses(self, product: _Product) -> None:
        """Note a product that is added in another piece of code than the one that makes it."""
        if product.joins != self.joins:
            self.crossing.append((product, product.pieces != self.pieces))

    def _parted(self) -> None:
        """A branch, or a loop's end."""
        self.joins += 1
        self.pieces += 1
        self.place += 1

    def _addend(self, value: Any, loops: tuple[Any, ...]) -> _Product | None:
        """The product that an addition inside `loops` may take; one made outside of a loop is rounded there."""
        if isinstance(value, _Version):
            if any(not p.rounded for p in value.products()):
                self.found.ask("a product that meets another value before it is added")
            self.use(value)
            return None
        if value is not None and len(value.home) < len(loops):
            inner = loops[len(value.home) :]
            if all(_unrolled(loop) for loop in inner):
                self.found.ask("a product made outside of a loop that the compiler may unroll, and added inside")
                return value
            value.rounded = True
            return None
        if value is not None:
            self._adds(value)
            self._crosses(value)
        return value

    def _product(self, e: Any) -> _Product:
        """The product of `e`, that of an equal one computed before if there is one."""
        text, versions, home, rank = self._text(e, {})
        self._carried(e, versions)
        self.made += 1
        if self._assembly(e, text):  # the compiler does not know that two are equal, and leaves it where it is
            text, home = f"{text}|{self.statements}.{self.made}", self.loops
        found = self._products.setdefault(text, [])
        for product in found:
            relation = _relation(product.scope, self.scope)
            if relation == "dominates":
                return product
            if relation == "partly":
                product.rounded = True
                new = self._new(found, home, rank)
                new.rounded = True
                return new
        new = self._new(found, home, rank)
        new.operands = [v for x in (e.a, e.b) for v in self._registers(x)] if hasattr(e, "b") else []
        loads = [x.buffer.data for x in _within(e) if type(x).__name__ == "BufferLoad"]
        new.reloaded = any(self.fresh.get(data) == self.pieces for data in loads)
        self._meets(e, new, versions)
        return new

    def _assembly(self, e: Any, text: str) -> bool:
        """Whether inline assembly makes a product or an operand of it: 16-bit arithmetic and conversions.

        A conversion of one bfloat16 to float32 is a shift; two at once are assembly.
        """
        if str(e.dtype) in _HALF:
            return True
        casts = [(str(x.value.dtype), str(x.dtype), x) for x in _within(e) if type(x).__name__ == "Cast"]
        if any(_by_assembly(source, target) for source, target, _ in casts):
            return True
        pairs = any(source == "bfloat16" and self._in_pairs(x.value) for source, _, x in casts)
        if pairs and self._products.get(text):
            self.found.ask("equal products of bfloat16 converted in pairs")
        return pairs

    def _in_pairs(self, x: Any) -> bool:
        """Whether a thread has several neighbours of an element, and reads them at once."""
        if type(x).__name__ != "BufferLoad" or not self.axes:
            return False
        inner, count = list(self.axes)[-1], 1
        for extent in self.axes.values():
            count *= max(extent, 1)
        return count > self.threads and any(y.same_as(inner) for i in x.indices for y in _within(i))

    def _registers(self, x: Any) -> list[_Version | None]:
        """The value that an operand of a product takes a register for: none for what is the same in all threads."""
        kind = type(x).__name__
        if kind == "Cast":
            return self._registers(x.value)
        if kind == "BufferLoad" and x.buffer.scope() in _REGISTERS:
            return [self.held(x.buffer.data)]
        if kind == "Var":
            return [self.state[x]] if x in self.state else []
        return [None] if any(type(y).__name__ == "BufferLoad" for y in _within(x)) else []

    def _new(self, found: list[_Product], home: tuple[Any, ...], rank: float) -> _Product:
        product = _Product(self, home, rank)
        found.append(product)
        return product

    def _meets(self, e: Any, new: _Product, versions: list[_Version]) -> None:
        """A product of what paths left, of which one has it already: the compiler computes it on the others.

        Not around a loop: an operand that the last iteration left is not known to be the same.
        """
        for n, path in _paths({v: v for v in versions}):
            text, *_ = self._text(e, path)
            for product in self._products.get(text, []):
                if product is not new and n == 1:
                    product.rounded = new.rounded = True
                elif product is not new:
                    self.found.ask("a product that a branch inside of a branch or loop has made, and added after it")

    def _carried(self, e: Any, versions: list[_Version]) -> None:
        """Ask about a product of a pipelined loop that the turn before has made: peeled turns share it.

        Turns are peeled of a loop that threads fill themselves, element by element.
        """
        ends = {v: v.parents[1] for v in versions if v.looping and len(v.parents) > 1}
        if ends and any(_pipelined(loop) and _gathers(loop.body) for loop in self.loops):
            if self._products.get(self._text(e, ends)[0]):
                self.found.ask("a product of a pipelined loop that the turn before has made")

    def _text(self, e: Any, instead: dict[_Version, _Version]) -> tuple[str, list[_Version], tuple[Any, ...], float]:
        """An expression as text that is equal for equal values, its versions, the loops that it is made in, its rank.

        instead: versions to read in the place of others.
        """
        versions: list[_Version] = []
        loops: list[tuple[Any, ...]] = [()]
        rank = [0.0]

        def load(e: Any) -> str:
            version = self.held(e.buffer.data)
            indices = ",".join(text(i) for i in e.indices)
            scope = e.buffer.scope()
            if scope in _REGISTERS:
                versions.append(version)
                loops.append(version.loops)
                rank.append(version.order if self._small(e.buffer) else float("inf"))
            else:
                rank.append(float("inf"))
                if scope.startswith("shared") or e.buffer.data in self.written:
                    loops.append(self.loops)
            place = instead.get(version, version).order if scope in _REGISTERS else version.order
            memory = f"s{self.epoch}" if scope.startswith("shared") else "" if place else f"b{hash(e.buffer.data)}"
            return f"{memory}v{place}[{indices}]"

        def text(e: Any) -> str:
            kind = type(e).__name__
            if kind == "BufferLoad":
                return load(e)
            if kind == "Var":
                if e in self.axes:
                    return f"i{list(self.axes).index(e)}of{self.axes[e]}"
                if e in self.state:
                    versions.append(self.state[e])
                    loops.append(self.state[e].loops)
                    rank.append(self.state[e].order)
                    return f"v{instead.get(self.state[e], self.state[e]).order}"
                loops.append(self.serial.get(e, ()))
                return f"x{hash(e)}"
            if kind in ("FloatImm", "IntImm", "StringImm"):
                return repr(getattr(e, "value", e))
            parts = [text(x) for x in _children(e)]
            if kind in ("Mul", "Add"):
                parts.sort()
            return f"{kind if kind != 'Call' else e.op.name}:{e.dtype}({';'.join(parts)})"

        found = text(e)
        return found, versions, max((_common(x, self.loops) for x in loops), key=len), max(rank)

    def _small(self, buffer: Any) -> bool:
        """Whether a thread's part of a buffer is a few registers from the start, not an array that a loop walks."""
        count = 1
        for n in buffer.shape:
            if type(n).__name__ != "IntImm":
                return False
            count *= int(n)
        return count <= _SMALL * (self.threads if buffer.scope() == "local.fragment" else 1)

    def _whole(self, buffer: Any, indices: Any) -> bool:
        """Whether the indices walk all of a buffer, each loop variable along one axis."""
        seen = []
        for index, extent in zip(indices, buffer.shape, strict=True):
            if type(extent).__name__ != "IntImm":
                return False
            if int(extent) == 1 and type(index).__name__ == "IntImm" and int(index) == 0:
                continue
            if type(index).__name__ != "Var" or self.axes.get(index) != int(extent) or index in seen:
                return False
            seen.append(index)
        return True


def _cancelled(e: Any) -> Any:
    from tvm.tirx import FloatImm, Sub
    from tvm.tirx.analysis import expr_deep_equal as same

    zero, a, b = FloatImm(str(e.dtype), 0.0), e.a, e.b
    if same(a, b):
        return zero
    if type(a).__name__ == "Add":
        rest = a.a if same(a.b, b) else a.b if same(a.a, b) else None
        if rest is not None:
            return rest
    if type(b).__name__ == "Add":
        rest = b.a if same(b.b, a) else b.b if same(b.a, a) else None
        if rest is not None:
            return Sub(zero, rest)
    return e


def exact_reciprocal(x: float) -> bool:
    """Whether x is a power of two, so that 1/x is no approximation."""
    from math import frexp

    return x != 0 and abs(frexp(x)[0]) == 0.5


def _paths(held: dict[_Version, _Version], deep: int = 1) -> Iterator[tuple[int, dict[_Version, _Version]]]:
    """What versions were on each path to here, back to the last loop's head, and how many meetings ago."""
    meeting = [v for v, was in held.items() if len(was.parents) > 1 and not was.looping]
    for n in range(max((len(held[v].parents) for v in meeting), default=0)):
        before = {**held, **{v: held[v].parents[n] for v in meeting if n < len(held[v].parents)}}
        yield deep, before
        yield from _paths(before, deep + 1)


def _by_assembly(source: str, target: str) -> bool:
    """Whether a conversion of one element is inline assembly: to or from float16 or 8 bits, to bfloat16."""
    narrow = ("float16", *(x for x in (source, target) if x.startswith("float8")))
    return source != target and "float" in source and (source in narrow or target in (*narrow, "bfloat16"))


def _is_one(e: Any) -> bool:
    return type(e).__name__ == "FloatImm" and abs(float(e.value)) == 1.0


def _common(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """What two places share from the outside."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def _relation(made: tuple[Any, ...], here: tuple[Any, ...]) -> str:
    """How the place of an equal product lies before this one: "dominates", "partly" (some paths) or "never"."""
    common = len(_common(made, here))
    rest = made[common:]
    if rest and common < len(here) and rest[0][:2] == here[common][:2]:
        return "never"  # the other arm of an if
    return "dominates" if all(part[0] == "loop" and part[2] for part in rest) else "partly"


def _unrolled(loop: Any) -> bool:
    """Whether the compiler may unroll a serial loop whole: few turns, and nothing in it but registers."""
    if type(loop).__name__ != "For" or type(loop.extent).__name__ != "IntImm":
        return False
    return not _has_operators(loop.body)


def _has_operators(s: Any) -> bool:
    return any(type(x).__name__ == "Evaluate" for x in _statements(s))


def _statements(s: Any) -> Iterator[Any]:
    """The statements inside one, in order."""
    yield s
    for name in ("seq", "body", "block", "then_case", "else_case"):
        child = getattr(s, name, None)
        for each in child if name == "seq" and child is not None else [] if child is None else [child]:
            yield from _statements(each)


def _stored(s: Any) -> Iterator[Any]:
    """The buffers that a statement stores to."""
    for x in _statements(s):
        kind = type(x).__name__
        if kind == "BufferStore":
            yield x.buffer.data
        elif kind == "Evaluate":
            for argument in getattr(x.value, "args", ()):
                name = getattr(getattr(argument, "op", None), "name", "")
                if name == "tl.region" and int(argument.args[1]) & 2 or name == "tl.access_ptr":
                    yield argument.args[0].buffer.data


def by_wgmma(call: Any, threads: int) -> bool:
    """Whether TileLang makes wgmma instructions of a T.gemm on sm_90 (src/cuda/op/gemm.cc of 0.1.15, AllowWgmma)."""
    a, b, c = (x.args[0].buffer for x in call.args[:3])
    (m, _, k), straight = (int(x) for x in call.args[5:8]), not bool(call.args[3]) and bool(call.args[4])
    if int(m) < 64 or threads % 128 or not b.scope().startswith("shared"):
        return False
    x, y, z = (str(t.dtype) for t in (a, b, c))
    if x == y and x in _HALF:
        return k % 16 == 0 and (z == "float32" or z == x == "float16")
    if x.startswith("float8") and y.startswith("float8"):
        return straight and k % 32 == 0 and z in ("float32", "float16")
    if x == y == "tfloat32":
        return straight and k % 8 == 0 and z == "float32"
    return {x, y} <= {"int8", "uint8"} and straight and k % 32 == 0 and z == "int32"


def _in_shared(call: Any) -> bool:
    """Whether a tile operator has an operand in shared memory."""
    regions = [x for x in call.args if getattr(getattr(x, "op", None), "name", "") == "tl.region"]
    return any(x.args[0].buffer.scope().startswith("shared") for x in regions)


def _only_written(argument: Any) -> bool:
    return getattr(getattr(argument, "op", None), "name", "") == "tl.region" and int(argument.args[1]) == 2


def _whole_region(region: Any) -> Any:
    """The buffer of a region that is all of a tile in registers, else None."""
    if getattr(getattr(region, "op", None), "name", "") != "tl.region":
        return None
    load = region.args[0]
    sizes = [type(n).__name__ == "IntImm" and int(n) for n in load.buffer.shape]
    extents = [type(n).__name__ == "IntImm" and int(n) for n in region.args[2:]]
    return load.buffer if load.buffer.scope() in _REGISTERS and sizes == extents else None


def _pipelined(loop: Any) -> bool:
    return type(loop).__name__ == "For" and int((loop.annotations or {}).get("num_stages", 0)) > 0


def _gathers(s: Any) -> bool:
    """Whether a statement stores elements of global memory to shared memory one by one."""
    stores = (x for x in _statements(s) if type(x).__name__ == "BufferStore" and "shared" in x.buffer.scope())
    loads = (y for x in stores for y in _within(x.value) if type(y).__name__ == "BufferLoad")
    return any(y.buffer.scope() == "global" for y in loads)


def _within(e: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield e
    for child in _children(e):
        yield from _within(child)


def _children(e: Any) -> list[Any]:
    """The operands of an expression."""
    kind = type(e).__name__
    if kind == "Call":
        return list(e.args)
    if kind == "Select":
        return [e.condition, e.true_value, e.false_value]
    if kind == "Cast":
        return [e.value]
    if kind == "BufferLoad":
        return list(e.indices)
    return [x for x in (getattr(e, "a", None), getattr(e, "b", None)) if x is not None]
