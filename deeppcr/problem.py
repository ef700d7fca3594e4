"""`Problem`: a chain with the requested method and adjoint, and its solution.

It contains all arrays, so that `jax.vmap` can map it: "auto" is resolved for all examples together.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint import Adjoint, AdjointSolver, Autodiff, resolve_adjoint
from deeppcr.axis import ChainSharding
from deeppcr.chain import TracedChain
from deeppcr.choose import (
    AdjointOption,
    Auto,
    Method,
    MethodOption,
    choose_adjoint,
    choose_method,
)
from deeppcr.eager import is_hashable, kept
from deeppcr.examples import Axes, SolverPerExample, at_front, chain_of_examples
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
from deeppcr.newton import Newton
from deeppcr.newton.precision import in_float32 as chain_in_float32
from deeppcr.newton.tolerance import is_number
from deeppcr.platforms import DEFAULT, differing, platforms
from deeppcr.sharding import on_shards
from deeppcr.solution import Run
from deeppcr.state import Leaves
from deeppcr.step import Step
from depth.jaxprs import Program


class Examples(NamedTuple):
    """The examples of a problem under `jax.vmap`: the structure of one, and their batch axes.

    ``captured``: the number of arrays that its step captures.
    """

    problem: Any
    axes: tuple[int | None, ...]
    size: int
    captured: int

    @property
    def kept(self) -> "Examples | None":
        """See `kept_structure`."""
        problem = kept_structure(self.problem)
        return problem and self._replace(problem=problem)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["chain", "in_float32", "guess", "atol", "linearize", "linearize_adjoint"],
    meta_fields=["method", "adjoint", "length", "examples"],
)
@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain with its method and adjoint: a pytree of all their arrays.

    Attributes:
        chain: without the user's function.
        in_float32: the same in float32 or better, without initial state and inputs; None if equal.
        guess: leaves of the initial trajectory, if one was given.
        atol: ``[L]``, absolute tolerances, if there is one for each step.
        linearize: the user's linearisation; None for a name.
        linearize_adjoint: that of the adjoint.
        method: without the arrays above.
        adjoint: without the arrays above; None for "auto".
        length: of the user's chain, without padding for even shards.
        examples: the examples, if it is the `jax.vmap` of another problem.
    """

    chain: TracedChain
    in_float32: TracedChain | None
    guess: Leaves | None
    atol: Any
    linearize: Linearization | None
    linearize_adjoint: Linearization | None
    method: MethodOption
    adjoint: AdjointOption
    length: int
    examples: Examples | None = None

    @classmethod
    def of(
        cls, chain: TracedChain, unpadded: TracedChain, method: MethodOption, adjoint: AdjointOption
    ) -> "Problem":
        """The problem of ``chain``, which is ``unpadded`` padded to even shards."""
        in_float32, guess, atol, linearize, of_adjoint = None, None, None, None, None
        if isinstance(method, Newton):
            linearize = find_linearization(method.linearize)
            method = dataclasses.replace(method, linearize="auto") if linearize else method
            if not is_number(method.atol):
                atol, method = method.atol, dataclasses.replace(method, atol=0.0)
        if isinstance(method, Newton | Auto):
            users: Any = method.initial_guess  # a name, or a function of the chain
            if not isinstance(users, str):
                inputs = unpadded.axis.in_order(unpadded.inputs)
                guess = users(dataclasses.replace(unpadded, inputs=inputs))
                method = dataclasses.replace(method, initial_guess="apply")
            found = chain_in_float32(chain)
            in_float32 = (
                None if found is chain else dataclasses.replace(found, initial=[], inputs=[])
            )
        if isinstance(adjoint, Adjoint):
            of_adjoint = find_linearization(adjoint.linearize)
            adjoint = dataclasses.replace(adjoint, linearize="auto") if of_adjoint else adjoint
        linearize, of_adjoint = (
            None if each is None else _bound(each, unpadded) for each in (linearize, of_adjoint)
        )
        chain = dataclasses.replace(chain, function=None, adapt=None)
        return cls(
            chain, in_float32, guess, atol, linearize, of_adjoint, method, adjoint, unpadded.length
        )

    @property
    def kept(self) -> "Problem | None":
        """The same with cached steps; None if a step or an option has no signature."""
        parts: dict[str, Any] = {
            "chain": _kept_chain(self.chain),
            "in_float32": self.in_float32 and _kept_chain(self.in_float32),
            "linearize": self.linearize and self.linearize.kept,
            "linearize_adjoint": self.linearize_adjoint and self.linearize_adjoint.kept,
            "examples": self.examples and self.examples.kept,
        }
        if any(part is None and getattr(self, name) is not None for name, part in parts.items()):
            return None
        problem = dataclasses.replace(self, **parts)
        return problem if is_hashable(jax.tree.structure(problem)) else None

    def with_arrays(self, method: Method) -> Any:
        """``method`` with the arrays of this problem, to be bound to `chains`."""
        if self.examples is not None and isinstance(method, Newton):
            return SolverPerExample(self.rest, method, *self.examples)
        if isinstance(method, Newton) and self.guess is not None:
            method = dataclasses.replace(method, initial_guess=self.guess)
        if isinstance(method, Newton) and self.linearize is not None:
            method = dataclasses.replace(method, linearize=self.linearize)
        if isinstance(method, Newton) and self.atol is not None:
            method = dataclasses.replace(method, atol=self.atol)
        return method

    def by(self, solver: Any) -> Callable[[TracedChain], Run]:
        """A bound method, on every shard of the chain at once."""
        axis = self.chain.axis
        if isinstance(solver, SolverPerExample) or not isinstance(axis, ChainSharding):
            solve: Callable[[TracedChain], Run] = solver.solve
            return solve
        along, replicated = axis.along, P()
        out: Any = Run(along, along, *[replicated] * 3)  # type: ignore[arg-type]
        specs = (solver.sharded(along, replicated),)
        return partial(on_shards, type(solver).solve, solver, specs=specs, out=out)

    @property
    def chains(self) -> tuple[TracedChain, TracedChain]:
        """The chain, and the user's chain without padding."""
        chain = self.chain
        if self.in_float32 is not None:
            function = self.in_float32.step.as_function(self.in_float32.captured)
            chain = dataclasses.replace(chain, function=function)
        return chain, dataclasses.replace(chain, length=self.length)

    @property
    def rest(self) -> Leaves:
        """The leaves besides those of the chain."""
        return jax.tree.leaves(self._beside)

    @property
    def _beside(self) -> tuple[Any, ...]:
        return self.in_float32, self.guess, self.atol, self.linearize, self.linearize_adjoint

    @property
    def of_method(self) -> int:
        """The number of leaves of the method and the adjoint: the last ones."""
        return len(jax.tree.leaves(self._beside[1:]))

    def of_examples(self, size: int, axes: Axes) -> "Problem":
        """The problem of ``size`` examples, which are on these axes of its leaves."""
        chain, each = self.chain, []
        for leaves in (chain.initial, chain.inputs, chain.captured):
            each.append(axes[: len(leaves)])
            axes = axes[len(leaves) :]
        many, of_chain = chain_of_examples(chain, size, *each)
        moved, of_rest = at_front(self.rest, axes)
        beside = jax.tree.unflatten(jax.tree.structure(self._beside), moved)
        names = "in_float32", "guess", "atol", "linearize", "linearize_adjoint"
        structure = jax.tree.structure(self)
        examples = Examples(structure, (*of_chain, *of_rest), size, len(chain.captured))
        parts = dict(zip(names, beside, strict=True))
        return dataclasses.replace(self, chain=many, examples=examples, **parts)

    def can_be_mapped(self, size: Any, axes: Axes) -> bool:
        """Whether ``size`` examples on these axes of the leaves can form one problem.

        The adjoint's blocks must be those of all examples at once, and the step the user's own.
        """
        step = self.chain.step
        if step.program is not None or step.derivative is not None:
            return False
        used = self.linearize_adjoint
        if used is None and (self.adjoint is None or isinstance(self.adjoint, Adjoint)):
            used = None if self.linearize is None else self.linearize.of_adjoint
        if not isinstance(size, int) or not size or used is None:
            return isinstance(size, int) and size > 0
        own = len(jax.tree.leaves((self.linearize, self.linearize_adjoint)))
        if isinstance(used, Scalar):
            is_shared = all(axis is None for axis in axes[len(axes) - own :])
            return is_shared and used.of_input is None
        return isinstance(used, Dense | Diagonal | BlockDiagonal | Zero)

    # -- resolving "auto" --------------------------------------------------------------------------

    def methods(self) -> dict[str, Method]:
        """The method, by platform."""
        option, shape = self.method, self.chain.mapped
        if not isinstance(option, Auto):
            return {DEFAULT: option}
        found = {name: choose_method(self.chain, name).option for name in platforms()}
        if shape:  # the examples share the memory
            each = max(1, memory_budget() // math.prod(shape))
            for name, method in found.items():
                if isinstance(method, Newton):
                    found[name] = dataclasses.replace(method, memory=each)
        return differing({name: option.with_options(method) for name, method in found.items()})

    def adjoints(self) -> dict[str, AdjointSolver | Autodiff]:
        """The adjoint, by platform."""
        shapes, adjoint = self.chain.abstract, self.adjoint
        method = None if isinstance(self.method, Auto) else self.method
        if isinstance(method, Newton) and self.linearize is not None:
            method = dataclasses.replace(method, linearize=self.linearize.of_adjoint or "auto")
        found: dict[str, AdjointOption] = {DEFAULT: adjoint}
        if adjoint is None:
            found = differing(
                {name: choose_adjoint(shapes, method, name).option for name in platforms()}
            )
        elif isinstance(adjoint, Adjoint) and self.linearize_adjoint is not None:
            found = {DEFAULT: dataclasses.replace(adjoint, linearize=self.linearize_adjoint)}
        return {name: resolve_adjoint(each, method, shapes) for name, each in found.items()}


def _kept_chain(chain: TracedChain) -> TracedChain | None:
    step = kept(chain.step)
    return None if step is None else dataclasses.replace(chain, step=step)


def kept_structure(structure: Any) -> Any:
    """The structure of a problem, with cached steps; None if there is none.

    Equal structures are those of problems that differ only in their arrays.
    """
    known = _of_structure(structure).kept
    return None if known is None else jax.tree.structure(known)


def converted_structure(structure: Any, convert: Callable[[Program], Program]) -> Any:
    """The structure of a problem whose steps have converted programs."""
    problem = _of_structure(structure)

    def converted(chain: TracedChain) -> TracedChain:
        return dataclasses.replace(chain, step=chain.step.converted(convert))

    chain, in_float32 = problem.chain, problem.in_float32
    chain, in_float32 = converted(chain), in_float32 and converted(in_float32)
    examples = problem.examples
    if examples is not None:
        examples = examples._replace(problem=converted_structure(examples.problem, convert))
    new = dataclasses.replace(problem, chain=chain, in_float32=in_float32, examples=examples)
    return jax.tree.structure(new)


def step_of(structure: Any) -> Step:
    """The step of a problem of this structure, as its user wrote it."""
    step = _of_structure(structure).chain.step
    return step if step.example is None else step.example


def _of_structure(structure: Any) -> Problem:
    problem: Problem = jax.tree.unflatten(structure, [object()] * structure.num_leaves)
    return problem


def _bound(linearization: Linearization, chain: TracedChain) -> Linearization:
    """For this chain, checked."""
    traced = linearization.traced(chain)
    traced.check(chain.step, chain.length)
    return constant(traced)
