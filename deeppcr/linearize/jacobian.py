"""Derivatives of all steps at once: full matrices, blocks on the diagonal, or the diagonal alone.

A direction is a vector ``[w]`` that all steps and batch elements share. `jax.vmap` exploits this:
the product of a direction with weights that all steps share is computed once, not L times. A step
with a `jax.custom_vjp` has reverse mode only. For it the rows of the Jacobian are computed instead
of the columns.

The columns of a full matrix are the images of the unit vectors under the linearised step
(`columns`). Most steps begin with a product of the state and weights. The product of a unit vector
with a matrix is a row of it and needs no computation, so the Jacobian of a layer costs w^2
operations instead of w^3. From the first other operation on, the images are ordinary arrays.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays import Leaves, like
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.lower import even_chunk, scan_in_chunks, steps_held
from depth.counts import other_axes
from depth.jaxprs import bind, called, entered, interpret, run
from depth.primitives import primitive

# The primitives that move the entries of one operand, or cast them.
MOVES = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "transpose",
    }
)


# jax 0.10.2, 2 cores, the Jacobians of 200 tanh layers with weights of their own: 1.7 times faster
# for w = 8 and 16, 3.1 for 32, 3.7 for 64. XLA multiplies by an identity matrix as by any other.
def columns(linear: Callable[[Array], Array], like: Array) -> Array:
    """The images of all unit vectors under a linear function, ``[w, *shape]``.

    Args:
        linear: a function of an array ``[*batch, w]``, which may close over tracers.
        like: an array of that shape and dtype. A unit vector is the same in all examples.
    """
    closed = jax.make_jaxpr(linear)(like)
    width = like.shape[-1]
    units = Units(np.broadcast_to(np.arange(width), like.shape), width, like.dtype)
    program, values = entered(closed, [units])
    (result,) = interpret(program, values, program.outvars, _results)
    images = result if _is_plain(result) else result.array
    return jnp.broadcast_to(images, (width, *closed.out_avals[0].shape))


@dataclasses.dataclass(frozen=True)
class Units:
    """Unit vectors: each entry is 1 in the one of this number, and 0 in all others.

    Attributes:
        numbers: an integer for each entry.
        count: of the unit vectors.
        dtype: theirs.
    """

    numbers: np.ndarray
    count: int
    dtype: Any

    @property
    def array(self) -> Array:
        """``[count, *shape]``."""
        shape = [self.count, *[1] * self.numbers.ndim]
        for axis in reversed(range(self.numbers.ndim)):
            start = self.start(axis)
            if start is not None:
                shape[1 + axis] = self.numbers.shape[axis]
                rows = jnp.eye(self.count, shape[1 + axis], -start, dtype=self.dtype)
                return jnp.broadcast_to(rows.reshape(shape), (self.count, *self.numbers.shape))
        return (jnp.arange(self.count).reshape(shape) == self.numbers[None]).astype(self.dtype)

    def start(self, axis: int) -> int | None:
        """The first number along an axis along which alone they count; None if they do not."""
        if not self.numbers.size:
            return None
        start = int(self.numbers.flat[0])
        shape = [1] * self.numbers.ndim
        shape[axis] = -1
        along = np.arange(start, start + self.numbers.shape[axis]).reshape(shape)
        return start if (self.numbers == along).all() else None


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of the unit vectors: ``[count, *shape]``."""

    array: Array


def _results(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an equation with unit vectors or their images as operands."""
    if all(map(_is_plain, values)):
        return bind(equation, values)
    if any(isinstance(value, Units) for value in values):
        if equation.primitive.name == "dot_general":
            if (rows := _rows(equation, values)) is not None:
                return [rows]
        elif equation.primitive.name in MOVES:
            numbers, rule = values[0].numbers, primitive(equation).numpy
            if rule and equation.primitive.name != "convert_element_type":
                (numbers,) = rule(equation, [numbers])
            return [Units(numbers, values[0].count, equation.outvars[0].aval.dtype)]
        elif (inner := called(equation)) is not None and _may_enter(equation):
            return run(inner, values, _results)
    axes = [None if _is_plain(value) else 0 for value in values]
    arrays = [value if _is_plain(value) else value.array for value in values]
    images = jax.vmap(lambda *operands: bind(equation, operands), in_axes=axes)(*arrays)
    return list(map(Images, images))


def _may_enter(equation: Any) -> bool:
    """Whether a call may be replaced by its program, which is not differentiated here."""
    properties = primitive(equation)
    return properties.inlines or properties.kind == "derivative rule"


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Units | Images)


def _rows(equation: Any, values: list[Any]) -> Images | None:
    """The rows of the other operand along the contracted axis of the unit vectors."""
    contracted, batch = equation.params["dimension_numbers"]
    mine = 0 if isinstance(values[0], Units) else 1
    units, other = values[mine], values[1 - mine]
    if not _is_plain(other) or len(contracted[mine]) != 1:
        return None
    start = units.start(*contracted[mine])
    if start is None:
        return None
    out = equation.outvars[0].aval
    (meets,) = contracted[1 - mine]
    along = [*batch[1 - mine]]
    free = other_axes(other.ndim, [meets], along)
    matrix = jnp.transpose(other, (meets, *along, *free))
    beyond = units.count - start - len(matrix)
    rows = jnp.pad(matrix, [(start, beyond), *[(0, 0)] * (matrix.ndim - 1)])
    # Axes along which all unit vectors are the same.
    examples = [1] * (units.numbers.ndim - 1 - len(along))
    at = 1 + len(along) if mine == 0 else rows.ndim
    shape = (*rows.shape[:at], *examples, *rows.shape[at:])
    images = jnp.broadcast_to(rows.reshape(shape), (units.count, *out.shape))
    return Images(images.astype(out.dtype))


# Up to this many directions there is too little to gain by a cache.
FEW_DIRECTIONS = 4


def diagonals(chain: TracedChain, states: Array, structure: np.ndarray) -> Array:
    """The diagonal of df/dz as ``[L, *batch, w]``, by k derivatives for a ``structure: [m, k]``.

    No two entries of one direction influence each other, so ``sum_s d_s * (J d_s)`` over 0/1
    directions ``d_s`` that add up to one is the diagonal.
    """
    width = chain.layout.width
    _, place = _places(structure, width)
    entries = np.arange(width)
    return _picked(chain, states, lambda x: x[..., entries, place], _seeds(structure, width))


def probed_diagonals(chain: TracedChain, states: Array, probes: int) -> Array:
    """An estimate of the diagonal, as ``[L, *batch, w]``.

    The mean of ``d * (J d)`` over random signs d is the diagonal in expectation (Hutchinson's
    estimator). Its variance is the sum of the squares of the off-diagonal entries.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (probes, chain.layout.width))
    directions = signs / np.sqrt(probes)

    def pick(derivatives: Array) -> Array:
        signs = jnp.asarray(directions.T, derivatives.dtype)
        return (derivatives * jnp.broadcast_to(signs, derivatives.shape)).sum(axis=-1)

    return _picked(chain, states, pick, directions)


def block_diagonals(
    chain: TracedChain, states: Array, groups: np.ndarray, structure: np.ndarray
) -> Array:
    """The entries of df/dz inside ``groups: [m, k]``, as ``[L, *batch, m, k, k]``.

    By as many derivatives as the groups of the step's ``structure`` are large. The rows and columns
    of an entry -1 are undefined.
    """
    directions = _seeds(structure, chain.layout.width)
    if np.array_equal(groups, structure):
        # [.., m, k of the output, k of the input]
        return by_rows(chain, _derivatives(chain, states, directions)[..., groups, :])
    row, place = _places(structure, chain.layout.width)[:, groups]
    together = row[:, :, None] == row[:, None, :]

    def pick(derivatives: Array) -> Array:
        picked = derivatives[..., groups[:, :, None], place[:, None, :]]
        return picked if together.all() else jnp.where(together, picked, 0)

    return by_rows(chain, _picked(chain, states, pick, directions))


def by_rows(chain: TracedChain, derivatives: Array) -> Array:
    """Derivatives in reverse mode are rows of the Jacobian."""
    return jnp.swapaxes(derivatives, -1, -2) if chain.step.has_custom_vjp else derivatives


def _seeds(groups: np.ndarray, width: int) -> np.ndarray:
    """0/1 directions ``[k, w]``, each with one entry of every group."""
    return np.arange(groups.shape[1])[:, None] == _places(groups, width)[1]


def _places(groups: np.ndarray, width: int) -> np.ndarray:
    """For each entry its group, and its place in it: int ``[2, w]``."""
    places = np.zeros((2, width), np.int32)
    places[:, groups[groups >= 0]] = np.nonzero(groups >= 0)
    return places


def _picked(
    chain: TracedChain, states: Array, pick: Callable[[Array], Array], directions: np.ndarray
) -> Array:
    """``pick`` of the derivatives in all directions, some steps at a time."""
    # At least w steps, so that products with weights that all of them share, which are computed
    # once for each chunk, take no more time than the rest.
    nbytes = max(1, len(directions) * states[0].size * states.dtype.itemsize)
    is_narrow = len(directions) <= FEW_DIRECTIONS
    size = steps_held(nbytes, len(states), states.shape[-1], is_narrow)

    def some(_: None, part: tuple[Array, Leaves]) -> tuple[None, Array]:
        states, inputs = part
        steps = dataclasses.replace(chain, inputs=inputs, length=len(states))
        # Without the barrier XLA fuses `pick` with the step, which it recomputes for every entry.
        return None, pick(lax.optimization_barrier(_derivatives(steps, states, directions)))

    length = len(states)
    size = even_chunk(length, min(size, length))
    return scan_in_chunks(some, None, (states, chain.inputs), length=length, size=size)[1]


def _derivatives(chain: TracedChain, states: Array, directions: np.ndarray | Array) -> Array:
    """``J d`` for every direction, on a new last axis; ``J^T d`` in reverse mode only."""
    shape = states.shape[1:]
    vectors = jnp.asarray(directions, states.dtype)
    wide = vectors.reshape((len(vectors), *(1,) * (len(shape) - 1), -1))
    basis = like(jnp.broadcast_to(wide, (len(vectors), *shape)), states)

    def one(state: Array, inputs: Leaves) -> Array:
        return jax.vmap(derivative(chain, state, inputs), out_axes=-1)(basis)

    with differentiable(chain.step):
        return jax.vmap(one)(states, chain.inputs)


@contextmanager
def differentiable(step: Step) -> Iterator[None]:
    """Raise an error that says what to do if jax cannot differentiate the step."""
    try:
        yield
    except Exception as error:
        if not step.not_differentiable:
            raise
        raise ValueError(
            "the step has no derivative with respect to the state, which Newton's method needs: "
            f'{step.not_differentiable} Expected method="sequential", blocks that are no '
            'derivatives of the step (linearize="identity", "zero" or deeppcr.Surrogate), or a '
            "step with a jax.custom_jvp."
        ) from error


def derivative(chain: TracedChain, state: Array, inputs: Leaves) -> Callable[[Array], Array]:
    """That of one step, a linear function of vectors; its transpose in reverse mode only."""
    layout, step = chain.layout, chain.step

    def f(vector: Array) -> Array:
        leaves = layout.unflatten(vector)
        return layout.flatten(step(leaves, inputs, chain.captured, step.at_once))

    if not step.has_custom_vjp:
        linear: Callable[[Array], Array] = jax.linearize(f, state)[1]
        return linear
    pull = jax.vjp(f, state)[1]
    return lambda row: pull(row)[0]
