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
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from deeppcr.adjoint import pushes
from deeppcr.arrays import avals_of, is_traced, like, partition, varying_axes
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.eager import compiled_once, program_key
from deeppcr.chain.examples import OF_RUN
from deeppcr.chain.part import leaves_reached, variables_read
from deeppcr.lower import by_platform, is_eager, kept
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
        return solve(dataclasses.replace(problem, chain=chain))

    push, directions, _ = pushes(problem.adjoints(), primal, problem.chain, moves.chain)
    run, *pushed = by_platform(push)(directions)
    return run, run.with_tangents(*pushed)


@dataclasses.dataclass(frozen=True, eq=False)
class _Structures(Signed, HoldsProgram):
    """The tree structures of the problem and its solution; too long to print.

    Attributes:
        problem: of the operands.
        run: of the whole solution.
        used: which of its leaves are results; empty for all.
        whole: the program of all of them, if the equation has some.
        mapped: the programs of `jax.vmap` of the whole equation.
    """

    problem: Any
    run: Any
    used: tuple[bool, ...] = ()
    whole: Any = None
    mapped: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.problem.num_leaves} -> {self.run.num_leaves} leaves"

    @property
    def program(self) -> Program:
        """See `HoldsProgram`: the user's step."""
        return step_of(self.problem).jaxpr

    def converted(self, convert: Callable[[Program], Program]) -> Self:
        """See `HoldsProgram`."""
        problem = converted_structure(self.problem, convert)
        return dataclasses.replace(self, problem=problem, mapped={})

    @property
    def signature(self) -> Any | None:
        """See `Signed`: with it, the structure of the problem determines the solution."""
        return program_key((self.problem, self.used))

    @property
    def of_steps(self) -> list[int]:
        """The indices of the states of all steps, of their outputs, and of the last state."""
        run: Run = jax.tree.unflatten(self.run, range(self.run.num_leaves))
        return [*run.trajectory, *run.outputs, *run.last]

    def of_used(self, rule: Callable[..., Any], *arguments: Any) -> tuple[list[Any], list[Any]]:
        """What a ``rule`` for the whole equation returns for the results that are used."""
        structures = dataclasses.replace(self, used=(), whole=None)
        results, beside = rule(*arguments, call_jaxpr=self.whole, structures=structures)
        return list(compress(results, self.used)), list(compress(beside, self.used))


class _SolvePrimitive(Call):
    """See `Call`; its derivatives, and the chain of all examples, are those of the problem."""

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        structures: _Structures = params["structures"]
        if structures.used:
            return structures.of_used(self._push, primals, tangents)
        numbers = bool, int, float, complex  # jax may pass some inside a program
        primals = [jnp.asarray(x, x.dtype) if isinstance(x, numbers) else x for x in primals]  # type: ignore[union-attr]
        both = primals, tangents
        problem, moves = (jax.tree.unflatten(structures.problem, leaves) for leaves in both)

        def primal(chain: TracedChain) -> Run:
            if chain.step is problem.chain.step:
                leaves, tree = self.bind(*primals, **params), structures.run
            else:
                bind, tree = bind_problem(dataclasses.replace(problem, chain=chain))
                leaves = bind()
            return jax.tree.unflatten(tree, leaves)

        push, directions, reached = pushes(problem.adjoints(), primal, problem.chain, moves.chain)
        run, t, by_outputs, last = by_platform(push)(directions)
        results = jax.tree.leaves(run)
        derivatives = jax.tree.leaves(run.with_tangents(t, by_outputs, last))
        has_tangent = dict(zip(structures.of_steps, [*reached, *reached], strict=False))
        # A zero that is an array would make NaN of an infinite derivative.
        pushed = [
            dy
            if has_tangent.get(i) and dy.dtype != jax.dtypes.float0
            else ad.Zero(jax.typeof(y).to_tangent_aval())
            for i, (y, dy) in enumerate(zip(results, derivatives, strict=True))
        ]
        return results, pushed

    def transposed(self, f: Callable[..., Any], *avals: Any) -> Callable[..., Any]:
        """See `Call`: that of its derivative. jax cannot transpose a loop until converged."""
        zeros = [like(jnp.zeros(each.shape, each.dtype), each) for each in avals]
        return jax.vjp(f, *zeros)[1]

    def _map_on(self, axis: Any, operands: Any, axes: Any, **params: Any) -> Any:
        structures: _Structures = params["structures"]
        if structures.used:
            return structures.of_used(self._map_on, axis, operands, axes)
        problem: Problem = jax.tree.unflatten(structures.problem, operands)
        is_on_mesh = axis.spmd_name is not None or axis.explicit_mesh_axis is not None
        meets = communicates(params["call_jaxpr"], axis.name)
        if is_on_mesh or meets or not problem.can_be_mapped(axis.size, axes):
            # Examples interact, or a mesh divides them: map the program for one.
            leaves, along = super()._map_on(axis, operands, axes, **params)
        else:
            leaves = _of_examples(axis.size, operands, axes, structures)
            run = jax.tree.unflatten(structures.run, leaves)
            along = jax.tree.leaves(jax.tree.broadcast(OF_RUN, run))
        if set(along) <= {None}:
            return leaves, along
        differ = problem.differing(axis.size, axes, axis.name)
        for index, differs in zip(structures.of_steps, (*differ, *differ), strict=False):
            if not differs:  # all examples have the same
                leaves[index] = lax.index_in_dim(leaves[index], 0, along[index], keepdims=False)
                along[index] = None
        return leaves, along


solve_chain_p = _SolvePrimitive("solve_chain")


def bind_problem(
    problem: Problem, keeps_states: bool = True
) -> tuple[Callable[[], Sequence[Any]], Any]:
    """A function that returns the leaves of the solution, and the structure of the solution.

    ``keeps_states``: whether an eager solution has a trajectory, if it has a last state.
    """
    leaves, tree = jax.tree.flatten(problem)
    if is_eager(leaves) and not problem.chain.step.has_traced_rule:  # `jax.jit` refuses these, too
        solution = compiled_once(_solution, (tree, keeps_states), leaves)
    else:
        if is_traced(leaves):
            # A new object each time, so that jax caches nothing for it.
            program, run = jax.make_jaxpr(partial(solve), return_shape=True)(problem)
            if not is_traced(constants_of(program)):
                structures = _Structures(tree, jax.tree.structure(run))
                params = {"call_jaxpr": program, "structures": structures}
                return partial(Primitive.bind, solve_chain_p, *leaves, **params), structures.run
        # Nothing is mapped; or a function of the user's closes over arrays that jax traces.
        solution = solve(problem)
    leaves, tree = jax.tree.flatten(solution)
    return partial(list, leaves), tree


def _solution(static: tuple[Any, bool], leaves: Sequence[Any]) -> Run:
    tree, keeps_states = static
    problem = jax.tree.unflatten(tree, leaves)
    if is_eager(leaves):  # jax runs it without `jax.jit`, to find a NaN
        run: Run = solve(problem)
    else:
        bind, out = bind_problem(problem)
        run = jax.tree.unflatten(out, bind())
    return run if keeps_states or not run.last else dataclasses.replace(run, trajectory=[])


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
    key = size, tuple(axes), tuple(map(jax.typeof, operands))
    program = kept(structures.mapped, key, partial(jax.make_jaxpr(run), *operands))
    return list(jaxpr_as_fun(program)(*operands))


def _without_unused(used: Sequence[bool], *values: Any) -> tuple[list[bool], Any]:
    """The equation without results that nobody reads: XLA removes none of those of a function.

    ``values``: the equation, since jax 0.12 after other values.
    """
    equation = values[-1]
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    if all(used) or equation.params["structures"].used:
        return [True] * len(equation.invars), equation
    operands, results, params = _of_states_read(equation, used)
    flags = tuple(map(used.__getitem__, results))
    structures = dataclasses.replace(params["structures"], used=flags, whole=params["call_jaxpr"])
    program = without_unused(structures.whole, flags, instantiate=True)[0]
    reads = [i in operands for i in range(len(equation.invars))]
    return reads, equation.replace(
        invars=[equation.invars[i] for i in operands],
        outvars=[equation.outvars[i] for i in results if used[i]],
        params={"call_jaxpr": program, "structures": structures},
    )


pe.dce_rules[solve_chain_p] = _without_unused


def _of_states_read(
    equation: Any, used: Sequence[bool]
) -> tuple[Sequence[int], Sequence[int], dict[str, Any]]:
    """The operands, the results and the parameters of the equation of the leaves that are read.

    They are those of the state that results which are used depend on. Others might not converge.
    Statistics are those of these leaves.
    """
    structures, operands = equation.params["structures"], range(len(equation.invars))
    all_of_it = operands, range(len(used)), equation.params
    problem: Problem = jax.tree.unflatten(structures.problem, operands)
    run, read = (jax.tree.unflatten(structures.run, leaves) for leaves in (all_of_it[1], used))
    states = [a or b for a, b in zip(read.trajectory, read.last or read.trajectory, strict=True)]
    if all(states) or varying_axes(avals_of(equation.invars)) or not problem.iterates:
        return all_of_it
    states = leaves_reached(problem.chain.step, states, read.outputs, variables_read)
    part = problem.part(states, read.outputs)
    if part is None:
        return all_of_it
    indices, tree = jax.tree.flatten(part)
    avals = jax.tree.unflatten(tree, [equation.invars[i].aval for i in indices])
    program, shapes = jax.make_jaxpr(partial(solve), return_shape=True)(avals)
    results = dataclasses.replace(
        run,
        trajectory=partition(run.trajectory, states),
        outputs=partition(run.outputs, read.outputs),
        last=partition(run.last, states) if run.last else [],
    )
    params = {"call_jaxpr": program, "structures": _Structures(tree, jax.tree.structure(shapes))}
    return indices, jax.tree.leaves(results), params
