"""`Structure`: which entries of the state can influence each other, proven from the step's jaxpr.

Every element of every array in the program carries a label, 0 or an entry of the state of the whole
batch (`groups`). The primitives move labels, or join the groups of those that they combine
(`rules`, `indexing`, `programs`). In the end each entry of the next state is in one group with the
entries that it may depend on. A primitive without a rule joins everything that its operands depend
on, so the walk always continues, and "not proven" means larger groups, never an error.

The proof holds for the values of the next state, hence for its derivatives, also for those that
functions define for themselves (`programs`), and for all inputs and captured arrays. The groups
are the connected components of the pattern that sparse Jacobians are compressed by (Griewank and
Walther, "Evaluating Derivatives", 2008, section 7.1).
"""

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from deeppcr.arrays import StateLayout
from deeppcr.chain.step import Step
from deeppcr.structure.programs import PROGRAMS
from deeppcr.structure.rules import RULES
from deeppcr.structure.walk import Array, DisjointSets, LabelRule, Walk, filled
from depth.jaxprs import location

KNOWN: dict[str, LabelRule] = {**RULES, **PROGRAMS}  # by name or by kind of primitive
MIXED = "the examples of a batch may influence each other"
HERE = os.path.dirname(__file__) + os.sep


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """Which entries of the state can influence each other. Printed, one line.

    Attributes:
        lowest: the lowest entry of the group of each entry of an example.
        mixes: an example of a batch may influence another.
        separate: none can, nor can another device.
        mixed_by: the operation that joined most entries, and its line; "" if elementwise.
    """

    lowest: Array
    mixes: bool
    separate: bool
    mixed_by: str

    @cached_property
    def groups(self) -> Array:
        """int32 ``[m, k]``, entries of the state as one vector (`StateLayout.flatten`).

        Entries in different rows do not influence each other. Every entry is in one row; rows are
        padded by -1. k is the size of the largest group, and smaller ones may share a row: they are
        packed by size, the largest first. Rows are ordered by their first entry.
        """
        order = np.argsort(self.lowest, kind="stable")
        starts = np.flatnonzero(np.diff(self.lowest[order], prepend=-1))
        sizes = np.diff(starts, append=len(order))
        size = int(sizes.max(initial=1))
        if (sizes == size).all():
            return order.reshape(-1, size).astype(np.int32)
        rows: list[list[int]] = []
        for group in sorted(np.split(order, starts[1:]), key=len, reverse=True):
            if not rows or len(rows[-1]) + len(group) > size:
                rows.append([])
            rows[-1].extend(group.tolist())
        rows.sort(key=min)
        return np.array([row + [-1] * (size - len(row)) for row in rows], np.int32)

    @property
    def kind(self) -> str:
        """ "elementwise", "block-diagonal" or "dense"."""
        size = self.groups.shape[1]
        if size <= 1:
            return "elementwise"
        return "dense" if size == len(self.lowest) else "block-diagonal"

    def __str__(self) -> str:
        rows, size = self.groups.shape
        up_to = "up to " if (self.groups < 0).any() else ""
        what = {
            "elementwise": "no entry of the state reaches another",
            "block-diagonal": f"{rows} groups of {up_to}{size} entries, by {self.mixed_by}",
            "dense": f"all {size} entries are one group, by {self.mixed_by}",
        }[self.kind]
        return f"{self.kind}: {what}" + ("" if self.separate else f"; {MIXED}")


def find_structure(step: Step, layout: StateLayout) -> Structure:
    """What the program of ``step`` proves about a state with this ``layout``.

    Computed once for each step.
    """
    if step.example is not None:  # `jax.vmap` keeps examples separate
        one = dataclasses.replace(layout, batch_shape=layout.batch_shape[1:])
        return find_structure(step.example, one)
    if layout not in step.memory:
        step.memory[layout] = _connect(step, layout)
    structure: Structure = step.memory[layout]
    return structure


def _connect(step: Step, layout: StateLayout) -> Structure:
    """The structure of a step, by its program."""
    size, width = layout.batch_size, layout.width
    if size * width == 0:
        return Structure(np.arange(width), False, True, "")
    groups = DisjointSets(size * width)
    entries = groups.parent[1:].reshape(size, width).copy()
    leaves = np.split(entries, np.cumsum(layout.sizes)[:-1], axis=1)
    before = [
        leaf.reshape((*layout.batch_shape, *shape))
        for leaf, shape in zip(leaves, layout.shapes, strict=True)
    ]
    program = step.jaxpr._replace(outvars=step.jaxpr.outvars[: step.states])
    after = Walk(groups, KNOWN).program(program, [*before, *[None] * step.inputs])
    for old, new in zip(before, after, strict=True):
        labels = filled(new, old.shape)
        groups.unite(old[labels != 0], labels[labels != 0])
    # Of the root of each entry, which is the lowest of its group and an entry of an example.
    example, entry = np.divmod(groups.parent[entries] - 1, width)
    mixes = bool((example != np.arange(size)[:, None]).any())
    of_one = DisjointSets(width)  # by all that was joined in any example
    of_one.unite(np.broadcast_to(np.arange(1, 1 + width), entry.shape), entry + 1)
    lowest = of_one.parent[1:] - 1
    mixed_by = "" if (lowest == np.arange(width)).all() else _name(groups.joins)
    return Structure(lowest, mixes, not (mixes or groups.across_devices), mixed_by)


def _name(joins: Mapping[tuple[Any, ...], int]) -> str:
    """The primitive that joined most entries, and the line of the user's program."""
    cause = max(joins, key=joins.__getitem__)
    if not cause:
        return "moving to other places"
    name = str(cause[0].primitive.name)
    for equation in cause:
        line = location(equation)
        if line.line and not line.file.startswith(HERE):
            return f"{name} ({os.path.basename(line.file)}:{line.line})"
    return name
