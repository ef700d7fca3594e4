"""Methods and adjoints by name."""

from typing import Any

from deeppcr.adjoint import Adjoint, Autodiff, StepByStep
from deeppcr.checks import check_name
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential

Method = Sequential | Newton

METHODS: dict[str, Method] = {
    "sequential": Sequential(),
    "newton": Newton(),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}

Wanted = Adjoint | StepByStep | Autodiff | None
"""An adjoint as it is asked for; None for "auto"."""


def find_method(method: Any) -> Method | None:
    """The method itself, or the one of that name; None for "auto"."""
    if isinstance(method, Method):
        return method
    check_name("method", method, ["auto", *METHODS], "Sequential(), Newton(...)")
    return METHODS.get(method)


def find_adjoint(adjoint: Any) -> Wanted:
    """The adjoint itself, or the one of that name; None for "auto"."""
    if isinstance(adjoint, Adjoint | StepByStep | Autodiff):
        return adjoint
    if isinstance(adjoint, LinearSolver):
        return Adjoint(linear=adjoint)
    check_name(
        "adjoint",
        adjoint,
        [*SOLVERS, "autodiff"],
        "Adjoint(...), a linear solver such as Recurrence()",
    )
    own: dict[str, Wanted] = {"auto": None, "autodiff": Autodiff(), "sequential": StepByStep()}
    return own[adjoint] if adjoint in own else Adjoint(linear=adjoint)
