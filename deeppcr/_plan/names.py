"""Methods and adjoints by name, and `Auto`."""

import dataclasses
from typing import Any, Literal

from jax.sharding import NamedSharding

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.checks import check_name, suggests_keywords
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.newton import Newton
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess
from deeppcr.progress import Progress
from deeppcr.sequential import Sequential


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Auto:
    """The method that is predicted to be the fastest; "auto" is ``Auto()``.

    The attributes are options of `Newton` and `Sequential`, which apply if that method is chosen.
    They do not influence the choice.

    Attributes:
        initial_guess: as in `Newton`.
        damping: as in `Newton`; None by default: "auto" takes Newton's method if plain iterations
            are expected to converge.
        window: as in `Newton`.
        sharding: as in `Newton`.
        progress: as in `Newton` and `Sequential`: also what "auto" runs step by step is reported.
        unroll: as in `Sequential`; None: what is predicted to be the fastest.

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
    damping: TrustRegion | Literal["auto"] | None = None
    window: int | None = None
    sharding: NamedSharding | None = None
    progress: Progress = None
    unroll: int | None = None

    def __post_init__(self) -> None:
        self.with_options(Newton())  # which checks them

    def with_options(self, method: "Fixed") -> "Fixed":
        """The chosen method, with those options that it has."""
        names = {field.name for field in dataclasses.fields(method)}
        own = [field.name for field in dataclasses.fields(self) if field.name in names]
        own = [name for name in own if name != "unroll" or self.unroll is not None]
        return dataclasses.replace(method, **{name: getattr(self, name) for name in own})


Fixed = Sequential | Newton
Method = Sequential | Newton | Auto

METHODS: dict[str, Method] = {
    "auto": Auto(),
    "sequential": Sequential(),
    "newton": Newton(),
    "picard": Newton(linearize="identity"),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}

Wanted = Adjoint | Backpropagation | Autodiff | None
"""An adjoint as requested; None for "auto"."""

ADJOINTS: dict[str, Wanted] = {
    "auto": None,
    "autodiff": Autodiff(),
    "backprop": Backpropagation(),
    **{name: Adjoint(linear=name) for name in SOLVERS if name != "auto"},
}


def find_method(method: Any) -> Method:
    """The method itself, or the one of that name."""
    if isinstance(method, Method):
        return method
    check_name("method", method, METHODS, "Sequential(), Newton(...), Auto(...)")
    return METHODS[method]


def find_adjoint(adjoint: Any) -> Wanted:
    """The adjoint itself, or the one of that name; None for "auto"."""
    if isinstance(adjoint, Adjoint | Backpropagation | Autodiff):
        return adjoint
    if isinstance(adjoint, LinearSolver):
        return Adjoint(linear=adjoint)
    check_name("adjoint", adjoint, ADJOINTS, "Adjoint(...), a linear solver such as Recurrence()")
    return ADJOINTS[adjoint]
