"""A recurrent network over T steps as a case of the engine: forward pass and gradient."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
import depth
from deeppcr import Adjoint, Newton, Recurrence
from experiments.bench import programs
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.programs import BACKPROP, Scan, Setting
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import cells

KINDS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Array]]]] = {
    "gru": (cells.gru_step, cells.gru_weights),
    "lstm": (cells.lstm_step, cells.lstm_weights),
}
DIRECTIONS = ("gradient", "forward")
INPUTS = 2  # tuples of arguments


DENSE = Setting(Newton(linearize="dense"), Adjoint(linearize="dense"))
PARTS: Mapping[str, Mapping[str, Mapping[str, Setting]]] = {
    "adjoints": {
        "forward": {
            "auto": Setting(),
            "newton, recurrence": Setting(Newton(linearize="dense", linear=Recurrence())),
        },
        "gradient": {
            "auto": Setting(),
            "adjoint, backprop": Setting("sequential", BACKPROP),
            "adjoint, recurrence": Setting("sequential", Recurrence()),
            "adjoint, pcr": Setting("sequential", "pcr"),
        },
    },
    "grid": {
        "forward": (FORWARD := {"auto": Setting(), "newton": DENSE}),
        "gradient": FORWARD
        | {"scan, parallel adjoint": Setting("sequential", Adjoint(linearize="dense"))},
    },
}


@dataclass(frozen=True)
class Network:
    """A cell over T steps.

    Attributes:
        kind: "gru" or "lstm".
        n: units.
    """

    kind: str
    n: int

    def step(self, weights: cells.Weights, state: Any, from_x: Array) -> Any:
        """One step, from the input after `cells.read`."""
        return KINDS[self.kind][0](weights, state, from_x)

    def start(self, batch: int) -> Any:
        """The initial state: zeros."""
        zeros = jnp.zeros((batch, self.n), jnp.float32)
        return zeros if self.kind == "gru" else (zeros, zeros)

    def arguments(self, length: int, batch: int, seed: int) -> tuple[Any, Any, Array]:
        """Random weights, the initial state, and random inputs ``[T, batch, n]``."""
        inputs = np.random.default_rng(seed).standard_normal((length, batch, self.n), np.float32)
        return KINDS[self.kind][1](self.n, seed=seed), self.start(batch), jnp.asarray(inputs)

    def chain(self, weights: Any, xs: Array) -> deeppcr.Chain:
        """The cell over inputs ``[T, batch, features]``."""
        return deeppcr.Chain(partial(self.step, weights), cells.read(weights, xs))

    def states(self, scan: Scan) -> Callable[..., Array]:
        """``(weights, start, inputs) -> [T, batch, n]``: all outputs."""

        def run(weights: Any, start: Any, inputs: Array) -> Array:
            chain = self.chain(weights, inputs)

            def body(state: Any, given: Any) -> tuple[Any, Array]:
                state = chain.step(state, given)
                return state, jax.tree.leaves(state)[0]

            outputs: Array = scan(body, start, chain.inputs)[1]
            return outputs

        return run

    def gradient(self, scan: Scan) -> Callable[..., Any]:
        """The gradient of the outputs' mean square with respect to weights, start and inputs."""
        states = self.states(scan)
        return jax.grad(lambda *arguments: jnp.square(states(*arguments)).mean(), (0, 1, 2))

    def solve(self, method: Any) -> Callable[..., deeppcr.Solution] | None:
        """A solve of the same chain; None for a method without iterations."""

        def run(weights: Any, start: Any, inputs: Array) -> deeppcr.Solution:
            chain = self.chain(weights, inputs)
            return deeppcr.solve(chain, start, method=method, batch_ndim=1)

        return None if method == "sequential" else jax.jit(run)


@dataclass(frozen=True)
class Size:
    """A network and the size of its inputs: a case in each direction.

    Attributes:
        network: the cell.
        length: T.
        batch: number of sequences.
        part: the part of `PARTS` whose variants run it.
    """

    network: Network
    length: int
    batch: int = 1
    part: str = "grid"

    def case(self, direction: str) -> Case:
        """The forward pass, or the gradient, which includes it."""
        network = self.network
        make = network.states if direction == "forward" else network.gradient
        labels = {"part": self.part, "kind": network.kind, "L": self.length, "w": network.n}
        loops: dict[str, Any] = programs.baselines(make, self.length)
        variants: dict[str, Any] = {
            name: Variant(make(setting.scan), solve=network.solve(setting.method))
            for name, setting in PARTS[self.part][direction].items()
        }
        arguments = [network.arguments(self.length, self.batch, k) for k in range(INPUTS)]
        return Case(
            labels | {"batch": self.batch, "direction": direction},
            arguments=arguments,
            baselines=loops | programs.fused(make, arguments[0], batch_ndim=1),
            variants=variants,
        )

    def rows(self, direction: str, device: depth.Device, effort: Effort) -> Iterator[Row]:
        """The rows of a direction."""
        return bench(self.case(direction), device, effort)
