"""`plan`: does a chain pay off in parallel here? All candidates scored, before anything runs."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

import depth
from deeppcr._plan.candidates import Candidate, Candidates
from deeppcr._plan.choose import best_gradient, best_method
from deeppcr._plan.costs import ChainCosts
from deeppcr._plan.names import Method, find_method
from deeppcr._plan.report import ChainPlan, Plan
from deeppcr.api import solve, vector_batch
from deeppcr.chain import Chain, Problem, Steps, chain_length, pose
from deeppcr.checks import check_count
from deeppcr.layers import stack_layers
from deeppcr.layers.describe import Description, describe
from deeppcr.linearize import Choice, choose_linearization
from deeppcr.lyapunov import forecast_iterations, growth_rate
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.sharding import where
from deeppcr.state import before
from deeppcr.step import Step
from deeppcr.structure import find_structure
from depth.device import find_device

TRIED = 3  # candidates of each kind, at most
TRIAL = 0.2  # seconds for each


def plan(
    layers_or_chain: Any,
    x: Any,
    *,
    method: str | Method = "auto",
    device: depth.Device | str | None = None,
    trials: bool = False,
    iterations: int | Literal["sample"] | None = None,
    batch_ndim: int | None = None,
) -> Plan:
    """Which method and which adjoint pay off for a chain, and why.

    Printed, it says what was found in the program (chains among layers, the structure of the
    Jacobian, the linearisation and the window that Newton's method takes), and has a row for every
    candidate: depth, work, traffic, memory, predicted time. ``method="auto"`` and
    ``adjoint="auto"`` choose by the same scores, for the device at hand and without a sample.
    Scores are made by `depth` from shapes; nothing runs, unless ``trials`` or a sample is asked
    for.

    Args:
        layers_or_chain: a `Chain`, or layers as in `deeppcr.forward`.
        x: the initial state, or what the first layer takes: arrays, or `jax.ShapeDtypeStruct`.
        method: what is compared with the sequential program: "auto", all that may pay off; a
            `Newton` object, or the name of one, only this.
        device: a `depth.Device` or the name of one of `depth.devices`, which need not be at hand;
            None for jax's default device: as `depth.calibrate` has measured it, else as it is
            published.
        trials: time the three best candidates of each kind here, and rank them by that. ``x`` and
            the chain have to be arrays.
        iterations: how many Newton's method takes with exact Jacobians; "sample": run the chain
            once and estimate them from the growth rate of small differences (`deeppcr.lyapunov`);
            None: 4 + log2(L) / 2, as for chains that forget.
        batch_ndim: leading batch axes of the state; None for 0 for a `Chain`, and for layers as in
            `deeppcr.forward`.

    Returns:
        a `Plan`; printed, a short table. ``.method`` and ``.adjoint`` are what to pass on.

    Raises:
        ValueError: ``device`` or ``method`` is not known; ``trials`` of another device, or without
            arrays; no layers make a chain.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> found = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> found.predicted_speedup > 2 and found.depth_speedup > 10
        True
        >>> found.method.linearize, found.method.linear
        (Diagonal(probes=None), ParallelCyclicReduction())
        >>> found.main.structure.kind, found.main.choice.window, found.main.choice.is_exact
        ('elementwise', 4096, True)
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
    only = find_method(method)
    model = depth.at_hand() if device is None else find_device(device)
    memory = None if device is None else int(model.memory) // 2
    layers, chains = chains_of(layers_or_chain, x, batch_ndim)
    if not chains:
        raise ValueError(f"no chain to plan: no two neighbouring layers are alike.\n{layers}")
    planned = (
        _planned(*one, only, model, memory, trials=trials, iterations=iterations) for one in chains
    )
    return Plan(layers, tuple(planned))


def chains_of(
    layers_or_chain: Any, x: Any, batch_ndim: int | None
) -> tuple[Description | None, list[tuple[Chain, Any, int]]]:
    """What was found in layers, if these are any; each chain, its initial state, its batch axes.

    The state of a chain that follows on other layers is made of shapes.
    """
    if isinstance(layers_or_chain, Chain):
        return None, [(layers_or_chain, x, batch_ndim or 0)]
    layers, chains = describe(layers_or_chain, x), []
    for index, segment in enumerate(layers.segments):
        if not segment.reason:
            run = stack_layers(segment.layers, segment.period)
            tree, *types = segment.layers[0].takes
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in types]
            state = jax.tree.unflatten(tree, shapes) if index else x
            batch = vector_batch(state) if batch_ndim is None else batch_ndim
            chains.append((Chain(run.step, run.inputs, run.length), state, batch))
    return layers, chains


def _planned(
    chain: Chain,
    state: Any,
    batch_ndim: int,
    only: Method | None,
    model: depth.Device,
    memory: int | None,
    *,
    trials: bool,
    iterations: int | str | None,
) -> ChainPlan:
    problem = _posed(chain, state, batch_ndim)
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
    candidates = Candidates(ChainCosts.of(problem), model, expected, memory, only)
    forward, gradient = _ranked(candidates)
    if trials:
        tried = [*forward[:TRIED], *gradient[:TRIED]]
        measured = _timed(chain, _arrays(state, "trials=True"), batch_ndim, tried)
        forward, gradient = _ranked(dataclasses.replace(candidates, trials=measured))
    step, layout = problem.step, problem.layout
    newton = only if isinstance(only, Newton) else Newton(memory=memory)
    spread = where(chain.inputs, chain.spread, newton)
    choice = _choice(newton, problem, 1 if spread is None else spread.size)
    return ChainPlan(
        length=problem.length,
        layout=layout,
        structure=find_structure(step, layout),
        choice=choice,
        nbytes=choice.window * choice.linearization.bytes_per_step(step, layout),
        spread=spread,
        only=_only(step),
        device=model,
        iterations=candidates.expected,
        expectation=expectation,
        forward=tuple(forward),
        gradient=tuple(gradient),
    )


def _posed(chain: Chain, state: Any, batch_ndim: int) -> Problem:
    """The chain, traced with shapes alone."""
    length = chain_length(chain.inputs, chain.length, "chain.inputs")
    found: list[Problem] = []

    def trace(state: Any, inputs: Any) -> None:
        found.append(
            pose(lambda z, x: (chain.step(z, x), None), state, inputs, length, batch_ndim, "x")
        )

    jax.eval_shape(trace, state, chain.inputs)
    (problem,) = found
    return problem


def _ranked(candidates: Candidates) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates for a forward pass, and those for a gradient."""
    return (
        best_method(candidates, everything=True),
        best_gradient(candidates, None, everything=True),
    )


def _choice(newton: Newton, problem: Problem, shards: int) -> Choice:
    """How Newton's method linearises the chain, or the shard on each device."""
    length = -(-problem.length // shards)
    step, layout = problem.step, problem.layout
    choice = choose_linearization(
        newton.linearize, step, layout, length, newton.window, newton.memory, problem.length
    )
    return choice if shards == 1 else dataclasses.replace(choice, window=problem.length)


def _only(step: Step) -> str:
    """Why a chain is left to `jax.lax.scan`, or its derivative to jax; empty if neither is."""
    if step.effects:
        return f"runs as jax.lax.scan, since the step has side effects ({', '.join(step.effects)})"
    return (
        "derivatives are jax's, since the step has a jax.custom_vjp" if step.has_custom_vjp else ""
    )


def _arrays(state: Any, wanted_by: str) -> Any:
    if any(
        isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in jax.tree.leaves(state)
    ):
        raise ValueError(
            f"x is made of shapes and not of arrays, which {wanted_by} needs to run the chain; "
            "a chain that follows other layers can be planned on its own: "
            "Chain.from_layers(layers, x)."
        )
    return jax.tree.map(jnp.asarray, state)


def _growth(chain: Chain, state: Any, batch_ndim: int) -> float:
    """The growth rate of small differences along the sequential program's states."""

    @jax.jit
    def rate(state: Any, inputs: Any) -> Any:
        here = Chain(chain.step, inputs, chain.length)
        length = chain_length(inputs, chain.length, "chain.inputs")
        trajectory = solve(here, state, method=Sequential(), batch_ndim=batch_ndim).trajectory
        problem = pose(
            lambda z, x: (chain.step(z, x), None), state, inputs, length, batch_ndim, "x"
        )
        steps = Steps(problem.step, problem.layout, problem.inputs, problem.captured, length)
        states = before(problem.initial, jax.tree.leaves(trajectory))
        return growth_rate(steps, problem.layout.flatten(states))

    return float(rate(state, chain.inputs))


def _timed(
    chain: Chain, state: Any, batch_ndim: int, candidates: list[Candidate]
) -> dict[str, float]:
    """The seconds of each candidate by its name: the least of several, taken in turns."""
    calls: dict[str, Callable[[], Any]] = {}
    for candidate in candidates:
        compiled = (
            jax.jit(_program(chain, batch_ndim, candidate)).lower(state, chain.inputs).compile()
        )
        calls[candidate.name] = partial(compiled, state, chain.inputs)
    least = {name: _clock(call) for name, call in calls.items()}  # the first call warms up
    least = {name: _clock(call) for name, call in calls.items()}
    rounds = {name: max(2, min(50, int(TRIAL / seconds))) for name, seconds in least.items()}
    for k in range(max(rounds.values())):
        for name, call in calls.items():
            if k < rounds[name]:
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
