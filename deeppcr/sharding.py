"""Chains over many devices: where they are, and how to put them there.

A chain lies along one axis of a mesh: the p-th of P devices holds the p-th part of its steps, with their parameters, states and
Jacobian blocks. It is solved where it is (`deeppcr.across`): devices send each other a state, a number, or the summary of a part,
and nothing that grows with L. Which axis that is, is said by any of

- the inputs of the chain: arrays with a `jax.sharding.NamedSharding` whose first axis is sharded. Inside `jax.jit` jax tells only
  of mesh axes of the type `Explicit`, so for `Auto` ones, there:
- a chain that `place` has put on a mesh: it remembers;
- ``Newton(linear=Sharded(mesh, axis))`` or ``adjoint=Sharded(mesh, axis)``.

Other axes of the mesh are free: a batch that is sharded over one of them stays so.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from deeppcr.across import Axis, Spread, check_axis, devices_along, with_auto_axes
from deeppcr.adjoint import Adjoint
from deeppcr.chain import Chain, Problem, pose
from deeppcr.linear import Sharded
from deeppcr.newton import Newton
from deeppcr.retype import retyped
from deeppcr.solution import Run
from deeppcr.state import Leaves


def place(chain: Chain, mesh: Mesh, axis: Axis = "chain") -> Chain:
    """Put the inputs of a chain on a mesh, equal parts of its steps on the devices along ``axis``.

    Args:
        chain: a `Chain`.
        mesh: of devices, as `jax.make_mesh` makes it; it may be one of several processes.
        axis: the name of the axis along which the chain lies, or several names. What lies along other axes is the caller's
            choice: the batch of an initial state, by `jax.device_put`.

    Returns:
        the chain, which remembers where it is, inside `jax.jit`, too. If L is not divisible by the number of devices, its inputs
        are on all of them, since jax divides arrays evenly: then each device only computes its part.

    Raises:
        ValueError: the mesh has no such axis.
        TypeError: ``chain`` is no chain, or ``mesh`` no mesh.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("chain",))
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 64))
        >>> chain = deeppcr.sharding.place(chain, mesh)
        >>> chain.inputs.sharding.spec[0]
        'chain'
        >>> deeppcr.solve(chain, jnp.array(0.5)).trajectory.shape
        (64,)
    """
    if not isinstance(chain, Chain):
        raise TypeError(
            f"chain is {type(chain).__name__}, expected a deeppcr.Chain; for layers: Chain.from_layers(layers, x)."
        )
    check_axis(mesh, axis)
    even = (chain.length or 0) % devices_along(mesh, axis) == 0
    inputs = jax.device_put(chain.inputs, NamedSharding(mesh, P(axis) if even else P()))
    return dataclasses.replace(chain, inputs=inputs, spread=Spread(mesh=mesh, axis=axis))


def where(inputs: Any, known: Spread | None, *users: Any) -> Spread | None:
    """Where a chain is: ``known`` from `place`, as its inputs lie, or as a method or an adjoint says; None for one device.

    Raises:
        ValueError: these differ.
    """
    return _agreed([known, *map(_of_solver, users), *map(_of_array, jax.tree.leaves(inputs))])


def on_explicit_mesh(
    run: Callable[[Problem, Spread], Any],
    problem: Problem,
    spread: Spread,
    mesh: AbstractMesh,
    out: Any,
) -> Any:
    """``run(problem, spread)`` for a problem on a mesh with explicit axes; ``out`` as in `deeppcr.across.with_auto_axes`."""

    def inside(initial: Leaves, inputs: Leaves, captured: Leaves) -> Any:
        here = dataclasses.replace(spread, mesh=jax.sharding.get_abstract_mesh())
        return run(_anew(problem, initial, inputs, captured), here)

    return with_auto_axes(inside, mesh, out, problem.initial, problem.inputs, problem.captured)


def _anew(problem: Problem, initial: Leaves, inputs: Leaves, captured: Leaves) -> Problem:
    """The problem with other arrays, for a program in which their shardings are not written."""
    program, constants = retyped(problem.step.jaxpr)
    step, captured = (
        dataclasses.replace(problem.step, jaxpr=program),
        [*captured, *map(jnp.asarray, constants)],
    )

    def function(state: Any, inputs: Any) -> tuple[Any, Any]:
        state, outputs = step.with_outputs(
            jax.tree.leaves(state), jax.tree.leaves(inputs), captured
        )
        return jax.tree.unflatten(step.state_tree, state), jax.tree.unflatten(
            step.output_tree, outputs
        )

    return dataclasses.replace(
        problem, function=function, step=step, initial=initial, inputs=inputs, captured=captured
    )


class Specs(NamedTuple):
    """How results lie on a mesh: pytrees of `PartitionSpec`."""

    value: Any
    trajectory: Any
    outputs: Any


def specs_of(problem: Problem, spread: Spread) -> Specs:
    """How the results of a chain lie on an explicit mesh: as its arrays do, in which it was traced."""
    step, axis = problem.step, (spread.axis or None) if problem.length % spread.size == 0 else None
    states = [jax.typeof(z).sharding.spec for z in problem.initial]
    outputs = [y.aval.sharding.spec for y in step.jaxpr.outvars[step.states :]]
    return Specs(
        jax.tree.unflatten(step.state_tree, states),
        jax.tree.unflatten(step.state_tree, [P(axis, *spec) for spec in states]),
        jax.tree.unflatten(step.output_tree, [P(axis, *spec) for spec in outputs]),
    )


def lengthened(problem: Problem) -> Problem:
    """The chain with steps at its end, so that every device has as many."""
    length = problem.length + -problem.length % problem.across.size
    step, initial = problem.step, problem.initial

    def function(state: Any, inputs: Any) -> tuple[Any, Any]:
        x, alive = inputs
        # A step that is not the chain's is one that is known to be harmless, the first, and its result is dropped for a state
        # that depends on no other.
        start = jax.tree.unflatten(step.state_tree, initial)
        after, outputs = problem.function(_choose(alive, state, start), x)
        return _choose(
            alive, jax.tree.map(lambda a, z: jnp.asarray(a, z.dtype), after, state), start
        ), outputs

    def more(x: Any) -> Any:
        first = lax.stop_gradient(x[:1])
        return jnp.concatenate(
            [x, jnp.broadcast_to(first, (length - problem.length, *x.shape[1:]))]
        )

    inputs = jax.tree.unflatten(step.input_tree, [more(x) for x in problem.inputs])
    alive = jnp.arange(length) < problem.length
    state = jax.tree.unflatten(step.state_tree, initial)
    longer = pose(function, state, (inputs, alive), length, len(problem.layout.batch_shape), "z0")
    return dataclasses.replace(longer, across=problem.across, original=problem)


def shortened(run: Run, length: int) -> Run:
    """What is the chain's own of a solution of the lengthened one."""
    stats = dataclasses.replace(run.stats, prefix=jnp.minimum(run.stats.prefix, length))
    return Run(
        [z[:length] for z in run.trajectory], [y[:length] for y in run.outputs], stats, run.result
    )


def _agreed(said: list[Spread | None]) -> Spread | None:
    """What has been said of where a chain is."""
    found = list(dict.fromkeys(one for one in said if one is not None and one.size > 1))
    axes = {one.axis for one in found}
    if len(axes) > 1:
        raise ValueError(
            f"the chain is sharded over several mesh axes, {sorted(map(str, axes))}; expected one for all of it."
        )
    return found[0] if found else None


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    return jax.tree.map(
        lambda a, b: lax.select(jnp.broadcast_to(condition, a.shape), a, b), yes, no
    )


def _of_solver(user: Any) -> Spread | None:
    """Where a method or an adjoint says that the chain is."""
    solver = user.linear if isinstance(user, Newton | Adjoint) else user
    return Spread(mesh=solver.mesh, axis=solver.axis) if isinstance(solver, Sharded) else None


def _of_array(x: Any) -> Spread | None:
    """Where an array carries the chain, if it is known."""
    sharding = (
        jax.typeof(x).sharding if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
    )
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return None
    if not sharding.mesh.axis_names:
        return None
    return Spread(mesh=sharding.mesh, axis=sharding.spec[0])
