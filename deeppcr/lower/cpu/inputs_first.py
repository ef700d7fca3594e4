"""Loops without what depends on the inputs alone: that is computed first, for many steps at once.

The products of a recurrent cell with its inputs, and the slices of these, need no state. All at
once they are one large product, and vector code; in the loop they are a small product for each
step, and XLA's CPU kernels for the slices of an input are scalar code.

For all steps of a long chain, what is computed first (`Loop.before`) is more than the cache of a
CPU holds, and the loop would wait for memory. So it is computed for a chunk of steps, which run
before the next chunk. A loop without chunks runs at once.
"""

from collections.abc import Collection
from functools import partial
from itertools import filterfalse
from typing import Any

import jax

from deeppcr.arrays import Leaves
from deeppcr.lower.cpu.products import as_products, is_small_product, own_filters
from deeppcr.lower.loops import even_chunk, scan_in_chunks, steps_in_cache
from deeppcr.lower.steps import Loop, Operands
from deeppcr.programs.cut_first import CUTS, apply, opening
from deeppcr.programs.dependence import Split, results_of
from deeppcr.programs.effects import is_of_threefry
from depth.counts import contracted, nbytes, size
from depth.jaxprs import called, has_side_effects, is_literal, moved_by, read_by
from depth.primitives import primitive

# Kinds of primitives that take no longer for many steps at once than for one after another.
FAST_AT_ONCE = frozenset({"elementwise", "move", "product", "reduction"})
FEW_TERMS = 8  # terms of a product


# jax 0.10.2, 2 cores, 16 units and a batch of 8: flax's LSTM cell takes 0.2 of the time, a GRU and
# an LSTM with gates of inputs 0.35 and 0.6, random numbers for a state of 8 entries 0.1.
def inputs_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule; the steps of a derivative are linearised first.

    What is first is computed for as many steps at once as fit into the cache.
    """
    opened, of_opened = loop, operands
    if any(called(x) is not None or x.primitive.name in CUTS for x in loop.program.eqns):
        replace = opening(rules=True, checkpoints=True)
        opened, of_opened = loop.retraced(operands, partial(apply, loop.program, replace=replace))
    # What only outputs read stays in the loop, which writes the outputs anyway.
    split = Split.of(opened.program, *_late_and_varying(opened), at_once=False)
    if set(split.between) <= set(opened.inputs):
        return loop, operands
    constants = split.constants(of_opened.constants)
    products = as_products(own_filters(split.first, constants))
    # The loop of a derivative is that of a chunk already; one in another takes 3 times as long.
    bytes_of_step = sum(map(nbytes, results_of(split.first.eqns)))
    chunk = None if loop.kind.linear else even_chunk(loop.length, steps_in_cache(bytes_of_step))
    before = jax.vmap(partial(split.values_between, constants, replace=products))
    rest = split.rest._replace(constvars=list(constants))
    loop = opened._replace(program=rest, before=before, size=chunk)
    return loop, of_opened._replace(constants=list(constants.values()))


def _late_and_varying(loop: Loop) -> tuple[set[Any], set[Any]]:
    """The variables that the loop computes, and those that differ from step to step."""
    program = loop.program
    varying = moved_by(program, loop.inputs)

    def stays(equation: Any) -> bool:
        varies = not varying.isdisjoint(read_by([equation]))
        return has_side_effects(equation) or (varies and not _is_as_fast(loop, equation))

    stay = results_of(filter(stays, program.eqns))
    late = moved_by(program, [*program.invars[: loop.states], *stay])
    # What is computed again in the loop, for less than reading it takes.
    cut = {x.invars[0] for x in program.eqns if x.primitive.name in CUTS}
    needed: set[Any] = set()  # by what is computed first of each step
    for equation in reversed(program.eqns):
        if not late.isdisjoint(equation.outvars):
            continue
        varies = not varying.isdisjoint(equation.outvars)
        is_unneeded = needed.isdisjoint(equation.outvars)
        if (is_unneeded and _is_cheap(equation, cut)) if varies else _grows(equation):
            late.update(equation.outvars)
        elif varies:
            needed.update(read_by([equation]))
    return late, varying


def _is_as_fast(loop: Loop, equation: Any) -> bool:
    """Whether it takes no longer for many steps at once than in a loop."""
    kind = primitive(equation).kind
    is_fast = loop.kind.linear or kind in FAST_AT_ONCE
    return is_of_threefry(equation) if kind == "random" else is_fast


def _is_cheap(equation: Any, cut: Collection[Any]) -> bool:
    """Whether to compute it in the loop, from what it reads, takes less time than to read it.

    Copies of entries do, and products of few terms: written out, they fuse with what reads them.
    But slices of a product of a single term are scalar code in a loop.
    """
    kind = primitive(equation).kind
    if kind == "product" and is_small_product(equation):
        terms = contracted(equation)
        return terms <= FEW_TERMS and not (terms == 1 and equation.outvars[0] in cut)
    return kind == "move" and _grows(equation)


def _grows(equation: Any) -> bool:
    before = sum(map(size, filterfalse(is_literal, equation.invars)))
    return sum(map(size, equation.outvars)) > before


def run_in_chunks(loop: Loop, operands: Operands) -> tuple[Leaves, Leaves]:
    """The last carry, and the ``y`` of all steps."""
    run = loop.run or Loop.scan
    if loop.size is None:
        return run(loop, operands._replace(xs=loop.before(operands.xs)))

    def chunk(carry: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        part = Operands(operands.constants, carry, loop.before(xs))
        return run(loop._replace(length=len(xs[0])), part)

    options: Any = {"length": loop.length, "size": loop.size, "reverse": loop.reverse}
    return scan_in_chunks(chunk, operands.carry, operands.xs, **options)
