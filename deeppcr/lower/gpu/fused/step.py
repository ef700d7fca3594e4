"""A step that a kernel can repeat: what it takes, and whether there is one.

The program of a batch of states becomes that of one example. Which of its arrays have an entry for
each example cannot be read off their shapes: by these there are a few possibilities, and the first
one under which the program treats all examples alike is the right one, as every one would be.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import chain, islice, product
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.arrays import Leaves, abstract
from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.apart import Apart
from deeppcr.lower.gpu.fused.entries import Axes, Entries, evaluate, example_shape, narrow, table_of
from deeppcr.lower.gpu.fused.lanes import Lanes
from deeppcr.lower.gpu.fused.operations import CannotFuse, Code
from deeppcr.programs.cut_first import apply
from depth.counts import size
from depth.jaxprs import Program, equations, live_equations
from depth.primitives import primitive

Shape = tuple[int, ...]
SEPARATE = frozenset({"elementwise", "move", "call", "derivative rule"})


@dataclasses.dataclass(frozen=True, eq=False)
class FusedStep:
    """A step that a kernel can repeat.

    Attributes:
        apart: what is computed before, and in the kernel.
        states: the number of leaves of a state.
        batch_shape: the axes of a state along which its examples are.
        batch_ndim: how many of the first axes of a state are those of a batch.
        examples: for each operand of a kernel, states and inputs and captured arrays, where it has
            those batch axes that are longer than 1.
        lanes: threads that compute an example.
        instructions: of each: its operations, with those that an exponential function takes.
        latency: operations of a step that wait for each other, from state to state.
    """

    apart: Apart
    states: int
    batch_shape: tuple[int, ...]
    batch_ndim: int
    examples: tuple[Axes, ...]
    lanes: int = 1
    instructions: int = 0
    latency: int = 0

    @classmethod
    def of(cls, whole: Program, states: int, batch_shape: tuple[int, ...]) -> Self:
        """The step of a program, for one of its examples.

        Args:
            whole: ``(*state, *input) -> results``, first of all the next state, with captured
                arrays as constants. A kernel writes all results.
            states: the number of leaves of a state.
            batch_shape: the batch axes of a state, which are its first.

        Raises:
            CannotFuse: it has no kernel; the message says why.
        """
        parts = Apart.of_step(whole._replace(eqns=live_equations(whole)), states)
        attempts: list[tuple[Apart, Shape]] = []
        for apart in parts:
            attempts += product([apart], _entries(apart.rest, states))
        attempts += product(parts, [batch_shape])
        reasons = []
        for apart, batch in attempts:
            try:
                return cls._of_examples(apart, states, batch, len(batch_shape))
            except CannotFuse as error:
                reasons.append(error)
        raise reasons[-2]

    @classmethod
    def _of_examples(cls, apart: Apart, states: int, batch: Shape, batch_ndim: int) -> Self:
        """The step of a program, or of the rest of it, if the examples are on these axes."""
        program = apart.rest
        apart.check()
        _check(program, states, math.prod(batch))
        choices = []
        for k, variable in enumerate(flat(program).invars):
            places = _possible(variable.aval.shape, batch)
            if k < states:
                places = places[:1]
            elif k >= len(program.invars):
                places = places[::-1]
            choices.append(places)
        reasons = []
        for examples in islice(product(*choices), limits.MAX_PLACES):
            step = cls(apart, states, batch, batch_ndim, examples)
            kinds = []
            for lanes in step._choices:
                try:
                    kinds.append(step.by(lanes))
                except CannotFuse as error:
                    reasons.append(error)
            if kinds:
                return min(kinds, key=lambda step: step.waits)
        raise reasons[0]

    @property
    def _choices(self) -> list[int]:
        """The numbers of threads that may compute an example."""
        if max(self._sizes) > limits.MAX_READ:
            raise CannotFuse(f"a step reads an array of more than {limits.MAX_READ} entries")
        lanes = lanes_for(max(self._sizes[: self.states]))
        if self.width > limits.ONE_THREAD:
            if self.count * lanes > limits.MAX_THREADS:
                raise CannotFuse(f"{self.count} examples of {self.width} entries are too many")
            return [lanes]
        return [1, lanes] if lanes > 1 and self.count * lanes <= limits.THREADS_AT_ONCE else [1]

    def by(self, lanes: int) -> Self:
        """The same by so many threads."""
        step = dataclasses.replace(self, lanes=lanes)
        divided = step.divided()
        latency = int(max(divided.latency, 0))
        return dataclasses.replace(step, instructions=divided.instructions, latency=latency)

    def divided(self) -> Lanes:
        """The statements of each thread."""
        code = Code(self.lanes, self.batches)
        tables = self.evaluated(flat(self.program), self.tables(code), code)
        return Lanes(code, tables, self.states, "common")

    @property
    def whole(self) -> Program:
        """The program of the step."""
        return self.apart.whole

    @property
    def program(self) -> Program:
        """That of a kernel: ``(*state, *input) -> results``, with captured arrays as constants."""
        return self.apart.rest

    @property
    def inputs(self) -> int:
        """The number of leaves of what a kernel reads in each step."""
        return len(self.program.invars) - self.states

    def mapped(self, size: int, moves: Sequence[bool]) -> Self:
        """The step of ``size`` examples, on axis 0 of what moves."""
        program = flat(self.whole)
        end = len(self.whole.invars)
        avals = [
            abstract(x.aval, (size, *x.aval.shape)) if moving else abstract(x.aval)
            for x, moving in zip(program.invars, moves, strict=True)
        ]
        axes = [0 if moving else None for moving in moves]
        step = jax.vmap(lambda *operands: apply(program, operands), axes, axis_size=size)
        mapped = Program.of(jax.make_jaxpr(step)(*avals))
        if mapped.constvars:
            raise CannotFuse("a step of examples has arrays of its own")
        mapped = mapped._replace(invars=mapped.invars[:end], constvars=mapped.invars[end:])
        batch = size, *program.invars[0].aval.shape[: self.batch_ndim]
        return self.of(mapped, self.states, batch)

    def read(self, operands: Sequence[Any]) -> Leaves:
        """What a kernel reads, of the operands of the whole program."""
        end = len(self.whole.invars)
        rest = self.apart(list(operands[self.states : end]), list(operands[end:]))
        return [*operands[: self.states], *rest]

    @property
    def operands(self) -> list[tuple[Any, Axes]]:
        """Each operand of a kernel, and where it has examples."""
        return list(zip(flat(self.program).invars, self.examples, strict=True))

    @property
    def results(self) -> list[tuple[Any, Axes]]:
        """Each result, and where it has examples: all of them."""
        return [(x, _possible(x.aval.shape, self.batch_shape)[0]) for x in self.program.outvars]

    def tables(self, code: Code, is_vector: bool = False) -> list[Entries]:
        """The operands of a step; ``is_vector``: whether all leaves of its state are one for C."""
        sizes = [self.width, *self._sizes[self.states :]] if is_vector else self._sizes
        places = chain.from_iterable(product([j], range(size)) for j, size in enumerate(sizes))
        tables = []
        for variable, axes in self.operands:
            shape, dtype = example_shape(variable.aval.shape, axes), variable.aval.dtype
            entries = [code.read(place, dtype) for place in islice(places, math.prod(shape))]
            tables.append(Entries(table_of(entries, shape), axes))
        return tables

    def evaluated(self, closed: Any, operands: Sequence[Entries], code: Code) -> Leaves:
        """The results of a program, which are like the first ones of a step, as they are written.

        Raises:
            CannotFuse: they are not, or `evaluate` raises it.
        """
        tables = []
        results = evaluate(closed, operands, code)
        for k, (result, (variable, axes)) in enumerate(zip(results, self.results, strict=False)):
            if result.examples not in (axes, (None,) * len(axes)):
                raise CannotFuse(f"an example takes the entries of another: state leaf {k}")
            table, shape = narrow(result.table, axes), example_shape(variable.aval.shape, axes)
            if any(n not in (1, size) for n, size in zip(table.shape, shape, strict=True)):
                raise CannotFuse(f"the step treats examples differently: state leaf {k}")
            tables.append(np.broadcast_to(table, shape))
        return tables

    @property
    def batches(self) -> int:
        """The number of batch axes with several examples."""
        return len(self.examples[0])

    @property
    def _sizes(self) -> list[int]:
        """The number of entries of each operand, of one example."""
        return [math.prod(example_shape(x.aval.shape, axes)) for x, axes in self.operands]

    @property
    def width(self) -> int:
        """The number of entries of a state."""
        return sum(self._sizes[: self.states])

    @property
    def count(self) -> int:
        """The number of examples."""
        return math.prod(self.batch_shape)

    @property
    def threads(self) -> int:
        """The number of threads of all examples."""
        return limits.WARP * -(-self.count * self.lanes // limits.WARP)

    @property
    def waits(self) -> int:
        """Latency of a step, in operations.

        That of its critical path, and all of them at the rate at which they start.
        """
        return self.latency + -(-self.instructions // limits.ISSUED)


def flat(program: Program) -> Program:
    """The program with captured arrays as its last inputs."""
    return program._replace(constvars=[], invars=[*program.invars, *program.constvars])


def lanes_for(entries: int) -> int:
    """The threads that share an array, a power of 2."""
    return min(limits.WARP, 1 << (entries - 1).bit_length())


def _entries(program: Program, states: int) -> list[Shape]:
    """The shape of a state of which a program may compute each entry apart; else none."""
    shape, *different = {variable.aval.shape for variable in program.invars[:states]}
    kinds = {primitive(equation).kind for equation in equations(program)}
    is_separate = not different and math.prod(shape) > 1 and kinds <= SEPARATE
    return [shape] if is_separate else []


def _check(program: Program, states: int, count: int) -> None:
    width = sum(z.aval.size for z in program.invars[:states]) // max(count, 1)
    if width > limits.MAX_STATE:
        raise CannotFuse(f"a state has {width} entries, of at most {limits.MAX_STATE} in a kernel")
    variables = flat(program).invars
    if len(variables) + states + len(program.outvars) > limits.MAX_ARRAYS:
        raise CannotFuse(f"a step reads and writes more than {limits.MAX_ARRAYS} arrays")
    if not all(map(size, variables)):
        raise CannotFuse("an array that a step reads has no entries")
    for variable in program.invars[:states]:
        if variable.aval.dtype not in (np.float32, jnp.bfloat16, np.float16):
            raise CannotFuse(f"a state is {variable.aval.dtype}, of float32 or shorter in a kernel")


def _possible(shape: tuple[int, ...], batch_shape: tuple[int, ...]) -> list[Axes]:
    """Where the batch axes of an array may be, by its shape: first, the last of them, nowhere."""
    several = [k for k, size in enumerate(batch_shape) if size > 1]
    choices: list[Axes] = []
    for missing in range(len(batch_shape) + 1):
        sizes, batch = shape[: len(batch_shape) - missing], batch_shape[missing:]
        if len(sizes) == len(batch) and all(n in (1, m) for n, m in zip(sizes, batch, strict=True)):
            padded = [1] * missing + list(sizes)
            choices.append(tuple(k - missing if padded[k] > 1 else None for k in several))
    return list(dict.fromkeys(choices))
