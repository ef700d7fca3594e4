"""The same loop as in `reference`, over our tables."""

import operator

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.diffusion import Inpaint
from deeppcr.diffusion.images import inpainted
from tests.diffusion.cases import FIRST, IMAGE, MASK, MATRIX, NOISE, Case, doubled, model


def walk(case: Case) -> np.ndarray:
    """``[L, ...]``, float64: the samples after each step, mostly in numpy, for speed."""
    schedule = case.schedule()
    table = schedule.table(case.steps, case.start)
    state = schedule.init_noise_sigma(case.steps) * FIRST
    if case.start:
        state = schedule.add_noise(IMAGE, FIRST, steps=case.steps, start=case.start)
        table = inpainted(table, Inpaint(IMAGE, MASK, FIRST), state)
    inputs = jax.tree.map(np.asarray, table.inputs(jnp.float64) | {"noise": NOISE[: table.steps]})
    output_of = doubled(model) if case.is_learned else model
    state = table.begin(state)
    samples = []
    for index in range(table.steps):
        at = jax.tree.map(operator.itemgetter(index), inputs)
        output = table.evaluate(lambda y, t: output_of(y, float(t), np, MATRIX), state, at)
        state = jax.tree.map(np.asarray, table.advance(state, output, at))
        samples.append(np.asarray(state["x"]))
    return np.stack(samples)


def in_jax(case: Case):
    """The model of a case, as `sample` takes it."""
    output_of = doubled(model) if case.is_learned else model
    return lambda y, t: output_of(y, t.astype(y.dtype), jnp, jnp.asarray(MATRIX, y.dtype))
