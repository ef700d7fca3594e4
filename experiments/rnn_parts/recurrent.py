"""A recurrent network as a case of a race: one cell over T steps, by every way to run it, forward and with its gradient."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from deeppcr import Adjoint, Newton
from experiments.common import cells
from experiments.common.baselines import Scan, baselines
from experiments.common.versus import Case, Program

KINDS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Array]]]] = {
    "gru": (cells.gru_step, cells.gru_weights),
    "lstm": (cells.lstm_step, cells.lstm_weights),
}


@dataclass(frozen=True)
class Way:
    """How `deeppcr` is asked to run a chain."""

    method: Any = "auto"
    adjoint: Any = "auto"

    @property
    def scan(self) -> Scan:
        """`deeppcr.scan`, this way."""
        return partial(deeppcr.scan, method=self.method, adjoint=self.adjoint, batch_ndim=1)


WAYS: dict[str, Way] = {
    "auto": Way(),
    "newton": Way(
        Newton(linearize="dense"), Adjoint(linearize="dense")
    ),  # with the solver that is best on this device
    "newton, cyclic reduction": Way(
        Newton(linearize="dense", linear="cyclic_reduction"),
        Adjoint(linearize="dense", linear="cyclic_reduction"),
    ),
    "newton, diagonal": Way(Newton(linearize="diagonal"), "auto"),
}
OF_GRADIENT = WAYS | {"scan, parallel adjoint": Way("sequential", Adjoint(linearize="dense"))}
FEW = ("auto", "newton", "scan, parallel adjoint")


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
        """One step, from what `cells.read` made of the input."""
        return KINDS[self.kind][0](weights, state, from_x)

    def start(self, batch: int) -> Any:
        """The state of zeros that it starts from."""
        zeros = jnp.zeros((batch, self.n), jnp.float32)
        return zeros if self.kind == "gru" else (zeros, zeros)

    def arguments(self, length: int, batch: int, seed: int) -> tuple[Any, Any, Array]:
        """Random weights, the state to start from, and random inputs ``[T, batch, n]``."""
        inputs = np.random.default_rng(seed).standard_normal((length, batch, self.n), np.float32)
        return KINDS[self.kind][1](self.n, seed=seed), self.start(batch), jnp.asarray(inputs)

    def states(self, scan: Scan) -> Callable[..., Array]:
        """The function of ``(weights, start, inputs)`` that makes the cell's outputs ``h: [T, batch, n]``, by some scan."""

        def run(weights: Any, start: Any, xs: Array) -> Array:
            def body(state: Any, from_x: Array) -> tuple[Any, Array]:
                state = self.step(weights, state, from_x)
                return state, jax.tree.leaves(state)[0]

            outputs: Array = scan(body, start, cells.read(weights, xs))[1]
            return outputs

        return run

    def gradient(self, scan: Scan) -> Callable[..., Any]:
        """The gradient of the outputs' mean square with respect to weights, start and inputs."""
        states = self.states(scan)
        return jax.grad(lambda *arguments: jnp.square(states(*arguments)).mean(), (0, 1, 2))

    def solve(self, method: Any) -> Callable[..., deeppcr.Solution]:
        """What finds the same states, and tells how it went."""

        def run(weights: Any, start: Any, xs: Array) -> deeppcr.Solution:
            chain = deeppcr.Chain(partial(self.step, weights), cells.read(weights, xs))
            return deeppcr.solve(chain, start, method=method, batch_ndim=1)

        return jax.jit(run)


@dataclass(frozen=True)
class Size:
    """A network and what it reads: two cases, that share how their chains are solved.

    Attributes:
        network: the cell.
        length: T.
        batch: sequences at once.
        names: which of the ways take part.
    """

    network: Network
    length: int
    batch: int = 1
    names: tuple[str, ...] = tuple(OF_GRADIENT)

    @cached_property
    def solves(self) -> Mapping[Any, Callable[..., Any]]:
        """By method."""
        return {
            way.method: self.network.solve(way.method)
            for way in OF_GRADIENT.values()
            if way.method != "sequential"
        }

    def case(self, direction: str) -> Case:
        """The race: "forward", or "gradient", of which the forward pass is a part."""
        make = self.network.states if direction == "forward" else self.network.gradient
        ways = WAYS if direction == "forward" else OF_GRADIENT
        one = (
            len(jax.tree.leaves(self.network.start(1))) * self.network.n == 1
        )  # number, whose derivative is its own diagonal
        names = [
            name for name in self.names if name in ways and not (one and name == "newton, diagonal")
        ]
        return Case(
            labels={
                "part": "grid",
                "kind": self.network.kind,
                "L": self.length,
                "w": self.network.n,
                "batch": self.batch,
                "direction": direction,
            },
            arguments=[self.network.arguments(self.length, self.batch, seed) for seed in range(2)],
            baselines=baselines(make, self.length),
            programs={
                name: Program(make(ways[name].scan), solve=self.solves.get(ways[name].method))
                for name in names
            },
        )
