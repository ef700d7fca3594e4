"""Sizes of an equation, which determine its depth and its work."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

Count = Callable[[Any], int]


def ceil_log2(n: int) -> int:
    """The depth of a balanced tree over ``n`` leaves.

    Ceil(log2 n), and 0 for no leaf and for one.
    """
    return max(int(n) - 1, 0).bit_length()


def shape(atom: Any) -> tuple[int, ...]:
    """The shape of an operand or a result; () for one without, such as a token."""
    return tuple(getattr(atom.aval, "shape", ()))


def size(atom: Any) -> int:
    """The number of elements of an operand or a result."""
    return prod(getattr(atom.aval, "shape", ()))


def nbytes(atom: Any) -> int:
    """The bytes of an operand, a result or an array; 0 for one without data."""
    aval = getattr(atom, "aval", atom)
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return itemsize * prod(getattr(aval, "shape", ()))


def other_axes(ndim: int, *groups: Iterable[int]) -> list[int]:
    """Those of ``ndim`` axes that are in none of the groups."""
    return sorted({*range(ndim)}.difference(*groups))


def traffic(equation: Any) -> int:
    """The bytes of all operands and results, each once."""
    return sum(map(nbytes, equation.invars)) + sum(map(nbytes, equation.outvars))


def results(equation: Any) -> int:
    """The elements of the largest result."""
    return max(map(size, equation.outvars), default=0)


def elements(equation: Any) -> int:
    """The elements of the largest operand or result."""
    return max(map(size, (*equation.invars, *equation.outvars)), default=0)


# -- reductions ------------------------------------------------------------------------------------


def reduced(equation: Any) -> int:
    """The number of elements that each element of the result is reduced from."""
    axes = equation.params.get("axes", equation.params.get("dimensions"))
    return prod(shape(equation.invars[0])[axis] for axis in axes)


def reduction_work(equation: Any) -> int:
    """One combination for each element that is removed."""
    operand, result = equation.invars[0], equation.outvars[0]
    return max(size(operand) - size(result), 0)


def along(equation: Any) -> int:
    """The length of the axis that the primitive works along, by default the last."""
    params = equation.params
    names = ("axis", "dimension", "reduction_dimension", "operand_axis")
    axis = next((params[name] for name in names if name in params), -1)
    extent = shape(equation.invars[0])
    return extent[axis] if extent else 1


def window(equation: Any) -> int:
    """The elements of a window."""
    return prod(equation.params["window_dimensions"])


def overlap(equation: Any) -> int:
    """The maximum number of windows that contain an element."""
    sizes, strides = equation.params["window_dimensions"], equation.params["window_strides"]
    return prod(-(-width // stride) for width, stride in zip(sizes, strides, strict=True))


def collisions(equation: Any) -> int:
    """The maximum number of updates, with the operand's own element, to one element of a result."""
    if equation.params.get("unique_indices"):
        return 2
    return prod(shape(equation.invars[1])[:-1]) + 1


# -- products --------------------------------------------------------------------------------------


def contracted(equation: Any) -> int:
    """The number of terms of each element of a product."""
    return matrices(equation)[3]


def contracted_ragged(equation: Any) -> int:
    """The same of a ragged product."""
    (axes, _), _ = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return prod(shape(equation.invars[0])[axis] for axis in axes)


def matrices(equation: Any) -> tuple[int, int, int, int]:
    """The number of products in the batch of a product, and of rows, columns and terms of each."""
    (axes, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    pieces, terms = prod(map(left.__getitem__, batch)), prod(map(left.__getitem__, axes))
    inner = max(pieces * terms, 1)
    return pieces, prod(left) // inner, prod(right) // inner, terms


def convolved(equation: Any) -> int:
    """The elements of the kernel that make one element of the result."""
    kernel = shape(equation.invars[1])
    return prod(kernel[axis] for axis in equation.params["dimension_numbers"].rhs_spec[1:])


def order(equation: Any) -> int:
    """The order n of the last matrix axis of the first operand."""
    return shape(equation.invars[0])[-1]


def matrix(equation: Any) -> int:
    """The elements of one matrix of a batch."""
    return prod(shape(equation.invars[0])[-2:])


def columns(equation: Any) -> range:
    """The rows that are left when each column is eliminated, one after another."""
    rows, count = shape(equation.invars[0])[-2:]
    return range(rows, rows - min(rows, count), -1)


def matrix_work(factor: int) -> Count:
    """``factor`` times m n min(m, n) for each matrix."""
    return lambda equation: (
        factor * size(equation.invars[0]) * min(shape(equation.invars[0])[-2:], default=1)
    )


# -- collectives -----------------------------------------------------------------------------------


def _axes(equation: Any) -> Sequence[Any]:
    """What a collective reduces over: names of axes, and, inside a vmap, positions."""
    params = equation.params
    present = filter(params.__contains__, ("axes", "axis_name", "axis_names"))
    names = params.get(next(present, None), ())
    return names if isinstance(names, (tuple, list)) else (names,)


def named_axes(equation: Any) -> frozenset[Any]:
    """The axes of devices or of a `jax.vmap` that an equation names."""
    return frozenset(axis for axis in _axes(equation) if not isinstance(axis, int | np.integer))


def devices(equation: Any, axis_sizes: dict[str, int]) -> int:
    """The number of devices, and of elements of each, that a collective reduces over.

    Raises:
        KeyError: the size of an axis is not known.
    """
    if groups := equation.params.get("axis_index_groups"):
        return len(groups[0])
    if isinstance(equation.params.get("axis_size"), int):
        return equation.params["axis_size"]
    extent, axes = shape(equation.invars[0]), _axes(equation)
    return prod(extent[axis] if isinstance(axis, int) else axis_sizes[axis] for axis in axes)
