"""`Loop`: steps in order, as the rules of a platform read and rewrite them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
from jax import lax

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.lower.primitive import Kind
from depth.jaxprs import (
    Program,
    Rule,
    bind,
    constants_of,
    entered,
    interpret,
    is_literal,
    scan_parts,
)


class Operands(NamedTuple):
    """Leaves that a loop takes: the same in all steps, carried, and one of each step."""

    constants: Leaves
    carry: Leaves
    xs: Leaves


class Loop(NamedTuple):
    """A loop, as the rules of a platform read and rewrite it.

    Attributes:
        program: of a step, ``(*carry, *x) -> (*carry, *y)``; its constants are those of the loop.
        states: the number of leaves that are carried.
        length: the number of steps.
        reverse: whether the first step takes the last of the inputs.
        unroll: steps per trip.
        kind: see `loop`.
        before: the ``x`` of ``size`` steps at once, from the inputs of the loop.
        size: of a chunk of the loop; None for all of it.
        after: the results of the loop, from the ``y`` of all steps.
        run: runs a chunk, from its ``x``; None for `scan`.
        equation: of the `jax.lax.scan` that it was at first.
    """

    program: Program
    states: int
    length: int
    reverse: bool
    unroll: int
    kind: Kind
    before: Callable[[Leaves], Leaves] = list
    size: int | None = None
    after: Callable[[Leaves], Leaves] = list
    run: "Lower | None" = None
    equation: Any = None

    @classmethod
    def of(cls, equation: Any, kind: Kind) -> Self:
        """The loop of a `jax.lax.scan`."""
        params, (consts, carry, _) = equation.params, scan_parts(equation)
        program = Program.of(params["jaxpr"])
        constants = [*program.invars[:consts], *program.constvars]
        step = program._replace(constvars=constants, invars=program.invars[consts:])
        trips = params["length"], params["reverse"], params["unroll"]
        return cls(step, carry, *trips, kind, equation=equation)

    @property
    def inputs(self) -> list[Any]:
        """The variables of the ``x`` of a step."""
        return self.program.invars[self.states :]

    @property
    def outputs(self) -> list[Any]:
        """The ``y`` of a step."""
        return self.program.outvars[self.states :]

    @property
    def variables(self) -> list[Any]:
        """What a step reads: the constants, the carry and the ``x``."""
        return [*self.program.constvars, *self.program.invars]

    def known(self, read: Sequence[Any]) -> dict[Any, Any]:
        """The values of the variables of a step."""
        return dict(zip(self.variables, read, strict=True))

    def as_written(self, operands: Operands) -> tuple[Leaves, Leaves]:
        """The last carry and the ``y`` of all steps, by the `jax.lax.scan` that it was at first."""
        count = scan_parts(self.equation)[0]
        read = [*operands.constants[:count], *operands.carry, *operands.xs]
        results = bind(self.equation, read)
        return results[: self.states], results[self.states :]

    def retraced(
        self,
        operands: Operands,
        step: Callable[[Leaves], Leaves],
    ) -> tuple[Self, Operands]:
        """The loop of ``step([*constants, *carry, *x])``, carry and ``y``, and its operands."""
        count = len(self.program.constvars)
        closed = jax.make_jaxpr(step)([abstract(x.aval) for x in self.variables])
        new = Program.of(closed)
        constvars = [*new.invars[:count], *new.constvars]
        program = new._replace(constvars=constvars, invars=new.invars[count:])
        constants = [*operands.constants, *constants_of(closed)]
        return self._replace(program=program), operands._replace(constants=constants)

    def scan(
        self,
        operands: Operands,
        rule: Rule = bind,
        of_one: Callable[[Leaves], Leaves] = list,
    ) -> tuple[Leaves, Leaves]:
        """The last carry and the ``y`` of all steps, by `jax.lax.scan`.

        ``rule``: as in `interpret`. ``of_one``: the ``x`` of a step, from those of ``operands``.
        """

        def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
            known = self.known([*operands.constants, *carry, *of_one(x)])
            results = interpret(self.program, known, self.program.outvars, rule)
            return results[: self.states], results[self.states :]

        return lax.scan(step, operands.carry, operands.xs, self.length, self.reverse, self.unroll)


Lower = Callable[[Loop, Operands], tuple[Leaves, Leaves]]


def lowered_by(
    at_once: Callable[[Any, Sequence[Any]], Leaves],
    lower: Lower,
    *operands: Any,
    call_jaxpr: Any,
    loop: Kind | None,
) -> Leaves:
    """The results of `steps`: of all steps by ``at_once``, a loop by ``lower``."""
    if loop is None:
        return at_once(call_jaxpr, operands)
    program, values = entered(call_jaxpr, operands)
    for equation in program.eqns:
        read = [x.val if is_literal(x) else values[x] for x in equation.invars]
        if equation.primitive.name == "scan":
            consts, carry, _ = scan_parts(equation)
            constants = [*read[:consts], *constants_of(equation.params["jaxpr"])]
            parts = Operands(constants, read[consts : consts + carry], read[consts + carry :])
            last, ys = lower(Loop.of(equation, loop), parts)
            results = [*last, *ys]
        else:  # of what stands around it
            results = bind(equation, read)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [x.val if is_literal(x) else values[x] for x in program.outvars]
