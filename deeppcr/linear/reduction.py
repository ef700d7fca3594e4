"""Parallel solvers of depth O(log L): parallel cyclic reduction, cyclic reduction, a prefix scan.

Step l is the affine map ``y -> A_l y + b_l``. The composition of two affine maps,

    (A, b) after (A', b') = (A A', A b' + b),

is associative, as composition of maps always is. ``y_l`` is the offset of the first l maps
composed. The solvers compose the same maps in different orders.

**Parallel cyclic reduction** doubles the distance d that an equation reaches back,

    y_l = A_l y_{l-d} + b_l,    y_{l-d} = A_{l-d} y_{l-2d} + b_{l-d}
    =>  y_l = (A_l A_{l-d}) y_{l-2d} + (A_l b_{l-d} + b_l),

for all l at once. After ceil(log2 L) rounds every equation reaches back beyond the start of the
chain, where the state is zero, and its ``b_l`` is the solution. No solver takes fewer rounds, and
every round is one product of long arrays. In return it does log2 L times the work.

**Cyclic reduction** composes every other equation with the one before it. That leaves a recurrence
of half the length for the odd steps alone (counted from 0), which is solved in the same way. The
even steps then follow from their predecessors, ``y_{2i} = A_{2i} y_{2i-1} + b_{2i}``, by products
of a block and a vector. That takes L/2 + L/4 + ... < L block products, half of those of a prefix
scan, because the blocks of the even steps are never composed.

**A prefix scan** forms all L composed blocks although only the offsets are needed.

Sources: Hockney & Jesshope, *Parallel Computers 2*, sections 5.4.2 and 5.4.3; Danieli et al.,
*DeepPCR*, NeurIPS 2023; Blelloch, *Prefix Sums and Their Applications*, 1990, section 1.4.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.linear.blocks import Blocks, StructOfArrays
from deeppcr.linear.solver import Along, LinearSolver
from deeppcr.lower import computed_once

Maps = tuple[Blocks, Array]
"""Affine maps, ``y -> A y + b``: blocks and vectors."""


def after(later: Maps, earlier: Maps) -> Maps:
    """The composition that does ``earlier`` first."""
    (block, offset), (first, first_offset) = later, earlier
    return block.compose(first), block.apply(first_offset) + offset


@dataclasses.dataclass(frozen=True)
class ParallelCyclicReduction(LinearSolver):
    """Parallel cyclic reduction: reduce every equation in each of ceil(log2 L) rounds.

    Work O(L log L), depth $log_2 L$, the least of all solvers.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.ParallelCyclicReduction())[-1]
        Array([2.], dtype=float32)

    References:
        R. W. Hockney, C. R. Jesshope, *Parallel Computers 2*, 1988, section 5.4.3; F. Danieli et
        al., *DeepPCR*, NeurIPS 2023, section 3.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        along = Along(blocks.axis, reverse)
        if isinstance(blocks, StructOfArrays):
            return restore(_reduce_augmented(blocks, b, along))
        distance, length = 1, blocks.length
        # Equations that reach beyond the start are finished: their blocks are left out.
        blocks = along.last(blocks, length - 1)
        while distance < length:
            unfinished = length - distance
            update = blocks.apply(along.first(b, unfinished))
            b = along.join(along.first(b, distance), along.last(b, unfinished) + update)
            if 2 * distance < length:
                remaining = unfinished - distance
                earlier = along.first(blocks, remaining)
                blocks = along.last(blocks, remaining).compose(earlier)
                # Without the barrier XLA forms, and keeps, the blocks of all rounds before the
                # first b.
                blocks, b = lax.optimization_barrier((blocks, b))
            distance *= 2
        return restore(b)


def _reduce_augmented(blocks: StructOfArrays, b: Array, along: Along) -> Array:
    """The solution, with small blocks and offsets in one array ``[A b]: [w, w + 1, chain, batch]``.

    The blocks of finished equations are zero, and zeros are shifted in from beyond the start. So
    all rounds work on arrays of one shape, and XLA compiles one round or several to one kernel, not
    to two for each. On a GPU, kernel launches dominate the time of narrow blocks.
    """
    augmented = jnp.concatenate([along.clear_first(blocks.matrix), b], axis=1)
    augmented = lax.optimization_barrier(augmented)
    distance, length = 1, along.length(b)
    while True:
        blocks, b = StructOfArrays(augmented[:, :-1]), augmented[:, -1:]
        earlier = along.shift(augmented, distance)
        if 2 * distance >= length:
            return b + blocks.apply(earlier[:, -1:])
        only_offsets = jnp.pad(b, [(0, 0), (blocks.width, 0), (0, 0), (0, 0)])
        augmented = computed_once(only_offsets + blocks.apply(earlier))
        distance *= 2


@dataclasses.dataclass(frozen=True)
class CyclicReduction(LinearSolver):
    """Eliminate every other step, solve the recurrence of half the length, and substitute back.

    Work O(L), depth $2 log_2 L$, the fewest block products of the parallel solvers: fewer than L.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.CyclicReduction())[-1]
        Array([2.], dtype=float32)

    References:
        R. W. Hockney, Journal of the ACM 12, 1965; R. W. Hockney, C. R. Jesshope, *Parallel
        Computers 2*, 1988, section 5.4.2.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        return restore(_reduce((blocks, b), Along(blocks.axis, reverse)))


def _reduce(maps: Maps, along: Along) -> Array:
    length = along.length(maps)
    if length == 1:
        return maps[1]
    even, odd = along.halves(maps)
    # The last even step of a chain of odd length has no successor. Without the barrier XLA for GPU
    # computes the maps of several rounds from those of the first, and reads these in each of them.
    half = lax.optimization_barrier(after(odd, along.first(even, length // 2)))
    y_odd = _reduce(half, along)

    blocks, b = even
    zero = jnp.zeros_like(along.first(b, 1))
    before = along.first(along.join(zero, y_odd), along.length(b))
    return along.interleave(along.clear_first(blocks.apply(before)) + b, y_odd)


@dataclasses.dataclass(frozen=True)
class PrefixScan(LinearSolver):
    """`jax.lax.associative_scan` over pairs of block and offset.

    Work O(L), depth $2 log_2 L$, about 2 L block products.

    Example:
        >>> A, b = jnp.full((100, 1), 0.5), jnp.ones((100, 1))
        >>> deeppcr.solve_bidiagonal(A, b, solver=deeppcr.PrefixScan())[-1]
        Array([2.], dtype=float32)

    References:
        G. E. Blelloch, *Prefix Sums and Their Applications*, 1990, section 1.4.
    """

    def _solve(self, blocks: Blocks, b: Array, reverse: bool) -> Array:
        blocks, b, restore = blocks.to_struct_of_arrays(b)
        _, y = lax.associative_scan(
            lambda earlier, later: after(later, earlier),
            (blocks, b),
            reverse=reverse,
            axis=blocks.axis,
        )
        return restore(y)
