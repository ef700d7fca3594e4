"""Steps made of steps: `delay` reads the last k states, `masked` and `resetting` take flags.

The window ``w_l = (z_l, ..., z_{l-k+1})`` follows from the window before it alone,

    w_l = (f(w_{l-1}, x_l), z_{l-1}, ..., z_{l-k+1}),

so windows form a chain. Its Jacobian is a block companion matrix. A step that is masked is the
identity, and so is its Jacobian block. A step that begins anew has a zero block: the states before
it do not matter, so Newton's method takes as many iterations as the hardest segment.

References: H. Lütkepohl, New Introduction to Multiple Time Series Analysis (2005), Section 2.1.1,
the VAR(1) form of a VAR(p).
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.extend import check_count, check_type, describe

Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Delay:
    """A step on windows of the last k states, made by `delay`.

    Attributes:
        f: ``f(states, x) -> state``.
        k: the number of states that it reads.
    """

    f: Callable[[tuple[Any, ...], Any], Any]
    k: int

    def __call__(self, window: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        """The next window: a step for `deeppcr.Chain`."""
        window = self._checked(window, "the window")
        state = jax.tree.map(jnp.asarray, self.f(window, x))
        _check_equal(state, window[0], "what f returns", "the state that it reads")
        return (state, *window[:-1])

    def emit(self, window: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
        """The next window, with its most recent state as output: a step for `deeppcr.scan`."""
        window = self(window, x)
        return window, window[0]

    def window(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """The initial window.

        Args:
            states: the k states before the first step, most recent first:
                $z_0, z_{-1}, ..., z_{1-k}$.

        Raises:
            TypeError: they differ in structure, shape or dtype.
            ValueError: there are not k of them.
        """
        window = jax.tree.map(jnp.asarray, self._checked(states, "states"))
        for index, state in enumerate(window):
            _check_equal(state, window[0], f"states[{index}]", "states[0]")
        return window

    def _checked(self, states: Any, name: str) -> tuple[Any, ...]:
        expected = f"k = {self.k} states, newest first"
        check_type(name, states, tuple | list, f"a tuple of {expected}")
        if len(states) != self.k:
            raise ValueError(f"{name} has {len(states)} entries, expected {expected}.")
        return tuple(states)


def delay(f: Callable[[tuple[Any, ...], Any], Any], k: int) -> Delay:
    """A step that reads the last k states: $z_l = f((z_{l-1}, ..., z_{l-k}), x_l)$.

    The state of the chain is the window of the last k states, so full Jacobian blocks are k times
    as wide as those of a state.

    Args:
        f: ``f(states, x) -> state``, where ``states`` is a tuple of the last k states, most recent
            first. A state is an array or a pytree of arrays, with the same structure, shapes and
            dtypes at every step.
        k: integer >= 1, the number of states that ``f`` reads.

    Returns:
        a step for `deeppcr.Chain`, whose state is the window $(z_l, ..., z_{l-k+1})$, a tuple.
        The first entry of a trajectory of windows is that of the states. Its ``emit`` is a step for
        `deeppcr.scan` with the states $z_l$ as outputs, and ``window(states)`` the initial window.

    Raises:
        TypeError: ``f`` is not callable, or ``k`` is not an integer.
        ValueError: ``k`` is less than 1.

    Example:
        >>> fibonacci = deeppcr.delay(lambda states, x: states[0] + states[1], 2)
        >>> initial = fibonacci.window([jnp.float32(1.0), jnp.float32(0.0)])
        >>> deeppcr.scan(fibonacci.emit, initial, length=6)[1]
        Array([ 1.,  2.,  3.,  5.,  8., 13.], dtype=float32)
        >>> solution = deeppcr.solve(deeppcr.Chain(fibonacci, length=6), initial, method="newton")
        >>> solution.trajectory[0]
        Array([ 1.,  2.,  3.,  5.,  8., 13.], dtype=float32)

    References:
        H. Lütkepohl, *New Introduction to Multiple Time Series Analysis*, 2005, section 2.1.1.
    """
    check_type("f", f, Callable, "a function f(states, x) -> state")
    check_count("k", k, "number of states that f reads")
    return Delay(f, operator.index(k))


def _check_equal(state: Any, like: Any, name: str, expected: str) -> None:
    """Raise unless two states have the same structure, shapes and dtypes."""
    types, expected_types = (
        jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", each)
        for each in (state, like)
    )
    if types != expected_types:
        raise TypeError(f"{name} is {types}, expected what {expected} is: {expected_types}.")


def masked(step: Step) -> Step:
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

    def masked_step(carry: Any, x: Any, mask: Array) -> tuple[Any, Any]:
        after, y = step(carry, x)
        return _where(mask, "mask", after, carry), y

    return _with_flags(step, "mask", masked_step)


def resetting(step: Step, initial: Any) -> Step:
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

    def resetting_step(carry: Any, x: Any, reset: Array) -> tuple[Any, Any]:
        structure: Any = jax.tree.structure(initial)
        of_carry: Any = jax.tree.structure(carry)
        if structure != of_carry:
            raise ValueError(
                f"initial is {structure}, expected the structure of the carry: {of_carry}."
            )
        return step(_where(reset, "reset", initial, carry), x)

    return _with_flags(step, "reset", resetting_step)


def _with_flags(step: Any, name: str, apply: Callable[[Any, Any, Array], tuple[Any, Any]]) -> Step:
    """A step whose inputs are those of ``step`` and flags of this ``name``."""
    check_type("step", step, Callable, "a function: step(carry, x) -> (carry, y)")

    def with_flags(carry: Any, inputs: Any) -> tuple[Any, Any]:
        if not (isinstance(inputs, tuple | list) and len(inputs) == 2):
            raise TypeError(f"the inputs are {describe(inputs)}, expected a pair: (x, {name}).")
        x, flags = inputs
        if jnp.result_type(flags) != jnp.bool_:
            raise TypeError(f"{name} has dtype {jnp.result_type(flags)}, expected bool.")
        return apply(carry, x, jnp.asarray(flags))

    return with_flags


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
