"""Loops without what depends on the inputs alone: that is computed first, for many steps at once.

The products of a recurrent cell with its inputs, and the slices of these, need no state. All at
once they are one large product, and vector code; in the loop they are a small product for each
step, and XLA's CPU kernels for the slices of an input are scalar code.
"""

# jax 0.10.2, 2 cores, 16 units and a batch of 8: flax's LSTM cell takes 0.2 of the time, a GRU and
# an LSTM with gates of inputs 0.35 and 0.6, random numbers for a state of 8 entries 0.1.

from collections.abc import Collection
from typing import Any, NamedTuple

import jax

from deeppcr.avals import abstract
from deeppcr.effects import is_of_threefry
from deeppcr.rewrites.cut_first import CUTS, apply, evaluate
from deeppcr.rewrites.precision import in_full_precision
from deeppcr.rewrites.small_products import is_small_product
from deeppcr.state import Leaves
from depth.counts import contracted, nbytes, size
from depth.jaxprs import Program, called, has_side_effects, is_literal, needed
from depth.primitives import primitive

# Kinds of primitives that take no longer for many steps at once than for one after another.
AT_ONCE = frozenset({"elementwise", "move", "product", "reduction"})
FEW = 8  # terms of a product


class InputsFirst(NamedTuple):
    """A step in two programs.

    Attributes:
        first: of ``(*input)``, to what the rest reads of it.
        rest: of ``(*state, *first)``, to the next state and the outputs.
        constants: the first constants of both programs; then come the captured arrays.
        nbytes: of all that is computed first, for one step.
    """

    first: Program
    rest: Program
    constants: Leaves
    nbytes: int

    @classmethod
    def of(cls, program: Program, states: int) -> "InputsFirst | None":
        """From the program of a step, with ``states`` leaves; None if it would be the same."""
        opened, values = _opened_up(program)
        constants = [*opened.constvars, *opened.invars[: len(program.constvars)]]
        given = opened.invars[len(program.constvars) :]
        inputs = given[states:]
        of_inputs = _of_inputs(opened, constants, inputs)
        of_state = [each for each in opened.eqns if not of_inputs.issuperset(each.outvars)]
        atoms = [x for each in of_state for x in each.invars if not is_literal(x)]
        between = [x for x in dict.fromkeys(atoms) if x in of_inputs]
        if all(x in inputs for x in between):
            return None
        # What only outputs read stays in the loop, which writes the outputs anyway.
        later = needed(opened, between, opened.outvars)
        atoms = [*(x for each in later for x in each.invars), *opened.outvars]
        read = {x for x in atoms if not is_literal(x)}.difference(between)
        between += [x for x in inputs if x in read]
        equations = needed(opened, (), between)
        first = in_full_precision(Program(constants, inputs, equations, between))
        rest = Program(constants, [*given[:states], *between], later, opened.outvars)
        total = sum(nbytes(x) for each in equations for x in each.outvars)
        return cls(first, rest, values, total)

    def __call__(self, inputs: Leaves, captured: Leaves) -> Leaves:
        """What the rest reads, for all steps: leaves ``[L, ...]``."""
        constants = dict(zip(self.first.constvars, [*self.constants, *captured], strict=True))

        def one(inputs: Leaves) -> Leaves:
            known = constants | dict(zip(self.first.invars, inputs, strict=True))
            return evaluate(self.first, known, self.first.outvars)

        found: Leaves = jax.vmap(one)(inputs) if inputs else []
        return found


def _opened_up(program: Program) -> tuple[Program, Leaves]:
    """The program with calls opened and slices moved first, and the values of its constants.

    Those of ``program`` are operands. It has the same values, but not the same derivatives.
    """
    variables = [*program.constvars, *program.invars]

    def opened(*operands: Any) -> Leaves:
        known = dict(zip(variables, operands, strict=True))
        return evaluate(program, known, program.outvars, _opened)

    closed = jax.make_jaxpr(opened)(*(abstract(x.aval) for x in variables))
    return Program.of(closed), list(closed.consts)


def _opened(equation: Any, operands: list[Any]) -> list[Any] | None:
    inner = called(equation)
    return None if inner is None else apply(inner, operands, _opened)


def _of_inputs(program: Program, constants: Collection[Any], inputs: Collection[Any]) -> set[Any]:
    """The inputs, and what is to be computed from them and constants for many steps at once."""
    fixed, found = set(constants), set(inputs)
    cut = {each.invars[0] for each in program.eqns if each.primitive.name in CUTS}
    for equation in program.eqns:
        atoms = [atom for atom in equation.invars if not is_literal(atom)]
        if has_side_effects(equation) or not all(x in fixed or x in found for x in atoms):
            continue
        if fixed.issuperset(atoms):
            fixed.update(equation.outvars)
        elif _gains(equation, atoms, cut):
            found.update(equation.outvars)
    return found


def _gains(equation: Any, atoms: list[Any], cut: Collection[Any]) -> bool:
    """Whether it takes less time for many steps at once than in a loop.

    Copies of entries do not, nor do products of few terms: written out, they fuse with what reads
    them. But slices of a product of a single term are scalar code in a loop.
    """
    kind, result = primitive(equation).kind, equation.outvars[0]
    if kind == "random":
        return is_of_threefry(equation)
    if kind == "product" and is_small_product(equation):
        terms = contracted(equation)
        return terms > FEW or (terms == 1 and result in cut)
    grows = sum(map(size, equation.outvars)) > sum(map(size, atoms))
    return kind in AT_ONCE and not (kind == "move" and grows)
