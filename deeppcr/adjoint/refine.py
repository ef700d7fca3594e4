"""Iterative refinement of linear recurrences with approximate blocks.

With blocks ``B_l`` near the true ``A_l``, each iteration solves for a correction of
``y = M^{-1} b``,

    r = b + A y - y,    y <- y + (I - B)^{-1} r        (A, B: below the diagonal),

where ``A y`` is one product of all steps' derivatives with a vector and no Jacobian. The error is
multiplied by ``(I - B)^{-1} (A - B)``, whose L-th power is zero. If the budget is spent, the
sequential fallback solves the steps that have not converged.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from deeppcr.linear import Leaving, System
from deeppcr.loops import REFINEMENT, iterate, unless
from deeppcr.newton.convergence import Criterion, Evaluation, expected_iterations
from deeppcr.newton.iterate import Convergence


class _Iterate(NamedTuple):
    iterations: Array
    y: Array
    received: Array  # the true A y
    leaving: Array
    convergence: Convergence


def refine(
    system: System,
    products: Callable[[Array], Array],
    product: Callable[[Array, Array], Array],
    solve: Callable[[Array], Array],
    criterion: Criterion,
    budget: int,
) -> Leaving:
    """The solution of a recurrence, and what its last step passes on.

    Args:
        system: the recurrence.
        products: ``v -> A_l v_l`` for all l, or ``A_l^T v_l``, with the true blocks.
        product: that of one step: see `System.complete`.
        solve: ``b -> y``, with the approximate blocks.
        criterion: the convergence criterion.
        budget: the maximum number of iterations.
    """
    b, axis, total = system.b, system.axis, system.total
    expected = expected_iterations(total, is_exact=False)

    def checked(now: _Iterate, y: Array, update: Array) -> _Iterate:
        received, passed = system.coupled(products, y)
        before = axis.before(jnp.zeros_like(b[0]), y)
        evaluation = Evaluation(b + received, y, before, update)
        convergence = criterion(evaluation, now.iterations, now.convergence, axis)
        return _Iterate(now.iterations, y, received, system.last(passed), convergence)

    def iteration(now: _Iterate) -> _Iterate:
        correction = solve(b + now.received - now.y)
        y = jnp.where(jnp.isfinite(correction), now.y + correction, now.y)
        following = now._replace(iterations=now.iterations + jnp.int32(1))
        return checked(following, y, jnp.abs(correction))

    first, none = solve(b), jnp.int32(0)
    start = _Iterate(none, first, first, first[0], Convergence.unknown(b))
    end = iterate(
        REFINEMENT,
        lambda now: (now.iterations < budget) & (now.convergence.converged < total),
        iteration,
        checked(start, first, jnp.full_like(b, jnp.inf)),
        budget,
        expected,
    )
    prefix = end.convergence.converged
    exceeds = expected > budget
    return unless(
        prefix == total,
        (end.leaving, end.y),
        partial(system.complete, product, prefix, end.y, exceeds),
        exceeds,
    )
