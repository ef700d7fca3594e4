"""The same loop as in `reference`, over our tables."""

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.diffusion import Schedule
from tests.diffusion.cases import FIRST, MATRIX, NOISE, Case, model


def walk(case: Case) -> np.ndarray:
    """``[L, ...]``, float64: the samples after each step, mostly in numpy, for speed."""
    schedule = Schedule.from_config(case.config, eta=case.eta)
    table = schedule.table(case.steps)
    inputs = jax.tree.map(np.asarray, table.inputs(jnp.float64) | {"noise": NOISE[: case.steps]})
    state = table.begin(schedule.init_noise_sigma(case.steps) * FIRST)
    samples = []
    for index in range(table.steps):
        at = {name: column[index] for name, column in inputs.items()}
        output = table.evaluate(lambda y, t: model(y, float(t), np, MATRIX), state, at)
        state = jax.tree.map(np.asarray, table.advance(state, output, at))
        samples.append(table.newest(state))
    return np.stack(samples)


def scan(case: Case, x: jax.Array, noise: jax.Array) -> jax.Array:
    """The last sample, in jax."""
    table = Schedule.from_config(case.config, eta=case.eta).table(case.steps)
    matrix = jnp.asarray(MATRIX, x.dtype)

    def step(state, at):
        output = table.evaluate(lambda y, t: model(y, t.astype(x.dtype), jnp, matrix), state, at)
        return table.advance(state, output, at), None

    last, _ = jax.lax.scan(step, table.begin(x), table.inputs(x.dtype) | {"noise": noise})
    return table.newest(last)
