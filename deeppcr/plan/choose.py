"""The choice behind "auto": the candidate of the least predicted time, from shapes alone, while jax traces.

What is chosen is kept for programs of the same signature: the step's jaxpr, the shapes, the device. Candidates are looked at
piece by piece, and no further once the pieces so far take longer than the sequential program: that spares most of the time, for
where it wins it does so by far.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import depth
from deeppcr.adjoint import Autodiff
from deeppcr.newton import Newton
from deeppcr.plan.candidates import Candidate, Field
from deeppcr.plan.names import Fixed, Wanted
from deeppcr.plan.pieces import Pieces
from deeppcr.plan.trials import read_trials

T = TypeVar("T")
KEPT = 512  # choices
# What another candidate may take of the sequential program's time: predictions are off by a factor of 1.5 as often as not, and
# what promises little gain takes longer to compile. Of 0.2 to 1, anything from 0.7 on had the least regret in `python -m
# experiments decide`, backwards; forwards it made no difference on a CPU.
PROMISE = 0.8
CALLS = 2  # a sequential program that takes no longer than so many calls of an empty one is left as it is


def choose_method(pieces: Pieces, platform: str) -> Fixed:
    """How the states are found."""
    return _kept(
        ("method", pieces.signature), platform, lambda field: best_method(field)[0].method, pieces
    )


def choose_adjoint(pieces: Pieces, method: Fixed | None, platform: str) -> Wanted:
    """How a chain is differentiated whose states ``method`` finds; None for a method of "auto"."""
    if pieces.step.has_custom_vjp:
        return Autodiff()
    of_method = _hashable(method)
    key = of_method and ("adjoint", pieces.signature, of_method)
    return _kept(key, platform, lambda field: best_gradient(field, method)[0].adjoint, pieces)


def best_method(field: Field, everything: bool = False) -> list[Candidate]:
    """The candidates for a forward pass, the best one first; ``everything``: also those that cannot win."""
    sequential = field.sequential()
    if field.pieces.step.effects:  # they have to happen once a step, in order
        return [sequential]
    bar = math.inf if everything or field.trials else _bar(sequential, field)
    found = [sequential, *(_with_budget(candidate, sequential) for candidate in field.methods(bar))]
    return _sorted(found, field)


def best_gradient(field: Field, method: Fixed | None, everything: bool = False) -> list[Candidate]:
    """The candidates for a gradient, the best one first."""
    if field.pieces.step.has_custom_vjp or field.pieces.step.effects:
        return [field.autodiff()]
    everything = everything or bool(field.trials)
    forwards = best_method(field, everything) if method is None else [field.given(method)]
    found: list[Candidate] = []
    bar, linearize = math.inf, cast(Any, "auto")
    if isinstance(method, Newton):
        linearize = method.linearize
    else:
        found = [field.autodiff()]
        bar = math.inf if everything else _bar(found[0], field)
    for forward in forwards if everything else forwards[:1]:
        found += field.adjoints(forward, bar, linearize)
    # A forward pass is chosen before it is known whether a gradient is wanted, so one that is not cannot be had.
    chosen = forwards[0].method
    return sorted(
        _sorted(found, field),
        key=lambda candidate: not candidate.is_sequential and candidate.method != chosen,
    )


def _bar(sequential: Candidate, field: Field) -> float:
    """The seconds that another candidate may take; none where the sequential program takes no longer than it takes to call it."""
    return sequential.seconds if sequential.seconds > CALLS * field.device.call_latency else 0.0


def _hashable(method: Fixed | None) -> Hashable | None:
    """What of a method the choice of its adjoint depends on; None if it cannot be kept."""
    if not isinstance(method, Newton):
        return type(method).__name__
    try:
        hash(method.linearize)
    except TypeError:  # it holds arrays
        return None
    return method.linearize


def _with_budget(candidate: Candidate, sequential: Candidate) -> Candidate:
    """Newton's method that gives up when its iterations have cost what the sequential program is predicted to cost."""
    budget = max(1, int(sequential.seconds / max(candidate.iteration_seconds, 1e-12)))
    newton: Any = candidate.method
    return dataclasses.replace(candidate, method=dataclasses.replace(newton, max_iterations=budget))


def _sorted(found: list[Candidate], field: Field) -> list[Candidate]:
    """The best one first: what fits into memory before what does not, what was measured before what was not."""
    found = [
        dataclasses.replace(candidate, measured=field.trials.get(candidate.name))
        for candidate in found
    ]

    def rank(candidate: Candidate) -> tuple[bool, bool, float]:
        too_large = not candidate.is_sequential and candidate.memory > field.device.memory > 0
        return too_large, candidate.measured is None, _handicapped(candidate, field)

    return sorted(found, key=rank)


def _handicapped(candidate: Candidate, field: Field) -> float:
    """The seconds of a candidate; those of the sequential program shortened where they are a prediction."""
    if not candidate.is_sequential or candidate.measured is not None:
        return candidate.time
    if candidate.time <= CALLS * field.device.call_latency:
        return 0.0
    if candidate.adjoint is None:
        return PROMISE * candidate.time
    forward = field.sequential().seconds
    return forward + PROMISE * max(candidate.time - forward, 0.0)


_CHOICES: OrderedDict[Hashable, Any] = OrderedDict()


def _kept(key: Hashable | None, platform: str, choose: Callable[[Field], T], pieces: Pieces) -> T:
    device = depth.at_hand(platform)
    trials = read_trials(pieces, platform)
    if key is None:
        return choose(Field(pieces, device, trials=trials))
    whole = key, id(device), tuple(trials.items())
    if whole not in _CHOICES:
        _CHOICES[whole] = (
            device,
            choose(Field(pieces, device, trials=trials)),
        )  # with the device, so that its id stays its own
        while len(_CHOICES) > KEPT:
            _CHOICES.popitem(last=False)
    _CHOICES.move_to_end(whole)
    found: T = _CHOICES[whole][1]
    return found
