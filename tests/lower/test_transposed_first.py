"""Loops with a matrix transposed before them: the same results, by products that read columns."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from deeppcr.lower.cpu.limits import LARGE_MATRIX
from deeppcr.lower.cpu.products import transposed_first
from deeppcr.lower.steps import Kind, Loop, Operands
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

L, N = 3, 64
W = normal(0, N, N, scale=0.1)


def by_rows(d, w):
    """``d @ w.T``, as a derivative has it."""
    return lax.dot_general(d, w, (((d.ndim - 1,), (1,)), ((), ())))


def once(w, d, x):
    d = jnp.tanh(by_rows(d, w)) + x
    return d, d.sum(-1)


def twice(w, d, x):
    d = by_rows(d, w) + jnp.sin(by_rows(x, w))
    return d, (d @ w)[..., 0]


def in_a_batch(w, d, x):
    d = by_rows(d[None], w)[0] + x
    return d, d


def of_a_step(w, d, x):
    """A matrix that each step makes anew."""
    d = by_rows(d, w * x[0, 0]) + x
    return d, d


# name: (step, rows, the products that read the rows of the matrix before, and after)
CASES = {
    "once": (once, 4, 1, 0),
    "twice": (twice, 4, 2, 0),
    "in a batch": (in_a_batch, 4, 1, 0),
    "one row": (once, 1, 1, 1),
    "many rows": (once, 64, 1, 1),
    "of a step": (of_a_step, 4, 1, 1),
}


def of_rows(program):
    """The products that sum over the last axis of a matrix."""
    found = (each for each in equations(program) if each.primitive.name == "dot_general")
    axes = (each.params["dimension_numbers"][0][1] for each in found)
    return sum(tuple(each) == (1,) for each in axes)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_results(name, dtype):
    step, rows, before, after = CASES[name]
    w, d, xs = (x.astype(dtype) for x in (W, normal(1, rows, N), normal(2, L, rows, N)))
    scan = jax.make_jaxpr(lambda w, d, xs: lax.scan(partial(step, w), d, xs))(w, d, xs)
    (equation,) = (each for each in scan.eqns if each.primitive.name == "scan")
    loop = Loop.of(equation, Kind(linear=False, in_one=False))
    own, operands = transposed_first(loop, Operands([w], [d], [xs]))
    assert (of_rows(loop.program), of_rows(own.program)) == (before, after)
    assert len(operands.constants) == 1 + (before > after)

    @jax.jit
    def run(w, d, xs):
        own, operands = transposed_first(loop, Operands([w], [d], [xs]))
        return own.scan(operands), jax.tree.leaves(lax.scan(partial(step, w), d, xs))

    ours, expected = run(w, d, xs)
    assert_agree(jax.tree.leaves(ours), expected, 1e-12 if dtype == "float64" else 0.1)


def test_small_matrices_stay():
    few = int(LARGE_MATRIX**0.5) - 1
    w, d, xs = normal(3, few, few), normal(4, 4, few), normal(5, L, 4, few)
    scan = jax.make_jaxpr(lambda w, d, xs: lax.scan(partial(once, w), d, xs))(w, d, xs)
    (equation,) = (each for each in scan.eqns if each.primitive.name == "scan")
    loop = Loop.of(equation, Kind(linear=False, in_one=False))
    assert transposed_first(loop, Operands([w], [d], [xs]))[0] is loop
