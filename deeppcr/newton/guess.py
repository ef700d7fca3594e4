"""The initial trajectory of an iteration."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import Leaves, abstract, cast
from deeppcr.chain.carry import Carry
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.eager import compiled_once
from deeppcr.chain.step import Step
from deeppcr.chain.trace import trace
from deeppcr.checks import check_count, check_name, check_type, option_tree


@option_tree("step")
@dataclasses.dataclass(frozen=True)
class Coarse:
    """An initial guess from a coarse chain, for chains that discretise time.

    One coarse step replaces ``every`` steps. States in between are interpolated linearly. The
    coarse chain runs sequentially.

    Attributes:
        every: integer >= 1, the number of steps that one coarse step replaces.
        step: ``step(state, inputs) -> state``, the coarse step; ``inputs`` are those of the
            ``every`` steps that it replaces, stacked on axis 0: ``[every, ...]``. None:
            $z + every (f(z, x) - z)$ with the first of these inputs, which is Euler's method for
            $f(z, x) = z + h g(z, x)$.

    Raises:
        ValueError: ``every`` is less than 1, or ``step`` returns another shape than the state's.
        TypeError: ``every`` is not an integer, or ``step`` is not callable.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + 0.01 * jnp.cos(z + x), jnp.linspace(0., 1., 100))
        >>> newton = deeppcr.Newton(initial_guess=deeppcr.Coarse(every=10))
        >>> bool(deeppcr.solve(chain, jnp.array(0.0), method=newton).converged)
        True

    References:
        J.-L. Lions, Y. Maday, G. Turinici, *Résolution d'EDP par un schéma en temps « pararéel »*,
        2001: the coarse propagator of parareal.
    """

    every: int
    step: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        check_count("every", self.every, "steps per coarse step")
        check_type("step", self.step, Callable | None, "a function, or None")

    def trajectory(self, carry: Carry, chain: TracedChain) -> Leaves:
        """Leaves of the states ``z_1 .. z_L``."""
        every, step, captured = min(self.every, chain.length), chain.step, chain.captured
        if self.step:
            inputs = [abstract(x, (every, *x.shape[1:])) for x in chain.inputs]
            step, captured = trace(partial(self._users_step, carry, chain), chain.initial, inputs)
        static = step, every, chain.length, self.step is None
        arrays = chain.initial, chain.inputs, captured
        return compiled_once(_coarse_trajectory, static, *arrays)

    def _users_step(
        self, carry: Carry, chain: TracedChain, state: Leaves, xs: Leaves
    ) -> tuple[Leaves, None]:
        """The user's coarse step, as a step of leaves without outputs."""
        assert self.step is not None
        inputs = chain.step.input_of(xs)
        x, driven = (inputs, []) if carry.is_state else inputs
        # The carry before the first of the steps that the coarse one replaces.
        after = self.step(carry.join(state, [before[0] for before in driven]), x)
        leaves = _states("the step of Coarse returns", after, carry, ())
        return [jnp.asarray(a, z.dtype) for a, z in zip(leaves, state, strict=True)], None


def _coarse_trajectory(
    static: tuple[Step, int, int, bool], initial: Leaves, inputs: Leaves, captured: Leaves
) -> Leaves:
    """See `Coarse`; ``static``: a step, its ``every``, the length, whether the step is a fine one.

    A coarse step takes the inputs of ``every`` steps.
    """
    step, every, length, is_fine = static
    count = length // every

    def body(state: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        after = step(state, [x[0] for x in xs] if is_fine else xs, captured)
        if is_fine:
            after = [z + every * (a - z) for z, a in zip(state, after, strict=True)]
        return after, after

    inputs = [x[: count * every].reshape((count, every, *x.shape[1:])) for x in inputs]
    _, ends = lax.scan(body, initial, inputs, count)
    # Large steps of a stiff chain may overflow: the initial state is a better guess then.
    ends = [
        jnp.where(jnp.isfinite(end).all(axis=0), end, z)
        for z, end in zip(initial, ends, strict=True)
    ]
    return [_interpolated(z, end, every, length) for z, end in zip(initial, ends, strict=True)]


def _interpolated(initial: Array, ends: Array, every: int, length: int) -> Array:
    """Linear interpolation between coarse states; the last one for the remaining steps."""
    starts = jnp.concatenate([initial[None], ends[:-1]])
    share = (jnp.arange(1, every + 1) / every).astype(ends.dtype)
    share = share.reshape((1, every, *(1,) * initial.ndim))
    lines = starts[:, None] + share * (ends - starts)[:, None]
    rest = length - len(ends) * every
    flat = lines.reshape((length - rest, *initial.shape))
    return jnp.concatenate([flat, jnp.broadcast_to(ends[-1:], (rest, *initial.shape))])


Guess = Literal["apply", "constant"] | Coarse | Callable[[Any, Any], Any] | Any


def check_guess(guess: Guess) -> None:
    """Raise if the name is unknown, or if it is a class."""
    if isinstance(guess, str | type):
        objects = "Coarse(every=k), a trajectory, a function"
        check_name("initial_guess", guess, ("apply", "constant"), objects)


def users_guess(guess: Guess, carry: Carry, chain: TracedChain) -> Leaves:
    """The leaves of the initial trajectory of states, from a guess for the carry, by no name.

    No derivatives pass through it.
    """
    chain = dataclasses.replace(chain, inputs=chain.axis.in_order(chain.inputs))
    if isinstance(guess, Coarse):
        leaves: Leaves = guess.trajectory(carry, chain)
    else:
        if callable(guess):
            inputs = chain.step.input_of(chain.inputs)
            initial = jax.tree.unflatten(carry.tree, carry.initial)
            guess = guess(initial, inputs if carry.is_state else inputs.users)
        leaves = _states("initial_guess has", guess, carry, (chain.length,), ": a trajectory")
    dtypes = {jnp.asarray(leaf).dtype for leaf in leaves}
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        raise TypeError(
            f"initial_guess has dtypes {sorted(map(str, dtypes))}, "
            "expected real ones, as the state has."
        )
    return [lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]


def _states(what: str, users: Any, carry: Carry, steps: tuple[int, ...], where: str = "") -> Leaves:
    """Check a user's carry of ``steps`` and return its state leaves."""
    leaves, structure = jax.tree.flatten(users)
    shapes = list(map(jnp.shape, leaves))
    expected = [(*steps, *z.shape) for z in carry.initial]
    if structure != carry.tree or shapes != expected:
        raise ValueError(
            f"{what} leaves of shapes {shapes} in {structure}, "
            f"expected {expected} in {carry.tree}{where}."
        )
    return carry.split(leaves)


def first_trajectory(guess: str | Leaves, chain: TracedChain, start: Array) -> Array:
    """The states to begin with, ``[L, *batch, w]``.

    The initial state replaces entries that are not finite, which would spread to all later states.
    """
    if isinstance(guess, str):
        return jnp.broadcast_to(start, (chain.length, *start.shape))
    states = chain.layout.flatten(cast(guess, chain.layout.dtypes))
    return jnp.where(jnp.isfinite(states), states, start)
