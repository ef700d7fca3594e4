"""The work of one equation: its operations by class, and how they are computed by vectors."""

from typing import Any

from depth.counts import contracted, matrices, shape, size
from depth.primitives import primitive

CONVOLUTION = "conv_general_dilated"
# The cost of an operation depends on its class more than on its primitive.
CLASS_OF_KIND = {
    "elementwise": "arithmetic",
    "random": "transcendental",
    "cumulative": "cumulative",
    "product": "product",
    "factorization": "cumulative",
    "sort": "cumulative",
}
VECTOR = 8  # entries of float32 that a CPU sums up at once
WHOLE = 64  # bytes of a vector of a processor, whose operations take as long as those of one entry
# Of two cores, jax 0.12.0: additions in a row that take as long as one exponential function; those
# of a sum that wait for each other; and waits of a term of a product that is written out, up to so
# many terms.
FUNCTION, IN_A_ROW, TERM, TERMS = 12, 16, 3, 6
NAIVE = 9  # entries of the result of a product up to which a CPU calls no library
# Functions without code for vectors in XLA (jax 0.10.2 and 0.12.0).
BY_ENTRY = frozenset(("sin", "cos", "tan", "pow", "acos", "asin", "atan2", "digamma", "lgamma"))


def is_reshape(equation: Any) -> bool:
    """Whether a reduction is over axes of size 1 only."""
    reduces = equation.primitive.name.startswith("reduce_")
    return reduces and size(equation.invars[0]) == size(equation.outvars[0])


def operations(equation: Any, kind: str) -> dict[str, int]:
    """The operations of an equation, by class."""
    name = equation.primitive.name
    known = primitive(equation)
    if is_reshape(equation):
        return {}
    if known.reorders or (name == "slice" and not _is_straight(equation)):
        return {"move": sum(map(size, equation.outvars))}
    if known.transcendental:
        return {"transcendental": size(equation.outvars[0])}
    work = known.work(equation)
    if name == CONVOLUTION:
        groups = max(equation.params["feature_group_count"], equation.params["batch_group_count"])
        return {"convolution": work, "expanded": work * (groups - 1)}
    return {CLASS_OF_KIND.get(kind, "reduction"): work} if work else {}


def waits(equation: Any) -> int:
    """The additions that take as long as an equation whose operands are ready."""
    known = primitive(equation)
    name = equation.primitive.name
    if known.transcendental:
        return FUNCTION
    if name == "dot_general":
        return TERM * min(contracted(equation), TERMS)
    if known.kind == "reduction":
        return min(size(equation.invars[0]) // max(size(equation.outvars[0]), 1), IN_A_ROW)
    return int(known.kind == "elementwise")


def vectors(equation: Any, kind: str) -> dict[str, int]:
    """The operations of an equation, by class, in whole vectors of a processor."""
    name = equation.primitive.name
    known = primitive(equation)
    if is_reshape(equation) or known.free:
        return {}
    if name == "dot_general":
        pieces, rows, columns, terms = matrices(equation)
        if not _is_written_out(equation):
            return {"product": 2 * pieces * rows * columns * terms}
        rows, inner = (rows * terms, columns) if columns > 1 else (rows, terms)
        return {"contraction": 2 * pieces * rows * _whole(inner, equation.outvars[0])}
    if name in ("transpose", "rev", "gather", "scatter"):
        return {"move": _whole(size(equation.outvars[0]), equation.outvars[0])}
    if known.kind == "move" and not (known.cuts or known.reorders):
        return {}
    if known.kind == "reduction":
        axes, operand = equation.params["axes"], equation.invars[0]
        if len(shape(operand)) - 1 in axes:
            return {"reduction": size(operand)}
        return {"arithmetic": _whole(size(operand), operand)}
    if kind in ("move", "elementwise", "random"):
        entries = max(map(size, equation.outvars), default=0)
        if name in BY_ENTRY:
            return {"by entry": entries}
        is_function = known.transcendental or kind == "random"
        by = "transcendental" if is_function else "arithmetic"
        return {by: _whole(entries, equation.outvars[0])}
    return operations(equation, kind)


def _whole(entries: int, atom: Any) -> int:
    """The entries of whole vectors, which take as long."""
    lanes = max(WHOLE // max(getattr(atom.aval.dtype, "itemsize", 4), 1), 1)
    return -(-entries // lanes) * lanes


def _is_written_out(equation: Any) -> bool:
    """Whether a CPU calls no library for a product: one of vectors, or of few results."""
    _, rows, columns, terms = matrices(equation)
    return min(rows, columns, terms) <= 1 or rows * columns <= NAIVE


def adds_vectors(equation: Any) -> bool:
    """Whether an equation is a sum of vectors, and not one along the last axis, entry by entry."""
    if equation.primitive.name != "reduce_sum":
        return False
    sizes = shape(equation.invars[0])
    return len(sizes) - 1 not in equation.params["axes"] or sizes[-1] <= VECTOR


def _is_straight(equation: Any) -> bool:
    """Whether a slice is contiguous: whole axes except the first."""
    full, part = shape(equation.invars[0]), shape(equation.outvars[0])
    strides = equation.params["strides"] or (1,) * len(full)
    return full[1:] == part[1:] and set(strides) <= {1}


def is_index(variable: Any) -> bool:
    """Whether a value is one integer or boolean, which a loop computes outside its kernels."""
    dtype = getattr(variable.aval, "dtype", None)
    return size(variable) == 1 and getattr(dtype, "kind", "") in "iub"


def product_kind(equation: Any) -> tuple[str, int]:
    """The kind of a product, and the number of products in its batch."""
    (on_left, on_right), (batch, _) = equation.params["dimension_numbers"]
    pieces = matrices(equation)[0]
    if _is_written_out(equation):
        return "vector product", pieces
    straight = max(on_left) == len(shape(equation.invars[0])) - 1 and min(on_right) == len(batch)
    return "product" if straight else "transposed product", pieces


def rearranged(equation: Any) -> int:
    """The elements that a product with transposed operands has to bring in order."""
    if equation.primitive.name != "dot_general":
        return 0
    (on_left, on_right), (batch, _) = equation.params["dimension_numbers"]
    left, right = equation.invars
    is_left = max(on_left) < len(shape(left)) - 1
    return size(left) * is_left + size(right) * (min(on_right) > len(batch))
