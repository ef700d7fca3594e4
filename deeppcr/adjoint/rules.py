"""Derivatives of a chain: its tangent equations as one linear system.

The tangents of a chain ``z_l = f(z_{l-1}, x_l; c)`` in the direction ``dz_0``, ``dx``, ``dc`` solve
the linear recurrence

    t_l = A_l t_{l-1} + B_l dx_l + C_l dc,   t_0 = dz_0,   A = df/dz,  B = df/dx,  C = df/dc,

whatever method computed its states. With ``v = (dz_0, dx, dc)``, ``(t, v)`` solves the square
linear system

    [ M  -D ] [ t ]   [ 0 ]
    [ 0   I ] [ v ] = [ v ],   M = I - (A_l below the diagonal),  D v = the terms of v above.

Its transpose, for cotangents ``g`` of the states, is the adjoint chain and then one batched
vector-Jacobian product,

    lam_l = g_l + A_{l+1}^T lam_{l+1},
    D^T lam = (A_1^T lam_1, (B_l^T lam_l)_l, sum_l C_l^T lam_l),

which is backpropagation: no Newton iterations, one solve, and all parameter gradients at once. As a
`jax.lax.custom_linear_solve`, this one rule gives forward mode, reverse mode and their
compositions. It keeps the trajectory from the forward pass, and no Jacobian.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.adjoint.custom_vjp import differentiated
from deeppcr.adjoint.solver import AdjointSolver
from deeppcr.adjoint.transposed import linear_in, nothing_of, one_of, scaled, zeros_of
from deeppcr.axis import LOCAL
from deeppcr.chain import TracedChain
from deeppcr.chunks import scan_in_chunks
from deeppcr.linear_system import linear_system
from deeppcr.partition import combine, partition
from deeppcr.ran import Ran
from deeppcr.rewrites.gradients import plain_gradients
from deeppcr.sequential import run_differentiated
from deeppcr.solution import Result, Run, Stats, last_of
from deeppcr.state import Leaves, add
from deeppcr.step import Step
from depth.jaxprs import is_literal, moved_by

_Pushed = tuple[Run, Leaves, Leaves, Leaves]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Autodiff:
    """Derivatives by jax through the sequential program, which runs again for them.

    Required for steps with a `jax.custom_vjp`, unless the user asserts that its rule is linear
    (gradient clipping, the example in jax's documentation, is not), because such a rule must be
    applied as in the sequential program.

    Attributes:
        with_states: whether the states are those of this run, so that there is no other. Nonlinear
            rules require it: in second derivatives, cotangents of the states and of their tangents
            must be added in one run, to be clipped as one sum.
        with_stats: whether the method runs, too, for its statistics.
        unroll: the number of steps per trip of the loops, an integer >= 1.
        rewritten: whether small products are written out, and slices come first, as in the
            sequential program of a CPU.
    """

    with_states: bool = False
    with_stats: bool = False
    unroll: int = 1
    rewritten: bool = True

    def push(self, solve: Callable[[], Run], chain: TracedChain, moved: "_Moved") -> _Pushed:
        """See `pushes`."""

        def program(z: Leaves, x: Leaves, c: Leaves) -> tuple[Leaves, Leaves, Leaves]:
            here, initial = moved.put(chain, x, c), moved.initial.put(chain.initial, z)
            return run_differentiated(here, initial, self.rewritten, self.unroll)

        found, tangents = jax.jvp(program, moved.of(chain), moved.tangents)
        (last, states, outputs), (of_last, t, by_outputs) = found, tangents
        if chain.axis != LOCAL:
            last = of_last = []
        if not self.with_states:
            return solve(), t, by_outputs, of_last
        if self.with_stats:
            run = dataclasses.replace(solve(), trajectory=states, outputs=outputs, last=last)
        else:
            stats = Stats.of_sequential(chain.length, chain.layout.dtype, chain.mapped)
            converged = jnp.full(chain.mapped, Result.CONVERGED, jnp.int32)
            run = Run(states, outputs, stats, converged, Ran.sequential(chain.mapped), last)
        return run, t, by_outputs, of_last


def pushes(
    adjoints: Mapping[str, AdjointSolver | Autodiff],
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    tangents: TracedChain,
) -> tuple[Mapping[str, Callable[["_Tangents"], _Pushed]], "_Tangents"]:
    """A function per platform that runs a chain with its tangents, and the tangents to pass to it.

    It returns the run, and the tangents of its states, of its outputs, and of its last state, if
    the run has that. ``solve`` runs the chain, unless ``Autodiff`` does, with its step or with one
    of the same values.
    """
    moved = _Moved.split(chain, tangents)
    found = {
        name: partial(_push, adjoint, solve, chain, moved) for name, adjoint in adjoints.items()
    }
    return found, moved.tangents


_Tangents = tuple[Leaves, Leaves, Leaves]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Which leaves of a list are differentiated, and their tangents."""

    mask: tuple[bool, ...]
    tangents: Leaves

    @classmethod
    def split(cls, leaves: Sequence[Any], tangents: Sequence[Any]) -> "_Part":
        mask = tuple(
            not isinstance(t, SymbolicZero | ad.Zero)
            and getattr(t, "dtype", None) != jax.dtypes.float0
            for t in tangents
        )
        pairs = zip(leaves, tangents, mask, strict=True)
        # Under jit a tangent may be a number, or weakly typed.
        return cls(mask, [jnp.asarray(t, z.dtype) for z, t, moves in pairs if moves])

    def of(self, leaves: Leaves) -> Leaves:
        """Those among ``leaves``."""
        return partition(leaves, self.mask)

    def put(self, leaves: Leaves, moving: Leaves) -> Leaves:
        """``leaves``, with the differentiated ones replaced by ``moving``."""
        return combine(leaves, self.mask, moving)


@dataclasses.dataclass(frozen=True)
class _Moved:
    """The differentiated leaves of a chain: the ``v`` of the linear system."""

    initial: _Part
    inputs: _Part
    captured: _Part

    @classmethod
    def split(cls, chain: TracedChain, tangents: TracedChain) -> "_Moved":
        """From the tangents that jax passes to a rule, where zeros are symbolic."""
        names = ("initial", "inputs", "captured")
        parts = ((getattr(chain, name), getattr(tangents, name)) for name in names)
        return cls(*(_Part.split(*part) for part in parts))

    @property
    def tangents(self) -> _Tangents:
        """``(dz_0, dx, dc)``."""
        return self.initial.tangents, self.inputs.tangents, self.captured.tangents

    def reach_states(self, step: Step) -> bool:
        """Whether any state of a chain of this step depends on these leaves."""
        program = step.evaluated
        variables = [*program.invars[step.states :], *program.constvars]
        masks = (*self.inputs.mask, *self.captured.mask)
        moved = moved_by(program, partition(variables, masks))
        next_state = [z for z in program.outvars[: step.states] if not is_literal(z)]
        return any(self.initial.mask) or not moved.isdisjoint(next_state)

    def with_tangents(self, tangents: _Tangents) -> "_Moved":
        """The same leaves with other tangents."""
        parts = zip((self.initial, self.inputs, self.captured), tangents, strict=True)
        return _Moved(*(_Part(part.mask, t) for part, t in parts))

    def of(self, chain: TracedChain) -> _Tangents:
        """``(z_0, x, c)``, the differentiated leaves of a chain."""
        return (
            self.initial.of(chain.initial),
            self.inputs.of(chain.inputs),
            self.captured.of(chain.captured),
        )

    def put(self, chain: TracedChain, x: Leaves, c: Leaves) -> TracedChain:
        """The chain, with its differentiated leaves replaced by ``x`` and ``c``."""
        inputs, captured = self.inputs.put(chain.inputs, x), self.captured.put(chain.captured, c)
        return dataclasses.replace(chain, inputs=inputs, captured=captured)

    def enter(self, like: Leaves, dz: Leaves) -> Leaves:
        """The tangent of the initial state: ``dz``, and zero for other leaves."""
        return self.initial.put([jnp.zeros_like(z) for z in like], dz)


def _push(
    adjoint: AdjointSolver | Autodiff,
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    moved: _Moved,
    tangents: _Tangents,
) -> _Pushed:
    """See `pushes`."""
    moved = moved.with_tangents(tangents)
    if isinstance(adjoint, Autodiff):
        return adjoint.push(partial(solve, chain), chain, moved)
    step, solved = differentiated(chain.step)
    run = solve(dataclasses.replace(chain, step=solved))
    chain = dataclasses.replace(chain, step=step)
    states = chain.before(chain.initial, run.trajectory)

    def outputs(x: Leaves, c: Leaves, z: Leaves, after: Leaves) -> Leaves:
        return moved.put(chain, x, c).outputs(z, after)

    dz, dx, dc = moved.tangents
    _, x, c = moved.of(chain)
    if not moved.reach_states(step):  # but outputs, as the weights of a readout do
        f = partial(outputs, z=states, after=run.trajectory)
        none = [list(map(jnp.zeros_like, leaves)) for leaves in (run.trajectory, run.last)]
        return run, none[0], jax.jvp(f, (x, c), (dx, dc))[1], none[1]
    t = _tangents(chain, states, moved, adjoint)
    starts = chain.before(moved.enter(chain.initial, dz), t)
    by_outputs = jax.jvp(outputs, (x, c, states, run.trajectory), (dx, dc, starts, t))[1]
    return run, t, by_outputs, list(map(last_of, t)) if run.last else []


def _tangents(chain: TracedChain, states: Leaves, moved: _Moved, adjoint: AdjointSolver) -> Leaves:
    """The tangents ``t_1 .. t_L`` of the trajectory, as the solution of the linear system above."""
    initial = [jnp.zeros_like(z, shape=z.shape[1:]) for z in states]
    index = jnp.arange(chain.length, dtype=jnp.int32)
    chunks = partial(scan_in_chunks, length=chain.length, size=adjoint.chunk(chain))

    def steps(index: Array, inputs: Leaves) -> tuple[TracedChain, Callable[..., Leaves], Any]:
        """Consecutive steps, as a chain, and as a function with its differentiated leaves."""
        here = dataclasses.replace(chain, inputs=inputs, length=len(index), offset=index[0])
        return here, lambda z, x, c: moved.put(here, x, c)(z), moved.of(here)[1:]

    def system(unknown: Any) -> Any:
        t, (dz, dx, dc) = unknown
        _, f, primals = steps(index, chain.inputs)
        starts = chain.before(moved.enter(initial, dz), t)
        pushed = jax.jvp(f, (states, *primals), (starts, dx, dc))[1]
        left = [a - b for a, b in zip(t, pushed, strict=True)], (dz, dx, dc)
        return scaled(left, one_of((states, *primals)))

    def solve(_: Any, right: Any) -> Any:
        b, (dz, dx, dc) = right

        def chunk(enter: Leaves, part: Any) -> tuple[Leaves, Leaves]:
            index, z, inputs, b, dx = part
            here, f, primals = steps(index, inputs)
            pushed = jax.jvp(partial(f, z), primals, (dx, dc))[1]
            t = adjoint.forward(here, z, add(b, pushed), enter)
            return [leaf[-1] for leaf in t], t

        parts = index, states, chain.inputs, b, dx
        return chunks(chunk, moved.enter(initial, dz), parts)[1], (dz, dx, dc)

    def transpose_solve(_: Any, right: Any) -> Any:
        g, (by_initial, by_inputs, by_captured) = right

        def chunk(carry: Any, part: Any) -> tuple[Any, tuple[Leaves, Leaves]]:
            enter, totals = carry
            index, z, inputs, g = part
            here, f, primals = steps(index, inputs)
            lam, leave = adjoint.backward(here, z, g, enter)
            _, pull = jax.vjp(partial(f, z), *primals)
            from_x, from_c = plain_gradients(pull)(lam)
            return (leave, add(totals, from_c)), (lam, from_x)

        begin = [jnp.zeros_like(z) for z in initial], by_captured
        parts = index, states, chain.inputs, g
        (leave, by_captured), (lam, from_x) = chunks(chunk, begin, parts, reverse=True)
        return lam, (add(by_initial, moved.initial.of(leave)), add(by_inputs, from_x), by_captured)

    right = [jnp.zeros_like(z) for z in states], moved.tangents
    arguments = linear_system(system, linear_in(right, right), solve, transpose_solve)
    try:
        found = lax.custom_linear_solve(*arguments)
    except Exception:
        if not chain.step.forwards_only:  # or the differentiated part is transposable
            raise
        found = lax.custom_linear_solve(*arguments[:3])
        return _as_transposable_as_the_step(chain, states, moved, found[0])
    t: Leaves = linear_in(found[0], found)
    return t


def _as_transposable_as_the_step(
    chain: TracedChain, states: Leaves, moved: _Moved, t: Leaves
) -> Leaves:
    """``t``, made to depend on the tangents of the step, applied to zero steps.

    Forward mode works, at no cost. Reverse mode reaches the operation for which jax raises its own
    error.
    """
    none = dataclasses.replace(chain, inputs=[x[:0] for x in chain.inputs], length=0, axis=LOCAL)

    def f(z: Leaves, x: Leaves, c: Leaves) -> Leaves:
        return moved.put(none, x, c)(z)

    _, x, c = moved.of(none)
    _, dx, dc = moved.tangents
    before, starts, dx = ([leaf[:0] for leaf in leaves] for leaves in (states, t, dx))
    nothing = nothing_of(jax.jvp(f, (before, x, c), (starts, dx, dc))[1])
    return [leaf + zeros_of(nothing, leaf) for leaf in t]
