"""Anderson acceleration of whole trajectories, one least-squares problem per step.

An iteration ``Z -> Y(Z)`` that solves a chain approximately leaves the residual ``R = Y - Z``. From
one iterate to the next these change by ``dY`` and ``dR``. Anderson acceleration (Anderson, J. ACM
1965) finds the combination of the last m differences that fits the residual best, and extrapolates
to the point where the residual vanishes:

    gamma = argmin | R - sum_i gamma_i dR_i |,      Z' = Y - sum_i gamma_i dY_i.

With one gamma for the whole trajectory, the end of the chain, where residuals are largest, would
dominate the updates at its start. But the residual of step l depends only on the states before it.
So each step has its own gamma, the least-squares solution over the residuals of the steps 1 .. l
(triangular Anderson acceleration, Tang et al., *Accelerating parallel sampling of diffusion
models*, ICML 2024). From the products of single steps it is

    G_l = sum_{k <= l} dR_k^T dR_k,    d_l = sum_{k <= l} dR_k^T R_k,    gamma_l = G_l^-1 d_l,

one cumulative sum along the chain, of a few numbers per step. Each batch element has its own.

Safeguards:

- gamma_l is multiplied by the share of the residual that it explains,
  ``gamma_l^T d_l / sum_{k <= l} |R_k|^2``. This is not in the paper.
- G_l is scaled to a unit diagonal before ``regularization`` is added to it, because successive
  differences soon become parallel.
- States that the iteration reproduces to rounding, counted from the start of the chain, are taken
  as the iteration proposes, and so is the state after them, as in the paper. This preserves the
  property of a plain iteration that one more state is exact each time.
- A step whose gamma is not finite is taken as proposed, too. A difference that is not finite is
  ignored from its step on.

It pays if there are many iterations and f costs more than a pass over ``2 history + 2``
trajectories. It does not pay in a window that slides on after fewer than about 6 iterations.
"""

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from itertools import product, starmap
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.checks import describe
from deeppcr.solution import ROUNDING

DIFFERENCES = (
    8  # at most: the elimination is unrolled: its operations grow with the cube of the history
)


class History(NamedTuple):
    """The state of an `Anderson`: the last iterate, and a ring buffer of ``m`` differences.

    Attributes:
        proposed: [L, *batch, w], the last Y.
        residual: [L, *batch, w], the last R.
        valid: bool [L, *batch], where these two are known and finite, up to and including a step.
        dY: [m, L, *batch, w], differences of Y; zero where they are not known.
        dR: [m, L, *batch, w], differences of R; zero where they are not known.
        products: [m, m, L, *batch], dR_i^T dR_j of single steps.
        known: bool [m, L, *batch], where a difference is known.
        written: int32, the number of differences written so far.
    """

    proposed: Array
    residual: Array
    valid: Array
    dY: Array
    dR: Array
    products: Array
    known: Array
    written: Array


@dataclasses.dataclass(frozen=True)
class Anderson:
    """Accelerate an iteration on trajectories by extrapolation from its last few iterates.

    For inexact blocks that take many iterations. A step of the chain combines differences of the
    states before it only (triangular Anderson acceleration).

    Attributes:
        history: integer from 1 to 8, the number of differences that are kept, in ``2 history + 2``
            trajectories of memory. More than three rarely save an iteration.
        regularization: float > 0, added to the unit diagonal of the scaled least-squares matrix
            (dimensionless). Iteration counts hardly depend on it.

    Raises:
        ValueError: ``history`` or ``regularization`` is out of range.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + 0.1 * jnp.cos(z + x), jnp.linspace(0.0, 1.0, 50))
        >>> newton = deeppcr.Newton(linearize="identity", acceleration=deeppcr.Anderson())
        >>> bool(deeppcr.solve(chain, jnp.array(0.0), method=newton).converged)
        True

    References:
        D. G. Anderson, *Iterative Procedures for Nonlinear Integral Equations*, Journal of the ACM
        12, 1965. Z. Tang et al., *Accelerating Parallel Sampling of Diffusion Models*, ICML 2024.
    """

    # A DDIM sampler of 200 steps takes 58 iterations plain, 21 with one gamma for all steps, and 16
    # with this; 11, 9 and 9 if A_l is the diagonal of df/dz (jax 0.10.2).
    history: int = 3
    regularization: float = 1e-4

    def __post_init__(self) -> None:
        if type(self.history) is not int or not 1 <= self.history <= DIFFERENCES:
            raise ValueError(
                f"history is {describe(self.history)}, expected an integer from 1 to {DIFFERENCES}."
            )
        if not (self.regularization > 0 and math.isfinite(self.regularization)):
            raise ValueError(
                f"regularization is {describe(self.regularization)}, expected a number > 0."
            )

    def begin(self, states: Array) -> History:
        """An empty history for a trajectory ``[L, *batch, w]``, in float32 or better."""
        m, zeros = self.history, jnp.zeros_like(states)
        single = zeros.sum(axis=-1)
        columns = jnp.broadcast_to(zeros, (m, *zeros.shape))
        products = jnp.broadcast_to(single, (m, m, *single.shape))
        nowhere = single.astype(bool)
        known = jnp.broadcast_to(nowhere, (m, *single.shape))
        return History(zeros, zeros, nowhere, columns, columns, products, known, jnp.int32(0))

    def __call__(
        self, state: History, trajectory: Array, proposed: Array, axis: ChainAxis = LOCAL
    ) -> tuple[Array, History]:
        """The next trajectory and state, from the last one Z and Y(Z), both ``[L, *batch, w]``."""
        residual = proposed - trajectory
        state = self._remember(state, proposed, residual, axis)
        gamma = self._least_squares(state, residual, axis)
        is_used = jnp.isfinite(gamma).all(axis=0) & ~_is_exact(trajectory, proposed, axis)
        gamma = jnp.where(is_used[None], gamma, jnp.zeros_like(gamma))
        accelerated = proposed - (gamma[..., None] * state.dY).sum(axis=0)
        return jnp.where(jnp.isfinite(accelerated), accelerated, proposed), state

    def shift(self, own: History, distance: Array) -> History:
        """After a window has moved by ``distance``: nothing is known of the steps that enter."""

        def move(array: Array, axis: int) -> Array:
            padded = lax.concatenate([array, jnp.zeros_like(array)], axis)
            return lax.dynamic_slice_in_dim(padded, distance, array.shape[axis], axis)

        # The products of the steps that leave are added to those of the first step, and so stay in
        # all later sums. These steps have converged, so differences in which they change say little
        # about the steps that remain. It saves 1 of 6 iterations (window of 200 of 1000 steps).
        index = lax.broadcasted_iota(jnp.int32, own.products.shape, 2)
        left = jnp.where(index < distance, own.products, jnp.zeros_like(own.products)).sum(axis=2)
        return History(
            proposed=move(own.proposed, 0),
            residual=move(own.residual, 0),
            valid=move(own.valid, 0),
            dY=move(own.dY, 1),
            dR=move(own.dR, 1),
            products=move(own.products, 2).at[:, :, 0].add(left),
            known=move(own.known, 1),
            written=own.written,
        )

    def _remember(
        self, state: History, proposed: Array, residual: Array, axis: ChainAxis
    ) -> History:
        """The history with the latest difference in place of the oldest one."""
        is_finite = jnp.isfinite(proposed).all(axis=-1) & jnp.isfinite(residual).all(axis=-1)
        valid = _up_to_each(is_finite, axis)
        known = valid & state.valid

        def difference(now: Array, last: Array) -> Array:
            return jnp.where(known[..., None], now - last, jnp.zeros_like(now))

        dY = difference(proposed, state.proposed)
        dR = difference(residual, state.residual)
        slot = state.written % self.history
        all_dR = lax.dynamic_update_index_in_dim(state.dR, dR, slot, 0)
        row = (all_dR * dR[None]).sum(axis=-1)
        products = lax.dynamic_update_index_in_dim(state.products, row, slot, 0)
        return History(
            proposed=proposed,
            residual=residual,
            valid=valid,
            dY=lax.dynamic_update_index_in_dim(state.dY, dY, slot, 0),
            dR=all_dR,
            products=lax.dynamic_update_index_in_dim(products, row, slot, 1),
            known=lax.dynamic_update_index_in_dim(state.known, known, slot, 0),
            # The first call writes a difference that is known nowhere.
            written=state.written + jnp.int32(1),
        )

    def _least_squares(self, state: History, residual: Array, axis: ChainAxis) -> Array:
        """Gamma times the share of the residual that it explains, ``[m, L, *batch]``."""
        m, info = self.history, jnp.finfo(residual.dtype)
        pairs = [(i, j) for i, j in product(range(m), repeat=2) if j <= i]
        gram = [state.products[pair] for pair in pairs]
        right = (state.dR * residual[None]).sum(axis=-1)
        total = jnp.square(residual).sum(axis=-1)
        # One sum along the chain instead of three, because compiling it takes most of the time.
        sums = axis.cumsum(jnp.stack([*gram, *right, total]), axis=1)
        products = dict(zip(pairs, sums, strict=False))
        right, total = sums[len(pairs) : -1], sums[-1]
        least = float(info.tiny / info.eps)  # a smaller square has lost its digits
        is_used = [state.known[i] & (products[i, i] > least) for i in range(m)]
        scale = [
            jnp.where(is_used[i], lax.rsqrt(products[i, i]), jnp.zeros_like(total))
            for i in range(m)
        ]
        diagonal = jnp.full_like(total, 1 + self.regularization)
        matrix = {
            (i, j): products[i, j] * scale[i] * scale[j] if j < i else diagonal for i, j in pairs
        }
        gamma = _solve(matrix, [right[i] * scale[i] for i in range(m)])
        weights = jnp.stack(list(starmap(operator.mul, zip(gamma, scale, strict=True))))
        # Without the share, a stack of contracting tanh layers takes more iterations than without
        # acceleration: 49 instead of 43, and 39 with the share (A_l = 0, jax 0.10.2).
        explained = (weights * right).sum(axis=0)
        share = jnp.where(total > least, explained / total, jnp.zeros_like(total))
        return weights * share[None]


def _solve(lower: Mapping[tuple[int, int], Array], right: Sequence[Array]) -> list[Array]:
    """``M x = b`` by elimination; M is positive definite, given by its lower triangle.

    Each entry is an array over many systems, so that XLA makes one loop over the systems.
    """
    m, a, b = len(right), dict(lower), list(right)
    for k in range(m):
        for i in range(k + 1, m):
            factor = a[i, k] / a[k, k]
            for j in range(k + 1, i + 1):
                a[i, j] = a[i, j] - factor * a[j, k]
            b[i] = b[i] - factor * b[k]
    for k in reversed(range(m)):
        for i in range(k + 1, m):
            b[k] = b[k] - a[i, k] * b[i]
        b[k] = b[k] / a[k, k]
    return b


def _is_exact(trajectory: Array, proposed: Array, axis: ChainAxis) -> Array:
    """Whether all states before a step are reproduced to rounding, bool ``[L, *batch]``."""

    def largest(x: Array) -> Array:
        return jnp.abs(x).max(axis=-1, initial=0)

    size = jnp.maximum(largest(trajectory), largest(proposed))
    tolerance = ROUNDING * float(jnp.finfo(trajectory.dtype).eps)
    unchanged = _up_to_each(largest(proposed - trajectory) <= tolerance * size, axis)
    return axis.before(jnp.ones_like(unchanged[0]), unchanged)


def _up_to_each(true: Array, axis: ChainAxis) -> Array:
    """Whether it is true of a step and of all steps before it."""
    end = axis.total(len(true))
    index = jnp.broadcast_to(
        axis.index(len(true)).reshape((-1, *(1,) * (true.ndim - 1))), true.shape
    )
    # The number of steps from the first false one to the end.
    left = jnp.where(true, 0, end - index).max(axis=0, initial=0, keepdims=True)
    return index < end - axis.largest(left)
