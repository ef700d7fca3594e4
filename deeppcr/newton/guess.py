"""The trajectory that an iteration starts from."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import Problem, Steps
from deeppcr.checks import check_count
from deeppcr.newton.precision import cast
from deeppcr.state import Leaves


@dataclasses.dataclass(frozen=True)
class Coarse:
    """A trajectory from a coarse chain, for chains that discretise time: one large step for ``every`` small ones, interpolated.

    Attributes:
        every: how many steps one coarse step stands for.
        step: ``step(state, inputs) -> state``, the coarse step; ``inputs`` are those of the ``every`` steps that it stands for,
            stacked on axis 0. None: ``z + every * (f(z, x) - z)`` with the first of them, Euler's method for ``z' = z + h g(z)``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + 0.01 * jnp.cos(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> newton = deeppcr.Newton(initial_guess=deeppcr.Coarse(every=10))
        >>> bool(deeppcr.solve(chain, jnp.array(0.0), method=newton).converged)
        True
    """

    every: int
    step: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        check_count("every", self.every, "how many steps a coarse one stands for")
        if self.step is not None and not callable(self.step):
            raise TypeError(f"step is {self.step!r}, expected a function, or None.")

    def trajectory(self, problem: Problem) -> Leaves:
        """Leaves of ``z_1 .. z_L``."""
        every = min(self.every, problem.length)
        count = problem.length // every
        state_tree, input_tree = problem.step.state_tree, problem.step.input_tree

        def euler(z: Any, xs: Any) -> Any:
            moved, _ = problem.function(z, jax.tree.map(lambda x: x[0], xs))
            return jax.tree.map(lambda z, m: z + every * (m - z), z, moved)

        step = self.step or euler

        def body(leaves: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
            after, tree = jax.tree.flatten(
                step(jax.tree.unflatten(state_tree, leaves), jax.tree.unflatten(input_tree, xs))
            )
            shapes, expected = [jnp.shape(a) for a in after], [z.shape for z in leaves]
            if tree != state_tree or shapes != expected:
                raise ValueError(
                    f"the step of Coarse returns leaves of shapes {shapes} in {tree}, expected {expected} in {state_tree}."
                )
            after = [jnp.asarray(a, z.dtype) for a, z in zip(after, leaves, strict=True)]
            return after, after

        # Before anything is computed: whether it returns a state at all.
        jax.eval_shape(
            body,
            problem.initial,
            [jax.ShapeDtypeStruct((every, *x.shape[1:]), x.dtype) for x in problem.inputs],
        )
        inputs = [x[: count * every].reshape((count, every, *x.shape[1:])) for x in problem.inputs]
        _, ends = lax.scan(body, problem.initial, inputs, count)
        # Steps too large for a stiff chain overflow, and have been far from it long before.
        ends = [
            jnp.where(jnp.isfinite(end).all(axis=0), end, z)
            for z, end in zip(problem.initial, ends, strict=True)
        ]
        return [
            self._between(z, end, every, problem.length)
            for z, end in zip(problem.initial, ends, strict=True)
        ]

    @staticmethod
    def _between(initial: Array, ends: Array, every: int, length: int) -> Array:
        """Straight lines from one coarse state to the next; the last one for what is left at the end."""
        starts = jnp.concatenate([initial[None], ends[:-1]])
        part = (
            (jnp.arange(1, every + 1) / every)
            .astype(ends.dtype)
            .reshape((1, every, *(1,) * initial.ndim))
        )
        lines = starts[:, None] + part * (ends - starts)[:, None]
        rest = length - len(ends) * every
        flat = lines.reshape((length - rest, *initial.shape))
        return jnp.concatenate([flat, jnp.broadcast_to(ends[-1:], (rest, *initial.shape))])


Guess = Literal["apply", "constant"] | Coarse | Callable[[Any, Any], Any] | Any


def check_guess(guess: Guess) -> None:
    """A name has to be known."""
    if isinstance(guess, str) and guess not in ("apply", "constant"):
        raise ValueError(
            f'initial_guess is {guess!r}, expected "apply", "constant", Coarse(every=k), a trajectory or a function.'
        )


def users_guess(guess: Guess, problem: Problem) -> Leaves | None:
    """The leaves of a trajectory that is given, or made by what is given; None for a name. No derivatives pass through it."""
    if isinstance(guess, str):
        return None
    tree = problem.step.state_tree
    if isinstance(guess, Coarse):
        leaves: Leaves = guess.trajectory(problem)
    else:
        if callable(guess):
            initial = jax.tree.unflatten(tree, problem.initial)
            guess = guess(initial, jax.tree.unflatten(problem.step.input_tree, problem.inputs))
        leaves, found = jax.tree.flatten(guess)
        expected = [(problem.length, *z.shape) for z in problem.initial]
        shapes = [jnp.shape(leaf) for leaf in leaves]
        if found != tree or shapes != expected:
            raise ValueError(
                f"initial_guess has leaves of shapes {shapes} in {found}, expected {expected} in {tree}: a trajectory."
            )
    dtypes = {jnp.asarray(leaf).dtype for leaf in leaves}
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        raise TypeError(
            f"initial_guess has dtypes {sorted(map(str, dtypes))}, expected real ones, as the state has."
        )
    return [lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]


def first_trajectory(
    guess: Guess, given: Leaves | None, steps: Steps, start: Array, length: int
) -> Array:
    """The first ``length`` states of the guess, as ``[length, *batch, w]``; all of those that are given.

    Entries that are not finite would spoil every later state in each iteration: the initial state stands in for them.
    """
    constant = jnp.broadcast_to(start, (length, *start.shape))
    if given is not None:
        states = steps.layout.flatten(cast(given, steps.layout.dtypes))
    elif guess == "constant":
        return constant
    else:
        states = steps.evaluate(constant)
    return jnp.where(jnp.isfinite(states), states, start)
