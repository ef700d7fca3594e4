"""How the blocks of the residual network are run: one after another, or all at once, with this or that for their Jacobians."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

import deeppcr
from deeppcr import Adjoint, Newton, Result, Sequential
from experiments.resnet_parts.convnet import Run


class Told(NamedTuple):
    """How the blocks of one training step were run: Newton iterations, the residual they left, and a `deeppcr.Result`."""

    iterations: Array
    residual: Array
    result: Array


@dataclass(frozen=True)
class Way:
    """How deeppcr runs the blocks: its ``method`` forward and its ``adjoint`` backward."""

    method: Any
    adjoint: Any

    def solve(self, step: Any, layers: Any, z: Array) -> deeppcr.Solution:
        """All states of a batch."""
        return deeppcr.solve(
            deeppcr.Chain(step, layers), z, method=self.method, adjoint=self.adjoint, batch_ndim=1
        )

    def run(self, step: Any, layers: Any, z: Array) -> tuple[Array, Told]:
        """The last state: a `Run`."""
        solution = self.solve(step, layers, z)
        return solution.value, Told(
            solution.stats.iterations, solution.stats.residual, solution.result
        )

    @property
    def counting(self) -> "Way":
        """The way whose Newton iterations tell how often loops turn: an adjoint takes about as many corrections."""
        if isinstance(self.method, Sequential) and isinstance(self.adjoint, Adjoint):
            return Way(Newton(linearize=self.adjoint.linearize), self.adjoint)
        return self

    def stopped(self, k: int) -> "Way":
        """The same, with at most k iterations and whatever states they have led to."""
        return Way(
            dataclasses.replace(self.method, max_iterations=k, on_failure="return"), self.adjoint
        )


def _alike(linearize: str, linear: str) -> tuple[Newton, Adjoint]:
    """Newton's method, and the adjoint by the same blocks."""
    return Newton(linearize=linearize, linear=linear), Adjoint(linearize=linearize, linear=linear)


# Linear recurrences are solved in parallel on every device, by what `linear="auto"` takes on an accelerator.
DENSE, DIAGONAL, IDENTITY = (
    _alike("dense", "cyclic_reduction"),
    _alike("diagonal", "pcr"),
    _alike("identity", "pcr"),
)
WAYS = {
    "auto": Way("auto", "auto"),
    "sequential / dense": Way(Sequential(), DENSE[1]),
    "sequential / identity": Way(Sequential(), IDENTITY[1]),
    "identity / identity": Way(*IDENTITY),
    "identity / dense": Way(IDENTITY[0], DENSE[1]),
    "dense / dense": Way(*DENSE),
    "diagonal / diagonal": Way(*DIAGONAL),
}
STOPPED = (
    "identity / identity",
    "dense / dense",
)  # those that are also run for k iterations, and no more


def by_scan(scan: Callable[..., Any]) -> Run:
    """One block after another, by `jax.lax.scan` or the like."""

    def run(step: Any, layers: Any, z: Array) -> tuple[Array, Told]:
        z, _ = scan(lambda z, layer: (step(z, layer), None), z, layers)
        return z, Told(jnp.int32(0), jnp.float32(0), jnp.int32(Result.CONVERGED))

    return run
