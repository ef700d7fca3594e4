"""`tune`: times the few sensible pairs of method and adjoint on the user's own arrays."""

import dataclasses
import math
import time
from typing import Any, Never

import jax

from deeppcr.checks import describe, unknown_keyword
from deeppcr.choose import UNROLL, AdjointOption, Method
from deeppcr.lower import target
from deeppcr.newton import Newton
from deeppcr.planning.candidate import Candidate, baseline, gradients
from deeppcr.planning.instance import Instance, instance_of
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
    forward = _timed(instance, list(map(Candidate, methods)))
    both = _timed(instance, gradients(chain, methods))
    print(table((), [("forward",), *_rows(forward), ("gradient",), *_rows(both)], "<>>"))
    return both[0].method, both[0].adjoint


def _rows(found: list[Candidate]) -> list[tuple[str, ...]]:
    """Each beside the sequential program."""
    plain = baseline(found).seconds
    return [(f"  {one.name}", seconds(one.seconds), f"{plain / one.seconds:.2f}x") for one in found]


def _timed(instance: Instance, candidates: list[Candidate]) -> list[Candidate]:
    """The fastest first, each with its minimum of several interleaved calls."""
    arguments, least = (instance.state, instance.chain.inputs), [math.inf] * len(candidates)
    programs = map(instance.program, candidates)
    compiled = [jax.jit(program).lower(*arguments).compile() for program in programs]
    end = time.perf_counter() + TRIAL * len(compiled)
    for k in range(MOST_CALLS):
        for i, run in enumerate(compiled):
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            least[i] = min(least[i], time.perf_counter() - start)
        if k >= LEAST_CALLS and time.perf_counter() > end:
            break
    pairs = zip(candidates, least, strict=True)
    timed = [dataclasses.replace(one, seconds=measured) for one, measured in pairs]
    return sorted(timed, key=lambda one: one.seconds)
