"""Programs with long steps, whose gradients take seconds to compile, by a given scan."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.models import cells
from experiments.models.training import affine

Scan = Callable[..., Any]
Loss = Callable[[Any], Array]


def normal(key: Array, *shape: int) -> Array:
    """Random numbers of variance 1."""
    return jax.random.normal(key, shape, jnp.float32)


class Program(NamedTuple):
    """A program to differentiate.

    Attributes:
        loss: ``loss(scan, parameters)``, a number.
        parameters: a pytree of arrays.
        transform: what is compiled, of the loss as a function of the parameters.
    """

    loss: Callable[[Scan, Any], Array]
    parameters: Any
    transform: Callable[[Loss], Callable[[Any], Any]] = jax.grad

    def by(self, scan: Scan) -> Callable[[Any], Any]:
        """What is compiled, by this scan."""
        return self.transform(partial(self.loss, scan))


def _many(loss: Loss) -> Callable[[Any], Any]:
    """The gradient at three points at once."""

    def gradients(parameters: Any) -> Any:
        points = jax.tree.map(lambda x: jnp.stack([x, 0.9 * x, 1.1 * x]), parameters)
        return jax.vmap(jax.grad(loss))(points)

    return gradients


def _pushed(loss: Loss) -> Callable[[Any], Any]:
    """A product of the Hessian with a vector: forward over reverse."""
    return lambda parameters: jax.jvp(jax.grad(loss), (parameters,), (parameters,))


def _space(states: int, outputs: int, length: int) -> tuple[dict[str, Array], Array]:
    """The matrices of a linear model in state space, and observations ``[length, outputs]``."""
    keys = jax.random.split(jax.random.key(0), 3)
    model = {
        "F": 0.9 * jnp.linalg.qr(normal(keys[0], states, states))[0],
        "Q": 0.1 * jnp.eye(states),
        "R": 0.5 * jnp.eye(outputs),
        "H": normal(keys[1], outputs, states),
        "b": jnp.zeros(states),
        "d": jnp.zeros(outputs),
    }
    return model, normal(keys[2], length, outputs)


def kalman(length: int) -> Program:
    """The likelihood of a Kalman filter with 4 states and 2 outputs."""
    model, observed = _space(4, 2, length)

    def loss(scan: Scan, p: Any) -> Array:
        def step(carry: Any, y: Array) -> Any:
            mean, cov = p["F"] @ carry[0] + p["b"], p["F"] @ carry[1] @ p["F"].T + p["Q"]
            spread = p["H"] @ cov @ p["H"].T + p["R"]
            gain = jax.scipy.linalg.solve(spread, p["H"] @ cov, assume_a="pos").T
            error = y - p["H"] @ mean - p["d"]
            root = jnp.linalg.cholesky(spread)
            z = jax.scipy.linalg.solve_triangular(root, error, lower=True)
            gained = -0.5 * z @ z - jnp.sum(jnp.log(jnp.diag(root)))
            return (mean + gain @ error, cov - gain @ spread @ gain.T), gained

        return jnp.mean(scan(step, (jnp.zeros(4), jnp.eye(4)), observed)[1])

    return Program(loss, model)


def joseph(length: int) -> Program:
    """The same as libraries write it: a density, symmetric updates, both means as outputs."""
    model, observed = _space(4, 2, length)

    def loss(scan: Scan, p: Any) -> Array:
        def predicted(mean: Array, cov: Array) -> tuple[Array, Array]:
            cov = p["F"] @ cov @ p["F"].T + p["Q"]
            return p["F"] @ mean + p["b"], 0.5 * (cov + cov.T)

        def conditioned(mean: Array, cov: Array, y: Array) -> tuple[Array, Array]:
            spread = p["R"] + p["H"] @ cov @ p["H"].T
            factor = jax.scipy.linalg.cho_factor(spread + 1e-6 * jnp.eye(2))
            gain = jax.scipy.linalg.cho_solve(factor, p["H"] @ cov).T
            rest = jnp.eye(4) - gain @ p["H"]
            cov = rest @ cov @ rest.T + gain @ p["R"] @ gain.T
            return mean + gain @ (y - p["H"] @ mean - p["d"]), 0.5 * (cov + cov.T)

        def step(carry: Any, t: Array) -> Any:
            total, mean, cov = carry
            y = observed[t]
            seen = p["H"] @ mean + p["d"], p["H"] @ cov @ p["H"].T + p["R"]
            total += jax.scipy.stats.multivariate_normal.logpdf(y, *seen)
            filtered = conditioned(mean, cov, y)
            after = predicted(*filtered)
            return (total, *after), {"filtered": filtered, "predicted": after}

        start = jnp.zeros(()), jnp.zeros(4), jnp.eye(4)
        (total, _, _), states = scan(step, start, jnp.arange(length))
        return total / length + 1e-3 * jnp.mean(states["filtered"][0] ** 2)

    return Program(loss, model)


def smoother(length: int, transform: Any = jax.grad) -> Program:
    """An extended Kalman smoother of a pendulum: few steps of many equations."""
    noise = normal(jax.random.key(1), length, 1)
    observed = jnp.sin(jnp.arange(length) / 3.0)[:, None] + 0.1 * noise
    parameters = {"gravity": jnp.asarray(9.8), "q": jnp.asarray(0.1), "r": jnp.asarray(0.3)}

    def loss(scan: Scan, p: Any) -> Array:
        noise, spread = p["q"] * jnp.array([[1e-2, 1e-2], [1e-2, 0.1]]), p["r"] * jnp.eye(1)

        def moved(x: Array) -> Array:
            return jnp.stack([x[0] + 0.05 * x[1], x[1] - 0.05 * p["gravity"] * jnp.sin(x[0])])

        def seen(x: Array) -> Array:
            return jnp.sin(x[:1])

        def forwards(carry: Any, y: Array) -> Any:
            mean, cov, total = carry
            jacobian = jax.jacfwd(moved)(mean)
            before, prior = moved(mean), jacobian @ cov @ jacobian.T + noise
            slope = jax.jacfwd(seen)(before)
            inner = slope @ prior @ slope.T + spread
            gain = jnp.linalg.solve(inner, slope @ prior).T
            error = y - seen(before)
            total += jax.scipy.stats.multivariate_normal.logpdf(error, jnp.zeros(1), inner)
            mean, cov = before + gain @ error, prior - gain @ inner @ gain.T
            return (mean, cov, total), (mean, cov)

        def backwards(carry: Any, filtered: Any) -> Any:
            after, later = carry
            mean, cov = filtered
            jacobian = jax.jacfwd(moved)(mean)
            prior = jacobian @ cov @ jacobian.T + noise
            gain = jnp.linalg.solve(prior, jacobian @ cov).T
            mean += gain @ (after - moved(mean))
            cov += gain @ (later - prior) @ gain.T
            return (mean, cov), mean

        start = jnp.array([0.5, 0.0]), jnp.eye(2), jnp.zeros(())
        (mean, cov, total), filtered = scan(forwards, start, observed)
        past = jax.tree.map(lambda x: x[:-1], filtered)
        _, means = scan(backwards, (mean, cov), past, reverse=True)
        return total + jnp.mean((means - 0.1) ** 2)

    return Program(loss, parameters, transform)


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


def predators(length: int) -> Program:
    """Lotka and Volterra's equations by Runge and Kutta's method of order 4."""
    parameters = {"rates": jnp.array([1.1, 0.4, 0.1, 0.4]), "start": jnp.array([10.0, 5.0])}

    def loss(scan: Scan, p: Any) -> Array:
        a, b, c, d = p["rates"]

        def slope(z: Array) -> Array:
            return jnp.stack([a * z[0] - b * z[0] * z[1], c * z[0] * z[1] - d * z[1]])

        def step(z: Array, _: None) -> Any:
            first = slope(z)
            second = slope(z + 0.005 * first)
            third = slope(z + 0.005 * second)
            fourth = slope(z + 0.01 * third)
            z = z + 0.01 / 6 * (first + 2 * second + 2 * third + fourth)
            return z, z

        return jnp.mean(scan(step, p["start"], None, length=length)[1] ** 2)

    return Program(loss, parameters)


def quasiseparable(length: int) -> Program:
    """The likelihood of a Gaussian process with a sum of two oscillating kernels."""
    times = jnp.sort(10.0 * jax.random.uniform(jax.random.key(8), (length,)))
    observed = jnp.sin(3 * times) + 0.1 * normal(jax.random.key(9), length)
    parameters = {
        "scale": jnp.array([1.0, 0.5]),
        "rate": jnp.array([0.5, 0.2]),
        "frequency": jnp.array([2.0, 5.0]),
        "noise": jnp.asarray(0.1),
    }

    def loss(scan: Scan, p: Any) -> Array:
        def transition(gap: Array) -> Array:
            decay, angle = jnp.exp(-p["rate"] * gap), p["frequency"] * gap
            cos, sin = decay * jnp.cos(angle), decay * jnp.sin(angle)
            zeros = jnp.zeros((2, 2))
            blocks = [jnp.array([[c, -s], [s, c]]) for c, s in zip(cos, sin, strict=True)]
            return jnp.block([[blocks[0], zeros], [zeros, blocks[1]]])

        variance = jnp.repeat(p["scale"] ** 2, 2)
        gaps = jnp.diff(times, prepend=times[:1])
        moves = jax.vmap(transition)(gaps)
        left = jnp.array([1.0, 0.0, 1.0, 0.0]) * variance
        right = jnp.array([1.0, 0.0, 1.0, 0.0])
        diagonal = jnp.sum(left * right) + p["noise"] ** 2

        def factor(f: Array, inputs: Any) -> Any:
            move = inputs
            f = move @ f @ move.T
            pivot = jnp.sqrt(diagonal - left @ f @ left)
            w = (right - f @ left) / pivot
            return f + jnp.outer(w, w), (pivot, w)

        _, (pivots, ws) = scan(factor, jnp.zeros((4, 4)), moves)

        def solve(g: Array, inputs: Any) -> Any:
            move, pivot, w, y = inputs
            g = move @ g
            z = (y - left @ g) / pivot
            return g + w * z, z

        _, z = scan(solve, jnp.zeros(4), (moves, pivots, ws, observed))
        return (0.5 * jnp.sum(z**2) + jnp.sum(jnp.log(pivots))) / length

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
    "extended smoother, vmap": lambda: smoother(12, _many),
    "extended smoother, Hessian": lambda: smoother(12, _pushed),
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
