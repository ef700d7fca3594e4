"""Programs with long steps, whose gradients take seconds to compile."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.compiling.filters import joseph, kalman, quasiseparable, smoother
from experiments.compiling.program import Program, Scan, many, normal, pushed
from experiments.models import cells
from experiments.models.training import affine


def stacked_cells(length: int) -> Program:
    """Five GRUs of 32 units over each other, as a scan of scans, each step under checkpoint."""
    weights = [cells.gru_weights(32, 32, seed=layer) for layer in range(5)]
    xs = normal(jax.random.key(2), length, 8, 32)

    def loss(scan: Scan, p: Any) -> Array:
        def layer(xs: Array, weights: Any) -> Any:
            @jax.checkpoint
            def step(h: Array, x: Array) -> Array:
                return cells.gru(weights, h, x)

            def body(h: Array, x: Array) -> Any:
                h = step(h, x)
                return h, h

            return scan(body, jnp.zeros((8, 32)), xs)[1], None

        return jnp.mean(scan(layer, xs, p)[0] ** 2)

    return Program(loss, jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights))


def deep_cells(length: int) -> Program:
    """Five layer-normalised LSTM steps of 32 units in each step of one scan, under checkpoint."""
    weights = [cells.lstm_weights(32, 32, seed=layer) for layer in range(5)]
    xs = normal(jax.random.key(3), length, 8, 32)

    def normalized(x: Array) -> Array:
        x -= jnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)

    def loss(scan: Scan, p: Any) -> Array:
        def layer(weights: Any, state: Any, x: Array) -> Any:
            h, c = cells.lstm(weights, state, x)
            return normalized(h), c

        def step(states: Any, x: Array) -> Any:
            found = []
            for own, state in zip(p, states, strict=True):
                state = jax.checkpoint(layer)(own, state, x)
                x = x + state[0]
                found.append(state)
            return found, x

        start = [(jnp.zeros((8, 32)), jnp.zeros((8, 32))) for _ in weights]
        return jnp.mean(scan(step, start, xs)[1] ** 2)

    return Program(loss, weights)


def densities(length: int) -> Program:
    """Stochastic volatility and a local trend: log densities in each step, and one draw."""
    keys = jax.random.split(jax.random.key(4), 3)
    observed = normal(keys[0], length)
    parameters = {
        "loc": 0.1 * normal(keys[1], length, 2),
        "scale": jnp.full((length, 2), -1.0),
        "theta": jnp.array([0.5, -0.5, 0.1, 0.2]),
    }
    drawn = jax.random.split(keys[2], length)
    from_normal, from_t = jax.scipy.stats.norm.logpdf, jax.scipy.stats.t.logpdf

    def loss(scan: Scan, p: Any) -> Array:
        persistence, volatility, level, freedom = p["theta"]
        rho, sigma = jnp.tanh(persistence), jax.nn.softplus(volatility)
        heavy = 2.0 + jax.nn.softplus(freedom)

        def step(carry: Any, inputs: Any) -> Any:
            key, loc, scale, y = inputs
            trend, log_var = carry
            spread = jax.nn.softplus(scale)
            sample = loc + spread * jax.random.normal(key, (2,))
            guide = jnp.sum(from_normal(sample, loc, spread))
            prior = from_normal(sample[0], level + rho * (log_var - level), sigma)
            prior += from_normal(sample[1], trend, 0.1)
            bounded = jnp.clip(sample[0], -5.0, 5.0)
            seen = from_t(y, heavy, sample[1], jnp.exp(0.5 * bounded))
            now = 0.9 * trend + 0.1 * sample[1], sample[0]
            return now, jnp.where(jnp.isfinite(seen), seen, -100.0) + prior - guide

        start = jnp.zeros(()), jnp.zeros(())
        _, terms = scan(step, start, (drawn, p["loc"], p["scale"], observed))
        outer = jnp.sum(jax.scipy.stats.gamma.logpdf(heavy, 2.0, scale=10.0))
        return -(jnp.sum(terms) + outer + from_normal(level, 0.0, 1.0)) / length

    return Program(loss, parameters)


def sampler(steps: int) -> Program:
    """A DDIM sampler with an MLP, differentiated by its noise."""
    keys = jax.random.split(jax.random.key(5), 4)
    sizes = [(16 + 32, 128), (128, 128), (128, 16)]
    weights = [
        normal(key, *size) / math.sqrt(size[0]) for key, size in zip(keys[:3], sizes, strict=True)
    ]
    signal = np.linspace(0.9999, 0.02, steps + 1, dtype=np.float32)[::-1]
    levels = jnp.asarray(signal[:-1].copy()), jnp.asarray(signal[1:].copy())

    def loss(scan: Scan, x: Array) -> Array:
        def noise(x: Array, t: Array) -> Array:
            angles = t * jnp.exp(-jnp.arange(16) / 4.0)
            time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
            h = jnp.concatenate([x, jnp.broadcast_to(time, (x.shape[0], 32))], -1)
            for weight in weights[:-1]:
                h = jax.nn.gelu(affine(h, weight, jnp.zeros(weight.shape[1])))
            return h @ weights[-1]

        def step(x: Array, levels: Any) -> Any:
            now, later = levels
            found = noise(x, 1000.0 * now)
            clean = (x - jnp.sqrt(1 - now) * found) / jnp.sqrt(now)
            clean = jnp.clip(clean, -3.0, 3.0)
            return jnp.sqrt(later) * clean + jnp.sqrt(1 - later) * found, None

        return jnp.mean((scan(step, x, levels)[0] - 1.0) ** 2)

    return Program(loss, normal(keys[3], 8, 16))


def lstm(length: int) -> Program:
    """An LSTM of 32 units, batch 16."""
    xs = normal(jax.random.key(6), length, 16, 32)

    def loss(scan: Scan, weights: Any) -> Array:
        def step(state: Any, x: Array) -> Any:
            state = cells.lstm(weights, state, x)
            return state, state[0]

        start = jnp.zeros((16, 32)), jnp.zeros((16, 32))
        return jnp.mean(scan(step, start, xs)[1] ** 2)

    return Program(loss, cells.lstm_weights(32, 32))


def gru(length: int) -> Program:
    """A GRU of 16 units, without a batch."""
    xs = normal(jax.random.key(7), length, 16)

    def loss(scan: Scan, weights: Any) -> Array:
        def step(h: Array, x: Array) -> Any:
            h = cells.gru(weights, h, x)
            return h, h

        return jnp.mean(scan(step, jnp.zeros(16), xs)[1] ** 2)

    return Program(loss, cells.gru_weights(16, 16))


def predators(length: int, *batch: int) -> Program:
    """Lotka and Volterra's equations by Runge and Kutta's method of order 4."""
    start = jnp.array([10.0, 5.0]) * jnp.linspace(1.0, 1.5, math.prod(batch))[:, None]
    rates = jnp.array([1.1, 0.4, 0.1, 0.4])
    parameters = {"rates": rates, "start": start.reshape(*batch, 2)}

    def loss(scan: Scan, p: Any) -> Array:
        a, b, c, d = p["rates"]

        def slope(z: Array) -> Array:
            x, y = z[..., 0], z[..., 1]
            return jnp.stack([a * x - b * x * y, c * x * y - d * y], axis=-1)

        def step(z: Array, _: None) -> Any:
            first = slope(z)
            second = slope(z + 0.005 * first)
            third = slope(z + 0.005 * second)
            fourth = slope(z + 0.01 * third)
            z = z + 0.01 / 6 * (first + 2 * second + 2 * third + fourth)
            return z, z

        return jnp.mean(scan(step, p["start"], None, length=length)[1] ** 2)

    return Program(loss, parameters)


def scalars(length: int, leaves: int = 20) -> Program:
    """A carry of many scalars, three of each kind, as a simulation writes it."""
    keys = jax.random.split(jax.random.key(10), 2)
    start = {f"x{i}": x for i, x in enumerate(normal(keys[0], leaves))}
    parameters = {
        "start": start,
        "speed": {f"x{i}": jnp.asarray(0.1 * i) for i in range(leaves)},
        "force": {f"x{i}": x for i, x in enumerate(normal(keys[1], leaves))},
    }

    def loss(scan: Scan, p: Any) -> Array:
        def step(carry: Any, t: Array) -> Any:
            place, speed, heat = carry
            force = jax.tree.map(lambda f, x, v: f * jnp.sin(x) - 0.1 * v, p["force"], place, speed)
            speed = jax.tree.map(lambda v, f: v + 0.01 * f, speed, force)
            place = jax.tree.map(lambda x, v: x + 0.01 * v, place, speed)
            heat = jax.tree.map(lambda h, v: 0.99 * h + v * v, heat, speed)
            return (place, speed, heat), sum(jax.tree.leaves(heat)) * jnp.cos(t)

        heat = jax.tree.map(jnp.zeros_like, p["start"])
        times = jnp.linspace(0.0, 1.0, length)
        return jnp.mean(scan(step, (p["start"], p["speed"], heat), times)[1])

    return Program(loss, parameters)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "Kalman filter": lambda: kalman(1000),
    "Kalman filter, of a library": lambda: joseph(1000),
    "extended smoother, 12 steps": lambda: smoother(12),
    "extended smoother, vmap": lambda: smoother(12, many),
    "extended smoother, Hessian": lambda: smoother(12, pushed),
    "5 GRUs, scan of scans": lambda: stacked_cells(64),
    "5 LSTMs, one scan": lambda: deep_cells(64),
    "log densities": lambda: densities(200),
    "DDIM sampler": lambda: sampler(200),
    "LSTM, 32 units": lambda: lstm(200),
    "GRU, 16 units": lambda: gru(200),
    "Lotka-Volterra, RK4": lambda: predators(5000),
    "quasiseparable process": lambda: quasiseparable(5000),
    "60 scalar leaves": lambda: scalars(500),
}
