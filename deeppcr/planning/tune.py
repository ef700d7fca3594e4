"""`tune`: times the few sensible pairs of method and adjoint on the user's own arrays."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Never

import jax

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.checks import describe, unknown_keyword
from deeppcr.choose import UNROLL, AdjointOption, Method, left_to_jax
from deeppcr.lower import target
from deeppcr.newton import Newton
from deeppcr.planning.instance import Instance, instances_of, name_of_pair
from deeppcr.sequential import Sequential, kernel_of
from depth.report import seconds, table

TRIAL = 0.2  # seconds for each pair
MOST_CALLS = 50


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
) -> tuple[Method, AdjointOption]:
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
        the method and the adjoint, to pass on to `scan`, `solve` and `forward`.

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
    methods, pairs = _sensible(instance)
    forward, both = (
        _seconds(instance, [(each, None) for each in methods]),
        _seconds(instance, pairs),
    )
    print(table((), [("forward",), *_rows(forward), ("gradient",), *_rows(both)], "<>>"))
    fastest = min(forward, key=forward.__getitem__)[0]
    if not gradient:  # of its gradients, if there are any
        both = {pair: t for pair, t in both.items() if pair[0] == fastest} or both
    method, adjoint = min(both, key=both.__getitem__)
    return method if gradient else fastest, adjoint


def _sensible(instance: Instance) -> tuple[list[Method], list[_Pair]]:
    """What is timed: forward passes, and gradients; the sequential program is the first of each."""
    chain, methods = instance.traced, list[Method]([Sequential()])
    if not chain.obstacle:
        if target().waits:
            methods.append(Sequential(unroll=UNROLL))
        if kernel_of(chain):
            methods.append(Sequential(fused=True))
        methods.append(Newton())
    pairs: list[_Pair] = [(Sequential(), Autodiff())]
    if not left_to_jax(chain):
        pairs += [(Sequential(), Backpropagation()), *((each, Adjoint()) for each in methods)]
    return methods, pairs


def _rows(found: dict[_Pair, float]) -> list[tuple[str, ...]]:
    """The fastest first; each beside the sequential program."""
    first, rows = next(iter(found.values())), sorted(found.items(), key=lambda each: each[1])
    return [(f"  {name_of_pair(*pair)}", seconds(t), f"{first / t:.2f}x") for pair, t in rows]


def _seconds(instance: Instance, pairs: list[_Pair]) -> dict[_Pair, float]:
    """The seconds of each pair: the minimum of several interleaved calls."""
    arguments = instance.state, instance.inputs
    calls: dict[_Pair, Callable[[], Any]] = {}
    for pair in pairs:
        run = jax.jit(instance.program(*pair)).lower(*arguments).compile()
        calls[pair] = partial(run, *arguments)
    least = {pair: _clock(call) for pair, call in calls.items()}  # the first call warms up
    rounds = {pair: max(3, min(MOST_CALLS, int(TRIAL / least[pair]))) for pair in pairs}
    least = dict.fromkeys(pairs, float("inf"))
    for k in range(max(rounds.values())):
        for pair, call in calls.items():
            if k < rounds[pair]:
                least[pair] = min(least[pair], _clock(call))
    return least


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
