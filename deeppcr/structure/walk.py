"""The walk through a program: equation by equation, from the labels of its inputs to those of its outputs."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from deeppcr.jaxprs import is_literal
from deeppcr.structure.control import CONTROL, has_references, is_collective, live
from deeppcr.structure.groups import Groups, Labels
from deeppcr.structure.indexing import INDEXING
from deeppcr.structure.known import Known
from deeppcr.structure.rules import LARGEST, RULES
from deeppcr.structure.visit import Rule, Visit


class Cause(NamedTuple):
    """The equation at work, and the one that holds its program."""

    equation: Any
    outer: Any


class Walk:
    """One analysis.

    Attributes:
        groups: of the entries of the state, which grow on the way.
        differentiated: whether what is walked is a derivative already.
        across_devices: whether a device gets from others what depends on their states.
    """

    def __init__(self, groups: Groups):
        self.groups = groups
        self.differentiated = False
        self.across_devices = False
        self._derivatives: dict[tuple[int, Any], Any] = {}

    def program(
        self,
        jaxpr: Any,
        inputs: Sequence[Labels],
        known: Known,
        wanted: Sequence[bool] | None = None,
        differentiated: bool = False,
    ) -> list[Labels]:
        """The labels of the outputs, given those of the inputs; None for outputs that are not ``wanted``."""
        wants = [True] * len(jaxpr.outvars) if wanted is None else wanted
        outputs = [atom for atom, want in zip(jaxpr.outvars, wants, strict=True) if want]
        equations, used = live(jaxpr, outputs)
        found: dict[Any, Labels] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Labels:
            return (
                None if is_literal(atom) else found.get(atom)
            )  # constants do not depend on the state

        outer, was = self.groups.cause, self.differentiated
        self.differentiated = was or differentiated
        for equation in equations:
            operands = [read(atom) for atom in equation.invars]
            if equation.effects or any(labels is not None for labels in operands):
                self.groups.cause = Cause(equation, outer)
                visit = Visit(
                    self,
                    equation,
                    operands,
                    known,
                    [variable in used for variable in equation.outvars],
                )
                found.update(zip(equation.outvars, self._follow(visit), strict=True))
        self.groups.cause, self.differentiated = outer, was
        return [
            read(atom) if want else None for atom, want in zip(jaxpr.outvars, wants, strict=True)
        ]

    def unknown(self, visit: Visit) -> list[Labels]:
        """Labels that are right for any primitive: every result depends on all that any operand depends on."""
        label = self.groups.all_of(*visit.operands)
        self.across_devices |= label is not None and is_collective(visit.equation)
        return _everywhere(visit, label)

    def derivative(self, equation: Any, make: Callable[[Any], Any]) -> Any:
        """``make(equation)``, made once."""
        key = id(equation), make
        if key not in self._derivatives:
            self._derivatives[key] = make(equation)
        return self._derivatives[key]

    def _follow(self, visit: Visit) -> list[Labels]:
        equation = visit.equation
        name = equation.primitive.name
        if has_references(equation) or (
            equation.effects and name not in CONTROL and not is_collective(equation)
        ):
            # What is written to a reference, or handed to Python, may come back anywhere.
            return _everywhere(visit, self.groups.all_of(self.groups.parent))
        sizes = [
            *map(prod, visit.results),
            *(labels.size for labels in visit.operands if labels is not None),
        ]
        large = max(sizes, default=0) > LARGEST and name not in CONTROL
        rule: Rule = self.unknown if large else KNOWN.get(name, self.unknown)
        was = self.differentiated, self.groups.cause
        try:
            results = rule(visit)
            if all(
                labels is None or labels.shape == shape
                for labels, shape in zip(results, visit.results, strict=True)
            ):
                return results
        except Exception:  # a primitive with other parameters than those known here, or a derivative that cannot be traced
            self.differentiated, self.groups.cause = was
        return self.unknown(visit)


def _everywhere(visit: Visit, label: Labels) -> list[Labels]:
    return [None if label is None else np.broadcast_to(label, shape) for shape in visit.results]


KNOWN: dict[str, Rule] = {**RULES, **INDEXING, **CONTROL}
