"""Programs with a wide state: matrices of attention, state spaces, large batches, buffers.

Where the states of all steps are larger than the cache, a gradient is traffic of memory.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.bench.programs import Scan
from experiments.recurrent.networks import INPUTS, Size
from experiments.recurrent.programs import Outputs, Problem, checkpointed

CHECKPOINTS = "checkpoints"
HEADS = 4


def delta_rule(S: Array, x: Any) -> tuple[Array, Array]:
    """The gated delta rule (Yang et al. 2024): ``S' = a S + b k (v - a S k)^T`` of each head."""
    q, k, v, a, b = x
    S = a[:, None, None] * S
    S += k[:, :, None] * (b[:, None] * (v - jnp.einsum("hkv,hk->hv", S, k)))[:, None]
    return S, jnp.einsum("hkv,hk->hv", S, q)


def attention(S: Array, x: Any) -> tuple[Array, Array]:
    """Linear attention with decay: ``S' = a S + k v^T``."""
    q, k, v, a, _ = x
    S = a[:, None, None] * S + k[:, :, None] * v[:, None]
    return S, jnp.einsum("hkv,hk->hv", S, q)


def heads(d: int, length: int, seed: int) -> tuple[Any, Array]:
    """Inputs ``q, k, v: [T, heads, d]``, a decay and a rate ``[T, heads]``; the first state."""
    draw = np.random.default_rng(seed).standard_normal
    q, k, v = draw((3, length, HEADS, d), np.float32)
    a, b = draw((2, length, HEADS), np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    inputs = q, k, v, jax.nn.sigmoid(a + 3), jax.nn.sigmoid(b)
    return jax.tree.map(jnp.asarray, inputs), jnp.zeros((HEADS, d, d), jnp.float32)


def selective(h: Array, x: Any) -> tuple[Array, Array]:
    """Mamba-1 (Gu and Dao 2023): a diagonal state space whose step depends on the input."""
    (gap, u, B, C), n = x, h.shape[1]
    A = -jnp.arange(1, n + 1, dtype=h.dtype)
    h = jnp.exp(gap[:, None] * A[None]) * h + (gap * u)[:, None] * B[None]
    return h, h @ C


def channels(d: int, length: int, seed: int) -> tuple[Any, Array]:
    """Inputs of `selective` with 16 states in each of d channels."""
    draw = np.random.default_rng(seed).standard_normal
    (gap, u), (B, C) = draw((2, length, d), np.float32), draw((2, length, 16), np.float32)
    inputs = np.logaddexp(gap - 2, 0), u, B, C
    return jax.tree.map(jnp.asarray, inputs), jnp.zeros((d, 16), jnp.float32)


def updated(v: Array, x: tuple[Array, Array]) -> tuple[Array, None]:
    """A buffer, of which a step reads an entry and updates the next one."""
    i, c = x
    return v.at[i + 1].add(-c * jnp.tanh(v[i])), None


def buffer(n: int, length: int, seed: int) -> tuple[Array, Array]:
    """The first state of `updated`, and how much each step updates."""
    draw = np.random.default_rng(seed).standard_normal
    state, rates = draw(n + 1, np.float32), draw(length, np.float32)
    return jnp.asarray(state), jnp.asarray(rates)


class Wide(NamedTuple):
    """A step, arguments by size, length and seed, and one size."""

    kind: str
    step: Callable[[Any, Any], tuple[Any, Any]]
    arguments: Callable[[int, int, int], tuple[Any, Array]]
    size: int
    length: int

    def outputs(self, scan: Scan) -> Outputs:
        """``(inputs, state) -> ys``; of a buffer ``(state, rates) -> state``."""

        def run(inputs: Any, state: Array) -> Array:
            return scan(self.step, state, inputs)[1]

        def last(state: Array, rates: Array) -> Array:
            return scan(self.step, state, (jnp.arange(self.length), rates))[0]

        return last if self.step is updated else run

    def problem(self) -> Problem:
        """The gradient by the inputs, of a buffer by its first state."""
        part = "buffers" if self.step is updated else "wide"
        labels: dict[str, Any] = {"part": part, "kind": self.kind, "w": self.size}
        labels |= {"L": self.length, "batch": 1}
        arguments = [self.arguments(self.size, self.length, seed) for seed in range(INPUTS)]
        return Problem(labels, self.outputs, arguments)


PROGRAMS = (
    Wide("gated delta rule, 4 heads", delta_rule, heads, 64, 1024),
    Wide("linear attention, 4 heads", attention, heads, 64, 1024),
    Wide("Mamba-1, 16 states", selective, channels, 512, 1024),
)
BUFFERS = [Wide("update of a buffer", updated, buffer, n, n) for n in (1000, 10_000)]
NETWORKS = (Size("GRU", 128, 1000, 16),)


def beside_checkpoints(program: Wide | Size) -> Problem:
    """A program with nested loops under checkpoints beside the others."""
    problem = program.problem() if isinstance(program, Wide) else program.problem("wide")
    return replace(problem, others={CHECKPOINTS: problem.program(checkpointed)})
