"""`Chain`: a sequential program ``z_l = step(z_{l-1}, x_l)``, ``l = 1..L``; checked, traced, and all its steps at once."""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export, lax

from deeppcr.across import HERE, Across, Spread
from deeppcr.layers import repeated
from deeppcr.state import Leaves, StateLayout, check_state
from deeppcr.step import Step, trace


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs"],
    meta_fields=["step", "length", "spread"],
)
@dataclasses.dataclass(frozen=True)
class Chain:
    """A sequential program: ``z_l = step(z_{l-1}, x_l)``.

    Attributes:
        step: ``step(state, input) -> state``. States are arrays, or pytrees of them, of the same structure, shapes and dtypes at
            every step.
        inputs: pytree of arrays ``[L, ...]``: what changes from step to step (layer parameters, observations, time).
            None if nothing does.
        length: L; needed only if ``inputs`` is None or has no arrays.
        spread: where it is, if `deeppcr.sharding.place` has put it on a mesh.

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
    spread: Spread | None = None

    def __post_init__(self) -> None:
        leaves = jax.tree.leaves(self.inputs)
        if all(
            hasattr(leaf, "shape") for leaf in leaves
        ):  # jax.tree.map may put anything into a pytree
            object.__setattr__(self, "length", chain_length(self.inputs, self.length, "inputs"))

    @classmethod
    def from_layers(cls, layers: Any, x: Any) -> Self:
        """The chain of ``layers``, which have to be alike: the same code and the same shapes, each with its own arrays.

        Args:
            layers: as in `deeppcr.forward`; layers in a period make one step of the chain together.
            x: what the first layer takes, or `jax.ShapeDtypeStruct` for it.

        Raises:
            ValueError: the layers are not alike, or there are none; the message names the first that differs.
        """
        run = repeated(layers, x)
        return cls(run.step, run.inputs, run.length)


def chain_length(inputs: Any, length: int | None, name: str) -> int:
    """L, from the arrays in ``inputs`` and from ``length``, which have to agree."""
    if length is not None and not export.is_symbolic_dim(length):
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(
                f"length is {length!r}, expected an integer that is known before tracing."
            ) from None
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
        raise ValueError(
            f"the leaves of {name} differ in length along axis 0: {found}; expected one entry a step in each."
        )
    if lengths:
        (found_length,) = set(lengths.values())
        if length is not None and length != found_length:
            raise ValueError(
                f"length is {length}, but {name} has {found_length} entries along axis 0."
            )
        return found_length
    if length is None:
        raise ValueError(f"{name} has no arrays, so length is needed: the number of steps.")
    return length


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
        across: where its steps are.
        original: the same chain without steps that were added at its end; None if none were.
    """

    function: Callable[[Any, Any], tuple[Any, Any]]
    step: Step
    layout: StateLayout
    length: int
    initial: Leaves
    inputs: Leaves
    captured: Leaves
    across: Across = HERE
    original: "Problem | None" = None

    @property
    def is_empty(self) -> bool:
        """Whether a state has no entries: the idiom for a mere map."""
        return self.layout.width * self.layout.examples == 0

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes of it are not known: dimensions of `jax.export.symbolic_shape`, which programs are exported with."""
        arrays = [*self.initial, *self.inputs, *self.captured]
        arrays += [
            variable.aval for equation in self.step.jaxpr.eqns for variable in equation.outvars
        ]
        return any(
            export.is_symbolic_dim(size) for array in arrays for size in getattr(array, "shape", ())
        )


def pose(
    f: Callable[[Any, Any], tuple[Any, Any]],
    initial: Any,
    inputs: Any,
    length: int,
    batch_ndim: int,
    name: str,
) -> Problem:
    """Check and trace the chain of ``f(state, input) -> (state, outputs)``; ``name`` is what errors call the initial state."""
    initial, inputs = jax.tree.map(jnp.asarray, (initial, inputs))
    if not isinstance(batch_ndim, int) or batch_ndim < 0:
        raise ValueError(f"batch_ndim is {batch_ndim!r}, expected an integer >= 0.")
    check_state(initial, batch_ndim, name)
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
    step, captured = trace(f, initial, first)
    leaves = jax.tree.leaves(initial)
    return Problem(
        f,
        step,
        StateLayout.of(leaves, batch_ndim),
        length,
        leaves,
        jax.tree.leaves(inputs),
        captured,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a traced chain, all of them or a stretch, side by side.

    Attributes:
        step: the traced step.
        layout: of its state.
        inputs: leaves ``[L, ...]``.
        captured: arrays that the step closes over.
        length: L, as many as the inputs here have.
        first: the place of the first of them in the whole chain, counted from 0.
        across: where the others are, if they are on other devices.
    """

    step: Step
    layout: StateLayout
    inputs: Leaves
    captured: Leaves
    length: int
    first: int | Array = 0
    across: Across = HERE

    def part(self, first: int | Array, length: int) -> "Steps":
        """``length`` of them, from ``first`` on."""
        if length == self.length:
            return self
        inputs = [lax.dynamic_slice_in_dim(x, first, length) for x in self.inputs]
        return dataclasses.replace(self, inputs=inputs, length=length, first=self.first + first)

    def on_part(self, across: Across, inputs: Leaves, captured: Leaves) -> "Steps":
        """Those that one device has, inside `jax.shard_map`: ``inputs`` are its own."""
        length = self.length // across.size
        first = jnp.int32(across.rank * length)
        return dataclasses.replace(
            self, inputs=inputs, captured=captured, length=length, first=first, across=across
        )

    def __call__(self, states: Leaves) -> Leaves:
        """``step(z_{l-1}, x_l)`` for all l at once, from ``z_0 .. z_{L-1}``."""
        step = jax.vmap(self.step, in_axes=(0, 0, None))
        after: Leaves = self.across.each(step, states, self.inputs, shared=self.captured)
        return after

    def outputs(self, states: Leaves, after: Leaves) -> Leaves:
        """The outputs of all steps, from ``z_0 .. z_{L-1}`` and ``z_1 .. z_L``."""

        def outputs(states: Leaves, inputs: Leaves, after: Leaves, captured: Leaves) -> Leaves:
            return jax.vmap(self.step.outputs, in_axes=(0, 0, None, 0))(
                states, inputs, captured, after
            )

        found: Leaves = self.across.each(outputs, states, self.inputs, after, shared=self.captured)
        return found

    def before(self, initial: Leaves, after: Leaves) -> Leaves:
        """``z_0 .. z_{L-1}`` from ``z_0`` and ``z_1 .. z_L``, or the same of tangents."""
        return [self.across.before(z, rest) for z, rest in zip(initial, after, strict=True)]

    @property
    def total(self) -> int:
        """How many steps there are on all devices together."""
        return self.across.total(self.length)

    def evaluate(self, vectors: Array) -> Array:
        """`__call__` for states laid out as ``[L, *batch, w]``."""
        return self.layout.flatten(self(self.layout.unflatten(vectors)))
