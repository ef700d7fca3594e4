"""Steps in order and steps at once, each as an equation, which a platform lowers in its way."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax

from deeppcr.lower.gpu.written_apart import written_apart
from deeppcr.lower.primitive import Kind, steps_p
from deeppcr.lower.targets import target
from deeppcr.programs.calls import with_operands


def loop(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    linear: bool = False,
    in_one: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan`; the results are the same up to rounding.

    ``linear``: whether the next carry is linear in the carry, as in the loop of a derivative.
    ``in_one``: whether it stays one program, with nothing before the loop: that compiles faster.
    """
    body = written_apart(body) if unroll > 1 and target().waits else body
    scan = partial(lax.scan, body, length=length, reverse=reverse, unroll=unroll)
    # Of a new function each time, so that jax caches nothing for it.
    traced = jax.make_jaxpr(partial(scan), return_shape=True)(carry, xs)
    if traced[0].effects:  # of steps in order, or of devices that communicate
        return scan(carry, xs)
    return _bound(*traced, (carry, xs), Kind(linear, in_one))


def each(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, a function of arrays of all steps; the results are the same up to rounding.

    Its derivatives are those of ``f``; their programs are lowered as others are, unless they are
    passed to `each`, too.
    """

    def at_once(*arguments: Any) -> Any:
        # Of a new function each time, so that jax caches nothing for it.
        traced = jax.make_jaxpr(partial(f), return_shape=True)(*arguments)
        if traced[0].effects:  # of devices that communicate
            return f(*arguments)
        return _bound(*traced, arguments)

    return at_once


def _bound(closed: Any, shapes: Any, arguments: Any, loop: Kind | None = None) -> Any:
    """The results of a traced program, of the structure of ``shapes``, by `steps_p`."""
    program, constants = with_operands(closed)
    leaves = jax.tree.leaves(arguments)
    results = steps_p.bind(*constants, *leaves, call_jaxpr=program, loop=loop)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)
