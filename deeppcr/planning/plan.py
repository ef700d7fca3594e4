"""`plan`: does solving a chain in parallel pay off?"""

from typing import Any, Literal, Never

import jax

import depth
from deeppcr.adjoint import Adjoint, Backpropagation
from deeppcr.checks import check_count, describe, unknown_keyword
from deeppcr.choose import (
    AdjointOption,
    Auto,
    Method,
    MethodOption,
    choose_adjoint,
    choose_method,
    find_method,
    left_to_jax,
)
from deeppcr.linearize import choose_linearization
from deeppcr.newton import Newton
from deeppcr.newton.expected import expected_iterations
from deeppcr.planning.candidates import SCAN, candidate
from deeppcr.planning.instance import Instance, instances_of
from deeppcr.planning.report import GIVEN, OF_AFFINE, USUAL, ChainPlan, Plan
from deeppcr.planning.sample import sample
from deeppcr.sequential import Sequential
from deeppcr.sharding import find_sharding
from deeppcr.structure import find_structure
from depth.models import find_device


def plan(
    program: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    method: str | MethodOption = "auto",
    device: depth.Device | str | None = None,
    iterations: int | Literal["sample"] | None = None,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Plan:
    """Predict whether a parallel solution of a chain pays off, and say what "auto" takes and why.

    ``plan(f, init, xs)`` takes what `scan` takes, ``plan(chain, z0)`` what `solve` takes, and
    ``plan(layers, x)`` what `forward` takes. Printed, the plan says what "auto" takes and why, the
    structure of the program (chains among layers, structure of the Jacobian, linearisation and
    window of Newton's method), and the candidates with their depth, work, traffic and predicted
    time, which `depth` reads off their programs.

    The number of Newton iterations depends on values: on whether the chain forgets its past. So
    where Newton's method may be taken, and there are arrays to run, it is tried on the first steps
    of the chain, on the CPU, in about a second. Inside `jax.jit`, and with shapes, the plan assumes
    a chain that forgets, as "auto" always does, and says so. `deeppcr.tune` measures.

    Args:
        program: a step ``f(carry, x) -> (carry, y)``, as in `scan`; a `Chain`; or layers, as in
            `forward`.
        init: the carry before the first step; the initial state of the chain; or the input of the
            first layer: arrays, or `jax.ShapeDtypeStruct`.
        xs: the inputs of a step, as in `scan`. None for a chain and for layers, which hold theirs.
        length: L, an integer >= 0; needed only for a step without ``xs``.
        reverse: as in `scan`: whether a step takes the last entry of ``xs`` first.
        method: the method to compare with the sequential program; "auto": Newton's method.
        device: a `depth.Device`, or the name of one in `depth.devices`. None: jax's default device.
        iterations: integer >= 1, the number of Newton iterations that you have observed. None: from
            a sample of the chain where that may matter. "sample": from a sample in any case;
            requires arrays.
        batch_ndim: the number of leading batch axes of the state. None: 0 for a step and a `Chain`;
            for layers as in `deeppcr.forward`.
        **unknown: not used; the error names the closest argument.

    Returns:
        a `Plan`, whose ``method`` and ``adjoint`` are arguments for `scan`, `solve` and `forward`.

    Raises:
        ValueError: ``device`` or ``method`` is unknown; ``iterations`` is "sample", and there are
            no arrays; no layers form a chain; or lengths contradict each other.
        TypeError: the state has no floating-point entries; a function has neither ``xs`` nor
            ``length``; or a chain or layers have one of them, or ``reverse``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> found = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> found.predicted_speedup > 2 and found.depth_speedup > 10
        True
        >>> isinstance(found.method, deeppcr.Newton), found.main.structure.kind
        (True, 'elementwise')
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
    option = find_method(method)
    model = depth.at_hand() if device is None else find_device(device)
    layers, found = instances_of(program, init, xs, length, reverse, batch_ndim)
    if layers is not None and not layers.segments:
        raise ValueError("program is an empty list, expected two layers or more.")
    if not found:
        raise ValueError(f"no chain to plan: no two neighbouring layers are alike.\n{layers}")
    chains = (_plan_chain(each, option, model, iterations) for each in found)
    return Plan(layers, tuple(chains))


def _plan_chain(
    instance: Instance, option: MethodOption, device: depth.Device, iterations: int | str | None
) -> ChainPlan:
    chain = instance.traced
    if not chain.initial:
        leaves = ", ".join(map(describe, jax.tree.leaves(instance.state)))
        raise TypeError(
            f"{instance.name} has leaves {leaves}, expected a floating one: nothing is solved for, "
            "and the chain runs as jax.lax.scan."
        )
    if not chain.length:
        raise ValueError("the chain has 0 steps, expected 1 or more: there is nothing to plan.")
    step, layout, length = chain.step, chain.layout, chain.length
    platform = str(device.platform)
    newton = option if isinstance(option, Newton) else Newton(damping=None)
    linear = choose_linearization(
        newton.linearize, step, layout, length, newton.window, newton.memory, length
    )
    count, source, tried = iterations, GIVEN, None
    chosen = choose_method(chain, platform)
    is_open = iterations == "sample" or isinstance(chosen.option, Newton)
    if not isinstance(count, int):
        count = expected_iterations(length, linear.is_exact, is_affine=step.is_affine)
        source = OF_AFFINE if step.is_affine else USUAL
        if is_open or isinstance(option, Newton):
            block = linear.linearization.bytes_per_step(step, layout) // layout.dtype.itemsize
            tried = sample(instance, newton, block)
        if tried is not None:
            count, source = tried.forecast, str(tried)
        elif iterations == "sample":
            raise ValueError(
                f"{instance.name} has shapes instead of arrays, which iterations='sample' needs to "
                "run the chain; a chain that follows other layers can be planned on its own: "
                "Chain.from_layers(layers, x)."
            )
    if source != USUAL:
        chosen = choose_method(chain, platform, count)
    method: Method = chosen.option if isinstance(option, Auto) else option
    adjoint = choose_adjoint(chain, method, platform)
    reason = left_to_jax(chain)
    parallel: Newton | None = newton
    if isinstance(option, Sequential) or chain.obstacle or step.not_differentiable:
        parallel = None
    if isinstance(method, Newton):
        parallel = method

    def candidates(pairs: list[tuple[Method | None, AdjointOption]]) -> tuple[Any, ...]:
        different = dict.fromkeys((m, a) for m, a in pairs if m is not None)
        return tuple(candidate(instance, m, a, device, count) for m, a in different)

    forward = candidates([(method, None), (Sequential(), None), (parallel, None)])
    others: list[AdjointOption] = [] if reason else [Backpropagation(), Adjoint()]
    gradient = candidates(
        [
            (method, adjoint.option),
            (Sequential(), SCAN),
            *[(method, other) for other in others],
            *[(parallel, other) for other in others[1:]],
        ]
    )
    return ChainPlan(
        length=length,
        layout=layout,
        structure=find_structure(step, layout),
        choice=linear,
        nbytes=linear.window * linear.linearization.bytes_per_step(step, layout),
        sharding=find_sharding(instance.chain.inputs, instance.chain.sharding, newton),
        left_to_jax=reason,
        device=device,
        reason="the method that is asked for" if method is option else str(chosen),
        expectation=source,
        sample=tried,
        forward=forward,
        gradient=gradient,
        is_listed=instance.is_listed and platform == "cpu",
    )
