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
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from deeppcr.arrays.state import Leaves
from deeppcr.chain.chain import Chain, TracedChain, trace_chain
from deeppcr.chain.step import Extended
from deeppcr.checks import check_type
from deeppcr.programs.retrace import retyped
from deeppcr.sharding.devices import ChainSharding, MeshAxis, check_mesh_axis
from deeppcr.sharding.solver import Sharded, select
from deeppcr.solution import Run

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
    program, constants = retyped(chain.step.jaxpr)
    inputs: Any = chain.step.input_of(chain.inputs)
    if numbers := chain.inputs[chain.step.input_tree.num_leaves :]:
        inputs = Extended(inputs, numbers)
    input_tree: Any = jax.tree.structure(inputs)
    step = dataclasses.replace(chain.step, jaxpr=program, input_tree=input_tree)
    captured = [*chain.captured, *map(jnp.asarray, constants)]

    function = step.as_function(captured)
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

    inputs = step.input_of([more(x) for x in chain.inputs])
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
    is_traced = isinstance(x, jax.core.Tracer)
    sharding = jax.typeof(x).sharding if is_traced else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return None
    return ChainSharding(mesh=sharding.mesh, mesh_axis=sharding.spec[0])
