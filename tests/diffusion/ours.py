"""The same loop as in `reference`, over our tables."""

import operator

import jax
import jax.numpy as jnp
import numpy as np

from tests.diffusion.cases import FIRST, MATRIX, NOISE, Case, doubled, model


def walk(case: Case) -> np.ndarray:
    """``[L, ...]``, float64: the samples after each step, mostly in numpy, for speed."""
    schedule = case.schedule()
    table = schedule.table(case.steps)
    inputs = jax.tree.map(np.asarray, table.inputs(jnp.float64) | {"noise": NOISE[: table.steps]})
    output_of = doubled(model) if case.is_learned else model
    state = table.begin(schedule.init_noise_sigma(case.steps) * FIRST)
    samples = []
    for index in range(table.steps):
        at = jax.tree.map(operator.itemgetter(index), inputs)
        output = table.evaluate(lambda y, t: output_of(y, float(t), np, MATRIX), state, at)
        state = jax.tree.map(np.asarray, table.advance(state, output, at))
        samples.append(np.asarray(table.newest(state)))
    return np.stack(samples)


def scan(case: Case, x: jax.Array, noise: jax.Array) -> jax.Array:
    """The last sample, in jax."""
    table = case.schedule().table(case.steps)
    matrix = jnp.asarray(MATRIX, x.dtype)
    output_of = doubled(model) if case.is_learned else model

    def step(state, at):
        output = table.evaluate(
            lambda y, t: output_of(y, t.astype(x.dtype), jnp, matrix), state, at
        )
        return table.advance(state, output, at), None

    last, _ = jax.lax.scan(step, table.begin(x), table.inputs(x.dtype) | {"noise": noise})
    return table.newest(last)
