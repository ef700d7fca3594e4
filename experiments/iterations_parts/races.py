"""Races of the forms of Newton's method against the sequential program: on every chain, over the width, and with damping."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import jax

import deeppcr
import depth
from deeppcr import BlockDiagonal, Diagonal, Newton, TrustRegion
from deeppcr.lyapunov import forecast_iterations
from experiments.common import autoregressive, models
from experiments.common.baselines import baselines
from experiments.common.forms import Problem, forms
from experiments.common.solves import at_once, by_loop
from experiments.common.versus import Case, Row, race

LOOP = 128  # the longest Python loop among the baselines
LONGEST = 10.0  # seconds; what is predicted to take longer is not run
DAMPED = 300  # iterations, most
WIDE = {  # which forms are compared over the width
    "dense": Newton(linearize="dense"),
    "diagonal": Newton(linearize=Diagonal(probes=0)),
    "blocks 4": Newton(linearize=BlockDiagonal(4)),
}


@dataclass(frozen=True)
class Track:
    """What all races are run with.

    Attributes:
        device: the model that times are predicted with.
        repeats: timed calls of each program, at least.
        few: names of the forms that are run; None for all.
    """

    device: depth.Device
    repeats: int
    few: tuple[str, ...] | None = None

    def compare(
        self, labels: Row, model: models.Model, methods: Mapping[str, Newton | str]
    ) -> Iterator[Row]:
        """A row for every loop and every method; a method that is a text is one that cannot be run, and the text says why."""
        chosen = {
            name: method for name, method in methods.items() if self.few is None or name in self.few
        }
        case = Case(
            labels=labels,
            arguments=[(model.z0, model.inputs)],
            baselines=baselines(partial(by_loop, model.step), steps_of(model), LOOP),
            programs={
                name: at_once(model.step, method)
                for name, method in chosen.items()
                if isinstance(method, Newton)
            },
        )
        yield from race(case, self.device, self.repeats, LONGEST)
        for name, method in chosen.items():
            if isinstance(method, str):
                yield {**labels, "program": name, "baseline": False, "note": method}


def steps_of(model: models.Model) -> int:
    """L."""
    return len(jax.tree.leaves(model.inputs)[0])


def by_form(problem: Problem, track: Track) -> Iterator[Row]:
    """Every form on one chain."""
    labels = {"part": "forms", "chain": problem.kind, "w": problem.width, "L": problem.length}
    return track.compare(labels, problem.model, dict(forms(problem)))


def by_width(problem: Problem, track: Track) -> Iterator[Row]:
    """Forms whose blocks differ in width, on one of several chains that do."""
    labels = {"part": "width", "chain": problem.kind, "w": problem.width, "L": problem.length}
    return track.compare(labels, problem.model, WIDE)


def by_damping(name: str, model: models.Model, track: Track) -> Iterator[Row]:
    """Plain and damped, with the growth rate of small differences, and the iterations that it lets one expect."""
    chain = deeppcr.Chain(model.step, model.inputs)
    solution = jax.jit(partial(deeppcr.solve, method=Newton(max_iterations=1, record=True)))(
        chain, model.z0
    )
    assert solution.stats.growth_rate is not None
    rate, steps = float(solution.stats.growth_rate), steps_of(model)
    width = Problem(name, model).width
    labels = {"part": "damping", "chain": name, "w": width, "L": steps, "growth rate": rate}
    labels |= {"forecast": forecast_iterations(rate, steps)}
    methods = {
        "plain": Newton(max_iterations=DAMPED),
        "trust region": Newton(max_iterations=DAMPED, damping=TrustRegion()),
    }
    return track.compare(labels, model, methods)


def sampling(seed: int, length: int) -> models.Model:
    """The chain of `experiments.common.autoregressive`."""
    return models.Model(*autoregressive.sampling_chain(autoregressive.train(seed), length, seed))
