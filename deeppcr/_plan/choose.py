"""The choice behind "auto": the candidate of the least predicted time, while jax traces.

What is chosen is kept for programs of the same signature: the step's jaxpr, the shapes, the device.
Costs are computed one by one, until their sum exceeds that of the sequential program: this saves
most of the time, because where the sequential program wins, it wins by far.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import depth
from deeppcr._plan.candidate import AUTODIFF, Candidate, is_whole, speedup
from deeppcr._plan.candidates import Candidates
from deeppcr._plan.costs import ChainCosts, is_hashable
from deeppcr._plan.names import Fixed, Wanted, find_adjoint
from deeppcr.adjoint import Adjoint, Autodiff
from deeppcr.chain import TracedChain
from deeppcr.newton import Newton
from deeppcr.platforms import platforms
from deeppcr.ran import Why
from deeppcr.sequential import Sequential
from depth import Cost

T = TypeVar("T")
KEPT = 512  # choices
# The share of the sequential program's time that another candidate may take: predictions are off by
# a factor of 1.5 as often as not, and a small gain is not worth the compile time.
MARGIN = 0.8
# The share of the time of jax's own gradient that another one may take, if a CPU perhaps runs each
# loop of the former as one function: others pass more than once through the arrays of all steps.
WHOLE = 0.6
# Of candidates that take at most so many times the least time, the one of least memory is chosen,
# up to so many bytes, which matter nowhere.
NEAR, LITTLE = 1.1, 1 << 24
# A sequential program that takes no longer than this many calls of an empty one is not replaced.
CALLS = 2


def choose_method(costs: ChainCosts, platform: str) -> Fixed:
    """The method that computes the states."""
    return _choice(costs, platform)[0]


def explain_method(costs: ChainCosts, platform: str) -> tuple[Why, float]:
    """Why `choose_method` takes its method, and the predicted speedup of Newton's method."""
    return _choice(costs, platform)[1:]


def _choice(costs: ChainCosts, platform: str) -> tuple[Fixed, Why, float]:
    def choose(candidates: Candidates) -> tuple[Fixed, Why, float]:
        found = best_method(candidates)
        return found[0].method, *_explained(found, candidates)

    return _kept(("method", costs.signature), platform, choose, costs)


def _explained(found: list[Candidate], candidates: Candidates) -> tuple[Why, float]:
    """Why the first of the candidates found is the best."""
    sequential = candidates.sequential()
    newton = next((one for one in found if isinstance(one.method, Newton)), None)
    if newton is not None:
        return Why.PREDICTED, speedup(newton, sequential)
    if candidates.costs.chain.obstacle:
        return Why.AS_SCAN, 0.0
    if not _time_limit(sequential, candidates):
        return Why.TOO_SHORT, 0.0
    return Why.AT_MOST, sequential.seconds / candidates.least_seconds


def choose_adjoint(costs: ChainCosts, method: Fixed | None, platform: str) -> Wanted:
    """The adjoint of a chain whose states ``method`` computes; ``method`` is None for "auto"."""
    step = costs.chain.step
    if step.has_custom_vjp or not step.varies_like_state:
        return Autodiff()
    if step.forwards_only:
        return Adjoint() if isinstance(method, Newton) else Autodiff()
    of_method = _hashable(method)
    key = of_method and ("adjoint", costs.signature, of_method)

    def choose(candidates: Candidates) -> Wanted:
        best = best_gradient(candidates, method)[0]
        if best.adjoint == AUTODIFF:
            return Autodiff(rewritten=best.rewritten, unroll=best.unroll)
        return find_adjoint(best.adjoint)

    return _kept(key, platform, choose, costs)


def keep_choices(costs: ChainCosts) -> None:
    """Choose for the devices at hand, from costs that a plan has computed anyway."""
    for platform in platforms():
        choose_method(costs, platform)
        choose_adjoint(costs, None, platform)


def best_method(candidates: Candidates, everything: bool = False) -> list[Candidate]:
    """The candidates for a forward pass, the best first.

    Those that cannot win are omitted, unless ``everything`` is set.
    """
    sequential = candidates.sequential()
    if candidates.costs.chain.obstacle:
        return [sequential]
    limit = math.inf if everything else _time_limit(sequential, candidates)
    loops = [sequential, *(candidates.unrolled() if limit else ())]
    loops += candidates.fused() if everything else ()
    others = (_with_budget(candidate, sequential) for candidate in candidates.methods(limit))
    return _sorted([*loops, *others], candidates)


def best_gradient(
    candidates: Candidates, method: Fixed | None, everything: bool = False
) -> list[Candidate]:
    """The candidates for a gradient, the best first."""
    if left_to_jax(candidates.costs.chain):
        return [candidates.autodiff()]
    found: list[Candidate] = []
    limit, linearize = math.inf, cast(Any, "auto")
    if isinstance(method, Newton):
        # The same with every adjoint. Its price is that of reading all of its program.
        forwards, linearize = [Candidate(method, None, Cost(), 0, 0.0)], method.linearize
    else:
        given = None if method is None else [candidates.given(method)]
        forwards = given or best_method(candidates, everything)
        found = [candidates.autodiff()]
        limit = math.inf if everything else _time_limit(found[0], candidates)
    for forward in [one for one in forwards if not one.on_request] if everything else forwards[:1]:
        found += candidates.adjoints(forward, limit, linearize)
    # A forward pass is chosen before it is known whether a gradient is requested, so a gradient
    # with another forward pass is not available.
    chosen = forwards[0].method
    return sorted(
        _sorted(found, candidates),
        key=lambda candidate: not candidate.is_sequential and candidate.method != chosen,
    )


def left_to_jax(chain: TracedChain) -> str:
    """Why the chain, or its derivative, is left to `jax.lax.scan`; empty if neither is."""
    step = chain.step
    if chain.obstacle:
        return f"runs as jax.lax.scan, since {chain.obstacle.reason}"
    if step.has_custom_vjp:
        return (
            "derivatives are jax's: the step calls a jax.custom_vjp, whose rule need not be linear "
            "in its cotangents; Adjoint(linear_vjp=True) says that it is"
        )
    if not step.varies_like_state:
        return "derivatives are jax's: what a step reads varies over more devices than the state"
    if step.not_differentiable:
        return f"jax has no derivative with respect to the state: {step.not_differentiable}"
    if step.forwards_only:
        return f"derivatives have forward mode only: {step.forwards_only}"
    return ""


def _time_limit(sequential: Candidate, candidates: Candidates) -> float:
    """The seconds that another candidate may take; 0 if a call takes as long."""
    return sequential.seconds if sequential.seconds > _calls(candidates) else 0.0


def _calls(candidates: Candidates) -> float:
    return CALLS * candidates.device.call_latency


def _hashable(method: Fixed | None) -> Hashable | None:
    """The part of a method that the choice of its adjoint depends on; None if not hashable."""
    if not isinstance(method, Newton):
        return type(method).__name__
    return method.linearize if is_hashable(method.linearize) else None


def _with_budget(candidate: Candidate, sequential: Candidate) -> Candidate:
    """Newton's method with a budget of the predicted time of the sequential program."""
    newton: Any = candidate.method
    if newton.max_iterations is not None:  # set by the caller
        return candidate
    budget = max(1, int(sequential.seconds / max(candidate.iteration_seconds, 1e-12)))
    return dataclasses.replace(candidate, method=dataclasses.replace(newton, max_iterations=budget))


def _sorted(found: list[Candidate], candidates: Candidates) -> list[Candidate]:
    """The best first, then the others by time; those that do not fit, or were not measured, last.

    The best is the smallest of those that are nearly as fast as the fastest.
    """

    def rank(candidate: Candidate) -> tuple[bool, bool, bool, float]:
        too_large = not candidate.is_sequential and candidate.memory > candidates.device.memory > 0
        return (
            candidate.on_request,
            too_large,
            candidate.measured is None,
            _handicapped(candidate, candidates),
        )

    trials = candidates.trials
    tried = [dataclasses.replace(one, measured=trials.get(one.name)) for one in found]
    by_time = sorted(tried, key=rank)
    *group, least = rank(by_time[0])
    # Gains over the sequential program have a margin of their own.
    others = [one for one in by_time[1:] if not one.is_sequential]
    nearly = [one for one in others if rank(one) <= (*group, NEAR * least)]
    best = min([by_time[0], *nearly], key=lambda one: max(one.memory, LITTLE))
    return [best, *(one for one in by_time if one is not best)]


def _handicapped(candidate: Candidate, candidates: Candidates) -> float:
    """The seconds of a candidate; a prediction for a sequential program is reduced by MARGIN."""
    is_loop = isinstance(candidate.method, Sequential) and candidate.adjoint in (None, AUTODIFF)
    if not is_loop or candidate.measured is not None:
        return candidate.time
    if candidate.is_sequential and candidate.time <= _calls(candidates):
        return 0.0
    if candidate.adjoint is None:
        return MARGIN * candidate.time
    if candidates.costs.on_cpu:
        if candidates.is_surely_whole(candidate):
            return 0.0
        is_perhaps_whole = is_whole(candidate, candidates.device)
        return WHOLE * candidate.time if is_perhaps_whole else candidate.time
    forward = candidates.sequential().seconds
    return forward + MARGIN * max(candidate.time - forward, 0.0)


_CHOICES: OrderedDict[Hashable, Any] = OrderedDict()


def _kept(
    key: Hashable | None, platform: str, choose: Callable[[Candidates], T], costs: ChainCosts
) -> T:
    device = depth.at_hand(platform)
    if key is None:
        return choose(Candidates(costs, device))
    whole = key, id(device)
    if whole not in _CHOICES:
        # With the device, so that its id stays its own.
        _CHOICES[whole] = device, choose(Candidates(costs, device))
        while len(_CHOICES) > KEPT:
            _CHOICES.popitem(last=False)
    _CHOICES.move_to_end(whole)
    found: T = _CHOICES[whole][1]
    return found
