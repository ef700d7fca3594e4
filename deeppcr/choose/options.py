"""Methods and adjoints as a user names them: objects, or strings."""

import dataclasses
from typing import Any

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.checks import check_name, option_tree
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.newton import Newton
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess
from deeppcr.progress import Progress
from deeppcr.sequential import Sequential


@option_tree("initial_guess")
@dataclasses.dataclass(frozen=True)
class Auto:
    """The method that a rule takes for the chain and the platform; "auto" is ``Auto()``.

    The attributes are options of `Newton` and `Sequential`, for where that method is chosen. As
    `Newton`, a pytree of the arrays among them.

    Attributes:
        initial_guess: as in `Newton`.
        damping: as in `Newton`.
        window: as in `Newton`.
        progress: as in `Newton` and `Sequential`: also what "auto" runs step by step is reported.
        unroll: as in `Sequential`; None: what the rule takes.

    Raises:
        TypeError: an option has a wrong type.
        ValueError: a name is unknown, or a number is out of range.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> method = deeppcr.Auto(damping=deeppcr.TrustRegion())
        >>> bool(deeppcr.solve(chain, jnp.array(0.5), method=method).converged)
        True
    """

    initial_guess: Guess = "apply"
    damping: TrustRegion | None = None
    window: int | None = None
    progress: Progress = None
    unroll: int | None = None

    def __post_init__(self) -> None:
        self.with_options(Newton())  # which checks them

    def with_options(self, method: "Method") -> "Method":
        """The chosen method, with those options that it has."""
        options = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not field.default and hasattr(method, field.name)
        }
        return dataclasses.replace(method, **options) if options else method


Method = Sequential | Newton
MethodOption = Sequential | Newton | Auto
"""A method as requested."""

METHODS: dict[str, MethodOption] = {
    "auto": Auto(),
    "sequential": Sequential(),
    "newton": Newton(),
    "picard": Newton(linearize="identity"),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}

AdjointOption = Adjoint | Backpropagation | Autodiff | None
"""An adjoint as requested; None for "auto"."""

ADJOINTS: dict[str, AdjointOption] = {
    "auto": None,
    "autodiff": Autodiff(),
    "backprop": Backpropagation(),
    **{name: Adjoint(linear=name) for name in SOLVERS if name != "auto"},
}


def find_method(method: Any) -> MethodOption:
    """The method itself, or the one of that name."""
    if isinstance(method, MethodOption):
        return method
    check_name("method", method, METHODS, "Sequential(), Newton(...), Auto(...)")
    return METHODS[method]


def find_adjoint(adjoint: Any) -> AdjointOption:
    """The adjoint itself, or the one of that name; None for "auto"."""
    if isinstance(adjoint, Adjoint | Backpropagation | Autodiff):
        return adjoint
    if isinstance(adjoint, LinearSolver):
        return Adjoint(linear=adjoint)
    check_name("adjoint", adjoint, ADJOINTS, "Adjoint(...), a linear solver such as Recurrence()")
    return ADJOINTS[adjoint]
