"""Which method and which adjoint pay off: a first, simple rule, made from measurements.

`python -m experiments gradients` makes the figures that `choose_adjoint` is read off.
"""

from typing import Any

import jax
import numpy as np

from deeppcr.adjoint import Adjoint, ByBlocks, StepByStep
from deeppcr.chain import StateLayout
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction, Recurrence, find_solver
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential

Method = Sequential | Newton

METHODS: dict[str, Method] = {
    "sequential": Sequential(),
    "newton": Newton(),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}
AUTODIFF = "autodiff"  # leave it to jax: only for a sequential forward pass


def find_method(method: Any) -> Method:
    """The method of that name; "auto" is the sequential one, for now on every device."""
    if isinstance(method, Method):
        return method
    names = ["auto", *METHODS]
    if not isinstance(method, str):
        raise TypeError(f"method is {method!r}, expected Sequential(), Newton(...) or one of {names}.")
    if method not in names:
        raise ValueError(f"method is {method!r}, expected one of {names}, Sequential() or Newton(...).")
    return METHODS["sequential" if method == "auto" else method]


def find_adjoint(adjoint: Any, method: Method) -> Adjoint | str:
    """The adjoint of that name; "auto" and "autodiff" are left as they are."""
    if isinstance(adjoint, LinearSolver):
        return ByBlocks(adjoint)
    names = ["auto", AUTODIFF, *SOLVERS]
    if not isinstance(adjoint, str):
        raise TypeError(f"adjoint is {adjoint!r}, expected a linear solver such as Recurrence(), or one of {names}.")
    if adjoint == AUTODIFF and not isinstance(method, Sequential):
        raise ValueError('adjoint is "autodiff", which differentiates the sequential program: it needs method="sequential".')
    if adjoint in ("auto", AUTODIFF):
        return adjoint
    if adjoint == "sequential":
        return StepByStep()
    if adjoint not in names:
        raise ValueError(f"adjoint is {adjoint!r}, expected one of {names}, or a linear solver such as Recurrence().")
    return ByBlocks(find_solver(adjoint))


def choose_adjoint(adjoint: Adjoint | str, method: Method, layout: StateLayout, length: int) -> Adjoint | str:
    """What `find_adjoint` found, or for "auto" what is fastest for states of this shape on the default device."""
    if adjoint != "auto":
        return adjoint
    width, batch = layout.width, int(np.prod(layout.batch_shape, dtype=int))
    if jax.default_backend() == "cpu":
        return ByBlocks(Recurrence()) if width * width * batch <= 2048 else StepByStep()
    return ByBlocks(ParallelCyclicReduction()) if width <= 64 and length >= 64 else StepByStep()
