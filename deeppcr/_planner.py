"""`plan`: does solving a chain in parallel pay off?

It costs all candidates, and tries Newton's method on a sample of the chain before it promises
anything.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, Never

import jax
import jax.numpy as jnp

import depth
from deeppcr._instance import Instance, instances_of
from deeppcr._plan.candidate import Candidate
from deeppcr._plan.candidates import JACOBI, Candidates
from deeppcr._plan.choose import best_gradient, best_method, keep_choices, left_to_jax
from deeppcr._plan.costs import ChainCosts
from deeppcr._plan.names import Auto, Fixed, Method, find_method
from deeppcr._plan.report import GIVEN, OF_AFFINE, ChainPlan, Plan
from deeppcr.chain import TracedChain
from deeppcr.checks import check_count, describe, unknown_keyword
from deeppcr.linearize import Choice, choose_linearization
from deeppcr.newton import Newton
from deeppcr.newton.sample import MOST, Sample, affordable
from deeppcr.sharding import find_sharding
from deeppcr.structure import find_structure
from depth.models import find_device

TRIED = 3  # candidates of each kind that trials time, at most
FEWEST_ITERATIONS = 2  # a method that would not even pay with so few needs no sample


def plan(
    program: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    method: str | Method = "auto",
    device: depth.Device | str | None = None,
    trials: bool = False,
    iterations: int | Literal["sample"] | None = None,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Plan:
    """Predict which method and adjoint pay off for a chain, and why.

    ``plan(f, init, xs)`` takes what `scan` takes, ``plan(chain, z0)`` what `solve` takes, and
    ``plan(layers, x)`` what `forward` takes.

    Printed, the plan says what is chosen, shows the structure of the program (chains among layers,
    structure of the Jacobian, linearisation and window of Newton's method), and the best candidates
    with their depth, work, traffic, memory and predicted time; `Plan.table` has all of them.

    `depth` predicts the time of an iteration from shapes. How many iterations Newton's method takes
    depends on values: on whether the chain forgets its past. So where Newton's method may win, and
    there are arrays to run, it is tried on a sample of the chain first, on the CPU. That takes some
    milliseconds, and a fraction of a second to compile. Inside `jax.jit`, and with shapes, the plan
    assumes a chain that forgets, and says so in its first line. ``method="auto"`` and
    ``adjoint="auto"`` always decide by shapes, for the device at hand, and on that assumption.

    Args:
        program: a step ``f(carry, x) -> (carry, y)``, as in `scan`; a `Chain`; or layers, as in
            `forward`.
        init: the carry before the first step; the initial state of the chain; or the input of the
            first layer: arrays, or `jax.ShapeDtypeStruct`.
        xs: the inputs of a step, as in `scan`. None for a chain and for layers, which hold theirs.
        length: L, an integer >= 0; needed only for a step without ``xs``.
        reverse: as in `scan`: whether a step takes the last entry of ``xs`` first.
        method: the methods to compare with the sequential program. "auto": all that may pay off;
            otherwise one method, by object or by name.
        device: a `depth.Device`, or the name of one in `depth.devices`. None: jax's default device,
            by the figures of `depth.at_hand`.
        trials: time the three best candidates of each kind on the device at hand, and rank them by
            the measured times. Requires arrays for ``init`` and the chain.
        iterations: integer >= 1, the number of Newton iterations with exact Jacobians. None: from a
            sample of the chain where that may matter. Without arrays it is 2 for a step that is
            affine in its state, else $4 + log_2(L) / 2$, which is typical of contracting chains.
            "sample": from a sample in any case; requires arrays.
        batch_ndim: the number of leading batch axes of the state. None: 0 for a step and a `Chain`;
            for layers as in `deeppcr.forward`.
        **unknown: not used; the error names the closest argument.

    Returns:
        a `Plan`, whose ``method`` and ``adjoint`` are arguments for `scan`, `solve` and `forward`.

    Raises:
        ValueError: ``device`` or ``method`` is unknown; ``trials`` is given together with a device,
            or without arrays; no layers form a chain; or lengths contradict each other.
        TypeError: the state has no floating-point entries; a function has neither ``xs`` nor
            ``length``; or a chain or layers have one of them, or ``reverse``.

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
    layers, found = instances_of(program, init, xs, length, reverse, batch_ndim)
    if layers is not None and not layers.segments:
        raise ValueError("program is an empty list, expected two layers or more.")
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
        leaves = ", ".join(map(describe, jax.tree.leaves(given.state)))
        raise TypeError(
            f"{given.name} has leaves {leaves}, expected a floating one: nothing is solved for, "
            "and the chain runs as jax.lax.scan."
        )
    if not chain.length:
        raise ValueError("the chain has 0 steps, expected 1 or more: there is nothing to plan.")
    asked = iterations if isinstance(iterations, int) else None
    candidates = Candidates(ChainCosts.of(chain), device, asked, memory, only)
    samples: dict[str, Sample] = {}
    if asked is None:
        candidates, samples = _sampled(given, candidates, iterations == "sample")
    forward = best_method(candidates, everything=True)
    gradient = best_gradient(candidates, None, everything=True)
    if trials:
        measured = given.seconds([*forward[:TRIED], *gradient[:TRIED]])
        candidates = dataclasses.replace(candidates, trials=measured)
        forward = best_method(candidates, everything=True)
        gradient = best_gradient(candidates, None, everything=True)
    newton = only if isinstance(only, Newton) else Newton(memory=memory, damping=None)
    sharding = find_sharding(given.chain.inputs, given.chain.sharding, newton)
    choice = _linearized(newton, chain, 1 if sharding is None else sharding.size)
    if only is None and memory is None and sharding is None:  # for the call that follows
        keep_choices(candidates.costs)
    return ChainPlan(
        length=chain.length,
        layout=chain.layout,
        structure=find_structure(chain.step, chain.layout),
        choice=choice,
        nbytes=choice.window * choice.linearization.bytes_per_step(chain.step, chain.layout),
        sharding=sharding,
        left_to_jax=left_to_jax(chain),
        device=device,
        iterations=candidates.expected,
        expectation=_expectation(asked, chain.step.is_affine, forward, samples),
        samples=samples,
        forward=tuple(forward),
        gradient=tuple(gradient),
        is_listed=given.is_listed and candidates.costs.on_cpu,
    )


def _sampled(
    given: Instance, candidates: Candidates, always: bool
) -> tuple[Candidates, dict[str, Sample]]:
    """The candidates, after samples of those that could be the best; and these, by linearisation.

    ``always``: take one even if no iterations are few enough.
    """
    samples: dict[str, Sample] = {}
    chain = candidates.costs.chain
    while given.has_arrays or always:
        hopeful = _knowing(candidates, samples, FEWEST_ITERATIONS)
        best = best_method(hopeful, everything=True)
        if always and not samples:
            best = [one for one in best if isinstance(one.method, Newton)]
        if not best or not isinstance(best[0].method, Newton):
            break
        newton = best[0].method
        choice = _linearized(newton, chain, 1)
        if str(choice.linearization) in samples or not _is_plain(newton):
            break
        work = candidates.costs.sequential.work / chain.length
        most = max(1, min(MOST, newton.max_iterations or MOST))
        steps = affordable(work, chain.length, most)
        if not steps:
            break
        method = dataclasses.replace(newton, linearize=choice.linearization)
        found = given.sampled(steps, method, most)
        if found is None:
            break
        names = str(choice.linearization), str(newton.linearize)  # the second may be "auto"
        samples |= dict.fromkeys(names, found)
    return _knowing(candidates, samples, None), samples


def _knowing(
    candidates: Candidates, samples: Mapping[str, Sample], otherwise: int | None
) -> Candidates:
    """The candidates with the iterations that samples forecast, or ``otherwise``.

    ``otherwise``: of exact Jacobians before a sample; then Jacobi iteration is tried, too, if a
    chain forgets so quickly that it may win: it takes as many iterations as differences need to
    decay to rounding.
    """
    sampled = {name: found.forecast for name, found in samples.items()}
    exact = [found.forecast for found in samples.values() if found.is_exact]
    expected = exact[0] if exact else otherwise
    if otherwise is not None and (rate := _contraction(samples)) < 0:
        rounding = jnp.finfo(candidates.costs.chain.layout.dtype).eps
        sampled = {JACOBI: math.ceil(math.log(rounding) / rate)} | sampled
    return dataclasses.replace(candidates, iterations=expected, sampled=sampled)


def _contraction(samples: Mapping[str, Sample]) -> float:
    """The growth rate of a chain that forgets within a sample; 0 for any other."""
    rates = [found.rate for found in samples.values() if found.converged and found.forgets]
    return next((rate for rate in rates if rate < 0), 0.0)


def _is_plain(newton: Newton) -> bool:
    """Whether a sample tells what this method does: it has none of the options that change it."""
    guess = isinstance(newton.initial_guess, str)
    undamped = newton.damping in (None, "auto") and newton.acceleration is None
    return guess and undamped


def _expectation(
    asked: int | None, is_affine: bool, forward: list[Candidate], samples: Mapping[str, Sample]
) -> str:
    """Where the number of iterations of the best candidate by Newton's method comes from."""
    if asked is not None:
        return GIVEN
    newton = next((one.method for one in forward if isinstance(one.method, Newton)), None)
    if newton and str(newton.linearize) in samples:
        return str(samples[str(newton.linearize)])
    return OF_AFFINE if is_affine else "default for contracting chains: 4 + log2(L) / 2"


def _linearized(newton: Newton, chain: TracedChain, shards: int) -> Choice:
    """How Newton's method linearises the chain, or the shard on each device."""
    step, layout, length = chain.step, chain.layout, -(-chain.length // shards)
    choice = choose_linearization(
        newton.linearize, step, layout, length, newton.window, newton.memory, chain.length
    )
    # Shards that need no window are solved together.
    is_windowed = choice.window < length
    return choice if is_windowed else dataclasses.replace(choice, window=chain.length)
