"""`fused_solve_p`: a solve by Newton's method that is one kernel on a GPU, and another elsewhere.

Its program for other readers, such as `depth`, is that of other platforms; so are its derivatives,
which a solve has of its own, and does not ask for. Under `jax.vmap` the examples are a batch axis
of the kernel, where it can have one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused import nvrtc
from deeppcr.lower.gpu.fused.kernel import Kernel
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.lower.gpu.fused.trial import largest_cluster
from deeppcr.lower.gpu.fused.windows import SolvedBelow, kernel_of
from deeppcr.programs.calls import Call, with_operands
from deeppcr.programs.cut_first import evaluate
from depth.jaxprs import Program

OF_CHAINS = 3  # results for each chain, after the states


class _Solve(NamedTuple):
    """A solve in a kernel.

    Attributes:
        step: without outputs of its own.
        batch_shape: the batch axes of a state.
        below: when a window is solved.
        length: the number of steps, at least 1.
        reverse: whether the first step takes the last entry of the inputs.
        kernel: that solves it.
    """

    step: FusedStep
    batch_shape: tuple[int, ...]
    below: SolvedBelow
    length: int
    reverse: bool
    kernel: Kernel

    @classmethod
    def of(
        cls,
        program: Program,
        states: int,
        batch_shape: tuple[int, ...],
        below: SolvedBelow,
        length: int,
        reverse: bool,
    ) -> Self:
        """That of a step, whose first operands and results are the leaves of a state.

        Raises:
            CannotFuse: there is no kernel.
        """
        if not isinstance(length, int) or not length:
            raise CannotFuse(f"a chain has {length} steps")
        if not (cluster := largest_cluster()):
            raise CannotFuse("a trial on the GPU was wrong")
        program = program._replace(outvars=program.outvars[:states] * 2)
        step = FusedStep.of(program, states, len(program.invars) - states, batch_shape)
        kernel = kernel_of(step, length, reverse, below, cluster)
        return cls(step, batch_shape, below, length, reverse, kernel)

    def mapped(self, size: int, moves: Sequence[bool]) -> tuple[Self, Leaves]:
        """That of ``size`` examples, on axis 0 of what moves in a step; and its constants."""
        program, states = self.step.whole, self.step.states
        variables = [*program.invars, *program.constvars]
        avals = [
            abstract(x.aval, (size, *x.aval.shape)) if moving else abstract(x.aval)
            for x, moving in zip(variables, moves, strict=True)
        ]

        def step(*operands: Any) -> Leaves:
            known = dict(zip(variables, operands, strict=True))
            return evaluate(program, known, program.outvars[:states])

        axes = [0 if moving else None for moving in moves]
        closed = jax.make_jaxpr(jax.vmap(step, axes, axis_size=size))(*avals)
        found, end = Program.of(closed), len(program.invars)
        constvars = [*found.invars[end:], *found.constvars]
        found = found._replace(invars=found.invars[:end], constvars=constvars)
        solve = self.of(found, states, (size, *self.batch_shape), *self[2:5])
        return solve, list(getattr(closed, "consts", ()))


class _Primitive(Call):
    """See `Call`: its operands are constants of the program, states, inputs and captured arrays."""

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        solve, first, size = params["solve"], params["first"], names["axis_size"]
        moves = [axis is not None for axis in axes[first:]]
        moves[: solve.step.states] = [True] * solve.step.states
        try:
            new, constants = solve.mapped(size, moves)
        except CannotFuse:
            return super()._map(operands, axes, names, params)
        end = solve.step.states + solve.step.inputs
        of_constants, arrays, on = list(axes[:first]), list(operands[:first]), list[Any]()
        for k, (x, axis) in enumerate(zip(operands[first:], axes[first:], strict=True)):
            at = 1 if solve.step.states <= k < end else 0
            if axis is not None:
                x = jnp.moveaxis(x, axis, at)
            elif moves[k]:
                x = jnp.broadcast_to(x, (size, *jnp.shape(x)))
            arrays.append(x)
            on.append(at if moves[k] else None)
        along = [1] * (len(params["call_jaxpr"].out_avals) - OF_CHAINS) + [0] * OF_CHAINS
        run = partial(self.run, call_jaxpr=params["call_jaxpr"])
        mapped = jax.vmap(run, [*of_constants, *on], along, **names)

        def program(*given: Any) -> Leaves:  # a kernel may take more
            return mapped(*given[: len(arrays)])

        arrays += constants
        closed = jax.make_jaxpr(program)(*arrays)
        return self.bind(*arrays, call_jaxpr=closed, solve=new, first=first), along


fused_solve_p = _Primitive("fused_solve")


def fused_solve(
    program: Program,
    batch_shape: tuple[int, ...],
    below: SolvedBelow,
    length: int,
    reverse: bool,
    otherwise: Callable[..., Leaves],
    states: Leaves,
    inputs: Leaves,
    captured: Leaves,
) -> Leaves:
    """The states of all steps, ``[length, ...]``, by Newton's method, and how they were found.

    The last three results are scalars: int32 the iterations, int32 the number of states before the
    first that was computed step by step, and float32 the largest residual, relative to the size of
    an entry.

    Args:
        program: of a step, ``(*state, *input) -> (*state, ...)``, with captured arrays as
            constants.
        batch_shape: the batch axes of a state, which are its first.
        below: when a window is solved.
        length: the number of steps, at least 1.
        reverse: whether the first step takes the last entry of the inputs.
        otherwise: the same of the states, inputs and captured arrays, for other platforms.

    Raises:
        CannotFuse: there is no kernel.
    """
    solve = _Solve.of(program, len(states), batch_shape, below, length, reverse)
    operands = [*states, *inputs, *captured]
    closed, constants = with_operands(jax.make_jaxpr(otherwise)(*operands))
    arrays = [*constants, *operands]
    found: Leaves = fused_solve_p.bind(
        *arrays, call_jaxpr=closed, solve=solve, first=len(constants)
    )
    return found


def solved_by_kernel(
    launch: nvrtc.Launch, *operands: Any, call_jaxpr: Any, solve: _Solve, first: int
) -> list[Any]:
    """The results of `fused_solve`, by one kernel."""
    *states, counted, reached, left = map(abstract, call_jaxpr.out_avals)
    shape = (solve.step.count,)
    each = [jax.ShapeDtypeStruct(shape, x.dtype) for x in (counted, reached, left)]
    found = launch(solve.kernel, solve.step.read(operands[first:]), [*states, *each])
    of_chains = [x.reshape(*counted.shape, -1) for x in found[-OF_CHAINS:]]
    return [
        *found[:-OF_CHAINS],
        *(reduce(-1) for reduce in (of_chains[0].max, of_chains[1].min, of_chains[2].max)),
    ]


def _on_a_gpu(*operands: Any, call_jaxpr: Any, **others: Any) -> list[Any]:
    if nvrtc.obstacle() or nvrtc.missing():
        return fused_solve_p.run(*operands, call_jaxpr=call_jaxpr)
    return solved_by_kernel(nvrtc.launch, *operands, call_jaxpr=call_jaxpr, **others)


fused_solve_p.def_impl(lambda *x, **params: jax.jit(partial(fused_solve_p.bind, **params))(*x))
mlir.register_lowering(
    fused_solve_p, mlir.lower_fun(_on_a_gpu, multiple_results=True), platform="cuda"
)
