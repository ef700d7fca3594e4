"""The feed-forward layers of a transformer, for each token."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.layers import Linear

WIDER = 4  # the hidden channels, for each channel
gelu = partial(jax.nn.gelu, approximate=False)


def gated(act: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Half of the channels times a function of the other half (Shazeer, arXiv 2002.05202)."""

    def multiply(x: Array) -> Array:
        values, gates = jnp.split(x, 2, axis=-1)
        return values * act(gates)

    return multiply


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu-approximate": jax.nn.gelu,
    "geglu": gated(gelu),
    "geglu-approximate": lambda x: (
        x * jax.nn.sigmoid(1.702 * x)
    ),  # which has no gate, despite its name
    "swiglu": gated(jax.nn.silu),
    "linear-silu": jax.nn.silu,
}
GATED = ("geglu", "swiglu")


class Activation(nnx.Module):
    """A linear map and an activation: [..., inputs] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, activation: str) -> None:
        self.proj = Linear(inputs, outputs * (2 if activation in GATED else 1))
        self.act = ACTIVATIONS[activation]

    def __call__(self, x: Array) -> Array:
        return self.act(self.proj(x))


class FeedForward(nnx.Module):
    """Linear, activation, linear: [..., channels] -> [..., channels]."""

    def __init__(self, channels: int, activation: str) -> None:
        hidden = WIDER * channels
        # Between them is dropout, which is for training.
        self.net = nnx.Dict(
            {"0": Activation(channels, hidden, activation), "2": Linear(hidden, channels)}
        )

    def __call__(self, x: Array) -> Array:
        return self.net["2"](self.net["0"](x))
