"""Filters, smoothers and Gaussian processes: small matrices, and many equations of a step."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from experiments.compiling.program import Program, Scan, normal


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


def kalman(length: int, batch: int = 0) -> Program:
    """The likelihood of a Kalman filter with 4 states and 2 outputs, of one series or a batch."""
    model, observed = _space(4, 2, length * max(batch, 1))

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

        def likelihood(ys: Array) -> Array:
            return jnp.mean(scan(step, (jnp.zeros(4), jnp.eye(4)), ys)[1])

        if not batch:
            return likelihood(observed)
        return jnp.mean(jax.vmap(likelihood)(observed.reshape(batch, length, 2)))

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
