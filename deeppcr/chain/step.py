"""`Step`: a user's step as a pure function of arrays.

Users write a function of pytrees that may close over arrays. Solvers need a function whose
dependences are explicit and differentiable: see `trace.py` for how the first becomes the second.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import jax

from deeppcr.arrays import Leaves, avals_of, varying_axes, with_weak_type
from deeppcr.lower import as_products, own_filters
from deeppcr.programs.cut_first import cut_first, evaluate
from deeppcr.programs.dependence import is_affine
from deeppcr.programs.effects import (
    CUSTOM_VJP,
    users_rules,
    why_forwards_only,
    why_not_differentiable,
)
from deeppcr.programs.retrace import in_full_precision
from deeppcr.programs.signature import DerivativeRule
from depth.counts import nbytes
from depth.jaxprs import (
    Program,
    Replacement,
    bind,
    called,
    equations,
    inside,
    interpret,
    is_literal,
    names,
)

T = TypeVar("T")


class Extended(NamedTuple):
    """The input of a function that takes more than the user's."""

    users: Any
    added: Any


def users_input(inputs: Any) -> Any:
    """The input of the user's function, from that of one that may take more."""
    while isinstance(inputs, Extended):
        inputs = inputs.users
    return inputs


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A traced step: a pure function of lists of arrays.

    ``step(state, input, captured)`` is the next state; `with_outputs` has the outputs, too.

    Attributes:
        jaxpr: of ``(*state, *input) -> (*state, *outputs)``; its constants are the arrays that the
            function closes over.
        states: the number of leaves of a state.
        state_tree: the structure of a state.
        input_tree: the structure of an input of the traced function. Its leaves are the first ones;
            those that follow are values that the program takes instead of computing them.
        output_tree: the structure of the outputs of one step.
        effects: names of primitives with side effects, which must run once per step, in order; most
            steps have none.
        weak: whether the user's function returns weakly typed leaves, of the state and of the
            outputs. In the jaxpr only outputs may be weakly typed.
        example: the step of one example, if this one is its `jax.vmap`: see `examples.py`.
        kept: variables whose values are inputs, and the variables of these: see `kept.py`.
        memory: what has been made of this step, by what it is: see `remember`.
    """

    jaxpr: Program
    states: int
    state_tree: Any
    input_tree: Any
    output_tree: Any
    effects: tuple[str, ...] = ()
    weak: tuple[bool, ...] = ()
    example: "Step | None" = None
    kept: tuple[tuple[Any, Any], ...] = ()
    memory: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False)

    @property
    def inputs(self) -> int:
        """The number of leaves of an input."""
        return len(self.jaxpr.invars) - self.states

    def input_of(self, leaves: Sequence[Any]) -> Any:
        """The input of the traced function, from the leaves of an input."""
        return jax.tree.unflatten(self.input_tree, leaves[: self.input_tree.num_leaves])

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returns, which is called once for a ``key``."""
        if key not in self.memory:
            self.memory[key] = make()
        result: T = self.memory[key]
        return result

    @cached_property
    def variables(self) -> list[Any]:
        """Those of state, input and captured arrays, in the program that is evaluated."""
        return [*self.jaxpr.invars, *self.jaxpr.constvars]

    @cached_property
    def evaluated(self) -> Program:
        """``jaxpr`` with products in full precision, which all but the loop evaluates.

        It has the same variables: see `in_full_precision`.
        """
        return in_full_precision(self.jaxpr)

    def converted(self, convert: Callable[[Program], Program]) -> "Step":
        """The step of converted programs, which have the same variables."""
        example = self.example and self.example.converted(convert)
        return dataclasses.replace(self, jaxpr=convert(self.jaxpr), example=example)

    def separate(self, leaves: Sequence[Any]) -> tuple[Leaves, Leaves, Leaves]:
        """The state, the input and the captured arrays, from one list of all."""
        state, rest = list(leaves[: self.states]), list(leaves[self.states :])
        return state, rest[: self.inputs], rest[self.inputs :]

    @cached_property
    def _at_once(self) -> list[Any]:
        """The equations of many steps at once."""
        program = self.evaluated
        return cut_first(program, set(self.variables), program.outvars[: self.states])

    @cached_property
    def _own_filters(self) -> frozenset[Any]:
        return own_filters(self.evaluated, self.evaluated.constvars)

    def for_all_at_once(self) -> "Step":
        """The same step, with what `at_once` reads of its program computed."""
        _ = self._at_once, self._own_filters
        return self

    @cached_property
    def has_custom_vjp(self) -> bool:
        """Whether it calls a `jax.custom_vjp`, which has reverse mode only.

        Its rule need not even be linear in its cotangents (clipped gradients).
        """
        return not names(self.jaxpr).isdisjoint(CUSTOM_VJP)

    @cached_property
    def is_affine(self) -> bool:
        """Whether the next state is linear in the state, plus what is independent of it."""
        return is_affine(self.jaxpr, self.states)

    @cached_property
    def _users_rules(self) -> list[DerivativeRule]:
        return users_rules(self.jaxpr)

    @property
    def has_users_rule(self) -> bool:
        """Whether it uses a derivative rule of the user's.

        Such a rule need not be the derivative (straight-through rounding).
        """
        return bool(self._users_rules)

    @property
    def has_traced_rule(self) -> bool:
        """Whether a derivative rule of the user's closes over a value that jax traces now.

        The program of a derivative would have it as a constant, which it is not.
        """
        return any(rule.is_traced for rule in self._users_rules)

    @cached_property
    def forwards_only(self) -> str:
        """Why it has no reverse mode, in the words of jax; usually empty."""
        return why_forwards_only(self.jaxpr)

    @cached_property
    def not_differentiable(self) -> str:
        """Why it has no derivative in the state, in the words of jax; usually empty."""
        return why_not_differentiable(self.evaluated, self.states)

    @cached_property
    def varies(self) -> frozenset[str]:
        """The axes of `jax.shard_map` over which anything that it takes varies."""
        return varying_axes(avals_of(self.variables))

    @property
    def varies_like_state(self) -> bool:
        """Whether each leaf of the state, and each output, varies over all of these axes.

        Then all arrays of a solve vary alike. Others would not be what `jax.lax.scan` returns.
        """
        ends = *self.jaxpr.invars[: self.states], *self.jaxpr.outvars
        return all(map(self.varies.issubset, map(varying_axes, avals_of(ends))))

    @cached_property
    def operations(self) -> int:
        """The number of equations, those of calls included."""
        return list(map(called, equations(self.jaxpr))).count(None)

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of a state."""
        return sum(map(nbytes, self.jaxpr.invars[: self.states]))

    @cached_property
    def bytes_of_results(self) -> int:
        """The bytes of the results of all equations; of those in a loop, in every trip."""
        return _bytes_of_results(self.jaxpr)

    @cached_property
    def bytes_kept_by_jax(self) -> int:
        """The bytes that jax's derivative of one step keeps of it, besides its inputs."""

        def kept(state: Leaves, inputs: Leaves, captured: Leaves) -> Leaves:
            pull = jax.vjp(self.with_outputs, state, inputs, captured)[1]
            there = {id(x) for x in (*inputs, *captured)}
            values = {id(x): x for x in jax.tree.leaves(pull)}
            return [x for key, x in values.items() if key not in there]

        return sum(map(nbytes, jax.eval_shape(kept, *self.separate(avals_of(self.variables)))))

    @property
    def dtypes(self) -> list[Any]:
        """Of the leaves of a state."""
        return [variable.aval.dtype for variable in self.jaxpr.invars[: self.states]]

    @property
    def outputs_in_state(self) -> list[int | None]:
        """For each output, the index of the leaf of the next state that it equals, or None."""
        state: list[Any] = list(self.jaxpr.outvars[: self.states])
        return [
            state.index(y) if not is_literal(y) and y in state else None
            for y in self.jaxpr.outvars[self.states :]
        ]

    @property
    def at_once(self) -> Replacement | None:
        """The ``replace`` for programs that evaluate many steps at once, by `jax.vmap`."""
        return as_products(self._own_filters)

    def __call__(
        self,
        state: Leaves,
        inputs: Leaves,
        captured: Leaves,
        replace: Replacement | None = None,
    ) -> Leaves:
        """The next state, without computing the outputs; ``replace`` as in `evaluate`."""
        environment = self.jaxpr.environment([*captured, *state, *inputs])
        results = self.evaluated.outvars[: self.states]
        rule = partial(bind, replace=replace)
        return interpret(self.evaluated, environment, results, rule, equations=self._at_once)

    def kept_of(self, inputs: Leaves) -> Leaves:
        """The values that are kept, among the inputs."""
        values = dict(zip(self.jaxpr.invars[self.states :], inputs, strict=True))
        return [values[variable] for _, variable in self.kept]

    def with_outputs(
        self, state: Leaves, inputs: Leaves, captured: Leaves
    ) -> tuple[Leaves, Leaves]:
        """The next state and the outputs, by the user's own program: for the sequential loop."""
        environment = self.jaxpr.environment([*captured, *state, *inputs])
        values = interpret(self.jaxpr, environment, self.jaxpr.outvars, bind)
        return values[: self.states], values[self.states :]

    def outputs(self, state: Leaves, inputs: Leaves, after: Leaves, captured: Leaves) -> Leaves:
        """The outputs, given the next state ``after``, which is not recomputed.

        For programs that evaluate many steps at once.
        """
        environment = self.jaxpr.environment([*captured, *state, *inputs])
        for variable, value in zip(self.evaluated.outvars[: self.states], after, strict=True):
            if not is_literal(variable):  # a literal is its own value
                environment.setdefault(variable, value)
        return evaluate(
            self.evaluated, environment, self.evaluated.outvars[self.states :], self.at_once
        )

    def typed_outputs(self, outputs: Leaves) -> Any:
        """The outputs of many steps, weakly typed as the user's function returns them."""
        weak = self.weak[self.states :]
        leaves = list(starmap(with_weak_type, zip(outputs, weak, strict=True)))
        return jax.tree.unflatten(self.output_tree, leaves)


def _bytes_of_results(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        total += sum(map(nbytes, equation.outvars))
        trips = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += trips * sum(map(_bytes_of_results, inside(equation)))
    return total
