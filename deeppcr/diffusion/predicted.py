"""`pred_original_sample`: what the model takes each sample of a trajectory for, without noise."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.checks import check_count, describe
from deeppcr.diffusion.sampler import Model, bind
from deeppcr.diffusion.schedule import Schedule


def pred_original_sample(
    model: Model,
    schedule: Schedule,
    x_T: Array,
    trajectory: Array,
    *,
    steps: int,
    start: int = 0,
    args: tuple[Any, ...] = (),
    window: int | None = None,
) -> Array:
    """The sample without noise that the model predicts at every step, to look at.

    Calls the model once for every sample of the trajectory, at the same time. Whatever the
    prediction type, this is the sample itself, clipped or thresholded if the scheduler does so.

    Args:
        model: as for `sample`.
        schedule: as for `sample`.
        x_T: as for `sample`.
        trajectory: that of the solution of `sample`, ``[L, *batch, ...]``; of any iteration.
        steps: as for `sample`.
        start: as for `sample`.
        args: as for `sample`.
        window: integer >= 1, the number of steps for which the model is called at once. None: all.

    Returns:
        an array ``[L, *batch, ...]``: the first is predicted from ``x_T``, the last from the sample
        before the last step. Those of diffusers are called ``pred_original_sample``, too.

    Raises:
        ValueError: ``trajectory`` has another shape.
        TypeError: ``model`` is not a function, or ``args`` is not a tuple.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> model = lambda x, t: jnp.tanh(x)
        >>> x_T = jax.random.normal(jax.random.key(0), (4, 16))
        >>> solution = deeppcr.diffusion.sample(model, schedule, x_T, steps=10)
        >>> looks = deeppcr.diffusion.pred_original_sample(
        ...     model, schedule, x_T, solution.trajectory, steps=10
        ... )
        >>> looks.shape
        (10, 4, 16)
        >>> bool(jnp.allclose(looks[-1], solution.value, atol=1e-4))  # the last step goes there
        True
    """
    x_T, trajectory = jnp.asarray(x_T), jnp.asarray(trajectory)
    table = schedule.table(steps, start)
    check_count("window", window, "how many steps are predicted at once", optional=True)
    if trajectory.shape != (table.steps, *x_T.shape):
        raise ValueError(
            f"trajectory is {describe(trajectory)}, expected the shape "
            f"{[table.steps, *x_T.shape]}: that of all steps."
        )
    # A sampler whose next sample is the predicted one.
    table = dataclasses.replace(table, update={"x": {"x0": np.ones(table.steps)}})
    step, before = table.step(bind(model, args)), jnp.concatenate([x_T[None], trajectory[:-1]])
    pairs, at_once = (before, table.inputs(x_T.dtype)), window or table.steps
    parts = [
        jax.vmap(step)(*jax.tree.map(lambda leaf, i=i: leaf[i : i + at_once], pairs))
        for i in range(0, table.steps, at_once)
    ]
    return jnp.concatenate(parts)
