"""What a network is called with: images, and a number for each of them."""

from typing import Any

import jax.numpy as jnp
from jax import Array


def check_images(x: Array, channels: int, factor: int) -> None:
    """Raise unless ``x`` is a batch of images whose sides are multiples of ``factor``."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x has dtype {x.dtype}, expected a float.")
    if x.ndim != 4 or x.shape[1] != channels or x.shape[2] % factor or x.shape[3] % factor:
        raise ValueError(
            f"x has shape {list(x.shape)}, expected [batch, {channels}, height, width], height and "
            f"width multiples of {factor}."
        )


def as_batch(name: str, numbers: Any, x: Array) -> Array:
    """One number, or one for each image, as [1] or [batch]."""
    numbers = jnp.asarray(numbers)
    if numbers.shape not in ((), (1,), x.shape[:1]):
        raise ValueError(
            f"{name} has shape {list(numbers.shape)}, expected a scalar or [{x.shape[0]}], one for "
            "each image."
        )
    return numbers.reshape(-1)
