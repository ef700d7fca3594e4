"""What others have published, and the chain and the options by which it is tried here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from deeppcr import Anderson, Newton, TrustRegion
from experiments.bench.engine import distance
from experiments.field.window import largest_entry, root_mean_square, sliding_picard
from experiments.models import chains, published

UNIFIED = "unified"
TOLERANCE = 1e-3  # of an error that nobody published
# As the field calls them.
NAMES = {"identity": "Picard", "zero": "Jacobi", "constant": "constant guess"}
SHORT, LONG = 1024, 131_072
SAMPLER_WINDOW = 80
OWN_GOAL = "a goal of deeppcr's own: no such figure is published"
BY_MEAN_SQUARE = "its tolerance is for a root mean square, ours for every entry"


@dataclass(frozen=True)
class Claim:
    """A published result.

    Attributes:
        problem: the chain, in words.
        source: who published it; docs/experiments/field.md has the references.
        published: the iterations, in words.
        make: makes the chain; its weights are drawn here unless ``problem`` says otherwise.
        options: of `deeppcr.Newton`, other than the defaults.
        most: iterations; None where none are published.
        error: published, the largest difference from `jax.lax.scan`, relative to the largest
            entry; None where none is: `TOLERANCE` then.
        converges: False for a method that is known to diverge, and has to say so.
        note: how what is counted here differs from what was published.
    """

    problem: str
    source: str
    published: str
    make: Callable[[], chains.Model]
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None
    error: float | None = None
    converges: bool = True
    note: str = ""

    @property
    def method(self) -> Newton:
        """The method that is tried."""
        return Newton(**self.options)

    @property
    def said(self) -> str:
        """The options in words: "diagonal, atol 0.0001"."""
        words = []
        for name, value in self.options.items():
            if isinstance(value, str):
                words.append(NAMES.get(value, value))
            elif isinstance(value, int | float):
                words.append(f"{name} {value:g}".replace("e-0", "e-"))
            else:
                words.append(type(value).__name__)
        return ", ".join(words) or "none"

    def holds(self, ended: str, iterations: int, error: float) -> bool:
        """Whether a solve does as well."""
        if (ended == "converged") != self.converges:
            return False
        few = self.most is None or not self.converges or iterations <= self.most
        return few and error <= (TOLERANCE if self.error is None else self.error)


def claims(quick: bool) -> Iterator[Claim]:
    """All but ParaDiGMS's; small versions, and fewer, if ``quick``."""
    make: Callable[[], chains.Model] = partial(published.word_problem, SHORT)
    yield Claim("S5 word problem", UNIFIED, "1", make, most=1, error=0.0)
    for length in (SHORT,) if quick else (SHORT, LONG):
        yield from _contracting(length)
    for length in (512,) if quick else (512, LONG):
        for name in ("ParaGRU", "ParaLSTM"):
            make = partial(published.para_rnn, name, 8, length)
            yield Claim(name, "ParaRNN", "3 to 4", make, most=4)
    make = partial(published.deer_demo, 1000 if quick else 10_000)
    yield Claim("GRU", "DEER", "", make, error=2.4e-7)
    make = partial(published.tanh_rnn, 32, 2048 if quick else 65_536)
    for form, most in (("dense", 6), ("diagonal", 30)):
        options = {"linearize": form, "atol": 1e-4}
        yield Claim("tanh RNN", "ELK", f"{most}", make, options, most)
    make = partial(published.mala_chain, 1000 if quick else 10_000)
    yield Claim("MALA", "MCMC", "60", make, most=60, note=OWN_GOAL)
    if not quick:
        options = {"linearize": "diagonal", "damping": TrustRegion()}
        yield Claim("MALA", "MCMC", "60", make, options, most=60, note=OWN_GOAL)
    yield from _sampling()
    make = partial(chains.recurrent_chain, "lstm", 128, 62 if quick else 625, jax.random.key(0))
    yield Claim("silero-sized LSTM", "silero", "converges", make)


def _contracting(length: int) -> Iterator[Claim]:
    figures = {"dense": ("4 to 6", 6), "diagonal": ("8 to 18", 18), "zero": ("17 to 65", 65)}
    make = partial(published.contracting_rnn, length)
    for form, (figure, most) in figures.items():
        yield Claim("contracting RNN", UNIFIED, figure, make, {"linearize": form}, most)
    picard = {"linearize": "identity"}
    yield Claim("contracting RNN", UNIFIED, "diverges", make, picard, converges=False)


def sampler(steps: int) -> chains.Model:
    """DDIM on digits, by the model that `experiments.models.chains` trains."""
    return chains.ddim_chain(chains.diffusion_params(), steps, jax.random.key(0))


def _sampling() -> Iterator[Claim]:
    """ParaTAA at a tolerance like its own, and to rounding."""
    figures: list[tuple[str, int, dict[str, Any]]] = [
        ("7 to 8", 8, {"rtol": 1e-2}),
        ("11", 11, {"atol": 1e-6}),
    ]
    for figure, most, tolerance in figures:
        options = {"linearize": "identity", "acceleration": Anderson()} | tolerance
        make = partial(sampler, 100)
        yield Claim("DDIM", "ParaTAA", figure, make, options, most, note=BY_MEAN_SQUARE)


def window_claims(quick: bool) -> Iterator[Claim]:
    """ParaDiGMS's window: no more iterations than its loop takes here, at an error no larger.

    Its tolerance is for the root mean square of an update, as in the paper, and for the largest
    entry, as ours. Both start from the initial state at every step.
    """
    start = {"initial_guess": "constant"}
    model = sampler(100 if quick else 1000)
    expected = chains.states(model)
    norms = (("here", root_mean_square, BY_MEAN_SQUARE), ("here, by entries", largest_entry, ""))
    for tolerance in (1e-2,) if quick else (1e-2, 3e-3, 1e-6):
        for where, norm, note in norms:
            found, iterations = sliding_picard(model, SAMPLER_WINDOW, tolerance, norm)
            yield Claim(
                "DDIM",
                "ParaDiGMS",
                f"{iterations} {where}",
                lambda: model,
                {"linearize": "identity", "window": SAMPLER_WINDOW, "atol": tolerance} | start,
                iterations,
                distance(found, expected),
                note=note,
            )
