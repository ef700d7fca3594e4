"""A chain over devices: values and gradients are those of `jax.lax.scan`, and stay where they are."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Adjoint, Anderson, BlockDiagonal, Coarse, Newton, Scalar, Sharded, TrustRegion
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, P, lies_along, mesh, put, run, wait

L, W, EXAMPLES = 2 * DEVICES, 3, 4
WEIGHT = normal(0, W, W, scale=0.5)
XS = {"x": normal(1, L, W), "number": jax.device_put(np.arange(L) % W)}
Z0, BATCH = normal(2, W), normal(3, EXAMPLES, W)
GRID = {"chain": 4, "data": 2}
BY = Sharded(mesh(), "chain")
BY_GRID = Sharded(mesh(**GRID), "chain")


def f(weight, z, x):
    z = jnp.tanh(z @ weight + jnp.broadcast_to(x["x"] + weight[x["number"]], z.shape))
    return z, {"y": z * jnp.broadcast_to(x["x"], z.shape), "n": x["number"] + 1}


def gradients(scan, z0, xs, weight):
    """Of last state and outputs: by initial state, inputs, and an array that the step captures."""

    def loss(z0, x, weight):
        last, ys = scan(partial(f, weight), z0, {**xs, "x": x})
        order = jnp.arange(ys["y"].size, dtype=z0.dtype).reshape(ys["y"].shape)
        return last.sum() + jnp.sin(order * ys["y"]).sum(), (last, ys)

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(z0, xs["x"], weight)


def cut(length):
    return jax.tree.map(lambda x: x[:length], XS)


@cache
def expected(batch, length, reverse):
    scan = partial(jax.lax.scan, reverse=reverse)
    return run(partial(gradients, scan), BATCH if batch else Z0, cut(length), WEIGHT)


# Options of `scan`; the mesh on which arrays lie beforehand, and how; and the length.
ALONG = ("chain",)
CASES = {
    "by the method": ({"method": Newton(linear=BY)}, None, (), L),
    "blocks, coarse": (
        {
            "method": Newton(BlockDiagonal(2), "cyclic_reduction", initial_guess=Coarse(every=3)),
            "adjoint": "backprop",
        },
        *(mesh(), ALONG, L),
    ),
    "scalars, damped": (
        {
            "method": Newton(
                Scalar(0.3), "prefix_scan", damping=TrustRegion(), initial_guess="constant"
            ),
            "adjoint": Adjoint(linearize="diagonal"),
        },
        *(mesh(), ALONG, L),
    ),
    "zero, accelerated, of uneven length": (
        {"method": Newton("zero", BY, acceleration=Anderson(2), initial_guess=normal(4, 5, W))},
        *(None, (), 5),
    ),
    "diagonal, from a function, backwards": (
        {
            "method": Newton("diagonal", "prefix_scan", initial_guess=lambda z, xs: xs["x"]),
            "reverse": True,
        },
        *(mesh(), ALONG, L),
    ),
    "backwards, of uneven length": ({"method": Newton(linear=BY), "reverse": True}, None, (), 7),
    "blocks of the adjoint, backwards": (
        {"method": "sequential", "adjoint": BY, "reverse": True},
        *(mesh(), ALONG, L),
    ),
    "explicit, backwards": (
        {"method": "newton", "reverse": True},
        *(mesh("explicit", **GRID), (("data", "chain"),), L),
    ),
    "a batch": (
        {"method": Newton("zero", BY_GRID, acceleration=Anderson(2)), "batch_ndim": 1},
        *(mesh(**GRID), ALONG, L),
    ),
    "examples alone": (
        {"method": "newton", "adjoint": "pcr", "batch_ndim": 1},
        *(mesh("explicit", data=4), (None,), L),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    options, on, spec, length = CASES[name]
    batch, reverse = options.get("batch_ndim", 0), options.get("reverse", False)
    z0, xs, weight = BATCH if batch else Z0, cut(length), WEIGHT
    if on is not None:
        xs, weight = put(xs, *spec, on=on), put(weight, on=on)
        z0 = put(z0, *(("data",) if batch else ()), on=on)
    found = run(partial(gradients, partial(deeppcr.scan, **options)), z0, xs, weight)
    assert_agree(found, expected(batch, length, reverse))
    (_, (last, ys)), (_, by_inputs, _) = found
    if length == L and options.get("adjoint") != "backprop":
        along = spec or ALONG
        assert lies_along(ys["y"], *along, *(("data",) if batch else ()))
        assert lies_along(by_inputs, *along)
        assert lies_along(last, "data") if batch else last.sharding.is_fully_replicated


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_a_counter_in_the_carry(reverse):
    def step(carry, x):
        count, z = carry
        z = jnp.tanh(z @ WEIGHT + x["x"] * jnp.cos(count))
        return (count + 1, z), z

    def last(scan, xs):
        return scan(step, (jnp.array(0.0).astype(int), Z0), xs, reverse=reverse)

    xs = put(XS, ("data", "chain"), on=mesh("explicit", **GRID))
    found = run(partial(last, partial(deeppcr.scan, method="newton")), xs)
    assert_agree(found, last(jax.lax.scan, XS))


def test_without_jit():
    found = wait(
        partial(gradients, partial(deeppcr.scan, method="newton")), Z0, put(XS, "chain"), WEIGHT
    )
    assert_agree(found, expected(0, L, False))
    assert lies_along(found[1][1], "chain")


def loss(scan, z0, xs, weight):
    last, ys = scan(partial(f, weight), z0, xs)
    return jnp.sin(last).sum() + (ys["y"] ** 2).sum()


def hessian_times(f):
    def product(z0, xs, weight):
        at = z0, weight
        slope = jax.grad(lambda z0, weight: f(z0, xs, weight), argnums=(0, 1))
        return jax.jvp(slope, at, tuple(map(jnp.cos, at)))[1]

    return product


def looped(f):
    def descend(z0, xs, weight):
        def descent(z, _):
            value, g = jax.value_and_grad(f)(z, xs, weight)
            return z - 0.1 * g, value

        return jax.lax.scan(descent, z0, length=2)

    return jax.vmap(descend, in_axes=(0, None, None))


# -- transformations -------------------------------------------------------------------------------


@pytest.mark.parametrize(("transform", "z0"), [(hessian_times, Z0), (looped, BATCH)])
def test_transformations(transform, z0):
    scans = partial(deeppcr.scan, method=Newton(linear=BY)), jax.lax.scan
    assert_agree(*(run(transform(partial(loss, scan)), z0, XS, WEIGHT) for scan in scans))


def test_a_chain_after_a_chain_and_constraints():
    """What one chain leaves along the axis, the next one takes as its inputs."""
    along = NamedSharding(mesh(), P("chain"))

    def program(scan, z0, xs):
        ys = scan(partial(f, WEIGHT), z0, xs)[1]
        ys["y"] = jax.lax.with_sharding_constraint(ys["y"], along)
        after = scan(partial(f, WEIGHT.T), z0, {"x": ys["y"], "number": ys["n"] % W})[1]
        return jax.lax.with_sharding_constraint(2 * after["y"], along)

    scan = partial(deeppcr.scan, method=Newton(linear=BY))
    found = run(partial(program, scan), Z0, XS)
    assert_agree(found, run(partial(program, jax.lax.scan), Z0, XS))
    assert lies_along(found, "chain")


CHAIN = deeppcr.Chain(lambda z, x: f(WEIGHT, z, x)[0], XS)
LINEAR_XS = {"factor": jax.device_put(np.linspace(-0.9, 0.9, L)), "term": normal(5, L)}


def solved(chain, z0, **options):
    return run(partial(deeppcr.solve, method=Newton(**options)), chain, z0)


def both(chain, z0, **options):
    """On several devices, and on one."""
    there = deeppcr.sharding.shard(chain, mesh())
    return solved(there, z0, **options), solved(chain, z0, **options)


# -- what Newton's method says ---------------------------------------------------------------------


def test_what_is_recorded():
    there, here = both(CHAIN, Z0, linearize="diagonal", record=True)
    count = int(here.stats.iterations)
    assert there.result == here.result == deeppcr.Result.CONVERGED
    assert there.stats.prefix == L
    assert abs(int(there.stats.iterations) - count) <= 1
    near = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-15)
    near(there.stats.residuals[:count], here.stats.residuals[:count])
    assert np.isnan(there.stats.residuals[there.stats.iterations + 1 :]).all()
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(there.stats))


@pytest.mark.parametrize("on_failure", ["sequential", "return"])
def test_chaos(on_failure):
    """A difference in the last place would be of order one after 75 steps."""
    chain = deeppcr.Chain(lambda z, _: 3.9 * z * (1 - z), length=94)
    there, here = both(chain, jnp.array(0.4), max_iterations=20, on_failure=on_failure)
    prefix = int(there.stats.prefix)
    right = slice(None) if on_failure == "sequential" else slice(prefix)
    assert there.result == here.result
    assert there.converged == (on_failure == "sequential")
    assert there.stats.iterations == here.stats.iterations == 20
    assert abs(prefix - int(here.stats.prefix)) <= 1
    assert 20 <= prefix < 94
    sequential = run(partial(deeppcr.solve, method="sequential"), chain, jnp.array(0.4))
    assert_agree(there.trajectory[right], sequential.trajectory[right])


def test_a_window_shorter_than_a_shard_is_an_error():
    with pytest.raises(ValueError, match=r"window is 1,.*over 4 devices.*expected None, or 2 or"):
        both(CHAIN, Z0, window=1)


def linear_step(z, x):
    z = x["factor"] * z + x["term"]
    return z, z


LINEAR = jax.lax.scan(linear_step, jnp.array(0.3), LINEAR_XS, reverse=True)[1]
IN_ORDER = {
    "a trajectory": ({"initial_guess": jnp.flip(LINEAR)}, 0),
    "a function": ({"initial_guess": lambda z0, xs: jax.lax.scan(linear_step, z0, xs)[1]}, 0),
    "tolerances": ({"initial_guess": jnp.flip(LINEAR), "atol": np.geomspace(1e-15, 1, L)}, 0),
    "blocks": ({"linearize": Scalar(jnp.flip(LINEAR_XS["factor"]))}, 1),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_the_user_gives_is_in_the_order_of_the_chain(name):
    """In another order an exact guess would not be exact, and exact blocks would not be either."""
    options, iterations = IN_ORDER[name]
    told = []
    newton = Newton(linear=BY, progress=lambda *news: told.append(news), **options)
    scan = partial(deeppcr.scan, linear_step, reverse=True, method=newton)
    assert_agree(run(scan, jnp.array(0.3), put(LINEAR_XS, "chain"))[1], LINEAR)
    jax.effects_barrier()
    assert max(residual for k, _, residual in told if k == iterations) < 1e-12
