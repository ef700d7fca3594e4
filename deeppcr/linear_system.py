"""Linear systems for `jax.lax.custom_linear_solve`, also inside `jax.shard_map`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.avals import like, varying_axes
from deeppcr.rewrites.retrace import varying_alike
from depth.jaxprs import Program, bind, interpret, vary

Solve = Callable[[Any, Any], Any]


def linear_system(
    system: Callable[[Any], Any], b: Any, solve: Solve, transpose_solve: Solve | None = None
) -> tuple[Any, ...]:
    """The arguments for `jax.lax.custom_linear_solve`; the solvers ignore their first one.

    jax makes all of its operands vary over the same axes of `jax.shard_map`, but not what the
    functions make of them (jax 0.10 to 0.12). So these have to vary alike before.
    """
    axes = varying_axes(b)
    if not axes:
        return system, b, solve, transpose_solve
    b = like(b, b)

    def solver(f: Solve) -> Solve:
        run = _varying(partial(f, None), b, axes)
        return lambda _, right: run(right)

    transposed = transpose_solve and solver(transpose_solve)
    return _varying(system, b, axes), b, solver(solve), transposed


def _varying(f: Callable[[Any], Any], b: Any, axes: frozenset[str]) -> Callable[[Any], Any]:
    """``f``, of trees like ``b``, with constants that vary over these axes."""
    closed, results = jax.make_jaxpr(f, return_shape=True)(b)
    program, more = varying_alike(Program.of(closed), axes)
    constants = [vary(jnp.asarray(c), axes) for c in (*closed.consts, *more)]
    variables = [*program.constvars, *program.invars]

    def run(x: Any) -> Any:
        known = dict(zip(variables, [*constants, *jax.tree.leaves(x)], strict=True))
        leaves = interpret(program, known, program.outvars, bind)
        return jax.tree.unflatten(jax.tree.structure(results), leaves)

    return run
