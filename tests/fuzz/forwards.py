"""Random programs for `forward`: lists of layers, alike, in a period, or odd; smaller lists."""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz import agree
from tests.fuzz.layers import KINDS, QUIET
from tests.fuzz.scans import PLAIN, nested

CHECKS = "value", "value, eager", "gradient", "gradient, eager"
METHODS = (
    '"auto"',
    '"sequential"',
    '"newton"',
    '"auto"',
    'deeppcr.Newton(linearize="diagonal")',
    "deeppcr.Newton(window=2)",
)
ADJOINTS = (
    '"auto"',
    '"auto"',
    '"sequential"',
    '"pcr"',
    '"autodiff"',
    'deeppcr.Adjoint(linearize="diagonal")',
)

HEAD = """\
import dataclasses
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import deeppcr

jax.config.update("jax_enable_x64", True)

F = jnp.{dtype}
seen = []  # what effects leave behind
"""

TAIL = """

def oracle(layers, x):
    for layer in layers:
        x = layer[0](layer[1], x) if isinstance(layer, tuple) else layer(x)
    return x


ours = partial(deeppcr.forward, method={method}, adjoint={adjoint})

if __name__ == "__main__":
    for forward in (oracle, ours):
        seen.clear()
        print({run}(partial(observe, forward))(*arguments))
        jax.effects_barrier()
        print(seen)
"""

VALUE = """
def observe(forward, w, x):
    layers, left = make(w)
    return {"x": forward(layers, x), "left": left()}
"""
GRADIENT = """
def observe(forward, w, x):
    def loss(w, x):
        layers, left = make(w)
        y = forward(layers, x)
        return jnp.vdot(jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(F) + 0.5 * y, y), left()

    (value, left), (by_w, by_x) = jax.value_and_grad(loss, (0, 1), has_aux=True)(w, x)
    return {"loss": value, "by_w": by_w, "by_x": by_x, "left": left}
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
        kinds = [KINDS[name] for name in self.layers]
        if "layers[" in words and any(kind.is_stateful or kind.has_effect for kind in kinds):
            return True
        return (
            "effect" in words and any(kind.has_effect for kind in kinds) and "ewton" in self.method
        )

    def noisy(self, sample: Any, eps: float) -> Any:
        return agree.noisy_loop(sample, eps)

    def in_float64(self, source: str) -> str | None:
        """No text: random numbers of flax would be others."""
        return None

    @property
    def text(self) -> str:
        kinds = [KINDS[name] for name in dict.fromkeys(self.layers)]
        parts = [part for kind in kinds for part in kind.defines.split("\n\n\n")]
        digits = random.Random(self.salt)
        own = [name for name in self.layers if "{w}" in KINDS[name].text]
        weights = [
            nested([round(digits.uniform(-0.9, 0.9), 1) for _ in range(9)], (3, 3)) for _ in own
        ]
        literals = "".join(f"    jnp.array({weight}, F),\n" for weight in weights)
        shape = (self.examples, 3) if self.examples else (3,)
        lines = [
            HEAD.format(dtype=self.dtype),
            *(f"\n\n{part.rstrip()}\n" for part in dict.fromkeys(parts) if part),
        ]
        lines.append(f"\n\nw = (\n{literals})\n" if weights else "\n\nw = ()\n")
        lines.append(
            f"x = jnp.sin(1.3 * jnp.arange({3 * max(1, self.examples)}.0))"
            f".reshape({', '.join(map(str, shape))}).astype(F)\n"
        )
        lines.append("arguments = w, x\n\n\ndef make(w):\n")
        begins = [line for kind in kinds for line in kind.begins.splitlines(keepends=True)]
        lines += dict.fromkeys(begins)
        number = 0
        made: dict[str, int] = {}
        lines.append("    layers = []\n")
        for k, name in enumerate(self.layers):
            if self.shared and name in made:
                lines.append(f"    layers.append(layers[{made[name]}])\n")
            else:
                layer = KINDS[name].text.format(w=f"w[{number}]", k=k)
                lines.append(f"    layers.append({layer})\n")
            number += "{w}" in KINDS[name].text
            made.setdefault(name, k)
        left = ", ".join(dict.fromkeys(kind.leaves for kind in kinds if kind.leaves))
        counts = (
            ", sum(layer.count for layer in layers if isinstance(layer, Counting))"
            if "own counter" in self.layers
            else ""
        )
        lines.append(
            "    return layers, lambda: jax.tree.map(jnp.asarray, "
            f"[{left}{counts if left else counts[2:]}])\n\n"
        )
        lines.append(VALUE if self.check.startswith("value") else GRADIENT)
        return "".join(lines) + TAIL.format(
            method=self.method, adjoint=self.adjoint, run="jax.jit" if self.jitted else ""
        )


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
        4 if "nnx.BatchNorm" in layers else rng.choice([0, 4]),
        "float32" if "nnx.LayerNorm" in layers else rng.choice(["float32", "float64"]),
        rng.choice(METHODS),
        rng.choice(ADJOINTS),
        rng.choice(CHECKS),
        rng.randrange(1000),
    )


def smaller(program: Forward) -> Iterator[Forward]:
    """Simpler lists, the greatest steps first."""
    count = len(program.layers)
    halves = [program.layers[: count // 2], program.layers[count // 2 :]] if count > 3 else []
    singles = [program.layers[:i] + program.layers[i + 1 :] for i in range(count)]
    for layers in [*halves, *singles]:
        if layers:
            yield dataclasses.replace(program, layers=layers)
    plain = {
        "shared": False,
        "dtype": "float32",
        "adjoint": '"auto"',
        "method": '"auto"',
        "check": "value, eager",
        "salt": 0,
    }
    if "nnx.BatchNorm" not in program.layers:
        plain["examples"] = 0
    if program.method not in ('"auto"', '"newton"'):
        plain["method"] = '"newton"'
    for name, value in plain.items():
        if getattr(program, name) != value:
            yield dataclasses.replace(program, **{name: value})
    for simple in ("function", "closure"):
        for i, name in enumerate(program.layers):
            if name not in ("function", "closure"):
                yield dataclasses.replace(
                    program, layers=(*program.layers[:i], simple, *program.layers[i + 1 :])
                )
