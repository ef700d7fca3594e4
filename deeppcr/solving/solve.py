"""`solve_chain`, called by every function of the api: uneven lengths and explicit meshes.

The stations of a call: ``scan -> solve_chain -> solve -> by_platform -> NewtonSolver.solve ->
while_loop -> iteration``; docs/design.md names the file of each.
"""

import dataclasses
from typing import Any

import jax

from deeppcr.adjoint import Adjoint
from deeppcr.arrays.avals import explicit_mesh, with_auto_axes
from deeppcr.chain.chain import TracedChain
from deeppcr.choose import AdjointOption, MethodOption
from deeppcr.newton import Newton
from deeppcr.progress import report_end
from deeppcr.sharding import ChainSharding, lengthened, shardings_of, shortened, without_shardings
from deeppcr.solution import NotConverged, Result, Run, last_of
from deeppcr.solving.checkpoint import solve_in_segments
from deeppcr.solving.primitive import bind_problem
from deeppcr.solving.problem import Problem


def solve_chain(
    chain: TracedChain, method: MethodOption, adjoint: AdjointOption, keeps_states: bool = True
) -> Run:
    """Solve a chain of one or more steps, differentiably; the adjoint None stands for "auto".

    ``keeps_states``: whether the trajectory is read. Under `jax.jit`, XLA sees that itself.
    """
    arrays = chain.initial, chain.inputs, chain.captured
    if mesh := explicit_mesh(*arrays, shared=chain.axis.size > 1):
        return _solve_on_explicit_mesh(chain, method, adjoint, mesh)
    axis = chain.axis.on_auto_axes if isinstance(chain.axis, ChainSharding) else chain.axis
    unpadded = dataclasses.replace(chain, axis=axis)
    if axis.backwards:
        return _solve_backwards(unpadded, method, adjoint)
    if isinstance(adjoint, Adjoint) and (adjoint.checkpoint or unpadded.length) < unpadded.length:
        return _ended(solve_in_segments(unpadded, method, adjoint), method, unpadded.length)
    chain = lengthened(unpadded)
    bind, tree = bind_problem(Problem.of(chain, unpadded, method, adjoint), keeps_states)
    run: Run = jax.tree.unflatten(tree, bind())
    if chain.length > unpadded.length:
        run = shortened(run, unpadded.length)
    # Unevenly sharded arrays are replicated.
    get_last = axis.last if axis.size > 1 and unpadded.length % axis.size == 0 else last_of
    last = run.last or list(map(get_last, run.trajectory))
    return _ended(dataclasses.replace(run, last=last), method, unpadded.length)


def _ended(run: Run, method: MethodOption, length: int) -> Run:
    """The run, once its end has been reported to the user, or raised."""
    if isinstance(method, Newton) and method.on_failure == "raise":
        _raise_unless_converged(run, length)
    report_end(method.progress, length, run)
    return run


def _solve_backwards(chain: TracedChain, method: MethodOption, adjoint: AdjointOption) -> Run:
    """`solve_chain` from the last entry of the inputs on; the outputs are in their order."""
    axis, forwards = chain.axis, chain.axis.forwards(chain.length)
    chain = dataclasses.replace(chain, inputs=axis.flipped(chain.inputs), axis=forwards)
    run = solve_chain(chain, method, adjoint)
    return dataclasses.replace(run, outputs=axis.flipped(run.outputs))


def _solve_on_explicit_mesh(
    chain: TracedChain, method: MethodOption, adjoint: AdjointOption, mesh: Any
) -> Run:
    """`solve_chain` with the axes of the mesh as `Auto` ones."""
    sharding = chain.axis
    if not isinstance(sharding, ChainSharding):
        sharding = ChainSharding(sharding.backwards, mesh)

    def inside(initial: Any, inputs: Any, captured: Any) -> Run:
        on_auto_axes = dataclasses.replace(sharding, mesh=jax.sharding.get_abstract_mesh())
        arrays = dataclasses.replace(
            chain, initial=initial, inputs=inputs, captured=captured, axis=on_auto_axes
        )
        return solve_chain(without_shardings(arrays), method, adjoint)

    out = shardings_of(chain, sharding)
    return with_auto_axes(inside, mesh, out, chain.initial, chain.inputs, chain.captured)


def _raise_unless_converged(run: Run, length: int) -> None:
    try:
        result, prefix = int(run.result), int(run.stats.prefix)
        residual, iterations = float(run.stats.residual), int(run.stats.iterations)
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            'on_failure is "raise", which is not possible while jax traces the call '
            '(jit, vmap, scan): use on_failure="return" and check Solution.result.'
        ) from None
    if result not in (Result.CONVERGED, Result.PLATEAU):
        raise NotConverged(
            f"Newton did not converge: {prefix} of {length} states after {iterations} iterations, "
            f"largest relative residual {residual:.1e}."
        )
