"""What a solver returns: the answer, and how it was found."""

import dataclasses
import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array


class Result(enum.IntEnum):
    """How a solve ended; the values that `Solution.result` takes."""

    CONVERGED = 0
    """The states satisfy the chain to the tolerance that was asked for."""
    FINISHED_SEQUENTIALLY = 1
    """Newton did not converge within its budget; the rest of the chain was run step by step. The answer is right."""
    NOT_CONVERGED = 2
    """Newton did not converge, and was asked to return what it had: states after the converged prefix are wrong."""


class NotConverged(RuntimeError):
    """Newton did not converge within its budget, and ``on_failure="raise"``."""


@partial(jax.tree_util.register_dataclass, data_fields=["iterations", "residual", "prefix"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Stats:
    """How a solve went. Scalars; no derivatives pass through them.

    Attributes:
        iterations: int32, Newton iterations; 0 for a sequential solve.
        residual: the largest ``|step(z_{l-1}, x_l) - z_l|``, relative to the size of the states at that step, when Newton
        stopped.
        prefix: int32, how many states from the start of the chain had converged then; L if all.
    """

    iterations: Array
    residual: Array
    prefix: Array


@partial(jax.tree_util.register_dataclass, data_fields=["value", "trajectory", "stats", "result"], meta_fields=[])
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
        """Whether ``value`` and ``trajectory`` are the sequential program's, to the tolerance: bool scalar."""
        return self.result != Result.NOT_CONVERGED


@partial(jax.tree_util.register_dataclass, data_fields=["trajectory", "outputs", "stats", "result"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Run:
    """What a method hands to the adjoint: leaves of ``z_1 .. z_L``, leaves of the steps' outputs, and how it went."""

    trajectory: list[Any]
    outputs: list[Any]
    stats: Stats
    result: Array


Solve = Callable[[Any, list[Any], Any], Run]
"""``(steps, leaves of the initial state, further arrays) -> Run``: a method, bound to a chain."""
