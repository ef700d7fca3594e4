"""Chains over many devices: where they are, and how to put them there.

A chain lies along one axis of a mesh: the p-th of P devices holds the p-th shard of its steps, with
their parameters, states and Jacobian blocks. It is solved where it is: devices send each other a
state, a number, or the summary of a shard, and nothing that grows with L. A chain that runs from
the last of its inputs to the first has its first shard on the last device, so its inputs stay where
they are, too. Any of these says which axis that is:

- the inputs of the chain: arrays with a `jax.sharding.NamedSharding` whose first axis is sharded.
  Inside `jax.jit` jax knows only mesh axes of the type `Explicit`, so for `Auto` ones, there:
- a chain that `shard` has put on a mesh: it remembers;
- ``Newton(linear=Sharded(mesh, axis))`` or ``adjoint=Sharded(mesh, axis)``.

Other axes of the mesh are free: a batch that is sharded over one of them stays so.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint import Adjoint
from deeppcr.axis import ChainSharding, MeshAxis, check_mesh_axis, count_devices
from deeppcr.chain import Chain, TracedChain, trace_chain
from deeppcr.checks import describe_type
from deeppcr.linear import Sharded
from deeppcr.newton import Newton
from deeppcr.rewrites.retype import retyped
from deeppcr.solution import Run

__all__ = ["shard"]


def shard(chain: Chain, mesh: Mesh, axis: MeshAxis = "chain") -> Chain:
    """Put the inputs of a chain on a mesh, equal shards of its steps on the devices along ``axis``.

    Args:
        chain: a `Chain`.
        mesh: of devices, as `jax.make_mesh` makes it; it may be one of several processes.
        axis: the name of the axis along which the chain lies, or several names. What lies along
            other axes is the caller's choice: the batch of an initial state, by `jax.device_put`.

    Returns:
        the chain, which remembers where it is, inside `jax.jit`, too. If L is not divisible by the
        number of devices, its inputs are on all of them, since jax divides arrays evenly: then each
        device only computes its shard.

    Raises:
        ValueError: the mesh has no such axis.
        TypeError: ``chain`` is no chain, or ``mesh`` no mesh.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("chain",))
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 64))
        >>> chain = deeppcr.sharding.shard(chain, mesh)
        >>> chain.inputs.sharding.spec[0]
        'chain'
        >>> deeppcr.solve(chain, jnp.array(0.5)).trajectory.shape
        (64,)
    """
    if not isinstance(chain, Chain):
        raise TypeError(
            f"chain is {describe_type(chain)}, expected a deeppcr.Chain; "
            "for layers: Chain.from_layers(layers, x)."
        )
    check_mesh_axis(mesh, axis)
    even = (chain.length or 0) % count_devices(mesh, axis) == 0
    inputs = jax.device_put(chain.inputs, NamedSharding(mesh, P(axis) if even else P()))
    return dataclasses.replace(
        chain, inputs=inputs, sharding=ChainSharding(mesh=mesh, mesh_axis=axis)
    )


def find_sharding(inputs: Any, known: ChainSharding | None, *users: Any) -> ChainSharding | None:
    """The chain's sharding; None on one device.

    It is ``known`` from `shard`, or told by its inputs, or by a method or an adjoint.

    Raises:
        ValueError: these differ.
    """
    found = [known, *map(_of_solver, users), *map(_of_array, jax.tree.leaves(inputs))]
    several = list(dict.fromkeys(one for one in found if one is not None and one.size > 1))
    axes = {one.mesh_axis for one in several}
    if len(axes) > 1:
        raise ValueError(
            f"the chain is sharded over several mesh axes, {sorted(map(str, axes))}; "
            "expected one for all of it."
        )
    return several[0] if several else None


def without_shardings(chain: TracedChain) -> TracedChain:
    """The chain traced anew, for a program in which the shardings of arrays are not written."""
    program, constants = retyped(chain.step.jaxpr)
    step = dataclasses.replace(chain.step, jaxpr=program)
    captured = [*chain.captured, *map(jnp.asarray, constants)]

    function = step.as_function(captured)
    return dataclasses.replace(chain, function=function, step=step, captured=captured)


def shardings_of(chain: TracedChain, sharding: ChainSharding) -> Run:
    """How the results lie on the mesh on which the chain was traced: a `PartitionSpec` each."""
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
        states,
    )


def lengthened(chain: TracedChain) -> TracedChain:
    """The chain with steps added at its end, if need be, so that all shards are equal."""
    added = -chain.length % chain.axis.size
    if not added:
        return chain
    step, initial = chain.step, chain.initial

    def function(state: Any, inputs: Any) -> tuple[Any, Any]:
        x, alive = inputs
        # An added step is the first one, which is known to be harmless, and its result is dropped
        # for a state that depends on no other.
        start = jax.tree.unflatten(step.state_tree, initial)
        assert chain.function is not None
        after, outputs = chain.function(_select(alive, state, start), x)
        after = jax.tree.map(lambda a, z: jnp.asarray(a, z.dtype), after, state)
        return _select(alive, after, start), outputs

    def more(x: Any) -> Any:
        first = lax.stop_gradient(x[:1])
        return jnp.concatenate([x, jnp.broadcast_to(first, (added, *x.shape[1:]))])

    inputs = jax.tree.unflatten(step.input_tree, [more(x) for x in chain.inputs])
    alive = jnp.arange(chain.length + added) < chain.length
    state = jax.tree.unflatten(step.state_tree, initial)
    batch_ndim = len(chain.layout.batch_shape)
    length = chain.length + added
    longer = trace_chain(function, state, (inputs, alive), length, batch_ndim, "z0")
    return dataclasses.replace(longer, axis=chain.axis)


def shortened(run: Run, length: int) -> Run:
    """The run of the first ``length`` steps alone."""
    stats = dataclasses.replace(run.stats, prefix=jnp.minimum(run.stats.prefix, length))
    return dataclasses.replace(
        run,
        trajectory=[z[:length] for z in run.trajectory],
        outputs=[y[:length] for y in run.outputs],
        stats=stats,
    )


def _select(condition: Any, yes: Any, no: Any) -> Any:
    return jax.tree.map(
        lambda a, b: lax.select(jnp.broadcast_to(condition, a.shape), a, b), yes, no
    )


def _of_solver(user: Any) -> ChainSharding | None:
    """The sharding that a method or an adjoint asks for."""
    solver = user.linear if isinstance(user, Newton | Adjoint) else user
    if not isinstance(solver, Sharded):
        return None
    return ChainSharding(mesh=solver.mesh, mesh_axis=solver.axis)


def _of_array(x: Any) -> ChainSharding | None:
    """The sharding of an array along axis 0, if it is known."""
    is_traced = isinstance(x, jax.core.Tracer)
    sharding = jax.typeof(x).sharding if is_traced else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return None
    if not sharding.mesh.axis_names:
        return None
    return ChainSharding(mesh=sharding.mesh, mesh_axis=sharding.spec[0])
