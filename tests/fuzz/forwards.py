"""Random programs for `forward`: lists of layers, alike, in a period, or odd; smaller lists.

Each kind of layer is a line of Python. ``{w}`` is the layer's own matrix [3, 3], ``{k}`` its index.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz import agree
from tests.fuzz.scans import PLAIN, nested

KINDS = {
    "lambda": "lambda x, w={w}: jnp.sin(x @ w)",
    "closure": "closure({w})",
    "Partial": "jax.tree_util.Partial(affine, {w})",
    "partial": "partial(affine, {w})",
    "pair": "(affine, {w})",
    "object": "Plain({w})",
    "method": "Plain({w}).__call__",
    "pytree": "Dense({w})",
    "another pytree": 'Dense({w}, "sin")',
    "jitted": "jax.jit(closure({w}))",
    "checkpoint": "jax.checkpoint(closure({w}))",
    "equinox": "Module({w})",
    "flax": "nnx.Linear(3, 3, dtype=F, param_dtype=F, rngs=nnx.Rngs({k}))",
    "function": "jnp.tanh",
    "number": "lambda x, c=0.5 + 0.1 * {k}: jnp.sin(c * x)",
    "index": "lambda x, i={k} % 3: x.at[..., i].set(0.5)",
    "liar": "partial(scaled, Liar(0.5 + 0.1 * {k}))",
    "decorated": "doubled(closure({w}))",
    "straight through": "partial(straight, {w})",
    "clipped": "clipped",
    "counter": "counting(counter, {w})",
    "logged": "logged",
}
STATEFUL = "counter", "logged"  # where an error in words is an answer, too
QUIET = [name for name in KINDS if name not in STATEFUL]
CHECKS = "value", "value, eager", "gradient", "gradient, eager"
METHODS = '"auto"', '"auto"', '"sequential"', '"newton"', 'deeppcr.Newton(linearize="diagonal")'
ADJOINTS = '"auto"', '"auto"', '"sequential"', '"pcr"', '"autodiff"'

HEAD = """\
import dataclasses
import functools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import deeppcr

jax.config.update("jax_enable_x64", True)

F = jnp.{dtype}
seen = []  # what effects leave behind


def affine(w, x):
    return jnp.tanh(x @ w)


def closure(w):
    return lambda x: jnp.sin(x @ w)


class Plain:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return jnp.tanh(x @ self.w)


@partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["name"])
@dataclasses.dataclass(frozen=True)
class Dense:
    w: jax.Array
    name: str = "tanh"

    def __call__(self, x):
        return getattr(jnp, self.name)(x @ self.w)


class Module(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return jnp.tanh(x @ self.w)


def scaled(c, x):
    return jnp.sin(x * c.number)


class Liar:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Liar)

    def __hash__(self):
        return 0


def doubled(function):
    @functools.wraps(function)
    def call(x):
        return 2.0 * function(x)

    return call


@jax.custom_jvp
def straight(w, x):
    return jnp.round(x @ w)


@straight.defjvp
def straight_rule(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return straight(w, x), x @ dw + dx @ w


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.37, 0.23),))


class Counter:
    count = 0

    def next(self):
        self.count += 1
        return self.count


def counting(counter, w):
    return lambda x: jnp.sin(x @ w) * (1.0 + 0.1 * counter.next())


def logged(x):
    jax.debug.callback(seen.append, x.reshape(-1)[0], ordered=True)
    return jnp.sin(x)


w = (
{weights})
x = jnp.sin(1.3 * jnp.arange({count}.0)).reshape({shape}).astype(F)
arguments = w, x


def make(w):
    counter = Counter()
    layers = []
{layers}    return layers, counter


def oracle(layers, x):
    for layer in layers:
        x = layer[0](layer[1], x) if isinstance(layer, tuple) else layer(x)
    return x


ours = partial(deeppcr.forward, method={method}, adjoint={adjoint})

"""
VALUE = """
def observe(forward, w, x):
    layers, counter = make(w)
    return {"x": forward(layers, x), "count": jnp.asarray(counter.count)}
"""
GRADIENT = """
def observe(forward, w, x):
    def loss(w, x):
        y = forward(make(w)[0], x)
        return jnp.vdot(jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(F) + 0.5 * y, y)

    value, (by_w, by_x) = jax.value_and_grad(loss, (0, 1))(w, x)
    return {"loss": value, "by_w": by_w, "by_x": by_x}
"""


@dataclasses.dataclass(frozen=True)
class Forward:
    """A list of layers: kinds, some of them again and again the same object."""

    layers: tuple[str, ...]
    shared: bool
    examples: int
    dtype: str
    method: str
    adjoint: str
    check: str
    salt: int
    reverse: bool = False
    is_checked: bool = False
    is_ambiguous: bool = False

    @property
    def sort(self) -> Any:
        """What it shares with lists that fail for the same reason."""
        return set(self.layers), self.method not in PLAIN

    @property
    def jitted(self) -> bool:
        return not self.check.endswith("eager")

    def refuses(self, words: str) -> bool:
        """Whether an error in words is an answer."""
        is_stateful = not set(STATEFUL).isdisjoint(self.layers)
        return is_stateful and ("layers[" in words or "effect" in words)

    def noisy(self, sample: Any, eps: float) -> Any:
        return agree.noisy_loop(sample, eps)

    def in_float64(self, source: str) -> str | None:
        """No text: random numbers of flax would be others."""
        return None

    @property
    def text(self) -> str:
        digits, weights, lines = random.Random(self.salt), "", ""
        made: dict[str, int] = {}
        for k, name in enumerate(self.layers):
            layer = KINDS[name].format(w=f"w[{len(weights.splitlines())}]", k=k)
            if self.shared and name in made:
                layer = f"layers[{made[name]}]"
            elif "{w}" in KINDS[name]:
                numbers = [round(digits.uniform(-0.9, 0.9), 1) for _ in range(9)]
                weights += f"    jnp.array({nested(numbers, (3, 3))}, F),\n"
            lines += f"    layers.append({layer})\n"
            made.setdefault(name, k)
        head = HEAD.format(
            dtype=self.dtype,
            weights=weights,
            count=3 * max(1, self.examples),
            shape=(self.examples, 3) if self.examples else (3,),
            layers=lines,
            method=self.method,
            adjoint=self.adjoint,
        )
        return head + (VALUE if self.check.startswith("value") else GRADIENT)


def draw(seed: int) -> Forward:
    """The program of a seed."""
    rng = random.Random(seed)
    kinds = [*QUIET, *KINDS] if rng.random() < 0.6 else QUIET
    period = [rng.choice(kinds) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    layers = period * rng.randint(1, 8 // len(period))
    for _ in range(rng.choice([0, 0, 1, 2])):
        layers.insert(rng.randrange(len(layers) + 1), rng.choice(kinds))
    return Forward(
        tuple(layers[:8]),
        rng.random() < 0.2,
        rng.choice([0, 4]),
        rng.choice(["float32", "float64"]),
        rng.choice(METHODS),
        rng.choice(ADJOINTS),
        rng.choice(CHECKS),
        rng.randrange(1000),
    )


def smaller(program: Forward) -> Iterator[Forward]:
    """Simpler lists, the greatest steps first."""
    for i in range(len(program.layers) if len(program.layers) > 1 else 0):
        yield dataclasses.replace(program, layers=program.layers[:i] + program.layers[i + 1 :])
    plain: dict[str, Any] = {"shared": False, "dtype": "float32", "adjoint": '"auto"', "salt": 0}
    plain |= {"method": '"auto"', "check": "value, eager", "examples": 0}
    for name, value in plain.items():
        if getattr(program, name) != value:
            yield dataclasses.replace(program, **{name: value})
