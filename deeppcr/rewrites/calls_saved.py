"""Whether a sequential loop takes less time as one function, on a CPU.

One function saves a call for each kernel of a trip. It loses where XLA's kernels are the better
code: they read slices where they are, and sums of products that they fuse are vector code. The
numbers are nanoseconds of a trip, or of one entry or multiplication.
"""

# jax 0.10.2, 2 cores, fitted to 80 loops of 1 to 128 units and batches of 1, 8 and 64. One function
# takes 0.08 (convolutions) to 0.95 of the time where it is chosen. The worst are two products with
# 8 units alone (1.4) and with 32 units and a batch of 8 (1.25).

from collections.abc import Collection, Iterator
from typing import Any

from deeppcr.rewrites.small_products import is_small_product
from deeppcr.rewrites.terms import is_real_product
from deeppcr.rewrites.vector_products import is_short, multiplications
from depth.counts import contracted, convolved, matrices, size
from depth.jaxprs import called, equations, is_literal, moved_by

KERNEL, LIBRARY, CONVOLUTION = 45, 400, 1000  # saved: calls of a kernel, of a library
COPIED = 0.6  # lost, for each entry of a matrix that is a slice: it is copied in every trip
ENTRY = 0.25  # lost, for each entry of the state
# Lost, for each multiplication of matrices, vector by vector, by the entries of a row.
ROWS = ((32, 0.12), (64, 0.04))
LONG_ROW = 0.01
WRITTEN_OUT = 0.09  # the same of a convolution that XLA's kernels write as loops, too


def saves_calls(program: Any, states: int) -> bool:
    """Whether the loop over a step with ``states`` leaves takes less time as one function.

    What does not depend on the state counts as computed before the loop.
    """
    moved = moved_by(program, program.invars[:states])
    inside = list(_within(program, moved))
    products = [each for each in inside if is_real_product(each)]
    convolutions = [each for each in inside if each.primitive.name == "conv_general_dilated"]
    reductions = sum(each.primitive.name.startswith("reduce_") for each in inside)
    in_library = list(filter(_calls_library, convolutions))
    saved = KERNEL * (reductions if products else 1 + reductions) + CONVOLUTION * len(in_library)
    saved += sum(KERNEL if is_small_product(each) else LIBRARY for each in products)
    lost = ENTRY * sum(map(size, program.invars[:states]))
    inputs = set(program.invars[states:])
    known = inputs.union(*(each.outvars for each in program.eqns)) - moved
    lost += sum(map(_loss, products)) + COPIED * _copied(products, inputs, known)
    if not in_library:
        lost += WRITTEN_OUT * sum(size(x.outvars[0]) * convolved(x) for x in convolutions)
    return saved > lost


def _within(program: Any, moved: set[Any]) -> Iterator[Any]:
    """The equations of ``moved`` variables, and all those of calls that are among them."""
    for equation in program.eqns:
        if moved.issuperset(equation.outvars):
            inner = called(equation)
            yield from [equation] if inner is None else equations(inner)


def _loss(product: Any) -> float:
    """Of a product of matrices that is computed vector by vector."""
    if is_short(contracted(product), size(product.outvars[0])):
        return 0.0
    _, rows, columns = matrices(product)
    row = max(rows, columns)
    rate = next((rate for most, rate in ROWS if row < most), LONG_ROW)
    return rate * multiplications(product)


def _copied(products: list[Any], inputs: Collection[Any], known: Collection[Any]) -> int:
    """The entries of ``known`` factors, as one function copies them; of ``inputs`` once.

    A factor whose terms are its last axis is copied by XLA's kernels, too.
    """
    total = 0
    for each in products:
        for atom, axes in zip(each.invars, each.params["dimension_numbers"][0], strict=True):
            if not is_literal(atom) and atom in known and atom.aval.ndim - 1 not in axes:
                total += size(atom) * (1 if atom in inputs else 2)
    return total


def _calls_library(convolution: Any) -> bool:
    """Whether XLA calls a library: it does not where the filter is longer than the image."""
    numbers = convolution.params["dimension_numbers"]
    window = [convolution.invars[1].aval.shape[axis] for axis in numbers.rhs_spec[2:]]
    image = [convolution.outvars[0].aval.shape[axis] for axis in numbers.out_spec[2:]]
    return all(a <= b for a, b in zip(window, image, strict=True))
