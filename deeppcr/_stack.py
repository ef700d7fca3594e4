"""`stack`: equal layers as one pytree of stacked arrays, to train with."""

import dataclasses
from functools import partial
from typing import Any

import jax

from deeppcr.api import forward
from deeppcr.layers import Repeated, repeated


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["plan", "length"])
@dataclasses.dataclass(frozen=True)
class Stack(Repeated):
    """Equal layers, stacked: a pytree of arrays with an axis of layers in front, and a callable.

    It goes wherever a pytree of parameters does: `jax.grad`, `jax.jit` with donation, optax,
    checkpoints, `jax.tree.map`.
    """

    def __call__(self, x: Any, **options: Any) -> Any:
        """All layers, one after another: `deeppcr.forward(stack, x, **options)`."""
        return forward(self, x, **options)

    def __len__(self) -> int:
        return self.length * self.period

    def unstack(self) -> list[Any]:
        """The layers, one by one: as they were given, but of methods and pairs a partial."""
        return self.layers()


def stack(layers: Any, x: Any = None) -> Stack:
    """Equal layers as one pytree, stacked once: what to train with.

    A list of L modules is L times as many arrays for every transformation to carry and for the
    compiler to see; stacked, a network of a thousand layers compiles as fast as one of ten. An
    array that is the same object in all layers is kept once.

    Args:
        layers: equal layers, or layers in a period (`Linear`, `relu`, `Linear`, `relu`, ...), of
            any kind that `deeppcr.forward` takes.
        x: what the first layer takes, or `jax.ShapeDtypeStruct` for it. With it, it is checked that
            the layers return what they take and change nothing in themselves. Callables that
            cannot be taken apart need it.

    Returns:
        `Stack`.

    Raises:
        ValueError: the layers are not alike, or there are none, or calling one changes it.
        TypeError: one of them is not callable, or cannot be taken apart without ``x``.

    Example:
        >>> scales = [jnp.full(3, c) for c in (1.0, 2.0, 3.0)]
        >>> layers = [jax.tree_util.Partial(jnp.multiply, scale) for scale in scales]
        >>> stacked = deeppcr.stack(layers)
        >>> stacked(jnp.ones(3))
        Array([6., 6., 6.], dtype=float32)
        >>> jax.tree.map(jnp.shape, stacked.arrays)
        [(3, 3)]
    """
    run = repeated(layers, x)
    return Stack(run.arrays, run.plan, run.length)
