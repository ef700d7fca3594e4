"""`Chain`, a sequential program ``z_l = step(z_{l-1}, x_l)``, ``l = 1..L``, and `TracedChain`.

Users write a `Chain`. A `TracedChain` is the same program, checked and traced, which evaluates all
its steps at once. All code below the api works on it. A table (`OBSTACLES`) says why some chains
cannot be solved in parallel.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export, lax
from jax.sharding import PartitionSpec as P

from deeppcr.arrays import (
    Leaves,
    StateLayout,
    abstract,
    avals_of,
    cast,
    check_batch,
    explicit_mesh,
    of_step,
    varying_axes,
)
from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.chain.carry import Carry
from deeppcr.chain.step import Extended, Step
from deeppcr.chain.trace import drawn_first, trace
from deeppcr.checks import check_type, describe, leaves_as_arrays, named_after, no_array
from deeppcr.programs.dependence import results_of
from deeppcr.programs.effects import (
    couples_devices,
    drawn_alone,
    named_shardings,
    without_steps,
    without_vmap,
)
from depth.jaxprs import equations, vary
from depth.primitives import of_kind

# -- obstacles -------------------------------------------------------------------------------------


class Obstacle(NamedTuple):
    """Why a chain has to run as `jax.lax.scan`, and what a parallel method expects."""

    reason: str
    expected: str
    error: type[Exception] = ValueError


def find_obstacle(step: Step, carry: Carry, arrays: Leaves) -> Obstacle | None:
    """The first in the table that is found."""
    for find, reason, *expected in OBSTACLES:
        if words := find(step, carry, arrays):
            return Obstacle(reason.format(words), *expected)
    return None


def _symbolic(step: Step, carry: Carry, arrays: Leaves) -> bool:
    of_step = avals_of(results_of(step.jaxpr.eqns))
    shapes = [getattr(array, "shape", ()) for array in (*arrays, *of_step)]
    return any(map(export.is_symbolic_dim, set[Any]().union(*shapes)))


def _uneven(step: Step, carry: Carry, arrays: Leaves) -> str:
    varied = list(map(varying_axes, carry.state))
    if len(set(varied)) <= 1:
        return ""
    pairs = zip(carry.state_names, varied, strict=True)
    return ", ".join(f"{name} over {sorted(axes) or 'none'}" for name, axes in pairs)


# A function that finds it in a step, the reason with what is found, what is expected instead.
OBSTACLES: tuple[tuple[Any, ...], ...] = (
    (
        lambda step, *_: ", ".join(step.effects),
        "the step has side effects ({}), and steps side by side have no order",
        "a step without any",
    ),
    (
        _symbolic,
        "it has symbolic dimensions (jax.export.symbolic_shape)",
        "numbers, which Jacobian blocks need",
    ),
    (
        _uneven,
        "the leaves of its state vary over different axes of jax.shard_map ({})",
        "leaves that vary over the same, by jax.lax.pcast",
    ),
    (
        lambda step, carry, _: couples_devices(step.evaluated, varying_axes(carry.state)),
        "it communicates over axes of jax.shard_map over which its state varies ({}), so that the "
        "chains of all devices are one",
        "a state that is the same on all devices, with check_vma=True",
    ),
    (
        lambda step, *_: without_vmap(step.evaluated),
        "jax.vmap refuses it, since it contains a {} with vmap_method=None",
        'another one, as vmap_method="sequential"',
    ),
    (
        lambda step, *_: named_shardings(step.evaluated),
        "it names shardings over a mesh ({}), and all steps at once have another axis",
        "none, or jax.lax.with_sharding_constraint over axes of the type Auto",
    ),
    (
        lambda step, *_: without_steps(step.evaluated),
        "jax.vmap of all steps does not map what it communicates ({})",
        "psum, pmean, all_gather or ppermute",
    ),
    (
        lambda step, *_: drawn_alone(step.evaluated),
        "it draws random bits with keys of dtype {}, and all steps at once draw others",
        'keys of jax.random.key(seed, impl="threefry2x32"), or numbers drawn before',
    ),
    (
        lambda _, carry, __: ", ".join(carry.coupled),
        "{} depends on the floating part of the carry, and has no derivative with respect to it",
        "integers, flags and keys that depend on inputs and on each other alone",
        TypeError,
    ),
)


# -- chains ----------------------------------------------------------------------------------------


def chain_length(inputs: Any, length: int | None, name: str) -> int:
    """L, from the arrays in ``inputs`` and from ``length``, which must agree."""
    if length is not None and not export.is_symbolic_dim(length):
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(
                f"length is {describe(length)}, expected an integer that is known before tracing."
            ) from None
        if length < 0:
            raise ValueError(f"length is {length}, expected 0 or more.")
    lengths: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        where, shape = name + jax.tree_util.keystr(path), np.shape(leaf)
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")
        if isinstance(leaf, str | bytes) or kind in tuple("OSUMm"):  # strings, objects, dates
            expected = "an array of numbers with one entry per step on axis 0"
            raise no_array(where, leaf, expected)
        if not shape:
            what = "a scalar" if np.isscalar(leaf) or hasattr(leaf, "shape") else describe(leaf)
            is_list = isinstance(inputs, list | tuple) and all(map(np.isscalar, inputs))
            raise ValueError(
                f"{where} is {what}, "
                "expected an array with one entry per step on axis 0"
                + (f": jnp.asarray({name}) is one." if is_list else ".")
            )
        lengths[where] = shape[0]
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{leaf}: {n}" for leaf, n in lengths.items())
        raise ValueError(
            f"the leaves of {name} differ in length along axis 0: {shown}; "
            "expected one entry per step in each."
        )
    of_arrays = next(iter(lengths.values()), length)
    if of_arrays is None:
        raise ValueError(f"{name} has no arrays, so length is needed: the number of steps.")
    if length is not None and length != of_arrays:
        raise ValueError(f"length is {length}, but {name} has {of_arrays} entries along axis 0.")
    return of_arrays


Adapt = Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], tuple[Any, Any]]]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs"],
    meta_fields=["step", "length", "sharding"],
)
@dataclasses.dataclass(frozen=True)
class Chain:
    """A sequential program: $z_l = f(z_{l-1}, x_l)$ for $l = 1, ..., L$.

    A pytree, whose leaves are the inputs.

    Attributes:
        step: ``step(state, input) -> state``, the function f. A state is an array or a pytree of
            arrays with the same structure, shapes and dtypes at every step.
        inputs: the inputs $x_l$ of all steps (layer parameters, observations, time): a pytree of
            arrays ``[L, ...]`` of any dtypes, or None.
        length: L, an integer >= 0; needed only if ``inputs`` has no arrays.
        sharding: the sharding over a mesh, set by `deeppcr.sharding.shard`; None on one device.

    Raises:
        ValueError: ``inputs`` contradict each other or ``length`` on L.
        TypeError: ``step`` is not a function, or ``length`` is not an integer.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + x, jnp.array([2.0, 5.0, 4.0]))
        >>> deeppcr.solve(chain, jnp.array(0.0)).value
        Array(11., dtype=float32)
    """

    step: Callable[[Any, Any], Any]
    inputs: Any = None
    length: int | None = None
    sharding: Any = None

    def __post_init__(self) -> None:
        check_type("step", self.step, Callable, "a function: step(state, input) -> state")
        leaves = jax.tree.leaves(self.inputs)
        if all(hasattr(leaf, "shape") for leaf in leaves):  # jax.tree.map may put in any object
            object.__setattr__(self, "length", chain_length(self.inputs, self.length, "inputs"))

    @classmethod
    def from_layers(cls, layers: Any, x: Any) -> Self:
        """The chain of equal ``layers``: the same code and shapes, each with its own arrays.

        Args:
            layers: as in `deeppcr.forward`; the layers of one period are one step of the chain.
            x: the input of the first layer, as an array or `jax.ShapeDtypeStruct`.

        Raises:
            ValueError: there are no layers, or they differ; the message names the first that does.

        Example:
            >>> layers = [jax.tree_util.Partial(jnp.add, jnp.float32(c)) for c in range(5)]
            >>> chain = deeppcr.Chain.from_layers(layers, jnp.zeros(3))
            >>> chain.length
            5
        """
        # Lists of layers are read by a room that is built on chains: imported when it is called.
        from deeppcr import stack

        stacked = stack(layers, x)
        return cls(stacked.step, stacked.inputs, stacked.length)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["initial", "inputs", "captured", "offset"],
    meta_fields=["step", "layout", "length", "axis", "function", "adapt", "obstacle"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class TracedChain:
    """A checked and traced chain, or consecutive steps of one: a window, a chunk, a shard.

    A pytree whose leaves are its arrays.

    Attributes:
        step: the traced step.
        layout: of its state.
        length: L, the number of steps here.
        initial: leaves of ``z_0``, the state before the first step of the whole chain.
        inputs: leaves ``[L, ...]``.
        captured: the arrays that the step closes over.
        axis: the chain axis, with the steps on other devices.
        offset: int32, the index of the first step in the whole chain; None for 0.
        function: the step as the user wrote it, ``(state, input) -> (state, outputs)``; None once
            the method has been bound, because the function must not outlive the call.
        adapt: takes a function with the signature of the user's step to one with that of
            ``function``; None once the method has been bound.
        obstacle: why it has to run as `jax.lax.scan`; None if it does not.
    """

    step: Step
    layout: StateLayout
    length: int
    initial: Any
    inputs: Any
    captured: Any
    axis: ChainAxis = LOCAL
    offset: Any = None
    function: Callable[[Any, Any], tuple[Any, Any]] | None = None
    adapt: "Adapt | None" = None
    obstacle: Obstacle | None = None

    def __call__(self, states: Leaves) -> Leaves:
        """``step(z_{l-1}, x_l)`` for all l at once, from ``z_0 .. z_{L-1}``."""
        step = jax.vmap(partial(self.step, replace=self.step.at_once), in_axes=(0, 0, None))
        return self.axis.each(step, 2)(states, self.inputs, self.captured)

    def evaluate(self, vectors: Array) -> Array:
        """`__call__` for states as vectors ``[L, *batch, w]``."""
        return self.layout.flatten(self(self.layout.unflatten(vectors)))

    def outputs(self, states: Leaves, after: Leaves) -> Leaves:
        """The outputs of all steps, from ``z_0 .. z_{L-1}`` and ``z_1 .. z_L``."""
        outputs = jax.vmap(self.step.outputs, in_axes=(0, 0, 0, None))
        return self.axis.each(outputs, 3)(states, self.inputs, after, self.captured)

    def before(self, initial: Leaves, after: Leaves) -> Leaves:
        """``z_0 .. z_{L-1}`` from ``z_0`` and ``z_1 .. z_L``; the same for tangents."""
        return list(starmap(self.axis.before, zip(initial, after, strict=True)))

    def window(self, start: int | Array, length: int) -> "TracedChain":
        """``length`` of the steps, from index ``start`` on."""
        if length == self.length:
            return self
        inputs = [lax.dynamic_slice_in_dim(x, start, length) for x in self.inputs]
        offset = jnp.asarray(start, jnp.int32) + (0 if self.offset is None else self.offset)
        return dataclasses.replace(self, inputs=inputs, length=length, offset=offset)

    def shard(self, axis: ChainAxis) -> "TracedChain":
        """The shard of one device, inside `jax.shard_map`; ``inputs`` are those of the shard."""
        length = self.length // axis.size
        offset = jnp.int32(axis.rank * length)
        return dataclasses.replace(self, length=length, offset=offset, axis=axis)

    def sharded(self, along: P, replicated: P) -> "TracedChain":
        """The partition specs of its arrays, as a prefix of this pytree."""
        offset = None if self.offset is None else replicated
        return dataclasses.replace(
            self, initial=replicated, inputs=along, captured=replicated, offset=offset
        )

    @property
    def abstract(self) -> "TracedChain":
        """The same with shapes for arrays, and without the user's function: safe to keep."""
        kept = dataclasses.replace(self, function=None, adapt=None)
        return jax.tree.map(abstract, kept)

    @property
    def mapped(self) -> tuple[int, ...]:
        """The batch sizes of the `jax.vmap` calls around it, the outermost first."""
        step, count = self.step, 0
        while step.example is not None:
            step, count = step.example, count + 1
        return self.layout.batch_shape[:count]

    @property
    def total(self) -> int:
        """The number of steps on all devices together."""
        return self.axis.total(self.length)

    @property
    def is_empty(self) -> bool:
        """Whether a state has no entries: a scan used as a map."""
        return self.layout.width * self.layout.batch_size == 0


def trace_chain(
    f: Callable[[Any, Any], tuple[Any, Any]],
    initial: Any,
    inputs: Any,
    length: int,
    batch_ndim: int,
    name: str,
) -> TracedChain:
    """Check and trace the chain of ``f(state, input) -> (state, outputs)``.

    ``name``: the name of the initial state in error messages.
    """
    return trace_carry(f, initial, inputs, length, batch_ndim, name)[0]


def with_outputs(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tuple[Any, None]]:
    """The step of a `Chain` as one with outputs: none."""
    return named_after(step)(lambda state, inputs: (step(state, inputs), None))


def _through(views: Sequence[Adapt], f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What the chain makes of ``f``, a function with the signature of the user's step.

    Each of the views takes the function of the last one to another. It may take more inputs.
    """
    for wrap in views:
        f = wrap(f)
    return f


def trace_carry(
    f: Callable[[Any, Any], Any],
    initial: Any,
    inputs: Any,
    length: int,
    batch_ndim: int,
    name: str,
    reverse: bool = False,
    adapt: Adapt | None = None,
) -> tuple[TracedChain, Carry]:
    """`trace_chain`, and how its state relates to the carry of ``f``.

    ``reverse``: whether the first step takes the last entry of the inputs. The inputs are not
    reordered. ``adapt``: takes ``f`` and functions of its signature to
    ``(state, input) -> (state, outputs)``, if they are not.
    """
    state_tree, input_tree = jax.tree.structure(initial), jax.tree.structure(inputs)
    initial = leaves_as_arrays(name, initial)
    xs = leaves_as_arrays("xs" if name == "init" else "chain.inputs", inputs)
    first = jax.tree.unflatten(input_tree, list(map(of_step, xs)))
    views = [adapt] if adapt else []
    step, captured = trace(_through(views, f), jax.tree.unflatten(state_tree, initial), first)
    state = cast(initial, step.dtypes)
    carry = Carry.of(step, jax.tree.unflatten(state_tree, state), name)
    obstacle = find_obstacle(step, carry, [*state, *xs, *captured])
    is_solvable = obstacle is None and bool(carry.state_names)
    if is_solvable and not carry.is_state:
        carry = carry.ahead(step, captured, xs, length, reverse)
        views.append(carry.step)
        xs = [*xs, *carry.before]
        driven = list(map(of_step, carry.before))
        step, captured = trace(_through(views, f), carry.state, Extended(first, driven))
    if is_solvable and not explicit_mesh(*xs):
        step, numbers = drawn_first(step, captured, xs, length)
        xs = [*xs, *numbers]
    check_batch(carry.state, carry.state_names, batch_ndim, name)
    state = carry.state if obstacle is None else state
    variables = step.jaxpr.invars[step.states :]
    chain = TracedChain(
        step,
        StateLayout.of(state, batch_ndim),
        length,
        state,
        [vary(x, varying_axes(to.aval)) for x, to in zip(xs, variables, strict=True)],
        captured,
        function=_through(views, f),
        adapt=partial(_through, views),
        obstacle=obstacle,
    )
    return chain, carry


def in_float32(chain: TracedChain) -> TracedChain:
    """The same chain computed in float32 or better.

    Iterates in bfloat16 or float16 stagnate far above the resolution of their dtype. A step that
    casts to its narrow dtype is iterated in that dtype; so is one that draws numbers of it, since
    those of another dtype are others.
    """
    initial = list(map(_widened, chain.initial))
    inputs = list(map(_widened, chain.inputs))
    if chain.function is None or [z.dtype for z in initial] == list(chain.layout.dtypes):
        return chain
    state = jax.tree.unflatten(chain.step.state_tree, initial)
    first = chain.step.input_of(list(map(of_step, inputs)))
    try:
        step, captured = trace(chain.function, state, first)
    except (TypeError, ValueError):  # dtypes that do not mix, or a state that is cast back
        return chain
    if drawn := _types_drawn(step):
        state = jax.tree.unflatten(chain.step.state_tree, chain.initial)
        first = chain.step.input_of(list(map(of_step, chain.inputs)))
        if drawn != _types_drawn(trace(chain.function, state, first)[0]):
            return chain
    layout = StateLayout.of(initial, len(chain.layout.batch_shape))
    return dataclasses.replace(
        chain,
        step=step,
        layout=layout,
        initial=initial,
        inputs=inputs[: step.inputs],
        captured=captured,
    )


def _types_drawn(step: Step) -> list[Any]:
    """The types of the random bits that a step draws."""
    return avals_of(results_of(of_kind(equations(step.jaxpr), "random")))


def _widened(x: Array) -> Array:
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(np.float32) if narrow else x
