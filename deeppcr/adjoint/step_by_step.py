"""How a perturbation is carried along the chain, and a cotangent back: one step after another.

What any `Propagation` does: it takes a stretch of the chain at known states and solves ``t_l = A_l t_{l-1} + b_l`` or its
transpose, ``A_l = df/dz(z_{l-1})``.
"""

import dataclasses
from typing import Protocol

import jax
from jax import lax

from deeppcr.across import Across
from deeppcr.chain import Steps
from deeppcr.state import Leaves, add


class Propagation(Protocol):
    """How the linear recurrences of the tangents and of the adjoint are solved, over a stretch of the chain."""

    def stretch(self, steps: Steps) -> int:
        """How many steps to take at once; the stretches follow one another."""

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """``t_l = A_l t_{l-1} + b_l`` with ``t_0 = enter``."""

    def backward(
        self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}`` with ``enter`` added to the last, and ``A_1^T lam_1``."""

    def on_part(self, across: Across) -> "Propagation":
        """The same on one of many devices that have parts of the chain, inside `jax.shard_map`."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class StepByStep:
    """Products of the step's derivative with a vector, one step after another: what backpropagation does. Needs no blocks."""

    def stretch(self, steps: Steps) -> int:
        """The whole chain."""
        return steps.length

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `Propagation`."""

        def body(t: Leaves, step: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, b_l = step
            moved = jax.jvp(lambda z: steps.step(z, inputs, steps.captured), (state,), (t,))[1]
            t = add(b_l, moved)
            return t, t

        def run(enter: Leaves, b: Leaves) -> tuple[Leaves, Leaves]:
            left: tuple[Leaves, Leaves] = lax.scan(body, enter, (states, steps.inputs, b))
            return left

        return steps.across.in_turn(run, enter, b)[1]

    def backward(
        self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `Propagation`."""

        def body(mu: Leaves, step: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, g_l = step
            lam = add(g_l, mu)
            _, pull = jax.vjp(lambda z: steps.step(z, inputs, steps.captured), state)
            return pull(lam)[0], lam

        def run(enter: Leaves, g: Leaves) -> tuple[Leaves, Leaves]:
            left: tuple[Leaves, Leaves] = lax.scan(
                body, enter, (states, steps.inputs, g), reverse=True
            )
            return left

        mu, lam = steps.across.reversed.in_turn(run, enter, g)
        return lam, mu

    def on_part(self, across: Across) -> "StepByStep":
        """See `Propagation`: it is the same there."""
        return self
