"""Small loops with gradients: how fast is deeppcr.scan where a step is a few dozen numbers?

cholesky factor of a quasiseparable matrix, as in tinygp: its carry is a 3 x 3 matrix
gp       Kalman filter of a Gaussian process with a Matern 5/2 kernel: a 3 x 3 covariance
filter   hierarchical filter of 20 nodes in a tree, each of three scalar leaves: a carry of 60
orbits   three planets around a star, by leapfrog steps
cable    a nerve fibre of 8 compartments with the channels of Hodgkin and Huxley

Forward passes and gradients in float64, beside `jax.lax.scan` with unroll 1 and 4.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, bench
from experiments.bench.programs import Scan, baselines
from experiments.bench.table import Row
from experiments.bench.timing import Effort

TAKES = "4 min"
COLUMNS = {**BENCH, "scan compile s": "seconds to compile plain jax.lax.scan"}
Loss = Callable[..., Array]  # of a scan, parameters and inputs; without the scan where it is bound
Loop = tuple[Loss, Any, Any]  # a loss, its parameters, its inputs


def cholesky(length: int) -> Loop:
    """The log determinant of a diagonal matrix plus terms ``p_i A_i ... A_j q_j``, and more."""
    keys = jax.random.split(jax.random.key(0), 3)
    p, q = 0.1 * jax.random.normal(keys[0], (2, length, 3))
    A = 0.3 * jax.random.normal(keys[1], (length, 3, 3))

    def loss(scan: Scan, diagonal: Array, p: Array, q: Array, A: Array) -> Array:
        def step(F: Array, x: Any) -> tuple[Array, tuple[Array, Array]]:
            d, p, q, A = x
            root, moved = jnp.sqrt(d - p @ F @ p), F @ A.T
            row = (q - p @ moved) / root
            return A @ moved + jnp.outer(row, row), (root, row)

        roots, rows = scan(step, jnp.zeros_like(A[0]), (diagonal, p, q, A))[1]
        return 2 * jnp.log(roots).sum() + jnp.square(rows).sum()

    return loss, jnp.linspace(1, 2, length), (p, q, A)


def gp(length: int) -> Loop:
    """The negative log likelihood of noisy values at times that are not equidistant."""
    keys = jax.random.split(jax.random.key(0))
    gaps = jax.random.uniform(keys[0], (length,), minval=0.05, maxval=0.15)
    values = jnp.sin(jnp.cumsum(gaps)) + 0.1 * jax.random.normal(keys[1], (length,))

    def loss(scan: Scan, params: Array, gaps: Array, values: Array) -> Array:
        size, rate, noise = jnp.exp(params)
        one, bend = jnp.eye(3), size * rate**2 / 3
        prior = jnp.diag(jnp.stack([size, bend, size * rate**4]))
        prior -= bend * (one[::-1] - jnp.diag(one[1]))
        # The transition is exp(F d), and N = F + rate is nilpotent.
        last = jnp.stack([-(rate**3), -3 * rate**2, -2 * rate])
        N = jnp.stack([rate * one[0] + one[1], rate * one[1] + one[2], last])

        def step(carry: Any, x: Any) -> tuple[Any, Array]:
            (mean, cov), (gap, value) = carry, x
            A = jnp.exp(-rate * gap) * (one + gap * N + gap**2 / 2 * N @ N)
            mean, cov = A @ mean, A @ (cov - prior) @ A.T + prior
            spread, off = cov[0, 0] + noise, value - mean[0]
            gain = cov[0] / spread
            state = mean + gain * off, cov - jnp.outer(gain, cov[0])
            return state, off * off / spread + jnp.log(spread)

        return 0.5 * jnp.sum(scan(step, (jnp.zeros(3), prior), (gaps, values))[1])

    return loss, jnp.log(jnp.array([1.0, 1.0, 0.01])), (gaps, values)


def hierarchy(length: int, nodes: int = 20) -> Loop:
    """Every node filters what its parent believes, and adapts how fast it learns."""
    observed = jnp.cumsum(0.3 * jax.random.normal(jax.random.key(0), (length,)))

    def loss(scan: Scan, params: Array, observed: Array) -> Array:
        def step(carry: Any, seen: Array) -> tuple[Any, Array]:
            new: dict[str, Array] = {}
            surprise = jnp.zeros_like(seen)
            for node in range(nodes):
                mean, precision, volatility = (carry[f"{name}{node}"] for name in "mpv")
                heard = seen if node == 0 else new[f"m{(node - 1) // 2}"]
                expected = 1 / (1 / precision + jnp.exp(params[node] + volatility))
                off = heard - mean
                new[f"p{node}"] = expected + 1
                new[f"m{node}"] = mean + off / (expected + 1)
                error = expected * off * off - 1
                new[f"v{node}"] = 0.9 * volatility + 0.1 * jnp.tanh(error)
                surprise += 0.5 * (expected * off * off - jnp.log(expected))
            return new, surprise

        zero = jnp.zeros_like(observed[0])
        start = {f"{name}{node}": zero for name in "mv" for node in range(nodes)}
        start |= {f"p{node}": zero + 1 for node in range(nodes)}
        return jnp.sum(scan(step, start, observed)[1])

    return loss, jnp.full(nodes, -2.0), (observed,)


def orbits(length: int, gap: float = 0.01) -> Loop:
    """The distance of planets after so many steps, by their masses and first velocities."""
    places = jnp.array([[0.0, 0, 0], [1, 0, 0], [0, 1.6, 0.1], [-2.5, 0, 0.1]])
    speeds = jnp.array([[0.0, 0, 0], [0, 1, 0], [-0.8, 0, 0], [0, -0.63, 0]])
    masses = jnp.array([1.0, 1e-3, 3e-3, 1e-3])

    def loss(scan: Scan, params: tuple[Array, Array], places: Array) -> Array:
        masses, speeds = params

        def pull(places: Array) -> Array:
            apart = places[None] - places[:, None]
            cubed = (jnp.square(apart).sum(-1) + jnp.eye(len(places))) ** 1.5
            return jnp.einsum("j,ij,ijk->ik", masses, 1 / cubed, apart)

        def step(carry: Any, _: None) -> tuple[Any, None]:
            places, speeds = carry
            places = places + 0.5 * gap * speeds
            speeds = speeds + gap * pull(places)
            return (places + 0.5 * gap * speeds, speeds), None

        (places, speeds), _ = scan(step, (places, speeds), None, length)
        return jnp.sum(jnp.sqrt(jnp.square(places[1:] - places[:1]).sum(-1)))

    return loss, (masses, speeds), (places,)


def cable(length: int, gap: float = 0.01) -> Loop:
    """The mean voltage after a current into the first compartment, by conductances."""
    current = jnp.where(jnp.arange(length) < length // 4, 20.0, 0.0)

    def loss(scan: Scan, params: Array, current: Array) -> Array:
        sodium, potassium, leak, axial = jnp.exp(params)

        def rates(v: Array) -> Iterator[tuple[Array, Array]]:
            u = v + 40.001  # not at the removable singularity
            yield 0.1 * u / (1 - jnp.exp(-u / 10)), 4 * jnp.exp(-(v + 65) / 18)
            yield 0.07 * jnp.exp(-(v + 65) / 20), 1 / (1 + jnp.exp(-(v + 35) / 10))
            u = v + 55.001
            yield 0.01 * u / (1 - jnp.exp(-u / 10)), 0.125 * jnp.exp(-(v + 65) / 80)

        def step(carry: Any, drive: Array) -> tuple[Any, Array]:
            v, *gates = carry
            pairs = zip(gates, rates(v), strict=True)
            gates = [g + gap * (a * (1 - g) - b * g) for g, (a, b) in pairs]
            m, h, n = gates
            flow = sodium * m**3 * h * (50 - v) + potassium * n**4 * (-77 - v)
            left, right = jnp.roll(v, 1).at[0].set(v[0]), jnp.roll(v, -1).at[-1].set(v[-1])
            flow += leak * (-54.4 - v) + axial * (left + right - 2 * v)
            v = v + gap * flow.at[0].add(drive)
            return (v, *gates), v.mean()

        start = tuple(jnp.full(8, at) for at in (-65.0, 0.05, 0.6, 0.32))
        return jnp.mean(scan(step, start, current)[1])

    return loss, jnp.log(jnp.array([120.0, 36.0, 0.3, 5.0])), (current,)


LOOPS = {"cholesky": cholesky, "gp": gp, "filter": hierarchy, "orbits": orbits, "cable": cable}
SLOW = "filter"  # its gradient with unroll 4 compiles for minutes; not with --quick


def case(name: str, direction: str, length: int) -> Case:
    """All programs of a loop."""
    loss, params, inputs = LOOPS[name](length)

    def directed(scan: Scan) -> Loss:
        return partial(loss, scan) if direction == "forward" else jax.grad(partial(loss, scan))

    arguments = [
        (jax.tree.map(lambda x, i=i: x * (1 + 1e-3 * i), params), *inputs) for i in range(3)
    ]
    loops = {name: f for name, f in baselines(directed, length, 0).items() if "16" not in name}
    labels = {"kind": name, "L": length, "direction": direction}
    return Case(labels, arguments, loops, {"auto": directed(deeppcr.scan)})


def measured(case: Callable[[], Case], effort: Effort) -> Iterator[Row]:
    """The rows of a case; those of deeppcr say how long `jax.lax.scan` compiles."""
    rows = [*bench(case(), depth.at_hand(), effort)]
    seconds = {"scan compile s": rows[0].get("compile s")}
    yield from (row if row["baseline"] else row | seconds for row in rows)


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    return [case("gp", "gradient", 100), case("orbits", "forward", 100)]


def main(argv: list[str]) -> None:
    """Time all loops, in float64."""
    jax.config.update("jax_enable_x64", True)
    options = command.parser("loops", __doc__).parse_args(argv)
    effort = Effort(options.repeats)
    lengths = {name: 200 if options.quick else 614 if name == SLOW else 2000 for name in LOOPS}
    cases = [
        partial(measured, partial(case, name, direction, length), effort)
        for name, length in lengths.items()
        if not (options.quick and name == SLOW)
        for direction in ("forward", "gradient")
    ]
    command.run(options, cases, {"": COLUMNS}, summary=command.fastest)
