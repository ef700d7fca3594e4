"""A training step's gradient through a recurrent layer: `flax.nnx.RNN` and `deeppcr.nn.RNN`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
import depth
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.programs import SCAN, UNROLLS
from experiments.bench.table import Row
from experiments.bench.timing import Effort

CELLS = ("SimpleCell", "GRUCell", "OptimizedLSTMCell", "ParaGRU", "ParaLSTM")
SIZES = (  # T, units, batch
    (500, 4, 1),
    (1000, 4, 8),
    (1000, 16, 8),
    (500, 64, 8),
)
QUICK = ((500, 4, 8),)
FEATURES = 3


class Layer(NamedTuple):
    """A cell of flax or of `deeppcr.nn`, by name, over a batch of sequences of T steps."""

    cell: str
    length: int
    units: int
    batch: int
    features: int = FEATURES

    def variant(self, layer: Callable[..., Any], inputs: Array) -> Variant:
        """The gradient of the outputs' mean square by the parameters and the inputs."""
        from flax import nnx

        home = deeppcr.nn if hasattr(deeppcr.nn, self.cell) else nnx
        cell = getattr(home, self.cell)(self.features, self.units, rngs=nnx.Rngs(0))
        graph, params, *rest = nnx.split(layer(cell), nnx.Param, ...)

        def loss(params: Any, xs: Array) -> Array:
            here = jax.tree.map(lambda leaf: leaf, rest[0])  # variables of this trace
            return jnp.square(nnx.merge(graph, params, here)(xs)).mean()

        return Variant(jax.grad(loss, argnums=(0, 1)), [(params, xs) for xs in inputs])

    def case(self) -> Case:
        """`flax.nnx.RNN` with every form of its loop, and `deeppcr.nn.RNN`."""
        from flax import nnx

        shape = 2, self.batch, self.length, self.features
        inputs = jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))
        loops: dict[str, Callable[..., Any]] = {SCAN: nnx.RNN}
        loops |= {f"{SCAN}, unroll {n}": partial(nnx.RNN, unroll=n) for n in UNROLLS}
        labels = {"part": "layers", "kind": self.cell, "L": self.length, "w": self.units}
        return Case(
            labels | {"batch": self.batch, "direction": "gradient"},
            arguments=[],
            baselines={name: self.variant(layer, inputs) for name, layer in loops.items()},
            variants={"auto": self.variant(deeppcr.nn.RNN, inputs)},
        )

    def rows(self, device: depth.Device, effort: Effort) -> Iterator[Row]:
        """The rows of the case."""
        return bench(self.case(), device, effort)


def layers(quick: bool) -> list[Layer]:
    """All cells in all sizes."""
    return [Layer(cell, *size) for cell in CELLS for size in (QUICK if quick else SIZES)]
