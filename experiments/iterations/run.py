"""How many Newton iterations does each linearisation take, and does a result after k suffice?

forms       every linearisation on every chain: iterations, error, memory, time beside lax.scan
accuracy    the error after k iterations, and the digits that a classifier gets right with them
width       time and memory of a GRU against its width
damping     Newton's method with and without damping on a trained GRU that samples waves from its
            own output, and on chaos

An error is the largest difference from the states of `jax.lax.scan`, relative to the largest state.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain as join
from itertools import zip_longest

import jax

import deeppcr
import depth
from deeppcr import BlockDiagonal, Diagonal, Newton, TrustRegion
from deeppcr.newton.lyapunov import forecast_iterations
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST, LABELS
from experiments.bench.engine import Case, bench
from experiments.bench.programs import baselines, by_loop, by_method
from experiments.bench.summary import best
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.iterations.accuracy import Counts, by_count
from experiments.iterations.figure import pictures
from experiments.iterations.forms import Problem, forms, problem
from experiments.models import autoregressive, chains

Chain = tuple[str, int, int]  # kind, size, length

TAKES = "8 min"
CASE = {
    "chain": "kind of chain",
    "w": LABELS["w"],
    "L": LABELS["L"],
}
RATE = {
    "growth rate": "factor by which a step amplifies differences, in the mean",
    "forecast": "iterations to expect from it",
}
ROWS = {**CASE, **RATE, **{key: text for key, text in BENCH.items() if key not in LABELS}}
ACCURACY = {
    **CASE,
    "form": "linearisation",
    "k": "Newton iterations",
    "ended": BENCH["ended"],
    "error": BENCH["error"],
    "residual": BENCH["residual"],
    "digits right": "share of the digits that are classified correctly",
}
TABLES = dict.fromkeys(("forms", "width", "damping"), ROWS)
TABLES |= {"accuracy": ACCURACY, "fastest programs": CASE | BEST}
PARTS = ("forms", "accuracy", "width", "damping")
RANDOM = ("tanh", "relu", "gru", "lstm")
TRAINED: list[Chain] = [("residual", 32, 100), ("diffusion", 64, 200), ("diffusion", 64, 1000)]
CHAOTIC: Chain = ("chaotic", 1, 1000)
SHORT: list[Chain] = [(kind, 16, 1000) for kind in RANDOM]
CHAINS = [*SHORT, ("gru", 4, 10_000), ("lstm", 4, 10_000), *TRAINED, CHAOTIC]
ALL = [
    *((kind, n, length) for length in (1000, 10_000) for n in (4, 16, 64) for kind in RANDOM),
    *TRAINED,
    CHAOTIC,
]
CURVES: list[Chain] = [*SHORT[:3], *TRAINED[:2], ("chaotic", 1, 256)]
COUNTS: Counts = {
    "dense": (1, 2, 3, 4, 5, 6, 8, 16, 64),
    "diagonal": (1, 2, 4, 8, 16, 64),
    "scalar": (1, 2, 4, 8, 16, 64),
}
WIDTHS = [2, 4, 8, 16, 32, 64, 128]
WIDE_LENGTH = 1024
SEEDS, SAMPLED = 6, 1000
LOGISTIC = (3.2, 3.6, 3.9)
LOGISTIC_LENGTH = 256
LOOP = 128  # the longest Python loop among the baselines
LONGEST = 10.0  # seconds; what is predicted to take longer is not run
DAMPED = 300  # iterations, most
WIDE = {  # which forms are compared over the width
    "dense": Newton(linearize="dense"),
    "diagonal": Newton(linearize=Diagonal(probes=0)),
    "blocks 4": Newton(linearize=BlockDiagonal(4)),
}

QUICK_CHAINS: list[Chain] = [("gru", 4, 256)]
QUICK_CURVES: list[Chain] = [("residual", 32, 100)]
QUICK_COUNTS: Counts = {"dense": (1, 3), "diagonal": (4,), "scalar": (4,)}
QUICK_WIDTHS = [2, 8]
QUICK_FORMS = ("dense", "scalar", "plain", "trust region")


@dataclass(frozen=True)
class Bench:
    """The cases of all parts.

    Attributes:
        device: the model that predicts times.
        effort: how long programs are timed.
        few: names of the forms to run; None for all.
    """

    device: depth.Device
    effort: Effort
    few: tuple[str, ...] | None = None

    def rows(
        self, labels: Row, model: chains.Model, methods: Mapping[str, Newton | str]
    ) -> Iterator[Row]:
        """A row for every loop and every method; a method that is a text says why it cannot run."""
        names = [name for name in methods if self.few is None or name in self.few]
        reasons = {name: why for name in names if isinstance(why := methods[name], str)}
        case = Case(
            labels,
            arguments=[(model.z0, model.inputs)],
            baselines=baselines(partial(by_loop, model.step), model.length, LOOP),
            variants={
                name: by_method(model.step, methods[name]) for name in names if name not in reasons
            },
        )
        yield from bench(case, self.device, self.effort, LONGEST)
        for name, why in reasons.items():
            yield {**labels, "program": name, "baseline": False, "note": why}

    def forms(self, chain: Chain) -> Iterator[Row]:
        """Every form on one chain."""
        found = problem(*chain)
        return self.rows(found.labels("forms"), found.model, dict(forms(found)))

    def width(self, chain: Chain) -> Iterator[Row]:
        """Forms whose blocks differ in width, on one chain."""
        found = problem(*chain)
        return self.rows(found.labels("width"), found.model, WIDE)

    def damping(self, name: str, make: Callable[[], chains.Model]) -> Iterator[Row]:
        """Plain and damped, with the growth rate of differences and the iterations to expect."""
        model = make()
        once = partial(deeppcr.solve, method=Newton(max_iterations=1, record=True))
        solution = jax.jit(once)(deeppcr.Chain(model.step, model.inputs), model.z0)
        assert solution.stats.growth_rate is not None
        rate = float(solution.stats.growth_rate)
        labels = Problem(name, model).labels("damping") | {"growth rate": rate}
        labels |= {"forecast": forecast_iterations(rate, model.length)}
        methods = {
            "plain": Newton(max_iterations=DAMPED, damping=None),
            "trust region": Newton(max_iterations=DAMPED, damping=TrustRegion()),
        }
        return self.rows(labels, model, methods)


def sampling(seed: int, length: int) -> chains.Model:
    """The chain of `experiments.models.autoregressive`."""
    return chains.Model(*autoregressive.sampling_chain(autoregressive.train(seed), length, seed))


def jobs(bench: Bench, quick: bool, everything: bool) -> dict[str, list[command.Job]]:
    """The cases of each part."""
    every = QUICK_CHAINS if quick else ALL if everything else CHAINS
    curves, counts = (QUICK_CURVES, QUICK_COUNTS) if quick else (CURVES, COUNTS)
    widths = QUICK_WIDTHS if quick else WIDTHS
    damped: dict[str, Callable[[], chains.Model]] = {
        f"sampling gru, seed {seed}": partial(sampling, seed, SAMPLED)
        for seed in range(0 if quick else SEEDS)
    }
    for rate in LOGISTIC[:1] if quick else LOGISTIC:
        damped[f"logistic {rate}"] = partial(chains.logistic_chain, LOGISTIC_LENGTH, rate)
    return {
        "forms": [partial(bench.forms, chain) for chain in every],
        "accuracy": [lambda chain=chain: by_count(problem(*chain), counts) for chain in curves],  # type: ignore[misc]
        "width": [partial(bench.width, ("gru", width, WIDE_LENGTH)) for width in widths],
        "damping": [partial(bench.damping, name, make) for name, make in damped.items()],
    }


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    arguments = command.parser("iterations", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    all_of = "every random chain at n = 4, 16, 64 and L = 1000, 10000: an hour on two cores"
    add("--all", action="store_true", help=all_of)
    options = arguments.parse_args(argv)
    few = QUICK_FORMS if options.quick else None
    bench = Bench(depth.at_hand(), Effort(options.repeats), few)
    parts = jobs(bench, options.quick, options.all)
    # Cases of all parts alternate, the most important first.
    todo = join.from_iterable(zip_longest(*(parts[part] for part in options.parts)))
    command.run(
        options,
        [job for job in todo if job],
        TABLES,
        summary=lambda rows: iter([command.part("fastest programs", best(rows))]),
        pictures=pictures,
    )
