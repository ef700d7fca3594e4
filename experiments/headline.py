"""How fast is deeppcr on programs that people run, and where others have published speedups?

Each is compared with `jax.lax.scan`, with unrolled loops, on a GPU with the loop that is one
kernel, and with parallel programs. All results are compared with that of `jax.lax.scan` in float64.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

import deeppcr
import depth
from experiments import loops, mlp
from experiments.bench import command, plots
from experiments.bench.chosen import saying
from experiments.bench.columns import BENCH
from experiments.bench.engine import AUTO, Case, bench
from experiments.bench.plots import Figures, styled
from experiments.bench.programs import Scan, baselines, fused
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.compiling.filters import kalman
from experiments.compiling.program import Program
from experiments.compiling.programs import predators
from experiments.diffusion import run as diffusion
from experiments.diffusion.latent import generator
from experiments.diffusion.sampling import Setup, schedule_of
from experiments.gradients.network import Network, Size
from experiments.recurrent import networks, wide
from experiments.resnet import run as resnet
from experiments.resnet.network import Shape

TAKES = "5 min"
LONGEST = 5.0  # seconds of one call
PATIENCE = 2.0  # seconds of all calls of a program
RATIO = "predicted / measured"
TITLE = "title"  # the cell that says which of `HEADLINES` a row is of
KEPT = ("L", "w", "batch", "direction")  # what else is said of a case
SHORT = 512  # steps of a chain, with --quick
RESIDUAL = (AUTO, "identity / dense", "identity / identity")
SAMPLERS = ("gaussian", "picard")
COLUMNS = {
    TITLE: "which program, in which direction",
    "L": BENCH["L"],
    **{key: BENCH[key] for key in ("program", "ms", "speedup", "over lax.scan")},
    **{key: BENCH[key] for key in ("predicted ms", "predicted speedup")},
    RATIO: "predicted time / measured time",
    **{key: BENCH[key] for key in ("iterations", "error")},
    "error, float64": "the same from lax.scan in float64",
    **{key: BENCH[key] for key in ("compile s", "note")},
}


class Headline(NamedTuple):
    """A program that the README shows.

    Attributes:
        name: what it is called, with the length of its chain where that is in braces.
        make: its case, from the length of its chain.
        length: of it.
        published: the speedup that others report of a parallel program.
    """

    name: str
    make: Callable[[int], Case]
    length: int
    published: str = ""

    def title(self, length: int) -> str:
        """What it is called with a chain of another length."""
        return self.name.format(length)


def trained(kind: str, units: int, batch: int) -> Callable[[int], Case]:
    """The gradient of a recurrent network."""
    return lambda length: networks.Size(kind, units, length, batch).problem().alone().case()


def heads(kind: int) -> Callable[[int], Case]:
    """The gradient of attention by a state that is a matrix."""
    return lambda length: wide.PROGRAMS[kind]._replace(length=length).problem().case()


def alone(program: Program) -> loops.Loop:
    """A program as a loss, its parameters, and no inputs."""
    return program.loss, program.parameters, ()


def loss(of: Callable[[int], loops.Loop], w: int, batch: int = 1) -> Callable[[int], Case]:
    """The value and the gradient of a loss with ``w`` numbers in a state."""

    def made(length: int) -> Case:
        f, params, inputs = of(length)

        def program(scan: Scan) -> Callable[..., Any]:
            return jax.value_and_grad(partial(f, scan))

        arguments = [
            (jax.tree.map(lambda x, k=k: x * (1 + 1e-3 * k), params), *inputs) for k in range(2)
        ]
        return Case(
            {"L": length, "w": w, "batch": batch, "direction": "gradient"},
            arguments,
            baselines(program, length, longest=0) | fused(program, arguments[0]),
            {AUTO: program(deeppcr.scan)},
        )

    return made


def gru(units: int, direction: str) -> Callable[[int], Case]:
    """A GRU without a batch, by Newton's method and parallel adjoints, too."""
    return lambda length: Size(Network("gru", units), length).case(direction)


def layers(direction: str) -> Callable[[int], Case]:
    """The layers of DeepPCR."""
    return lambda length: mlp.case(mlp.Size("tanh", length, 8, 1), direction)


def blocks(length: int) -> Case:
    """A training step through residual blocks."""
    task = resnet.Task(Shape(length), resnet.BATCH, resnet.WARM + 1)
    return resnet.case(task, RESIDUAL)


def sampling(steps: int) -> Case:
    """A digit from 16 latents; the networks are trained once, which takes half a minute."""
    setup = Setup(generator(16, diffusion.Scale().training), schedule_of("DDIM"), steps, batch=1)
    methods = {AUTO: {"method": AUTO}} | {name: diffusion.METHODS[name] for name in SAMPLERS}
    return setup.case(methods)


PROGRAMS = (  # the most important first
    Headline("LSTM, 128 units, T = {}, batch 16, gradient", trained("LSTM", 128, 16), 200),
    Headline("LSTM, 256 units, T = {}, batch 16, gradient", trained("LSTM", 256, 16), 100),
    Headline("LSTM, 512 units, T = {}, batch 16, gradient", trained("LSTM", 512, 16), 50),
    Headline("GRU, 128 units, T = {}, batch 8, gradient", trained("GRU", 128, 8), 200),
    Headline("GRU, 32 units, T = {}, batch 16, gradient", trained("GRU", 32, 16), 500),
    Headline("GRU, 8 units, T = {:,}, batch 8, gradient", trained("GRU", 8, 8), 1000),
    Headline("gated delta rule, 4 heads of 64, T = {:,}, gradient", heads(0), 2048),
    Headline("linear attention, 4 heads of 64, T = {:,}, gradient", heads(1), 2048),
    Headline(
        "Kalman filters, 4 states, T = {}, batch 16, gradient",
        loss(lambda length: alone(kalman(length, 16)), 20, 16),
        500,
    ),
    Headline("Gaussian process, Matern 5/2, T = {:,}, gradient", loss(loops.gp, 12), 2000),
    Headline(
        "Lotka-Volterra, RK4, {:,} steps, batch 8, gradient",
        loss(lambda length: alone(predators(length, 8)), 2, 8),
        2000,
    ),
    Headline("MLP, {} layers of 8 tanh units, gradient", layers("gradient"), 1024),
    Headline("MLP, backward pass alone", layers("backward"), 1024, "200 (DeepPCR)"),
    Headline("MLP, forward pass", layers("forward"), 1024, "30 (DeepPCR)"),
    Headline("residual network of {} blocks, training", blocks, 1024, "7 (DeepPCR)"),
    Headline("latent diffusion, {} steps, sampling", sampling, 1000, "11 (DeepPCR)"),
    Headline("GRU of 1 unit, T = {:,}, gradient", gru(1, "gradient"), 100_000, "808 (DEER)"),
)
HEADLINES = {program.title(program.length): program for program in PROGRAMS}
QUICK = ("GRU, 8 units, T = 1,000, batch 8, gradient", "MLP, forward pass")


def case(title: str, length: int | None = None) -> Case:
    """The case of one of `HEADLINES`, with a chain of its own length unless another is given."""
    program = HEADLINES[title]
    length = length or program.length
    found = program.make(length)
    labels = {TITLE: program.title(length), **{key: found.labels[key] for key in KEPT}}
    variants = {**found.variants, AUTO: saying(found.variants[AUTO], found.arguments[0])}
    return dataclasses.replace(found, labels=labels, variants=variants, in_float64=True)


def is_headline(row: Row) -> bool:
    """Whether a row is of one of `PROGRAMS`, at any length; files may have others."""
    return any(row[TITLE] == program.title(row["L"]) for program in PROGRAMS)


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """The default of each program beside the best loop."""
    mine = [row for row in rows if is_headline(row)]
    ours = [row for row in mine if row["program"] == AUTO and "speedup" in row]
    if not ours:
        return {}
    drawing = plots.dots(
        "How many times faster deeppcr is than the best loop",
        ours,
        "speedup",
        f"speedup over the fastest of\n{plots.loops(mine)} [times]\n"
        "right of 1: deeppcr is faster; open: predicted",
        lambda row: str(row[TITLE]),
        program=lambda row: "the default",
        predicted="predicted speedup",
    )
    return {"speedup": drawing}


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    titles = [
        title for title, program in HEADLINES.items() if program.make not in (blocks, sampling)
    ]
    return [case(title, 20) for title in titles]


def main(argv: list[str]) -> None:
    """Measure all programs."""
    options = command.parser("headline", __doc__).parse_args(argv)
    device, effort = depth.at_hand(), Effort(options.repeats, patience=PATIENCE)
    length, titles = (SHORT, QUICK) if options.quick else (None, HEADLINES)

    def rows(title: str) -> Iterator[Row]:
        for row in bench(case(title, length), device, effort, LONGEST):
            yield row | ({RATIO: 2 ** row["log2"]} if "log2" in row else {})

    jobs = [partial(rows, title) for title in titles]
    command.run(options, jobs, {"": COLUMNS}, summary=command.fastest, pictures=pictures)
