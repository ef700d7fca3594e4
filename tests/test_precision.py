"""Products in full precision wherever many steps are evaluated or differentiated at once.

A GPU rounds the operands of float32 products of default precision to TF32. What it would run is
seen in the program that is lowered for it: here none of its products may have that precision, but
those of the user's own sequential loop.
"""

import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import Adjoint, Anderson, Chain, Coarse, Newton, Result
from deeppcr.lower.variants import compiled_for
from tests.problems import normal

N, L = 20, 24
W = jnp.asarray(normal(1, N, N) / 8, jnp.float32)
XS = jnp.asarray(normal(2, L, 3, N), jnp.float32)
START = jnp.asarray(normal(3, 3, N), jnp.float32)
PRODUCT = re.compile(
    r"stablehlo\.(?:dot_general|convolution).*?precision(?:_config)? = \[(?:#stablehlo<precision )?(\w+)"
)
pytestmark = pytest.mark.filterwarnings(
    "ignore:the examples of a batch"
)  # a branch chooses for all
HIGHEST, DEFAULT, TF32 = "HIGHEST", "DEFAULT", "HIGH"


def products(f, *arguments):
    """The precisions of the products in the program that is lowered for a GPU."""
    text = jax.jit(f).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if re.search(r"stablehlo\.(dot_g|convol)", line)]
    found = [PRODUCT.search(line) for line in lines]
    return Counter(each[1] if each else DEFAULT for each in found)


@pytest.fixture(autouse=True)
def _as_jax_starts():
    with jax.default_matmul_precision(None):
        yield


@jax.custom_jvp
def doubled_rule(h, w):
    return h @ w


@doubled_rule.defjvp
def _(primals, tangents):
    (h, w), (dh, dw) = primals, tangents
    return h @ w, dh @ w + h @ dw


@jax.custom_vjp
def users_rule(h, w):
    return h @ w


users_rule.defvjp(lambda h, w: (h @ w, (h, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


def image(h, w):
    kernel = w[:3, :12].reshape(3, 3, 2, 2)
    numbers = ("NHWC", "HWIO", "NHWC")
    picture = h[:, :18].reshape(3, 3, 3, 2)
    found = lax.conv_general_dilated(picture, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.concatenate([found.reshape(3, 18), h[:, 18:]], axis=1)


def several(h, w):
    return lax.fori_loop(0, 2, lambda _, h: h @ w, h)


def chosen(h, w):
    return lax.cond(h[0, 0] > 0, lambda h: h @ w, lambda h: h - h @ w, h)


INSIDE = [
    lambda h, w: h @ w,
    jax.jit(lambda h, w: jnp.tanh(h @ w) @ w),
    jax.checkpoint(lambda h, w: jnp.tanh(h @ w) @ w),
    doubled_rule,
    image,
    several,
    chosen,
    lambda h, w: jnp.linalg.solve(jnp.eye(N, dtype=w.dtype) + w.T @ w, h.T).T,
    lambda h, w: deeppcr.scan(lambda a, _: (a @ w, None), h, None, 3)[0],
]


def loss(start, w, xs, inner=INSIDE[0], **options):
    def step(h, x):
        h = jnp.tanh(inner(h, w) + x)
        return h, h @ w

    last, ys = deeppcr.scan(step, start, xs, batch_ndim=1, **options)
    return jnp.square(last).sum() + ys.sum()


def only_highest(f, *arguments, traced_for):
    with compiled_for(traced_for):
        found = products(f, *arguments)
    assert set(found) == {HIGHEST}, found


def everything(h, w):
    """All but the `jax.custom_vjp`, one after another."""
    for inside in INSIDE:
        h = jnp.tanh(inside(h, w))
    return h


def test_products_inside_of_steps():
    f = partial(loss, inner=everything, method="newton", adjoint="pcr")
    only_highest(jax.grad(f, argnums=1), START, W, XS, traced_for="cpu")


OPTIONS = {
    "auto": {"method": "newton"},
    "blocks": {"method": Newton(linearize=deeppcr.BlockDiagonal(2)), "adjoint": "pcr"},
    "accelerated": {"method": Newton(linearize="identity", acceleration=Anderson())},
    "coarse": {"method": Newton(initial_guess=Coarse(every=4))},
    "segments": {"method": "newton", "adjoint": Adjoint(checkpoint=6)},
    "reverse": {"method": "newton", "adjoint": "cyclic_reduction", "reverse": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_products_of_methods(options):
    gradient = jax.grad(partial(loss, **options), argnums=(0, 1, 2))
    only_highest(gradient, START, W, XS, traced_for="cuda")


def test_the_loop_is_the_users():
    def plain(start, w, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h @ w

        last, ys = lax.scan(step, start, xs)
        return jnp.square(last).sum() + ys.sum()

    f = partial(loss, method="sequential", adjoint="autodiff")
    assert products(f, START, W, XS) == products(plain, START, W, XS) == {DEFAULT: 2}
    assert set(products(jax.grad(f, argnums=(0, 1, 2)), START, W, XS)) == {DEFAULT}
    gradient = jax.grad(partial(loss, method="sequential", adjoint="pcr"), argnums=(0, 1, 2))
    with compiled_for("cuda"):
        found = products(gradient, START, W, XS)
    assert found[DEFAULT] == 1, found  # of the forward loop, whose outputs are not read
    assert found[HIGHEST] > 1


@pytest.mark.parametrize("argument", [True, False])
def test_a_precision_that_the_user_asks_for_stays(argument):
    precision = "high" if argument else None
    inner = partial(jnp.matmul, precision=precision)
    f = partial(loss, inner=inner, method="newton", adjoint="pcr")
    with jax.default_matmul_precision("high"):
        found = products(jax.grad(f, argnums=(0, 1, 2)), START, W, XS)
    assert found[TF32] > 1
    assert not found[DEFAULT]


def shortened(x):
    """The operand of a product in TF32, as a GPU rounds it."""
    return lax.reduce_precision(x, 8, 10)


def test_residuals_that_fall_no_further_than_such_products_end_as_a_plateau():
    def step(h, x):
        return jnp.tanh(jnp.matmul(shortened(h), shortened(W), precision="high") + x)

    chain = Chain(step, jnp.concatenate([XS] * 20))
    newton = Newton(record=True, on_failure="raise")
    solution = deeppcr.solve(chain, START, batch_ndim=1, method=newton)
    assert (solution.result, solution.converged) == (Result.PLATEAU, True)
    assert solution.stats.iterations < 12
    said = f"{float(solution.stats.residual):.1e}, the rounding of the step's products"
    assert said in " ".join(str(solution).split())
    expected = deeppcr.solve(chain, START, batch_ndim=1, method="sequential").trajectory
    np.testing.assert_allclose(solution.trajectory, expected, atol=8 * 2.0**-11)
    loose = deeppcr.solve(chain, START, batch_ndim=1, method=Newton(rtol=1e-2))
    assert loose.result == Result.CONVERGED
