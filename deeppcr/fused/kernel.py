"""A kernel that runs a whole recurrence: one launch, whatever its length.

A thread computes one example; if examples are few, all threads of a block compute the same one. The
state stays in registers. The inputs of a step are read some steps ahead, because memory answers
later than a step takes. Outputs are written as they come, and the last state in the end.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.fused.backends import Launch
from deeppcr.fused.entries import table_of
from deeppcr.fused.memory import Layout, arranged, restored
from deeppcr.fused.operations import repeated
from deeppcr.fused.step import LANES, FusedStep, own_shape

AHEAD, READ = 8, 64  # steps, and entries, that are read ahead at most
KEPT = 128  # captured entries that are kept in registers; more are read in every step


def run_kernel(
    step: FusedStep,
    operands: tuple[Leaves, Leaves, Leaves],
    length: int,
    reverse: bool,
    launch: Launch,
) -> tuple[Leaves, Leaves]:
    """The last state, and the outputs of all steps, ``[length, ...]``.

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
    kernel = _Kernel(step, tuple(layouts), length, reverse)
    fronts = [()] * step.states + [(length,)] * len(step.outputs)
    written, results = [*kernel.last, *kernel.written], step.program.outvars
    out = [
        abstract(result.aval, (*front, *layout.memory(step)))
        for front, layout, result in zip(fronts, written, results, strict=True)
    ]
    found = [
        restored(y, own or (), step, result.aval.shape)
        for y, own, result in zip(
            launch(kernel, step.threads // LANES, out)(*arrays),
            (*step.examples[: step.states], *step.outputs),
            results,
            strict=True,
        )
    ]
    return found[: step.states], found[step.states :]


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The program of a block of threads: ``kernel(block, *arrays, *results)``."""

    step: FusedStep
    layouts: tuple[Layout | None, ...]
    length: int
    reverse: bool

    @property
    def last(self) -> list[Layout]:
        """How the last state lies in memory: as the initial one."""
        return [layout for layout in self.layouts[: self.step.states] if layout]

    @property
    def written(self) -> list[Layout]:
        """How the outputs lie in memory."""
        variables = self.step.program.outvars[self.step.states :]
        return [
            Layout(own_shape(variable.aval.shape, axes), bool(axes), self.step.lanes)
            for variable, axes in zip(variables, self.step.outputs, strict=True)
        ]

    def __call__(self, block: Any, *references: Any) -> None:
        """All steps of the examples of a block."""
        count = len(references) - len(self.step.program.outvars)
        results, given = references[count:], iter(references[:count])
        operands = [layout and (layout, next(given)) for layout in self.layouts]
        ends = self.step.states, self.step.states + self.step.inputs
        states, inputs = operands[: ends[0]], operands[ends[0] : ends[1]]
        captured = operands[ends[1] :]
        last = list(zip(self.last, results[: ends[0]], strict=True))
        written = list(zip(self.written, results[ends[0] :], strict=True))
        threads = self.last[0].threads

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
            end = jnp.int32(self.length - 1)
            following = read(inputs, index(lax.min(count + jnp.int32(ahead), end)))
            shared = read(captured) if constants is None else constants
            tables = _tables(state, states), _tables(queue[0], inputs)
            after, outputs = self.step(*tables, shared)
            for (layout, reference), table in zip(written, outputs, strict=True):
                layout.write(reference, block, table, index(count))
            state = [repeated(entry, threads) for entry in _entries(after)]
            return state, [*queue[1:], _entries(following)]

        state = [repeated(entry, threads) for entry in _entries(read(states))]
        queue = [_entries(read(inputs, index(jnp.int32(k)))) for k in range(ahead)]
        state, _ = lax.fori_loop(jnp.int32(0), jnp.int32(self.length), trip, (state, queue))
        for (layout, reference), table in zip(last, _tables(state, states), strict=True):
            layout.write(reference, block, table)


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
