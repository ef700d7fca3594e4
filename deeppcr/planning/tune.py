"""`tune`: times the few sensible pairs of method and adjoint on the user's own arrays."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Never

import jax

from deeppcr.adjoint import Adjoint, Backpropagation
from deeppcr.checks import describe, unknown_keyword
from deeppcr.choose import UNROLL, AdjointOption, Method, left_to_jax
from deeppcr.fused import CannotFuse
from deeppcr.newton import Newton
from deeppcr.planning.candidates import SCAN, name_of_pair, program_of
from deeppcr.planning.instance import Instance, instances_of
from deeppcr.platforms import is_gpu
from deeppcr.sequential import Sequential, fused_step
from depth.report import seconds, table

TRIAL = 0.2  # seconds for each pair
MOST_CALLS = 50


class Tuned(NamedTuple):
    """What was the fastest: ``method, adjoint = deeppcr.tune(...)``.

    Attributes:
        method: a value of ``method=``.
        adjoint: a value of ``adjoint=``.
    """

    method: Method
    adjoint: AdjointOption


_Pair = tuple[Method, AdjointOption]


def tune(
    program: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    gradient: bool = True,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Tuned:
    """Time the sensible methods and adjoints on your own arrays, and return the fastest pair.

    It compiles some programs and runs each of them for a fifth of a second, forward and gradient,
    then prints a table: the honest answer to "should I use it?" on this machine.

    Args:
        program: as in `plan`: a step with ``init`` and ``xs``, a `Chain`, or layers. Of layers with
            several chains, the first is timed.
        init: as in `plan`; arrays.
        xs: as in `plan`.
        length: as in `plan`.
        reverse: as in `plan`.
        gradient: whether the pair is the fastest for a forward and a backward pass; otherwise the
            method is the fastest for a forward pass alone.
        batch_ndim: as in `plan`.
        **unknown: not used; the error names the closest argument.

    Returns:
        ``method, adjoint``, to pass on to `scan`, `solve` and `forward`.

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
    layers, found = instances_of(program, init, xs, length, reverse, batch_ndim)
    if not found:
        raise ValueError(f"no chain to tune: no two neighbouring layers are alike.\n{layers}")
    instance = found[0]
    if not instance.has_arrays:
        raise ValueError(
            f"{instance.name} is {describe(instance.state)}, expected arrays outside of jax.jit: "
            "tune runs the chain."
        )
    forward, backward = _pairs(instance)
    by_forward = _seconds(instance, forward)
    by_gradient = _seconds(instance, backward)
    rows = [("forward", "", ""), *_rows(by_forward)]
    rows += [("gradient", "", ""), *_rows(by_gradient)]
    print(table((), rows, "<>>"))
    fastest = forward[min(by_forward, key=by_forward.__getitem__)][0]
    if not gradient:  # of its gradients, if there are any
        by_gradient = {
            name: t for name, t in by_gradient.items() if backward[name][0] == fastest
        } or by_gradient
    best, adjoint = backward[min(by_gradient, key=by_gradient.__getitem__)]
    return Tuned(best if gradient else fastest, adjoint)


def _pairs(instance: Instance) -> tuple[dict[str, _Pair], dict[str, _Pair]]:
    """What is timed: forward passes, and gradients; the sequential program is the first of each."""
    chain = instance.traced
    methods: list[Method] = [Sequential()]
    if not chain.obstacle:
        if is_gpu():
            methods.append(Sequential(unroll=UNROLL))
            try:
                fused_step(chain)
                methods.append(Sequential(fused=True))
            except CannotFuse:
                pass
        methods.append(Newton())
    adjoints: list[_Pair] = [(Sequential(), SCAN)]
    if not left_to_jax(chain):
        adjoints += [(Sequential(), Backpropagation()), *((each, Adjoint()) for each in methods)]
    forward: list[_Pair] = [(method, None) for method in methods]
    named = ({name_of_pair(*pair): pair for pair in pairs} for pairs in (forward, adjoints))
    return next(named), next(named)


def _rows(found: Mapping[str, float]) -> list[tuple[str, ...]]:
    """The fastest first; each beside the sequential program."""
    first = next(iter(found.values()))
    rows = sorted(found.items(), key=lambda each: each[1])
    return [(f"  {name}", seconds(taken), f"{first / taken:.2f}x") for name, taken in rows]


def _seconds(instance: Instance, pairs: Mapping[str, _Pair]) -> dict[str, float]:
    """The seconds of each pair by its name: the minimum of several interleaved calls."""
    arguments = instance.arrays
    calls: dict[str, Callable[[], Any]] = {}
    for name, (method, adjoint) in pairs.items():
        run = jax.jit(partial(program_of, instance, method, adjoint))
        calls[name] = partial(run.lower(*arguments).compile(), *arguments)
    least = {name: _clock(call) for name, call in calls.items()}  # the first call warms up
    rounds = {name: max(2, min(MOST_CALLS, int(TRIAL / least[name]))) for name in calls}
    least = {name: _clock(call) for name, call in calls.items()}
    for k in range(max(rounds.values())):
        for name, call in calls.items():
            if k < rounds[name]:
                least[name] = min(least[name], _clock(call))
    return least


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
