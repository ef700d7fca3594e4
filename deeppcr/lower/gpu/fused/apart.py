"""Hoist the part of a step that does not depend on the state: it is computed before the kernel.

For all steps at once, the products of a recurrent cell with its inputs are one large product. And
where only they combine entries, each entry of the state is a chain of its own.
"""

import math
from typing import Any, NamedTuple, Self

import jax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.programs.cut_first import evaluate
from depth.counts import size
from depth.jaxprs import Program, equations, is_literal, moved_by
from depth.primitives import primitive

MOST = 8  # entries that a step reads, for each of the state: they are kept for all steps
SEPARATE = frozenset({"elementwise", "move", "call", "derivative rule"})


class Apart(NamedTuple):
    """A step in two parts.

    Attributes:
        whole: the step: ``(*state, *input) -> results``, with captured arrays as constants.
        inputs: the variables that it reads of each step.
        captured: those that are the same in all steps.
        rest: the step that reads these.
    """

    whole: Program
    inputs: list[Any]
    captured: list[Any]
    rest: Program

    @classmethod
    def of(cls, program: Program, states: int) -> Self:
        """The parts of a step."""
        state, given = program.invars[:states], program.invars[states:]
        late, own = moved_by(program, state), moved_by(program, given)
        later = [each for each in program.eqns if late.intersection(each.outvars)]
        atoms = [*(x for each in later for x in each.invars), *program.outvars]
        read = dict.fromkeys(x for x in atoms if not is_literal(x) and x not in late)
        inputs, captured = [x for x in read if x in own], [x for x in read if x not in own]
        rest = Program(captured, [*state, *inputs], later, program.outvars)
        return cls(program, inputs, captured, rest)

    @property
    def state(self) -> list[Any]:
        """The variables of a state."""
        return self.rest.invars[: len(self.rest.invars) - len(self.inputs)]

    def checked(self) -> Program:
        """The rest.

        Raises:
            CannotFuse: what it reads would fill the memory.
        """
        if sum(map(size, self.inputs)) > MOST * sum(map(size, self.state)):
            raise CannotFuse("what a step reads is too much to be kept for all steps")
        return self.rest

    def entries(self, program: Program) -> list[tuple[int, ...]]:
        """The shape of a state of which a program may compute each entry apart; else none."""
        shape, *others = {variable.aval.shape for variable in self.state}
        kinds = {primitive(each).kind for each in equations(program)}
        is_separate = not others and math.prod(shape) > 1 and kinds <= SEPARATE
        return [shape] if is_separate else []

    def __call__(self, inputs: Leaves, captured: Leaves) -> tuple[Leaves, Leaves]:
        """What the steps read, ``[length, ...]``, and what is the same in all of them."""
        known = dict(zip(self.whole.constvars, captured, strict=True))
        given = self.whole.invars[-len(inputs) :] if inputs else []

        def of_step(x: Leaves) -> Leaves:
            return evaluate(self.whole, known | dict(zip(given, x, strict=True)), self.inputs)

        own = jax.vmap(of_step)(inputs) if self.inputs else []
        return own, evaluate(self.whole, known, self.captured)
