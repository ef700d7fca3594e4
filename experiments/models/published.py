"""Chains of the kinds on which the field has published results; weights and inputs are drawn here.

Only `deer_demo` is a copy of the published set-up. Of the others, widths and scales that were not
at hand were chosen here, some after other scales had been tried. docs/experiments/field.md says
which.
"""

from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from experiments.models import cells
from experiments.models.chains import Model
from experiments.models.training import normal

Pair = tuple[Array, Array]


def tanh_rnn(width: int, length: int, seed: int = 0) -> Model:
    """``tanh(z W + x)`` with weights of variance 1 / width, and normal inputs.

    Drawn with jax's default random bits of 2024.
    """
    with jax.threefry_partitionable(False):
        of_weight, of_inputs = jax.random.split(jax.random.key(seed))
        weight = normal(of_weight, width, width)
        inputs = jax.random.normal(of_inputs, (length, width), jnp.float32)
    return Model(lambda z, x: jnp.tanh(z @ weight + x), inputs, jnp.zeros(width, jnp.float32))


def contracting_rnn(length: int, width: int = 4, seed: int = 0) -> Model:
    """``tanh(z W + x / 2)``, where W has the spectral norm 1: no step amplifies a difference."""
    of_weight, of_inputs = jax.random.split(jax.random.key(seed))
    weight = jax.random.normal(of_weight, (width, width), jnp.float32)
    weight = weight / jnp.linalg.norm(weight, 2)
    inputs = 0.5 * jax.random.normal(of_inputs, (length, width), jnp.float32)
    return Model(lambda z, x: jnp.tanh(z @ weight + x), inputs, jnp.zeros(width, jnp.float32))


def word_problem(length: int, seed: int = 0) -> Model:
    """Products of permutations of five elements: ``z_l = P(x_l) z_{l-1}``, x_l one of 120."""
    matrices = jnp.asarray(np.eye(5)[list(permutations(range(5)))], jnp.float32)
    word = np.random.default_rng(seed).integers(len(matrices), size=length)
    return Model(lambda z, x: matrices[x] @ z, jnp.asarray(word), jnp.arange(5, dtype=jnp.float32))


def deer_demo(length: int = 10_000, width: int = 2, batch: int = 16, seed: int = 0) -> Model:
    """The GRU of DEER's demo, with its own weights and inputs: those of equinox and jax of 2024.

    Its states have the published range, -9.216077e-01 to 7.263898e-01. The demo draws weights in
    float64 and rounds them.
    """
    shapes = (3 * width, width), (3 * width, width), (3 * width,), (width,)
    bound = width**-0.5
    with jax.threefry_partitionable(False), jax.enable_x64(True):
        _, of_weights, of_inputs = jax.random.split(jax.random.key(seed), 3)
        keys = jax.random.split(of_weights, len(shapes))
        of_input, of_state, b, c = (
            jax.random.uniform(key, shape, jnp.float64, -bound, bound).astype(jnp.float32)
            for key, shape in zip(keys, shapes, strict=True)
        )
        inputs = jax.random.normal(of_inputs, (length, batch, width), jnp.float32)
    only_new = jnp.concatenate([jnp.zeros(2 * width, jnp.float32), c])
    weights = {"W": of_input.T, "U": of_state.T, "b": b, "c": only_new}
    return Model(partial(cells.gru, weights), inputs, jnp.zeros((batch, width), jnp.float32))


def para_rnn(kind: str, width: int, length: int, seed: int = 0) -> Model:
    """The cell of ParaRNN, "ParaGRU" or "ParaLSTM", with weights uniform in +- 1/sqrt(n).

    Gates read their own unit alone: the Jacobian is diagonal, or has blocks of 2.
    """
    from flax import nnx

    rng, bound = np.random.default_rng(seed), width**-0.5
    graph, weights = nnx.split(getattr(deeppcr.nn, kind)(width, width, rngs=nnx.Rngs(0)))
    weights = jax.tree.map(
        lambda w: jnp.asarray(rng.uniform(-bound, bound, w.shape), jnp.float32), weights
    )
    cell = nnx.merge(graph, weights)
    inputs = jnp.asarray(rng.normal(size=(length, width)), jnp.float32)
    return Model(lambda state, x: cell(state, x)[0], inputs, cell.initialize_carry((width,)))


def mean_field_rnn(gain: float, length: int, width: int = 48, seed: int = 0) -> Model:
    """``g tanh(z) W + x``: forgets its past at a small gain g, and is chaotic at a large one."""
    of_weight, of_inputs, of_state = jax.random.split(jax.random.key(seed), 3)
    weight = normal(of_weight, width, width)
    inputs = {
        "x": 0.1 * jax.random.normal(of_inputs, (length, width), jnp.float32),
        "gain": jnp.full(length, gain, jnp.float32),
    }
    z0 = jax.random.normal(of_state, (width,), jnp.float32)
    return Model(lambda z, at: at["gain"] * jnp.tanh(z) @ weight + at["x"], inputs, z0)


def mala_chain(length: int, size: float = 0.7, seed: int = 1) -> Model:
    """The Metropolis-adjusted Langevin algorithm on a mixture of four Gaussians in the plane.

    They have unit variance, and stand at (+-2, +-2). An input is the noise of a proposal, and the
    logarithm of the uniform number that accepts or rejects it: there the step jumps.
    """
    centres = 2.0 * jnp.asarray([[1, 1], [1, -1], [-1, 1], [-1, -1]], jnp.float32)

    def log_density(z: Array) -> Array:
        return jax.nn.logsumexp(-0.5 * jnp.square(z[None] - centres).sum(-1))

    def drift(z: Array) -> Array:
        return z + size * jax.grad(log_density)(z)

    def log_proposal(z: Array, of: Array) -> Array:
        return -jnp.square(z - drift(of)).sum() / (4 * size)

    def step(z: Array, x: Pair) -> Array:
        noise, log_uniform = x
        new = drift(z) + (2 * size) ** 0.5 * noise
        ratio = log_density(new) - log_density(z) + log_proposal(z, new) - log_proposal(new, z)
        return jnp.where(log_uniform < ratio, new, z)

    of_noise, of_uniform = jax.random.split(jax.random.key(seed))
    inputs = (
        jax.random.normal(of_noise, (length, 2), jnp.float32),
        jnp.log(jax.random.uniform(of_uniform, (length,), jnp.float32)),
    )
    return Model(step, inputs, jnp.zeros(2, jnp.float32))
