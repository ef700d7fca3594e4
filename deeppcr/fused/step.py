"""A step that a kernel can repeat: what it takes, and whether there is one.

The program of a batch of states becomes that of one example. Which of its arrays have an entry for
each example cannot be read off their shapes: by these there are a few possibilities, and the first
one under which the program treats all examples alike is the right one, as every one would be.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from itertools import islice, product
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from deeppcr.arrays.state import Leaves
from deeppcr.fused.entries import Entries, evaluate, narrow, table_of
from deeppcr.fused.operations import Apply, CannotFuse, Counter, Latency, compute, once
from depth.jaxprs import Program, is_literal, needed

LANES = 128  # threads of a block
FEW = 32  # examples up to which each has a block of its own
WIDEST, MOST = 64, 4096  # entries of a state, instructions of a step
TRIED = 64  # combinations of arrays that may have an entry for each example
STARTS = 4  # instructions that a thread starts while one waits for its result

Axes = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class FusedStep:
    """A step that a kernel can repeat.

    Attributes:
        program: ``(*state, *input) -> (*state, *outputs)``, with captured arrays as constants.
        states: the number of leaves of a state.
        inputs: the number of leaves of an input.
        batch_shape: the batch axes of a state.
        examples: for each operand, states and inputs and captured arrays, where it has those batch
            axes that are longer than 1; None for an operand that is not used.
        outputs: the same for each output, which has all of them.
        instructions: of a step: its operations, with those that an exponential function takes.
        latency: operations of a step that wait for each other, from state to state.
    """

    program: Program
    states: int
    inputs: int
    batch_shape: tuple[int, ...]
    examples: tuple[Axes | None, ...]
    outputs: tuple[Axes, ...]
    instructions: int
    latency: int

    @classmethod
    def of(
        cls,
        program: Program,
        states: int,
        inputs: int,
        batch_shape: tuple[int, ...],
    ) -> Self:
        """The step of a program, for one of its examples.

        Args:
            program: ``(*state, *input) -> (*state, *outputs)``.
            states: the number of leaves of a state.
            inputs: the number of leaves of an input.
            batch_shape: the batch axes of a state, which are its first.

        Raises:
            CannotFuse: it has no kernel; the message says why.
        """
        _check(program, states, math.prod(batch_shape))
        variables = [*program.invars, *program.constvars]
        used = _used(program, variables)
        choices: list[Sequence[Axes | None]] = []
        for k, variable in enumerate(variables):
            found = _possible(variable.aval.shape, batch_shape)
            if k < states:
                choices.append(found[:1])
            elif variable not in used:
                choices.append([None])
            elif not variable.aval.size:
                raise CannotFuse("an array that a step reads has no entries")
            else:
                choices.append(found if k < states + inputs else found[::-1])
        outputs = tuple(
            _possible(variable.aval.shape, batch_shape)[0] for variable in program.outvars[states:]
        )
        reasons = []
        for examples in islice(product(*choices), TRIED):
            step = cls(program, states, inputs, batch_shape, examples, outputs, 0, 0)
            try:
                instructions, latency = step._measured()
            except CannotFuse as error:
                reasons.append(error)
            else:
                return dataclasses.replace(step, instructions=instructions, latency=latency)
        raise reasons[0]

    def __call__(
        self, state: Leaves, inputs: Leaves, captured: Leaves, apply: Apply = compute
    ) -> tuple[Leaves, Leaves]:
        """The next state of an example, and its outputs: tables of entries."""
        nowhere = (None,) * len(self.examples[0] or ())
        operands = [
            Entries(table, axes or nowhere)
            for table, axes in zip([*state, *inputs, *captured], self.examples, strict=True)
        ]
        found = evaluate(self.program, operands, once(apply))
        axes = [*(each.examples for each in operands[: self.states]), *self.outputs]
        variables = self.program.outvars
        tables = [
            _result(each, own_shape(variable.aval.shape, own), own)
            for each, variable, own in zip(found, variables, axes, strict=True)
        ]
        return tables[: self.states], tables[self.states :]

    def _measured(self) -> tuple[int, int]:
        """The instructions of a step, and its latency, without computing anything."""
        tables: Leaves = []
        variables = [*self.program.invars, *self.program.constvars]
        for variable, axes in zip(variables, self.examples, strict=True):
            shape = (0,) if axes is None else own_shape(variable.aval.shape, axes)
            if math.prod(shape) > MOST:
                raise CannotFuse(f"a step reads an array of more than {MOST} entries")
            entry = partial(Latency, 0) if len(tables) < self.states else object
            tables.append(table_of([entry() for _ in range(math.prod(shape))], shape))
        counter = Counter(MOST)
        ends = self.states, self.states + self.inputs
        found, _ = self(tables[: ends[0]], tables[ends[0] : ends[1]], tables[ends[1] :], counter)
        entries = [entry for table in found for entry in table.ravel()]
        waits = [entry.latency for entry in entries if isinstance(entry, Latency)]
        return counter.instructions, max(waits, default=0)

    @property
    def count(self) -> int:
        """The number of examples."""
        return math.prod(self.batch_shape)

    @property
    def lanes(self) -> bool:
        """Whether a block of threads runs an example in each thread, not one in all of them."""
        return self.count > FEW

    @property
    def threads(self) -> int:
        """The number of threads."""
        return LANES * (-(-self.count // LANES) if self.lanes else self.count)

    @property
    def waits(self) -> int:
        """The operations of a step in the time of which a thread has done it.

        Those that wait for each other, and all of them at the rate at which they start.
        """
        return self.latency + -(-self.instructions // STARTS)


def _check(program: Program, states: int, count: int) -> None:
    width = sum(z.aval.size for z in program.invars[:states]) // max(count, 1)
    if width > WIDEST:
        raise CannotFuse(f"a state has {width} entries, of at most {WIDEST} in a kernel")
    for variable in program.invars[:states]:
        if not variable.aval.size:
            raise CannotFuse("a leaf of the state has no entries")
        if variable.aval.dtype not in (np.float32, jnp.bfloat16, np.float16):
            raise CannotFuse(f"a state is {variable.aval.dtype}, of float32 or shorter in a kernel")


def _used(program: Program, variables: Sequence[Any]) -> set[Any]:
    """The operands that the results depend on."""
    wanted = program.outvars
    equations = needed(program, set(variables), wanted)
    atoms = [*wanted, *(atom for equation in equations for atom in equation.invars)]
    return {atom for atom in atoms if not is_literal(atom)}


def _possible(shape: tuple[int, ...], batch_shape: tuple[int, ...]) -> list[Axes]:
    """Where the batch axes of an array may be, by its shape: first, the last of them, nowhere."""
    several = [k for k, size in enumerate(batch_shape) if size > 1]
    found: list[Axes] = []
    for missing in range(len(batch_shape) + 1):
        if shape[: len(batch_shape) - missing] == batch_shape[missing:]:
            found.append(tuple(k - missing if k >= missing else None for k in several))
    return list(dict.fromkeys(found))


def _result(found: Entries, shape: tuple[int, ...], axes: Axes) -> np.ndarray:
    """A result as it is written: with these axes of examples, and of this shape without them."""
    if found.examples not in (axes, (None,) * len(axes)):
        raise CannotFuse("an example takes the state of another")
    table = narrow(found.table, axes)
    if any(n not in (1, size) for n, size in zip(table.shape, shape, strict=True)):
        raise CannotFuse("an example has another state than the others")
    return np.broadcast_to(table, shape)


def own_shape(shape: tuple[int, ...], axes: Axes | None) -> tuple[int, ...]:
    """The shape of a table of one example."""
    return tuple(1 if axis in (axes or ()) else n for axis, n in enumerate(shape))
