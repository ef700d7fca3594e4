"""What in a program depends on given variables, and whether it is affine in them.

A step reads most of its input through values that need no state, as a recurrent cell reads its
products with the input. Whatever depends on the state is *late*. All else can come first, for all
steps at once, and a loop does the rest (`Split`):

    u_l = G (x_l)  for all l,    z_l = F (z_{l-1}, u_l)  one after another.

G is the first program, F is the rest, and u are the values between them. A CPU splits the step of a
loop, a GPU the step of a kernel, and a derivative the tangents of a step; each has its own opinion
of what is late.

Affine is linear, plus what is independent of the state. Then all steps are one linear recurrence,
which Newton's method solves in one iteration. The proof (`is_affine`) follows the state through the
program: its results have to be affine in it or independent of it, with jax's own derivatives.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from itertools import chain, filterfalse
from typing import Any, NamedTuple, Self

import jax.numpy as jnp

from deeppcr.arrays import Leaves
from deeppcr.programs.cut_first import evaluate
from depth.counts import size
from depth.jaxprs import (
    Program,
    Replacement,
    called,
    equations,
    interpret,
    needed,
    read_by,
    scan_parts,
    without_constants,
)
from depth.primitives import of_kind, primitive

AFFINE, OTHER = 1, 2  # degrees: how a value depends on the state


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
        cls, whole: Program, late: Collection[Any], per_step: Collection[Any], at_once: bool = True
    ) -> Self:
        """The parts of a program.

        Args:
            whole: of late operands and of inputs.
            late: the variables that the rest computes, or takes.
            per_step: those that differ from step to step; others are the same in all steps.
            at_once: whether the first program computes results that are not late, too. Else the
                rest does, unless it reads them.
        """
        later = defining(whole, late)
        _, reads = _separate(read_by(later, whole.outvars if at_once else ()), late)
        between, shared = _separate(reads, per_step)
        equations = needed(whole, reads, whole.outvars)
        more = read_by(equations, whole.outvars)  # for the results that are not late
        operands, inputs = _separate(whole.invars, late)
        between += [x for x in inputs if x in more and x not in between]
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
        environment = dict(zip(self.whole.constvars, captured, strict=True))
        values = evaluate(self.whole, environment, self.shared)
        return environment | dict(zip(self.shared, values, strict=True))

    def values_between(
        self, constants: dict[Any, Any], inputs: Leaves, replace: Replacement | None = None
    ) -> Leaves:
        """What the rest reads of a step; ``replace`` as in `evaluate`."""
        environment = constants | dict(zip(self.first.invars, inputs, strict=True))
        return evaluate(self.first, environment, self.between, replace)


def _separate(variables: Collection[Any], members: Collection[Any]) -> tuple[list[Any], list[Any]]:
    """The variables that are members, and the others."""
    is_member = members.__contains__
    return list(filter(is_member, variables)), list(filterfalse(is_member, variables))


def defining(program: Any, variables: Collection[Any]) -> list[Any]:
    """The equations that compute any of these variables."""
    return [x for x in program.eqns if any(map(variables.__contains__, x.outvars))]


def results_of(equations: Iterable[Any]) -> list[Any]:
    """The variables that equations compute."""
    return list(chain.from_iterable(map(operator.attrgetter("outvars"), equations)))


def follow(
    closed: Any,
    degrees: Sequence[int],
    rule: Callable[[Any, list[int]], Sequence[int] | None],
) -> list[int]:
    """How the results of a program depend on something, from how its inputs do: 0 for not at all.

    Calls are entered, and a result depends as the operand with the highest degree does.

    ``rule(equation, degrees)``: those of the results of an equation with an operand that depends;
    None to follow it as others.
    """

    def results(equation: Any, operands: list[int]) -> Sequence[int]:
        answer = rule(equation, operands) if any(operands) else None
        if answer is not None:
            return answer
        inner = called(equation)
        if inner is not None:
            return follow(inner, operands, rule)
        return [max(operands, default=0)] * len(equation.outvars)

    jaxpr = without_constants(closed)
    start = dict.fromkeys(jaxpr.constvars, 0) | dict(zip(jaxpr.invars, degrees, strict=True))
    return interpret(jaxpr, start, jaxpr.outvars, results, lambda _: 0)


def is_affine(program: Any, states: int) -> bool:
    """Whether the first ``states`` results are affine in as many inputs, with jax's derivatives."""
    degrees = [AFFINE if i < states else 0 for i in range(len(program.invars))]
    results = follow(program._replace(outvars=program.outvars[:states]), degrees, _degrees)
    return max(results, default=0) <= AFFINE


def _degrees(equation: Any, operands: list[int]) -> list[int] | None:
    """Those of the results of an equation in the state."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _of_a_loop(equation, operands)
    if name == "cond" and not operands[0]:
        branches = [follow(branch, operands[1:], _degrees) for branch in params["branches"]]
        return list(map(max, zip(*branches, strict=True)))
    has_rule = primitive(equation).kind == "derivative rule" or name == "stop_gradient"
    if has_rule or (called(equation) is None and not _is_linear(equation, operands)):
        return [OTHER] * len(equation.outvars)
    return None


def _of_a_loop(equation: Any, operands: list[int]) -> list[int]:
    """Those of a loop: trips are followed until the carry depends on the state as before."""
    constants, carry, _ = scan_parts(equation)
    end = constants + carry
    state = operands[constants:end]
    while True:
        trip = [*operands[:constants], *state, *operands[end:]]
        results = follow(equation.params["jaxpr"], trip, _degrees)
        after = list(map(max, state, results))
        if after == state:
            return [*state, *results[carry:]]
        state = after


def _is_linear(equation: Any, operands: list[int]) -> bool:
    """Whether an equation is linear in the operands that depend on the state, all together."""
    name, params = equation.primitive.name, equation.params
    if name == "custom_linear_solve":
        return not any(operands[: sum(params["const_lengths"])])
    if not all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in equation.outvars):
        return False
    is_alone = sum(map(bool, operands)) == 1
    by_name = {
        "jointly": True,
        "each": is_alone,
        "first": is_alone and bool(operands[0]),
        "last": is_alone and bool(operands[-1]),
    }
    return by_name.get(primitive(equation).linear, False)


def work_with_matrices(program: Any, dependent: Set[Any], least: int) -> int:
    """The operations of products with an array that is not ``dependent``, of ``least`` entries.

    Of the programs inside, those of all products.
    """
    small = [
        x
        for x in of_kind(program.eqns, "product")
        if max(map(size, read_by([x]).keys() - dependent), default=0) < least
    ]
    return work_of_products(program) - sum(primitive(x).work(x) for x in small)


def work_of_products(program: Any) -> int:
    """The operations of the products of a program, convolutions included."""
    return sum(primitive(x).work(x) for x in of_kind(equations(program), "product"))
