"""The adjoint of one chain: as requested, or chosen by the planner."""

import dataclasses

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.jacobian import Adjoint
from deeppcr.adjoint.per_shard import AdjointPerShard
from deeppcr.adjoint.rules import Autodiff
from deeppcr.adjoint.solver import AdjointSolver
from deeppcr.axis import ChainSharding
from deeppcr.chain import TracedChain
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential


def resolve_adjoint(
    adjoint: Adjoint | Backpropagation | Autodiff | None, method: object, chain: TracedChain
) -> AdjointSolver | Autodiff:
    """The adjoint of a chain that ``method`` solves; ``method`` is None for "auto"."""
    sharding, has_rule = chain.axis, chain.step.has_custom_vjp
    if isinstance(adjoint, Adjoint) and adjoint.linear_vjp:
        has_rule = False
    if isinstance(sharding, ChainSharding):
        if isinstance(adjoint, Autodiff) and not has_rule:
            adjoint = Backpropagation()  # the same, shard after shard
        inner = resolve_adjoint(adjoint, method, dataclasses.replace(chain, axis=sharding.shard))
        return inner if isinstance(inner, Autodiff) else AdjointPerShard(inner, sharding)
    is_uneven = not chain.step.varies_like_state
    if adjoint is None or isinstance(adjoint, Autodiff) or has_rule or is_uneven:
        is_newton = isinstance(method, Newton)
        autodiff = adjoint if isinstance(adjoint, Autodiff) else Autodiff()
        unroll = max(autodiff.unroll, method.unroll if isinstance(method, Sequential) else 1)
        # Second derivatives differentiate what a rule computes, the values included, and not the
        # function: the states have to be those of the run that is differentiated.
        with_states = has_rule or not is_newton or chain.step.has_users_rule
        return dataclasses.replace(
            autodiff, with_states=with_states, with_stats=is_newton, unroll=unroll
        )
    if not isinstance(adjoint, Adjoint):
        return adjoint
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(chain.step, chain.layout, chain.length)
