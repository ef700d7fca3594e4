"""How a perturbation is carried along the chain, and a cotangent back: by the step itself, or by Jacobian blocks.

Both take a stretch of the chain at known states and solve ``t_l = A_l t_{l-1} + b_l`` or its transpose, ``A_l = df/dz(z_{l-1})``.
"""

import dataclasses
from typing import Protocol

import jax
from jax import lax

from deeppcr import structure
from deeppcr.chain import Steps
from deeppcr.linear import LinearSolver, Recurrence
from deeppcr.linear.along import Along
from deeppcr.linearize import is_block_diagonal, linearize
from deeppcr.state import Leaves, StateLayout, add

STRETCH = 1 << 21  # bytes of blocks that are worked on at once by a sequential solver: they stay in the cache


class Adjoint(Protocol):
    """How the linear recurrences of the tangents and of the adjoint are solved, over a stretch of the chain."""

    def stretch(self, layout: StateLayout, length: int) -> int:
        """How many steps to take at once; the stretches follow one another."""

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """``t_l = A_l t_{l-1} + b_l`` with ``t_0 = enter``."""

    def backward(self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves) -> tuple[Leaves, Leaves]:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}`` with ``enter`` added to the last, and ``A_1^T lam_1``."""


@dataclasses.dataclass(frozen=True)
class StepByStep:
    """Products of the step's derivative with a vector, one step after another: what backpropagation does. Needs no blocks."""

    def stretch(self, layout: StateLayout, length: int) -> int:
        """The whole chain."""
        return length

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `Adjoint`."""

        def body(t: Leaves, step: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, b_l = step
            moved = jax.jvp(lambda z: steps.step(z, inputs, steps.captured), (state,), (t,))[1]
            t = add(b_l, moved)
            return t, t

        return lax.scan(body, enter, (states, steps.inputs, b))[1]

    def backward(self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves) -> tuple[Leaves, Leaves]:
        """See `Adjoint`."""

        def body(mu: Leaves, step: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, g_l = step
            lam = add(g_l, mu)
            _, pull = jax.vjp(lambda z: steps.step(z, inputs, steps.captured), state)
            return pull(lam)[0], lam

        mu, lam = lax.scan(body, enter, (states, steps.inputs, g), reverse=True)
        return lam, mu


@dataclasses.dataclass(frozen=True)
class ByBlocks:
    """Jacobian blocks of all steps, one per example, and a solver of the linear recurrence that they make.

    Blocks say nothing of examples that influence each other (batch normalisation). Where the program does not prove that there
    are none, the blocks are checked as they are made, and a chain that fails goes `StepByStep`.
    """

    solver: LinearSolver

    def stretch(self, layout: StateLayout, length: int) -> int:
        """The whole chain for a parallel solver; for a sequential one as much as the cache holds."""
        if not isinstance(self.solver, Recurrence):
            return length
        size = layout.width**2 * layout.examples * layout.dtype.itemsize
        count = -(-length // max(1, STRETCH // max(size, 1)))
        even = [n for n in range(count, 2 * count) if length % n == 0]  # else the last stretch is a shorter one
        return -(-length // (even[0] if even else count))

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `Adjoint`."""
        layout = steps.layout
        vectors = layout.flatten(states)
        _, blocks = linearize(steps, vectors)

        def by_blocks(b: Leaves, enter: Leaves) -> Leaves:
            right = layout.flatten(b)
            first = Along().first(blocks, 1).apply(layout.flatten(enter)[None])[0]
            return layout.unflatten(self.solver.solve(blocks, right.at[0].add(first)))

        def step_by_step(b: Leaves, enter: Leaves) -> Leaves:
            return StepByStep().forward(steps, states, b, enter)

        if structure.examples_are_separate(steps.step, layout):
            return by_blocks(b, enter)
        result: Leaves = lax.cond(is_block_diagonal(steps, vectors, blocks), by_blocks, step_by_step, b, enter)
        return result

    def backward(self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves) -> tuple[Leaves, Leaves]:
        """See `Adjoint`."""
        layout = steps.layout
        vectors = layout.flatten(states)
        _, blocks = linearize(steps, vectors)

        def by_blocks(g: Leaves, enter: Leaves) -> tuple[Leaves, Leaves]:
            lam = self.solver.solve_transposed(blocks, layout.flatten(g).at[-1].add(layout.flatten(enter)))
            mu = Along().first(blocks, 1).transpose().apply(lam[:1])[0]
            return layout.unflatten(lam), layout.unflatten(mu)

        def step_by_step(g: Leaves, enter: Leaves) -> tuple[Leaves, Leaves]:
            return StepByStep().backward(steps, states, g, enter)

        if structure.examples_are_separate(steps.step, layout):
            return by_blocks(g, enter)
        result: tuple[Leaves, Leaves] = lax.cond(is_block_diagonal(steps, vectors, blocks), by_blocks, step_by_step, g, enter)
        return result
