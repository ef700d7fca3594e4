"""Hoist the part of a step that does not depend on the state: it is computed before the kernel.

For all steps at once, the products of a recurrent cell with its inputs are one large product. And
where only they combine entries, each entry of the state is a chain of its own.
"""

from functools import partial
from typing import Self

import jax

from deeppcr.arrays import Leaves
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.programs.dependence import Split, results_of
from depth.counts import size
from depth.jaxprs import Program, moved_by


class Apart(Split):
    """A step in two parts: see `Split`. The first may have no equations."""

    @classmethod
    def of_step(cls, whole: Program, states: int) -> tuple[Self, Self]:
        """A step with nothing before the kernel, and with all that does not depend on the state."""
        state, per_step = whole.invars[:states], moved_by(whole, whole.invars[states:])
        of_kernel = {*state, *results_of(whole.eqns)}
        return cls.of(whole, of_kernel, per_step), cls.of(whole, moved_by(whole, state), per_step)

    def check(self) -> None:
        """Raise if what is computed before would fill the memory."""
        between = sum(map(size, self.between))
        most = limits.MAX_HOISTED * (sum(map(size, self.rest.invars)) - between)
        if self.first.eqns and between > most:
            raise CannotFuse("what a step reads is too much to be kept for all steps")

    def __call__(self, inputs: Leaves, captured: Leaves) -> Leaves:
        """What the steps read, ``[length, ...]``, and then what is the same in all of them."""
        constants = self.constants(captured)
        of_step = partial(self.values_between, constants)
        between = jax.vmap(of_step)(inputs) if self.between else []
        return [*between, *(constants[x] for x in self.shared)]
