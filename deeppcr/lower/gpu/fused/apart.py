"""Hoist the part of a step that does not depend on the state: it is computed before the kernel.

For all steps at once, the products of a recurrent cell with its inputs are one large product. And
where only they combine entries, each entry of the state is a chain of its own.
"""

from functools import partial
from typing import Self

import jax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.programs.dependence import Split
from depth.counts import size
from depth.jaxprs import Program, moved_by


class Apart(Split):
    """A step in two parts: see `Split`."""

    @classmethod
    def of_step(cls, program: Program, states: int) -> Self:
        """The parts of a step."""
        late = moved_by(program, program.invars[:states])
        return cls.of(program, late, moved_by(program, program.invars[states:]))

    def checked(self) -> Program:
        """The rest.

        Raises:
            CannotFuse: what it reads would fill the memory.
        """
        between = sum(map(size, self.between))
        if between > limits.MAX_HOISTED * (sum(map(size, self.rest.invars)) - between):
            raise CannotFuse("what a step reads is too much to be kept for all steps")
        return self.rest

    def __call__(self, inputs: Leaves, captured: Leaves) -> Leaves:
        """What the steps read, ``[length, ...]``, and then what is the same in all of them."""
        constants = self.constants(captured)
        of_step = partial(self.values_between, constants)
        between = jax.vmap(of_step)(inputs) if self.between else []
        return [*between, *(constants[x] for x in self.shared)]
