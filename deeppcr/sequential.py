"""The sequential program as a method: `jax.lax.scan`, or one kernel."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.arrays import Leaves
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.checks import check_count, check_type, option_tree
from deeppcr.lower import (
    CannotFuse,
    FusedStep,
    fused_scan,
    is_for_gpus,
    kernels_run,
    scan_in_chunks,
)
from deeppcr.solution import EXPECTED, Progress, Run

# The most instructions of a step of one thread whose values stay in registers: one of 2944, tanh
# with 32 units, takes 64 us on an H100 (jax 0.11.2).
MOST_IN_REGISTERS = 1024


@option_tree()
@dataclasses.dataclass(frozen=True)
class Sequential:
    """The sequential program: a loop over the steps, as in `jax.lax.scan`.

    On a CPU, what depends on the inputs alone (products of weights with inputs, random numbers of
    given keys) is computed before the loop, for many steps at once; and the loop of a small step is
    compiled to one function, where XLA would call one for every array.

    Attributes:
        unroll: integer >= 1, the number of steps per trip of the loop, and of that of its
            derivative by "autodiff".
        progress: True, to print "sequential: 20 of 20 steps" to stderr when all steps are done. Or
            a function, which is called instead, once, as ``progress(0, L, 0.0)``: see
            `Newton`. None: nothing.
        fused: whether the whole loop is one kernel on an NVIDIA GPU, where it is several launches
            a step otherwise. Up to 32 threads run one example, of as many as the batch axes and
            `jax.vmap` have, or one entry of the state, if no entry reaches another. For small
            steps: states of at most 64 entries in float32 or shorter, elementwise
            operations, small products, and moves of entries; what does not depend on the state may
            be anything. On other platforms it is `jax.lax.scan`. The states of a gradient are
            computed by it if the adjoint is an `Adjoint`, or "backprop", which is one kernel, too.
            A kernel is compared with XLA's loop on the GPU before it is used; if it differs, that
            loop runs instead, and a warning says so.

    Raises:
        TypeError: an option has a wrong type.
        ValueError: in a call with ``fused``, the step has no such kernel, or its chain is sharded.
            The message says why.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + x, jnp.array([2.0, 5.0, 4.0]))
        >>> method = deeppcr.Sequential(unroll=3)
        >>> deeppcr.solve(chain, jnp.array(0.0), method=method).value
        Array(11., dtype=float32)
    """

    unroll: int = 1
    progress: Progress = None
    fused: bool = False

    def __post_init__(self) -> None:
        check_count("unroll", self.unroll, "steps per trip")
        check_type("progress", self.progress, bool | Callable | None, EXPECTED)
        check_type("fused", self.fused, bool, "True or False")

    def bind(self, chain: TracedChain, *_: Any) -> Self:
        """The solver of a chain.

        Raises:
            CannotFuse: with ``fused``, if the chain cannot be one kernel.
        """
        try:
            if self.fused:
                fused_step(chain)
        except CannotFuse as error:
            raise CannotFuse(
                f"fused=True, but this chain cannot be one kernel: {error}. Use fused=False."
            ) from None
        return self

    def solve(self, chain: TracedChain) -> Run:
        """All states, one after another; with ``fused``, on a GPU by one kernel."""
        if self.fused and is_for_gpus():
            return _by_kernel(chain)
        return _as_run(chain, *run_loop(chain, chain.initial, self.unroll))


def _by_kernel(chain: TracedChain) -> Run:
    last, trajectory = fused_scan(
        fused_step(chain), chain.initial, chain.inputs, chain.captured, False, chain.length
    )
    same = chain.step.outputs_in_state
    if None not in same:
        outputs = [trajectory[leaf] for leaf in same if leaf is not None]
    else:
        outputs = chain.outputs(chain.before(chain.initial, trajectory), trajectory)
    return _as_run(chain, last, trajectory, outputs)


def fused_step(chain: TracedChain) -> FusedStep:
    """The step of a chain, for a kernel.

    Raises:
        CannotFuse: there is no kernel; the message says why.
    """
    if chain.axis.is_sharded:
        raise CannotFuse("the chain is sharded over a mesh")
    step, batch_shape = chain.step, chain.layout.batch_shape

    def of_states() -> FusedStep:
        program = step.evaluated
        program = program._replace(outvars=program.outvars[: step.states])
        return FusedStep.of(program, step.states, batch_shape)

    return step.remember(("fused", batch_shape), of_states)


def kernel_of(chain: TracedChain) -> FusedStep | None:
    """The step for a kernel of a GPU whose values stay in registers; None if there is none."""
    if not kernels_run():
        return None
    try:
        step = fused_step(chain)
    except CannotFuse:
        return None
    return step if step.lanes > 1 or step.instructions <= MOST_IN_REGISTERS else None


def _as_run(chain: TracedChain, last: Leaves, trajectory: Leaves, outputs: Leaves) -> Run:
    return Run.of_sequential(chain, trajectory, outputs, last if chain.axis == LOCAL else [])


def run_loop(chain: TracedChain, initial: Leaves, unroll: int = 1) -> tuple[Leaves, Leaves, Leaves]:
    """The last state, all states and all outputs.

    The last state is that of the loop, so that XLA keeps no others where nothing reads them.
    """
    # Most often the state itself is the output: written once, it costs half.
    same = chain.step.outputs_in_state

    def body(state: Leaves, inputs: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        state, outputs = chain.step.with_outputs(state, inputs, chain.captured)
        return state, (state, [y for y, leaf in zip(outputs, same, strict=True) if leaf is None])

    last, (trajectory, new) = chain.axis.scan(
        body, initial, chain.inputs, length=chain.length, unroll=unroll
    )
    rest = iter(new)
    return last, trajectory, [next(rest) if leaf is None else trajectory[leaf] for leaf in same]


def run_in_segments(
    chain: TracedChain, initial: Leaves, size: int
) -> tuple[Leaves, Leaves, Leaves]:
    """`run_loop` of ``size`` steps after another, each under `jax.checkpoint`."""

    def run(steps: TracedChain, state: Leaves, _: Array) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        last, states, outputs = run_loop(steps, state)
        return last, (states, outputs)

    last, (states, outputs) = in_segments(run, chain, initial, size)
    return last, states, outputs


def in_segments(
    run: Callable[[TracedChain, Any, Array], tuple[Any, Any]],
    chain: TracedChain,
    carry: Any,
    size: int,
) -> tuple[Any, Any]:
    """``size`` steps of a chain after another: their derivative runs each segment again.

    Args:
        run: ``run(steps, carry, start) -> (carry, results)`` of the steps from ``start`` on.
    """

    @partial(jax.checkpoint, prevent_cse=False)
    def segment(carry: Any, part: tuple[Array, Leaves], captured: Leaves) -> Any:
        index, inputs = part
        steps = dataclasses.replace(chain, inputs=inputs, captured=captured, length=len(index))
        return run(steps, carry, index[0])

    parts = jnp.arange(chain.length, dtype=jnp.int32), chain.inputs
    return scan_in_chunks(
        partial(segment, captured=chain.captured), carry, parts, length=chain.length, size=size
    )
