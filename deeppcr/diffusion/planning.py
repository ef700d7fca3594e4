"""`plan` for samplers: does sampling in parallel pay off? `deeppcr.plan` of a sampler's chain."""

from typing import Any

import jax
from jax import Array

import deeppcr
from deeppcr import Plan
from deeppcr.diffusion.images import Inpaint
from deeppcr.diffusion.sampler import Model, as_chain
from deeppcr.diffusion.schedule import Schedule
from deeppcr.extend import MethodOption, suggests_arguments
from depth import Device


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
        >>> found = deeppcr.diffusion.plan(model, schedule, x_T, steps=50, device="H100")
        >>> found.found["chain"]
        '50 steps, a state of 16 entries, a batch of 4'
    """
    chain, state, chosen = as_chain(
        model, schedule, x_T, steps, start, args, inpaint, key, method, coarse, batch_ndim
    )
    return deeppcr.plan(
        chain, state, method=chosen, device=device, iterations=iterations, batch_ndim=batch_ndim
    )
