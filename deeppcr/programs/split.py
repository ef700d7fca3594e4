"""Split a program by what depends on given variables.

A step reads most of its input through values that need no state, as a recurrent cell reads its
products with the input. Whatever depends on the state is *late*. All else can come first, for all
steps at once, and a loop does the rest:

    u_l = G (x_l)  for all l,    z_l = F (z_{l-1}, u_l)  one after another.

G is the first program, F is the rest, and u are the values between them. A CPU splits the step of a
loop, a GPU the step of a kernel, and a derivative the tangents of a step; each has its own opinion
of what is late.
"""

from collections.abc import Collection
from typing import Any, NamedTuple, Self

from deeppcr.arrays.state import Leaves
from deeppcr.programs.cut_first import evaluate
from depth.jaxprs import Program, Replacement, needed, read_by


class Split(NamedTuple):
    """A program in two.

    Attributes:
        whole: the program.
        first: ``inputs -> between``. Its constants are those of the whole, and what is shared.
        rest: ``(*late operands, *between) -> results``. Its constants are what is shared.
    """

    whole: Program
    first: Program
    rest: Program

    @classmethod
    def of(
        cls, whole: Program, late: Collection[Any], own: Collection[Any], at_once: bool = True
    ) -> Self:
        """The parts of a program.

        Args:
            whole: of late operands and of inputs.
            late: the variables that the rest computes, or takes.
            own: those that differ from step to step; others are the same in all steps.
            at_once: whether the first program computes results that are not late, too. Else the
                rest does, unless it reads them.
        """
        later = [each for each in whole.eqns if any(y in late for y in each.outvars)]
        read = [x for x in read_by(later, whole.outvars if at_once else ()) if x not in late]
        between = [x for x in read if x in own]
        shared = [x for x in read if x not in own]
        equations = needed(whole, read, whole.outvars)
        more = read_by(equations, whole.outvars)  # for the results that are not late
        inputs = [x for x in whole.invars if x not in late]
        between += [x for x in inputs if x in more and x not in between]
        operands = [x for x in whole.invars if x in late]
        rest = Program(shared, [*operands, *between], equations, whole.outvars)
        constants = list(dict.fromkeys([*whole.constvars, *shared]))
        first = Program(constants, inputs, needed(whole, constants, between), between)
        return cls(whole, first, rest)

    @property
    def between(self) -> list[Any]:
        """The variables of each step that the rest reads."""
        return self.first.outvars

    @property
    def shared(self) -> list[Any]:
        """The variables that the rest reads and that are the same in all steps."""
        return self.rest.constvars

    def constants(self, captured: Leaves) -> dict[Any, Any]:
        """The values of the constants of the first program, from those of the whole."""
        known = dict(zip(self.whole.constvars, captured, strict=True))
        values = evaluate(self.whole, known, self.shared)
        return known | dict(zip(self.shared, values, strict=True))

    def values_between(
        self, constants: dict[Any, Any], inputs: Leaves, replace: Replacement | None = None
    ) -> Leaves:
        """What the rest reads of a step; ``replace`` as in `evaluate`."""
        known = constants | dict(zip(self.first.invars, inputs, strict=True))
        return evaluate(self.first, known, self.between, replace)
