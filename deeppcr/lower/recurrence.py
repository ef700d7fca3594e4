"""What `y_l = A_l y_{l-1} + b_l`, and a loop around it, become on a device.

A product of matrices and vectors can be written in three ways. The size decides which is fastest:

    up to 4095 numbers in all         multiply and reduce
    more, in matrices up to 7x7       a sum over the columns, in loops
    more, in wider matrices           `jnp.einsum`

On a GPU a sum over the columns is part of the kernel of what follows. A product transposes its
vectors by a kernel of its own (jax 0.10.2).
"""

import sys
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.lower.products import IN_LOOP
from deeppcr.lower.variants import target

# On GPUs the default float32 product is TF32, of about three digits.
HIGHEST = lax.Precision.HIGHEST
FEW_STEPS = 4  # chains up to this length are solved step by step on all devices


Use = Literal["derivative", "residual", "summand", "step"]
"""What becomes of a product: it may be differentiated; or it is one of all steps that is read once,
without a copy of the matrices; or a term of what follows; or that of one step, in a loop."""


def matvec(matrix: Array, y: Array, use: Use = "derivative") -> Array:
    """``A y`` for all matrices ``[.., w, w]`` and vectors ``[.., w]``."""
    is_narrow = matrix.shape[-1] <= target().widest
    if use == "summand" and target().waits and is_narrow:
        return _combination(jnp.moveaxis(matrix, -1, 0), y)
    # Of few numbers, multiply and reduce takes 0.3 to 0.9 of the time of `jnp.einsum`. Above, it
    # takes up to 10 times as long: XLA starts threads for each step (jax 0.10.2, 2 cores).
    if use == "residual" or matrix.size <= IN_LOOP.multiplications:
        return (matrix * y[..., None, :]).sum(-1)
    if use == "step" and is_narrow:
        # For loops alone: its derivative takes twice as long as that of the einsum (jax 0.10.2, 2
        # cores), because it rebuilds the blocks column by column.
        return _combination([matrix[..., k] for k in range(matrix.shape[-1])], y)
    return jnp.einsum("...ij,...j->...i", matrix, y, precision=HIGHEST)


def _combination(columns: Sequence[Array] | Array, y: Array) -> Array:
    """The sum of the ``columns``, each multiplied with its entry of ``y: [.., w]``."""
    product = columns[0] * y[..., 0, None]
    for k in range(1, y.shape[-1]):
        product = product + columns[k] * y[..., k, None]
    return product


def is_written_out(width: int) -> bool:
    """Whether products of matrices of this width are written out as sums."""
    return width <= target().widest


def spread(scalar: Array, b: Array) -> Array | None:
    """A number for each step ``[L]`` as one for each entry of ``b``, if that is faster; else None.

    On accelerators: more numbers, but half as many kernels in the rounds of a parallel solver.
    """
    if not target().launches:
        return None
    return jnp.broadcast_to(scalar.reshape(-1, *(1,) * (b.ndim - 1)), b.shape)


def longest_in_order() -> int:
    """The number of steps up to which a loop over them is the fastest solver."""
    # On a CPU no parallel solver has beaten the sequential one (jax 0.10.2, 2 cores, 2000 to 8192
    # steps): the best takes as long for 1x1 blocks, 2 to 8 times as long for blocks of 2x2 to
    # 64x64, and 1 to 2.5 times as long for diagonal ones. On a GPU a sequential step costs at least
    # one kernel launch, whatever its size.
    return FEW_STEPS if target().launches else sys.maxsize


def computed_once(x: Array) -> Array:
    """The result of a round, as the next rounds read it.

    XLA for CPU would fuse all rounds into one kernel, and recompute each round for every entry of
    the next. That for GPU compiles several rounds to one kernel, which is what launches demand.
    """
    return x if target().launches else lax.optimization_barrier(x)


def in_place(*arrays: Array) -> tuple[Array, ...]:
    """New arrays of a loop that take the place of the last ones, on accelerators without a copy."""
    return lax.optimization_barrier(arrays) if target().launches else arrays


def pack(*numbers: Array) -> tuple[Array, ...]:
    """Numbers of one dtype, as a loop carries them.

    On a CPU they are one array, which one kernel writes: each costs time, and more to compile. A
    GPU's compiler makes one kernel of operations on single numbers, if each is made of the last; of
    arrays not.
    """
    return numbers if target().launches else (jnp.stack(numbers),)


def unpack(packed: tuple[Array, ...]) -> tuple[Array, ...]:
    """The numbers again."""
    return packed if len(packed) > 1 else tuple(packed[0])
