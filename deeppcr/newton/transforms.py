"""What an iteration makes of its states: transforms of ``(states, own state)``, one after another.

Each is as `optax` has its transforms of gradients: ``begin`` makes its own state, and a call takes
the states of the one before and its own state to the next of both. The first one solves the linear
recurrence, with a limit on the growth of updates (`deeppcr.newton.damping`) or without; the others
keep what is known, and extrapolate (`deeppcr.newton.acceleration`).
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, LinearSolver


class Trip(NamedTuple):
    """What the transforms of one iteration share.

    Attributes:
        chain: the steps of the window.
        entry: ``[*batch, w]``, the state before them.
        states: ``[W, *batch, w]``, the last iterate.
        origin: the same shape, the state before each step.
        value: the same shape, f of every state in ``origin``.
        blocks: at ``origin``.
        is_first: whether no iteration has been made: bool.
        converged: int32, the number of states that have converged, from the start of the window.
        exact: int32, the number of those that are exact to the last bit.
    """

    chain: TracedChain
    entry: Array
    states: Array
    origin: Array
    value: Array
    blocks: Blocks
    is_first: Array
    converged: Array
    exact: Array

    @property
    def indices(self) -> Array:
        """The index of the step of each entry: int32 ``[W, *batch, w]``."""
        return self.chain.axis.indices(self.value.shape)

    def evaluate(self, states: Array) -> Array:
        """The step applied to every state."""
        return self.chain.evaluate(self.chain.axis.before(self.entry, states))


class Transform:
    """Identity: others override what they change."""

    def begin(self, states: Array) -> Any:
        """Its own state for an initial trajectory ``[W, *batch, w]``."""
        return ()

    def __call__(self, states: Array, own: Any, trip: Trip) -> tuple[Array, Any]:
        """The next states and its own next state."""
        return states, own

    def shift(self, own: Any, distance: Array) -> Any:
        """Its own state after the window has moved by ``distance`` steps."""
        return own


@dataclasses.dataclass(frozen=True)
class Solved(Transform):
    """The solution of the linear recurrence."""

    solver: LinearSolver

    def __call__(self, states: Array, own: Any, trip: Trip) -> tuple[Array, Any]:
        # The first step starts from a known state. An update in place would be a kernel of its own
        # on a GPU; on a TPU the iteration of a GRU would take 4 times as long (jax 0.10.2).
        change = trip.value - trip.blocks.apply_only(trip.origin)
        b = jnp.where(trip.indices == 0, trip.value, change)
        return self.solver.solve_unguarded(trip.blocks, b), own


@dataclasses.dataclass(frozen=True)
class Guarded(Transform):
    """Without what overflows, which would spread to all later steps, and with what is exact."""

    def __call__(self, states: Array, own: Any, trip: Trip) -> tuple[Array, Any]:
        states = jnp.where(jnp.isfinite(states), states, trip.states)
        # The recurrence reproduces states that are exact to the last bit only to rounding.
        return jnp.where(trip.indices < trip.exact, trip.value, states), own
