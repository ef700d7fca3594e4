"""A chain in equal shards, one per device, combined in log2(P) rounds of messages.

A shard whose first step starts from the state s ends with ``T s + v``, where ``(T, v)`` is the
composition of its steps: see `reduction`.

1. Every device composes its own steps, pair by pair: log2(L/P) rounds of products, no messages.
2. Every device composes its map with that of the device 1, 2, 4, .. before it (Hillis & Steele,
   *Data parallel algorithms*, CACM 1986): log2(P) rounds, each with a message of one block and one
   vector. So it knows the state before its shard.
3. Every device solves its shard from there, with any solver.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import ChainAxis
from deeppcr.checks import describe
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.named import find_solver
from deeppcr.linear.reduction import Maps, after
from deeppcr.linear.solver import Along, LinearSolver
from deeppcr.sharding.devices import ChainSharding, DeviceAxis, MeshAxis, check_mesh_axis


@dataclasses.dataclass(frozen=True)
class Sharded(LinearSolver):
    """Solve the recurrence on the devices along a mesh axis, each on its shard of the steps.

    $log_2 P$ messages of one block and one vector for P devices, whatever L is.
    ``Newton(linear=Sharded(mesh, "chain"))`` or ``adjoint=Sharded(mesh, "chain")`` shards the whole
    chain, as `deeppcr.sharding.shard` does.

    Attributes:
        mesh: a `jax.sharding.Mesh`; inside a `jax.shard_map` over other axes,
            `jax.sharding.get_abstract_mesh()`.
        axis: the name of the mesh axis over which the chain is sharded, or a tuple of names.
        inside: the solver for the shard of each device, or its name; see
            `deeppcr.solve_bidiagonal`.

    Raises:
        ValueError: the mesh has no such axis.
        TypeError: ``inside`` is itself `Sharded`, or ``mesh`` is not a mesh.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("chain",))
        >>> A, b = jnp.array([[2.0], [3.0], [4.0]]), jnp.array([[1.0], [1.0], [1.0]])
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.Sharded(mesh, "chain"))[:, 0]
        Array([ 1.,  4., 17.], dtype=float32)

    References:
        W. D. Hillis, G. L. Steele, *Data Parallel Algorithms*, Communications of the ACM 29, 1986.
    """

    mesh: Any
    axis: MeshAxis
    inside: str | LinearSolver = "auto"

    def __post_init__(self) -> None:
        check_mesh_axis(self.mesh, self.axis)
        if isinstance(find_solver(self.inside, "inside"), Sharded):
            raise TypeError(
                f"inside is {describe(self.inside)}, expected a solver for the shard of one device."
            )

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        return self._per_shard(LinearSolver.solve, blocks, b, reverse)

    def _solve_transposed(self, blocks: Blocks, g: Array, reverse: bool) -> Array:
        return self._per_shard(LinearSolver.solve_transposed, blocks, g, reverse)

    def multiplies(self, blocks: Blocks) -> bool:
        return False  # the solver of each shard does, and is judged itself

    def _per_shard(
        self,
        solve: Callable[[LinearSolver, Blocks, Array, bool], Array],
        blocks: Blocks,
        b: Array,
        reverse: bool,
    ) -> Array:
        """``solve(solver, blocks, b, reverse)`` with the solver of each device."""
        sharding = ChainSharding(mesh=self.mesh, mesh_axis=self.axis)
        along = Along(reverse=reverse)
        solver = solver_on(sharding, self)
        run = sharding.per_shard(
            lambda blocks, b: solve(solver, blocks, b, reverse), sharding.along, sharding.along
        )
        y: Array = run(*along.padded((blocks, b), -len(b) % sharding.size))
        return along.first(y, len(b)) if len(b) % sharding.size else y

    def __str__(self) -> str:
        return f"sharded over {self.axis!r}"


def solver_on(axis: ChainAxis, solver: LinearSolver) -> LinearSolver:
    """The solver for the shard of one device, inside `jax.shard_map` if there are several."""
    inside = find_solver(solver.inside) if isinstance(solver, Sharded) else solver
    shard = axis.shard if isinstance(axis, ChainSharding) else axis
    return ShardSolver(shard, inside) if isinstance(shard, DeviceAxis) else inside


@dataclasses.dataclass(frozen=True)
class ShardSolver(LinearSolver):
    """The solver of one device inside `jax.shard_map`, for its shard of the chain."""

    chain_axis: DeviceAxis
    inside: LinearSolver

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        axis = self._towards(reverse)
        along = Along(reverse=reverse)
        arrays, vectors, restore = blocks.to_struct_of_arrays(b)
        composed = _composed((arrays, vectors), Along(arrays.axis, reverse))
        initial = restore(_state_before(composed, axis))
        # The first block of the chain is ignored, even if it is NaN.
        start = along.first(blocks, 1)
        start = select(axis.rank == 0, jax.tree.map(jnp.zeros_like, start), start)
        b_first = along.first(b, 1) + start.apply(initial)
        b = along.join(b_first, along.last(b, len(b) - 1))
        return self.inside.solve_unguarded(blocks, b, reverse)

    def is_decoupled(self, blocks: Blocks, b: Array) -> bool:
        """Even a shard of one step depends on the shard before it."""
        return b.size == 0 or isinstance(blocks, Zeros)

    def _towards(self, reverse: bool) -> DeviceAxis:
        return self.chain_axis.reversed if reverse else self.chain_axis


def _state_before(composed: Maps, axis: DeviceAxis) -> Array:
    """The state before this shard, zero before the first, from the composition of its steps."""
    distance = 1
    while distance < axis.size:
        is_late = axis.rank >= distance
        composed = select(is_late, after(composed, axis.shift(composed, distance)), composed)
        distance *= 2
    return axis.shift(composed[1])


def _composed(maps: Maps, along: Along) -> Maps:
    """The composition of all steps, as the map of one step."""
    while (length := along.length(maps)) > 1:
        last = along.last(maps, 1)
        early, late = along.halves(along.first(maps, length - length % 2))
        maps = after(late, early)
        if length % 2:
            maps = jax.tree.map(along.join, maps, last)
    return maps


def select(condition: Any, tree: Any, otherwise: Any) -> Any:
    """Leaf by leaf, ``tree`` if the scalar ``condition`` is true, else ``otherwise``."""
    return jax.tree.map(
        lambda yes, no: lax.select(lax.full(yes.shape, condition), yes, no), tree, otherwise
    )
