"""The analysis of a program.

Equation by equation, from the labels of its inputs to those of its outputs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from deeppcr.arrays.partition import combine, partition
from deeppcr.programs.effects import LOCAL, has_references
from deeppcr.structure.groups import DisjointSets, Labels
from depth import counts
from depth.jaxprs import has_side_effects, interpret, needed, read_by, without_constants
from depth.primitives import primitive

LARGEST = 1 << 24  # elements of an array of labels: a result, or one that depends on the state
HOLDERS = ("call", "derivative rule", "loop", "branch")  # of programs, which are entered


@dataclass(frozen=True)
class Walk:
    """One analysis.

    Attributes:
        groups: of the entries of the state, which grow during the analysis.
        rules: by name or by kind of primitive; see `Rule`.
        derivatives: programs, by equation; see `deeppcr.structure.programs`.
    """

    groups: DisjointSets
    rules: Mapping[str, "Rule"]
    derivatives: dict[Any, Any] = field(default_factory=dict)

    def program(
        self, closed: Any, inputs: Sequence[Labels], wanted: Sequence[bool] | None = None
    ) -> list[Labels]:
        """The labels of the outputs, given those of the inputs.

        None for outputs that are not ``wanted``.
        """
        jaxpr = without_constants(closed)
        outputs = jaxpr.outvars if wanted is None else partition(jaxpr.outvars, wanted)
        # Effects without results, such as printing, are not dependences.
        equations = needed(jaxpr, (), outputs, _hands_back)
        start = dict.fromkeys(jaxpr.constvars) | dict(zip(jaxpr.invars, inputs, strict=True))
        outer = self.groups.cause
        rule = partial(self._follow, outer, read_by(equations, outputs))
        try:  # constants do not depend on the state
            labels = interpret(jaxpr, start, outputs, rule, lambda _: None, equations)
        finally:
            self.groups.cause = outer
        return labels if wanted is None else combine([None] * len(wanted), wanted, labels)

    def unknown(self, visit: "Visit") -> list[Labels]:
        """Labels that are valid for any primitive.

        Every result depends on everything that any operand depends on.
        """
        label = self.groups.all_of(*visit.operands)
        self.groups.across_devices |= label is not None and _is_collective(visit.equation)
        return visit.everywhere(label)

    def _follow(
        self,
        outer: tuple[Any, ...],
        used: Collection[Any],
        equation: Any,
        operands: list[Labels],
    ) -> list[Labels]:
        """The labels of the results of an equation; ``used``: the variables that are read."""
        if not equation.effects and all(labels is None for labels in operands):
            return [None] * len(equation.outvars)
        self.groups.cause, properties = (equation, *outer), primitive(equation)
        visit = Visit(self, equation, operands, [y in used for y in equation.outvars])
        rule = self.rules.get(equation.primitive.name) or self.rules.get(properties.kind)
        if properties.kind == "call" and not properties.inlines:
            rule = None
        enters = rule is not None and properties.kind in HOLDERS
        if has_references(equation) or (has_side_effects(equation) and not enters):
            # Values written to a reference, or passed to Python, may be read anywhere.
            return visit.everywhere(self.groups.all_of(self.groups.parent))
        sizes = [x.size for x in operands if x is not None] + [*map(prod, visit.results)]
        if rule is None or (max(sizes, default=0) > LARGEST and not enters):
            return self.unknown(visit)
        with suppress(Exception):  # parameters of another jax, or no derivative that can be traced
            results = rule(visit)
            each = zip(results, visit.results, strict=True)
            if all(labels is None or labels.shape == shape for labels, shape in each):
                return results
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
    def groups(self) -> DisjointSets:
        """Those of the walk."""
        return self.walk.groups

    @property
    def params(self) -> Any:
        """Of the equation."""
        return self.equation.params

    @property
    def results(self) -> list[tuple[int, ...]]:
        """The shape of each result."""
        return [counts.shape(variable) for variable in self.equation.outvars]

    def shape(self, operand: int) -> tuple[int, ...]:
        """The shape of an operand."""
        return tuple(getattr(self.equation.invars[operand].aval, "shape", ()))

    def everywhere(self, label: Labels) -> list[Labels]:
        """Results that depend on all that a label stands for."""
        return self.combined([label] * len(self.results))

    def combined(self, *results: Iterable[Labels]) -> list[Labels]:
        """Results that depend on all that these do, which may be scalars or broadcast."""
        each = zip(self.results, *results, strict=True)
        return [self.groups.combine(*labels, shape=shape) for shape, *labels in each]


# The labels of the results of an equation.
Rule = Callable[[Visit], list[Labels]]


def _hands_back(equation: Any) -> bool:
    return has_side_effects(equation) and bool(equation.outvars or has_references(equation))


def _is_collective(equation: Any) -> bool:
    """Whether devices, or examples of a `jax.vmap`, communicate over a named axis."""
    only_named = bool(equation.effects) and not has_side_effects(equation)
    names = bool(counts.named_axes(equation)) and equation.primitive.name not in LOCAL
    return only_named or names or primitive(equation).kind == "collective"
