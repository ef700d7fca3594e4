"""A method and an adjoint for a chain, and the time that both take: predicted, or measured."""

import dataclasses
import math
from collections.abc import Sequence

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.chain.chain import TracedChain
from deeppcr.choose import AdjointOption, Method, left_to_jax
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from depth import Cost


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One combination of a method and an adjoint for a chain.

    Attributes:
        method: the method.
        adjoint: the adjoint; None for a forward pass.
        cost: its depth, work and traffic.
        seconds: the time that it takes on the device.
        iterations: of Newton's method; 0 for others.
    """

    method: Method
    adjoint: AdjointOption = None
    cost: Cost = dataclasses.field(default_factory=Cost)
    seconds: float = math.inf
    iterations: int = 0

    @property
    def name(self) -> str:
        """The name of the method, and of the adjoint unless it is None."""
        method, adjoint = self.method, self.adjoint
        if isinstance(method, Newton):
            name = "Newton"
        else:
            name = "sequential" if method.unroll == 1 else f"unroll {method.unroll}"
            name = "fused loop" if method.fused else name
        if isinstance(adjoint, Autodiff):
            unroll = f", unroll {adjoint.unroll}" if adjoint.unroll > 1 else ""
            return f"{name} / autodiff{unroll}"
        return name + {Adjoint: " / blocks", Backpropagation: " / backprop"}.get(type(adjoint), "")


def baseline(candidates: Sequence[Candidate]) -> Candidate:
    """The sequential program, and jax's own derivative of it."""
    plain = [(Sequential(), None), (Sequential(), Autodiff())]
    return next(one for one in candidates if (one.method, one.adjoint) in plain)


def gradients(chain: TracedChain, methods: Sequence[Method]) -> list[Candidate]:
    """The sensible candidates for a gradient, jax's own first."""
    found = [Candidate(Sequential(), Autodiff())]
    if not left_to_jax(chain):
        found.append(Candidate(methods[0], Backpropagation()))
        found += [Candidate(each, Adjoint()) for each in methods]
    return found
