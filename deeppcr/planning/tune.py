"""`tune`: times the few sensible pairs of method and adjoint on the user's own arrays."""

import dataclasses
import math
import time
from typing import Any, Never

import jax

from deeppcr.checks import unknown_keyword
from deeppcr.choose import AdjointOption, Method, loops_of
from deeppcr.newton import Newton
from deeppcr.planning.candidates import Candidate, Instance, baseline, instance_of
from depth.report import seconds, table

TRIAL_SECONDS = 0.2  # seconds for each pair
TUNE_HEAD = ("forward", "a call", "speedup", "to compile")
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
    then prints a table: the honest answer to "should I use it?" on this machine. Beside the time of
    a call, it shows how long tracing and compiling take.

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
    if instance.why_not_now:
        raise ValueError(
            f"tune runs the chain, but {instance.why_not_now}; expected arrays, outside of "
            "jax's transformations. deeppcr.plan takes shapes and traced arrays, too."
        )
    chain = instance.traced
    methods = loops_of(chain)
    if not chain.obstacle and not chain.step.not_differentiable:
        methods.append(Newton())
    rows: list[tuple[str, ...]] = []
    for name, candidates in zip(("forward", "gradient"), instance.candidates(methods), strict=True):
        timed = _timed(instance, candidates)
        plain = baseline(timed).seconds
        rows += [(name,)] if rows else []
        for one in timed:
            ratio = f"{plain / one.seconds:.2f}x"
            rows.append((f"  {one.name}", seconds(one.seconds), ratio, seconds(one.compiling)))
    print(table(TUNE_HEAD, rows, "<>>>"))
    return next((one.method, one.adjoint) for one in timed if one.method)


def _timed(instance: Instance, candidates: list[Candidate]) -> list[Candidate]:
    """The fastest first, each with its minimum of several interleaved calls."""
    arguments, least = instance.arguments, [math.inf] * len(candidates)
    compiled, compiling = [], list[float]()
    for one in candidates:
        start = time.perf_counter()
        compiled.append(jax.jit(instance.program(one)).lower(*arguments).compile())
        compiling.append(time.perf_counter() - start)
    end = time.perf_counter() + TRIAL_SECONDS * len(compiled)
    for k in range(MOST_CALLS):
        for i, run in enumerate(compiled):
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            least[i] = min(least[i], time.perf_counter() - start)
        if k >= LEAST_CALLS and time.perf_counter() > end:
            break
    numbers = zip(candidates, least, compiling, strict=True)
    timed = (dataclasses.replace(one, seconds=t, compiling=first) for one, t, first in numbers)
    return sorted(timed, key=lambda one: one.seconds)
