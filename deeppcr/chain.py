"""`Chain`: a sequential program ``z_l = step(z_{l-1}, x_l)``, ``l = 1..L``, checked and traced once.

What users write is a function of pytrees that may close over arrays. What the solvers need is a pure function of arrays, whose
every dependence can be seen and differentiated. `trace` makes the one into the other; `StateLayout` lays a state pytree out as
one vector, which is what Jacobian blocks act on.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.jaxprs import Program, Replacement, evaluate, has_custom_vjp, is_literal
from deeppcr.layers import stacked

Leaves = list[Any]


@partial(jax.tree_util.register_dataclass, data_fields=["inputs"], meta_fields=["step", "length"])
@dataclasses.dataclass(frozen=True)
class Chain:
    """A sequential program: ``z_l = step(z_{l-1}, x_l)``.

    Attributes:
        step: ``step(state, input) -> state``. States are arrays, or pytrees of them, of the same structure, shapes and dtypes at
            every step.
        inputs: pytree of arrays ``[L, ...]``: what changes from step to step (layer parameters, observations, time).
            None if nothing does.
        length: L; needed only if ``inputs`` is None or has no arrays.

    Raises:
        ValueError: ``inputs`` do not agree on L, or on ``length``.

    Example:
        >>> chain = Chain(lambda z, x: z + x, jnp.array([2.0, 5.0, 4.0]))
        >>> deeppcr.solve(chain, jnp.array(0.0)).value
        Array(11., dtype=float32)
    """

    step: Callable[[Any, Any], Any]
    inputs: Any = None
    length: int | None = None

    def __post_init__(self) -> None:
        leaves = jax.tree.leaves(self.inputs)
        if all(hasattr(leaf, "shape") for leaf in leaves):  # jax.tree.map may put anything into a pytree
            object.__setattr__(self, "length", chain_length(self.inputs, self.length, "inputs"))

    @classmethod
    def from_layers(cls, layers: Sequence[Callable[[Any], Any]], x: Any) -> Self:
        """The chain of ``layers``, which have to be alike: the same code and the same shapes, each with its own arrays.

        Args:
            layers: callables ``layer(x) -> x``.
            x: what the first layer takes, or `jax.ShapeDtypeStruct` for it.

        Raises:
            ValueError: the layers are not alike, or there are none; the message names the first that differs.
        """
        step, inputs = stacked(layers, x)
        return cls(step, inputs, len(layers))


def chain_length(inputs: Any, length: int | None, name: str) -> int:
    """L, from the arrays in ``inputs`` and from ``length``, which have to agree."""
    if length is not None:
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(f"length is {length!r}, expected an integer that is known before tracing.") from None
        if length < 0:
            raise ValueError(f"length is {length}, expected 0 or more.")
    lengths: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        shape = np.shape(leaf)
        if not shape:
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} is a scalar, expected an array with one entry a step on axis 0."
            )
        lengths[name + jax.tree_util.keystr(path)] = shape[0]
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{leaf}: {n}" for leaf, n in lengths.items())
        raise ValueError(f"the leaves of {name} differ in length along axis 0: {found}; expected one entry a step in each.")
    if lengths:
        (found_length,) = set(lengths.values())
        if length is not None and length != found_length:
            raise ValueError(f"length is {length}, but {name} has {found_length} entries along axis 0.")
        return found_length
    if length is None:
        raise ValueError(f"{name} has no arrays, so length is needed: the number of steps.")
    return length


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A traced step: a pure function of lists of arrays, ``(state, input, captured) -> state`` and outputs.

    Attributes:
        jaxpr: of ``(*state, *input) -> (*state, *outputs)``; its constants are what the function closed over.
        states: how many leaves a state has.
        inputs: how many leaves an input has.
        state_tree: the structure of a state.
        input_tree: the structure of an input.
        output_tree: the structure of the outputs of one step.
    """

    jaxpr: Program
    states: int
    inputs: int
    state_tree: Any
    input_tree: Any
    output_tree: Any

    def _known(self, state: Leaves, inputs: Leaves, captured: Leaves) -> dict[Any, Any]:
        variables = [*self.jaxpr.invars, *self.jaxpr.constvars]
        return dict(zip(variables, [*state, *inputs, *captured], strict=True))

    @cached_property
    def has_custom_vjp(self) -> bool:
        """Whether a part of it defines only its transposed derivative, which need not even be linear (clipped gradients)."""
        return has_custom_vjp(self.jaxpr)

    @property
    def outputs_in_state(self) -> list[int | None]:
        """For each output, which leaf of the next state it is, if it is one."""
        state: list[Any] = list(self.jaxpr.outvars[: self.states])
        return [state.index(y) if not is_literal(y) and y in state else None for y in self.jaxpr.outvars[self.states :]]

    def __call__(self, state: Leaves, inputs: Leaves, captured: Leaves) -> Leaves:
        """The next state, and nothing else: what only the outputs need is not computed."""
        return evaluate(self.jaxpr, self._known(state, inputs, captured), self.jaxpr.outvars[: self.states])

    def with_outputs(
        self, state: Leaves, inputs: Leaves, captured: Leaves, replace: Replacement | None = None
    ) -> tuple[Leaves, Leaves]:
        """The next state and the outputs; ``replace`` as in `evaluate`."""
        known = self._known(state, inputs, captured)
        values = evaluate(self.jaxpr, known, self.jaxpr.outvars, replace)
        return values[: self.states], values[self.states :]

    def outputs(self, state: Leaves, inputs: Leaves, captured: Leaves, after: Leaves) -> Leaves:
        """The outputs, given the next state ``after``: only what lies beyond it is computed."""
        known = self._known(state, inputs, captured)
        for variable, value in zip(self.jaxpr.outvars[: self.states], after, strict=True):
            if not is_literal(variable):  # a literal is its own value
                known.setdefault(variable, value)
        return evaluate(self.jaxpr, known, self.jaxpr.outvars[self.states :])


def trace(f: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> tuple[Step, Leaves]:
    """Trace ``f(state, input) -> (state, outputs)``, the step of a chain.

    Args:
        state: the initial state, or `jax.ShapeDtypeStruct` for it.
        inputs: what step 1 gets, as `jax.ShapeDtypeStruct`.

    Returns:
        the step, and the arrays that ``f`` closed over.

    Raises:
        TypeError: the state that comes out differs from the one that went in, in structure, shape or dtype.
    """
    state_leaves, state_tree = jax.tree.flatten(state)
    input_leaves, input_tree = jax.tree.flatten(inputs)
    output_tree: Any = None

    def flat(*leaves: Any) -> Leaves:
        nonlocal output_tree
        before = jax.tree.unflatten(state_tree, leaves[: len(state_leaves)])
        result = f(before, jax.tree.unflatten(input_tree, leaves[len(state_leaves) :]))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"f returns {type(result).__name__}, expected a pair (carry, y), as from the f of jax.lax.scan.")
        after, outputs = result
        after = check_same_state(state, after)
        output_leaves, output_tree = jax.tree.flatten(outputs)
        return [*after, *map(jnp.asarray, output_leaves)]

    closed = jax.make_jaxpr(flat)(*state_leaves, *input_leaves)
    step = Step(Program.of(closed), len(state_leaves), len(input_leaves), state_tree, input_tree, output_tree)
    return step, [jnp.asarray(constant) for constant in closed.consts]  # numbers and numpy arrays, too


def check_same_state(before: Any, after: Any) -> Leaves:
    """The leaves of ``after``, which has to look like ``before``; weakly typed ones take on the dtype."""
    old_tree: Any
    old, old_tree = jax.tree.flatten(before)
    new, new_tree = jax.tree.flatten(after)
    if old_tree != new_tree:
        raise TypeError(
            f"the step changes the structure of the state: it takes {old_tree} and returns {new_tree}; "
            "expected the same structure."
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    result = []
    for path, a, b in zip(paths, old, new, strict=True):
        b = jnp.asarray(b)
        if a.shape != b.shape or (a.dtype != b.dtype and not b.aval.weak_type):
            raise TypeError(
                f"the step changes state{path} from {a.dtype}{list(a.shape)} to {b.dtype}{list(b.shape)}; "
                "expected the same shape and dtype at every step."
            )
        result.append(b.astype(a.dtype))
    return result


def check_state(state: Any, batch_ndim: int, name: str) -> None:
    """A state that parallel methods can work on: floating leaves, with the same ``batch_ndim`` leading axes in each."""
    batches = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        where = name + jax.tree_util.keystr(path)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"{where} has dtype {leaf.dtype}, expected a floating one: Newton and the parallel adjoint need derivatives with "
                "respect to the state. Pass what is only counted or looked up as an input of the step, or take "
                'method="sequential", adjoint="autodiff", which is jax.lax.scan.'
            )
        if leaf.ndim < batch_ndim:
            raise ValueError(f"{where} has shape {list(leaf.shape)}, expected at least batch_ndim = {batch_ndim} axes.")
        batches[where] = leaf.shape[:batch_ndim]
    if len(set(batches.values())) > 1:
        found = ", ".join(f"{where}: {list(shape)}" for where, shape in batches.items())
        raise ValueError(f"the leaves of {name} differ in their {batch_ndim} leading batch axes: {found}.")


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """How the leaves of a state lie in one vector: ``[*batch, ...]`` each, ``[*batch, w]`` together.

    Attributes:
        shapes: of each leaf, without leading batch axes.
        dtypes: of each leaf.
        batch_shape: the batch axes of a state.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    batch_shape: tuple[int, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], batch_ndim: int) -> Self:
        """The layout of a state with these leaves."""
        batch_shape = tuple(leaves[0].shape[:batch_ndim]) if leaves else ()
        return cls(
            tuple(tuple(leaf.shape[batch_ndim:]) for leaf in leaves),
            tuple(leaf.dtype for leaf in leaves),
            batch_shape,
        )

    @cached_property
    def sizes(self) -> list[int]:
        """How many entries of the vector each leaf takes."""
        return [int(np.prod(shape, dtype=int)) for shape in self.shapes]

    @property
    def width(self) -> int:
        """w, the number of entries of one state of one example."""
        return sum(self.sizes)

    @property
    def dtype(self) -> Any:
        """What the vector is computed in: wide enough for every leaf, and float32 or better."""
        return np.result_type(np.float32, *self.dtypes)

    def flatten(self, leaves: Leaves) -> Array:
        """Leaves ``[..., *batch, *shape]`` as one array ``[..., *batch, w]``."""
        rows = [
            leaf.astype(self.dtype).reshape((*leaf.shape[: leaf.ndim - len(shape)], size))
            for leaf, shape, size in zip(leaves, self.shapes, self.sizes, strict=True)
        ]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=-1)

    def unflatten(self, vector: Array) -> Leaves:
        """The way back."""
        leaves, start = [], 0
        for shape, dtype, size in zip(self.shapes, self.dtypes, self.sizes, strict=True):
            part = jax.lax.slice_in_dim(vector, start, start + size, axis=vector.ndim - 1)
            leaves.append(part.reshape((*vector.shape[:-1], *shape)).astype(dtype))
            start += size
        return leaves


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A chain, checked and traced.

    Attributes:
        function: the step as the user wrote it, ``(state, input) -> (state, outputs)``.
        step: the same, traced.
        layout: of the state.
        length: L, at least 1.
        initial: leaves of ``z_0``.
        inputs: leaves ``[L, ...]``.
        captured: arrays that the step closes over.
    """

    function: Callable[[Any, Any], tuple[Any, Any]]
    step: Step
    layout: StateLayout
    length: int
    initial: Leaves
    inputs: Leaves
    captured: Leaves

    @property
    def is_empty(self) -> bool:
        """Whether a state has no entries: the idiom for a mere map."""
        return self.layout.width * int(np.prod(self.layout.batch_shape, dtype=int)) == 0


def pose(f: Callable[[Any, Any], tuple[Any, Any]], initial: Any, inputs: Any, length: int, batch_ndim: int, name: str) -> Problem:
    """Check and trace the chain of ``f(state, input) -> (state, outputs)``; ``name`` is what errors call the initial state."""
    initial, inputs = jax.tree.map(jnp.asarray, (initial, inputs))
    if not isinstance(batch_ndim, int) or batch_ndim < 0:
        raise ValueError(f"batch_ndim is {batch_ndim!r}, expected an integer >= 0.")
    check_state(initial, batch_ndim, name)
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
    step, captured = trace(f, initial, first)
    leaves = jax.tree.leaves(initial)
    return Problem(f, step, StateLayout.of(leaves, batch_ndim), length, leaves, jax.tree.leaves(inputs), captured)


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a traced chain, all of them or a stretch, side by side.

    Attributes:
        step: the traced step.
        layout: of its state.
        inputs: leaves ``[L, ...]``.
        captured: arrays that the step closes over.
    """

    step: Step
    layout: StateLayout
    inputs: Leaves
    captured: Leaves

    def __call__(self, states: Leaves) -> Leaves:
        """``step(z_{l-1}, x_l)`` for all l at once, from ``z_0 .. z_{L-1}``."""
        return jax.vmap(self.step, in_axes=(0, 0, None))(states, self.inputs, self.captured)

    def outputs(self, states: Leaves, after: Leaves) -> Leaves:
        """The outputs of all steps, from ``z_0 .. z_{L-1}`` and ``z_1 .. z_L``."""
        return jax.vmap(self.step.outputs, in_axes=(0, 0, None, 0))(states, self.inputs, self.captured, after)

    def evaluate(self, vectors: Array) -> Array:
        """`__call__` for states laid out as ``[L, *batch, w]``."""
        return self.layout.flatten(self(self.layout.unflatten(vectors)))


def before(initial: Leaves, trajectory: Leaves) -> Leaves:
    """The states that the steps start from, ``z_0 .. z_{L-1}``, from ``z_0`` and ``z_1 .. z_L``."""
    return [jnp.concatenate([z[None], rest[:-1]]) for z, rest in zip(initial, trajectory, strict=True)]
