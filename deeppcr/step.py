"""`Step`: a user's step as a pure function of arrays.

Users write a function of pytrees that may close over arrays. Solvers need a function whose every
dependence can be seen and differentiated. `trace` turns the one into the other.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.effects import has_custom_vjp, has_users_rule, side_effects
from deeppcr.rewrites.cut_first import Order, evaluate
from deeppcr.state import Leaves
from depth.jaxprs import Program, Replacement, is_literal, is_reference


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
        effects: names of primitives with side effects, which have to run once per step, in order;
            most steps have none.
        example: the step of one example, if this one is its `jax.vmap`; see `deeppcr.examples`.
    """

    jaxpr: Program
    states: int
    inputs: int
    state_tree: Any
    input_tree: Any
    output_tree: Any
    effects: tuple[str, ...] = ()
    example: "Step | None" = None
    _order: Order = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = {*self.jaxpr.invars, *self.jaxpr.constvars}
        order = Order.of(self.jaxpr, known, self.jaxpr.outvars[: self.states])
        object.__setattr__(self, "_order", order)

    def _known(self, state: Leaves, inputs: Leaves, captured: Leaves) -> dict[Any, Any]:
        variables = [*self.jaxpr.invars, *self.jaxpr.constvars]
        return dict(zip(variables, [*state, *inputs, *captured], strict=True))

    @cached_property
    def has_custom_vjp(self) -> bool:
        """Whether it calls a `jax.custom_vjp`, which has reverse mode only.

        Its derivative need not even be linear (clipped gradients).
        """
        return has_custom_vjp(self.jaxpr)

    @cached_property
    def has_users_rule(self) -> bool:
        """Whether it uses a derivative rule of the user's.

        Such a rule need not be the derivative (straight-through rounding).
        """
        return has_users_rule(self.jaxpr)

    @property
    def outputs_in_state(self) -> list[int | None]:
        """For each output, the index of the leaf of the next state that it equals, or None."""
        state: list[Any] = list(self.jaxpr.outvars[: self.states])
        return [
            state.index(y) if not is_literal(y) and y in state else None
            for y in self.jaxpr.outvars[self.states :]
        ]

    def __call__(self, state: Leaves, inputs: Leaves, captured: Leaves) -> Leaves:
        """The next state; what only the outputs need is not computed."""
        known = self._known(state, inputs, captured)
        return evaluate(self.jaxpr, known, self.jaxpr.outvars[: self.states], order=self._order)

    def with_outputs(
        self, state: Leaves, inputs: Leaves, captured: Leaves, replace: Replacement | None = None
    ) -> tuple[Leaves, Leaves]:
        """The next state and the outputs; ``replace`` as in `evaluate`."""
        known = self._known(state, inputs, captured)
        values = evaluate(self.jaxpr, known, self.jaxpr.outvars, replace)
        return values[: self.states], values[self.states :]

    def outputs(self, state: Leaves, inputs: Leaves, captured: Leaves, after: Leaves) -> Leaves:
        """The outputs, given the next state ``after``, which is not computed again."""
        known = self._known(state, inputs, captured)
        for variable, value in zip(self.jaxpr.outvars[: self.states], after, strict=True):
            if not is_literal(variable):  # a literal is its own value
                known.setdefault(variable, value)
        return evaluate(self.jaxpr, known, self.jaxpr.outvars[self.states :])


def trace(f: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> tuple[Step, Leaves]:
    """Trace ``f(state, input) -> (state, outputs)``, the step of a chain.

    Args:
        state: the initial state, or `jax.ShapeDtypeStruct` for it.
        inputs: the input of step 1, as `jax.ShapeDtypeStruct`.

    Returns:
        the step, and the arrays that ``f`` closes over.

    Raises:
        TypeError: the step changes the structure, the shape or the dtype of the state.
    """
    state_leaves, state_tree = jax.tree.flatten(state)
    input_leaves, input_tree = jax.tree.flatten(inputs)
    output_tree: Any = None

    def flat(*leaves: Any) -> Leaves:
        nonlocal output_tree
        before = jax.tree.unflatten(state_tree, leaves[: len(state_leaves)])
        result = f(before, jax.tree.unflatten(input_tree, leaves[len(state_leaves) :]))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"f returns {type(result).__name__}, expected a pair (carry, y), "
                "as from the f of jax.lax.scan."
            )
        after, outputs = result
        after = check_same_state(state, after)
        output_leaves, output_tree = jax.tree.flatten(outputs)
        return [*after, *map(jnp.asarray, output_leaves)]

    with on_no_mesh():
        closed = jax.make_jaxpr(flat)(*state_leaves, *input_leaves)
    effects, sizes = side_effects(closed), (len(state_leaves), len(input_leaves))
    step = Step(Program.of(closed), *sizes, state_tree, input_tree, output_tree, effects)
    constants = zip(step.jaxpr.constvars, closed.consts, strict=True)
    # Constants may be numbers and numpy arrays.
    return step, [c if is_reference(variable) else jnp.asarray(c) for variable, c in constants]


def on_no_mesh() -> AbstractContextManager[Any]:
    """Programs traced in here can run on any mesh, and in `jax.shard_map`.

    A current mesh with manual axes stays, because arrays vary over them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = mesh if mesh.manual_axes else jax.sharding.AbstractMesh((), ())
    return jax.sharding.use_abstract_mesh(manual)


def check_same_state(before: Any, after: Any) -> Leaves:
    """The leaves of ``after``, checked to have the structure, shapes and dtypes of ``before``.

    Weakly typed leaves are converted.
    """
    old_tree: Any
    old, old_tree = jax.tree.flatten(before)
    new, new_tree = jax.tree.flatten(after)
    if old_tree != new_tree:
        raise TypeError(
            f"the step changes the structure of the state: it takes {old_tree} "
            f"and returns {new_tree}; expected the same structure."
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    result = []
    for path, a, b in zip(paths, old, new, strict=True):
        b = jnp.asarray(b)
        if a.shape != b.shape or (a.dtype != b.dtype and not b.aval.weak_type):
            raise TypeError(
                f"the step changes state{path} from {a.dtype}{list(a.shape)} "
                f"to {b.dtype}{list(b.shape)}; expected the same shape and dtype at every step."
            )
        result.append(b.astype(a.dtype))
    return result
