"""Which method and which adjoint pay off: a first, simple rule, made from measurements.

`python -m experiments gradients` makes the figures that `choose_adjoint` is read off.
"""

from typing import Any

import jax

from deeppcr.adjoint import Autodiff
from deeppcr.chain import Problem
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction, Recurrence, find_solver
from deeppcr.newton import Newton
from deeppcr.propagate import Adjoint, ByBlocks, StepByStep
from deeppcr.sequential import Sequential

Method = Sequential | Newton

METHODS: dict[str, Method] = {
    "sequential": Sequential(),
    "newton": Newton(),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}


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


def find_adjoint(adjoint: Any) -> Adjoint | Autodiff | None:
    """The adjoint of that name; None for "auto"."""
    if isinstance(adjoint, LinearSolver):
        return ByBlocks(adjoint)
    names = ["auto", "autodiff", *SOLVERS]
    if not isinstance(adjoint, str):
        raise TypeError(f"adjoint is {adjoint!r}, expected a linear solver such as Recurrence(), or one of {names}.")
    if adjoint not in names:
        raise ValueError(f"adjoint is {adjoint!r}, expected one of {names}, or a linear solver such as Recurrence().")
    own: dict[str, Adjoint | Autodiff | None] = {"auto": None, "autodiff": Autodiff(), "sequential": StepByStep()}
    return own[adjoint] if adjoint in own else ByBlocks(find_solver(adjoint))


def choose_adjoint(adjoint: Adjoint | Autodiff | None, method: Method, problem: Problem) -> Adjoint | Autodiff:
    """What `find_adjoint` found, or for "auto" what is fastest for a chain of these shapes on the default device.

    Measured on two CPU cores: speedup over the gradient of `jax.lax.scan`, by blocks / step by step, w entries, B examples.

        GRU, shared weights     w=4: B=1 5.8/1.6, B=8 2.7/1.2, B=64 1.2/0.9    w=16: 2.3/1.3, 1.3/0.9, 0.7/0.4    w=64: 0.8/0.9 ..
        layers, own weights     w=4: B=1 0.7/0.6, B=8 2.5/1.3, B=64 1.5/1.1    w=16: 1.9/1.5, 0.8/1.3, 0.3/0.8    w=64: 0.2/0.2 ..

    Nothing has been measured on accelerators: there, the blocks of narrow states are taken, since one solve of logarithmic depth
    stands against L dependent steps of several kernels each.
    """
    if problem.step.has_custom_vjp:
        return Autodiff()
    if adjoint is not None:
        return adjoint
    width, batch = problem.layout.width, problem.layout.examples
    rest = Autodiff() if isinstance(method, Sequential) else StepByStep()
    if jax.default_backend() != "cpu":
        return ByBlocks(ParallelCyclicReduction()) if width <= 64 and problem.length >= 64 else rest
    blocks = width * width * batch
    shared_weights = sum(c.size for c in problem.captured) >= width * width
    if shared_weights:
        return ByBlocks(Recurrence()) if blocks <= 2048 else rest
    return ByBlocks(Recurrence()) if 16 < blocks <= 512 else rest
