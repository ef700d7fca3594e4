"""`sample`: a diffusion sampler as a chain over its denoising steps; by any method, the samples of the sequential sampler.

A step is ``x' = a x + b model(x, t) + s noise`` with numbers from a `Schedule`. The noise of step l is drawn from the key and l
alone, so all steps know theirs beforehand, and every method makes the same samples from the same key.

The methods are one family, by what stands in for the Jacobian ``a + b dmodel/dx``: itself (DeepPCR, Danieli et al., NeurIPS 2023,
section 4.4), its diagonal, the identity (ParaDiGMS, Shih et al., NeurIPS 2023), or ``a`` alone.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr._plan import Auto, Method, find_method
from deeppcr.adjoint import Adjoint
from deeppcr.api import solve
from deeppcr.chain import Chain
from deeppcr.checks import check_count
from deeppcr.diffusion.schedule import Schedule
from deeppcr.diffusion.table import Table
from deeppcr.diffusion.table import coarse_guess as held
from deeppcr.linear import LinearSolver
from deeppcr.newton import Newton
from deeppcr.solution import Solution

PICARD = Newton(linearize="identity")

Model = Callable[[Any, Any], Any]
Progress = Callable[[int, int, float], None]


def sample(
    model: Model,
    schedule: Schedule,
    x_T: Array,
    *,
    steps: int,
    key: Array | None = None,
    method: str | Method = "auto",
    coarse: int | None = None,
    window: int | None = None,
    progress: bool | Progress = False,
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 1,
) -> Solution:
    """Samples of a diffusion or flow model, with all denoising steps at once: those that the sequential sampler makes.

    Args:
        model: ``model(x, t)``, any JAX function: ``x`` has the shape and dtype of ``x_T``, ``t`` is a scalar, int32 or float32
            as the scheduler has it. It returns what the schedule's prediction type says, in the shape of ``x``.
        schedule: see `Schedule.from_config`.
        x_T: ``[*batch, ...]``, floating: what the sampler starts from. Pure noise is a standard normal times
            ``schedule.init_noise_sigma(steps)``.
        steps: how many denoising steps.
        key: a key of `jax.random`, for schedules that add noise.
        method: as in `deeppcr.solve`, or "picard": ``Newton(linearize="identity")``, which for large images, whose Jacobians do
            not fit into memory, is the one to take, with a ``window``.
        coarse: start Newton's iterations from a sampler that calls the model at every ``coarse``-th step only, and holds its
            output in between. None: as the method says.
        window: how many steps Newton's method solves at once. None: as the method says.
        progress: a function that is called after every Newton iteration, with its number, how many steps are done, and the
            largest relative residual; True: a line each on stderr.
        adjoint: as in `deeppcr.solve`; derivatives are those of the sequential sampler.
        batch_ndim: how many leading axes of ``x_T`` are samples, which the model treats one by one.

    Returns:
        `deeppcr.Solution`, whose ``value`` are the samples ``x_0``, of the shape of ``x_T``, and whose ``trajectory``,
        ``[steps, *batch, ...]``, is what every step left; ``stats`` and ``result`` tell how it went. Differentiable with respect
        to ``x_T`` and all that the model closes over.

    Raises:
        TypeError: ``x_T`` is not floating, the model returns another shape, or ``schedule`` is not a `Schedule`.
        ValueError: ``key`` is missing for a schedule that adds noise, or a name is not known.

    Example:
        >>> schedule = deeppcr.diffusion.Schedule.from_config({"_class_name": "DDIMScheduler", "clip_sample": False})
        >>> model = lambda x, t: jnp.tanh(x) * (1 + 0.001 * t)
        >>> x_T = jax.random.normal(jax.random.key(0), (4, 16))
        >>> found = deeppcr.diffusion.sample(model, schedule, x_T, steps=50, method="newton", coarse=10)
        >>> in_turn = deeppcr.diffusion.sample(model, schedule, x_T, steps=50, method="sequential")
        >>> bool(jnp.allclose(found.value, in_turn.value, atol=1e-4))
        True
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule is {type(schedule).__name__}, expected a deeppcr.diffusion.Schedule: see Schedule.from_config."
        )
    if not callable(model):
        raise TypeError(f"model is {type(model).__name__}, expected a function model(x, t).")
    check_count("steps", steps, "how many denoising steps")
    check_count("coarse", coarse, "at every which step the model is called", optional=True)
    check_count("window", window, "how many steps are solved at once", optional=True)
    check_count("batch_ndim", batch_ndim, "how many batch axes x_T has", least=0)
    x_T = jnp.asarray(x_T)
    if x_T.ndim < batch_ndim:
        raise ValueError(
            f"x_T has shape {list(x_T.shape)}, expected at least batch_ndim = {batch_ndim} axes."
        )
    if not jnp.issubdtype(x_T.dtype, jnp.floating):
        raise TypeError(f"x_T has dtype {x_T.dtype}, expected a floating one.")
    chosen = PICARD if isinstance(method, str) and method == "picard" else find_method(method)

    table = schedule.table(steps)
    inputs = table.inputs(x_T.dtype)
    if table.is_noisy:
        inputs["noise"] = step_noise(_checked_key(key, schedule), steps, x_T)
    start = table.begin(x_T)
    _check_output(model, table, start, inputs, x_T)
    step = table.step(model)

    options: dict[str, Any] = {}
    if coarse is not None:
        options["initial_guess"] = held(table, model, coarse)
    if window is not None:
        options["window"] = min(window, steps)
    if progress is not False:
        options["progress"] = say if progress is True else progress
    if isinstance(chosen, Newton | Auto):
        chosen = dataclasses.replace(chosen, **options)
    found = solve(Chain(step, inputs), start, method=chosen, adjoint=adjoint, batch_ndim=batch_ndim)
    return dataclasses.replace(
        found, value=table.newest(found.value), trajectory=table.newest(found.trajectory)
    )


def step_noise(key: Array, steps: int, x: Array) -> Array:
    """``[steps, *x.shape]``: the noise of every step, standard normal; that of step l, counted from 0, by ``fold_in(key, l)``."""

    def draw(step: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(key, step), x.shape, x.dtype)

    return jax.vmap(draw)(jnp.arange(steps, dtype=jnp.uint32))


def say(iteration: int, prefix: int, residual: float) -> None:
    """A line on stderr on how far Newton's method has come."""
    print(
        f"iteration {iteration}: {prefix} steps done, residual {residual:.1e}",
        file=sys.stderr,
        flush=True,
    )


def _checked_key(key: Array | None, schedule: Schedule) -> Array:
    if key is None:
        raise ValueError(
            f"key is None, but {schedule} adds noise at every step: expected a key, such as jax.random.key(0)."
        )
    return key


def _check_output(model: Model, table: Table, start: Any, inputs: Any, x: Array) -> None:
    """Whether the model returns an array like ``x``, before anything is compiled."""
    at = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), inputs)
    found = jax.eval_shape(lambda state, at: table.evaluate(model, state, at), start, at)
    is_array = isinstance(found, jax.ShapeDtypeStruct)
    if not is_array or found.shape != x.shape or not jnp.issubdtype(found.dtype, jnp.floating):
        what = f"{found.dtype}{list(found.shape)}" if is_array else type(found).__name__
        raise TypeError(
            f"model returns {what}, expected an array of the shape of x_T, {x.dtype}{list(x.shape)}."
        )
