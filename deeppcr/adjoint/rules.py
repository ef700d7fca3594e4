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
`deeppcr.linear.linear_map.LinearMap`, this one rule gives forward mode, reverse mode and their
compositions. It keeps the trajectory from the forward pass, and no Jacobian.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.custom_vjp import differentiated
from deeppcr.adjoint.jacobian import Adjoint
from deeppcr.adjoint.transposed import moving, pullback
from deeppcr.arrays.partition import combine, partition
from deeppcr.arrays.state import Leaves, add
from deeppcr.axis import LOCAL, ChainSharding
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.lower import each, scan_in_chunks
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential, run_loop
from deeppcr.sharding import on_shards
from deeppcr.solution import Run, last_of
from depth.jaxprs import is_literal, moved_by

Tangents = tuple[Leaves, Leaves, Leaves]  # of the initial state, the inputs, captured arrays
Pushed = tuple[Run, Leaves, Leaves, Leaves]


class AdjointSolver(Protocol):
    """Propagates tangents along a chunk of the chain, or one shard of it, and cotangents back.

    ``A_l = df/dz(z_{l-1})`` at known states ``z_0 .. z_{L-1}``. A pytree.
    """

    def chunk(self, chain: TracedChain) -> int:
        """The number of steps to solve at once; the chunks follow one another."""

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """``t_l = A_l t_{l-1} + b_l`` with ``t_0 = enter``."""

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``g_L`` plus ``enter``; and ``A_1^T lam_1``."""


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
    """

    with_states: bool = False
    with_stats: bool = False
    unroll: int = 1

    def push(
        self, solve: Callable[[], Run], chain: TracedChain, moves: "_Moves", tangents: Tangents
    ) -> Pushed:
        """See `pushes`."""

        def program(z: Leaves, x: Leaves, c: Leaves) -> tuple[Leaves, Leaves, Leaves]:
            initial = combine(chain.initial, moves.initial, z)
            return run_loop(moves.put(chain, x, c), initial, self.unroll)

        found, pushed = jax.jvp(program, moves.of(chain), tangents)
        (last, states, outputs), (of_last, t, by_outputs) = found, pushed
        if chain.axis != LOCAL:
            last = of_last = []
        if not self.with_states:
            return solve(), t, by_outputs, of_last
        if self.with_stats:
            run = dataclasses.replace(solve(), trajectory=states, outputs=outputs, last=last)
        else:
            run = Run.of_sequential(chain, states, outputs, last)
        return run, t, by_outputs, of_last


def resolve_adjoint(
    adjoint: Adjoint | Backpropagation | Autodiff | None, method: object, chain: TracedChain
) -> AdjointSolver | Autodiff:
    """The adjoint of a chain that ``method`` solves; ``method`` is None for "auto"."""
    has_rule = chain.step.has_custom_vjp and not getattr(adjoint, "linear_vjp", False)
    if isinstance(adjoint, Autodiff) and not has_rule and isinstance(chain.axis, ChainSharding):
        adjoint = Backpropagation()  # the same, shard after shard
    is_uneven = not chain.step.varies_like_state
    if adjoint is None or isinstance(adjoint, Autodiff) or has_rule or is_uneven:
        is_newton = isinstance(method, Newton)
        autodiff = adjoint if isinstance(adjoint, Autodiff) else Autodiff()
        unroll = max(autodiff.unroll, method.unroll if isinstance(method, Sequential) else 1)
        # Second derivatives differentiate what a rule computes, the values included, and not the
        # function: the states have to be those of the run that is differentiated.
        with_states = has_rule or not is_newton or chain.step.has_users_rule
        return dataclasses.replace(
            autodiff, with_states=with_states, with_stats=is_newton, unroll=unroll
        )
    if not isinstance(adjoint, Adjoint):
        return adjoint
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(chain)


def pushes(
    adjoints: Mapping[str, AdjointSolver | Autodiff],
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    tangents: TracedChain,
) -> tuple[Mapping[str, Callable[[Tangents], Pushed]], Tangents]:
    """A function per platform that runs a chain with its tangents, and the tangents to pass to it.

    It returns the run, and the tangents of its states, of its outputs, and of its last state, if
    the run has that. ``solve`` runs the chain, unless ``Autodiff`` does, with its step or with one
    of the same values.
    """
    z, x, c = map(moving, _parts(chain), _parts(tangents))
    moves = _Moves(z[0], x[0], c[0])
    found = {
        name: partial(_push, adjoint, solve, chain, moves) for name, adjoint in adjoints.items()
    }
    return found, (z[1], x[1], c[1])


def _parts(chain: TracedChain) -> tuple[Leaves, Leaves, Leaves]:
    return chain.initial, chain.inputs, chain.captured


class _Moves(NamedTuple):
    """Which leaves of a chain are differentiated: the ``v`` of the linear system."""

    initial: Sequence[bool]
    inputs: Sequence[bool]
    captured: Sequence[bool]

    def reach_states(self, step: Step) -> bool:
        """Whether any state of a chain of this step depends on these leaves."""
        program = step.evaluated
        variables = [*program.invars[step.states :], *program.constvars]
        moved = moved_by(program, partition(variables, (*self.inputs, *self.captured)))
        next_state = [z for z in program.outvars[: step.states] if not is_literal(z)]
        return any(self.initial) or not moved.isdisjoint(next_state)

    def of(self, chain: TracedChain) -> Tangents:
        """``(z_0, x, c)``, the differentiated leaves of a chain."""
        z, x, c = map(partition, _parts(chain), self)
        return z, x, c

    def put(self, chain: TracedChain, x: Leaves, c: Leaves) -> TracedChain:
        """The chain, with its differentiated leaves replaced by ``x`` and ``c``."""
        inputs, captured = map(combine, _parts(chain)[1:], self[1:], (x, c))
        return dataclasses.replace(chain, inputs=inputs, captured=captured)

    def enter(self, like: Leaves, dz: Leaves) -> Leaves:
        """The tangent of the initial state: ``dz``, and zero for other leaves."""
        return combine([jnp.zeros_like(z) for z in like], self.initial, dz)


def _push(
    adjoint: AdjointSolver | Autodiff,
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    moves: _Moves,
    tangents: Tangents,
) -> Pushed:
    """See `pushes`."""
    if isinstance(adjoint, Autodiff):
        return adjoint.push(partial(solve, chain), chain, moves, tangents)
    step, own = differentiated(chain.step)
    run = solve(dataclasses.replace(chain, step=own))
    chain = dataclasses.replace(chain, step=step)
    states = chain.before(chain.initial, run.trajectory)

    def outputs(x: Leaves, c: Leaves, z: Leaves, after: Leaves) -> Leaves:
        return moves.put(chain, x, c).outputs(z, after)

    dz, dx, dc = tangents
    _, x, c = moves.of(chain)
    if not moves.reach_states(step):  # but outputs, as the weights of a readout do
        f = partial(outputs, z=states, after=run.trajectory)
        none = [list(map(jnp.zeros_like, leaves)) for leaves in (run.trajectory, run.last)]
        return run, none[0], jax.jvp(f, (x, c), (dx, dc))[1], none[1]
    t = solved(*_linear_system(chain, states, moves, tangents, adjoint))
    starts = chain.before(moves.enter(chain.initial, dz), t)
    by_outputs = jax.jvp(outputs, (x, c, states, run.trajectory), (dx, dc, starts, t))[1]
    return run, t, by_outputs, list(map(last_of, t)) if run.last else []


def _linear_system(
    chain: TracedChain, states: Leaves, moves: _Moves, tangents: Tangents, adjoint: AdjointSolver
) -> tuple[LinearMap, Leaves, tuple[Leaves, Tangents]]:
    """The linear system above of the tangents ``t_1 .. t_L``, for `solved`."""
    known, tree = jax.tree.flatten((chain, states, adjoint))
    functions = (partial(f, moves, tree) for f in (_solve, _solve_transposed, _product))
    return LinearMap(*functions), known, ([jnp.zeros_like(z) for z in states], tangents)


class _System(NamedTuple):
    """The linear system of the tangents of a chain.

    Attributes:
        moves: what is differentiated.
        chain: with its arrays.
        states: ``z_0 .. z_{L-1}``.
        forward: see `AdjointSolver`; of a chunk, or of all shards.
        backward: see `AdjointSolver`.
        size: the steps of a chunk.
    """

    moves: _Moves
    chain: TracedChain
    states: Leaves
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    size: int

    @classmethod
    def of(cls, moves: _Moves, tree: Any, known: Leaves) -> Self:
        """Of a chain, its states and its adjoint, of this structure and with these arrays."""
        chain, states, adjoint = jax.tree.unflatten(tree, known)
        if not isinstance(chain.axis, ChainSharding):
            size = adjoint.chunk(chain)
            return cls(moves, chain, states, adjoint.forward, adjoint.backward, size)
        along, kind = chain.axis.along, type(adjoint)
        specs = P(), along, along, P()
        forward = partial(on_shards, kind.forward, adjoint, specs=specs, out=along)
        backward = partial(on_shards, kind.backward, adjoint, specs=specs, out=(along, P()))
        return cls(moves, chain, states, forward, backward, chain.length)

    @property
    def initial(self) -> Leaves:
        """Zeros, shaped like the initial state."""
        return [jnp.zeros_like(z, shape=z.shape[1:]) for z in self.states]

    @property
    def indices(self) -> Array:
        """Of the steps: int32."""
        return jnp.arange(self.chain.length, dtype=jnp.int32)

    def steps(self, index: Array, inputs: Leaves) -> tuple[TracedChain, Callable[..., Leaves], Any]:
        """Consecutive steps, as a chain, and as a function with its differentiated leaves."""
        here = dataclasses.replace(self.chain, inputs=inputs, length=len(index), offset=index[0])
        return here, lambda z, x, c: self.moves.put(here, x, c)(z), self.moves.of(here)[1:]

    @property
    def in_chunks(self) -> Callable[..., Any]:
        """Runs ``f(carry, part)``, chunk after chunk."""
        return partial(scan_in_chunks, length=self.chain.length, size=self.size)


def _product(moves: _Moves, tree: Any, known: Leaves, x: tuple[Leaves, Tangents]) -> Leaves:
    """``A_l t_{l-1}`` and the terms of ``v``."""
    system, (t, (dz, dx, dc)) = _System.of(moves, tree, known), x
    _, f, primals = system.steps(system.indices, system.chain.inputs)
    starts = system.chain.before(moves.enter(system.initial, dz), t)
    found: Leaves = jax.jvp(f, (system.states, *primals), (starts, dx, dc))[1]
    return found


def _solve(moves: _Moves, tree: Any, known: Leaves, x: tuple[Leaves, Tangents]) -> Leaves:
    """The tangents."""
    system, (b, (dz, dx, dc)) = _System.of(moves, tree, known), x

    def chunk(enter: Leaves, part: Any) -> tuple[Leaves, Leaves]:
        index, z, inputs, b, dx = part
        here, f, primals = system.steps(index, inputs)
        pushed = jax.jvp(partial(f, z), primals, (dx, dc))[1]
        t = system.forward(here, z, add(b, pushed), enter)
        return [leaf[-1] for leaf in t], t

    parts = system.indices, system.states, system.chain.inputs, b, dx
    t: Leaves = system.in_chunks(chunk, moves.enter(system.initial, dz), parts)[1]
    return t


def _solve_transposed(
    moves: _Moves, tree: Any, known: Leaves, g: Leaves
) -> tuple[Leaves, Tangents]:
    """The adjoint states, and the cotangents of ``v``."""
    system = _System.of(moves, tree, known)

    def chunk(carry: Any, part: Any) -> tuple[Any, tuple[Leaves, Leaves]]:
        enter, totals = carry
        index, z, inputs, g = part
        here, f, primals = system.steps(index, inputs)
        lam, leave = system.backward(here, z, g, enter)
        from_x, from_c = each(pullback(partial(f, z), *primals))(lam)
        return (leave, add(totals, from_c)), (lam, from_x)

    start = system.initial, list(map(jnp.zeros_like, moves.of(system.chain)[2]))
    parts = system.indices, system.states, system.chain.inputs, g
    (leave, from_c), (lam, from_x) = system.in_chunks(chunk, start, parts, reverse=True)
    return lam, (partition(leave, moves.initial), from_x, from_c)
