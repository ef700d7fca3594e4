"""Products of patches are the convolutions, and no chain has a filter group for each step."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr.lower.cpu.limits import MAX_SLICES
from deeppcr.lower.cpu.products import as_products, own_filters
from deeppcr.programs.cut_first import evaluate
from depth.jaxprs import Program, equations
from depth.platforms import compiled_for
from tests.problems import assert_agree, normal

STEPS = 3
# Shapes of an image and of a filter, and what is besides.
CASES = {
    "same": ((2, 5, 4), (3, 4, 6), ("NWC", "WIO", "NWC"), {"padding": "SAME"}),
    "dilated, cropped": (
        (2, 8, 9),
        (6, 4, 3),
        ("NCH", "OIH", "NCH"),
        {
            "window_strides": (2,),
            "padding": [(2, -1)],
            "lhs_dilation": (2,),
            "rhs_dilation": (3,),
            "feature_group_count": 2,
        },
    ),
}


def convolution(image, filters, numbers, **options):
    options = {"window_strides": (1,) * (image.ndim - 2), **options}
    return lax.conv_general_dilated(image, filters, dimension_numbers=numbers, **options)


def by_patches(f, *arguments):
    program = Program.of(jax.make_jaxpr(f)(*arguments))
    with compiled_for("cpu"):
        replace = as_products(own_filters(program, ()))
        known = dict(zip(program.invars, arguments, strict=True))
        return evaluate(program, known, program.outvars, replace)[0]


def convolutions(f, *arguments):
    program = Program.of(jax.make_jaxpr(f)(*arguments))
    return [e for e in equations(program) if e.primitive.name == "conv_general_dilated"]


def test_any_convolution():
    arrays = {
        name: (normal(0, STEPS, *image), normal(1, STEPS, *filters))
        for name, (image, filters, *_) in CASES.items()
    }

    def every(run, arrays):
        def one(name, image, filters):
            *_, numbers, options = CASES[name]
            return run(lambda i, f: convolution(i, f, numbers, **options), image, filters)

        def loss(arrays):
            found = {
                name: jax.vmap(lambda *pair, name=name: one(name, *pair))(*arrays[name])
                for name in CASES
            }
            return sum(jnp.sum(jnp.sin(y)) for y in found.values()), found

        return jax.grad(loss, has_aux=True)(arrays)

    assert not convolutions(lambda a: every(by_patches, a)[1], arrays)
    expected = jax.jit(lambda a: every(lambda f, *pair: f(*pair), a))(arrays)
    assert_agree(jax.jit(lambda a: every(by_patches, a))(arrays), expected)


@pytest.mark.parametrize(
    ("size", "options"),
    [(MAX_SLICES + 1, {}), (3, {"batch_group_count": 2})],
    ids=["long", "batch"],
)
def test_other_convolutions_stay(size, options):
    def f(image, filters):
        return convolution(image, filters, ("NCH", "OIH", "NCH"), padding="SAME", **options)

    operands = normal(0, 2, 3, 5), normal(1, 4, 3, size)
    assert len(convolutions(lambda *pair: by_patches(f, *pair), *operands)) == 1


# A step has a filter of its own, inside of calls, and one that all share.
SHARED, FILTERS = normal(0, 3, 2, 2, scale=0.5), normal(1, 7, 3, 2, 2, scale=0.5)
START = normal(2, 2, 4, 2)
METHODS = {
    "newton": {"method": "newton", "adjoint": deeppcr.Adjoint()},
    "backprop": {"method": "sequential", "adjoint": "backprop"},
}


def loss(scan, shared, start, filters):
    def convolve(z, weight):
        return convolution(z, weight, ("NWC", "WIO", "NWC"), padding="SAME")

    @jax.checkpoint
    def step(z, own):
        moved = jax.jit(convolve)(jnp.tanh(convolve(z, shared)), own)
        return z + moved, jnp.square(moved).mean()

    z, moved = scan(step, start, filters)
    return jnp.sin(z).sum() + moved.sum()


def gradient(scan):
    return jax.value_and_grad(lambda *arguments: loss(scan, *arguments), (0, 1, 2))


@pytest.fixture(scope="module")
def expected():
    return jax.jit(gradient(lax.scan))(SHARED, START, FILTERS)


@pytest.mark.parametrize("name", METHODS)
def test_a_chain(name, expected):
    def scan(*arguments):
        return deeppcr.scan(*arguments, batch_ndim=1, **METHODS[name])

    assert_agree(jax.jit(gradient(scan))(SHARED, START, FILTERS), expected)
    with compiled_for("cpu"):
        found = convolutions(gradient(scan), SHARED, START, FILTERS)
    groups = {(e.params["feature_group_count"], e.params["batch_group_count"]) for e in found}
    assert groups == {(1, 1)}
    # The filter that all steps share: their images are one batch.
    assert max(e.invars[0].aval.size for e in found) >= len(FILTERS) * START.size
