"""What a chain's candidates are made of, and what each piece costs: read by `depth`, once for all candidates that share it.

No candidate is traced as a whole: that takes longer than a planner may. A candidate is a sequence of pieces and of loops over
them, and each piece is the code that would run, traced with shapes alone: one step, the derivative of a step, the Jacobian
blocks of all steps, a linear recurrence. Costs of pieces in a row add up, their depths, too: they wait for one another.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.chain import Problem, Steps
from deeppcr.linear import Blocks, LinearSolver
from deeppcr.linearize import Linearization
from deeppcr.platforms import compiled_for
from deeppcr.rewrites.small_products import write_out
from deeppcr.sequential import every_step
from deeppcr.signature import signature
from deeppcr.state import Leaves, StateLayout, add
from deeppcr.step import Step
from depth import Device
from depth.analysis import depths_of, read
from depth.graph import Block
from depth.jaxprs import Replacement
from depth.kernels import Choice, Kernel, Kernels, Loop, Program
from depth.prediction import Seconds

NOTHING = Program((), ())
ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of a function, which differs from process to process
LATENCIES: dict[str, Any] = dict.fromkeys(
    ("kernel_latency", "loop_latency", "turn_latency", "piece_latency"), 0.0
) | {"step_latencies": {}}


@dataclasses.dataclass(frozen=True)
class Amount:
    """What a part of a candidate costs.

    Attributes:
        work: arithmetic operations.
        program: its kernels and loops, which a device puts times to.
        graphs: what it is made of, and how often each follows on the others; of a copy that was pickled, its depth alone.
    """

    work: int = 0
    program: Program = NOTHING
    graphs: tuple[tuple[Block | int, int], ...] = dataclasses.field(default=(), repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without jaxprs, which cannot be pickled."""
        return {**self.__dict__, "graphs": ((self.depth, 1),)}

    @classmethod
    def of(cls, graph: Block) -> "Amount":
        """That of a program which `depth` has read."""
        return cls(graph.totals.work, Kernels().program(graph), ((graph, 1),))

    @property
    def depth(self) -> int:
        """The longest chain of operations, where each part waits for the one before it."""
        return sum(times * _depth(graph) for graph, times in self.graphs)

    def __add__(self, other: "Amount") -> "Amount":
        """One after the other."""
        mine, its = self.program, other.program
        whole = Program((*mine.kernels, *its.kernels), (*mine.parts, *its.parts))
        return Amount(self.work + other.work, whole, (*self.graphs, *other.graphs))

    def times(self, turns: int, counted: bool = True) -> "Amount":
        """In a loop; ``counted``: whether it is known beforehand how often."""
        loop = Program((), ((Loop(turns, self.program, None, counted), 1),))
        return Amount(
            turns * self.work, loop, tuple((graph, turns * times) for graph, times in self.graphs)
        )

    def seconds(self, device: Device) -> float:
        """The time it takes on a device."""
        return Seconds(device).program(self.program)

    @property
    def traffic(self) -> int:
        """The bytes that its kernels read and write."""
        return _traffic(self.program)

    def busy_seconds(self, device: Device) -> float:
        """The time of its arithmetic alone, if nothing waited for anything, and small products were as fast as large ones."""
        rates = {**device.vector_rates, "contraction": max(device.rates.values())}
        return Seconds(device.replace(**LATENCIES, vector_rates=rates)).program(self.program)

    def least_seconds(self, device: Device) -> float:
        """Its arithmetic at the highest of all rates: it cannot be faster, whatever it becomes a part of."""
        return self.work / max(*device.rates.values(), *device.vector_rates.values())


def _depth(graph: Block | int) -> int:
    return graph if isinstance(graph, int) else max(depths_of(graph), default=0)


def _traffic(part: Any) -> int:
    match part:
        case Loop(turns, body, condition):
            return turns * (_traffic(body) + (_traffic(condition) if condition else 0))
        case Choice(programs):
            return max(map(_traffic, programs))
    return sum(times * kernel.bytes for kernel, times in part.kernels) + sum(
        times * _traffic(p) for p, times in part.parts
    )


def passes(count: int, entries: int, itemsize: int) -> Amount:
    """``count`` elementwise passes over an array, as one kernel that reads and writes it; their depth is not worth counting."""
    moved = 2 * entries * itemsize
    kernel = Kernel(
        "elementwise", "float32", (("arithmetic", count * entries),), moved, apart=moved
    )
    return Amount(count * entries, Program(((kernel, 1),), ()))


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """A chain's pieces, from shapes alone.

    Attributes:
        step: the traced step.
        layout: of its state.
        length: L.
        initial: shapes of the leaves of ``z_0``.
        inputs: those of the inputs of all steps.
        captured: those of what the step closes over.
        on_cpu: whether it is compiled for a CPU; for accelerators some pieces are other programs.
        parts: how many devices share the chain; then ``length`` is what each has, and what is done in order takes their turns.
    """

    step: Step
    layout: StateLayout
    length: int
    initial: Leaves
    inputs: Leaves
    captured: Leaves
    on_cpu: bool = True
    parts: int = 1

    @classmethod
    def of(cls, problem: Problem) -> "Pieces":
        """Those of a chain."""
        initial, inputs, captured = (
            list(map(_shape, part)) for part in (problem.initial, problem.inputs, problem.captured)
        )
        return cls(problem.step, problem.layout, problem.length, initial, inputs, captured)

    def shared_by(self, parts: int) -> "Pieces":
        """The same chain in so many equal parts, on as many devices."""
        length = self.length // parts
        inputs = [jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype) for x in self.inputs]
        return (
            self
            if parts == 1
            else dataclasses.replace(self, length=length, inputs=inputs, parts=parts)
        )

    def on(self, cpu: bool) -> "Pieces":
        """The same chain on a CPU, or on an accelerator."""
        return self if cpu == self.on_cpu else self._elsewhere

    def there(self) -> AbstractContextManager[None]:
        """What is traced in here is what runs there."""
        return compiled_for("cpu" if self.on_cpu else "cuda")

    @cached_property
    def _elsewhere(self) -> "Pieces":
        return dataclasses.replace(self, on_cpu=not self.on_cpu)

    @cached_property
    def signature(self) -> str:
        """The same for chains of the same program and shapes, in other processes, too; as good as never for others."""
        text = repr((signature(self.step.jaxpr), self.layout, self.length, self.parts))
        return hashlib.sha256(ADDRESS.sub("", text).encode()).hexdigest()[:32]

    # -- one step ---------------------------------------------------------------------------------------------------------------

    @cached_property
    def _one(self) -> tuple[Leaves, Leaves, Leaves]:
        return self.initial, [_without_first(x) for x in self.inputs], self.captured

    @cached_property
    def step_by_step(self) -> Amount:
        """The sequential program."""

        def step(c: Leaves, z: Leaves, x: Leaves) -> Any:
            state, outputs = self.step.with_outputs(z, x, c, self._replace)
            return state, [
                y
                for y, leaf in zip(outputs, self.step.outputs_in_state, strict=True)
                if leaf is None
            ]

        return self._every_step(step)

    @property
    def _replace(self) -> Replacement | None:
        return write_out if self.on_cpu else None

    @cached_property
    def autodiff(self) -> tuple[Amount, int]:
        """The sequential program's own gradient, by jax, forwards and backwards; and the bytes that it keeps in between."""
        kept = 0

        def program(z: Leaves, x: Leaves, c: Leaves) -> Any:
            return every_step(self._steps(x, c), z, self._replace)

        def gradient(z: Leaves, x: Leaves, c: Leaves, g: Any) -> Any:
            nonlocal kept
            _, pull = jax.vjp(program, z, x, c)
            kept = sum(map(_bytes, jax.tree.leaves(pull)))
            return pull(g)

        arguments = self.initial, self.inputs, self.captured
        results = [
            jax.ShapeDtypeStruct((self.length, *atom.aval.shape), atom.aval.dtype)
            for atom in self.step.jaxpr.outvars
        ]
        with self.there():
            amount = _read(
                gradient, *arguments, (results[: self.step.states], results[self.step.states :])
            )
        known = sum(map(_bytes, jax.tree.leaves(arguments)))
        return (amount if self.parts == 1 else amount.times(self.parts)), max(0, kept - known)

    @cached_property
    def pull_states_step_by_step(self) -> Amount:
        """Backpropagation through the states alone, each step computed anew: what `StepByStep` does."""

        def pull(c: Leaves, z: Leaves, x: Leaves, g: Leaves, mu: Leaves) -> Any:
            lam = add(g, mu)
            return jax.vjp(lambda z: self.step(z, x, c), z)[1](lam)[0], lam

        return self._every_step(pull, self.initial, self.initial)

    def _every_step(self, step: Callable[..., Any], *more: Leaves) -> Amount:
        """A loop of ``step(captured, state, input, *more)``, which keeps the states."""
        z, x, c = self._one
        with self.there():
            graph = read(jax.make_jaxpr(step)(c, z, x, *more))
        program = Kernels().step(graph, len(c), tuple(map(_bytes, z)))
        return Amount(graph.totals.work, program, ((graph, 1),)).times(self.length * self.parts)

    # -- all steps at once ------------------------------------------------------------------------------------------------------

    def _steps(self, inputs: Leaves, captured: Leaves) -> Steps:
        return Steps(self.step, self.layout, inputs, captured, self.length)

    @cached_property
    def states(self) -> Any:
        """The shape of all states, laid out as ``[L, *batch, w]``."""
        shape = (self.length, *self.layout.batch_shape, self.layout.width)
        return jax.ShapeDtypeStruct(shape, self.layout.dtype)

    @property
    def trajectory_bytes(self) -> int:
        """Of all states."""
        return _bytes(self.states)

    @cached_property
    def evaluate(self) -> Amount:
        """Every step once, side by side."""
        return _read(
            lambda z, x, c: self._steps(x, c).evaluate(z), self.states, self.inputs, self.captured
        )

    @cached_property
    def pull_rest(self) -> Amount:
        """The gradients of inputs and of what steps share, from the adjoint states: one batched product."""

        def pull(z: Any, x: Leaves, c: Leaves, g: Any) -> Any:
            floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in [*x, *c]]

            def f(moving: Leaves) -> Array:
                rest = iter(moving)
                leaves = [
                    next(rest) if moves else leaf
                    for leaf, moves in zip([*x, *c], floating, strict=True)
                ]
                return self._steps(leaves[: len(x)], leaves[len(x) :]).evaluate(z)

            moving = [leaf for leaf, moves in zip([*x, *c], floating, strict=True) if moves]
            # As jax.vjp, but for the time that tracing takes.
            return jax.linear_transpose(lambda t: jax.jvp(f, (moving,), (t,))[1], moving)(g)

        return _read(pull, self.states, self.inputs, self.captured, self.states)

    def blocks(self, linearization: Linearization) -> tuple[Amount, Blocks]:
        """Jacobian blocks of all steps, and their shapes."""
        known = self._blocks.get(id(linearization))
        if known is None:

            def blocks(z: Array, x: Leaves, c: Leaves) -> Blocks:
                return linearization.blocks(self._steps(x, c), z)

            arguments = self.states, self.inputs, self.captured
            jaxpr, shapes = jax.make_jaxpr(blocks, return_shape=True)(*arguments)
            known = linearization, Amount.of(read(jaxpr)), shapes
            self._blocks[id(linearization)] = (
                known  # with the object itself, so that its id stays its own
            )
        return known[1:]

    @cached_property
    def _blocks(self) -> dict[int, tuple[Linearization, Amount, Blocks]]:
        return {}

    def solve(self, solver: LinearSolver, blocks: Blocks, transposed: bool = False) -> Amount:
        """The linear recurrence of an iteration; transposed: that of the adjoint."""
        solve = solver.solve_transposed_unguarded if transposed else solver.solve_unguarded
        with self.there():
            return _read(lambda blocks, b: solve(blocks, b), blocks, self.states)


def _read(f: Callable[..., Any], *arguments: Any) -> Amount:
    return Amount.of(read(jax.make_jaxpr(f)(*arguments)))


def _shape(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _without_first(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _bytes(x: Any) -> int:
    return int(x.size) * int(x.dtype.itemsize)
