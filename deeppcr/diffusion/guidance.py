"""Classifier-free guidance (Ho and Salimans, NeurIPS 2021 workshop, arXiv 2207.12598)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from deeppcr.diffusion.output import doubled_axis, split
from deeppcr.extend import check_type, describe


def guided(
    model: Callable[..., Any], scale: ArrayLike
) -> Callable[[Array, Array, Any, Any], Array]:
    r"""A conditional model with classifier-free guidance.

    Its output is $u + s (c - u)$, from those for a condition, $c$, and for none, $u$. Both are
    evaluated as one batch of two. A learned variance is that for the condition.

    Args:
        model: ``model(x, t, condition) -> output``, a JAX function; ``condition`` is an array, or a
            pytree of arrays.
        scale: a number, or an array that broadcasts with the prediction, floating: $s$. 1 is the
            conditional model, and more follows the condition more closely. diffusers calls it
            ``guidance_scale``.

    Returns:
        a model ``(x, t, condition, no_condition) -> output``, for ``args`` of `sample`. The two
        conditions have the same shapes and dtypes.

    Raises:
        TypeError: ``model`` is not a function, or ``scale`` is not a number.
        ValueError: the two conditions differ in shape (raised when the model is called).

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> def model(x, t, label):
        ...     return jnp.tanh(x + jax.nn.one_hot(label, 4))
        >>> x_T = jax.random.normal(jax.random.key(0), (2, 4))
        >>> labels, none = jnp.array([1, 3]), jnp.array([4, 4])
        >>> solution = deeppcr.diffusion.sample(
        ...     deeppcr.diffusion.guided(model, 3.0), schedule, x_T, steps=10, args=(labels, none)
        ... )
        >>> solution.value.shape
        (2, 4)
    """
    check_type("model", model, Callable, "a function model(x, t, condition)")
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    is_array = hasattr(scale, "dtype") and jnp.issubdtype(scale.dtype, jnp.floating)
    if not (is_number or is_array):
        raise TypeError(f"scale is {describe(scale)}, expected a number, such as 7.5.")

    def output(x: Array, t: Array, condition: Any, no_condition: Any) -> Array:
        if _types(condition) != _types(no_condition):
            raise ValueError(
                f"condition is {describe(condition)} and no_condition is {describe(no_condition)}, "
                "expected the same shapes and dtypes."
            )
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), condition, no_condition)
        with_it, without = jax.vmap(model, in_axes=(None, None, 0))(x, t, stacked)
        size = jnp.asarray(scale, without.dtype)
        guide, variance = split(with_it, x)
        start, _ = split(without, x)
        prediction = start + size * (guide - start)
        if variance is None:
            return prediction
        return jnp.concatenate([prediction, variance], axis=doubled_axis(with_it, x))

    return output


def _types(condition: Any) -> list[Any]:
    """The shapes and dtypes of the leaves."""
    return [(jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in jax.tree.leaves(condition)]
