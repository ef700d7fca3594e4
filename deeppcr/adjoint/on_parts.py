"""Derivatives of a chain that is spread over devices: every device does its part of the recurrence."""

import dataclasses
from functools import partial

import jax
from jax.sharding import PartitionSpec as P

from deeppcr.across import Across, Spread
from deeppcr.adjoint.step_by_step import Propagation
from deeppcr.chain import Steps
from deeppcr.state import Leaves


@partial(jax.tree_util.register_dataclass, data_fields=["inner"], meta_fields=["spread"])
@dataclasses.dataclass(frozen=True)
class OnParts:
    """A `Propagation`, on every part of a chain at once."""

    inner: Propagation
    spread: Spread

    def stretch(self, steps: Steps) -> int:
        """All steps: each device has as many as it has."""
        return steps.length

    def forward(self, steps: Steps, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `Propagation`."""

        def part(
            inner: Propagation,
            inputs: Leaves,
            captured: Leaves,
            states: Leaves,
            b: Leaves,
            enter: Leaves,
        ) -> Leaves:
            here = steps.on_part(self.spread.part, inputs, captured)
            return inner.on_part(self.spread.part).forward(here, states, b, enter)

        along, whole = self.spread.along, P()
        run = self.spread.on_parts(part, (whole, along, whole, along, along, whole), along)
        t: Leaves = run(self.inner, steps.inputs, steps.captured, states, b, enter)
        return t

    def backward(
        self, steps: Steps, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `Propagation`."""

        def part(
            inner: Propagation,
            inputs: Leaves,
            captured: Leaves,
            states: Leaves,
            g: Leaves,
            enter: Leaves,
        ) -> tuple[Leaves, Leaves]:
            here = steps.on_part(self.spread.part, inputs, captured)
            return inner.on_part(self.spread.part).backward(here, states, g, enter)

        along, whole = self.spread.along, P()
        run = self.spread.on_parts(part, (whole, along, whole, along, along, whole), (along, whole))
        left: tuple[Leaves, Leaves] = run(
            self.inner, steps.inputs, steps.captured, states, g, enter
        )
        return left

    def on_part(self, across: Across) -> Propagation:
        """See `Propagation`."""
        return self.inner.on_part(across)
