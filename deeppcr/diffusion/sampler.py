"""`sample`: a diffusion sampler as a chain over its denoising steps; and `plan` of that chain.

A step is ``x' = a x + b model(x, t) + s noise`` with coefficients from a `Schedule`; multistep
solvers also remember earlier outputs, which makes the state longer. The noise of step l depends on
the key and on l only, so every method returns the samples of the sequential sampler.

The methods differ by the approximation of the Jacobian ``a + b dmodel/dx``: the Jacobian itself
(DeepPCR, Danieli et al., NeurIPS 2023, section 4.4), its diagonal, what it would be for normally
distributed data (`Gaussian`), the identity (ParaDiGMS, Shih et al., NeurIPS 2023), or ``a`` only.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from inspect import isfunction
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr import Adjoint, Chain, Plan, Sequential, Solution, Surrogate, scan, solve
from deeppcr import plan as plan_chain
from deeppcr.diffusion.gaussian import GAIN, Gaussian
from deeppcr.diffusion.images import Inpaint, inpainted
from deeppcr.diffusion.output import doubled_axis
from deeppcr.diffusion.schedule import Schedule
from deeppcr.diffusion.table import Model, Table
from deeppcr.extend import (
    LinearSolver,
    MethodOption,
    as_array,
    check_count,
    check_type,
    describe,
    find_method,
    named_after,
    of_step,
    suggests_arguments,
)
from depth import Device


@suggests_arguments
def sample(
    model: Model,
    schedule: Schedule,
    x_T: Array,
    *,
    steps: int,
    start: int = 0,
    args: tuple[Any, ...] = (),
    inpaint: Inpaint | None = None,
    key: Array | None = None,
    method: str | MethodOption = "auto",
    coarse: int | None = None,
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 1,
) -> Solution:
    r"""Sample from a diffusion or flow model with all denoising steps at once.

    Every method returns the samples of the sequential sampler,
    $x_l = a_l x_{l-1} + b_l \epsilon(x_{l-1}, t_l) + s_l \xi_l$.

    Args:
        model: ``model(x, t, *args) -> output``, a JAX function. ``x`` has the shape and dtype of
            ``x_T``, ``t`` is an int32 or float32 scalar, as defined by the scheduler. The output is
            the prediction type of the schedule, with the shape of ``x``; with a learned variance,
            one axis is twice as long, and its second half has the variance, which only DDPM with
            such a ``variance_type`` uses.
        schedule: a `Schedule`, see `Schedule.from_config`.
        x_T: ``[*batch, ...]``, floating, the initial state. Pure noise is a standard normal times
            ``schedule.init_noise_sigma(steps)``.
        steps: integer >= 1, the number of denoising steps.
        start: integer >= 0 and < ``steps``, how many steps are left out at the start, for
            image-to-image: then ``x_T`` is `Schedule.add_noise` of an image.
        args: a tuple of what the model takes besides: pytrees of arrays, such as weights, labels or
            embeddings of a text. See `guided` for classifier-free guidance.
        inpaint: the part of an image that the samples keep, see `Inpaint`; None: none.
        key: a `jax.random` key, for schedules that add noise.
        method: as in `deeppcr.solve`. For images, whose Jacobians do not fit into memory, use
            ``Newton(linearize=Gaussian(), window=...)``, see `Gaussian`, or "identity" (Picard).
        coarse: integer >= 1 (steps per model call): start Newton's method from a sampler that calls
            the model at every ``coarse``-th step and reuses its output in between. None: use the
            initial guess of the method. Not available for the sequential method.
        adjoint: as in `deeppcr.solve`. Derivatives are those of the sequential sampler.
        batch_ndim: the number of leading axes of ``x_T`` that are batch axes, whose samples the
            model treats independently.

    Returns:
        a `deeppcr.Solution`. ``value`` has the samples, of the shape and dtype of ``x_T``, and
        ``trajectory`` the sample after every model call, ``[steps - start, *batch, ...]`` (more for
        Heun and PNDM, see `Schedule.table`). Differentiable with respect to ``x_T``, ``args``,
        ``inpaint``, and the arrays that the model closes over.

    Raises:
        TypeError: ``x_T`` is not floating, the model returns another shape, or ``schedule`` is not
            a `Schedule`.
        ValueError: ``key`` is missing for a schedule that adds noise, a name is unknown, or
            ``coarse`` is given to the sequential method.

    `plan` predicts, with the same arguments, whether a parallel method pays off.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> model = lambda x, t: jnp.tanh(x) * (1 + 0.001 * t)
        >>> x_T = jax.random.normal(jax.random.key(0), (4, 16))
        >>> sample = deeppcr.diffusion.sample
        >>> newton = sample(model, schedule, x_T, steps=50, method="newton", coarse=10)
        >>> sequential = sample(model, schedule, x_T, steps=50, method="sequential")
        >>> bool(jnp.allclose(newton.value, sequential.value, atol=1e-4))
        True

    References:
        F. Danieli et al., *DeepPCR*, NeurIPS 2023, section 4.4. A. Shih et al., *Parallel Sampling
        of Diffusion Models*, NeurIPS 2023. Z. Tang et al., *Accelerating Parallel Sampling of
        Diffusion Models*, ICML 2024.
    """
    x_T = as_array("x_T", x_T)
    chain, state, method = _as_chain(
        model, schedule, x_T, steps, start, args, inpaint, key, method, coarse, batch_ndim
    )
    solution = solve(chain, state, method=method, adjoint=adjoint, batch_ndim=batch_ndim)
    return dataclasses.replace(
        solution, value=solution.value["x"], trajectory=solution.trajectory["x"]
    )


@suggests_arguments
def plan(
    model: Model,
    schedule: Schedule,
    x_T: Array | jax.ShapeDtypeStruct,
    *,
    steps: int,
    start: int = 0,
    args: tuple[Any, ...] = (),
    inpaint: Inpaint | None = None,
    key: Array | None = None,
    method: str | MethodOption = "auto",
    coarse: int | None = None,
    batch_ndim: int = 1,
    device: Device | str | None = None,
    iterations: int | None = None,
) -> Plan:
    """Predict whether sampling in parallel pays off, and say what "auto" takes and why.

    It takes the arguments of `sample`, but no ``adjoint``: a plan compares those.

    Args:
        model: as in `sample`.
        schedule: as in `sample`.
        x_T: as in `sample`, or a `jax.ShapeDtypeStruct` like it.
        steps: as in `sample`.
        start: as in `sample`.
        args: as in `sample`.
        inpaint: as in `sample`.
        key: as in `sample`.
        method: the method to compare with the sequential sampler; "auto": Newton's method.
        coarse: as in `sample`.
        batch_ndim: as in `sample`.
        device: as in `deeppcr.plan`, the name of a device or a `depth.Device`. None: this one.
        iterations: as in `deeppcr.plan`: of Newton's method, where you have observed them.

    Returns:
        a `deeppcr.Plan`. Its ``method`` is one for `sample`.

    Raises:
        TypeError: as in `sample`.
        ValueError: as in `sample`; ``device`` is unknown; or ``method`` has a `Gaussian`, whose
            cost is not known before a call.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> model = lambda x, t: jnp.tanh(x) * (1 + 0.001 * t)
        >>> x_T = jax.ShapeDtypeStruct((4, 16), jnp.float32)
        >>> plan = deeppcr.diffusion.plan(model, schedule, x_T, steps=50, device="H100")
        >>> plan.found["chain"]
        '50 steps, a state of 16 entries, a batch of 4'
    """
    chain, state, method = _as_chain(
        model, schedule, x_T, steps, start, args, inpaint, key, method, coarse, batch_ndim
    )
    return plan_chain(
        chain, state, method=method, device=device, iterations=iterations, batch_ndim=batch_ndim
    )


def _as_chain(
    model: Model,
    schedule: Schedule,
    x_T: Any,
    steps: int,
    start: int,
    args: tuple[Any, ...],
    inpaint: Inpaint | None,
    key: Array | None,
    method: str | MethodOption,
    coarse: int | None,
    batch_ndim: int,
) -> tuple[Chain, Any, MethodOption]:
    """The chain of a sampler, its initial state, and its method, from the arguments of `sample`.

    They are checked. ``x_T`` may be a `jax.ShapeDtypeStruct`.
    """
    check_type("schedule", schedule, Schedule, "a Schedule: see diffusion.Schedule.from_config")
    check_type("model", model, Callable, "a function model(x, t)")
    check_type("args", args, tuple, "a tuple, such as (args,)")
    conditioned = named_after(model)(lambda x, t: model(x, t, *args)) if args else model
    check_count("coarse", coarse, "steps per model call", optional=True)
    check_count("batch_ndim", batch_ndim, "number of batch axes of x_T", least=0)
    x_T = x_T if isinstance(x_T, jax.ShapeDtypeStruct) else as_array("x_T", x_T)
    if x_T.ndim < batch_ndim:
        raise ValueError(
            f"x_T has shape {list(x_T.shape)}, expected at least batch_ndim = {batch_ndim} axes."
        )
    if not jnp.issubdtype(x_T.dtype, jnp.floating):
        raise TypeError(f"x_T has dtype {x_T.dtype}, expected a floating one.")
    method = find_method(method)
    if coarse is not None and isinstance(method, Sequential):
        raise ValueError(
            f"coarse is {coarse}, but method is {describe(method)}, which runs step by step and "
            'has no coarse; expected None, or a parallel method: "auto", "newton", Newton(...).'
        )

    table = inpainted(schedule.table(steps, start), inpaint, x_T)
    inputs = table.inputs(x_T.dtype)
    if table.is_noisy:
        if key is None or not hasattr(key, "dtype"):
            raise ValueError(
                f"key is {describe(key)}, but {schedule} adds noise at every step: "
                "expected a key, such as jax.random.key(0)."
            )
        inputs["noise"] = step_noise(key, table.steps, x_T)
    state = table.begin(x_T)
    _check_output(conditioned, table, x_T, batch_ndim)
    step = named_after(model)(table.step(conditioned))

    options: dict[str, Any] = {}
    guess = getattr(method, "initial_guess", None)
    if list(state) == ["x"] and (hasattr(guess, "shape") or isfunction(guess)):  # of samples
        options["initial_guess"] = _of_state(guess)
    if isinstance(gaussian := getattr(method, "linearize", None), Gaussian):
        inputs[GAIN] = gaussian.gain(table, x_T.dtype)
        options["linearize"] = Surrogate(gaussian.step(table))
    if coarse is not None:
        options["initial_guess"] = _coarse_guess(table, conditioned, coarse)
    return Chain(step, inputs), state, dataclasses.replace(method, **options)


def _of_state(guess: Any) -> Any:
    """A trajectory of samples, or a function that returns one, as one of states."""
    if hasattr(guess, "shape"):
        return {"x": guess}
    return lambda state, inputs: {"x": guess(state["x"], inputs)}


def step_noise(key: Array, steps: int, x: Array) -> Array:
    """Standard normal noise, ``[steps, *x.shape]``: that of step l >= 0 by ``fold_in(key, l)``."""

    def draw(step: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(key, step), x.shape, x.dtype)

    return jax.vmap(draw)(jnp.arange(steps, dtype=jnp.uint32))


def _check_output(model: Model, table: Table, x: Array, batch_ndim: int) -> None:
    """Raise unless the model returns an array like ``x``, before anything is compiled."""
    evaluate = named_after(model)(lambda x, t: model(x, t))  # jax keeps results of one function
    output = jax.eval_shape(evaluate, x, jax.ShapeDtypeStruct((), table.time.dtype))
    if isinstance(output, jax.ShapeDtypeStruct) and jnp.issubdtype(output.dtype, jnp.floating):
        axis = doubled_axis(output, x)
        if axis is not None and axis >= batch_ndim:
            return
        if not table.learned and output.shape == x.shape:
            return
    expected = f"an array of the shape of x_T, {describe(x)}"
    if table.learned:
        expected += ", with one axis twice as long for the learned variance"
    raise TypeError(f"model returns {describe(output)}, expected {expected}.")


def _coarse_guess(table: Table, model: Model, coarse: int) -> Callable[[Any, Any], Any]:
    """An initial trajectory for ``Newton(initial_guess=)``: one model call for ``coarse`` steps.

    The steps between two calls reuse the output, and have their own coefficients and noise. For
    DDIM this is the sampler with fewer steps: steps with the same predicted noise add up to one
    large step (Song et al., ICLR 2021, section 4.2).
    """
    evaluate = partial(table.evaluate, model)

    def trajectory(state: Any, inputs: Any) -> Any:
        def step(carry: Any, xs: Any) -> tuple[Any, Any]:
            (state, output), (is_called, at) = carry, xs
            output = lax.cond(is_called, evaluate, lambda *_: output, state, at)
            state = table.advance(state, output, at)
            return (state, output), state

        state, inputs = lax.stop_gradient((state, inputs))
        unused = jax.eval_shape(evaluate, state, jax.tree.map(of_step, inputs))
        carry = state, jnp.zeros_like(unused)
        xs = jnp.arange(table.steps) % coarse == 0, inputs
        return scan(step, carry, xs, method="sequential")[1]

    return trajectory
