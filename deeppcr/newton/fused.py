"""The loop of Newton's method with two kernels and a convergence test in each iteration."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChunkedAxis
from deeppcr.chain import TracedChain
from deeppcr.checks import describe
from deeppcr.fused import CannotFuse, FusedStep, fused_scan
from deeppcr.linear import Matrices
from deeppcr.linearize import Dense
from deeppcr.loops import ITERATION
from deeppcr.newton.convergence import Convergence, Criterion
from deeppcr.newton.guess import first_trajectory
from deeppcr.newton.iterate import Iterate
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.newton.passes import (
    Summary,
    cut,
    shapes,
    step_of_chunks,
    step_of_pass,
    to_front,
)
from deeppcr.newton.sequence import Reached
from deeppcr.platforms import platforms
from deeppcr.ran import Ran
from deeppcr.state import Leaves
from deeppcr.structure import find_structure

WIDEST = 4  # entries of a state: the work of an iteration grows with their cube
# The options that an iteration of kernels does not have, as they may be.
PLAIN: dict[str, tuple[Any, ...]] = {
    "linear": ("auto",),
    "damping": ("auto", None),
    "acceleration": (None,),
    "jacobian_every": (1,),
    "window": (None,),
    "sharding": (None,),
}
ARRAYS = ["linearization", "guess", "atol", "captured"]


class Operands(NamedTuple):
    """What the first kernel takes in all iterations.

    Attributes:
        inputs: ``[steps, ..., chunks]``: whether a step is one of the chain, int32; its inputs.
        product: P before the first step, as in `Summary`.
        offset: m before the first step.
    """

    inputs: Leaves
    product: Array
    offset: Array


class Passed(NamedTuple):
    """What a pass leaves for the next one, besides states and the step applied to them.

    Attributes:
        jacobian: ``[steps, *batch, w, w, chunks]``.
        starts: ``[*batch, w, chunks]``, the state that enters each chunk.
        last: ``[*batch, w]``, the last state of the chain.
        summary: of each chunk.
    """

    jacobian: Array
    starts: Array
    last: Array
    summary: Summary


@partial(
    jax.tree_util.register_dataclass,
    data_fields=ARRAYS,
    meta_fields=[
        *(x.name for x in dataclasses.fields(NewtonSolver) if x.name not in ARRAYS),
        *("axis", "of_pass", "of_chunks"),
    ],
)
@dataclasses.dataclass(frozen=True)
class FusedNewton(NewtonSolver):
    """``Newton(fused=True)`` for one chain.

    An `Iterate` has ``[steps, *batch, w, chunks]`` for ``[L, *batch, w]``, the states *before* each
    step as ``states``, and `Passed` as ``blocks``.

    Attributes:
        axis: how the chain is cut into chunks.
        of_pass: a step of the first kernel.
        of_chunks: a step of the second kernel.
    """

    axis: ChunkedAxis
    of_pass: FusedStep
    of_chunks: FusedStep

    @classmethod
    def of(cls, solver: NewtonSolver, chain: TracedChain) -> NewtonSolver:
        """The solver of ``chain``, in float32 or better; on a CPU, without kernels.

        Raises:
            CannotFuse: an iteration has no such kernels; the message says why.
        """
        try:
            _check_chain(solver, chain)
            axis = cut(chain)
            steps = step_of_pass(chain, axis), step_of_chunks(chain, axis)
        except CannotFuse as error:
            raise CannotFuse(
                "fused=True, but an iteration on this chain cannot be a kernel: "
                f"{error}. Use fused=False."
            ) from None
        if "cuda" not in platforms():
            return solver
        own = {x.name: getattr(solver, x.name) for x in dataclasses.fields(solver)}
        return cls(**own, axis=axis, of_pass=steps[0], of_chunks=steps[1])

    def _loop(self, chain: TracedChain, begun: Reached) -> tuple[Any, ...]:
        flags = self.axis.cut(jnp.ones(chain.length, jnp.int32), jnp.int32(0))
        inputs = [flags, *(self.axis.cut(x, x[0]) for x in chain.inputs)]
        vector, matrix = shapes(chain, self.axis)
        eye = jnp.eye(self.layout.width, dtype=matrix.dtype)[..., None]
        before = jnp.broadcast_to(eye, matrix.shape), jnp.zeros(vector.shape, vector.dtype)
        # Constants would be made anew in each iteration, each by a kernel of its own.
        product, offset = lax.optimization_barrier(before)
        operands = Operands(inputs, product, offset)
        chunks = dataclasses.replace(chain, axis=self.axis)
        guess = first_trajectory(
            self.options.initial_guess, self.guess, chain, begun.last, self.window
        )
        start = self._first(chunks, operands, begun, guess)
        goes_on, trip = partial(self._goes_on, chunks), partial(self._next, chunks, operands)
        return ITERATION, goes_on, trip, start, self.budget, self.expected

    def _first(
        self, chunks: TracedChain, operands: Operands, begun: Reached, guess: Array
    ) -> Iterate:
        """The iterate of the initial trajectory: of a pass without Jacobians."""
        states = self.axis.cut(guess, begun.last)
        jacobian = jnp.zeros((len(states), *operands.product.shape), states.dtype)
        starts = self.axis.starts(begun.last, states[-1])
        summary = Summary(states[-1], operands.product, operands.offset)
        now = Iterate(
            iterations=begun.iterations,
            begun=begun.iterations,
            start=jnp.int32(0),
            entry=begun.last,
            states=jnp.zeros_like(states),
            value=states,
            convergence=Convergence.unknown(states, begun.iterations),
            known=jnp.int32(0),
            whole=guess[:0],
            blocks=Passed(jacobian, starts, guess[-1], summary),
            derivative=(),
            damping=(),
            history=(),
            residuals=begun.residuals,
            reported=jnp.int32(0),
        )
        now, _ = self._passed(operands, now, starts, guess[-1])
        return self._judged(chunks, now, jnp.full_like(states, jnp.inf))

    def _next(self, chunks: TracedChain, operands: Operands, now: Iterate) -> Iterate:
        """The next iterate."""
        before = now.blocks
        inputs = [before.starts, *before.summary]
        (last,), (starts,) = fused_scan(
            self.of_chunks, [now.entry], inputs, [], False, self.axis.chunks
        )
        now = now._replace(iterations=now.iterations + jnp.int32(1))
        now, change = self._passed(operands, now, starts, last)
        update = jnp.abs(self.axis.after(last - before.last, change))
        blocks = Matrices(to_front(before.jacobian, 1))
        solved = self._keeps_size(blocks, self.axis) if self.is_affine else None
        return self._judged(chunks, now, update, solved)

    def _passed(
        self, operands: Operands, now: Iterate, starts: Array, last: Array
    ) -> tuple[Iterate, Array]:
        """The iterate after a pass, and the change of its states.

        ``starts``: the states that enter the chunks, and ``last`` that after the last of them.
        """
        summary, (states, value, jacobian, change) = fused_scan(
            self.of_pass,
            [starts, operands.product, operands.offset],
            [now.states, now.value, now.blocks.jacobian, *operands.inputs],
            self.captured,
            False,
            self.axis.steps,
        )
        blocks = Passed(jacobian, starts, last, Summary(*summary))
        return now._replace(states=states, value=value, blocks=blocks), change

    def _judged(
        self, chunks: TracedChain, now: Iterate, update: Array, solved: Array | None = None
    ) -> Iterate:
        """The iterate, and how far it has converged."""
        states = self.axis.after(now.blocks.last, now.states)
        return self._tested(chunks, now, now.value, states, now.states, update, solved)

    def _criterion(self, start: Array) -> Criterion:
        if self.atol is None:
            return self.criterion
        atol = self.axis.cut(self.atol.astype(self.layout.dtype), self.atol[0])
        shape = len(atol), *(1,) * len(self.layout.batch_shape), 1, self.axis.chunks
        return dataclasses.replace(self.criterion, atol=atol.reshape(shape))

    def _ran(self, wide: TracedChain) -> Ran:
        return Ran.newton("dense", "chunked", False)

    def _whole(self, now: Iterate) -> Array:
        return self.axis.joined(now.value)


def check_fused(newton: Any) -> None:
    """Raise unless the options of a `Newton` are those of plain iterations.

    Raises:
        ValueError: one of them is another.
    """
    if newton.linearize not in ("auto", "dense", Dense()):
        raise ValueError(
            f'linearize is {describe(newton.linearize)}, expected "auto" or "dense" with '
            "fused=True; use fused=False for other blocks."
        )
    for name, plain in PLAIN.items():
        given = getattr(newton, name)
        if given not in plain:
            expected = " or ".join(map(repr, plain))
            raise ValueError(
                f"{name} is {describe(given)}, expected {expected} with fused=True; "
                f"use fused=False for another {name}."
            )


def _check_chain(solver: NewtonSolver, chain: TracedChain) -> None:
    layout = chain.layout
    if chain.axis.size > 1:
        raise CannotFuse("the chain is sharded over a mesh")
    if layout.width > WIDEST:
        raise CannotFuse(f"a state has {layout.width} entries, of at most {WIDEST} in its kernels")
    if solver.window < chain.length:
        raise CannotFuse(f"memory is for {solver.window} of {chain.length} Jacobians")
    if not find_structure(chain.step, layout).separate:
        raise CannotFuse("the elements of a batch depend on each other")
    if not solver.criterion.quadratic:
        raise CannotFuse("the step has a derivative rule of its own, which need not be exact")
