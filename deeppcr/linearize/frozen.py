"""Jacobians kept for some iterations: the chord method."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import Steps
from deeppcr.checks import check_count
from deeppcr.linear import Blocks
from deeppcr.linearize.dense import Dense
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step


@partial(jax.tree_util.register_dataclass, data_fields=["of"], meta_fields=["every"])
@dataclasses.dataclass(frozen=True)
class Frozen(Linearization):
    """The blocks of another linearisation, made anew only in every ``every``-th iteration.

    Pays where Jacobians cost more than the recurrence. Source: the chord method, e.g. Kelley, *Iterative Methods for Linear and
    Nonlinear Equations*, section 5.4.1.

    Attributes:
        every: iterations that share their blocks.
        of: which linearisation; None for what "auto" takes.
    """

    every: int = 2
    of: Linearization | None = None

    def __post_init__(self) -> None:
        check_count("every", self.every, "how many iterations share their blocks")
        if isinstance(self.of, str | int | float):
            raise TypeError(
                f"of is {self.of!r}, expected a linearisation such as Diagonal(), or None."
            )

    @property
    def fresh(self) -> Linearization:
        """See `Linearization`: the one whose blocks are kept."""
        return Dense() if self.of is None else self.of

    def check(self, step: Step, length: int) -> None:
        """See `Linearization`."""
        self.fresh.check(step, length)

    def blocks(self, steps: Steps, states: Array) -> Blocks:
        """See `Linearization`."""
        return self.fresh.blocks(steps, states)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return self.fresh.bytes_per_step(step, layout)

    def begin(self, steps: Steps, states: Array) -> Any:
        """See `Linearization`."""
        shapes = jax.eval_shape(lambda states: self.fresh.blocks(steps, states), states)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def next(
        self, steps: Steps, states: Array, memory: Any, iteration: Array
    ) -> tuple[Blocks, Any]:
        """See `Linearization`."""

        def anew() -> Blocks:
            return self.fresh.blocks(steps, states)

        kept: Blocks = lax.cond(iteration % self.every == 0, anew, lambda: memory)
        return kept, kept

    def __str__(self) -> str:
        return f"{self.of or 'as auto'}, kept for {self.every} iterations"
