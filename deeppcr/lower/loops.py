"""Loops that end when their data says so, loops in chunks, and what a linear recurrence becomes.

A GPU runs asynchronously. For the condition of a loop, or of a branch, the host must wait, about as
long as six kernels take; a loop of value length needs no wait. On a CPU conditions are free, what
is written once compiles once, and chunks stay in its cache.

In ``y_l = A_l y_{l-1} + b_l`` a product of matrices and vectors can be written in three ways. The
size decides which is fastest:

    up to 4095 numbers in all         multiply and reduce
    more, in matrices up to 7x7       a sum over the columns, in loops
    more, in wider matrices           `jnp.einsum`

On a GPU a sum over the columns is part of the kernel of what follows. A product transposes its
vectors by a kernel of its own (jax 0.10.2).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import like
from deeppcr.lower.products import IN_LOOP
from deeppcr.lower.variants import target
from depth.counts import nbytes

# -- loops in chunks -------------------------------------------------------------------------------

BYTES_AT_ONCE = 1 << 26  # bytes of temporaries, of which a part is kept, on an accelerator


def steps_in_cache(bytes_of_step: int, totals: Sequence[Any] = ()) -> int:
    """The steps of a chunk that takes so many bytes a step; no limit but on a CPU.

    ``totals``: arrays to which every chunk adds, so that it takes as many bytes as they do.
    """
    cache = target().cache
    if cache is None:
        return sys.maxsize
    least = sum(map(nbytes, totals))
    return max(1, max(cache, least) // max(bytes_of_step, 1))


def steps_held(bytes_of_step: int, length: int, least: int, is_narrow: bool) -> int:
    """The steps whose temporaries are held at once.

    Args:
        bytes_of_step: those of a step.
        length: the number of all steps.
        least: fewer would not be worth what is computed once for all steps of a chunk.
        is_narrow: whether there is too little to gain by a cache.
    """
    cache = target().cache
    if cache is None:
        return max(1, BYTES_AT_ONCE // bytes_of_step)
    # On a CPU they stay in the cache: 0.03 to 0.2 of the time for the Jacobians of a tanh RNN, a
    # GRU and an MLP of 32 entries and 65,536 steps (jax 0.10.2, 2 cores).
    return length if is_narrow else max(least, cache // bytes_of_step)


def even_chunk(length: int, most: int) -> int:
    """The steps of a chunk, up to ``most``, of chunks that are about equal."""
    count = -(-length // most)
    even = [n for n in range(count, 2 * count) if length % n == 0]  # else the last is shorter
    return -(-length // (even[0] if even else count))


def scan_in_chunks(
    f: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    parts: Any,
    *,
    length: int,
    size: int,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan` over chunks of ``size`` steps; ``f`` takes a whole chunk.

    The last chunk is shorter if ``size`` does not divide ``length``.
    """
    if size >= length:
        return f(carry, parts)
    count, rest = divmod(length, size)
    whole = jax.tree.map(lambda x: x[: count * size].reshape((count, size, *x.shape[1:])), parts)
    tail = jax.tree.map(lambda x: x[count * size :], parts)
    of_tail = []
    if rest and reverse:
        carry, result = f(carry, tail)
        of_tail.append(result)
    carry, results = lax.scan(f, carry, whole, reverse=reverse)
    results = jax.tree.map(lambda y: y.reshape((count * size, *y.shape[2:])), results)
    if rest and not reverse:
        carry, result = f(carry, tail)
        of_tail.append(result)
    return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys), results, *of_tail)


# -- loops that end when their data says so --------------------------------------------------------

MOST_AT_ONCE = 128  # steps that a GPU takes between two waits of the host: what a wait is worth
FEWEST_WAITS = 8  # so that no more than a part of the chain runs after its end
AHEAD = 3  # trips that all iterations take which do not start from their solution

T = TypeVar("T")


def ahead(budget: int) -> int:
    """The number of trips that run before the first test for the end."""
    return min(AHEAD, budget) if target().launches else 0


def steps_per_test(length: int) -> int:
    """The steps of a chain between two tests for its end; the last ones may run after it."""
    return max(1, min(MOST_AT_ONCE, length // FEWEST_WAITS)) if target().waits else 1


def once_unless(
    right: Array, value: T, otherwise: Callable[[], T]
) -> tuple[Callable[[Any], Array], Callable[[Any], Any], tuple[Array, T]]:
    """The arguments of `jax.lax.while_loop` for a loop of at most one trip: see `unless`.

    The second result of the loop is ``value`` if ``right``, else ``otherwise()``.
    """
    start = like((right, value), right, value)
    return (
        lambda state: ~state[0],
        lambda state: like((jnp.ones_like(state[0]), otherwise()), start),
        start,
    )


def unless(right: Array, value: T, otherwise: Callable[[], T]) -> T:
    """``value`` if ``right``, else ``otherwise()``, of the same structure.

    A loop of at most one trip. Under `jax.vmap` a branch would compute both sides and select, with
    a copy for each example of all that it reads, such as weights.
    """
    result: tuple[Array, T] = lax.while_loop(*once_unless(right, value, otherwise))
    return result[1]


class Opening(NamedTuple):
    """The first trips of a loop, which do less than the others: inside of it, or before it.

    Attributes:
        inside: whether they are trips of the loop, by a branch. Then the program has what all trips
            share once.
    """

    inside: bool

    def before(self, trips: int, trip: Callable[[T], T], start: T) -> T:
        """The state with which the loop begins."""
        for _ in range(0 if self.inside else trips):
            start = trip(start)
        return start

    def select(self, opens: Array, value: T, otherwise: Callable[[], T]) -> T:
        """In a trip of the loop: ``value`` if it is a first one, else ``otherwise()``.

        By a branch: for what reads little.
        """
        if not self.inside:
            return otherwise()
        return lax.cond(opens, lambda: value, otherwise)


def opening(sharded: bool) -> Opening:
    """``sharded``: whether the trips communicate, which no branch may do."""
    return Opening(inside=not target().launches and not sharded)


# -- linear recurrences ----------------------------------------------------------------------------

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
