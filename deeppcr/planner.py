"""`plan`: should this chain run in parallel here? Every candidate scored, before anything runs; tried, if asked to."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

import depth
from deeppcr.api import solve
from deeppcr.chain import Chain, TracedChain, chain_length, trace_chain
from deeppcr.checks import check_count
from deeppcr.describe import chains_of
from deeppcr.lyapunov import forecast_iterations, growth_rate
from deeppcr.plan import (
    Candidate,
    ChainPlan,
    Field,
    Pieces,
    Plan,
    best_gradient,
    best_method,
    read_trials,
    write_trials,
)
from deeppcr.sequential import Sequential
from deeppcr.state import before
from depth.device import find_device

TRIED = 3  # candidates of each kind, at most
TRIAL = 0.2  # seconds for each


def plan(
    layers_or_chain: Any,
    x: Any,
    *,
    device: depth.Device | str | None = None,
    trials: bool = False,
    iterations: int | Literal["sample"] | None = None,
    batch_ndim: int | None = None,
) -> Plan:
    """Which method and which adjoint pay off for a chain, and why: depth, work, memory and predicted time of every candidate.

    ``method="auto"`` and ``adjoint="auto"`` choose by the same scores, for the device at hand and without a sample. Scores are
    made by `depth` from shapes; nothing runs, unless ``trials`` or a sample is asked for.

    Args:
        layers_or_chain: a `Chain`, or layers as in `deeppcr.forward`.
        x: the initial state, or what the first layer takes: arrays, or `jax.ShapeDtypeStruct`.
        device: a `depth.Device` or the name of one of `depth.devices`, which need not be at hand; None for jax's default device:
            as `depth.calibrate` has measured it, else as it is published.
        trials: time the three best candidates of each kind here, and keep the result for chains of the same program and shapes:
            "auto" takes what was fastest, from then on. ``x`` and the chain have to be arrays.
        iterations: how many Newton's method takes with exact Jacobians; "sample": run the chain once and estimate them from the
            growth rate of small differences (`deeppcr.lyapunov`); None: 4 + log2(L) / 2, as for chains that forget.
        batch_ndim: leading batch axes of the state; None for 0 for a `Chain`, and for layers as in `deeppcr.forward`.

    Returns:
        a `Plan`; printed, a table. ``.method`` and ``.adjoint`` are what to pass on.

    Raises:
        ValueError: ``device`` is not known; ``trials`` of another device, or without arrays; no layers make a chain.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> found = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> found.predicted_speedup > 2 and found.depth_speedup > 10
        True
        >>> found.method.linearize, found.method.linear
        (Diagonal(probes=None), ParallelCyclicReduction())
    """
    if iterations is not None and not isinstance(iterations, str):
        check_count("iterations", iterations, "how many iterations")
        iterations = int(iterations)
    elif iterations not in (None, "sample"):
        raise ValueError(f'iterations is {iterations!r}, expected a number, "sample" or None.')
    if trials and device is not None:
        raise ValueError(
            f"trials are of the device at hand, but device is {device!r}; expected device=None."
        )
    model = depth.at_hand() if device is None else find_device(device)
    memory = None if device is None else int(model.memory) // 2
    chains = []
    for chain, state, examples in chains_of(layers_or_chain, x, batch_ndim)[1]:
        problem = _posed(chain, state, examples)
        chains.append(_planned(chain, state, examples, problem, model, memory, trials, iterations))
    if not chains:
        raise ValueError(
            "no chain to plan: no two neighbouring layers are alike; deeppcr.layers.describe says what was found."
        )
    return Plan(tuple(chains))


def _posed(chain: Chain, state: Any, batch_ndim: int) -> TracedChain:
    """The chain, traced with shapes alone."""
    length = chain_length(chain.inputs, chain.length, "chain.inputs")
    found: list[TracedChain] = []

    def trace(state: Any, inputs: Any) -> None:
        found.append(
            trace_chain(
                lambda z, x: (chain.step(z, x), None), state, inputs, length, batch_ndim, "x"
            )
        )

    jax.eval_shape(trace, state, chain.inputs)
    (problem,) = found
    return problem


def _planned(
    chain: Chain,
    state: Any,
    batch_ndim: int,
    problem: TracedChain,
    model: depth.Device,
    memory: int | None,
    trials: bool,
    iterations: int | str | None,
) -> ChainPlan:
    pieces = Pieces.of(problem)
    expected, expectation = None, "as chains that forget: 4 + log2(L) / 2"
    if iterations == "sample":
        rate = _growth(chain, _arrays(state, "iterations='sample'"), batch_ndim)
        expected = forecast_iterations(rate, problem.length)
        trend = "grow" if rate > 0 else "die out"
        expectation = (
            f"from a sample, where small differences {trend} at a rate of {rate:+.3g} a step"
        )
    elif isinstance(iterations, int):
        expected, expectation = iterations, "as the caller says"
    field = Field(pieces, model, expected, memory)
    if memory is None:
        field = dataclasses.replace(field, trials=read_trials(pieces, None))
    forward, gradient = (
        best_method(field, everything=True),
        best_gradient(field, None, everything=True),
    )
    if trials:
        measured = _tried(
            chain, _arrays(state, "trials=True"), batch_ndim, [*forward[:TRIED], *gradient[:TRIED]]
        )
        write_trials(pieces, None, measured)
        field = dataclasses.replace(field, trials={**field.trials, **measured})
        forward, gradient = (
            best_method(field, everything=True),
            best_gradient(field, None, everything=True),
        )
    layout = problem.layout
    return ChainPlan(
        problem.length,
        layout.width,
        layout.batch_size,
        model,
        field.expected,
        expectation,
        tuple(forward),
        tuple(gradient),
    )


def _arrays(state: Any, wanted_by: str) -> Any:
    if any(
        isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in jax.tree.leaves(state)
    ):
        raise ValueError(
            f"x is made of shapes and not of arrays, which {wanted_by} needs to run the chain; a chain that follows other layers "
            "can be planned on its own: Chain.from_layers(layers, x)."
        )
    return jax.tree.map(jnp.asarray, state)


def _growth(chain: Chain, state: Any, batch_ndim: int) -> float:
    """The growth rate of small differences along the sequential program's states."""

    @jax.jit
    def rate(state: Any, inputs: Any) -> Any:
        here = Chain(chain.step, inputs, chain.length)
        length = chain_length(inputs, chain.length, "chain.inputs")
        trajectory = solve(here, state, method=Sequential(), batch_ndim=batch_ndim).trajectory
        problem = trace_chain(
            lambda z, x: (chain.step(z, x), None), state, inputs, length, batch_ndim, "x"
        )
        states = before(problem.initial, jax.tree.leaves(trajectory))
        return growth_rate(problem, problem.layout.flatten(states))

    return float(rate(state, chain.inputs))


def _tried(chain: Chain, state: Any, batch_ndim: int, found: list[Candidate]) -> dict[str, float]:
    """The seconds of each candidate, the least of calls in turn."""
    calls: dict[str, Callable[[], Any]] = {}
    for candidate in found:
        compiled = (
            jax.jit(_program(chain, batch_ndim, candidate)).lower(state, chain.inputs).compile()
        )
        calls[candidate.name] = partial(compiled, state, chain.inputs)
    least = {name: _clock(call) for name, call in calls.items()}  # the first call warms up
    least = {name: _clock(call) for name, call in calls.items()}
    rounds = {name: max(2, min(50, int(TRIAL / seconds))) for name, seconds in least.items()}
    for turn in range(max(rounds.values())):
        for name, call in calls.items():
            if turn < rounds[name]:
                least[name] = min(least[name], _clock(call))
    return least


def _program(chain: Chain, batch_ndim: int, candidate: Candidate) -> Callable[[Any, Any], Any]:
    def states(state: Any, inputs: Any) -> Any:
        here = Chain(chain.step, inputs, chain.length)
        adjoint: Any = "auto" if candidate.adjoint is None else candidate.adjoint
        return solve(
            here, state, method=candidate.method, adjoint=adjoint, batch_ndim=batch_ndim
        ).trajectory

    if candidate.adjoint is None:
        return states

    def loss(state: Any, inputs: Any) -> Any:
        return sum(
            jnp.mean(jnp.square(leaf.astype(jnp.float32)))
            for leaf in jax.tree.leaves(states(state, inputs))
        )

    return jax.grad(loss, argnums=(0, 1), allow_int=True)


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
