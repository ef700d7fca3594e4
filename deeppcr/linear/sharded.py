"""A chain in equal parts, one on each device: each part becomes one affine map, and the devices combine log2(P) times.

A part that is entered with the state s is left with ``T s + v``, where ``(T, v)`` are its steps composed,

    (A, b) after (A', b') = (A A', A b' + b).

1. Every device composes its own steps, pair by pair: log2(L/P) rounds of products, and no messages.
2. The devices compose what they have with what the device 1, 2, 4, .. places before them has (Hillis & Steele, *Data parallel
   algorithms*, CACM 1986): log2(P) rounds, and in each a message of one block and one vector.
3. Now each knows the state that enters its part, and any solver does the rest.

What is sent does not depend on L.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChainAxis, ChainSharding, DeviceAxis, MeshAxis, check_mesh_axis
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.choose import find_solver
from deeppcr.linear.solver import LinearSolver, Solve
from deeppcr.linear.step_by_step import solve_step_by_step


@dataclasses.dataclass(frozen=True)
class Sharded(LinearSolver):
    """The linear recurrence over the devices along one axis of a mesh.

    As ``Newton(linear=Sharded(mesh, "chain"))`` or ``adjoint=Sharded(mesh, "chain")`` it says where the whole chain is, as the
    sharding of the chain's inputs does: see `deeppcr.sharding`.

    Attributes:
        mesh: a `jax.sharding.Mesh`; inside a `jax.shard_map` over other axes, `jax.sharding.get_abstract_mesh()`.
        axis: the name of its axis along which the chain lies, or several names.
        inside: what solves the part on each device: a solver or its name, see `deeppcr.solve_bidiagonal`.

    Raises:
        ValueError: the mesh has no such axis.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("chain",))
        >>> A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.array([[1.0], [1.0], [1.0]])
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Sharded(mesh, "chain"))[:, 0]
        Array([ 1.,  4., 17.], dtype=float32)
    """

    mesh: Any
    axis: MeshAxis
    inside: str | LinearSolver = "auto"

    def __post_init__(self) -> None:
        check_mesh_axis(self.mesh, self.axis)
        if isinstance(find_solver(self.inside), Sharded):
            raise TypeError(
                f"inside is {self.inside!r}, expected a solver for the part on one device."
            )

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return self._per_shard(LinearSolver.solve, blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return self._per_shard(LinearSolver.solve_transposed, blocks, g, reverse)

    def _composes(self, blocks: Blocks) -> bool:
        return False  # the parts do, and look after it

    def _per_shard(
        self,
        solve: Callable[[LinearSolver, Blocks, Array, bool], Array],
        blocks: Blocks,
        b: Array,
        reverse: bool,
    ) -> Array:
        """``solve(solver, blocks, b, reverse)`` with the solver of each device."""
        sharding = ChainSharding(mesh=self.mesh, mesh_axis=self.axis)
        length = blocks.length
        missing = -length % sharding.size
        solver = solver_on(sharding, self)

        def padded(leaf: Array) -> Array:
            # At the end of the chain: nothing depends on it, and its zeros depend on nothing.
            low, high = (missing, 0) if reverse else (0, missing)
            return lax.pad(
                leaf, leaf.dtype.type(0), [(low, high, 0), *[(0, 0, 0)] * (leaf.ndim - 1)]
            )

        if missing:
            blocks, b = jax.tree.map(padded, (blocks, b))
        run = sharding.per_shard(
            lambda blocks, b: solve(solver, blocks, b, reverse), sharding.along, sharding.along
        )
        y: Array = run(blocks, b)
        return Along(reverse=reverse).first(y, length) if missing else y

    def __str__(self) -> str:
        return f"sharded over {self.axis!r}"


def solver_on(axis: ChainAxis, solver: LinearSolver) -> LinearSolver:
    """The solver for the steps on one device, inside `jax.shard_map` if there are several."""
    inside = find_solver(solver.inside) if isinstance(solver, Sharded) else solver
    shard = axis.shard if isinstance(axis, ChainSharding) else axis
    return ShardSolver(shard, inside) if isinstance(shard, DeviceAxis) else inside


@dataclasses.dataclass(frozen=True)
class ShardSolver(LinearSolver):
    """The solver of one device inside `jax.shard_map`, for its shard of the chain."""

    chain_axis: DeviceAxis
    inside: LinearSolver

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        entering = self._entering(blocks, b, self._towards(reverse), reverse)
        return self.inside.solve_unguarded(
            blocks, self._entered(blocks, b, entering, reverse), reverse
        )

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return self._transposed(self._solve, blocks, g, reverse)

    def _sequential(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        def run(entering: Array, own: Array) -> tuple[Array, Array]:
            y = solve_step_by_step(blocks, self._entered(blocks, own, entering, reverse), reverse)
            return Along(reverse=reverse).last(y, 1), y

        return self._towards(reverse).sequentially(run, jnp.zeros_like(b[:1]), b)[1]

    def _sequential_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return self._transposed(self._sequential, blocks, g, reverse)

    @property
    def _axis(self) -> ChainAxis:
        return self.chain_axis

    def _stand_alone(self, blocks: Blocks, b: Array) -> bool:
        """Here even a single step depends on another."""
        return b.size == 0 or isinstance(blocks, Zeros)

    def _transposed(self, solve: Solve, blocks: Blocks, g: Array, reverse: bool) -> Array:
        transposed = blocks.transpose()
        mu = solve(transposed, transposed.apply(g), not reverse)
        return g + self._towards(not reverse).before(jnp.zeros_like(mu[0]), mu)

    def _entered(self, blocks: Blocks, b: Array, entering: Array, reverse: bool) -> Array:
        """``b`` of a shard with the state before it, for a solver that starts at zero."""
        along, is_first = Along(reverse=reverse), self._towards(reverse).rank == 0
        # The first block of the chain meets a zero and is never looked at: it may be anything.
        start = jax.tree.map(
            lambda leaf: lax.select(lax.full(leaf.shape, is_first), lax.full_like(leaf, 0), leaf),
            along.first(blocks, 1),
        )
        return along.join(along.first(b, 1) + start.apply(entering), along.last(b, len(b) - 1))

    def _entering(self, blocks: Blocks, b: Array, axis: DeviceAxis, reverse: bool) -> Array:
        """The state before this shard: ``[1, *batch, w]``."""
        laid, vectors, restore = blocks.lay_out(b)
        part = _composed(laid, vectors, Along(laid.axis, reverse))
        distance = 1
        while distance < self.chain_axis.size:
            product, offset = axis.shift(part, distance)
            mine, own = part
            there = axis.rank >= distance
            joined = (mine.compose(product), mine.apply(offset) + own)
            part = jax.tree.map(
                lambda new, old, there=there: lax.select(lax.full(new.shape, there), new, old),
                joined,
                part,
            )
            distance *= 2
        return restore(axis.shift(part[1]))

    def _towards(self, reverse: bool) -> DeviceAxis:
        return self.chain_axis.reversed if reverse else self.chain_axis


def _composed(blocks: Blocks, b: Array, along: Along) -> tuple[Blocks, Array]:
    """All steps as one: ``(T, v)``, each with a chain of one step."""
    while (length := along.length(b)) > 1:
        rest = along.last((blocks, b), 1)
        (early, early_b), (late, late_b) = along.halves(
            along.first((blocks, b), length - length % 2)
        )
        blocks, b = late.compose(early), late.apply(early_b) + late_b
        if length % 2:
            blocks = jax.tree.map(along.join, blocks, rest[0])
            b = along.join(b, rest[1])
    return blocks, b
