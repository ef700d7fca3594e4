"""`jax.export` with symbolic dimensions: what `jax.lax.scan` can do, `scan` can."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax import export

import deeppcr
from deeppcr import Chain, Newton
from tests.problems import assert_agree, normal

WEIGHT = normal(0, 3, 3, scale=0.5)
BATCH, LENGTH = export.symbolic_shape("batch, length")
SIZES = {BATCH: (2, 5), LENGTH: (4, 7)}
PLAIN = [
    {},
    {"adjoint": "backprop"},
    {"method": "sequential", "adjoint": "autodiff"},
    {"batch_ndim": 1},
]


def step(z, x):
    return jnp.tanh(z @ WEIGHT + x), z.sum(-1)


def exported(f, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    return export.export(jax.jit(f))(*arguments).call


def check(ours, theirs, *shapes):
    """Exported once, ours is theirs for all sizes."""
    call, expected = exported(ours, *shapes), jax.jit(theirs)
    for k in range(2):
        sizes = [
            tuple(SIZES[n][k] if export.is_symbolic_dim(n) else n for n in shape)
            for shape in shapes
        ]
        arguments = [normal(i, *size) for i, size in enumerate(sizes)]
        assert_agree(call(*arguments), expected(*arguments))


@cache
def gradients_of_lax_scan(reverse=False):
    return jax.jit(both(partial(jax.lax.scan, reverse=reverse)))


def both(scan, **options):
    """Values and gradients."""

    def value(z, xs):
        last, ys = scan(step, z, xs, **options)
        return jnp.sum(last**3) + jnp.sum(jnp.sin(ys)), (last, ys)

    return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)


SHAPES = {
    "batch": ((BATCH, 3), (7, BATCH, 3)),
    "length": ((2, 3), (LENGTH, 2, 3)),
    "both": ((BATCH, 3), (LENGTH, BATCH, 3)),
}


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_scan(options):
    """With two symbols; with one of them alone: `test_solve`."""
    check(both(deeppcr.scan, **options), gradients_of_lax_scan(), *SHAPES["both"])


@pytest.mark.parametrize("name", ["batch", "length"])
def test_solve(name):
    def ours(z, xs):
        solution = deeppcr.solve(Chain(lambda z, x: step(z, x)[0], xs), z)
        return solution.value, solution.trajectory, solution.stats.prefix, solution.converged

    def theirs(z, xs):
        def body(z, x):
            z, _ = step(z, x)
            return z, z

        return *jax.lax.scan(body, z, xs), jnp.int32(len(xs)), jnp.array(True)

    check(ours, theirs, *SHAPES[name])


@pytest.mark.parametrize(
    "options",
    [{"method": "newton"}, {"method": Newton(), "batch_ndim": 1}, {"adjoint": "pcr"}],
    ids=str,
)
@pytest.mark.parametrize("name", SHAPES)
def test_what_needs_numbers_says_so(name, options):
    asked, others = ("method", "sequential") if "method" in options else ("adjoint", "autodiff")
    with pytest.raises(
        ValueError, match=rf"^{asked} is .*symbolic dimensions.*expected numbers.*\"{others}\" run"
    ):
        exported(partial(deeppcr.scan, step, **options), *SHAPES[name])
