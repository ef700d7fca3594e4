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
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from deeppcr.arrays.state import StateLayout
from deeppcr.chain.step import Step
from deeppcr.structure.groups import Array, Groups, filled
from deeppcr.structure.indexing import INDEXING
from deeppcr.structure.programs import PROGRAMS
from deeppcr.structure.rules import RULES
from deeppcr.structure.walk import Rule, Walk
from depth.jaxprs import location

KNOWN: dict[str, Rule] = {**RULES, **INDEXING, **PROGRAMS}  # by name or by kind of primitive
MIXED = "the examples of a batch may influence each other"
HERE = os.path.dirname(__file__) + os.sep


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """Which entries of the state can influence each other. Printed, one line.

    Attributes:
        groups: int32 ``[m, k]``, entries of the state as one vector (`StateLayout.flatten`).
            Entries in different rows do not influence each other. Every entry is in one row; rows
            are padded by -1. k is the size of the largest group, and smaller ones may share a row.
        mixes: an example of a batch may influence another.
        separate: none can, nor can another device.
        mixed_by: the operation that joined most entries, and its line; "" if elementwise.
    """

    groups: Array
    mixes: bool
    separate: bool
    mixed_by: str

    @property
    def width(self) -> int:
        """w, the number of entries."""
        return int((self.groups >= 0).sum())

    @property
    def kind(self) -> str:
        """ "elementwise", "block-diagonal" or "dense"."""
        size = self.groups.shape[1]
        if size <= 1:
            return "elementwise"
        return "dense" if size == self.width else "block-diagonal"

    def __str__(self) -> str:
        rows, size = self.groups.shape
        up_to = "up to " if (self.groups < 0).any() else ""
        what = {
            "elementwise": "no entry of the state reaches another",
            "block-diagonal": f"{rows} groups of {up_to}{size} entries, by {self.mixed_by}",
            "dense": f"all {size} entries are one group, by {self.mixed_by}",
        }[self.kind]
        return f"{self.kind}: {what}" + ("" if self.separate else f"; {MIXED}")


_FOUND: WeakKeyDictionary[Step, dict[StateLayout, Structure]] = WeakKeyDictionary()


def find_structure(step: Step, layout: StateLayout) -> Structure:
    """What the program of ``step`` proves about a state with this ``layout``.

    Computed once for each step.
    """
    found = _FOUND.setdefault(step, {})
    if layout not in found and step.example is not None:  # `jax.vmap` keeps examples separate
        one = dataclasses.replace(layout, batch_shape=layout.batch_shape[1:])
        found[layout] = find_structure(step.example, one)
    if layout not in found:
        lowest, mixes, separate, mixed_by = connect(step, layout)
        found[layout] = Structure(_rows(lowest), mixes, separate, mixed_by)
    return found[layout]


def connect(step: Step, layout: StateLayout) -> tuple[Array, bool, bool, str]:
    """The lowest entry of each entry's group, and what else a `Structure` has."""
    groups = Groups(layout.batch_size * layout.width)
    entries = groups.parent[1:].reshape(layout.batch_size, layout.width).copy()
    if entries.size == 0:
        return np.arange(layout.width), False, True, ""
    before = _leaves(entries, layout)
    walk = Walk(groups, KNOWN)
    program = step.jaxpr._replace(outvars=step.jaxpr.outvars[: step.states])
    after = walk.program(program, [*before, *[None] * step.inputs])
    for old, new in zip(before, after, strict=True):
        labels = filled(new, old.shape)
        groups.unite(old[labels != 0], labels[labels != 0])
    lowest = _of_one_example(groups, entries)
    is_elementwise = len(np.unique(lowest)) == len(lowest)
    most = max(groups.joins, key=groups.joins.__getitem__, default=None)
    # A root is the lowest entry of its group, and an entry of an example.
    roots = (groups.find(entries) - 1) // layout.width
    mixes = bool((roots != np.arange(len(entries))[:, None]).any())
    mixed_by = "" if is_elementwise else _name(most)
    return lowest, mixes, not (mixes or walk.across_devices), mixed_by


def _leaves(entries: Array, layout: StateLayout) -> list[Array]:
    """The labels of the leaves of a state."""
    parts = np.split(entries, np.cumsum(layout.sizes)[:-1], axis=1)
    return [
        part.reshape((*layout.batch_shape, *shape))
        for part, shape in zip(parts, layout.shapes, strict=True)
    ]


def _of_one_example(groups: Groups, entries: Array) -> Array:
    """The lowest entry of the group of each entry of one example, by all that was joined in any."""
    width = entries.shape[1]
    single, own = Groups(width), np.broadcast_to(np.arange(1, 1 + width), entries.shape)
    single.unite(own, (groups.find(entries) - 1) % width + 1)  # the root of an entry is an entry
    return single.find(own[0]) - 1


def _name(cause: Any) -> str:
    """The primitive, and the line of the user's program."""
    if cause is None:
        return "moving to other places"
    name = str(cause.equation.primitive.name)
    while cause is not None:
        line = location(cause.equation)
        if line.line and not line.file.startswith(HERE):
            return f"{name} ({os.path.basename(line.file)}:{line.line})"
        cause = cause.outer
    return name


def _rows(lowest: Array) -> Array:
    """The groups as rows, packed by size, the largest first.

    Rows by their first entry.
    """
    order = np.argsort(lowest, kind="stable")
    starts = np.flatnonzero(np.diff(lowest[order], prepend=-1))
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
