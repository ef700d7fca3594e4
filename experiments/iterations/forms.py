"""Chains, and the forms of Newton's method that solve them."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr import BlockDiagonal, Coarse, Diagonal, Newton, Scalar
from deeppcr.newton.acceleration import Anderson
from experiments.bench.table import Row
from experiments.models import chains as models

MOST = 300e6  # bytes of the Jacobians of all steps; larger problems are skipped
WINDOW = 256
COARSE = 10  # steps in one of the coarse guess


@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain to solve.

    Attributes:
        kind: "tanh", "relu", "gru", "lstm", "residual", "diffusion" or "chaotic".
        model: the chain, without a batch.
    """

    kind: str
    model: models.Model

    @property
    def length(self) -> int:
        """L, the number of steps."""
        return self.model.length

    @property
    def width(self) -> int:
        """w, the numbers in a state."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.model.z0))

    def labels(self, part: str) -> Row:
        """The first cells of its rows."""
        return {"part": part, "chain": self.kind, "w": self.width, "L": self.length}


def problem(kind: str, size: int, length: int) -> Problem:
    """A chain of a kind; ``size`` is its width unless its weights are trained."""
    key = jax.random.key(0)
    match kind:
        case "tanh" | "relu":
            model = models.mlp_chain(size, length, kind, key)
        case "gru":
            model = models.gru_chain(size, length, key)
        case "lstm":
            model = models.lstm_chain(size, length, key)
        case "residual":
            model = models.residual_chain(length)
        case "diffusion":
            model = models.ddim_chain(models.diffusion_params(), length, key)
        case "chaotic":
            model = models.logistic_chain(length)
        case _:
            raise ValueError(f"no chain is called {kind!r}.")
    return Problem(kind, model)


def forms(problem: Problem) -> Iterator[tuple[str, Newton | str]]:
    """Name and method of every form for a chain; a text says why a method cannot run."""
    dense, width = Newton(linearize="dense"), problem.width
    blocks = 2 if problem.kind == "lstm" else 4
    scalar = Newton(
        linearize=Scalar(of_input=lambda x: x["a"]) if problem.kind == "diffusion" else "identity"
    )
    needed = 4 * problem.length * width**2
    if needed > MOST:
        reason = f"skipped: Jacobians of {needed / 1e6:.0f} MB, more than {MOST / 1e6:.0f}"
        yield "dense", reason
    else:
        yield "dense", dense
        if problem.kind in ("diffusion", "residual") and problem.length >= 2 * COARSE:
            coarse = Coarse(COARSE, longer(problem.model) if problem.kind == "diffusion" else None)
            yield f"coarse guess {COARSE}", dataclasses.replace(dense, initial_guess=coarse)
    if problem.length > WINDOW:
        yield f"window {WINDOW}", dataclasses.replace(dense, window=WINDOW)
    if width > blocks:
        yield f"blocks {blocks}", Newton(linearize=BlockDiagonal(blocks))
    if width > 1:  # else the diagonal is all there is
        yield "diagonal", Newton(linearize=Diagonal(probes=0))
    if width > 4:
        yield "4 probes", Newton(linearize=Diagonal(probes=4))
    yield "scalar", scalar
    yield "scalar, Anderson", dataclasses.replace(scalar, acceleration=Anderson())
    yield "zero", Newton(linearize="zero")
    yield "zero, Anderson", Newton(linearize="zero", acceleration=Anderson())


def longer(model: models.Model) -> Callable[[Array, dict[str, Array]], Any]:
    """Several steps of a diffusion model as one, with the noise predicted at the first.

    ``x -> a_1 x + b_1 e -> a_2 (a_1 x + b_1 e) + b_2 e`` and so on: ``A = prod a_i``, ``B = sum_i
    b_i prod_{j > i} a_j``.
    """

    def step(x: Array, at: dict[str, Array]) -> Any:
        rest = jnp.cumprod(at["a"][::-1])[::-1]
        return model.step(x, {"a": rest[0], "b": (at["b"] * rest / at["a"]).sum(), "t": at["t"][0]})

    return step
