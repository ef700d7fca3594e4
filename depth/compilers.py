"""What the compiler of this process does with small loops of a CPU; it is asked once."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from depth.jaxprs import bind, run

EMITTED = b"computation_kernel"  # stands in the code of a loop that is one function (jax 0.10-0.12)


@cache
def is_hoisted() -> bool:
    """Whether XLA compiles a loop over a few kilobytes to one function by itself.

    Since jax 0.12 its pass `SmallRegionHoistingPass` does. False without a CPU.
    """
    return bool(is_one_function(lambda loop, x: run(loop, [x], bind)))


def is_one_function(by: Callable[[Any, Array], Any]) -> bool | None:
    """Whether a loop over a kilobyte is one function, as ``by`` runs its jaxpr; None without a CPU.

    Args:
        by: A function of the jaxpr and a vector, which evaluates the jaxpr.
    """
    vector = jax.ShapeDtypeStruct((1024,), jnp.float32)
    loop = jax.make_jaxpr(lambda x: lax.fori_loop(0, 2, lambda _, x: jnp.sin(x) + x[::-1], x))
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the program is exported from a machine that jax uses without its CPU
        return None
    try:
        with jax.default_device(device):
            compiled = jax.jit(partial(by, loop(vector))).lower(vector).compile()
        code: Any = compiled.runtime_executable()
        return EMITTED in code.serialize()
    except Exception:  # an interface of jax has changed
        return False
