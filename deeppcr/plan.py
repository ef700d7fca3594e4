"""Which method and which adjoint pay off: a first, simple rule, made from measurements.

`python -m experiments gradients` makes the figures that `choose_adjoint` is read off.
"""

import dataclasses
from typing import Any

import jax

from deeppcr.adjoint import Adjoint, Autodiff, Propagation, StepByStep
from deeppcr.chain import Problem
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.structure import find_structure

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


Wanted = Adjoint | StepByStep | Autodiff | None
"""An adjoint as it is asked for; None for "auto"."""


def find_adjoint(adjoint: Any) -> Wanted:
    """The adjoint of that name; None for "auto"."""
    if isinstance(adjoint, Adjoint):
        return adjoint
    if isinstance(adjoint, LinearSolver):
        return Adjoint(linear=adjoint)
    names = [*SOLVERS, "autodiff"]
    if not isinstance(adjoint, str):
        raise TypeError(
            f"adjoint is {adjoint!r}, expected Adjoint(...), a linear solver such as Recurrence(), or one of {names}."
        )
    if adjoint not in names:
        raise ValueError(
            f"adjoint is {adjoint!r}, expected one of {names}, Adjoint(...) or a linear solver such as Recurrence()."
        )
    own: dict[str, Wanted] = {"auto": None, "autodiff": Autodiff(), "sequential": StepByStep()}
    return own[adjoint] if adjoint in own else Adjoint(linear=adjoint)


def choose_adjoint(adjoint: Wanted, method: Method, problem: Problem) -> Propagation | Autodiff:
    """What `find_adjoint` found, or for "auto" what is fastest for a chain of these shapes on the default device.

    Measured on two CPU cores: speedup over the gradient of `jax.lax.scan`, by blocks / step by step, w entries, B examples.

        GRU, shared weights     w=4: B=1 5.8/1.6, B=8 2.7/1.2, B=64 1.2/0.9    w=16: 2.3/1.3, 1.3/0.9, 0.7/0.4    w=64: 0.8/0.9 ..
        layers, own weights     w=4: B=1 0.7/0.6, B=8 2.5/1.3, B=64 1.5/1.1    w=16: 1.9/1.5, 0.8/1.3, 0.3/0.8    w=64: 0.2/0.2 ..

    Nothing has been measured on accelerators: there, the blocks of narrow states are taken, since one solve of logarithmic depth
    stands against L dependent steps of several kernels each.
    """
    if problem.step.has_custom_vjp:
        return Autodiff()
    if adjoint is None:
        adjoint = _fastest(method, problem)
    if not isinstance(adjoint, Adjoint):
        return adjoint
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(problem)


def _fastest(method: Method, problem: Problem) -> Adjoint | StepByStep | Autodiff:
    rest = Autodiff() if isinstance(method, Sequential) else StepByStep()
    groups = find_structure(problem.step, problem.layout).groups
    entries = groups.size * groups.shape[1]  # of the exact Jacobian, in its narrowest form
    if jax.default_backend() != "cpu":
        cheap = entries <= 64**2 or (isinstance(method, Newton) and method.linearize != "auto")
        return Adjoint(linear="pcr") if cheap and problem.length >= 64 else rest
    blocks = entries * problem.layout.examples
    shared_weights = sum(c.size for c in problem.captured) >= problem.layout.width**2
    if shared_weights:
        return Adjoint(linear="sequential") if blocks <= 2048 else rest
    return Adjoint(linear="sequential") if 16 < blocks <= 512 else rest
