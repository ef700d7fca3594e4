"""`Step`: a user's step as a pure function of arrays.

Users write a function of pytrees that may close over arrays. Solvers need a function whose
dependences are explicit and differentiable. `trace` converts the first into the second.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from deeppcr.arrays.avals import varying_axes
from deeppcr.arrays.state import Leaves
from deeppcr.chain.same_state import (
    check_same_state,
    check_same_structure,
    is_weak,
    promote,
    with_weak_type,
)
from deeppcr.checks import describe, leaves_as_arrays, named_after
from deeppcr.lower import as_products, own_filters
from deeppcr.programs.affine import is_affine
from deeppcr.programs.cut_first import Order, evaluate
from deeppcr.programs.effects import (
    couples_devices,
    has_custom_vjp,
    has_users_rule,
    side_effects,
    why_forwards_only,
    why_not_differentiable,
)
from deeppcr.programs.precision import in_full_precision
from deeppcr.programs.retrace import varying_alike
from depth.counts import nbytes
from depth.jaxprs import (
    Program,
    Replacement,
    called,
    equations,
    inside,
    is_literal,
    is_reference,
    needed,
    vary,
)


class Extended(NamedTuple):
    """The input of a step that takes more than the user's: ``own`` is what was added to it."""

    users: Any
    own: Any


def users_input(inputs: Any) -> Any:
    """The input of the user's step, from that of a step that may take more."""
    while isinstance(inputs, Extended):
        inputs = inputs.users
    return inputs


def extended(step: "Step", program: Program, more: int) -> "Step":
    """The step of a program that takes ``more`` inputs, after its own."""
    users = jax.tree.unflatten(step.input_tree, [0] * step.inputs)
    tree = jax.tree.structure(Extended(users, [0] * more))
    return dataclasses.replace(step, jaxpr=program, inputs=step.inputs + more, input_tree=tree)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A traced step: a pure function of lists of arrays.

    ``step(state, input, captured)`` is the next state; `with_outputs` has the outputs, too.

    Attributes:
        jaxpr: of ``(*state, *input) -> (*state, *outputs)``; its constants are the arrays that the
            function closes over.
        states: the number of leaves of a state.
        inputs: the number of leaves of an input.
        state_tree: the structure of a state.
        input_tree: the structure of an input.
        output_tree: the structure of the outputs of one step.
        effects: names of primitives with side effects, which must run once per step, in order; most
            steps have none.
        weak: whether the user's function returns weakly typed leaves, of the state and of the
            outputs. In the jaxpr only outputs may be weakly typed.
        has_custom_vjp: whether it calls a `jax.custom_vjp`, which has reverse mode only. Its rule
            need not even be linear in its cotangents (clipped gradients).
        example: the step of one example, if this one is its `jax.vmap`: see `examples.py`.
        kept: variables whose values are inputs, and the variables of these: see `kept.py`.
    """

    jaxpr: Program
    states: int
    inputs: int
    state_tree: Any
    input_tree: Any
    output_tree: Any
    effects: tuple[str, ...] = ()
    weak: tuple[bool, ...] = ()
    example: "Step | None" = None
    kept: tuple[tuple[Any, Any], ...] = ()
    has_custom_vjp: bool = dataclasses.field(init=False)
    _variables: list[Any] = dataclasses.field(init=False, repr=False)
    _order: Order = dataclasses.field(init=False, repr=False)
    _in_loop: Order = dataclasses.field(init=False, repr=False)
    _own_filters: frozenset[Any] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        program = self.evaluated
        known = {*program.invars, *program.constvars}
        order = Order.of(program, known, program.outvars[: self.states])
        object.__setattr__(self, "_variables", [*program.invars, *program.constvars])
        object.__setattr__(self, "_order", order)
        live = Order(needed(self.jaxpr, known, program.outvars), set(), {})
        object.__setattr__(self, "_in_loop", live)
        object.__setattr__(self, "_own_filters", own_filters(program, program.constvars))
        object.__setattr__(self, "has_custom_vjp", has_custom_vjp(self.jaxpr))

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

    def _known(self, state: Leaves, inputs: Leaves, captured: Leaves) -> dict[Any, Any]:
        return dict(zip(self._variables, [*state, *inputs, *captured], strict=True))

    @cached_property
    def is_affine(self) -> bool:
        """Whether the next state is linear in the state, plus what is independent of it."""
        return is_affine(self.jaxpr, self.states)

    @cached_property
    def has_users_rule(self) -> bool:
        """Whether it uses a derivative rule of the user's.

        Such a rule need not be the derivative (straight-through rounding).
        """
        return has_users_rule(self.jaxpr)

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
        return varying_axes([x.aval for x in (*self.jaxpr.invars, *self.jaxpr.constvars)])

    @property
    def varies_like_state(self) -> bool:
        """Whether each leaf of the state, and each output, varies over all of these axes.

        Then all arrays of a solve vary alike. Others would not be what `jax.lax.scan` returns.
        """
        ends = *self.jaxpr.invars[: self.states], *self.jaxpr.outvars
        return all(varying_axes(x.aval) >= self.varies for x in ends)

    @cached_property
    def operations(self) -> int:
        """The number of equations, those of calls included."""
        return sum(1 for each in equations(self.jaxpr) if called(each) is None)

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
        total = 0

        def count(state: Leaves, inputs: Leaves, captured: Leaves) -> None:
            nonlocal total
            kept = jax.tree.leaves(jax.vjp(self.with_outputs, state, inputs, captured)[1])
            known = set(map(id, (*inputs, *captured)))
            once = {id(x): x for x in kept if id(x) not in known}
            total = sum(x.size * x.dtype.itemsize for x in once.values())

        program, states = self.jaxpr, self.states
        variables = program.invars[:states], program.invars[states:], program.constvars
        jax.eval_shape(count, *([x.aval for x in each] for each in variables))
        return total

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
        known = self._known(state, inputs, captured)
        wanted = self.evaluated.outvars[: self.states]
        return evaluate(self.evaluated, known, wanted, replace, self._order)

    def kept_of(self, inputs: Leaves) -> Leaves:
        """The values that are kept, among the inputs."""
        values = dict(zip(self.jaxpr.invars[self.states :], inputs, strict=True))
        return [values[variable] for _, variable in self.kept]

    def with_outputs(
        self, state: Leaves, inputs: Leaves, captured: Leaves
    ) -> tuple[Leaves, Leaves]:
        """The next state and the outputs, by the user's own program: for the sequential loop."""
        known, program = self._known(state, inputs, captured), self.jaxpr
        values = evaluate(program, known, program.outvars, order=self._in_loop)
        return values[: self.states], values[self.states :]

    def outputs(self, state: Leaves, inputs: Leaves, after: Leaves, captured: Leaves) -> Leaves:
        """The outputs, given the next state ``after``, which is not recomputed.

        For programs that evaluate many steps at once.
        """
        known = self._known(state, inputs, captured)
        for variable, value in zip(self.evaluated.outvars[: self.states], after, strict=True):
            if not is_literal(variable):  # a literal is its own value
                known.setdefault(variable, value)
        return evaluate(self.evaluated, known, self.evaluated.outvars[self.states :], self.at_once)

    def as_function(self, captured: Leaves) -> Callable[[Any, Any], tuple[Any, Any]]:
        """The step as a function of pytrees, ``(state, input) -> (state, outputs)``."""

        def function(state: Any, inputs: Any) -> tuple[Any, Any]:
            leaves = jax.tree.leaves(state), jax.tree.leaves(inputs)
            after, outputs = self.with_outputs(*leaves, captured)
            return (
                jax.tree.unflatten(self.state_tree, after),
                jax.tree.unflatten(self.output_tree, outputs),
            )

        return function

    def typed_outputs(self, outputs: Leaves) -> Any:
        """The outputs of many steps, weakly typed as the user's function returns them."""
        weak = self.weak[self.states :]
        leaves = [with_weak_type(y, is_so) for y, is_so in zip(outputs, weak, strict=True)]
        return jax.tree.unflatten(self.output_tree, leaves)


def _bytes_of_results(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        total += sum(map(nbytes, equation.outvars))
        trips = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += trips * sum(map(_bytes_of_results, inside(equation)))
    return total


def trace(f: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> tuple[Step, Leaves]:
    """Trace ``f(state, input) -> (state, outputs)``, the step of a chain.

    As `jax.lax.scan` does, it gives weakly typed leaves of the state, such as Python numbers, the
    dtypes that the step returns: `Step.dtypes`.

    Args:
        state: the initial state, or `jax.ShapeDtypeStruct` for it.
        inputs: the input of step 1, as `jax.ShapeDtypeStruct`.

    Returns:
        the step, and the arrays that ``f`` closes over.

    Raises:
        TypeError: the step returns no pair, or changes the structure, the shape or the dtype of the
            state.
    """
    state_leaves, state_tree = jax.tree.flatten(state)
    input_leaves, input_tree = jax.tree.flatten(inputs)
    output_tree: Any = None
    promoted: Leaves = state_leaves
    is_first = True
    weak: tuple[bool, ...] = ()

    @named_after(f)
    def after_leaves(before: Any, inputs: Any) -> Leaves:
        nonlocal output_tree, promoted, weak
        leaves = jax.tree.leaves(before)  # taken now: the step may change its argument
        result = f(before, inputs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"f returns {describe(result)}, expected a pair (carry, y), as for jax.lax.scan; "
                "a step that returns the next state alone is one for deeppcr.Chain."
            )
        after, outputs = result
        check_same_structure(state, after)
        new = leaves_as_arrays("the next state", after)
        if is_first:  # as jax, which promotes once
            promoted = [promote(z, a) for z, a in zip(state_leaves, new, strict=True)]
        if any(a is not b for a, b in zip(promoted, state_leaves, strict=True)):
            return []  # to be traced again
        output_tree = jax.tree.structure(outputs)
        checked = zip(jax.tree.leaves(after), leaves, check_same_state(state, after), strict=False)
        # Unchanged leaves must be recognisable, weakly typed or not.
        new_leaves = [old if new is old else cast for new, old, cast in checked]
        found = leaves_as_arrays("y", outputs)
        weak = tuple(map(is_weak, [*new, *found]))
        return [*new_leaves, *found]

    def traced() -> Any:
        nonlocal state, state_leaves, is_first
        closed = jax.make_jaxpr(after_leaves)(state, inputs)
        if any(a is not b for a, b in zip(promoted, state_leaves, strict=True)):
            state_leaves, is_first = promoted, False
            state = jax.tree.unflatten(state_tree, promoted)
            closed = jax.make_jaxpr(after_leaves)(state, inputs)
        return closed

    try:
        with on_no_mesh():
            closed = traced()
    except Exception:
        if jax.sharding.get_abstract_mesh().empty:
            raise
        closed = traced()  # it may name shardings of the current mesh
    effects, sizes = side_effects(closed), (len(state_leaves), len(input_leaves))
    trees = state_tree, input_tree, output_tree
    step = Step(Program.of(closed), *sizes, *trees, effects, weak)
    constants = zip(step.jaxpr.constvars, closed.consts, strict=True)
    # Constants may be numbers and numpy arrays.
    captured = [c if is_reference(variable) else jnp.asarray(c) for variable, c in constants]
    varies = step.varies and step.varies_like_state and not effects
    if not varies or couples_devices(step.jaxpr, step.varies):
        return step, captured
    program, more = varying_alike(step.jaxpr, step.varies)
    step = dataclasses.replace(step, jaxpr=program)
    return step, [*(vary(x, step.varies) for x in captured), *map(jnp.asarray, more)]


def on_no_mesh() -> AbstractContextManager[Any]:
    """Programs traced in here can run on any mesh, and in `jax.shard_map`.

    A current mesh with manual axes stays, because arrays vary over them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = mesh if mesh.manual_axes else jax.sharding.AbstractMesh((), ())
    return jax.sharding.use_abstract_mesh(manual)
