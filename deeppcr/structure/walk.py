"""The analysis of a program, equation by equation: from the labels of its inputs to its outputs'.

A label is 0 for an element that does not depend on the state, else one of the entries that it may
depend on. All other entries that it may depend on are in the same group: whenever a program
combines elements of two groups, the groups are united. This loses nothing: entries that meet in an
element both influence everything that the element influences.

Unions are vectorised: the higher of each pair of roots is hooked to the lower, and pointers are
doubled until all point to roots (Shiloach and Vishkin, "An O(log n) parallel connectivity
algorithm", 1982).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deeppcr.arrays import combine, partition
from deeppcr.programs.effects import ONLY_NAMES, has_references
from depth import counts
from depth.jaxprs import has_side_effects, interpret, needed, read_by, without_constants
from depth.primitives import primitive

Array = NDArray[Any]
Labels = Array | None  # None: no element depends on the state
AxisPairs = Sequence[tuple[int, int]]  # of an array, and of another one, to which they are moved


class DisjointSets:
    """The entries ``1 .. n`` in disjoint groups, at first one each.

    Attributes:
        parent: for each entry the root of its group, which is the lowest; 0 for 0.
        cause: the current equation, and then those whose programs contain it, inside out.
        joins: how many pairs each cause has joined.
        across_devices: whether a device receives values that depend on states of other devices.
    """

    def __init__(self, entries: int):
        self.parent = np.arange(1 + entries, dtype=np.int32)
        self.cause: tuple[Any, ...] = ()
        self.joins: Counter[tuple[Any, ...]] = Counter()
        self.across_devices = False

    def unite(self, a: Array, b: Array) -> None:
        """Make one group of each pair of labels, none of them 0."""
        a, b = self.parent[a], self.parent[b]
        self.joins[self.cause] += int((a != b).sum())
        while (unequal := a != b).any():
            a, b = a[unequal], b[unequal]
            np.minimum.at(self.parent, np.maximum(a, b), np.minimum(a, b))
            while not np.array_equal(roots := self.parent[self.parent], self.parent):
                self.parent = roots
            a, b = self.parent[a], self.parent[b]

    def combine(self, *labels: Labels, shape: Sequence[int]) -> Labels:
        """The labels of an elementwise operation.

        Each array is a scalar, or has ``shape`` or 1 in place of it.
        """
        arrays = [array for array in labels if array is not None]
        if any(array.ndim not in (0, len(shape)) for array in arrays):
            raise ValueError(f"labels of other shapes for elements of shape {shape}")
        return np.broadcast_to(reduce(self._pair, arrays), tuple(shape)) if arrays else None

    def _pair(self, a: Array, b: Array) -> Array:
        if a is b:
            return a
        a, b = sorted((self.parent[thin(a)], self.parent[thin(b)]), key=np.size)
        met = (a != b) & (a != 0) & (b != 0)
        self.unite(np.broadcast_to(a, met.shape)[met], np.broadcast_to(b, met.shape)[met])
        # If no label of a is 0, the groups of b now are those of a, which has fewer elements.
        return a if a.all() else np.maximum(a, b)

    def move_axes(self, labels: Labels, axes: AxisPairs, ndim: int) -> Labels:
        """Labels, some axes moved to axes of an array of ``ndim``; one label along all others."""
        if labels is None or labels.size == 0:
            return None
        axes = sorted(axes, key=lambda pair: pair[1])
        apart = [before for before, _ in axes]
        together = tuple(counts.other_axes(labels.ndim, apart))
        roots = self.parent[thin(labels)]
        none = len(self.parent)
        first = np.where(roots == 0, none, roots).min(axis=together, keepdims=True)
        first[first == none] = 0
        met = (roots != first) & (roots != 0)
        self.unite(roots[met], np.broadcast_to(first, roots.shape)[met])
        before, after = [1] * labels.ndim, [1] * ndim
        for old, new in axes:
            before[old] = after[new] = labels.shape[old]
        joined: Array = np.broadcast_to(first, before)
        return joined.transpose(*apart, *together).reshape(after)

    def all_of(self, *labels: Labels) -> Labels:
        """One label, a scalar, for all elements of all arrays."""
        flat = [thin(array).reshape(-1) for array in labels if array is not None]
        return self.move_axes(np.concatenate(flat), [], 0) if flat else None


def thin(array: Array) -> Array:
    """The array with size 1 along axes that it was broadcast along: repeats cost nothing."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def filled(labels: Labels, shape: Sequence[int]) -> Array:
    """The labels as an array."""
    return np.broadcast_to(np.int32(0), tuple(shape)) if labels is None else labels


MOST_LABELS = 1 << 24  # elements of an array of labels: a result, or one that depends on the state
ENTERED_KINDS = ("call", "derivative rule", "loop", "branch")  # of programs, which are entered


@dataclass(frozen=True)
class Walk:
    """One analysis.

    Attributes:
        groups: of the entries of the state, which grow during the analysis.
        rules: by name or by kind of primitive; see `LabelRule`.
        derivatives: programs, by equation; see `deeppcr.structure.programs`.
    """

    groups: DisjointSets
    rules: Mapping[str, "LabelRule"]
    derivatives: dict[Any, Any] = field(default_factory=dict)

    def program(
        self, closed: Any, inputs: Sequence[Labels], used: Sequence[bool] | None = None
    ) -> list[Labels]:
        """The labels of the outputs, given those of the inputs.

        None for outputs that are not ``used``.
        """
        jaxpr = without_constants(closed)
        outputs = jaxpr.outvars if used is None else partition(jaxpr.outvars, used)
        # Effects without results, such as printing, are not dependences.
        equations = needed(
            jaxpr,
            (),
            outputs,
            lambda x: has_side_effects(x) and bool(x.outvars or has_references(x)),
        )
        start = dict.fromkeys(jaxpr.constvars) | dict(zip(jaxpr.invars, inputs, strict=True))
        outer = self.groups.cause
        rule = partial(self._follow, outer, read_by(equations, outputs))
        try:  # constants do not depend on the state
            labels = interpret(jaxpr, start, outputs, rule, lambda _: None, equations)
        finally:
            self.groups.cause = outer
        return labels if used is None else combine([None] * len(used), used, labels)

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
        variables: Collection[Any],
        equation: Any,
        operands: list[Labels],
    ) -> list[Labels]:
        """The labels of the results of an equation; ``variables``: those that are read."""
        if not equation.effects and all(labels is None for labels in operands):
            return [None] * len(equation.outvars)
        self.groups.cause = equation, *outer
        properties = primitive(equation)
        visit = Visit(self, equation, operands, [y in variables for y in equation.outvars])
        rule = self.rules.get(equation.primitive.name) or self.rules.get(properties.kind)
        if properties.kind == "call" and not properties.inlines:
            rule = None
        enters = rule is not None and properties.kind in ENTERED_KINDS
        if has_references(equation) or (has_side_effects(equation) and not enters):
            # Values written to a reference, or passed to Python, may be read anywhere.
            return visit.everywhere(self.groups.all_of(self.groups.parent))
        sizes = [x.size for x in operands if x is not None] + [*map(prod, visit.results)]
        if rule is None or (max(sizes, default=0) > MOST_LABELS and not enters):
            return self.unknown(visit)
        with suppress(Exception):  # parameters of another jax, or no derivative that can be traced
            results = rule(visit)
            pairs = zip(results, visit.results, strict=True)
            if all(labels is None or labels.shape == shape for labels, shape in pairs):
                return results
        return self.unknown(visit)


@dataclass(frozen=True)
class Visit:
    """An equation, as passed to a rule.

    Attributes:
        walk: the walk.
        equation: the equation.
        operands: the labels of each operand.
        used: which of the results are needed.
    """

    walk: Walk
    equation: Any
    operands: list[Labels]
    used: list[bool]

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
        return list(map(counts.shape, self.equation.outvars))

    def shape(self, operand: int) -> tuple[int, ...]:
        """The shape of an operand."""
        return tuple(getattr(self.equation.invars[operand].aval, "shape", ()))

    def everywhere(self, label: Labels) -> list[Labels]:
        """Results that depend on all that a label stands for."""
        return self.combined([label] * len(self.results))

    def combined(self, *results: Iterable[Labels]) -> list[Labels]:
        """Results that depend on all that these do, which may be scalars or broadcast."""
        rows = zip(self.results, *results, strict=True)
        return [self.groups.combine(*labels, shape=shape) for shape, *labels in rows]


# The labels of the results of an equation.
LabelRule = Callable[[Visit], list[Labels]]


def _is_collective(equation: Any) -> bool:
    """Whether devices, or examples of a `jax.vmap`, communicate over a named axis."""
    only_named = bool(equation.effects) and not has_side_effects(equation)
    names = bool(counts.named_axes(equation)) and equation.primitive.name not in ONLY_NAMES
    return only_named or names or primitive(equation).kind == "collective"
