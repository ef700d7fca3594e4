"""Anderson acceleration of whole trajectories, which looks only backwards along the chain.

An iteration that solves a chain approximately, ``Z -> Y(Z)``, is left with the residual ``R = Y - Z``. From one iterate to the
next these change by ``dY`` and ``dR``: a measurement of what the iteration does, in that one direction. Anderson acceleration
(Anderson, J. ACM 1965) finds the combination of the last measurements that explains the residual best, and goes where it is none:

    gamma = argmin | R - sum_i gamma_i dR_i |,      Z' = Y - sum_i gamma_i dY_i.

With one gamma for the whole trajectory, the end of the chain, where residuals stay large the longest, decides what happens at its
start. But what is left at step l depends on the states before it and on no other. So each step has a gamma of its own, the least
squares solution over the residuals of the steps ``1 .. l`` (triangular Anderson acceleration, Tang et al., "Accelerating parallel
sampling of diffusion models", ICML 2024). With the sums of single steps' products,

    G_l = sum_{k <= l} dR_k^T dR_k,    d_l = sum_{k <= l} dR_k^T R_k,    gamma_l = G_l^-1 d_l,

all of it is one cumulative sum along the chain, of a few numbers a step. Every example of a batch has its own.

What makes it safe:

- gamma_l is trusted as far as it explains: it is multiplied by the share ``gamma_l^T d_l / sum_{k <= l} |R_k|^2``. (This is not
  in the paper. A stack of contracting tanh layers, iterated with ``A_l = 0``, took 43 iterations plain, 49 with gammas taken at
  their word, 39 like this; a stiff residual network 41, 46 and 42; where gammas help, they help the same.)
- G_l is scaled to a unit diagonal before ``regularization`` is added to it: measurements soon become parallel.
- States that the iteration reproduces to rounding, from the start of the chain on, and the one after them are left as the
  iteration proposes, as in the paper. Plain iterations make one more state exact each time; this keeps it so.
- A step whose gamma is not finite is left as proposed, too, and a measurement that is not finite counts nowhere from there on.

Iterations to a residual of 16 units in the last place: plain; with one gamma for all, of 5 measurements; with this, of 3.

    diffusion model, w = 64, DDIM    50 steps       200 steps      1000 steps
      A_l = the sampler's own        25, 24, 16     58, 21, 16     > 150, 18, 16
      A_l = 1                        14, 12, 11     15, 12, 11     15, 11, 10
      A_l = diagonal of df/dz        12,  9,  9     11,  9,  9
    residual networks, 100 blocks    trained on 300 batches: 9 or 10 by all three;  on 3000 batches, A_l = 1: 12, 10, 10
    GRU, n = 16, 1000 steps          A_l = 0: 39, 36, 37;    A_l = diagonal of df/dz: 13, 13, 13

So it pays where iterations are many and f costs more than a pass over ``2 history + 2`` trajectories. In a window that slides on
before a step has seen about 6 iterations there is no time to measure anything: plain iterations are as good there, or better.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis

ROUNDING = 16  # units in the last place
LONGEST = 8  # the elimination is written out: its operations grow with the cube


class History(NamedTuple):
    """What an `Anderson` remembers: the last iterate, and ``m`` measurements in a ring.

    Attributes:
        proposed: [L, *batch, w], the last Y.
        residual: [L, *batch, w], the last R.
        seen: bool [L, *batch], where these two mean something, and so do all steps before.
        moves: [m, L, *batch, w], the differences dY; zero where they are not known.
        changes: [m, L, *batch, w], the differences dR; zero where they are not known.
        products: [m, m, L, *batch], dR_i^T dR_j of single steps.
        known: bool [m, L, *batch], where a difference means something.
        written: int32, how many differences have been written.
    """

    proposed: Array
    residual: Array
    seen: Array
    moves: Array
    changes: Array
    products: Array
    known: Array
    written: Array


@dataclasses.dataclass(frozen=True)
class Anderson:
    """Accelerate an iteration on whole trajectories from its last few iterates.

    ``state = accelerate.begin(trajectory)``, and then ``trajectory, state = accelerate(state, trajectory, proposed)`` in the
    place of ``trajectory = proposed``.

    Attributes:
        history: how many measurements are kept, 1 to 8, in ``2 history + 2`` trajectories of memory. One does most of it; more
            than three save an iteration at times.
        regularization: what is added to the unit diagonal of the scaled matrix. Iterations were the same from 1e-9 to 1e-2.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + 0.1 * jnp.cos(z + x), jnp.linspace(0.0, 1.0, 50))
        >>> newton = deeppcr.Newton(linearize="identity", acceleration=deeppcr.Anderson())
        >>> bool(deeppcr.solve(chain, jnp.array(0.0), method=newton).converged)
        True
    """

    history: int = 3
    regularization: float = 1e-4

    def __post_init__(self) -> None:
        if (
            isinstance(self.history, bool)
            or not isinstance(self.history, int)
            or not 1 <= self.history <= LONGEST
        ):
            raise ValueError(
                f"history is {self.history!r}, expected an integer from 1 to {LONGEST}."
            )
        if not (self.regularization > 0 and math.isfinite(self.regularization)):
            raise ValueError(f"regularization is {self.regularization!r}, expected a number > 0.")

    def begin(self, trajectory: Array) -> History:
        """An empty history for trajectories like this one, ``[L, *batch, w]``, in float32 or better."""
        m, zeros = self.history, jnp.zeros_like(trajectory)
        single = zeros.sum(axis=-1)
        columns = jnp.broadcast_to(zeros, (m, *zeros.shape))
        products = jnp.broadcast_to(single, (m, m, *single.shape))
        nowhere = single.astype(bool)
        known = jnp.broadcast_to(nowhere, (m, *single.shape))
        return History(zeros, zeros, nowhere, columns, columns, products, known, jnp.int32(0))

    def __call__(
        self, state: History, trajectory: Array, proposed: Array, axis: ChainAxis = LOCAL
    ) -> tuple[Array, History]:
        """The next trajectory, from the last one and from what the iteration makes of it: ``[L, *batch, w]`` both."""
        residual = proposed - trajectory
        state = self._remember(state, proposed, residual, axis)
        gamma = self._least_squares(state, residual, axis)
        trusted = jnp.isfinite(gamma).all(axis=0) & ~_settled(trajectory, proposed, axis)
        gamma = jnp.where(trusted[None], gamma, jnp.zeros_like(gamma))
        accelerated = proposed - (gamma[..., None] * state.moves).sum(axis=0)
        return jnp.where(jnp.isfinite(accelerated), accelerated, proposed), state

    def shift(self, state: History, count: Array) -> History:
        """The history of a window that has moved ``count`` steps along the chain; of the steps that enter, nothing is known."""

        def move(array: Array, axis: int) -> Array:
            padded = lax.concatenate([array, jnp.zeros_like(array)], axis)
            return lax.dynamic_slice_in_dim(padded, count, array.shape[axis], axis)

        # The steps that leave stay part of all later sums, at the first step. They have arrived: measurements in which they moved
        # say little of what is left to do. (In a window of 200 of 1000 steps, 28 iterations without this, 23 with it.)
        index = lax.broadcasted_iota(jnp.int32, state.products.shape, 2)
        left = jnp.where(index < count, state.products, jnp.zeros_like(state.products)).sum(axis=2)
        return History(
            proposed=move(state.proposed, 0),
            residual=move(state.residual, 0),
            seen=move(state.seen, 0),
            moves=move(state.moves, 1),
            changes=move(state.changes, 1),
            products=move(state.products, 2).at[:, :, 0].add(left),
            known=move(state.known, 1),
            written=state.written,
        )

    def _remember(
        self, state: History, proposed: Array, residual: Array, axis: ChainAxis
    ) -> History:
        """The history with the latest difference in place of the oldest one."""
        seen = _from_the_start(
            jnp.isfinite(proposed).all(axis=-1) & jnp.isfinite(residual).all(axis=-1), axis
        )
        both = seen & state.seen
        move, change = (
            jnp.where(both[..., None], now - last, jnp.zeros_like(now))
            for now, last in ((proposed, state.proposed), (residual, state.residual))
        )
        slot = state.written % self.history
        changes = lax.dynamic_update_index_in_dim(state.changes, change, slot, 0)
        row = (changes * change[None]).sum(axis=-1)
        products = lax.dynamic_update_index_in_dim(state.products, row, slot, 0)
        return History(
            proposed=proposed,
            residual=residual,
            seen=seen,
            moves=lax.dynamic_update_index_in_dim(state.moves, move, slot, 0),
            changes=changes,
            products=lax.dynamic_update_index_in_dim(products, row, slot, 1),
            known=lax.dynamic_update_index_in_dim(state.known, both, slot, 0),
            written=state.written
            + jnp.int32(1),  # the first call writes a difference that is known nowhere
        )

    def _least_squares(self, state: History, residual: Array, axis: ChainAxis) -> Array:
        """gamma, ``[m, L, *batch]``, times the share of the residual that it explains."""
        m, info = self.history, jnp.finfo(residual.dtype)
        places = [(i, j) for i in range(m) for j in range(i + 1)]
        gram = [state.products[place] for place in places]
        right, total = (
            (state.changes * residual[None]).sum(axis=-1),
            jnp.square(residual).sum(axis=-1),
        )
        # One sum along the chain, and not three: that is most of what there is to compile.
        sums = axis.cumsum(jnp.stack([*gram, *right, total]), axis=1)
        products, right, total = (
            dict(zip(places, sums, strict=False)),
            sums[len(places) : -1],
            sums[-1],
        )
        least = float(info.tiny / info.eps)  # a smaller square has lost its digits
        counts = [state.known[i] & (products[i, i] > least) for i in range(m)]
        scale = [
            jnp.where(counts[i], lax.rsqrt(products[i, i]), jnp.zeros_like(total)) for i in range(m)
        ]
        matrix = [[products[i, j] * scale[i] * scale[j] for j in range(i)] for i in range(m)]
        diagonal = jnp.full_like(total, 1 + self.regularization)
        gamma = _solve(
            [[*matrix[i], diagonal] for i in range(m)], [right[i] * scale[i] for i in range(m)]
        )
        weights = jnp.stack([g * s for g, s in zip(gamma, scale, strict=True)])
        explained = (weights * right).sum(axis=0)
        share = jnp.where(total > least, explained / total, jnp.zeros_like(total))
        return weights * share[None]


def _solve(lower: list[list[Array]], right: list[Array]) -> list[Array]:
    """``M x = b`` by elimination, for a positive definite matrix given by its lower triangle, row by row.

    Each entry is an array of many systems' entries, so that XLA makes one loop over the systems of all of it.
    """
    m = len(right)
    a, b = [list(row) for row in lower], list(right)
    for k in range(m):
        for i in range(k + 1, m):
            factor = a[i][k] / a[k][k]
            for j in range(k + 1, i + 1):
                a[i][j] = a[i][j] - factor * a[j][k]
            b[i] = b[i] - factor * b[k]
    for k in reversed(range(m)):
        for i in range(k + 1, m):
            b[k] = b[k] - a[i][k] * b[i]
        b[k] = b[k] / a[k][k]
    return b


def _settled(trajectory: Array, proposed: Array, axis: ChainAxis) -> Array:
    """Where a step is to be left alone, bool ``[L, *batch]``: all before it stay what they are, to rounding."""

    def largest(x: Array) -> Array:
        return jnp.abs(x).max(axis=-1, initial=0)

    size = jnp.maximum(largest(trajectory), largest(proposed))
    tolerance = ROUNDING * float(jnp.finfo(trajectory.dtype).eps)
    stays = _from_the_start(largest(proposed - trajectory) <= tolerance * size, axis)
    return axis.before(jnp.ones_like(stays[0]), stays)


def _from_the_start(true: Array, axis: ChainAxis) -> Array:
    """Where it is true of this step and of all before."""
    end = axis.total(len(true))
    index = jnp.broadcast_to(
        axis.index(len(true)).reshape((-1, *(1,) * (true.ndim - 1))), true.shape
    )
    left = jnp.where(true, 0, end - index).max(
        axis=0, initial=0, keepdims=True
    )  # steps from the first false one on
    return index < end - axis.largest(left)
