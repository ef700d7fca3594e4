"""The programs that a plan compares, and the predicted cost of each: `depth` reads them whole."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.choose import AdjointOption, Method
from deeppcr.linear import name_of
from deeppcr.loops import ITERATION
from deeppcr.newton import Newton
from deeppcr.planning.instance import Instance
from deeppcr.sequential import Sequential
from depth import Cost, Device
from depth.analysis import analyze_jaxpr
from depth.platforms import compiled_for

SCAN = Autodiff()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One combination of a method and an adjoint for a chain.

    Attributes:
        method: the method.
        adjoint: the adjoint; None for a forward pass.
        cost: its depth, work and traffic.
        seconds: the predicted time on the device.
        iterations: of Newton's method; 0 for others.
    """

    method: Method
    adjoint: AdjointOption
    cost: Cost
    seconds: float
    iterations: int = 0

    @property
    def name(self) -> str:
        """A short name."""
        return name_of_pair(self.method, self.adjoint)

    @property
    def is_sequential(self) -> bool:
        """Whether it is the sequential program, and jax's own derivative of it."""
        return self.method == Sequential() and self.adjoint in (None, SCAN)


def name_of_pair(method: Method, adjoint: AdjointOption) -> str:
    """The name of a method, and of an adjoint unless it is None."""
    if isinstance(method, Newton):
        found = f"Newton, {method.linearize}, {name_of(method.linear)}"
    else:
        found = "sequential" + (f", unroll {method.unroll}" if method.unroll > 1 else "")
        found += ", fused" if method.fused else ""
    match adjoint:
        case None:
            return found
        case Adjoint():
            return f"{found} / blocks, {name_of(adjoint.linear)}"
        case Backpropagation():
            return f"{found} / backprop"
        case _:
            unroll = f", unroll {adjoint.unroll}" if adjoint.unroll > 1 else ""
            return f"{found} / autodiff{unroll}"


def candidate(
    instance: Instance,
    method: Method,
    adjoint: AdjointOption,
    device: Device,
    iterations: int,
) -> Candidate:
    """A candidate, whose program is traced for ``device``.

    ``iterations``: of Newton's method; without an end before: it is what is predicted.
    """
    is_newton = isinstance(method, Newton)
    program: Method = method
    if isinstance(method, Newton):
        program = dataclasses.replace(method, max_iterations=None, on_failure="return")
    with compiled_for(str(device.platform)):
        run = partial(program_of, instance, program, adjoint)
        jaxpr = jax.make_jaxpr(run)(*instance.shapes)
    cost = analyze_jaxpr(jaxpr, trip_counts={ITERATION: iterations} if is_newton else None)
    seconds = device.call_latency + cost.seconds(device)
    return Candidate(method, adjoint, cost, seconds, iterations if is_newton else 0)


def program_of(
    instance: Instance, method: Any, adjoint: AdjointOption, state: Any, inputs: Any
) -> Any:
    """All states; or with an adjoint the gradient of their mean square.

    Of a step with forward mode only, it is the derivative along the state and the inputs.
    """
    step = instance.traced.step
    if adjoint is None or step.not_differentiable:
        return instance.solved(state, inputs, method=method)

    def loss(state: Any, inputs: Any) -> Any:
        states = instance.solved(state, inputs, method=method, adjoint=adjoint)
        return sum(jnp.mean(jnp.abs(z).astype(jnp.float32) ** 2) for z in jax.tree.leaves(states))

    if step.forwards_only:
        return jax.jvp(lambda state: loss(state, inputs), (state,), (state,))
    return jax.grad(loss, argnums=(0, 1), allow_int=True)(state, inputs)
