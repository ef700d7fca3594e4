"""The linear recurrence over a semiring: another sum, and another product.

``y_l = (A_l * y_{l-1}) + b_l``, where entry i of a product is the sum over k of ``A_ik * y_k``:

    name   sum of x and y             product   zero    one   with it, y_l is
    real   x + y                      x y       0       1     see `deeppcr.linear.solve`
    log    log(exp(x) + exp(y))       x + y     -inf    0     the log of a sum over all paths
    max    max(x, y)                  x + y     -inf    0     the largest of all paths

Maps compose as they do over the reals, because products distribute over sums. With one entry more,
which is one, a step is a single product: of the rows ``M_l = [A_l b_l]`` and the column ``[y 1]``.

The derivative is an ordinary linear recurrence. With ``p_ik`` the derivative of the sum i of step l
in its term k,

    dy_i = sum_k p_ik (dM_ik + dy_k),

where each row of p sums to one. Over "log" they are the probabilities of where the step came from,
given that it went to i; over "max" they are 1 at the largest term. So gradients are posterior
probabilities, or lie on the best path, by one solve of the transposed recurrence: what is known as
the backward pass of forward-backward, or as backtracking.

Source: J. Goodman, *Semiring Parsing*, Computational Linguistics 25, 1999; S. Sarkka,
A. F. Garcia-Fernandez, *Temporal Parallelization of Inference in Hidden Markov Models*, IEEE
Transactions on Signal Processing 69, 2021.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import float32_or_better, like
from deeppcr.checks import describe, did_you_mean
from deeppcr.linear.blocks import Blocks, Diagonals, Matrices
from deeppcr.linear.named import AutoSolver, name_of, solve_recurrence
from deeppcr.linear.reduction import PrefixScan
from deeppcr.linear.solver import Along, LinearSolver, Recurrence


class Semiring(NamedTuple):
    """A sum; its product is ``+``, its zero -inf, and its one 0.

    Attributes:
        sum: of the terms on an axis, ``(terms, axis)``.
        shares: the derivative of their sum in each term; of no term if all are zero.
    """

    sum: Callable[[Array, int], Array]
    shares: Callable[[Array], Array]


def _log_sum(terms: Array, axis: int) -> Array:
    top = _top(terms, axis)
    return jnp.squeeze(top, axis) + jnp.log(jnp.exp(terms - top).sum(axis))


def _probabilities(terms: Array) -> Array:
    sizes = jnp.exp(terms - lax.stop_gradient(_top(terms, -1)))
    total = sizes.sum(-1, keepdims=True)
    return sizes / jnp.where(total == 0, jnp.ones_like(total), total)


def _top(terms: Array, axis: int) -> Array:
    top = terms.max(axis, keepdims=True)
    return jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))


def _first_largest(terms: Array) -> Array:
    largest = jax.nn.one_hot(terms.argmax(-1), terms.shape[-1], dtype=terms.dtype)
    return jnp.where(terms.max(-1, keepdims=True) > -jnp.inf, largest, jnp.zeros_like(largest))


SEMIRINGS = {
    "log": Semiring(_log_sum, _probabilities),
    "max": Semiring(jnp.max, _first_largest),
}


def solve_over(
    name: str,
    blocks: Blocks,
    b: Array,
    initial: Array | None,
    solver: LinearSolver,
    reverse: bool,
) -> Array:
    """`solve_bidiagonal` over the semiring of that name; shapes and dtypes have been checked."""
    if b.size == 0:
        return b
    is_diagonal = isinstance(blocks, Diagonals)
    along = Along(reverse=reverse)
    (A,) = jax.tree.leaves(blocks)
    A = A[..., None, None] if is_diagonal else A
    rows = jnp.concatenate([A, (b[..., None] if is_diagonal else b)[..., None]], -1)
    if initial is None:
        start = jnp.full_like(b[0], -jnp.inf)
        first = along.first(rows, 1)
        unused = jnp.full_like(first[..., :-1], -jnp.inf)
        first = jnp.concatenate([unused, first[..., -1:]], -1)
        rows = along.join(first, along.last(rows, len(b) - 1))
    else:
        start = initial
    working = float32_or_better(b.dtype)
    rows, start = rows.astype(working), start.astype(working)
    start = like(start[..., None] if is_diagonal else start, rows)
    y = _solve(SEMIRINGS[name], solver, reverse, rows, start)
    return y.reshape(b.shape).astype(b.dtype)


def check_semiring(name: str, blocks: Blocks, b: Array, solver: LinearSolver) -> None:
    """Raise unless there is a recurrence over the semiring of that name."""
    if name == "real":
        return
    if not isinstance(name, str) or name not in SEMIRINGS:
        names = ["real", *SEMIRINGS]
        raise ValueError(
            f"semiring is {describe(name)}, expected one of {names}{did_you_mean(name, names)}"
        )
    if not isinstance(blocks, Matrices | Diagonals):
        raise TypeError(
            f"A is {type(blocks).__name__}; with semiring={name!r} expected Matrices, Diagonals or "
            "an array."
        )
    if not jnp.issubdtype(b.dtype, jnp.floating):
        raise TypeError(f"b has dtype {b.dtype}; with semiring={name!r} expected a real one.")
    if solver not in (AutoSolver(), Recurrence(), PrefixScan()):
        raise ValueError(
            f"solver is {name_of(solver)}; with semiring={name!r} expected 'auto', 'sequential' or "
            "'prefix_scan'."
        )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _solve(
    semiring: Semiring, solver: LinearSolver, reverse: bool, rows: Array, start: Array
) -> Array:
    """The states ``[L, *batch, w]`` for ``rows: [L, *batch, w, w + 1]``."""

    def step(y: Array, rows_l: Array) -> tuple[Array, Array]:
        y = semiring.sum(rows_l + _with_one(y)[..., None, :], -1)
        return y, y

    if isinstance(solver.resolve(len(rows), lambda: Matrices(rows[..., :-1])), Recurrence):
        return lax.scan(step, start, rows, reverse=reverse)[1]

    def after(earlier: Array, later: Array) -> Array:
        one = jnp.full_like(earlier[..., :1, :], -jnp.inf).at[..., -1].set(0)
        earlier = jnp.concatenate([earlier, one], -2)
        return semiring.sum(later[..., None] + earlier[..., None, :, :], -2)

    starts = jnp.broadcast_to(start, (len(rows), *start.shape))
    return step(starts, lax.associative_scan(after, rows, reverse=reverse))[1]


@_solve.defjvp
def _derivative(
    semiring: Semiring,
    solver: LinearSolver,
    reverse: bool,
    primals: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    (rows, start), (rows_dot, start_dot) = primals, tangents
    y = _solve(semiring, solver, reverse, rows, start)
    along = Along(reverse=reverse)
    before = along.join(start[None], along.first(y, len(y) - 1))
    shares = semiring.shares(rows + _with_one(before)[..., None, :])
    blocks = Matrices(shares[..., :-1])
    first = along.first(blocks, 1).apply(start_dot[None])
    b = (shares * rows_dot).sum(-1)
    b = along.join(along.first(b, 1) + first, along.last(b, len(y) - 1))
    return y, solve_recurrence(blocks, b, solver, reverse)


def _with_one(y: Array) -> Array:
    """``[y 1]``: the one of a semiring is 0."""
    return jnp.concatenate([y, jnp.zeros_like(y[..., :1])], -1)
