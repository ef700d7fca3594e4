"""Random programs, traced as loops or unrolled, and their depth, value by value."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MOVES = """
    broadcast_in_dim concatenate copy copy_p device_put dynamic_slice dynamic_update_slice gather optimization_barrier pad
    reshape rev slice split squeeze stack stop_gradient transpose
"""
ELEMENTWISE = """
    add add_any abs and clamp convert_element_type cos div eq exp ge gt integer_pow iota le logistic lt max min mul ne neg not
    one_minus_square select_n sin square sub tanh
"""
DEPTHS = {name: k for k, names in enumerate((MOVES, ELEMENTWISE)) for name in names.split()}
CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call")


def log2(n: int) -> int:
    return math.ceil(math.log2(n)) if n > 1 else 0


def leaf_depth(equation: Any) -> int:
    """The published rules, written down once more."""
    name, params = equation.primitive.name, equation.params
    shape = equation.invars[0].aval.shape if equation.invars else ()
    if name in DEPTHS:
        return DEPTHS[name]
    if name in ("reduce_sum", "reduce_max", "reduce_min", "argmax"):
        return log2(math.prod(shape[axis] for axis in params["axes"]))
    if name in ("cumsum", "cummax"):
        return log2(shape[params["axis"]])
    if name == "sort":
        return log2(shape[params["dimension"]])
    if name == "dot_general":
        return 1 + log2(math.prod(shape[axis] for axis in params["dimension_numbers"][0][0]))
    if name == "scatter-add":  # all updates, and what was there
        updates = 1 if params["unique_indices"] else math.prod(equation.invars[1].aval.shape[:-1])
        return log2(updates + 1)
    raise AssertionError(f"the oracle has no rule for {name}")


class Late(NamedTuple):
    """A depth, and all longest paths to it, sorted (primitive, count, depth); None: too many."""

    depth: int
    paths: frozenset | None


ZERO = Late(0, frozenset([()]))


def join(values: list[Late]) -> Late:
    deepest = max(value.depth for value in values)
    found = [value.paths for value in values if value.depth == deepest]
    paths = None if None in found else frozenset().union(*found)
    return Late(deepest, paths if paths is not None and len(paths) < 200 else None)


def after(value: Late, name: str, depth: int) -> Late:
    def longer(path):
        counts = {key: (n, d) for key, n, d in path}
        n, d = counts.get(name, (0, 0))
        counts[name] = n + 1, d + depth
        return tuple(sorted((key, *pair) for key, pair in counts.items()))

    if not depth:
        return value
    paths = None if value.paths is None else frozenset(map(longer, value.paths))
    return Late(value.depth + depth, paths)


def proper(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def ndims(atoms: Any) -> list[int]:
    return [len(atom.aval.shape) for atom in atoms]


Count = int | Callable[[], int]


def evaluate(
    jaxpr: Any, inputs: list[Late] | None = None, start: Late = ZERO, trips: Count = 0
) -> list[Late]:
    """When each result is ready.

    Loops trip by trip, ``trips`` times where they compare nothing with a literal.

    A function is asked anew each time that the program comes to such a loop.
    """
    jaxpr = proper(jaxpr)
    inputs = [start] * len(jaxpr.invars) if inputs is None else inputs
    env = dict.fromkeys(jaxpr.constvars, start) | dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return start if hasattr(atom, "val") else env[atom]

    for equation in jaxpr.eqns:
        name, operands = equation.primitive.name, [read(atom) for atom in equation.invars]
        if name in CALLS:
            inner = next(
                equation.params[key] for key in ("jaxpr", "call_jaxpr") if key in equation.params
            )
            results = evaluate(inner, operands, start, trips)
        elif name == "cond":
            begin, rest = operands[0], [join([operands[0], value]) for value in operands[1:]]
            branches = [
                evaluate(branch, rest, begin, trips) for branch in equation.params["branches"]
            ]
            results = [join(list(values)) for values in zip(*branches, strict=True)]
        elif name == "scan":
            results = _scan(equation, operands, start, trips)
        elif name == "while":
            results = _while(equation, operands, start, trips)
        else:
            depth = leaf_depth(equation)
            results = [after(join(operands or [start]), name, depth)] * len(equation.outvars)
        env.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scan(equation: Any, operands: list[Late], start: Late, trips: Count) -> list[Late]:
    body = proper(equation.params["jaxpr"])
    carry = sum(
        a == b for a, b in zip(ndims(equation.outvars), ndims(body.outvars), strict=True)
    )  # the rest is stacked
    xs = sum(a != b for a, b in zip(ndims(equation.invars), ndims(body.invars), strict=True))
    consts = len(operands) - carry - xs
    state, slices = operands[consts : consts + carry], operands[consts + carry :]
    stacked = [[start] for _ in range(len(body.outvars) - carry)]
    for _ in range(equation.params["length"]):
        results = evaluate(body, [*operands[:consts], *state, *slices], start, trips)
        state = results[:carry]
        for ys, y in zip(stacked, results[carry:], strict=True):
            ys.append(y)
    return state + [join(ys) for ys in stacked]


def _while(equation: Any, operands: list[Late], start: Late, trips: Count) -> list[Late]:
    params = equation.params
    condition, body = proper(params["cond_jaxpr"]), params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    in_condition, in_body = operands[:first], operands[first : first + second]
    state, compared = (
        operands[first + second :],
        (e for e in condition.eqns if e.primitive.name == "lt"),
    )
    bounds = [e.invars[1].val for e in compared if hasattr(e.invars[1], "val")]
    for _ in range(int(bounds[0]) if bounds else trips() if callable(trips) else trips):
        (test,) = evaluate(condition, in_condition + state, start, trips)
        state = evaluate(body, [join([test, value]) for value in in_body + state], test, trips)
    (test,) = evaluate(condition, in_condition + state, start, trips)
    return [join([test, value]) for value in state]


N = 3  # the width of vectors
SHAPES = {"s": (), "v": (N,), "m": (N, N)}
LITERALS = {
    kind: np.float64(0.5) if kind == "s" else np.full(shape, 0.5) for kind, shape in SHAPES.items()
}


def sized(length: int, kind: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((length, *SHAPES[kind]), np.float64)


def deeper(value: Any, k: int) -> Any:
    """The value, ``k`` operations later."""
    return reduce(lambda v, _: lax.sin(v), range(k), value)


def _flat(op: Callable[..., Any], *kinds: str) -> list[tuple]:
    """An operation that leaves shapes alone, for all kinds."""
    return [((kind,) * len(kinds), kind, op) for kind in "ssvvm"]


def moved(value: Any) -> Any:
    """The value, by an equation of no depth: jax takes operands out of loops and branches."""
    return lax.reshape(lax.reshape(value, (*value.shape, 1)), value.shape)


def index(s: Any) -> Any:
    """The cast that jax makes an equation also of a literal, when it is moved first."""
    return lax.convert_element_type(moved(s), np.int32)


OPERATIONS = [
    *[entry for op in (lax.sin, lax.tanh, lax.neg) for entry in _flat(op, "x")],
    *[
        entry
        for op in (lax.add, lax.mul, lax.max, lambda a, b: lax.sub(a, lax.mul(b, 2.0)))
        for entry in _flat(op, "x", "y")
    ],
    *_flat(lambda a, b: lax.select(lax.gt(a, b), a, b), "x", "y"),
    *_flat(lambda a: lax.mul(a, np.float64(3.0)), "x"),
    (("v",), "s", lambda v: lax.reduce_sum(v, (0,))),
    (("v",), "s", lambda v: lax.reduce_max(v, (0,))),
    (("v",), "s", lambda v: lax.index_in_dim(v, 1, keepdims=False)),
    (("v", "v"), "s", lax.dot),
    (("v", "s"), "s", lambda v, s: lax.dynamic_index_in_dim(v, index(s), keepdims=False)),
    (("s",), "v", lambda s: lax.broadcast(s, (N,))),
    (
        ("s", "s", "v"),
        "v",
        lambda a, b, v: lax.concatenate([lax.reshape(a, (1,)), lax.reshape(b, (1,)), v[2:]], 0),
    ),
    (("v",), "v", lambda v: lax.rev(v, (0,))),
    (("v",), "v", lambda v: lax.cumsum(v, 0)),
    (("v",), "v", lax.sort),
    (("m", "v"), "v", lax.dot),
    (("m", "v"), "v", lax.dot),
    (("m",), "v", lambda m: lax.reduce_sum(m, (1,))),
    (("m",), "s", lambda m: lax.reduce_sum(m, (0, 1))),
    (("m",), "m", lambda m: lax.transpose(m, (1, 0))),
    (("m", "m"), "m", lax.dot),
    (("v", "v"), "m", lambda a, b: lax.dot_general(a, b, (((), ()), ((), ())))),
]


@dataclass(frozen=True)
class Body:
    """Straight-line code.

    ``steps`` read values by number (inputs, then literals, then results), and so do ``outputs``.
    """

    steps: list[tuple[Any, list[int]]]
    outputs: list[int]
    kept: int = 0  # so many outputs add up with the inputs from number ``first`` on: none of these is ever lost
    first: int = 0

    def __call__(self, *inputs: Any, unroll: bool = False) -> list[Any]:
        values = [*inputs, *LITERALS.values()]
        for function, operands in self.steps:
            read = [values[i] for i in operands]
            if isinstance(function, Nested):
                values.extend(function(*read, unroll=unroll))
            else:
                values.append(function(*read))
        results = [values[i] for i in self.outputs]
        return [
            lax.add(inputs[self.first + i], r) for i, r in enumerate(results[: self.kept])
        ] + results[self.kept :]


class Nested:
    """Code that holds code."""


@dataclass(frozen=True)
class Jit(Nested):
    body: Body

    def __call__(self, *values: Any, unroll: bool) -> list[Any]:
        return jax.jit(lambda *v: self.body(*v, unroll=unroll))(*values)


@dataclass(frozen=True)
class Cond(Nested):
    """Of one body or the other."""

    bodies: tuple[Body, Body]

    def __call__(self, test: Any, *values: Any, unroll: bool) -> list[Any]:
        branches = [
            lambda *v, body=body: list(map(moved, body(*v, unroll=unroll))) for body in self.bodies
        ]
        return lax.cond(lax.gt(test, 0.5), *branches, *values)


@dataclass(frozen=True)
class Loop(Nested):
    """``length`` times the body, of ``consts`` constants, ``carry`` carried values, and slices."""

    body: Body
    consts: int
    carry: int
    ys: str
    length: int
    reverse: bool

    def __call__(self, *values: Any, unroll: bool) -> list[Any]:
        consts, last = values[: self.consts], self.consts + self.carry
        carry, xs = tuple(values[self.consts : last]), tuple(values[last:])

        def step(carry, x):
            results = self.body(*consts, *carry, *x, unroll=unroll)
            ys = results[self.carry :] if self.length else map(moved, results[self.carry :])
            return tuple(results[: self.carry]), tuple(ys)

        if not unroll:
            carry, ys = lax.scan(step, carry, xs, self.length, reverse=self.reverse)
            return [*carry, *ys]
        steps = []
        for t in range(self.length)[:: -1 if self.reverse else 1]:
            carry, y = step(carry, tuple(lax.index_in_dim(x, t, keepdims=False) for x in xs))
            steps.append(y)
        steps = steps[:: -1 if self.reverse else 1]
        none = [jnp.zeros((0, *SHAPES[kind])) for kind in self.ys]
        return [*carry, *(map(jnp.stack, zip(*steps, strict=True)) if steps else none)]


@dataclass(frozen=True)
class Turns(Nested):
    """A while loop of ``length`` trips that counts them."""

    body: Body
    consts: int
    length: int

    def __call__(self, *values: Any, unroll: bool) -> list[Any]:
        consts, carry = values[: self.consts], tuple(values[self.consts :])

        def trip(state):
            return state[0] + np.int32(1), tuple(map(moved, self.body(*consts, *state[1])))

        def more(state):
            return lax.lt(state[0], np.int32(self.length))

        state = np.int32(0), carry
        if not unroll:
            return [*lax.while_loop(more, trip, state)[1]]
        for _ in range(self.length):
            state = lax.switch(
                state[0], [trip] * 2, state
            )  # which clamps its index where the loop compares
        return [*lax.switch(state[0], [lambda c: tuple(map(moved, c))] * 2, state[1])]


@dataclass(frozen=True)
class Until(Nested):
    """A while loop that nothing says the trips of: its condition is code of its own."""

    body: Body
    test: Body
    consts: int

    def __call__(self, *values: Any, unroll: bool) -> list[Any]:
        consts, carry, bound = values[: self.consts], tuple(values[self.consts :]), jnp.int32(3)

        def more(state):
            return lax.lt(index(self.test(*consts, *state)[0]), bound)

        return [
            *lax.while_loop(
                more, lambda state: tuple(map(moved, self.body(*consts, *state))), carry
            )
        ]


def kinds(rng: np.random.Generator, low: int, high: int, among: str = "sv") -> str:
    return "".join(rng.choice(list(among), rng.integers(low, high + 1)))


def random_body(
    rng: Any, inputs: str, outputs: str, size: int, nesting=0, kept=0, first=0, untold=False
) -> Body:
    """``untold``: loops inside need not say how often they trip."""
    known, steps = inputs + "".join(LITERALS), []

    def some(kind, late=0.5):
        """A value of the kind, often one of the last few; a literal rarely."""
        found = [
            i
            for i, k in enumerate(known)
            if k == kind and not len(inputs) <= i < len(inputs) + len(LITERALS)
        ]
        if not found or rng.random() < 0.1:
            return len(inputs) + "".join(LITERALS).index(kind)
        return int(rng.choice(found[-3:] if rng.random() < late else found))

    for _ in range(size):
        if nesting and rng.random() < 0.25:
            function, ins, outs = random_nested(rng, nesting - 1, untold)
        else:
            ins, outs, function = OPERATIONS[rng.integers(len(OPERATIONS))]
        steps.append((function, [some(kind) for kind in ins]))
        known += outs
    return Body(steps, [some(kind, late=0.8) for kind in outputs], kept, first)


def random_nested(
    rng: np.random.Generator, nesting: int, untold: bool = False
) -> tuple[Nested, str, str]:
    """Code that holds code, with what it takes and what it returns."""
    ins, outs, size = kinds(rng, 1, 3), kinds(rng, 1, 3), int(rng.integers(1, 5))

    def body(inputs: str, outputs: str = outs) -> Body:
        return random_body(rng, inputs, outputs, size, nesting, untold=untold)

    match rng.integers(7 if untold else 4):
        case 0:
            return Jit(body(ins)), ins, outs
        case 1:
            return Cond((body(ins), body(ins))), "s" + ins, outs
        case 2:
            return Turns(body(ins + outs), len(ins), int(rng.integers(4))), ins + outs, outs
        case 4 | 5 | 6:
            return Until(body(ins + outs), body(ins + outs, "s"), len(ins)), ins + outs, outs
    return (
        Loop(body(ins + outs), len(ins), len(outs), "", int(rng.integers(5)), False),
        ins + outs,
        outs,
    )


@dataclass(frozen=True)
class Program:
    """A random loop, on arguments that are as deep as ``depths`` says when it begins."""

    loop: Loop
    depths: list[int]
    args: list[jax.ShapeDtypeStruct]

    def function(
        self, unroll: bool = False, around: Callable[..., Any] = lambda f: f
    ) -> Callable[..., list[Any]]:
        def run(*args):
            values = [deeper(value, k) for value, k in zip(args, self.depths, strict=True)]
            return around(lambda *v: self.loop(*v, unroll=unroll))(*values)

        return run

    def traced(self, unroll: bool = False, around: Callable[..., Any] = lambda f: f) -> Any:
        return jax.make_jaxpr(self.function(unroll, around))(*self.args)


def random_program(
    seed: int, nesting: int = 0, kept: bool = False, longest: int = 5, untold: bool = False
) -> Program:
    rng = np.random.default_rng(seed)
    consts, carry, xs, ys = (
        kinds(rng, 0, 3, "ssvm"),
        kinds(rng, 0, 4),
        kinds(rng, 0, 2),
        kinds(rng, 1, 2),
    )
    length = int(rng.integers(longest + 1))
    size, inputs = int(rng.integers(1, 9)), consts + carry + xs
    body = random_body(
        rng, inputs, carry + ys, size, nesting, len(carry) if kept else 0, len(consts), untold
    )
    loop = Loop(body, len(consts), len(carry), ys, length, bool(rng.integers(2)))
    depths = [int(k) for k in rng.integers(0, 15, len(inputs)) * (rng.random(len(inputs)) < 0.7)]
    args = [jax.ShapeDtypeStruct(SHAPES[kind], np.float64) for kind in consts + carry] + [
        sized(length, kind) for kind in xs
    ]
    return Program(loop, depths, args)
