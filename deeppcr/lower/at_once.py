"""`each`: a program of all steps at once as an equation, which each platform lowers in its way."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.primitive import Lowered
from deeppcr.programs.calls import with_operands

each_p = Lowered("each")


def each(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, a function of arrays of all steps; the results are the same up to rounding.

    Its derivatives are those of ``f``; their programs are lowered as others are, unless they are
    passed to `each`, too.
    """

    def bound(*arguments: Any) -> Any:
        # Of a new function each time, so that jax caches nothing for it.
        closed, shapes = jax.make_jaxpr(partial(f), return_shape=True)(*arguments)
        if closed.effects:  # of devices that communicate
            return f(*arguments)
        program, constants = with_operands(closed)
        results = each_p.bind(*constants, *jax.tree.leaves(arguments), call_jaxpr=program)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return bound


def rewritten_by(
    rewrite: Callable[[Any, Sequence[Any]], Leaves], *operands: Any, call_jaxpr: Any
) -> Leaves:
    """The results of an `each`, of which ``rewrite`` evaluates the program."""
    return rewrite(call_jaxpr, operands)
