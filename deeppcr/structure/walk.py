"""The analysis of a program.

Equation by equation, from the labels of its inputs to those of its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from deeppcr.programs.effects import LOCAL
from deeppcr.structure.groups import Groups, Labels
from depth.counts import named_axes
from depth.jaxprs import has_side_effects, is_literal, is_reference, needed
from depth.primitives import primitive

LARGEST = 1 << 24  # elements of an array of labels
HOLDERS = ("call", "derivative rule", "loop", "branch")  # of programs, which are entered


@dataclass(frozen=True, eq=False)
class Cause:
    """The current equation, and the one whose program contains it."""

    equation: Any
    outer: Any


class Walk:
    """One analysis.

    Attributes:
        groups: of the entries of the state, which grow during the analysis.
        rules: by name or by kind of primitive; see `Rule`.
        differentiated: whether the program is a derivative already.
        across_devices: whether a device receives values that depend on states of other devices.
        derivatives: see `deeppcr.structure.programs`.
    """

    def __init__(self, groups: Groups, rules: Mapping[str, "Rule"]):
        self.groups = groups
        self.rules = rules
        self.differentiated = False
        self.across_devices = False
        self.derivatives: dict[int, Any] = {}

    def program(
        self,
        jaxpr: Any,
        inputs: Sequence[Labels],
        wanted: Sequence[bool] | None = None,
        differentiated: bool = False,
    ) -> list[Labels]:
        """The labels of the outputs, given those of the inputs.

        None for outputs that are not ``wanted``.

        ``differentiated`` if the program will not be differentiated: it is a derivative, or has one
        of its own.
        """
        wants = [True] * len(jaxpr.outvars) if wanted is None else wanted
        outputs = [atom for atom, want in zip(jaxpr.outvars, wants, strict=True) if want]
        equations, used = live(jaxpr, outputs)
        found: dict[Any, Labels] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Labels:  # constants do not depend on the state
            return None if is_literal(atom) else found.get(atom)

        outer, was = self.groups.cause, self.differentiated
        self.differentiated = was or differentiated
        for equation in equations:
            operands = [read(atom) for atom in equation.invars]
            if equation.effects or any(labels is not None for labels in operands):
                self.groups.cause = Cause(equation, outer)
                of_use = [variable in used for variable in equation.outvars]
                visit = Visit(self, equation, operands, of_use)
                found.update(zip(equation.outvars, self._follow(visit), strict=True))
        self.groups.cause, self.differentiated = outer, was
        return [
            read(atom) if want else None for atom, want in zip(jaxpr.outvars, wants, strict=True)
        ]

    def unknown(self, visit: "Visit") -> list[Labels]:
        """Labels that are valid for any primitive.

        Every result depends on everything that any operand depends on.
        """
        label = self.groups.all_of(*visit.operands)
        self.across_devices |= label is not None and _is_collective(visit.equation)
        return _everywhere(visit, label)

    def _follow(self, visit: "Visit") -> list[Labels]:
        equation, known = visit.equation, primitive(visit.equation)
        rule = self.rules.get(equation.primitive.name) or self.rules.get(known.kind)
        if known.kind == "call" and not known.inlines:
            rule = None
        enters = rule is not None and known.kind in HOLDERS
        if has_references(equation) or (has_side_effects(equation) and not enters):
            # Values written to a reference, or passed to Python, may be read anywhere.
            return _everywhere(visit, self.groups.all_of(self.groups.parent))
        sizes = [
            *map(prod, visit.results),
            *(labels.size for labels in visit.operands if labels is not None),
        ]
        if rule is None or (max(sizes, default=0) > LARGEST and not enters):
            return self.unknown(visit)
        was = self.differentiated, self.groups.cause
        try:
            results = rule(visit)
            if all(
                labels is None or labels.shape == shape
                for labels, shape in zip(results, visit.results, strict=True)
            ):
                return results
        except Exception:  # parameters of another jax, or a derivative that cannot be traced
            self.differentiated, self.groups.cause = was
        return self.unknown(visit)


@dataclass(frozen=True)
class Visit:
    """An equation, as passed to a rule.

    Attributes:
        walk: the walk.
        equation: the equation.
        operands: the labels of each operand.
        wanted: which of the results are needed.
    """

    walk: Walk
    equation: Any
    operands: list[Labels]
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


# The labels of the results of an equation.
Rule = Callable[[Visit], list[Labels]]


def live(jaxpr: Any, outputs: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that ``outputs`` depend on, in order, and all variables that are read.

    Effects without results, such as printing, are not dependences.
    """
    equations = needed(jaxpr, (), outputs, _hands_back)
    atoms = [*outputs, *(atom for equation in equations for atom in equation.invars)]
    return equations, {atom for atom in atoms if not is_literal(atom)}


def _hands_back(equation: Any) -> bool:
    return has_side_effects(equation) and bool(equation.outvars or has_references(equation))


def has_references(equation: Any) -> bool:
    """Whether an equation works on mutable arrays."""
    return any(map(is_reference, (*equation.invars, *equation.outvars)))


def _is_collective(equation: Any) -> bool:
    """Whether devices, or examples of a `jax.vmap`, communicate over a named axis."""
    only_named = bool(equation.effects) and not has_side_effects(equation)
    names = bool(named_axes(equation)) and equation.primitive.name not in LOCAL
    return only_named or names or primitive(equation).kind == "collective"


def _everywhere(visit: Visit, label: Labels) -> list[Labels]:
    return [None if label is None else np.broadcast_to(label, shape) for shape in visit.results]
