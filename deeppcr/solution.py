"""What a solver returns: the states, and how they were found."""

import dataclasses
import enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from depth.report import table


class Result(enum.IntEnum):
    """How a solve ended; the values that `Solution.result` takes."""

    CONVERGED = 0
    """The states satisfy the chain to the tolerance that was asked for."""
    FINISHED_SEQUENTIALLY = 1
    """Newton did not converge within its budget; the sequential fallback did the rest."""
    NOT_CONVERGED = 2
    """Newton did not converge, with ``on_failure="return"``: states after the prefix are wrong."""


class NotConverged(RuntimeError):
    """Newton did not converge within its budget, and ``on_failure="raise"``."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["iterations", "residual", "prefix", "residuals", "growth_rate"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Stats:
    """How a solve went. Scalars; no derivatives pass through them.

    Attributes:
        iterations: int32, Newton iterations; 0 for a sequential solve.
        residual: the largest ``|step(z_{l-1}, x_l) - z_l|``, relative to the size of each entry,
            when Newton stopped.
        prefix: int32, how many states from the start of the chain had converged; L if all.
        residuals: with ``Newton(record=True)``, the residual of the initial guess and after every
            iteration, and NaN after the last (inf under `jax.debug_nans`, which rejects NaN).
        growth_rate: with ``record=True``, the largest Lyapunov exponent of the chain: the rate per
            step (natural logarithm) at which small differences grow, or decay if it is negative.
            See `deeppcr.newton.lyapunov`.
    """

    iterations: Array
    residual: Array
    prefix: Array
    residuals: Array | None = None
    growth_rate: Array | None = None

    @classmethod
    def of_sequential(cls, length: int, dtype: Any, examples: tuple[int, ...] = ()) -> "Stats":
        """The stats of chains of ``length`` steps that were run step by step."""
        none = jnp.zeros(examples, jnp.int32)
        return cls(none, jnp.zeros(examples, dtype), none + jnp.int32(length))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "trajectory", "stats", "result"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Solution:
    """A solved chain.

    Attributes:
        value: the last state ``z_L``.
        trajectory: all states ``z_1 .. z_L``, stacked on axis 0.
        stats: see `Stats`.
        result: int32 scalar, one of `Result`.
    """

    value: Any
    trajectory: Any
    stats: Stats
    result: Array

    @property
    def converged(self) -> Array:
        """Whether ``value`` and ``trajectory`` are right, to the tolerance: bool scalar."""
        return self.result != Result.NOT_CONVERGED

    def __str__(self) -> str:
        try:
            return "\n".join(_lines(self))
        except (jax.errors.ConcretizationTypeError, TypeError, ValueError, IndexError):
            return repr(self)  # traced, or of several chains: no numbers to print


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["trajectory", "outputs", "stats", "result", "last"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Run:
    """What a method returns below the api: a `Solution` in leaves, with the steps' outputs.

    Attributes:
        trajectory: leaves of ``z_1 .. z_L``.
        outputs: leaves of the outputs of all steps.
        stats: see `Stats`.
        result: int32 scalar, one of `Result`.
        last: leaves of ``z_L``; empty until `solve_chain` has taken them from the trajectory.
    """

    trajectory: list[Any]
    outputs: list[Any]
    stats: Stats
    result: Array
    last: list[Any] = dataclasses.field(default_factory=list)

    def with_tangents(self, states: list[Any], outputs: list[Any]) -> "Run":
        """The tangents of a run: statistics have none."""
        return Run(states, outputs, *jax.tree.map(_no_tangent, (self.stats, self.result)))


def _no_tangent(x: Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _lines(solution: Solution) -> list[str]:
    stats, result = solution.stats, Result(int(solution.result))
    states = jax.tree.leaves(solution.trajectory)
    length = len(states[0]) if states else int(stats.prefix)
    rows = {
        "result": result.name.lower().replace("_", " "),
        "iterations": f"{int(stats.iterations)}",
        "converged": f"{int(stats.prefix)} of {length} states",
        "residual": f"{float(stats.residual):.1e}",
    }
    if stats.growth_rate is not None:
        rows["growth rate"] = f"{float(stats.growth_rate):+.3g} a step"
    lines = [table((), list(rows.items()), "<<")]
    if stats.residuals is not None:
        history = stats.residuals[: int(stats.iterations) + 1].tolist()
        residuals = [(f"{k}", f"{residual:.1e}") for k, residual in enumerate(history)]
        lines += ["", table(("iteration", "residual"), residuals, ">>")]
    return lines
