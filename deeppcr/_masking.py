"""`masked` and `resetting`: steps of sequences that end early, or begin anew on the way.

A step that is masked is the identity, and so is its Jacobian block. A step that begins anew has a
zero block: the states before it do not matter, so Newton's method converges on every segment by
itself, in as many iterations as the hardest segment takes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.checks import describe

Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Masked:
    """A step of `scan` with inputs ``(x, mask)``, made by `masked`.

    Attributes:
        step: ``step(carry, x) -> (carry, y)``.
    """

    step: Step

    def __call__(self, carry: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
        """The next carry where the mask is True, else this one; and the output."""
        x, mask = _pair(inputs, "mask")
        after, y = self.step(carry, x)
        return _where(mask, "mask", after, carry), y


@dataclasses.dataclass(frozen=True, eq=False)  # jax hashes a step, and arrays have no hash
class Resetting:
    """A step of `scan` with inputs ``(x, reset)``, made by `resetting`.

    Attributes:
        step: ``step(carry, x) -> (carry, y)``.
        initial: the carry from which it begins anew.
    """

    step: Step
    initial: Any

    def __call__(self, carry: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
        """The step, from the initial carry where ``reset`` is True."""
        x, reset = _pair(inputs, "reset")
        found: Any = jax.tree.structure(self.initial)
        wanted: Any = jax.tree.structure(carry)
        if found != wanted:
            raise ValueError(f"initial is {found}, expected the structure of the carry: {wanted}.")
        return self.step(_where(reset, "reset", self.initial, carry), x)


def masked(step: Step) -> Masked:
    """A step that keeps the carry where a mask is False: for sequences that end early.

    Args:
        step: ``step(carry, x) -> (carry, y)``, as in `scan`.

    Returns:
        a step for `scan` with inputs ``(x, mask)``. ``mask`` is bool, ``[]`` or ``[*batch]`` at
        each time, where ``[*batch]`` are the leading axes of every leaf of the carry. The outputs
        of masked steps are those of ``step``, and mean nothing.

    Raises:
        TypeError: ``step`` is no function; or, when called, ``mask`` is not bool, or the inputs are
            no pair.
        ValueError: when called, ``mask`` does not have the leading axes of the carry.

    Example:
        >>> total = lambda carry, x: (carry + x, carry + x)
        >>> xs, lengths = jnp.array([[2.0, 1.0], [5.0, 1.0], [4.0, 1.0]]), jnp.array([3, 1])
        >>> mask = jnp.arange(3)[:, None] < lengths[None]
        >>> deeppcr.scan(deeppcr.masked(total), jnp.zeros(2), (xs, mask))[0]
        Array([11.,  1.], dtype=float32)
    """
    _check_step(step)
    return Masked(step)


def resetting(step: Step, initial: Any) -> Resetting:
    """A step that begins anew where a flag is True: for several sequences in one.

    Episodes of a trajectory in reinforcement learning, or documents packed into one sequence.
    Newton's method needs no more iterations than on the hardest of them alone.

    Args:
        step: ``step(carry, x) -> (carry, y)``, as in `scan`.
        initial: the carry from which it begins anew, with the structure of the carry. Its leaves
            have the shapes of those of the carry, or fewer leading axes.

    Returns:
        a step for `scan` with inputs ``(x, reset)``. ``reset`` is bool, ``[]`` or ``[*batch]`` at
        each time, where ``[*batch]`` are the leading axes of every leaf of the carry. Where it is
        True, ``step`` is applied to ``initial`` instead of the carry.

    Raises:
        TypeError: ``step`` is no function; or, when called, ``reset`` is not bool, or the inputs
            are no pair.
        ValueError: when called, ``initial`` or ``reset`` do not fit the carry.

    Example:
        >>> total = lambda carry, x: (carry + x, carry + x)
        >>> xs, reset = jnp.array([2.0, 5.0, 4.0]), jnp.array([False, False, True])
        >>> deeppcr.scan(deeppcr.resetting(total, 0.0), jnp.array(0.0), (xs, reset))[1]
        Array([2., 7., 4.], dtype=float32)
    """
    _check_step(step)
    return Resetting(step, initial)


def _check_step(step: Any) -> None:
    if not callable(step):
        raise TypeError(
            f"step is {describe(step)}, expected a function: step(carry, x) -> (carry, y)."
        )


def _pair(inputs: Any, name: str) -> tuple[Any, Array]:
    if not (isinstance(inputs, tuple | list) and len(inputs) == 2):
        raise TypeError(f"the inputs are {describe(inputs)}, expected a pair: (x, {name}).")
    x, flags = inputs
    if jnp.result_type(flags) != jnp.bool_:
        raise TypeError(f"{name} has dtype {jnp.result_type(flags)}, expected bool.")
    return x, jnp.asarray(flags)


def _where(flags: Array, name: str, chosen: Any, other: Any) -> Any:
    """``chosen`` where the flags are True, leaf by leaf, in the dtypes of ``other``."""

    def one(path: Any, old: Any, new: Any) -> Array:
        old, where = jnp.asarray(old), f"the carry{jax.tree_util.keystr(path)}"
        if old.shape[: flags.ndim] != flags.shape:
            raise ValueError(
                f"{name} has shape {list(flags.shape)} at each time, expected the leading axes of "
                f"{where}, whose shape is {list(old.shape)}."
            )
        new = jnp.broadcast_to(jnp.asarray(new, old.dtype), old.shape)
        return jnp.where(flags.reshape(flags.shape + (1,) * (old.ndim - flags.ndim)), new, old)

    return jax.tree_util.tree_map_with_path(one, other, chosen)
