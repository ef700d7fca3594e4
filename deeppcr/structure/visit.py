"""What a rule is given: an equation, the labels of its operands, and the walk that it is a step of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deeppcr.structure.groups import Array, Groups, Labels
from deeppcr.structure.known import Known


class Walk(Protocol):
    """The walk through a program and the programs inside it; see `deeppcr.structure.walk`."""

    groups: Groups
    differentiated: bool

    def program(
        self,
        jaxpr: Any,
        inputs: Sequence[Labels],
        known: Known,
        wanted: Sequence[bool] | None = None,
        differentiated: bool = False,
    ) -> list[Labels]:
        """The labels of the outputs, given those of the inputs; None for outputs that are not ``wanted``.

        ``differentiated`` if the program will not be differentiated: it is a derivative, or has one of its own.
        """

    def unknown(self, visit: "Visit") -> list[Labels]:
        """Labels that are right for any primitive."""

    def derivative(self, equation: Any, make: Callable[[Any], Any]) -> Any:
        """``make(equation)``, made once."""


@dataclass(frozen=True)
class Visit:
    """An equation on the walk.

    Attributes:
        walk: the walk.
        equation: the equation.
        operands: the labels of each operand.
        known: the integers known in the program that the equation is part of.
        wanted: which of the results are needed.
    """

    walk: Walk
    equation: Any
    operands: list[Labels]
    known: Known
    wanted: list[bool]

    @property
    def groups(self) -> Groups:
        """The groups found so far."""
        return self.walk.groups

    @property
    def params(self) -> Any:
        """Of the equation."""
        return self.equation.params

    @property
    def results(self) -> list[tuple[int, ...]]:
        """The shape of each result."""
        return [tuple(getattr(variable.aval, "shape", ())) for variable in self.equation.outvars]

    def shape(self, operand: int) -> tuple[int, ...]:
        """The shape of an operand."""
        return tuple(getattr(self.equation.invars[operand].aval, "shape", ()))

    def value(self, operand: int) -> Array | None:
        """The value of an operand that is a known integer."""
        return (
            self.known.value(self.equation.invars[operand])
            if self.operands[operand] is None
            else None
        )


Rule = Callable[[Visit], list[Labels]]
