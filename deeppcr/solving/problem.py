"""`Problem`: a chain with the requested method and adjoint, and its solution.

It contains all arrays, so that `jax.vmap` can map it: "auto" is resolved for all examples together.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint import Adjoint, AdjointSolver, Autodiff, resolve_adjoint
from deeppcr.arrays import partition
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.chain import in_float32 as chain_in_float32
from deeppcr.chain.examples import OF_RUN, Axes, at_front, chain_of_examples
from deeppcr.chain.examples import differing as examples_differing
from deeppcr.chain.part import part, step_part
from deeppcr.chain.step import Step
from deeppcr.choose import (
    AdjointOption,
    Auto,
    Method,
    MethodOption,
    choose_adjoint,
    choose_method,
)
from deeppcr.linearize import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Linearization,
    Scalar,
    Zero,
    constant,
    find_linearization,
    memory_budget,
)
from deeppcr.lower import DEFAULT, by_platform, differing, for_each_platform
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.sharding import ChainSharding, on_shards
from deeppcr.solution import Run
from depth.jaxprs import Program


class Examples(NamedTuple):
    """The examples of a problem under `jax.vmap`: the structure of one, and their batch axes.

    ``captured``: the number of arrays that its step captures.
    """

    problem: Any
    axes: tuple[int | None, ...]
    captured: int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["chain", "in_float32", "method", "adjoint"],
    meta_fields=["length", "examples"],
)
@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain with its method and adjoint: a pytree of all their arrays.

    Attributes:
        chain: without the user's function.
        in_float32: the same in float32 or better, without initial state and inputs; None if equal.
        method: as requested, with the leaves of the initial trajectory, if that has no name, and
            with its linearisation bound to the chain.
        adjoint: the same; None for "auto".
        length: of the user's chain, without padding for even shards.
        examples: the examples, if it is the `jax.vmap` of another problem.
    """

    chain: TracedChain
    in_float32: TracedChain | None
    method: MethodOption
    adjoint: AdjointOption
    length: int
    examples: Examples | None = None

    @classmethod
    def of(
        cls, chain: TracedChain, unpadded: TracedChain, method: MethodOption, adjoint: AdjointOption
    ) -> "Problem":
        """The problem of ``chain``, which is ``unpadded`` padded to even shards."""
        in_float32 = None
        if isinstance(method, Newton):
            method = dataclasses.replace(method, linearize=_bound(method.linearize, unpadded))
        if isinstance(method, Newton | Auto):
            guess: Any = method.initial_guess  # a name, or a function of the chain
            if callable(guess):
                method = dataclasses.replace(method, initial_guess=guess(unpadded))
            if (widened := chain_in_float32(chain)) is not chain:
                in_float32 = dataclasses.replace(widened, initial=[], inputs=[])
        if isinstance(adjoint, Adjoint):
            adjoint = dataclasses.replace(adjoint, linearize=_bound(adjoint.linearize, unpadded))
        chain = dataclasses.replace(chain, function=None, adapt=None)
        return cls(chain, in_float32, method, adjoint, unpadded.length)

    def of_examples(self, size: int, axes: Axes) -> "Problem":
        """The problem of ``size`` examples, which are on these axes of its leaves."""
        rest, beside = jax.tree.flatten((self.in_float32, self.method, self.adjoint))
        end = len(axes) - len(rest)
        on: TracedChain = jax.tree.unflatten(jax.tree.structure(self.chain), axes[:end])
        many, of_chain = chain_of_examples(self.chain, size, on.initial, on.inputs, on.captured)
        arrays, of_rest = at_front(rest, axes[end:])
        in_float32, method, adjoint = jax.tree.unflatten(beside, arrays)
        examples = Examples(jax.tree.structure(self), (*of_chain, *of_rest), len(on.captured))
        return dataclasses.replace(
            self,
            chain=many,
            in_float32=in_float32,
            method=method,
            adjoint=adjoint,
            examples=examples,
        )

    @property
    def linearizations(self) -> list[Linearization | None]:
        """Those of the method and of the adjoint; None for "auto"."""
        return [
            find_linearization(getattr(option, "linearize", "auto"))
            for option in (self.method, self.adjoint)
        ]

    def can_be_mapped(self, size: Any, axes: Axes) -> bool:
        """Whether ``size`` examples on these axes of the leaves can form one problem.

        The adjoint's blocks must be those of all examples at once.
        """
        if not isinstance(size, int) or not size or set(axes) <= {None}:
            return False
        of_method, used = self.linearizations
        count = len(jax.tree.leaves((of_method, used)))  # the last leaves
        if (
            used is None
            and of_method
            and (self.adjoint is None or isinstance(self.adjoint, Adjoint))
        ):
            used = of_method.of_adjoint
        if used is None:
            return True
        if isinstance(used, Scalar):
            return set(axes[len(axes) - count :]) <= {None}
        return isinstance(used, Dense | Diagonal | BlockDiagonal | Zero)

    def differing(self, size: int, axes: Axes, name: Any) -> list[bool]:
        """Whether examples differ in each leaf of the state, and in each output of a step.

        As `deeppcr.chain.examples.differing`. If an option differs, they do, within the tolerance.
        """
        count = len(jax.tree.leaves((self.method, self.adjoint)))
        if not set(axes[len(axes) - count :]) <= {None}:
            return [True] * len(self.chain.step.jaxpr.outvars)
        return examples_differing(self.chain.step, size, axes, name)

    def part(self, states: Sequence[bool], outputs: Sequence[bool]) -> Self | None:
        """The problem of some leaves of the state, which read no others, and of some outputs.

        Its arrays may be any objects. None if that is all or nothing of the state, or if an option
        is for the whole state.
        """
        if all(states) or not any(states) or any(self.linearizations):
            return None
        in_float32, examples = self.in_float32, self.examples
        # The one list of a method is the initial trajectory.
        method = jax.tree.map(
            lambda x: partition(x, states) if isinstance(x, list) else x,
            self.method,
            is_leaf=lambda x: isinstance(x, list),
        )
        if in_float32 is not None:
            step = step_part(in_float32.step, states, outputs)
            layout = in_float32.layout.part(states)
            in_float32 = dataclasses.replace(in_float32, step=step, layout=layout)
        if examples is not None:
            one = jax.tree.unflatten(examples.problem, range(len(examples.axes)))
            indices, structure = jax.tree.flatten(one.part(states, outputs))
            axes = tuple(map(examples.axes.__getitem__, indices))
            examples = examples._replace(problem=structure, axes=axes)
        chain = part(self.chain, states, outputs, [])
        return dataclasses.replace(
            self, chain=chain, in_float32=in_float32, method=method, examples=examples
        )

    # -- resolving "auto" --------------------------------------------------------------------------

    def methods(self) -> dict[str, Method]:
        """The method, by platform."""
        option, shape = self.method, self.chain.mapped
        if not isinstance(option, Auto):
            return {DEFAULT: option}

        def chosen(platform: str) -> Method:
            method = choose_method(self.chain, platform).option
            if shape and isinstance(method, Newton):  # the examples share the memory
                each = max(1, memory_budget() // math.prod(shape))
                method = dataclasses.replace(method, memory=each)
            return option.with_options(method)

        return differing(for_each_platform(chosen))

    @property
    def iterates(self) -> bool:
        """Whether states are iterated on one device, so that some of them might not converge."""
        return self.chain.axis == LOCAL and any(
            isinstance(each, Newton) for each in self.methods().values()
        )

    def adjoints(self) -> dict[str, AdjointSolver | Autodiff]:
        """The adjoint, by platform."""
        shapes, adjoint = self.chain.abstract, self.adjoint
        method = None if isinstance(self.method, Auto) else self.method
        if isinstance(method, Newton) and (blocks := self.linearizations[0]):
            method = dataclasses.replace(method, linearize=blocks.of_adjoint or "auto")
        options: dict[str, AdjointOption] = {DEFAULT: adjoint}
        if adjoint is None:
            choices = for_each_platform(partial(choose_adjoint, shapes, method))
            options = differing({name: choice.option for name, choice in choices.items()})
        loops = {
            name: isinstance(each, Sequential) and not each.fused
            for name, each in self.methods().items()
        }
        return {
            name: resolve_adjoint(each, method, shapes, loops.get(name, all(loops.values())))
            for name, each in options.items()
        }


def converted_structure(structure: Any, convert: Callable[[Program], Program]) -> Any:
    """The structure of a problem whose steps have converted programs."""
    problem = _of_structure(structure)

    def converted(chain: TracedChain) -> TracedChain:
        return dataclasses.replace(chain, step=chain.step.converted(convert))

    examples = problem.examples
    if examples is not None:
        examples = examples._replace(problem=converted_structure(examples.problem, convert))
    new = dataclasses.replace(
        problem,
        chain=converted(problem.chain),
        in_float32=problem.in_float32 and converted(problem.in_float32),
        examples=examples,
    )
    return jax.tree.structure(new)


def step_of(structure: Any) -> Step:
    """The step of a problem of this structure, as its user wrote it."""
    step = _of_structure(structure).chain.step
    return step if step.example is None else step.example


def _of_structure(structure: Any) -> Problem:
    return jax.tree.unflatten(structure, [object()] * structure.num_leaves)


def solution_of(problem: Problem) -> Run:
    """The solution of a problem."""
    chain, axis = problem.chain, problem.chain.axis
    solvers: dict[str, Callable[[TracedChain], Run]] = {}
    for platform, method in problem.methods().items():
        if isinstance(method, Newton) and problem.examples is not None:
            solvers[platform] = partial(_per_example, problem, method)
            continue
        bound: Any = method.bind(chain, problem.in_float32 or chain, problem.length)
        solvers[platform] = bound.solve
        if isinstance(axis, ChainSharding):
            out: Any = Run(axis.along, axis.along, *[P()] * 3)  # type: ignore[arg-type]
            # What has entries for all steps is sharded along the chain.
            specs = jax.tree_util.tree_map_with_path(
                lambda path, _: axis.along if path[1].name in ("initial_guess", "atol") else P(),
                bound,
            )
            solvers[platform] = partial(
                on_shards, type(bound).solve, bound, specs=(specs,), out=out
            )
    return by_platform(solvers)(chain)


def _per_example(problem: Problem, method: Newton, chain: TracedChain) -> Run:
    """All examples at once, each independently."""
    assert problem.examples is not None
    structure, axes, captured = problem.examples
    rest = jax.tree.leaves((problem.in_float32, problem.method, problem.adjoint))

    def one(*leaves: Any) -> Run:
        example: Problem = jax.tree.unflatten(structure, leaves)
        # The method that was chosen has the leaves of the option that it was chosen for.
        of_one = jax.tree.unflatten(jax.tree.structure(method), jax.tree.leaves(example.method))
        return solution_of(dataclasses.replace(example, method=of_one))

    leaves = [*chain.initial, *chain.inputs, *chain.captured[:captured], *rest]
    size = chain.layout.batch_shape[0]
    return jax.vmap(one, axes, OF_RUN, axis_size=size)(*leaves)


def _bound(linearize: str | Linearization, chain: TracedChain) -> str | Linearization:
    """The linearisation for this chain, checked; "auto" stays."""
    linearization = find_linearization(linearize)
    if linearization is None:
        return linearize
    return constant(linearization.traced(chain))
