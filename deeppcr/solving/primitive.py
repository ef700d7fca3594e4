"""`solve_chain_p`: the solution of a chain as a jax primitive, with its own rule for `jax.vmap`.

Otherwise `jax.vmap` would map the program for one example. The primitive is batched as a whole: to
the solution of one chain of all examples, which is planned and differentiated as such. Everywhere
else it is replaced by the function `solve`, which is run and differentiated. (`jax.custom_batching`
has no reverse mode.)
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from deeppcr.adjoint import pushes
from deeppcr.arrays.avals import like, varying_axes
from deeppcr.arrays.partition import partition
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.eager import compiled_once, program_key
from deeppcr.chain.examples import differing
from deeppcr.chain.part import leaves_read
from deeppcr.lower import by_platform, is_eager, platforms
from deeppcr.newton import Newton
from deeppcr.programs.calls import Call, communicates, without_unused
from deeppcr.programs.signature import Signed
from deeppcr.solution import Run
from deeppcr.solving.problem import Problem, converted_structure, solution_of, step_of
from depth.jaxprs import HoldsProgram, Program, constants_of

solve = jax.custom_jvp(solution_of)
"""The solution, differentiable in the arrays of the chain, to every order."""


@partial(solve.defjvp, symbolic_zeros=True)
def _rule(primals: tuple[Problem], tangents: tuple[Problem]) -> tuple[Run, Run]:
    (problem,), (moves,) = primals, tangents

    def primal(chain: TracedChain) -> Run:
        run: Run = solve(dataclasses.replace(problem, chain=chain))
        return run

    found, moved, _ = pushes(problem.adjoints(), primal, problem.chain, moves.chain)
    run, *pushed = by_platform(found)(moved)
    return run, run.with_tangents(*pushed)


solve_chain_p = Call("solve_chain")


@dataclasses.dataclass(frozen=True, eq=False)
class _Uses:
    """Which results of the ``whole`` program are ``used``: those of ``call_jaxpr``, in order."""

    used: tuple[bool, ...]
    whole: Any

    def of(self, results: Sequence[Any]) -> list[Any]:
        """The results that are used."""
        return list(compress(results, self.used))


@dataclasses.dataclass(frozen=True, eq=False)
class _Structures(Signed, HoldsProgram):
    """The tree structures of the problem and its solution; too long to print.

    ``mapped``: the programs of `jax.vmap` of this equation.
    """

    problem: Any
    run: Any
    mapped: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return f"{self.problem.num_leaves} -> {self.run.num_leaves} leaves"

    @property
    def program(self) -> Program:
        """See `HoldsProgram`: the user's step."""
        return step_of(self.problem).jaxpr

    def converted(self, convert: Callable[[Program], Program]) -> Self:
        """See `HoldsProgram`."""
        return dataclasses.replace(self, problem=converted_structure(self.problem, convert))

    @property
    def signature(self) -> Any | None:
        """See `Signed`: with it, the structure of the problem determines the solution."""
        return program_key(self.problem)


def bind_problem(
    problem: Problem, keeps_states: bool = True
) -> tuple[Callable[[], Sequence[Any]], Any]:
    """A function that returns the leaves of the solution, and the structure of the solution.

    ``keeps_states``: whether an eager solution has a trajectory, if it has a last state.
    """
    leaves, tree = jax.tree.flatten(problem)
    if is_eager(leaves):
        found = compiled_once(_solution, (tree, keeps_states), leaves)
        leaves, tree = jax.tree.flatten(found)
        return partial(list, leaves), tree
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        # A new object each time, so that jax caches nothing for it.
        program, run = jax.make_jaxpr(partial(solve), return_shape=True)(problem)
        if not _closes_over_tracers(program):
            structures = _Structures(tree, jax.tree.structure(run))
            params = {"call_jaxpr": program, "structures": structures}
            return partial(Primitive.bind, solve_chain_p, *leaves, **params), structures.run
    # Nothing is mapped; or a function of the user's closes over arrays that jax traces.
    leaves, tree = jax.tree.flatten(solve(problem))
    return partial(list, leaves), tree


def _closes_over_tracers(program: Any) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in constants_of(program))


def _solution(static: tuple[Any, bool], leaves: Sequence[Any]) -> Run:
    tree, keeps_states = static
    bind, out = bind_problem(jax.tree.unflatten(tree, leaves))
    run: Run = jax.tree.unflatten(out, bind())
    return run if keeps_states or not run.last else dataclasses.replace(run, trajectory=[])


def _abstract(
    *_: Any, call_jaxpr: Any, structures: _Structures, uses: _Uses | None = None
) -> tuple[list[Any], Any]:
    return list(call_jaxpr.out_avals), call_jaxpr.effects


def _without_unused(used: Sequence[bool], *given: Any) -> tuple[list[bool], Any]:
    """The equation without results that nobody reads: XLA removes none of those of a function.

    ``given``: the equation, since jax 0.12 after other values.
    """
    equation, params = given[-1], given[-1].params
    all_operands = [True] * len(equation.invars)
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    if all(used) or "uses" in params:
        return all_operands, equation
    reads, equation, used = _of_states_read(equation, used)
    params = equation.params
    uses = _Uses(tuple(used), params["call_jaxpr"])
    program = without_unused(uses.whole, used, instantiate=True)[0]
    params = {**params, "call_jaxpr": program, "uses": uses}
    return reads, equation.replace(outvars=uses.of(equation.outvars), params=params)


def _of_states_read(equation: Any, used: Sequence[bool]) -> tuple[list[bool], Any, Sequence[bool]]:
    """The equation of the leaves of the state that results which are used depend on.

    Others might not converge. Statistics are those of these leaves. Also which operands it has, and
    which of its results are used.
    """
    structures, count = equation.params["structures"], len(equation.invars)
    unchanged = [True] * count, equation, used
    run: Run = jax.tree.unflatten(structures.run, range(len(used)))
    outputs = [used[i] for i in run.outputs]
    states = [used[i] for i in run.trajectory]
    states = [a or used[i] for a, i in zip(states, run.last, strict=True)] if run.last else states
    if all(states) or varying_axes([x.aval for x in equation.invars]):
        return unchanged
    problem: Problem = jax.tree.unflatten(structures.problem, range(count))
    iterates = any(isinstance(each, Newton) for each in problem.methods().values())
    if not iterates or problem.chain.axis != LOCAL:
        return unchanged
    states = leaves_read(problem.chain.step, states, outputs)
    part = problem.part(states, outputs) if any(states) and not all(states) else None
    if part is None:
        return unchanged
    operands, tree = jax.tree.flatten(part)
    avals = jax.tree.unflatten(tree, [equation.invars[i].aval for i in operands])
    program, shapes = jax.make_jaxpr(partial(solve), return_shape=True)(avals)
    kept = dataclasses.replace(
        run,
        trajectory=partition(run.trajectory, states),
        outputs=partition(run.outputs, outputs),
        last=partition(run.last, states),
    )
    results = jax.tree.leaves(kept)
    params = {"call_jaxpr": program, "structures": _Structures(tree, jax.tree.structure(shapes))}
    equation = equation.replace(
        invars=[equation.invars[i] for i in operands],
        outvars=[equation.outvars[i] for i in results],
        params=params,
    )
    reads = set(operands)
    return [i in reads for i in range(count)], equation, [used[i] for i in results]


def _arrays(operands: Sequence[Any]) -> list[Any]:
    """The operands as arrays; inside a program jax may pass numbers."""
    return [
        jnp.asarray(x, x.dtype) if isinstance(x, bool | int | float | complex) else x  # type: ignore[union-attr]
        for x in operands
    ]


def _push(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call_jaxpr: Any,
    structures: _Structures,
    uses: _Uses | None = None,
) -> tuple[list[Any], list[Any]]:
    primals = _arrays(primals)
    both = primals, tangents
    problem, moves = (jax.tree.unflatten(structures.problem, leaves) for leaves in both)

    def primal(chain: TracedChain) -> Run:
        if chain.step is problem.chain.step:
            params = {"call_jaxpr": uses.whole if uses else call_jaxpr, "structures": structures}
            leaves, tree = solve_chain_p.bind(*primals, **params), structures.run
        else:
            bind, tree = bind_problem(dataclasses.replace(problem, chain=chain))
            leaves = bind()
        run: Run = jax.tree.unflatten(tree, leaves)
        return run

    found, moved, reached = pushes(problem.adjoints(), primal, problem.chain, moves.chain)
    run, t, by_outputs, last = by_platform(found)(moved)
    results = jax.tree.leaves(run)
    statistics = [None] * (len(results) - len(t) - len(by_outputs) - len(last))
    pushed = [*t, *by_outputs, *statistics, *last]
    has_tangent = [*reached, *[False] * len(statistics), *reached[: len(last)]]
    # A zero that is an array would make NaN of an infinite derivative.
    tangents_out = [
        dy if moves and dy.dtype != jax.dtypes.float0 else ad.Zero(jax.typeof(y).to_tangent_aval())
        for y, dy, moves in zip(results, pushed, has_tangent, strict=True)
    ]
    return (uses.of(results), uses.of(tangents_out)) if uses else (results, tangents_out)


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    call_jaxpr: Any,
    structures: _Structures,
    uses: _Uses | None = None,
) -> list[Any]:
    is_linear = list(map(ad.is_undefined_primal, operands))
    given = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]

    def program(*linear: Any) -> list[Any]:
        rest, pairs = iter(linear), zip(operands, is_linear, strict=True)
        leaves = [next(rest) if moves else leaf for leaf, moves in pairs]
        return list(compress(jaxpr_as_fun(call_jaxpr)(*leaves), given))

    # A linear program is its own derivative at zero. jax cannot transpose a loop until converged.
    avals = [each.aval for each in compress(operands, is_linear)]
    zeros = [like(jnp.zeros(each.shape, each.dtype), each) for each in avals]
    found = iter(jax.vjp(program, *zeros)[1](list(compress(cotangents, given))))
    return [next(found) if moves else None for moves in is_linear]


def _map(
    axis: Any,
    operands: Sequence[Any],
    axes: Sequence[Any],
    *,
    call_jaxpr: Any,
    structures: _Structures,
    uses: _Uses | None = None,
) -> tuple[list[Any], list[int | None]]:
    if uses:
        found = _map(axis, operands, axes, call_jaxpr=uses.whole, structures=structures)
        return uses.of(found[0]), uses.of(found[1])
    problem: Problem = jax.tree.unflatten(structures.problem, operands)
    params = {"call_jaxpr": call_jaxpr, "structures": structures}
    is_on_mesh = axis.spmd_name is not None or axis.explicit_mesh_axis is not None
    meets = communicates(call_jaxpr, axis.name)
    if not meets and all(each is None for each in axes):
        results = solve_chain_p.bind(*operands, **params)
        return results, [None] * len(results)
    if is_on_mesh or meets or not problem.can_be_mapped(axis.size, axes):
        # Examples interact, or a mesh divides them: map the program for one.
        program = jaxpr_as_fun(call_jaxpr)
        names = {"axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
        mapped = jax.vmap(program, in_axes=tuple(axes), axis_size=axis.size, **names)
        leaves, along = mapped(*operands), 0
    else:
        along = 1
        leaves = _of_examples(axis.size, operands, axes, structures)
    on_axes: list[int | None] = [0] * len(leaves)
    on: Run = jax.tree.unflatten(structures.run, range(len(leaves)))
    of_steps = [*on.trajectory, *on.outputs]
    own = len(jax.tree.leaves(problem.arrays))
    if any(each is not None for each in axes[len(axes) - own :]):
        differ = [True] * len(of_steps)  # within the tolerance
    else:
        differ = differing(problem.chain.step, axis.size, axes, axis.name)
    for index, differs in zip((*of_steps, *on.last), (*differ, *differ), strict=False):
        at = along if index in of_steps else 0
        if not differs:  # all examples have the same
            leaves[index] = lax.index_in_dim(leaves[index], 0, at, keepdims=False)
        on_axes[index] = at if differs else None
    return leaves, on_axes


def _of_examples(
    size: int, operands: Sequence[Any], axes: Sequence[Any], structures: _Structures
) -> list[Any]:
    """The leaves of the solution of the chain of all examples."""

    def run(*operands: Any) -> list[Any]:
        problem: Problem = jax.tree.unflatten(structures.problem, operands)
        return list(bind_problem(problem.of_examples(size, axes))[0]())

    if is_eager(operands):
        return run(*operands)
    # Traced once: a step that solves a chain is mapped wherever it is applied.
    key = size, tuple(axes), platforms(), tuple(map(jax.typeof, operands))
    program = structures.mapped.get(key) or jax.make_jaxpr(run)(*operands)
    if not _closes_over_tracers(program):
        structures.mapped[key] = program
    return list(jaxpr_as_fun(program)(*operands))


solve_chain_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[solve_chain_p] = _push
ad.primitive_transposes[solve_chain_p] = _transpose
batching.fancy_primitive_batchers[solve_chain_p] = _map
pe.dce_rules[solve_chain_p] = _without_unused
