"""How the blocks of the residual network run: sequentially, or by a linearisation."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

import deeppcr
from deeppcr import Adjoint, Newton, Result, Sequential
from experiments.resnet.network import Run


class Statistics(NamedTuple):
    """Statistics of a training step: Newton iterations, residual, and a `deeppcr.Result`."""

    iterations: Array
    residual: Array
    result: Array


@dataclass(frozen=True)
class Setting:
    """How deeppcr runs the blocks: its ``method`` forward and its ``adjoint`` backward."""

    method: Any
    adjoint: Any

    def solve(self, step: Any, layers: Any, z: Array) -> deeppcr.Solution:
        """All states of a batch."""
        chain = deeppcr.Chain(step, layers)
        return deeppcr.solve(chain, z, method=self.method, adjoint=self.adjoint, batch_ndim=1)

    def run(self, step: Any, layers: Any, z: Array) -> tuple[Array, Statistics]:
        """The last state: a `Run`."""
        solution = self.solve(step, layers, z)
        stats = solution.stats
        return solution.value, Statistics(stats.iterations, stats.residual, solution.result)

    @property
    def counting(self) -> "Setting":
        """The setting whose Newton iterations are the trips of loops.

        An adjoint takes about as many corrections.
        """
        if isinstance(self.method, Sequential) and isinstance(self.adjoint, Adjoint):
            return Setting(Newton(linearize=self.adjoint.linearize), self.adjoint)
        return self

    def stopped(self, k: int) -> "Setting":
        """The same with at most k iterations, converged or not."""
        method = dataclasses.replace(self.method, max_iterations=k, on_failure="return")
        return Setting(method, self.adjoint)


def _alike(linearize: str, linear: str) -> tuple[Newton, Adjoint]:
    """Newton's method, and the adjoint by the same blocks."""
    return Newton(linearize=linearize, linear=linear), Adjoint(linearize=linearize, linear=linear)


# Linear recurrences are solved in parallel on every device, as `linear="auto"` does on an
# accelerator.
DENSE = _alike("dense", "cyclic_reduction")
DIAGONAL = _alike("diagonal", "pcr")
IDENTITY = _alike("identity", "pcr")
VARIANTS = {
    "auto": Setting("auto", "auto"),
    "sequential / dense": Setting(Sequential(), DENSE[1]),
    "sequential / identity": Setting(Sequential(), IDENTITY[1]),
    "identity / identity": Setting(*IDENTITY),
    "identity / dense": Setting(IDENTITY[0], DENSE[1]),
    "dense / dense": Setting(*DENSE),
    "diagonal / diagonal": Setting(*DIAGONAL),
}
STOPPED = ("identity / identity", "dense / dense")  # also run with at most k iterations


def by_scan(scan: Callable[..., Any]) -> Run:
    """One block after another, by `jax.lax.scan` or the like."""

    def run(step: Any, layers: Any, z: Array) -> tuple[Array, Statistics]:
        z, _ = scan(lambda z, layer: (step(z, layer), None), z, layers)
        return z, Statistics(jnp.int32(0), jnp.float32(0), jnp.int32(Result.CONVERGED))

    return run
