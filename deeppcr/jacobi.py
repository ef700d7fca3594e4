"""Maps that are triangular but not chains, by Jacobi's iteration.

Of a *triangular* map, entry l of ``step(y)`` depends on ``y[:l]`` alone: the next token of a causal
model given those before it, the next pixel, the inverse of an autoregressive flow. The sequential
program evaluates the map L times, for one more entry each time. Jacobi's iteration

    y <- step(y)

takes all entries of each evaluation. Let p be the number of entries from the front that ``step``
reproduces, ``step(y)[:p] == y[:p]``. By induction they are those of the sequential program, and so
is ``step(y)[p]``, which depends on no others. So every evaluation settles at least one entry, and L
of them settle all. Settled entries are kept, so a later evaluation makes the same of them, to the
last bit, or the map is not triangular: this tells, and costs nothing.

Entries of floating dtypes agree up to rounding of their size, as in `deeppcr.newton.convergence`.
Their derivative is the solution of ``dy = J dy + c``, with J, strictly lower triangular, the
derivative of the map: a triangular map, too, and so is its transpose, from the back.

References: Y. Song, C. Meng, R. Liao, S. Ermon, *Accelerating Feedforward Computation via Parallel
Nonlinear Equation Solving*, ICML 2021, section 3; A. Santilli et al., *Accelerating Transformer
Inference for Translation via Parallel Decoding*, ACL 2023.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.arrays.partition import combine, floating, partition
from deeppcr.arrays.state import Leaves
from deeppcr.checks import check_count, check_tolerance, describe, leaves_as_arrays
from deeppcr.newton.convergence import ROUNDING
from deeppcr.solution import Result, is_right

Map = Callable[[Leaves], Leaves]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "iterations", "prefix", "result"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TriangularSolution:
    """The solution of a triangular map. Under `jax.vmap` all fields have the mapped axes.

    Attributes:
        value: all entries, as the guess: a pytree with leaves ``[L, ...]``.
        iterations: int32 scalar, the evaluations of the map: at most L.
        prefix: int32 scalar, the number of entries that are right: L, or the first that the map
            does not determine by those before it.
        result: int32 scalar, one of `Result`: CONVERGED, NOT_FINITE (as is the sequential
            program's), or NOT_CONVERGED: the map is not triangular.
    """

    value: Any
    iterations: Array
    prefix: Array
    result: Array

    @property
    def converged(self) -> Array:
        """Bool scalar: whether ``value`` is that of the sequential program."""
        return is_right(self.result)


def triangular(
    step: Callable[[Any], Any],
    guess: Any,
    *,
    window: int | None = None,
    rtol: float | None = None,
) -> TriangularSolution:
    """Solve $y = f(y)$ for a map whose entry $l$ depends on the entries before it alone.

    The answer is that of the loop that evaluates the map L times, and takes one entry each time.
    Here every evaluation settles at least one entry: more if the guess, or what becomes of it, is
    right. Discrete entries are exact. Real ones are differentiable with respect to all arrays that
    ``step`` reads, to every order; derivatives are solved by the same iteration.

    Call it inside `jax.jit`: outside, every call compiles anew. A map that is not triangular is
    found by entries that change although those before them do not: an error outside of `jax.jit`
    and `jax.vmap`, a result inside. If none do, the answer satisfies $y = f(y)$, as any that is
    called converged.

    Args:
        step: the map, from a pytree like ``guess`` to another, of the same shapes and dtypes.
        guess: a pytree whose leaves have the entries on axis 0: ``[L, ...]``. Any guess leads to
            the same answer.
        window: integer >= 1, how many entries from the first unsettled one on change in an
            iteration; those after it stay as guessed. 1: the sequential program. None: all.
        rtol: the tolerance on what ``step`` changes, relative to the largest number of an entry;
            None for rounding level. Discrete entries have none.

    Returns:
        a `TriangularSolution`.

    Raises:
        TypeError: ``step`` returns something else than the guess.
        ValueError: leaves have no axis 0, or different lengths; or an entry depends on itself or on
            later ones.

    Example:
        >>> def doubled(y):  # entry l: twice the one before it
        ...     return jnp.concatenate([jnp.array([1]), 2 * y[:-1]])
        >>> solution = deeppcr.triangular(doubled, jnp.zeros(5, int))
        >>> solution.value, int(solution.iterations)
        (Array([ 1,  2,  4,  8, 16], dtype=int32), 5)

    References:
        Y. Song, C. Meng, R. Liao, S. Ermon, *Accelerating Feedforward Computation via Parallel
        Nonlinear Equation Solving*, ICML 2021, section 3.
    """
    check_count("window", window, "the number of entries that change", optional=True)
    check_tolerance("rtol", rtol, optional=True)
    leaves, tree = leaves_as_arrays("guess", guess), jax.tree.structure(guess)
    length = _length(leaves)
    if length == 0:
        zero = jnp.int32(0)
        return TriangularSolution(guess, zero, zero, zero)

    def on_leaves(leaves: Leaves) -> Leaves:
        return jax.tree.leaves(step(jax.tree.unflatten(tree, leaves)))

    _check_step(step, jax.tree.unflatten(tree, leaves))
    # The arrays that the step reads become arguments; of a function each time, as jax caches it.
    f, read = jax.closure_convert(on_leaves, leaves)
    constant = [lax.stop_gradient(x) for x in (leaves, read)]
    found = _iterate(
        lambda y: f(y, *constant[1]), constant[0], window or length, rtol, others=constant[1]
    )
    states, right = found.states, found.prefix + 1 >= length
    moves = floating(states)
    if reals := partition(states, moves):

        def of_reals(y: Leaves) -> Leaves:
            return partition(f(combine(states, moves, y), *read), moves)

        reals = _differentiable(of_reals, reals)
    states = combine(states, moves, reals)
    finite = [jnp.isfinite(leaf).all() for leaf in map(lax.stop_gradient, reals)]
    result = jnp.where(jnp.stack([*finite, True]).all(), Result.CONVERGED, Result.NOT_FINITE)
    result = jnp.where(right, result, Result.NOT_CONVERGED).astype(jnp.int32)
    prefix = jnp.where(right, length, found.prefix)
    if not isinstance(right, jax.core.Tracer) and not right:
        raise ValueError(
            f"step is not triangular: entry {prefix} of what it returns changed, although the "
            "entries before it did not; expected it to depend on them alone. (A NaN times zero is "
            "NaN: mask what a model does not read by jnp.where.)"
        )
    value = jax.tree.unflatten(tree, states)
    return TriangularSolution(value, found.iterations, prefix, result)


class _Iterate(NamedTuple):
    """``prefix``: the number of entries that the map reproduces; -1 before the first evaluation."""

    states: Leaves
    prefix: Array
    iterations: Array
    progresses: Array


def _iterate(
    f: Map,
    start: Leaves,
    window: int,
    rtol: float | None,
    *,
    others: Leaves,
    is_linear: bool = False,
) -> _Iterate:
    """Iterate ``f`` from ``start``.

    ``others``: arrays that it reads. ``is_linear``: it ends when all entries agree, or after L
    iterations. They suffice from either end: the L-th power of a triangular map is zero.
    """
    length = len(start[0])
    index = jnp.arange(length, dtype=jnp.int32)

    def trip(now: _Iterate) -> _Iterate:
        new = f(now.states)
        agree = jnp.stack([_agree(*both, rtol) for both in zip(new, now.states, strict=True)])
        disagree = jnp.where(agree.all(0), length, index)
        prefix = disagree.min()
        changes = (index >= prefix) & (index < prefix + window)
        states = [
            jnp.where(changes.reshape(-1, *[1] * (old.ndim - 1)), each, old)
            for each, old in zip(new, now.states, strict=True)
        ]
        return _Iterate(states, prefix, now.iterations + 1, prefix > now.prefix)

    def goes_on(now: _Iterate) -> Array:
        within = now.iterations < length if is_linear else now.progresses
        return (now.prefix < length - 1) & within

    begin = _Iterate(list(start), jnp.int32(-1), jnp.int32(0), jnp.array(True))
    return lax.while_loop(goes_on, trip, like(begin, begin, others))


def _agree(new: Array, old: Array, rtol: float | None) -> Array:
    """Bool ``[L]``: the entries that are the same, up to the tolerance if they are real."""
    axes = tuple(range(1, new.ndim))
    same = new == old
    if jnp.issubdtype(new.dtype, jnp.inexact):
        same |= jnp.isnan(new) & jnp.isnan(old)
        size = jnp.maximum(jnp.abs(new), jnp.abs(old)).max(axes, keepdims=True, initial=0)
        eps = float(jnp.finfo(new.dtype).eps)
        same |= jnp.abs(new - old) <= (ROUNDING * eps if rtol is None else rtol) * size
    return same.all(axes)


def _differentiable(f: Map, root: Leaves) -> Leaves:
    """The ``root`` of ``y = f(y)``, with derivatives: ``J dy - dy = -c``, for matvec ``J - I``."""

    def solve(matvec: Map, b: Leaves) -> Leaves:
        def following(x: Leaves) -> Leaves:
            return [m + y - c for m, y, c in zip(matvec(x), x, b, strict=True)]

        start = [-c for c in b]
        return _iterate(following, start, len(b[0]), None, others=root, is_linear=True).states

    found: Leaves = lax.custom_root(
        lambda y: [new - old for new, old in zip(f(y), y, strict=True)],
        root,
        lambda _, root: root,
        lambda matvec, b: lax.custom_linear_solve(matvec, b, solve, solve),
    )
    return found


def _length(leaves: Leaves) -> int:
    """L, the entries on axis 0 of every leaf."""
    shapes = [leaf.shape for leaf in leaves]
    if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(
            f"guess has leaves of the shapes {shapes}, expected the entries on axis 0 of each: "
            "[L, ...], with one L."
        )
    return shapes[0][0]


def _check_step(step: Callable[[Any], Any], guess: Any) -> None:
    """Raise unless the step returns a pytree as the guess."""
    found = jax.eval_shape(step, guess)
    types = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (found, guess)]
    if types[0] != types[1]:
        raise TypeError(
            f"step returns {describe(found)}, expected a pytree as the guess: {describe(guess)}."
        )
