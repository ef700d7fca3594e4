"""Maps that are triangular but not chains, by Jacobi's iteration.

Of a *triangular* map, entry l of ``step(y)`` depends on ``y[:l]`` alone: the next token of a causal
model given those before it, the next pixel, the inverse of an autoregressive flow. The sequential
program evaluates the map L times, for one more entry each time. Jacobi's iteration

    y <- step(y)

takes all entries of each evaluation. If the first p entries of y are those of the sequential
program, so are the first p + 1 of ``step(y)``; and p + 2, if entry p has not changed by this, and
so on. So every evaluation settles at least one entry, L of them settle all, and one more confirms
the last. What is settled is reproduced by later evaluations, or the map is not triangular: this
tells, and costs nothing.

Entries that have not changed are the same to the last bit: small changes add up along a map, in
bfloat16 to any size. (What is settled already need only come out up to rounding: sums on a GPU, or
by a Fourier transform, depend a little on what they should not read.) The derivative is the
solution of ``dy = J dy + c``, with J, strictly lower triangular, the derivative of the map: a
triangular map, too, and so is its transpose, from the back.

References: Y. Song, C. Meng, R. Liao, S. Ermon, *Accelerating Feedforward Computation via Parallel
Nonlinear Equation Solving*, ICML 2021, section 3; A. Santilli et al., *Accelerating Transformer
Inference for Translation via Parallel Decoding*, ACL 2023.
"""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun

from deeppcr import Result
from deeppcr.extend import (
    check_count,
    check_tolerance,
    combine,
    describe,
    floating,
    is_right,
    is_traced,
    leaves_as_arrays,
    like,
    partition,
    varying_axes,
    with_operands,
)

Leaves = list[Any]
Map = Callable[[Leaves], Leaves]
# Units in the last place by which sums in another order differ, as in Newton's method.
SUM_UNITS = 16


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
        iterations: int32 scalar, the evaluations of the map: at most L + 1, the last of which
            confirms the answer.
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
    right. Real entries are differentiable with respect to all arrays that ``step`` reads, to every
    order; derivatives are solved by the same iteration.

    Call it inside `jax.jit`: outside, every call compiles anew. A map that is not triangular is
    found by entries that change although those before them do not: an error outside of `jax.jit`
    and `jax.vmap`, a result inside. If none do, the answer satisfies $y = f(y)$, up to rounding.

    Args:
        step: the map, from a pytree like ``guess`` to another, of the same shapes and dtypes.
        guess: a pytree whose leaves have the entries on axis 0: ``[L, ...]``. Any guess leads to
            the same answer.
        window: integer >= 1, how many entries from the first unsettled one on change in an
            iteration; those after it stay as guessed. 1: the sequential program. None: all.
        rtol: a number >= 0: end when ``step`` changes every real entry by less than this, relative
            to the largest finite number of an entry. None: when it changes nothing. Settled entries
            may change by this, or by rounding, if that is more.

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
        (Array([ 1,  2,  4,  8, 16], dtype=int32), 6)

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

    # The arrays that the step reads become arguments, which are differentiated. Inside
    # `jax.shard_map` entries vary as these arrays do.
    program, arrays = _traced(step, jax.tree.unflatten(tree, leaves))
    if varying_axes(arrays) - varying_axes(leaves):
        leaves = like(leaves, arrays)
        program, arrays = _traced(step, jax.tree.unflatten(tree, leaves))

    def f(y: Leaves, arrays: Leaves) -> Leaves:
        return list(jaxpr_as_fun(program)(*arrays, *y))

    start, constant = lax.stop_gradient((leaves, arrays))
    end = _iterate(lambda y: f(y, constant), start, window or length, rtol, constant)
    states = end.states
    right = end.broken >= length
    moves = floating(states)
    if reals := partition(states, moves):

        def of_reals(y: Leaves, arrays: Leaves) -> Leaves:
            states, arrays = arrays[: len(moves)], arrays[len(moves) :]
            return partition(f(combine(states, moves, y), arrays), moves)

        reals = _differentiable(of_reals, reals, [*lax.stop_gradient(states), *arrays])
    states = combine(states, moves, reals)
    finite = [jnp.isfinite(lax.stop_gradient(leaf)).all() for leaf in reals]
    result = jnp.where(jnp.stack([*finite, True]).all(), Result.CONVERGED, Result.NOT_FINITE)
    result = jnp.where(right, result, Result.NOT_CONVERGED).astype(jnp.int32)
    if not is_traced(right) and not right:
        raise ValueError(
            f"step is not triangular: entry {end.broken} of what it returns changed, although "
            "the entries before it did not; expected it to depend on them alone. (A NaN times zero "
            "is NaN: mask what a model does not read by jnp.where. If the entry changed by "
            "rounding, set rtol above that.)"
        )
    value = jax.tree.unflatten(tree, states)
    return TriangularSolution(value, end.iterations, end.broken, result)


class _Iterate(NamedTuple):
    """``settled``: the number of entries that are known to be those of the sequential program.

    ``broken``: the first of them that changed all the same, or L.
    """

    states: Leaves
    settled: Array
    broken: Array
    iterations: Array
    is_last: Array


def _iterate(f: Map, start: Leaves, window: int, rtol: float | None, arrays: Leaves) -> _Iterate:
    """Iterate ``f``, which reads ``arrays``, from ``start`` until nothing changes."""
    length = len(start[0])
    index = jnp.arange(length, dtype=jnp.int32)

    def first(which: Array) -> Array:
        return jnp.where(which, index, length).min()

    def trip(now: _Iterate) -> _Iterate:
        new = f(now.states)

        def all_agree(agree: Callable[[Array, Array], Array]) -> Array:
            """Bool ``[L]``."""
            return jnp.stack(list(map(agree, new, now.states))).all(0)

        is_settled = index < now.settled
        same = is_settled | all_agree(_same)
        steady = all_agree(lambda new, old: _close(new, old, rtol or 0.0, _rounding(new.dtype)))
        broken = first(is_settled & ~steady)
        close = same if rtol is None else same | all_agree(partial(_close, rtol=rtol))
        changed = first(~close)
        takes = ~is_settled & (index < changed + window)
        states = [
            jnp.where(takes.reshape(-1, *[1] * (old.ndim - 1)), y, old)
            for y, old in zip(new, now.states, strict=True)
        ]
        settled = jnp.minimum(first(~same) + 1, length)
        is_last = (changed == length) | (broken < length)
        return _Iterate(states, settled, broken, now.iterations + 1, is_last)

    zero, no = jnp.int32(0), jnp.array(False)
    begin = _Iterate(list(start), zero, jnp.int32(length), zero, no)
    return lax.while_loop(lambda now: ~now.is_last, trip, like(begin, begin, arrays))


def _same(new: Array, old: Array) -> Array:
    """Bool ``[L]``: the entries that are the same to the last bit; any NaN is like another."""
    if jnp.issubdtype(new.dtype, jnp.complexfloating):
        return _same(new.real, old.real) & _same(new.imag, old.imag)
    same = new == old
    if jnp.issubdtype(new.dtype, jnp.floating):
        same &= jnp.signbit(new) == jnp.signbit(old)  # of zeros: 1 / y tells them apart
        same |= jnp.isnan(new) & jnp.isnan(old)
    return same.all(tuple(range(1, new.ndim)))


def _close(new: Array, old: Array, rtol: float, least: float = 0.0) -> Array:
    """Bool ``[L]``: the entries that are equal up to a tolerance: ``rtol``, or ``least`` if less.

    Relative to the largest finite number of an entry; what is not finite is equal, or it is not.
    """
    axes = tuple(range(1, new.ndim))
    equal = new == old
    if jnp.issubdtype(new.dtype, jnp.inexact):
        equal |= jnp.isnan(new) & jnp.isnan(old)
        size = jnp.maximum(_finite_size(new), _finite_size(old))
        size = size.max(axes, keepdims=True, initial=0)
        difference = jnp.abs(new - old)
        is_small = difference <= jnp.maximum(jnp.asarray(rtol, size.dtype), least) * size
        equal |= jnp.isfinite(difference) & is_small
    return equal.all(axes)


def _finite_size(x: Array) -> Array:
    """The absolute values, and 0 for what is not finite."""
    size = jnp.abs(x)
    return jnp.where(jnp.isfinite(size), size, 0)


def _rounding(dtype: Any) -> float:
    """By how much evaluations of one function may differ, relative to the largest number."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    info = jnp.finfo(dtype)
    # Shorter than float32 are results, not sums: they round once.
    return float(info.eps) * (SUM_UNITS if info.bits >= 32 else 2)


def _differentiable(f: Callable[[Leaves, Leaves], Leaves], root: Leaves, arrays: Leaves) -> Leaves:
    """The ``root`` of ``y = f(y, arrays)``, with derivatives: ``dy = J dy + c``."""
    implicit = jax.custom_jvp(lambda y, _: y)

    @partial(implicit.defjvp, symbolic_zeros=True)
    def rule(primals: Any, tangents: Any) -> tuple[Leaves, Leaves]:
        y, arrays = implicit(*primals), primals[1]
        moves = [not isinstance(t, SymbolicZero) for t in tangents[1]]
        moving = partition(arrays, moves)
        pushed = partition(tangents[1], moves)
        _, c = jax.jvp(lambda x: f(y, combine(arrays, moves, x)), [moving], [pushed])
        return y, _solve_linear(lambda y: f(y, arrays), y, c, [*y, *arrays])

    return implicit(lax.stop_gradient(root), arrays)


def _solve_linear(f: Map, root: Leaves, c: Leaves, arrays: Leaves) -> Leaves:
    """The solution x of ``x = J x + c``, for the derivative J of ``f`` at the ``root``.

    Jacobi's iteration needs at most L iterations from either end: ``J^L`` is zero.
    """
    _, push = jax.linearize(f, root)
    pull = jax.linear_transpose(push, root)

    def solve(matvec: Map, b: Leaves) -> Leaves:
        def trip(now: Any) -> Any:
            x, count, _ = now
            new = list(map(operator.add, matvec(x), b))
            same = [entries.all() for entries in map(_same, new, x)]
            return new, count + 1, jnp.stack(same).all()

        begin = like((b, jnp.int32(1), jnp.array(False)), b, arrays)
        return lax.while_loop(lambda now: (now[1] < len(b[0])) & ~now[2], trip, begin)[0]

    # The solvers take J itself: of x - J x, an infinite x does not give it back.
    return lax.custom_linear_solve(
        lambda x: list(map(operator.sub, x, push(x))),
        c,
        lambda _, b: solve(push, b),
        lambda _, b: solve(lambda x: pull(x)[0], b),
    )


def _length(leaves: Leaves) -> int:
    """L, the entries on axis 0 of every leaf."""
    shapes = [leaf.shape for leaf in leaves]
    if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(
            f"guess has leaves of the shapes {shapes}, expected the entries on axis 0 of each: "
            "[L, ...], with one L."
        )
    return shapes[0][0]


def _traced(step: Callable[[Any], Any], guess: Any) -> tuple[Any, Leaves]:
    """The program of the step, ``(*arrays, *leaves) -> leaves``, and the arrays that it reads."""
    closed, result = jax.make_jaxpr(step, return_shape=True)(guess)
    if _types(result) != _types(guess):
        raise TypeError(
            f"step returns {describe(result)}, expected a pytree as the guess: {describe(guess)}."
        )
    return with_operands(closed)


def _types(tree: Any) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)
