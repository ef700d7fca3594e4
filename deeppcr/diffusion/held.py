"""A first trajectory for a sampler, from a few calls of its model: the output is held for some steps, and all else is done.

Between two calls the steps are those of the schedule, with its own coefficients and its own noise, so only the model's output is
approximate. For the deterministic sampler (DDIM) this is the same sampler with fewer steps, at all the times in between:
steps with the same predicted noise add up to one large step (Song et al., ICLR 2021, section 4.2).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.diffusion.table import Table


def held(table: Table, model: Callable[[Any, Any], Any], every: int) -> Callable[[Any, Any], Any]:
    """A first trajectory for ``Newton(initial_guess=)``, by one call of the model in ``every`` steps."""

    def stretch(state: Any, inputs: Any) -> tuple[Any, Any]:
        """Some steps with one call of the model, at the first."""
        output = table.evaluate(model, state, jax.tree.map(lambda x: x[0], inputs))

        def step(state: Any, at: Any) -> tuple[Any, Any]:
            state = table.advance(state, output, at)
            return state, state

        return lax.scan(step, state, inputs)

    def trajectory(state: Any, inputs: Any) -> Any:
        count, rest = divmod(table.steps, every)
        whole = table.steps - rest
        parts = []
        if count:
            stretches = jax.tree.map(
                lambda x: x[:whole].reshape((count, every, *x.shape[1:])), inputs
            )
            state, states = lax.scan(stretch, state, stretches)
            parts.append(jax.tree.map(lambda x: x.reshape((whole, *x.shape[2:])), states))
        if rest:
            parts.append(stretch(state, jax.tree.map(lambda x: x[whole:], inputs))[1])
        return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

    return trajectory
