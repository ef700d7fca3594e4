"""A deep narrow residual network of convolutions for handwritten digits, and its training.

    z_0 = P x,    z_l = z_{l-1} + tanh(K_l * z_{l-1} + b_l) / sqrt(L),    scores = z_L H + h

P takes the pixels of each patch of the image to a few channels, every block has a 3 x 3 convolution
K_l of its own, and H reads the last state. With 1/sqrt(L) it takes all L blocks to change the state
by order one (Hayou et al., *Stable ResNet*, 2021): the Jacobian of a block is the identity and
something small. A network like those of section 4.2 of DeepPCR (Danieli et al., 2023).
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from deeppcr import Adjoint, Newton, Result
from experiments.models.training import adam

CLASSES = 10
TAPS = 3  # of a convolution, a side

Params = dict[str, dict[str, Array]]
Layer = dict[str, Array]
"""``{"weight": [3, 3, channels, channels], "bias": [channels]}``.

Of all blocks: with an axis of blocks in front.
"""

Step = Callable[[Array, Layer], Array]
Run = Callable[[Step, Layer, Array], tuple[Array, Any]]
"""``(step, layers, z_0) -> (z_L, statistics)``: how blocks run."""


@dataclass(frozen=True)
class Shape:
    """The shape of a network.

    Attributes:
        blocks: L.
        channels: of a state.
        side: positions of a state, a side: images are cut into ``side x side`` patches.
    """

    blocks: int
    channels: int = 3
    side: int = 4

    @property
    def width(self) -> int:
        """w, the numbers in a state."""
        return self.side**2 * self.channels


class State(NamedTuple):
    """The state of a training.

    Parameters, and Adam's means of the gradient and of its square.
    """

    params: Params
    mean: Params
    square: Params


def products(z: Array, weight: Array) -> Array:
    """A 3 x 3 convolution of ``z: [batch, side, side, channels]`` as one matrix product.

    Faster than XLA's for few channels.
    """
    side = z.shape[1]
    padded = jnp.pad(z, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + side, j : j + side] for i in range(TAPS) for j in range(TAPS)]
    return jnp.concatenate(taps, axis=-1) @ weight.reshape(-1, weight.shape[-1])


def block(shape: Shape) -> Step:
    """A step of the chain."""

    def step(z: Array, layer: Layer) -> Array:
        moved = products(z, layer["weight"])
        moved = jnp.tanh(moved + jnp.broadcast_to(layer["bias"], moved.shape))
        return z + moved / math.sqrt(shape.blocks)

    return step


def initial(shape: Shape, pixels: int, seed: int = 0) -> State:
    """Random weights for images of ``pixels``, and zero means."""
    patch = _patch(shape, pixels)
    random = np.random.default_rng(seed)

    def weight(inputs: int, *sizes: int) -> Array:
        return jnp.asarray(random.standard_normal(sizes) / math.sqrt(inputs), jnp.float32)

    c = shape.channels
    params = {
        "patch": {"weight": weight(patch**2, patch**2, c)},
        "blocks": {
            "weight": weight(TAPS**2 * c, shape.blocks, TAPS, TAPS, c, c),
            "bias": jnp.zeros((shape.blocks, c), jnp.float32),
        },
        "head": {
            "weight": weight(shape.width, shape.width, CLASSES),
            "bias": jnp.zeros(CLASSES, jnp.float32),
        },
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, zeros, zeros)


def begin(shape: Shape, params: Params, x: Array) -> Array:
    """z_0 of ``x: [batch, pixels]``: ``[batch, side, side, channels]``."""
    side, patch = shape.side, _patch(shape, x.shape[1])
    patches = (
        x.reshape(-1, side, patch, side, patch)
        .transpose(0, 1, 3, 2, 4)
        .reshape(-1, side, side, patch**2)
    )
    return patches @ params["patch"]["weight"]


def scores(run: Run, shape: Shape, params: Params, x: Array) -> tuple[Array, Any]:
    """The logits of all classes, and the statistics of ``run``."""
    z, statistics = run(block(shape), params["blocks"], begin(shape, params, x))
    head = params["head"]
    found = z.reshape(len(x), -1) @ head["weight"]
    return found + jnp.broadcast_to(head["bias"], found.shape), statistics


def train_step(
    run: Run, shape: Shape, rate: float, steps: int
) -> Callable[[State, Array, Array, Array], tuple[State, Array, Any]]:
    """A training step on the mean cross entropy, by `adam`.

    Returns:
        ``(state, index, x, y) -> (state, loss, what run says)``, with ``index`` an int32 scalar.
    """

    def step(state: State, index: Array, x: Array, y: Array) -> tuple[State, Array, Any]:
        def loss(params: Params) -> tuple[Array, Any]:
            found, statistics = scores(run, shape, params, x)
            logarithms = jax.nn.log_softmax(found)
            return -jnp.take_along_axis(logarithms, y[:, None], axis=1).mean(), statistics

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        return State(*adam(*state, gradient, index, rate, steps)), value, statistics

    return step


def _patch(shape: Shape, pixels: int) -> int:
    """Pixels of the side of a patch."""
    across = math.isqrt(pixels)
    if across**2 != pixels or across % shape.side:
        raise ValueError(
            f"side is {shape.side}, expected a divisor of {math.sqrt(pixels):g}, "
            "the pixels of an image a side."
        )
    return across // shape.side


# -- how blocks run


class Statistics(NamedTuple):
    """Statistics of a training step: Newton iterations, and a `deeppcr.Result`."""

    iterations: Array
    result: Array


def by_scan(scan: Callable[..., Any]) -> Run:
    """One block after another, by `jax.lax.scan` or the like."""

    def run(step: Any, layers: Any, z: Array) -> tuple[Array, Statistics]:
        z, _ = scan(lambda z, layer: (step(z, layer), None), z, layers)
        return z, Statistics(jnp.int32(0), jnp.int32(Result.CONVERGED))

    return run


@dataclass(frozen=True)
class Setting:
    """How deeppcr runs the blocks: its ``method`` forward and its ``adjoint`` backward."""

    method: Any
    adjoint: Any

    def solve(self, step: Any, layers: Any, z: Array) -> deeppcr.Solution:
        """All states of a batch."""
        chain = deeppcr.Chain(step, layers)
        return deeppcr.solve(chain, z, method=self.method, adjoint=self.adjoint, batch_ndim=1)

    def run(self, step: Any, layers: Any, z: Array) -> tuple[Array, Statistics]:
        """The last state: a `Run`."""
        solution = self.solve(step, layers, z)
        return solution.value, Statistics(solution.stats.iterations, solution.result)

    def stopped(self, k: int) -> "Setting":
        """The same with at most k iterations, converged or not."""
        method = dataclasses.replace(self.method, max_iterations=k, on_failure="return")
        return Setting(method, self.adjoint)


# Linear recurrences are solved in parallel on every device, as `linear="auto"` does on an
# accelerator.
FORMS = {"dense": "cyclic_reduction", "diagonal": "pcr", "identity": "pcr"}
NEWTON = {form: Newton(linearize=form, linear=linear) for form, linear in FORMS.items()}
ADJOINT = {form: Adjoint(linearize=form, linear=linear) for form, linear in FORMS.items()}
VARIANTS = {
    "auto": Setting("auto", "auto"),
    "sequential / dense": Setting("sequential", ADJOINT["dense"]),
    "sequential / identity": Setting("sequential", ADJOINT["identity"]),
    "identity / identity": Setting(NEWTON["identity"], ADJOINT["identity"]),
    "identity / dense": Setting(NEWTON["identity"], ADJOINT["dense"]),
    "dense / dense": Setting(NEWTON["dense"], ADJOINT["dense"]),
    "diagonal / diagonal": Setting(NEWTON["diagonal"], ADJOINT["diagonal"]),
}
STOPPED = ("identity / identity", "dense / dense")  # also run with at most k iterations
