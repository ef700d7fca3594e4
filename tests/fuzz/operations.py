"""The operations of random steps: each is one line of Python on vectors of ``n`` numbers.

``{a}`` and ``{b}`` are vectors of the step, ``{w}`` is a matrix [n, n] and ``{c}`` a vector [n]
that the step closes over. What is not smooth has its kinks beside round numbers, where no state
sits exactly.
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        text: its expression; empty if it only does something, and its result is ``{a}``.
        statement: what it does.
        rule: the function of `RULES` that it calls.
        reverse: whether jax can differentiate it in reverse mode.
        forward: whether jax can differentiate it in forward mode.
        smooth: whether jax can vectorise it, differentiate it, and run it in a loop; a host
            callback gives values alone.
    """

    text: str = ""
    statement: str = ""
    rule: str = ""
    reverse: bool = True
    forward: bool = True
    smooth: bool = True

    @property
    def has_effect(self) -> bool:
        return bool(self.statement)

    @property
    def meets(self) -> bool:
        """Whether it reads other examples, over the axis that `jax.vmap` or a mesh maps."""
        return '"examples"' in self.text

    @property
    def inputs(self) -> frozenset[str]:
        """What it reads of the step's input."""
        return frozenset(re.findall(r'x\["(\w+)"\]', self.text + self.statement))

    @property
    def reads_two(self) -> bool:
        return "{b}" in self.text


RULES = {
    "straight": """
@jax.custom_jvp
def straight(w, a):
    return jnp.round(a @ w)


@straight.defjvp
def straight_rule(primals, tangents):
    (w, a), (dw, da) = primals, tangents
    return straight(w, a), a @ dw + da @ w
""",
    "steep": """
@jax.custom_jvp
def steep(a):
    return jnp.sin(a)


@steep.defjvp
def steep_rule(primals, tangents):
    return steep(*primals), 0.3 * tangents[0]
""",
    "clipped": """
@jax.custom_vjp
def clipped(a):
    return a


clipped.defvjp(lambda a: (a, None), lambda _, g: (jnp.clip(g, -0.37, 0.23),))
""",
    "halved": """
@jax.custom_vjp
def halved(w, a):
    return a @ w


halved.defvjp(lambda w, a: (a @ w, (w, a)), lambda r, g: (jnp.outer(r[1], g), 0.5 * (r[0] @ g)))
""",
}

OPERATIONS = {
    # element by element
    "tanh": Operation("jnp.tanh({a})"),
    "sin": Operation("jnp.sin({a})"),
    "sigmoid": Operation("jax.nn.sigmoid({a})"),
    "relu": Operation("jax.nn.relu({a} - 0.137)"),
    "abs": Operation("jnp.abs({a} + 0.217)"),
    "clip": Operation("jnp.clip({a}, -0.713, 0.613)"),
    "where": Operation("jnp.where({a} > 0.173, jnp.cos({a}), {b})"),
    "max": Operation("jnp.maximum({a}, {b} + 0.137)"),
    "round": Operation("jnp.round(1.7 * {a} + 0.217)"),
    "floor": Operation("jnp.floor(1.7 * {a} + 0.217)"),
    "sign": Operation("jnp.sign({a} - 0.173)"),
    "remainder": Operation("jnp.mod({a}, 0.713)"),
    "stopped": Operation("lax.stop_gradient({a}) * {b}"),
    "divided": Operation("{a} / (1.0 + {b} * {b})"),
    "times": Operation("{a} * jnp.tanh({b})"),
    "plus": Operation("{a} + {b}"),
    "minus": Operation("{a} - {b}"),
    "exp": Operation("jnp.exp(-jnp.abs({a} + 0.217))"),
    "sqrt": Operation("jnp.sqrt({a} * {a} + 0.5)"),
    "shifted": Operation("{a} + {c}"),
    "scaled": Operation("{a} * {c}"),
    # products
    "product": Operation("{a} @ {w}"),
    "product before": Operation("{w} @ {a}"),
    "dot": Operation("jnp.dot({a}, {c}) * {b}"),
    "precise": Operation('jnp.matmul({a}, {w}, precision="highest")'),
    "einsum": Operation('jnp.einsum("i,ij,j->j", {a}, {w}, {b})'),
    "solved": Operation("jnp.linalg.solve({w} + 2.0 * jnp.eye({n}, dtype=F), {a})"),
    "nonnormal": Operation(
        "(lambda p: p @ jnp.tanh(jnp.linalg.inv(p) @ {a}))"
        "(1 + jnp.diag(0.03 * jnp.arange({n}, dtype=F)))"
    ),
    # over examples
    "mean over examples": Operation('{a} - lax.pmean({a}, "examples")'),
    "sum over examples": Operation('jnp.tanh(lax.psum({a}, "examples"))'),
    "gathered": Operation('lax.all_gather({a}, "examples").sum(0) * {b}'),
    "permuted": Operation('lax.ppermute({a}, "examples", [(0, 1), (1, 0)])'),
    "exchanged": Operation('lax.all_to_all(jnp.stack([{a}, {b}]), "examples", 0, 0).sum(0)'),
    "scattered": Operation(
        'lax.psum_scatter(jnp.stack([{a}, {b}]), "examples", scatter_dimension=0)'
    ),
    "numbered": Operation('{a} + 0.1 * lax.axis_index("examples").astype(F)'),
    # to other places
    "reversed": Operation("{a}[::-1]"),
    "rolled": Operation("jnp.roll({a}, 1)"),
    "cumulated": Operation("jnp.cumsum({a})"),
    "sorted": Operation("jnp.sort({a} + {c})"),
    "first": Operation("jnp.full({n}, {a}[0], F)"),
    "mean": Operation("{a} - jnp.mean({a})"),
    "written": Operation("{a}.at[0].set({b}[1])"),
    "cast": Operation("({a} * 4.0 + 0.3).astype(jnp.int32).astype(F) / 4.0"),
    # by the step's input
    "taken": Operation('{a}[(jnp.arange({n}) + x["i"]) % {n}]'),
    "sliced": Operation('lax.dynamic_slice(jnp.concatenate([{a}, {b}]), (x["i"],), ({n},))'),
    "put": Operation('{a}.at[x["i"] % {n}].add(0.3 * {b}[0])'),
    "either": Operation('jnp.where(x["flag"], {a}, {b})'),
    "dropped": Operation('jnp.where(jax.random.bernoulli(x["key"], 0.7, ({n},)), {a}, 0.0)'),
    "noisy": Operation('{a} + 0.1 * jax.random.normal(x["key"], ({n},), jnp.float32).astype(F)'),
    # control flow
    "cond": Operation('lax.cond(x["flag"], jnp.tanh, jnp.cos, {a})'),
    "cond on a state": Operation("lax.cond({b}[0] > 0.173, lambda a: a @ {w}, jnp.sin, {a})"),
    "switch": Operation('lax.switch(x["i"] % 3, [jnp.tanh, jnp.cos, lambda a: 0.5 * a], {a})'),
    "loop": Operation("lax.fori_loop(0, 3, lambda _, v: jnp.sin(v @ {w}), {a})"),
    "while": Operation(
        "lax.while_loop(lambda v: v @ v > 0.713, lambda v: 0.5 * v, {a})", reverse=False
    ),
    "inner scan": Operation("lax.scan(lambda v, k: (jnp.tanh(v * k), v.sum()), {a}, {c})[0]"),
    # chains in the chain
    "chain": Operation(
        "inner(scan)(lambda v, k: (jnp.tanh(v * k + {a}), v.sum()), {b}, {c}, {n})[0]"
    ),
    "chain by newton": Operation(
        'inner(scan, "newton")(lambda v, k: (jnp.sin(v @ {w} + k), k), {a}, {b}, {n})[0]'
    ),
    "mapped chains": Operation(
        "jax.vmap(lambda s: inner(scan)(lambda v, k: (jnp.tanh(v * k + s), v), s, {c}, {n})[0])({a})"
    ),
    "gradient of a chain": Operation(
        "jax.grad(lambda a: inner(scan)"
        "(lambda v, k: (jnp.sin(v * k), v[0]), a, {c}, {n})[0].sum())({a})"
    ),
    "gradient halved in a chain": Operation(
        'inner(scan, "newton")(lambda v, k: (jnp.sin(halved({w}, v) + k), v[0]), {a}, {b}, {n})[0]',
        rule="halved",
        forward=False,
    ),
    "gradient clipped in a chain": Operation(
        "inner(scan)(lambda v, k: (jnp.sin(clipped(v) + k), v[0]), {a}, {b}, {n})[0]",
        rule="clipped",
        forward=False,
    ),
    # functions in functions
    "jitted": Operation("jax.jit(lambda a: jnp.sin(a @ {w}))({a})"),
    "checkpoint": Operation("jax.checkpoint(lambda a: jnp.tanh(a @ {w}))({a})"),
    "vmapped": Operation("jax.vmap(lambda s, r: jnp.sin(s + r @ {b}))({a}, {w})"),
    "gradient": Operation("jax.grad(lambda a: jnp.sum(jnp.sin(a @ {w})))({a})"),
    # rules of the user's own
    "straight through": Operation("straight({w}, {a})", rule="straight"),
    "own derivative": Operation("steep({a})", rule="steep"),
    "gradient clipped": Operation("clipped({a})", rule="clipped", forward=False),
    "gradient halved": Operation("halved({w}, {a})", rule="halved", forward=False),
    # effects, whose results nothing uses
    "debug.callback": Operation(statement="jax.debug.callback(seen.append, {a}[0])"),
    "debug.callback in order": Operation(
        statement="jax.debug.callback(seen.append, {a}[0], ordered=True)"
    ),
    "debug.callback in a branch": Operation(
        statement='lax.cond(x["flag"], '
        "lambda: jax.debug.callback(seen.append, {a}[0]), lambda: None)"
    ),
    "debug.print": Operation(statement='jax.debug.print("{{:.3f}}", {a}[0])'),
    "io_callback": Operation(
        statement="io_callback(seen.append, None, {a}[0], ordered=True)", smooth=False
    ),
    "checkify": Operation(statement='checkify.check({a}[0] < 0.713, "the state is large")'),
}

EFFECTS = [name for name, operation in OPERATIONS.items() if operation.has_effect]
RULED = [name for name, operation in OPERATIONS.items() if operation.rule]
CHAINS = [name for name, operation in OPERATIONS.items() if "inner(" in operation.text]
MEETING = [name for name, operation in OPERATIONS.items() if operation.meets]
QUIET = [
    name
    for name, operation in OPERATIONS.items()
    if not operation.has_effect and not operation.meets
]
