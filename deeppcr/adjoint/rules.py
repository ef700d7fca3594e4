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
from typing import Any, Literal, Protocol, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint.backpropagation import Backpropagation, InOrder, is_in_order
from deeppcr.adjoint.jacobian import Adjoint
from deeppcr.adjoint.tangents import Moves, TangentEquations, Tangents, moving, parts, pullback
from deeppcr.arrays import Leaves, add, combine, partition
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.kept import keeping
from deeppcr.chain.part import leaves_reached, variables_pulled
from deeppcr.checks import check_count
from deeppcr.linear.linear_map import LinearMap, Part, solved
from deeppcr.lower import each, scan_in_chunks
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential, run_in_segments, run_loop
from deeppcr.sharding import ChainSharding, on_shards
from deeppcr.solution import Run, last_of

Pushed = tuple[Run, Leaves, Leaves, Leaves]


class AdjointSolver(Protocol):
    """Propagates tangents along a chunk of the chain, or one shard of it, and cotangents back.

    ``A_l = df/dz(z_{l-1})`` at known states ``z_0 .. z_{L-1}``. A pytree.
    """

    def of_part(self, chain: TracedChain) -> "AdjointSolver | None":
        """The same for some leaves of the state; None if it is bound to all of them."""

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

    Required for steps with a `jax.custom_vjp`: its rule need not be linear (gradient clipping, the
    example in jax's documentation, is not), so it must be applied as in the sequential program.

    Attributes:
        with_states: whether the states are those of this run, so that there is no other. Nonlinear
            rules require it: in second derivatives, cotangents of the states and of their tangents
            must be added in one run, to be clipped as one sum.
        with_stats: whether the method runs, too, for its statistics.
        unroll: the number of steps per trip of the loops, an integer >= 1.
        checkpoint: steps of a segment. The derivative keeps the first state of each, and computes
            the others again. None: it keeps what it reads of all steps.
    """

    with_states: bool = False
    with_stats: bool = False
    unroll: int = 1
    checkpoint: int | None = None

    def __post_init__(self) -> None:
        check_count("checkpoint", self.checkpoint, "number of steps", optional=True)

    def push(
        self, solve: Callable[[], Run], chain: TracedChain, moves: "Moves", tangents: Tangents
    ) -> Pushed:
        """See `pushes`."""

        def program(z: Leaves, x: Leaves, c: Leaves) -> tuple[Leaves, Leaves, Leaves]:
            initial = combine(chain.initial, moves.initial, z)
            run = partial(run_loop, unroll=self.unroll)
            if self.checkpoint:
                run = partial(run_in_segments, size=self.checkpoint)
            return run(moves.put(chain, x, c), initial)

        results, pushed = jax.jvp(program, moves.of(chain), tangents)
        last, states, outputs = results
        of_last, t, by_outputs = pushed
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
    adjoint: Adjoint | Backpropagation | Autodiff | None,
    method: object,
    chain: TracedChain,
    loops: bool,
) -> AdjointSolver | Autodiff:
    """The adjoint of a chain that ``method`` solves; ``method`` is None for "auto".

    ``loops``: whether the states are those of a loop, which can keep more than these.
    """
    has_rule, is_newton = chain.step.has_custom_vjp, isinstance(method, Newton)
    unroll = method.unroll if isinstance(method, Sequential) else 1
    if isinstance(adjoint, Autodiff) and not has_rule and chain.axis.is_sharded:
        adjoint = Backpropagation()  # the same, shard after shard
    is_left = has_rule or chain.step.has_traced_rule or not chain.step.varies_like_state
    if adjoint is None or isinstance(adjoint, Autodiff) or is_left:
        autodiff = adjoint if isinstance(adjoint, Autodiff) else Autodiff()
        unroll = max(autodiff.unroll, unroll)
        # Second derivatives differentiate what a rule computes, the values included, and not the
        # function: the states have to be those of the run that is differentiated.
        with_states = has_rule or not is_newton or chain.step.has_users_rule
        return dataclasses.replace(
            autodiff, with_states=with_states, with_stats=is_newton, unroll=unroll
        )
    if not isinstance(adjoint, Adjoint):
        return dataclasses.replace(adjoint, keeps=loops, unroll=unroll)
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(chain, isinstance(method, Newton) and method.fused)


def pushes(
    adjoints: Mapping[str, AdjointSolver | Autodiff],
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    tangents: TracedChain,
) -> tuple[Mapping[str, Callable[[Tangents], Pushed]], Tangents, list[bool]]:
    """A function per platform that runs a chain with its tangents, and the tangents to pass to it.

    It returns the run, and the tangents of its states, of its outputs, and of its last state, if
    the run has that. ``solve`` runs the chain, unless ``Autodiff`` does, with its step or with one
    of the same values. Last, which leaves of the state, and which outputs, have a tangent at all.
    """
    z, x, c = map(moving, parts(chain), parts(tangents))
    moves = Moves(z[0], x[0], c[0])
    functions = {
        name: partial(_push, adjoint, solve, chain, moves) for name, adjoint in adjoints.items()
    }
    return functions, (z[1], x[1], c[1]), moves.results(chain.step)


def _push(
    adjoint: AdjointSolver | Autodiff,
    solve: Callable[[TracedChain], Run],
    chain: TracedChain,
    moves: Moves,
    tangents: Tangents,
) -> Pushed:
    """See `pushes`."""
    if isinstance(adjoint, Autodiff):
        return adjoint.push(partial(solve, chain), chain, moves, tangents)
    step = chain.step
    reached = moves.results(step)[: step.states]
    loops = adjoint if isinstance(adjoint, Backpropagation) and is_in_order(chain) else None
    values = None
    if loops and loops.keeps and any(reached):
        values = keeping(chain)
    run = solve(dataclasses.replace(chain, step=values.forward) if values else chain)
    if values:
        chain, run = values.split(chain, run)
        moves = moves.of_part([True] * step.states, len(chain.step.kept))
    states, after = chain.before(chain.initial, run.trajectory), run.trajectory
    if loops and any(reached):
        pushed = InOrder(moves, chain, states, loops).tangents(reached, tangents)
        return run, pushed.states, pushed.outputs, pushed.last if run.last else []
    dz, dx, dc = tangents
    _, x, c = moves.of(chain)
    equations = InChunks(moves, chain, states, adjoint)
    part = equations.of_part(reached, [True] * len(run.outputs))
    if part is None:
        part, reached = equations, [any(reached)] * step.states

    def outputs(x: Leaves, c: Leaves, z: Leaves, z_next: Leaves) -> Leaves:
        before = combine(states, reached, z)
        return moves.put(chain, x, c).outputs(before, combine(after, reached, z_next))

    # Outputs may move where no state does, as by the weights of a readout.
    t = []
    if any(reached):
        t = solved(*part.linear_map(), (list(map(jnp.zeros_like, part.states)), tangents))
    starts = part.chain.before(part.moves.enter(part.chain.initial, dz), t) if t else []
    primals = x, c, partition(states, reached), partition(after, reached)
    by_outputs: Leaves = jax.jvp(outputs, primals, (dx, dc, starts, t))[1]
    t = combine(list(map(jnp.zeros_like, after)), reached, t)
    return run, t, by_outputs, list(map(last_of, t)) if run.last else []


class InChunks(TangentEquations):
    """The equations of states, solved chunk after chunk; ``adjoint``: an `AdjointSolver`."""

    def of_part(self, leaves: Sequence[bool], outputs: Sequence[bool]) -> Self | None:
        """Those of some leaves of the state; None for all, and if the adjoint needs all."""
        if all(leaves) or not any(leaves):
            return None
        part = self.part(leaves, outputs)
        adjoint = self.adjoint.of_part(part.chain)
        return None if adjoint is None else part._replace(adjoint=adjoint)

    def linear_map(self) -> tuple[LinearMap, Leaves]:
        """Its solution, and the arrays that it depends on."""
        arrays, tree = jax.tree.flatten((self.chain, self.states, self.adjoint))
        parts = _solve, _solve_transposed, _product, _part
        functions: list[Any] = [partial(part, self.moves, tree) for part in parts]
        return LinearMap(*functions), arrays

    @property
    def indices(self) -> Array:
        """Of the steps: int32."""
        return jnp.arange(self.chain.length, dtype=jnp.int32)

    def steps(self, index: Array, inputs: Leaves) -> TracedChain:
        """Consecutive steps."""
        chain, length = self.chain, len(index)
        return dataclasses.replace(chain, inputs=inputs, length=length, offset=index[0])

    def solver(self, name: Literal["forward", "backward"]) -> Callable[..., Any]:
        """See `AdjointSolver`; of a chunk, or of all shards."""
        solve, axis = getattr(type(self.adjoint), name), self.chain.axis
        if not isinstance(axis, ChainSharding):
            return partial(solve, self.adjoint)
        out = axis.along if name == "forward" else (axis.along, P())
        specs = P(), axis.along, axis.along, P()
        return partial(on_shards, solve, self.adjoint, specs=specs, out=out)

    def in_chunks(self, f: Callable[..., Any], reverse: bool = False) -> Callable[..., Any]:
        """``f(carry, part)`` of all steps, chunk after chunk."""
        chain, length = self.chain, self.chain.length
        size = length if chain.axis.is_sharded else self.adjoint.chunk(chain)
        if size >= length:
            return f
        return partial(scan_in_chunks, f, length=length, size=size, reverse=reverse)


def _part(moves: Moves, tree: Any, used: Sequence[bool]) -> Part | None:
    """The system of the states that cotangents of the ``used`` leaves reach."""
    equations = InChunks(moves, *jax.tree.unflatten(tree, range(tree.num_leaves)))
    step = equations.chain.step
    reached = leaves_reached(step, used, [], variables_pulled)
    part = equations.of_part(reached, [False] * (len(step.jaxpr.outvars) - step.states))
    if part is None:
        return None
    map_, arrays = part.linear_map()
    return Part(map_, arrays, reached, (reached, moves.left(reached)))


def _product(moves: Moves, tree: Any, arrays: Leaves, x: tuple[Leaves, Tangents]) -> Leaves:
    """``A_l t_{l-1}`` and the terms of ``v``."""
    system = InChunks(moves, *jax.tree.unflatten(tree, arrays))
    t, (dz, dx, dc) = x
    steps = system.steps(system.indices, system.chain.inputs)
    starts = system.chain.before(moves.enter(system.initial, dz), t)
    primals = system.states, *moves.of(steps)[1:]
    return jax.jvp(lambda z, x, c: moves.put(steps, x, c)(z), primals, (starts, dx, dc))[1]


def _solve(moves: Moves, tree: Any, arrays: Leaves, x: tuple[Leaves, Tangents]) -> Leaves:
    """The tangents."""
    system = InChunks(moves, *jax.tree.unflatten(tree, arrays))
    b, (dz, dx, dc) = x

    def chunk(enter: Leaves, part: Any) -> tuple[Leaves, Leaves]:
        index, z, inputs, b, dx = part
        steps = system.steps(index, inputs)
        driven = jax.jvp(lambda x, c: moves.put(steps, x, c)(z), moves.of(steps)[1:], (dx, dc))[1]
        t = system.solver("forward")(steps, z, add(b, driven), enter)
        return [leaf[-1] for leaf in t], t

    parts = system.indices, system.states, system.chain.inputs, b, dx
    return system.in_chunks(chunk)(moves.enter(system.initial, dz), parts)[1]


def _solve_transposed(
    moves: Moves, tree: Any, arrays: Leaves, g: Leaves
) -> tuple[Leaves, Tangents]:
    """The adjoint states, and the cotangents of ``v``."""
    system = InChunks(moves, *jax.tree.unflatten(tree, arrays))

    def chunk(carry: Any, part: Any) -> tuple[Any, tuple[Leaves, Leaves]]:
        enter, totals = carry
        index, z, inputs, g = part
        steps = system.steps(index, inputs)
        lam, leave = system.solver("backward")(steps, z, g, enter)
        pull = pullback(lambda x, c: moves.put(steps, x, c)(z), *moves.of(steps)[1:])
        from_x, from_c = each(pull)(lam)
        return (leave, add(totals, from_c)), (lam, from_x)

    start = system.initial, list(map(jnp.zeros_like, moves.of(system.chain)[2]))
    parts = system.indices, system.states, system.chain.inputs, g
    (leave, from_c), (lam, from_x) = system.in_chunks(chunk, reverse=True)(start, parts)
    return lam, (partition(leave, moves.initial), from_x, from_c)
