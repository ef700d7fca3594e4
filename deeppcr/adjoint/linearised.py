"""The transposed derivative of each step, with all that does not depend on a vector computed first.

Only the linear part is left to be done step by step. What the states decide is computed for all
steps at once, and what the captured arrays alone decide is computed once.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from deeppcr.chain import TracedChain
from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.factors_first import factors_first
from deeppcr.rewrites.materialised import materialised, unknown_one
from deeppcr.rewrites.patches import as_products, own_filters
from deeppcr.rewrites.small_products import is_small_product, write_out
from deeppcr.state import Leaves
from depth.counts import size
from depth.jaxprs import Program, entered, is_literal, moved_by

Values = Mapping[Any, Any]  # of variables


@dataclasses.dataclass(frozen=True)
class TransposedSteps:
    """``(df/dz)^T lam`` of each step, as a program of its own values and of ``lam``.

    Attributes:
        own: the values that differ from step to step: leaves ``[L, ...]``.
        shared: variables of the program that are the same in all steps, with their values.
        variables: those of a step's own values and of ``lam``.
        program: the linear part.
    """

    own: Leaves
    shared: Values
    variables: list[Any]
    program: Program

    @classmethod
    def of(cls, chain: TracedChain, states: Leaves, whole: bool = False) -> "TransposedSteps":
        """Those of a chain at ``z_0 .. z_{L-1}``.

        ``whole``: whether their loop is to be one function, which has its own form of products.
        """
        program, known = _program_of(chain, states)
        cut = len(states) + len(chain.inputs)
        each, lam = program.invars[:cut], program.invars[len(program.invars) - len(states) :]
        captured = {x: value for x, value in known.items() if x not in {*each, *lam}}

        # What the linear part reads, besides ``lam``: of a step, or the same in all.
        edge, of_step = _edge(program, lam), moved_by(program, each)
        same = [x for x in edge if x not in of_step]
        differ = [x for x in edge if x in of_step]
        fixed = evaluate(program, captured, same)
        shared = captured | dict(zip(same, fixed, strict=True))
        replace = as_products(own_filters(program, shared))

        def linearise(states: Leaves, inputs: Leaves, values: Leaves) -> Leaves:
            here = dict(zip(shared, values, strict=True))
            here |= dict(zip(each, [*states, *inputs], strict=True))
            return evaluate(program, here, differ, replace)

        all_at_once = jax.vmap(linearise, in_axes=(0, 0, None))
        own = all_at_once(states, chain.inputs, list(shared.values()))

        # The linear part, and what it makes of values that are the same in all steps alone.
        one_step = [*fixed, *(y[0] for y in own)], [z[0] for z in states]
        closed = jax.make_jaxpr(_written_out(program, same, differ, lam, whole))(*one_step)
        linear, known = entered(closed, [x for part in one_step for x in part])
        given = linear.invars[len(fixed) :]
        shared = {x: value for x, value in known.items() if x not in given}
        kept = _edge(linear, given, _grows)
        shared |= dict(zip(kept, evaluate(linear, shared, kept), strict=True))
        return cls(own, shared, given, linear)

    def __call__(self, own: Leaves, lam: Leaves) -> Leaves:
        """``(df/dz)^T lam`` of the step with these values."""
        known = {**self.shared, **dict(zip(self.variables, [*own, *lam], strict=True))}
        return evaluate(self.program, known, self.program.outvars)


def _program_of(chain: TracedChain, states: Leaves) -> tuple[Program, dict[Any, Any]]:
    """``(df/dz)^T lam`` as a program of a state, an input, the captured arrays and ``lam``.

    And the known values of its variables; those of a step are of the first.
    """

    def pull(z: Leaves, x: Leaves, c: Leaves, lam: Leaves) -> Leaves:
        pulled: Leaves = jax.vjp(lambda z: chain.step(z, x, c), z)[1](lam)[0]
        return pulled

    z, x = [z[0] for z in states], [x[0] for x in chain.inputs]
    operands = [*z, *x, *chain.captured, *z]
    pulled = jax.make_jaxpr(pull)(z, x, chain.captured, z)
    lam = range(len(operands) - len(z), len(operands))
    closed = jax.make_jaxpr(lambda *operands: factors_first(pulled, operands, lam))(*operands)
    return entered(closed, operands)


def _written_out(
    program: Program, same: list[Any], own: list[Any], lam: list[Any], whole: bool
) -> Callable[[Leaves, Leaves], Leaves]:
    """The results of a program from variables on, with small products as sums unless ``whole``.

    ``same``: variables that are the same in all steps; ``own``: those of a step.
    """
    moved, one = moved_by(program, lam), unknown_one()

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        if is_small_product(equation):
            both = zip(equation.invars, operands, strict=True)
            operands = [materialised(x, one) if atom in moved else x for atom, x in both]
        return write_out(equation, operands)

    def evaluated(values: Leaves, vector: Leaves) -> Leaves:
        known = dict(zip([*same, *own, *lam], [*values, *vector], strict=True))
        return evaluate(program, known, program.outvars, None if whole else replace)

    return evaluated


def _edge(
    program: Program, given: Collection[Any], stays: Callable[[Any], bool] = lambda equation: False
) -> list[Any]:
    """The variables outside of `moved_by` that an equation inside, or the result, reads."""
    moved = moved_by(program, given, stays)
    read = [x for each in program.eqns if moved.intersection(each.outvars) for x in each.invars]
    atoms = (x for x in (*read, *program.outvars) if not is_literal(x))
    return [x for x in dict.fromkeys(atoms) if x not in moved]


def _grows(equation: Any) -> bool:
    """Whether its results are larger than its operands: cheaper to compute again than to keep."""
    before = sum(size(atom) for atom in equation.invars if not is_literal(atom))
    return sum(map(size, equation.outvars)) > before
