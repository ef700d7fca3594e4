"""Random programs of the kinds that people scan: steps, initial states and inputs."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from experiments.models import cells

WORK = 2e8  # operations of a forward pass, at most
LENGTHS = (32, 100, 300, 1000, 3000, 10_000)
WIDTHS = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200, 256, 384, 512)
BATCHES = (0, 1, 2, 4, 8, 16, 32, 64)  # 0: no batch axis
Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Program:
    """A step with what `jax.lax.scan` takes beside it.

    Attributes:
        kind: of program.
        name: its kind and sizes, in words.
        step: ``(state, input) -> (state, None)``.
        init: the initial state.
        inputs: of all steps.
    """

    kind: str
    name: str
    step: Step
    init: Any
    inputs: Any

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(jax.tree.leaves(self.inputs)[0])


class Draw:
    """Random sizes and arrays of one program."""

    def __init__(self, seed: str):
        self._sizes, self._arrays = random.Random(seed), jax.random.key(len(seed))
        self._number = itertools.count()

    def one_of(self, *options: Any) -> Any:
        """One of these."""
        return self._sizes.choice(options)

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        """Random numbers in float32."""
        key = jax.random.fold_in(self._arrays, next(self._number))
        return scale * jax.random.normal(key, shape, jnp.float32)

    def length(self, work: float, most: int = LENGTHS[-1]) -> int:
        """Some number of steps of so much work."""
        fitting = [each for each in LENGTHS if each * work <= WORK and each <= most]
        return int(self._sizes.choice(fitting or LENGTHS[:1]))


def cell(draw: Draw) -> Program:
    """A recurrent network, whose inputs are projected before it."""
    kind, n, batch = draw.one_of("tanh", "gru", "lstm"), draw.one_of(*WIDTHS), draw.one_of(*BATCHES)
    gates = {"tanh": 1, "gru": 3, "lstm": 4}[kind]
    while max(batch, 1) * gates * n * n > WORK / 64:
        batch //= 2
    length = draw.length(2 * max(batch, 1) * gates * n * (n + 10))
    weights = {"U": draw.normal(n, gates * n, scale=n**-0.5), "c": draw.normal(gates * n)}
    shape = (batch,) * bool(batch)
    init, inputs = jnp.zeros((*shape, n)), draw.normal(length, *shape, gates * n)
    steps: dict[str, Any] = {
        "tanh": lambda w, h, x: jnp.tanh(h @ w["U"] + x),
        "gru": cells.gru_step,
        "lstm": cells.lstm_step,
    }
    step = lambda h, x: (steps[kind](weights, h, x), None)  # noqa: E731
    return Program(
        "cell", f"{kind} {n}, batch {batch}", step, (init, init) if kind == "lstm" else init, inputs
    )


def layer(draw: Draw) -> Program:
    """Layers with weights of their own."""
    n, batch = draw.one_of(2, 4, 8, 16, 32, 64, 128), draw.one_of(*BATCHES[1:])
    kind = draw.one_of("tanh", "relu", "residual")
    length = draw.length(2 * batch * n * (n + 10), int(4e6 / n**2) + 32)
    weights = draw.normal(length, n, n, scale=n**-0.5), draw.normal(length, n, scale=0.1)

    def step(x: Array, w: Any) -> Any:
        y = x @ w[0] + w[1]
        y = jax.nn.relu(y) if kind == "relu" else jnp.tanh(y)
        return (x + 0.1 * y if kind == "residual" else y), None

    return Program("layers", f"{kind} {n}, batch {batch}", step, draw.normal(batch, n), weights)


def kalman(draw: Draw) -> Program:
    """A Kalman filter, whose state is a mean and a covariance."""
    n, seen, batch = draw.one_of(2, 3, 4, 6), draw.one_of(1, 1, 2), draw.one_of(0, 1, 4, 16)
    how = draw.one_of("solve", "cholesky")
    move = jnp.eye(n) * 0.9 + draw.normal(n, n, scale=0.1)
    look, noise = draw.normal(seen, n), jnp.eye(n) * 0.1

    def one(state: Any, y: Array) -> Any:
        mean, cov = state
        mean, cov = move @ mean, move @ cov @ move.T + noise
        s = look @ cov @ look.T + jnp.eye(seen)
        if seen == 1:
            gain = (cov @ look.T) / s
        elif how == "solve":
            gain = jnp.linalg.solve(s, look @ cov).T
        else:
            gain = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(s), True), look @ cov).T
        return mean + gain @ (y - look @ mean), cov - gain @ s @ gain.T

    length = draw.length(1e3 * n * max(batch, 1), 1000)
    shape = (batch,) * bool(batch)
    init = jnp.zeros((*shape, n)), jnp.broadcast_to(jnp.eye(n), (*shape, n, n))
    mapped = jax.vmap(one) if batch else one
    name = f"Kalman {n}, {seen} seen by {how}, batch {batch}"
    step = lambda z, y: (mapped(z, y), None)  # noqa: E731
    return Program("filter", name, step, init, draw.normal(length, *shape, seen))


def ode(draw: Draw) -> Program:
    """An ordinary differential equation, by Runge and Kutta's method of fourth order or Heun's."""
    batch = draw.one_of(0, 1, 8, 64)
    kind, order = (
        draw.one_of("Lotka", "Lorenz", "pendulum", "Van der Pol", "heat"),
        draw.one_of(2, 4),
    )
    size = {"Lorenz": 3, "heat": draw.one_of(16, 64, 256)}.get(kind, 2)

    def rate(z: Array, force: Array) -> Array:
        if kind == "heat":
            return jnp.roll(z, 1, -1) + jnp.roll(z, -1, -1) - 2 * z + force
        x, y = z[..., 0], z[..., 1]
        if kind == "Lorenz":
            w = z[..., 2]
            return jnp.stack([10 * (y - x), x * (28 - w) - y, x * y - 8 / 3 * w + force], -1)
        if kind == "Lotka":
            return jnp.stack([x * (1.1 - 0.4 * y), y * (0.1 * x - 0.4) + force], -1)
        if kind == "pendulum":
            return jnp.stack([y, -jnp.sin(x) - 0.1 * y + force], -1)
        return jnp.stack([y, (1 - x * x) * y - x + force], -1)

    def step(z: Array, force: Array) -> Any:
        h = 0.01
        a = rate(z, force)
        b = rate(z + h / 2 * a, force)
        if order == 2:
            return z + h * b, None
        c = rate(z + h / 2 * b, force)
        return z + h / 6 * (a + 2 * b + 2 * c + rate(z + h * c, force)), None

    shape = (batch,) * bool(batch)
    length = draw.length(100 * size * max(batch, 1))
    init = 1 + draw.normal(*shape, size, scale=0.1)
    inputs = draw.normal(length, *((1,) if kind == "heat" else ()), scale=0.1)
    return Program("equation", f"{kind} {size}, order {order}, batch {batch}", step, init, inputs)


def leaves(draw: Draw) -> Program:
    """A state of many scalars, each of which moves by its neighbour."""
    count, batch = draw.one_of(6, 12, 24, 40, 60), draw.one_of(0, 0, 1, 16)
    act = draw.one_of(jnp.tanh, jnp.sin, lambda x: x / (1 + x * x))
    shape = (batch,) * bool(batch)

    def step(z: list[Array], x: Array) -> Any:
        return [0.9 * own + 0.1 * act(z[i - 1] + x) for i, own in enumerate(z)], None

    length = draw.length(20 * count * max(batch, 1), 3000)
    init = [draw.normal(*shape) for _ in range(count)]
    return Program("leaves", f"{count} leaves, batch {batch}", step, init, draw.normal(length))


def simple(draw: Draw) -> Program:
    """A short step: a mean, a gate, a neuron, a hidden Markov model, a memory."""
    kind = draw.one_of("mean", "gate", "neuron", "Markov", "delta rule", "momentum")
    n, batch = draw.one_of(1, 3, 8, 32, 128), draw.one_of(0, 1, 8, 32)
    shape = (batch,) * bool(batch)
    length = draw.length(40 * n * (n if kind in ("Markov", "delta rule") else 1) * max(batch, 1))
    gain, inputs = draw.normal(n), draw.normal(length, *shape, n)
    init: Any = jnp.zeros((*shape, n))
    moves = jax.nn.log_softmax(draw.normal(n, n))

    def mean(z: Array, x: Array) -> Array:
        return 0.9 * z + 0.1 * x

    def gate(z: Array, x: Array) -> Array:
        keep = jax.nn.sigmoid(gain + x)
        return keep * z + (1 - keep) * jnp.tanh(x + z)

    def neuron(z: Any, x: Array) -> Any:
        v, u = z
        v = v + 0.1 * (v - v**3 / 3 - u + x)
        fires = v > 1
        return jnp.where(fires, -1.0, v), u + 0.01 * (v + 0.7 - 0.8 * u) + 0.1 * fires

    def markov(z: Array, x: Array) -> Array:
        return jax.nn.logsumexp(z[..., :, None] + moves, axis=-2) + x

    def delta(z: Array, x: Array) -> Array:
        k = x * jax.lax.rsqrt(1e-3 + jnp.sum(x * x, -1, keepdims=True))
        error = x - jnp.einsum("...ij,...j->...i", z, k)
        return z + 0.5 * error[..., :, None] * k[..., None, :]

    def momentum(z: Any, x: Array) -> Any:
        p, m = z
        m = 0.9 * m + p * jnp.sum(x * p, -1, keepdims=True) - x
        return p - 0.01 * m, m

    steps: dict[str, Any] = {
        "mean": mean,
        "gate": gate,
        "neuron": neuron,
        "Markov": markov,
        "delta rule": delta,
        "momentum": momentum,
    }
    init = (init, init) if kind in ("neuron", "momentum") else init
    init = jnp.zeros((*shape, n, n)) if kind == "delta rule" else init
    step = lambda z, x: (steps[kind](z, x), None)  # noqa: E731
    return Program("short", f"{kind} {n}, batch {batch}", step, init, inputs)


KINDS: tuple[Callable[[Draw], Program], ...] = (
    cell,
    kalman,
    ode,
    cell,
    layer,
    leaves,
    cell,
    simple,
)


def drawn(seed: int, count: int) -> Iterator[Program]:
    """``count`` programs, the kinds in turn."""
    for number in range(count):
        make = KINDS[number % len(KINDS)]
        yield make(Draw(f"{make.__name__} {seed} {number}"))
