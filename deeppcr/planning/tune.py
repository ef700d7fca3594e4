"""`tune`: times the few sensible pairs of method and adjoint on the user's own arrays."""

import math
import time
from typing import Any, Never

import jax

from deeppcr.checks import describe, unknown_keyword
from deeppcr.choose import UNROLL, AdjointOption, Method
from deeppcr.lower import target
from deeppcr.newton import Newton
from deeppcr.planning.instance import Instance, Pair, gradients, instance_of, name_of_pair
from deeppcr.sequential import Sequential, kernel_of
from depth.report import seconds, table

TRIAL = 0.2  # seconds for each pair
LEAST_CALLS, MOST_CALLS = 3, 50  # the first warms up


def tune(
    program: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> tuple[Method, AdjointOption]:
    """Time the sensible methods and adjoints on your own arrays, and return the fastest pair.

    It compiles some programs and runs each of them for a fifth of a second, forward and gradient,
    then prints a table: the honest answer to "should I use it?" on this machine.

    Args:
        program: as in `plan`: a step with ``init`` and ``xs``, a `Chain`, or layers.
        init: as in `plan`; arrays.
        xs: as in `plan`.
        length: as in `plan`.
        reverse: as in `plan`.
        batch_ndim: as in `plan`.
        **unknown: not used; the error names the closest argument.

    Returns:
        the method and the adjoint of the fastest gradient, to pass on to `scan`, `solve` and
        `forward`. The fastest forward pass is the first in the table.

    Raises:
        ValueError: as in `plan`; or there are shapes instead of arrays, or jax traces the call.
        TypeError: as in `plan`.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((64, 2)))
        >>> method, adjoint = deeppcr.tune(chain, jnp.zeros(2))  # doctest: +ELLIPSIS
        forward ...
        >>> solution = deeppcr.solve(chain, jnp.zeros(2), method=method, adjoint=adjoint)
    """
    if unknown:
        raise unknown_keyword(tune, unknown)
    instance = instance_of(program, init, xs, length, reverse, batch_ndim)
    if not instance.has_arrays:
        raise ValueError(
            f"{instance.name} is {describe(instance.state)}, expected arrays outside of jax.jit: "
            "tune runs the chain."
        )
    chain, methods = instance.traced, list[Method]([Sequential()])
    if not chain.obstacle:
        methods += [Sequential(unroll=UNROLL)] if target().waits else []
        methods += [Sequential(fused=True)] if kernel_of(chain) else []
        methods += [Newton()]
    forward = _seconds(instance, [(each, None) for each in methods])
    both = _seconds(instance, gradients(chain, methods))
    print(table((), [("forward",), *_rows(forward), ("gradient",), *_rows(both)], "<>>"))
    return min(both, key=both.__getitem__)


def _rows(found: dict[Pair, float]) -> list[tuple[str, ...]]:
    """The fastest first; each beside the sequential program."""
    first, rows = next(iter(found.values())), sorted(found.items(), key=lambda each: each[1])
    return [(f"  {name_of_pair(*pair)}", seconds(t), f"{first / t:.2f}x") for pair, t in rows]


def _seconds(instance: Instance, pairs: list[Pair]) -> dict[Pair, float]:
    """The seconds of each pair: the minimum of several interleaved calls."""
    arguments, least = (instance.state, instance.inputs), dict.fromkeys(pairs, math.inf)
    compiled = [jax.jit(instance.program(*pair)).lower(*arguments).compile() for pair in pairs]
    end = time.perf_counter() + TRIAL * len(pairs)
    for k in range(MOST_CALLS):
        for pair, run in zip(pairs, compiled, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            least[pair] = min(least[pair], time.perf_counter() - start)
        if k >= LEAST_CALLS and time.perf_counter() > end:
            break
    return least
