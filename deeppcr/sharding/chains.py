"""Chains sharded over many devices.

A chain is sharded along one axis of a mesh: the p-th of P devices holds the p-th shard of its
steps, with their parameters, states and Jacobian blocks. The chain is solved in place: devices
exchange a state, a scalar, or the composition of a shard, and nothing that grows with L. A reverse
scan has its first steps on the last device, so its inputs do not move, either. The mesh axis is
known from

- the inputs of the chain: arrays with a `jax.sharding.NamedSharding` whose axis 0 is sharded.
  Inside `jax.jit`, jax exposes only mesh axes of type `Explicit`
- a chain returned by `shard`, which stores it
- ``Newton(linear=Sharded(mesh, axis))`` or ``adjoint=Sharded(mesh, axis)``.

A batch that is sharded over another axis of the mesh remains so.

The linear recurrence is solved shard by shard, combined in log2(P) rounds of messages (`Sharded`).
A shard whose first step starts from the state s ends with ``T s + v``, where ``(T, v)`` is the
composition of its steps: see `deeppcr.linear.reduction`.

1. Every device composes its own steps, pair by pair: log2(L/P) rounds of products, no messages.
2. Every device composes its map with that of the device 1, 2, 4, .. before it (Hillis & Steele,
   *Data parallel algorithms*, CACM 1986): log2(P) rounds, each with a message of one block and one
   vector. So it knows the state before its shard.
3. Every device solves its shard from there, with any solver.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from deeppcr.arrays import Leaves, is_traced
from deeppcr.axis import ChainAxis
from deeppcr.chain.chain import Chain, TracedChain, trace_chain
from deeppcr.chain.step import Extended
from deeppcr.checks import check_type, describe
from deeppcr.linear.blocks import Blocks, Zeros
from deeppcr.linear.named import find_solver
from deeppcr.linear.reduction import Maps, after
from deeppcr.linear.solver import Along, LinearSolver
from deeppcr.programs.retrace import Retrace
from deeppcr.sharding.devices import ChainSharding, DeviceAxis, MeshAxis, check_mesh_axis
from deeppcr.solution import Run


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


# -- chains ----------------------------------------------------------------------------------------

T = TypeVar("T")


def shard(chain: Chain, mesh: Mesh, axis: MeshAxis = "chain") -> Chain:
    """Shard the steps of a chain evenly over the devices along a mesh axis.

    Args:
        chain: a `Chain` with inputs ``[L, ...]``.
        mesh: a `jax.sharding.Mesh`, as `jax.make_mesh` returns it; it may span several processes.
        axis: the name of the mesh axis over which the chain is sharded, or a tuple of names. To
            shard a batch over another axis, place the initial state by `jax.device_put`.

    Returns:
        the chain with its inputs sharded along axis 0. It stores the mesh axis, which is so known
        inside `jax.jit`, too. If L is not divisible by the number of devices, the inputs are
        replicated, because jax shards only evenly; then only the work is divided.

    Raises:
        ValueError: the mesh has no such axis.
        TypeError: ``chain`` is not a `Chain`, or ``mesh`` is not a mesh.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("chain",))
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 64))
        >>> chain = deeppcr.sharding.shard(chain, mesh)
        >>> chain.inputs.sharding.spec[0]
        'chain'
        >>> deeppcr.solve(chain, jnp.array(0.5)).trajectory.shape
        (64,)
    """
    check_type("chain", chain, Chain, "a deeppcr.Chain; for layers: Chain.from_layers(layers, x)")
    check_mesh_axis(mesh, axis)
    sharding = ChainSharding(mesh=mesh, mesh_axis=axis)
    spec = P() if (chain.length or 0) % sharding.size else sharding.along
    inputs = jax.device_put(chain.inputs, NamedSharding(mesh, spec))
    return dataclasses.replace(chain, inputs=inputs, sharding=sharding)


def find_sharding(inputs: Any, stored: ChainSharding | None, *users: Any) -> ChainSharding | None:
    """The chain's sharding; None on one device.

    It is ``stored`` by `shard`, or that of its inputs, of a method or of an adjoint.

    Raises:
        ValueError: these differ.
    """
    everyone = [stored, *map(_of_solver, users), *map(_of_array, jax.tree.leaves(inputs))]
    shardings = [one for one in everyone if one is not None and one.size > 1]
    axes = {one.mesh_axis for one in shardings}
    if len(axes) > 1:
        raise ValueError(
            f"the chain is sharded over several mesh axes, {sorted(map(str, axes))}; "
            "expected one for all of it."
        )
    return shardings[0] if shardings else None


def on_shards(
    f: Callable[..., T], solver: Any, chain: TracedChain, *leaves: Leaves, specs: Any, out: Any
) -> T:
    """``f(solver, chain, *leaves)`` on every shard of a chain at once.

    ``specs``: the `PartitionSpec` of ``solver`` and of each of ``leaves``; ``out``: of the result.
    """
    sharding = chain.axis
    assert isinstance(sharding, ChainSharding)

    in_specs = specs[0], chain.sharded(sharding.along, P()), *specs[1:]
    run = sharding.per_shard(
        lambda solver, chain, *leaves: f(solver, chain.shard(sharding.shard), *leaves),
        in_specs,
        out,
    )
    return run(solver, chain, *leaves)


def without_shardings(chain: TracedChain) -> TracedChain:
    """The chain, retraced without the shardings of arrays in its types."""
    program, constants = Retrace().program(chain.step.jaxpr)
    inputs: Any = chain.step.input_of(chain.inputs)
    if numbers := chain.inputs[chain.step.input_tree.num_leaves :]:
        inputs = Extended(inputs, numbers)
    input_tree: Any = jax.tree.structure(inputs)
    step = dataclasses.replace(chain.step, jaxpr=program, input_tree=input_tree)
    captured = [*chain.captured, *map(jnp.asarray, constants)]

    def function(state: Any, inputs: Any) -> tuple[Any, Any]:
        leaves = jax.tree.leaves(state), jax.tree.leaves(inputs)
        after, outputs = step.with_outputs(*leaves, captured)
        return (
            jax.tree.unflatten(step.state_tree, after),
            jax.tree.unflatten(step.output_tree, outputs),
        )

    return dataclasses.replace(chain, function=function, step=step, captured=captured)


def shardings_of(chain: TracedChain, sharding: ChainSharding) -> Run:
    """The `PartitionSpec` of every result, on the mesh that the chain was traced with."""
    step = chain.step
    axis = (sharding.mesh_axis or None) if chain.length % sharding.size == 0 else None
    states = [jax.typeof(z).sharding.spec for z in chain.initial]
    outputs = [y.aval.sharding.spec for y in step.jaxpr.outvars[step.states :]]
    replicated: Any = P()
    return Run(
        [P(axis, *spec) for spec in states],
        [P(axis, *spec) for spec in outputs],
        replicated,
        replicated,
        replicated,
        states,
    )


def lengthened(chain: TracedChain) -> TracedChain:
    """The chain, padded with steps at its end so that all shards are equal."""
    added = -chain.length % chain.axis.size
    if not added:
        return chain
    step, length = chain.step, chain.length + added
    start = jax.tree.unflatten(step.state_tree, chain.initial)

    def function(state: Any, inputs: Any) -> tuple[Any, Any]:
        x, alive = inputs
        # An added step repeats the first one, which is known to be defined. Its result is replaced
        # by a state that depends on no other.
        other = lax.stop_gradient(start)
        assert chain.function is not None
        after, outputs = chain.function(select(alive, state, other), x)
        after = jax.tree.map(lambda a, z: jnp.asarray(a, z.dtype), after, state)
        return select(alive, after, other), outputs

    def more(x: Any) -> Any:
        first = lax.stop_gradient(x[:1])
        return jnp.concatenate([x, jnp.broadcast_to(first, (added, *x.shape[1:]))])

    inputs = step.input_of(list(map(more, chain.inputs)))
    alive = jnp.arange(length) < chain.length
    batch_ndim = len(chain.layout.batch_shape)
    longer = trace_chain(function, start, Extended(inputs, alive), length, batch_ndim, "z0")
    return dataclasses.replace(longer, axis=chain.axis)


def shortened(run: Run, length: int) -> Run:
    """The run of the first ``length`` steps."""
    return dataclasses.replace(
        run,
        trajectory=[z[:length] for z in run.trajectory],
        outputs=[y[:length] for y in run.outputs],
        stats=dataclasses.replace(run.stats, prefix=jnp.minimum(run.stats.prefix, length)),
    )


def _of_solver(user: Any) -> ChainSharding | None:
    """The sharding that a method or an adjoint specifies."""
    solver = getattr(user, "linear", user)
    if not isinstance(solver, Sharded):
        return None
    return ChainSharding(mesh=solver.mesh, mesh_axis=solver.axis)


def _of_array(x: Any) -> ChainSharding | None:
    """The sharding of an array along axis 0, if it is known."""
    sharding = jax.typeof(x).sharding if is_traced(x) else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return None
    return ChainSharding(mesh=sharding.mesh, mesh_axis=sharding.spec[0])
