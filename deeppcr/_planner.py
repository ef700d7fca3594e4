"""`plan`: does solving a chain in parallel pay off? It costs all candidates and runs none."""

import dataclasses
from typing import Any, Literal, Never

import jax

import depth
from deeppcr._instance import Instance, instances_of
from deeppcr._plan.candidates import Candidates
from deeppcr._plan.choose import best_gradient, best_method, keep_choices
from deeppcr._plan.costs import ChainCosts
from deeppcr._plan.names import Auto, Fixed, Method, find_method
from deeppcr._plan.report import ChainPlan, Plan
from deeppcr.chain import TracedChain
from deeppcr.checks import check_count, describe, unknown_keyword
from deeppcr.linearize import Choice, choose_linearization
from deeppcr.newton import Newton
from deeppcr.newton.lyapunov import forecast_iterations
from deeppcr.sharding import find_sharding
from deeppcr.structure import find_jumps, find_structure
from depth.device import find_device

TRIED = 3  # candidates of each kind that trials time, at most


def plan(
    layers_or_chain: Any,
    x: Any,
    *,
    method: str | Method = "auto",
    device: depth.Device | str | None = None,
    trials: bool = False,
    iterations: int | Literal["sample"] | None = None,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Plan:
    """Predict which method and adjoint pay off for a chain, and why.

    Printed, the plan shows the structure of the program (chains among layers, structure of the
    Jacobian, linearisation and window of Newton's method) and one row for each candidate: depth,
    work, traffic, memory, predicted time. ``method="auto"`` and ``adjoint="auto"`` choose by the
    same predictions, for the device at hand.

    `depth` predicts from shapes. Nothing runs, except with ``trials=True`` or
    ``iterations="sample"``.

    Args:
        layers_or_chain: a `Chain`, or layers as in `deeppcr.forward`.
        x: the initial state, or the input of the first layer: arrays, or `jax.ShapeDtypeStruct`.
        method: the methods to compare with the sequential program. "auto": all that may pay off;
            otherwise one method, by object or by name.
        device: a `depth.Device`, or the name of one in `depth.devices`. None: jax's default device,
            as measured by `depth.calibrate`, else with its published figures.
        trials: time the three best candidates of each kind on the device at hand, and rank them by
            the measured times. Requires arrays for ``x`` and the chain.
        iterations: integer >= 1, the number of Newton iterations with exact Jacobians. "sample":
            run the chain once, and estimate it from the growth rate of small differences. None:
            $4 + log_2(L) / 2$, which is typical of contracting chains.
        batch_ndim: the number of leading batch axes of the state. None: 0 for a `Chain`; for layers
            as in `deeppcr.forward`.
        **unknown: not used; the error names the closest argument.

    Returns:
        a `Plan`, whose ``method`` and ``adjoint`` are arguments for `scan`, `solve` and `forward`.

    Raises:
        ValueError: ``device`` or ``method`` is unknown; ``trials`` is given together with a device,
            or without arrays; or no layers form a chain.
        TypeError: the state has no floating-point entries.

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
    if unknown:
        raise unknown_keyword(plan, unknown)
    if iterations is not None and not isinstance(iterations, str):
        check_count("iterations", iterations, "how many iterations")
        iterations = int(iterations)
    elif iterations not in (None, "sample"):
        raise ValueError(
            f'iterations is {describe(iterations)}, expected a number, "sample" or None.'
        )
    if trials and device is not None:
        raise ValueError(
            f"trials are of the device at hand, but device is {describe(device)}; "
            "expected device=None."
        )
    chosen = find_method(method)
    only = None if isinstance(chosen, Auto) else chosen
    model = depth.at_hand() if device is None else find_device(device)
    memory = None if device is None else int(model.memory) // 2
    layers, found = instances_of(layers_or_chain, x, batch_ndim)
    if not found:
        raise ValueError(f"no chain to plan: no two neighbouring layers are alike.\n{layers}")
    chains = (_plan_chain(each, only, model, memory, trials, iterations) for each in found)
    return Plan(layers, tuple(chains))


def _plan_chain(
    given: Instance,
    only: Fixed | None,
    device: depth.Device,
    memory: int | None,
    trials: bool,
    iterations: int | str | None,
) -> ChainPlan:
    chain = given.traced()
    if not chain.initial:
        raise TypeError(
            f"x has leaves {', '.join(map(describe, jax.tree.leaves(given.state)))}, expected a "
            "floating one: nothing is solved for, and the chain runs as jax.lax.scan."
        )
    expected, expectation = _expected(given, chain.length, iterations)
    candidates = Candidates(ChainCosts.of(chain), device, expected, memory, only)
    forward = best_method(candidates, everything=True)
    gradient = best_gradient(candidates, None, everything=True)
    if trials:
        measured = given.seconds([*forward[:TRIED], *gradient[:TRIED]])
        candidates = dataclasses.replace(candidates, trials=measured)
        forward = best_method(candidates, everything=True)
        gradient = best_gradient(candidates, None, everything=True)
    newton = only if isinstance(only, Newton) else Newton(memory=memory)
    sharding = find_sharding(given.chain.inputs, given.chain.sharding, newton)
    choice = _linearized(newton, chain, 1 if sharding is None else sharding.size)
    if only is None and memory is None and sharding is None:  # for the call that follows
        keep_choices(candidates.costs)
    return ChainPlan(
        length=chain.length,
        layout=chain.layout,
        structure=find_structure(chain.step, chain.layout),
        jumps=find_jumps(chain.step),
        choice=choice,
        nbytes=choice.window * choice.linearization.bytes_per_step(chain.step, chain.layout),
        sharding=sharding,
        left_to_jax=_left_to_jax(chain),
        device=device,
        iterations=candidates.expected,
        expectation=expectation,
        forward=tuple(forward),
        gradient=tuple(gradient),
    )


def _expected(given: Instance, length: int, iterations: int | str | None) -> tuple[int | None, str]:
    """How many iterations to expect with exact Jacobians, None for the default; and why."""
    if iterations is None:
        return None, "default for contracting chains: 4 + log2(L) / 2"
    if isinstance(iterations, int):
        return iterations, "as given"
    rate = given.growth_rate()
    trend = f"{'grow' if rate > 0 else 'decay'} at a rate of {rate:+.3g} a step"
    return forecast_iterations(rate, length), f"from a sample, where small differences {trend}"


def _linearized(newton: Newton, chain: TracedChain, shards: int) -> Choice:
    """How Newton's method linearises the chain, or the shard on each device."""
    step, layout, length = chain.step, chain.layout, -(-chain.length // shards)
    choice = choose_linearization(
        newton.linearize, step, layout, length, newton.window, newton.memory, chain.length
    )
    # Shards that need no window are solved together.
    is_windowed = choice.window < length
    return choice if is_windowed else dataclasses.replace(choice, window=chain.length)


def _left_to_jax(chain: TracedChain) -> str:
    """Why the chain, or its derivative, is left to `jax.lax.scan`; empty if neither is."""
    step = chain.step
    if chain.obstacle:
        return f"runs as jax.lax.scan, since {chain.obstacle.reason}"
    if step.nonlinear_rule:
        return (
            "derivatives are jax's: a rule is not proven to be linear in its cotangents, "
            + step.nonlinear_rule
        )
    if step.forwards_only:
        return f"derivatives have forward mode only: {step.forwards_only}"
    return ""
