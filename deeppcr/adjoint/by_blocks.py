"""Tangents and adjoints by Jacobian blocks of all steps at once, and a solver of the linear recurrence that they make.

Exact blocks take one solve. Others, quasi-Newton ones or those of examples that influence each other (batch normalisation), are
corrected against the true derivative until the residual is at rounding level: see `refine`. So whatever the blocks, the
derivative is exact.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.across import Across
from deeppcr.adjoint.refine import refine
from deeppcr.adjoint.step_by_step import StepByStep
from deeppcr.chain import Steps
from deeppcr.checks import check_count
from deeppcr.convergence import ROUNDING, Criterion
from deeppcr.fallback import unless_finite
from deeppcr.linear import Blocks, LinearSolver, Recurrence, find_solver, on_part
from deeppcr.linear.along import Along
from deeppcr.linearize import Linearization, choose_linearization, constant, find_linearization
from deeppcr.state import Leaves, StateLayout
from deeppcr.step import Step

STRETCH = (
    1 << 21
)  # bytes of blocks that are worked on at once by a sequential solver: they stay in the cache
BUDGET = 64  # turns


@dataclasses.dataclass(frozen=True)
class Adjoint:
    """Derivatives by one linear recurrence over all steps, instead of backpropagation step by step.

    Attributes:
        linearize: what its blocks are, as in `Newton`. Exact ones take one solve; with any other, solves are repeated until the
            residual against the true derivative is at rounding level, so that gradients are exact, too. "auto": as `Newton` has
            it, if that is the method; else the exact Jacobian in its narrowest form.
        linear: the solver of the linear recurrence, see `deeppcr.solve_bidiagonal`.
        rtol: how large that residual may be, relative to the adjoint state; None for 16 units in the last place of the dtype.
        max_iterations: how many solves before the rest is done step by step.
        memory: bytes that blocks may take, as in `Newton`; longer chains are taken in stretches.
    """

    linearize: str | Linearization = "auto"
    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    max_iterations: int = BUDGET
    memory: int | None = None

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        find_solver(self.linear)
        if self.rtol is not None and not self.rtol >= 0:
            raise ValueError(f"rtol is {self.rtol}, expected a number >= 0, or None.")
        check_count("max_iterations", self.max_iterations, "how many solves")
        check_count("memory", self.memory, "how many bytes", optional=True)

    def bind(self, step: Step, layout: StateLayout, length: int) -> "ByBlocks":
        """For the chain of ``length`` such steps."""
        choice = choose_linearization(self.linearize, step, layout, length, None, self.memory)
        atol = ROUNDING * float(jnp.finfo(layout.dtype).tiny)
        working = float(jnp.finfo(layout.dtype).eps)
        criterion = Criterion(self.rtol, atol, layout.eps, working, quadratic=False)
        fresh = constant(choice.linearization.fresh)
        is_exact = fresh.is_exact(step, layout)
        return ByBlocks(
            fresh, find_solver(self.linear), is_exact, criterion, self.max_iterations, choice.window
        )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["linearization"],
    meta_fields=["solver", "is_exact", "criterion", "budget", "window"],
)
@dataclasses.dataclass(frozen=True)
class ByBlocks:
    """`Adjoint`, bound to a chain."""

    linearization: Linearization
    solver: LinearSolver
    is_exact: bool
    criterion: Criterion
    budget: int
    window: int

    def stretch(self, steps: Steps) -> int:
        """As much as the memory holds for a parallel solver, and as the cache holds for a sequential one."""
        length, most = steps.length, self.window
        if isinstance(self.solver, Recurrence):
            size = self.linearization.bytes_per_step(steps.step, steps.layout)
            most = min(most, max(1, STRETCH // max(size, 1)))
        count = -(-length // most)
        even = [
            n for n in range(count, 2 * count) if length % n == 0
        ]  # else the last stretch is a shorter one
        return -(-length // (even[0] if even else count))

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `Propagation`."""
        layout, blocks = steps.layout, self._blocks(steps, states)
        first = _push(layout, _one(steps, states, 0), layout.flatten(enter))
        across, right = steps.across, layout.flatten(b)
        right = across.set_first(right, right[0] + first)

        def solve(right: Array) -> Array:
            return self.solver.solve(blocks, right)

        if self.is_exact:
            t = layout.unflatten(self.solver.solve_unguarded(blocks, right))
            return _unless_finite(t, across, lambda: StepByStep().forward(steps, states, b, enter))

        def couple(t: Array) -> Array:
            before = across.before(jnp.zeros_like(t[0]), t)
            return layout.flatten(jax.jvp(steps, (states,), (layout.unflatten(before),))[1])

        def push(place: Array, t: Array) -> Array:
            return _push(layout, _one(steps, states, place), t)

        return layout.unflatten(
            refine(couple, solve, push, right, self.criterion, self.budget, across)
        )

    def backward(
        self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `Propagation`."""
        layout, blocks = steps.layout, self._blocks(steps, states)
        across, right = steps.across.reversed, layout.flatten(g)
        right = across.set_first(right, right[-1] + layout.flatten(enter))

        def solve(right: Array) -> Array:
            return self.solver.solve_transposed(blocks, right)

        if self.is_exact:
            lam = self.solver.solve_transposed_unguarded(blocks, right)
            mu = Along().first(blocks, 1).transpose().apply(lam[:1])[0]
            found = layout.unflatten(lam), layout.unflatten(steps.across.of_first(mu))
            return _unless_finite(
                found, across, lambda: StepByStep().backward(steps, states, g, enter)
            )

        _, pull = jax.vjp(steps, states)

        def couple(lam: Array) -> Array:
            pulled = layout.flatten(pull(layout.unflatten(lam))[0])
            return across.before(jnp.zeros_like(pulled[0]), pulled)

        def pull_one(place: Array, lam: Array) -> Array:
            return _pull(layout, _one(steps, states, place), lam)

        lam = refine(couple, solve, pull_one, right, self.criterion, self.budget, across)
        mu = _pull(layout, _one(steps, states, 0), lam[0])
        return layout.unflatten(lam), layout.unflatten(steps.across.of_first(mu))

    def on_part(self, across: Across) -> "ByBlocks":
        """See `Propagation`."""
        return dataclasses.replace(self, solver=on_part(self.solver, across))

    def _blocks(self, steps: Steps, states: Leaves) -> Blocks:
        return self.linearization.blocks(steps, steps.layout.flatten(states))


T = TypeVar("T")


def _unless_finite(found: T, across: Across, again: Callable[[], T]) -> T:
    """``found``, or what the true derivatives of one step after another make, where that is not finite.

    A product of blocks may have overflowed. And a block holds zeros where an entry does not depend on another, which is no
    product in the step's own derivative: one infinite entry of a state makes all others NaN.
    """
    spoilt = jnp.stack([~jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found)]).any()
    return unless_finite(found, across.largest(spoilt.astype(jnp.int32)) == 0, again)


_One = tuple[Steps, Leaves, Leaves]  # one step: its state and its inputs


def _one(steps: Steps, states: Leaves, index: int | Array) -> _One:
    def at(leaves: Leaves) -> Leaves:
        return [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in leaves]

    return steps, at(states), at(steps.inputs)


def _push(layout: StateLayout, one: _One, t: Array) -> Array:
    steps, state, inputs = one
    moved = jax.jvp(
        lambda z: steps.step(z, inputs, steps.captured), (state,), (layout.unflatten(t),)
    )[1]
    return layout.flatten(moved)


def _pull(layout: StateLayout, one: _One, lam: Array) -> Array:
    steps, state, inputs = one
    pull = jax.vjp(lambda z: steps.step(z, inputs, steps.captured), state)[1]
    return layout.flatten(pull(layout.unflatten(lam))[0])
