"""Known images: samples that start from one, or keep a part of one.

Image-to-image starts in the middle of a sampler, from an image to which noise was added (Meng et
al., *SDEdit*, ICLR 2022, section 3). Inpainting puts the known part back after every step, with the
noise of that step (Lugmayr et al., *RePaint*, CVPR 2022, equation 8):

    x' = mask f(x) + (1 - mask) (alpha' image + sigma' noise)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from deeppcr.diffusion.output import precise
from deeppcr.diffusion.table import Table
from deeppcr.extend import check_type, describe


class Inpaint(NamedTuple):
    """What `sample` is to keep of an image: a pytree.

    Attributes:
        image: floating, of the shape of ``x_T``.
        mask: of a shape that broadcasts with it: 1, or True, where the model paints, 0 where the
            image is kept, and between them a mixture, as in diffusers.
        noise: standard normal, of the shape of ``x_T``: that of the known part in all steps. Take
            that of ``x_T``.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> noise = jax.random.normal(jax.random.key(0), (4, 3))
        >>> image, mask = jnp.ones((4, 3)), jnp.array([1, 1, 0])
        >>> inpaint = deeppcr.diffusion.Inpaint(image, mask, noise)
        >>> x_T = schedule.init_noise_sigma(10) * noise
        >>> solution = deeppcr.diffusion.sample(
        ...     lambda x, t: jnp.tanh(x), schedule, x_T, steps=10, inpaint=inpaint
        ... )
        >>> solution.value[:, 2]
        Array([1., 1., 1., 1.], dtype=float32)
    """

    image: ArrayLike
    mask: ArrayLike
    noise: ArrayLike


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class InpaintTable(Table):
    """A table whose steps end with the known part of an image: see `Inpaint`, in one dtype."""

    image: Array
    mask: Array
    noise: Array

    def inputs(self, dtype: DTypeLike) -> dict[str, Any]:
        """Those of the steps, and the level of the noise after each: none after the last."""
        after = {
            name: jnp.asarray(np.append(self.levels[name][1:], end), precise(dtype))
            for name, end in (("alpha", 1.0), ("sigma", 0.0))
        }
        return super().inputs(dtype) | {"after": after}

    def advance(self, state: Any, output: Any, at: dict[str, Any]) -> Any:
        """The next state, with the known part of the sample."""
        state = super().advance(state, output, at)
        image = noisy(at["after"], self.image, self.noise)
        return state | {"x": self.mask * state["x"] + (1 - self.mask) * image}


def inpainted(table: Table, inpaint: Any, x: Array) -> Table:
    """The table for samples like ``x``; itself if there is no ``inpaint``."""
    if inpaint is None:
        return table
    check_type("inpaint", inpaint, Inpaint, "a deeppcr.diffusion.Inpaint, or None")
    image = as_image("inpaint.image", inpaint.image, x.shape).astype(x.dtype)
    noise = as_image("inpaint.noise", inpaint.noise, x.shape).astype(x.dtype)
    mask = jnp.asarray(inpaint.mask)
    sizes = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    if mask.ndim > x.ndim or any(n not in (1, size) for n, size in sizes):
        raise ValueError(
            f"inpaint.mask is {describe(mask)}, expected a shape that broadcasts with that of x_T, "
            f"{list(x.shape)}."
        )
    mask = jnp.expand_dims(mask, range(x.ndim - mask.ndim)).astype(x.dtype)
    return InpaintTable(**vars(table), image=image, mask=mask, noise=noise)


def noisy(level: Mapping[str, Any], image: Array, noise: Array) -> Array:
    """``alpha image + sigma noise``, of the dtype of the image, computed in float32 or better."""
    wide = precise(image.dtype)
    alpha = jnp.asarray(level["alpha"], wide)
    sigma = jnp.asarray(level["sigma"], wide)
    return (alpha * image.astype(wide) + sigma * noise.astype(wide)).astype(image.dtype)


def as_image(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Array:
    """An array, floating, and of this shape if there is one."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} is {describe(array)}, expected floating numbers.")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} is {describe(array)}, expected the shape {list(shape)}.")
    return array
