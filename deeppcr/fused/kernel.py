"""A kernel that runs a whole recurrence: one launch, whatever its length.

A thread computes one example; if examples are few, all threads of a block compute the same one. The
state stays in registers. The inputs of a step are read some steps ahead, because memory answers
later than a step takes. States are written as they come.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr.fused.backends import Launch
from deeppcr.fused.entries import table_of
from deeppcr.fused.memory import Layout, arranged
from deeppcr.fused.operations import repeated
from deeppcr.fused.step import LANES, FusedStep
from deeppcr.state import Leaves

AHEAD, READ = 8, 64  # steps, and entries, that are read ahead at most
KEPT = 128  # captured entries that are kept in registers; more are read in every step


def run_kernel(
    step: FusedStep,
    operands: tuple[Leaves, Leaves, Leaves],
    length: int,
    reverse: bool,
    launch: Launch,
) -> Leaves:
    """The states of all steps, ``[length, *batch, ...]``.

    Args:
        step: the step.
        operands: the initial state, ``[*batch, ...]``; inputs, ``[length, ...]``; captured arrays.
        length: the number of steps.
        reverse: whether the first step is the last of the arrays.
        launch: one of `deeppcr.fused.backends`.
    """
    states, inputs, captured = operands
    arrays: Leaves = []
    layouts: list[Layout | None] = []
    all_of_them = [
        *((z, 0) for z in states),
        *((x, 1) for x in inputs),
        *((x, 0) for x in captured),
    ]
    for (x, steps), axes in zip(all_of_them, step.examples, strict=True):
        layouts.append(None)
        if axes is not None:
            array, layouts[-1] = arranged(x, axes, step, steps)
            arrays.append(array)
    blocks = step.threads // LANES
    kernel = _Kernel(step, tuple(layouts), length, reverse)
    out = [
        jax.ShapeDtypeStruct((length, *layout.memory(step)), z.dtype)
        for layout, z in zip(kernel.written, states, strict=True)
    ]
    trajectory = []
    for y, z in zip(launch(kernel, blocks, out)(*arrays), states, strict=True):
        y = jnp.swapaxes(y[..., : step.count], -1, -2) if step.lanes else y
        trajectory.append(y.reshape((length, *z.shape)))
    return trajectory


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The program of a block of threads: ``kernel(block, *arrays, *results)``."""

    step: FusedStep
    layouts: tuple[Layout | None, ...]
    length: int
    reverse: bool

    @property
    def written(self) -> list[Layout]:
        """How the states lie in memory: as the initial one."""
        return [layout for layout in self.layouts[: self.step.states] if layout]

    def __call__(self, block: Any, *references: Any) -> None:
        """All steps of the examples of a block."""
        count = len(references) - self.step.states
        results, given = references[count:], iter(references[:count])
        operands = [layout and (layout, next(given)) for layout in self.layouts]
        ends = self.step.states, self.step.states + self.step.inputs
        states, inputs = operands[: ends[0]], operands[ends[0] : ends[1]]
        captured = operands[ends[1] :]
        written = list(zip(self.written, results, strict=True))
        threads = self.written[0].threads

        def read(operands: Sequence[Any], *at: Any) -> Leaves:
            return [
                np.empty(0, object) if one is None else one[0].read(one[1], block, *at)
                for one in operands
            ]

        def index(trip: Any) -> Any:
            return self.length - 1 - trip if self.reverse else trip

        constants = read(captured) if _size(captured) <= KEPT else None
        ahead = min(AHEAD, READ // max(_size(inputs), 1) or 1, self.length)

        def trip(count: Any, carry: Any) -> Any:
            state, queue = carry
            last = jnp.int32(self.length - 1)
            following = read(inputs, index(lax.min(count + jnp.int32(ahead), last)))
            shared = read(captured) if constants is None else constants
            after = self.step(_tables(state, states), _tables(queue[0], inputs), shared)
            for (layout, reference), table in zip(written, after, strict=True):
                layout.write(reference, block, index(count), table)
            state = [repeated(entry, threads) for entry in _entries(after)]
            return state, [*queue[1:], _entries(following)]

        state = [repeated(entry, threads) for entry in _entries(read(states))]
        queue = [_entries(read(inputs, index(jnp.int32(k)))) for k in range(ahead)]
        lax.fori_loop(jnp.int32(0), jnp.int32(self.length), trip, (state, queue))


def _size(operands: Sequence[Any]) -> int:
    """The number of entries of an example."""
    return sum(math.prod(one[0].shape) for one in operands if one)


def _entries(tables: Leaves) -> list[Any]:
    return [entry for table in tables for entry in table.ravel()]


def _tables(entries: Sequence[Any], operands: Sequence[Any]) -> Leaves:
    """The inverse of `_entries`."""
    shapes = [one[0].shape if one else (0,) for one in operands]
    sizes = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(table_of(entries, (len(entries),)), sizes[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
