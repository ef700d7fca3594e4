"""All states of a chain: by a loop, and by a method of deeppcr."""

from collections.abc import Callable
from typing import Any

import jax

import deeppcr
from experiments.common.baselines import Scan
from experiments.common.versus import Program

Step = Callable[[Any, Any], Any]


def by_loop(step: Step, scan: Scan) -> Callable[[Any, Any], Any]:
    """A program of the initial state and the inputs."""

    def body(z: Any, x: Any) -> tuple[Any, Any]:
        z = step(z, x)
        return z, z

    return lambda z0, inputs: scan(body, z0, inputs)[1]


def solver(step: Step, method: Any, batch_ndim: int = 0) -> Callable[[Any, Any], deeppcr.Solution]:
    """A solve, of the same arguments."""
    return lambda z0, inputs: deeppcr.solve(
        deeppcr.Chain(step, inputs), z0, method=method, batch_ndim=batch_ndim
    )


def at_once(step: Step, method: Any, batch_ndim: int = 0) -> Program:
    """The same as `by_loop`, by a method, for a race."""
    solve = solver(step, method, batch_ndim)
    return Program(lambda z0, inputs: solve(z0, inputs).trajectory, solve=jax.jit(solve))
