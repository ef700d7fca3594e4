"""A program to compile, by a given scan."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Scan = Callable[..., Any]
Loss = Callable[[Any], Array]


def normal(key: Array, *shape: int) -> Array:
    """Random numbers of variance 1."""
    return jax.random.normal(key, shape, jnp.float32)


class Program(NamedTuple):
    """A program to differentiate.

    Attributes:
        loss: ``loss(scan, parameters)``, a number.
        parameters: a pytree of arrays.
        transform: what is compiled, of the loss as a function of the parameters.
    """

    loss: Callable[[Scan, Any], Array]
    parameters: Any
    transform: Callable[[Loss], Callable[[Any], Any]] = jax.grad

    def by(self, scan: Scan) -> Callable[[Any], Any]:
        """What is compiled, by this scan."""
        return self.transform(partial(self.loss, scan))


def many(loss: Loss) -> Callable[[Any], Any]:
    """The gradient at three points at once."""

    def gradients(parameters: Any) -> Any:
        points = jax.tree.map(lambda x: jnp.stack([x, 0.9 * x, 1.1 * x]), parameters)
        return jax.vmap(jax.grad(loss))(points)

    return gradients


def pushed(loss: Loss) -> Callable[[Any], Any]:
    """A product of the Hessian with a vector: forward over reverse."""
    return lambda parameters: jax.jvp(jax.grad(loss), (parameters,), (parameters,))
