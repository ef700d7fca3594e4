"""Loops without what depends on the inputs alone: that is computed first, for many steps at once.

The products of a recurrent cell with its inputs, and the slices of these, need no state. All at
once they are one large product, and vector code; in the loop they are a small product for each
step, and XLA's CPU kernels for the slices of an input are scalar code.
"""

# jax 0.10.2, 2 cores, 16 units and a batch of 8: flax's LSTM cell takes 0.2 of the time, a GRU and
# an LSTM with gates of inputs 0.35 and 0.6, random numbers for a state of 8 entries 0.1.

from collections.abc import Collection
from functools import partial
from typing import Any

import jax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.chunks import even_chunk, steps_in_cache
from deeppcr.lower.cpu.patches import as_products, own_filters
from deeppcr.lower.cpu.small_products import is_small_product
from deeppcr.lower.in_order import Loop, Operands
from deeppcr.programs.cut_first import CUTS, apply, evaluate
from deeppcr.programs.effects import is_of_threefry
from depth.counts import contracted, nbytes, size
from depth.jaxprs import Program, called, has_side_effects, is_literal, needed
from depth.primitives import primitive

# Kinds of primitives that take no longer for many steps at once than for one after another.
AT_ONCE = frozenset({"elementwise", "move", "product", "reduction"})
FEW = 8  # terms of a product


def inputs_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule; the steps of a derivative are linearised first.

    What is first is computed for as many steps at once as fit into the cache.
    """
    opened, given = loop, operands
    if any(called(each) is not None or each.primitive.name in CUTS for each in loop.program.eqns):
        opened, given = loop.retraced(operands, partial(_opened_up, loop))
    program, constants = opened.program, dict.fromkeys(opened.program.constvars)
    fixed, found = _found(opened)
    read = _read(program, fixed | found)
    between = [x for x in read if x in found]
    if all(x in opened.inputs for x in between):
        return loop, operands
    # What only outputs read stays in the loop, which writes the outputs anyway.
    same = [x for x in read if x in fixed and x not in constants]
    rest = needed(program, [*between, *same], program.outvars)
    atoms = [*(x for each in rest for x in each.invars), *program.outvars]
    later = {x for x in atoms if not is_literal(x)}.difference(between)
    between += [x for x in opened.inputs if x in later]
    first = needed(program, [*constants, *same], between)
    each = sum(nbytes(y) for equation in first for y in equation.outvars)

    known = dict(zip(constants, given.constants, strict=True))
    known |= dict(zip(same, evaluate(program, known, same), strict=True))
    linearised = program._replace(constvars=[*known], eqns=first, outvars=between)
    replace = as_products(own_filters(linearised, known))

    def of_step(x: Leaves) -> Leaves:
        now = known | dict(zip(opened.inputs, x, strict=True))
        return evaluate(linearised, now, between, replace)

    states = program.invars[: opened.states]
    program = Program([*known], [*states, *between], rest, program.outvars)
    # The loop of a derivative is that of a chunk already; one in another takes 3 times as long.
    size = None if loop.linear else even_chunk(loop.length, steps_in_cache(each))
    loop = opened._replace(program=program, before=jax.vmap(of_step), size=size)
    return loop, given._replace(constants=list(known.values()))


def _opened_up(loop: Loop, read: Leaves) -> Leaves:
    """A step with calls opened and slices moved first."""
    return evaluate(loop.program, loop.known(read), loop.program.outvars, _opened)


def _opened(equation: Any, operands: list[Any]) -> list[Any] | None:
    inner = called(equation)
    return None if inner is None else apply(inner, operands, _opened)


def _read(program: Program, found: set[Any]) -> list[Any]:
    """The variables among ``found`` that the equations of others read."""
    others = [each for each in program.eqns if not found.issuperset(each.outvars)]
    atoms = (x for each in others for x in each.invars if not is_literal(x))
    return list(dict.fromkeys(x for x in atoms if x in found))


def _found(loop: Loop) -> tuple[set[Any], set[Any]]:
    """The variables that are the same in all steps, and those of many steps at once.

    The latter are the inputs, and what is to be computed from them and from the former.
    """
    program, fixed, found = loop.program, set(loop.program.constvars), set(loop.inputs)
    for equation in program.eqns:
        atoms = [atom for atom in equation.invars if not is_literal(atom)]
        if has_side_effects(equation) or not all(x in fixed or x in found for x in atoms):
            continue
        if fixed.issuperset(atoms):
            fixed.update(equation.outvars)
        elif _is_as_fast(loop, equation):
            found.update(equation.outvars)
    # What is computed again in the loop, for less than reading it takes.
    cut = {each.invars[0] for each in program.eqns if each.primitive.name in CUTS}
    needs: set[Any] = set()
    for equation in reversed(program.eqns):
        results = set(equation.outvars)
        if results <= found and results.isdisjoint(needs) and _is_cheap(equation, cut):
            found -= results
        elif results <= found:
            needs.update(x for x in equation.invars if not is_literal(x))
        elif results <= fixed and _grows(equation):
            fixed -= results
    return fixed, found


def _is_as_fast(loop: Loop, equation: Any) -> bool:
    """Whether it takes no longer for many steps at once than in a loop."""
    kind = primitive(equation).kind
    if kind == "random":
        return is_of_threefry(equation)
    return loop.linear or kind in AT_ONCE


def _is_cheap(equation: Any, cut: Collection[Any]) -> bool:
    """Whether to compute it in the loop, from what it reads, takes less time than to read it.

    Copies of entries do, and products of few terms: written out, they fuse with what reads them.
    But slices of a product of a single term are scalar code in a loop.
    """
    kind = primitive(equation).kind
    if kind == "product" and is_small_product(equation):
        terms = contracted(equation)
        return terms <= FEW and not (terms == 1 and equation.outvars[0] in cut)
    return kind == "move" and _grows(equation)


def _grows(equation: Any) -> bool:
    before = sum(size(atom) for atom in equation.invars if not is_literal(atom))
    return sum(map(size, equation.outvars)) > before
