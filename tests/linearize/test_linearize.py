"""Every linearisation gives the same answer, and "auto" finds the narrowest that is exact."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Adjoint, BlockDiagonal, Chain, Diagonal, Newton, Result, Scalar
from deeppcr.chain.chain import trace_chain
from deeppcr.linear import Diagonals
from deeppcr.linearize import Dense, Linearization, choose_linearization
from tests.linearize.steps import dense, elementwise, in_pairs
from tests.problems import PROBLEMS, L, assert_agree, normal, solve, trajectory


def half(x):
    return 0.5


LINEARIZATIONS = {
    "auto": "auto",
    "diagonal": "diagonal",
    "exact diagonal": Diagonal(probes=0),
    "4 probes": Diagonal(probes=4),
    "2 x 2": BlockDiagonal(2),
    "identity": "identity",
    "scalars": Scalar(jnp.linspace(0.0, 1.0, L)),
    "of input": Scalar(of_input=half),
    "zero": "zero",
}
METHODS = {name: Newton(linearize=one) for name, one in LINEARIZATIONS.items()}
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = normal(1, L, 3)
Z0 = normal(2, 3)
CHAIN = Chain(lambda z, x: jnp.tanh(z @ WEIGHT.astype(z.dtype) + jnp.broadcast_to(x, z.shape)), XS)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ("lstm", "2 x 2"),
        ("batch norm", "identity"),
        ("custom vjp", "exact diagonal"),
    ],
)
def test_values_are_those_of_lax_scan(problem, name):
    problem = PROBLEMS[problem]
    scan = partial(deeppcr.scan, method=METHODS[name], batch_ndim=problem.batch_ndim)

    @jax.jit
    def both(*arguments):
        return [problem(each, *arguments) for each in (scan, jax.lax.scan)]

    assert_agree(*both(*problem.arguments))


@pytest.mark.parametrize("name", ["auto", "4 probes", "scalars", "of input", "zero"])
def test_converges(name):
    """Within L iterations, whatever the blocks: each gets one more state right."""
    solution = solve(CHAIN, Z0, method=dataclasses.replace(METHODS[name], record=True))
    assert_agree(solution.trajectory, trajectory(CHAIN, Z0))
    assert solution.result == Result.CONVERGED
    assert solution.stats.prefix == L
    assert solution.stats.iterations <= (7 if name == "auto" else L)
    residuals = np.asarray(solution.stats.residuals)
    assert not np.isnan(residuals[: int(solution.stats.iterations) + 1]).any()


@pytest.mark.parametrize(
    ("linearize", "dtype", "length", "h", "tolerance"),
    [("zero", jnp.bfloat16, 60, 0.05, 0.05), ("identity", jnp.float32, 1000, 1.5e-6, 1e-4)],
)
def test_slow_iterations_are_not_taken_for_converged(linearize, dtype, length, h, tolerance):
    """Every residual and every update is small from the start, and what they add up to is not."""
    weight, bias = WEIGHT.astype(dtype), jnp.ones(3, dtype)
    chain = Chain(
        lambda z, _: z + jnp.asarray(h, dtype) * jnp.cos(weight @ z + bias), length=length
    )
    solution = solve(
        chain, Z0.astype(dtype), method=Newton(linearize=linearize, initial_guess="constant")
    )
    assert_agree(solution.trajectory, trajectory(chain, Z0.astype(dtype)), tolerance)


W = 4
FIRST = {"a": normal(5, W), "b": normal(6, W)}


def choose(step, state, inputs, linearize="auto", batch_ndim=0, window=None, memory=None):
    length = len(jax.tree.leaves(inputs)[0])
    problem = trace_chain(lambda z, x: (step(z, x), None), state, inputs, length, batch_ndim, "z0")
    return choose_linearization(linearize, problem.step, problem.layout, length, window, memory)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(elementwise, Diagonal()), (in_pairs, BlockDiagonal(2)), (dense, Dense())],
    ids=["1", "2", "8"],
)
def test_auto_takes_the_narrowest_form_that_is_exact(step, expected):
    choice = choose(step, FIRST, normal(8, L, W))
    assert (choice.linearization, choice.window, choice.is_exact, choice.reason) == (
        expected,
        L,
        True,
        "",
    )


def test_memory_makes_windows_and_then_diagonals():
    xs = normal(8, 1000, W)
    one = 4 * 8 * (2 * W) ** 2  # bytes: four copies of a block of float64
    wide = choose(dense, FIRST, xs, memory=100 * one)
    assert (wide.linearization, wide.window, wide.is_exact) == (Dense(), 100, True)
    assert "1000 steps" in wide.reason
    assert "100 at once" in wide.reason
    narrow = choose(dense, FIRST, xs, memory=10 * one)
    assert (narrow.linearization, narrow.is_exact) == (Diagonal(), False)
    assert "diagonal" in narrow.reason
    assert (
        choose(dense, FIRST, xs, "dense", memory=10 * one).window == 10
    )  # what was asked for is done
    assert choose(dense, FIRST, xs, window=7, memory=1).window == 7
    assert choose(dense, FIRST, xs, memory=1).window == 1


def test_a_wide_elementwise_chain_needs_no_matrices():
    """Forward and gradient: 512 x 512 Jacobians of 3000 steps would take 3 GB."""
    length, width = 3000, 512
    weight = jnp.linspace(0.1, 0.9, width, dtype=jnp.float32)

    def value(xs, z0):
        chain = Chain(lambda z, x: weight * jnp.tanh(z) + x, xs)
        return deeppcr.solve(
            chain, z0, method=Newton(linear="sequential"), adjoint=Adjoint(linear="sequential")
        ).value.sum()

    shapes = (
        jax.ShapeDtypeStruct((length, width), jnp.float32),
        jax.ShapeDtypeStruct((width,), jnp.float32),
    )
    memory = jax.jit(jax.grad(value)).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 12 * length * width * 4


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Damped(Linearization):
    """The diagonal, a little too small."""

    factor: float

    def blocks(self, steps, states):
        return Diagonals(self.factor * Diagonal(0).blocks(steps, states).diagonal)

    def bytes_per_step(self, step, layout):
        return layout.width * layout.batch_size * layout.dtype.itemsize


def test_a_linearization_of_ones_own():
    by_own = partial(
        deeppcr.scan,
        method=Newton(linearize=Damped(0.9), window=5),
        adjoint=Adjoint(linearize=Damped(0.8)),
    )

    def states(z0, scan):
        return scan(lambda z, x: 2 * (CHAIN.step(z, x),), z0, XS)[1]

    @jax.jit
    def both(z0):
        found = []
        for scan in (by_own, jax.lax.scan):
            values, pull = jax.vjp(partial(states, scan=scan), z0)
            found.append((values, pull(values)))
        return found

    assert_agree(*both(Z0))


def test_a_scalar_of_the_input_beside_what_is_computed_ahead():
    """It gets the input that the user's step gets, without the counter of the carry."""

    def step(carry, x):
        z, count = carry
        z = 0.5 * z + jnp.sin(z) * x["a"] / (1 + count)
        return (z, count + 1), z

    xs = {"a": jnp.linspace(-0.5, 0.5, L)}
    method = Newton(linearize=Scalar(of_input=lambda x: 0.5 + x["a"]))
    found = deeppcr.scan(step, (Z0, 0), xs, method=method)
    assert_agree(found, jax.lax.scan(step, (Z0, 0), xs))
