"""`reverse=True` over devices: no input moves, values and gradients are those of `jax.lax.scan`."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Adjoint, Anderson, Coarse, Newton, Scalar, Sharded
from tests.linear.loop import compiled
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, P, lies_along, mesh, put, run, wait
from tests.sharding.test_resources import messages

L = 2 * DEVICES
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = {"x": normal(1, L, 3), "number": jnp.arange(L) % 3}
Z0 = normal(2, 3)


def f(weight, z, x):
    z = jnp.tanh(weight @ z + x["x"]) + weight[x["number"]]
    return z, {"y": z * x["x"], "n": x["number"] + 1}


def gradients(scan, z0, xs, weight, step=f):
    """Of last state and outputs: by initial state, inputs, and an array that the step captures."""

    def loss(z0, x, weight):
        last, ys = scan(partial(step, weight), z0, {**xs, "x": x}, reverse=True)
        order = jnp.arange(ys["y"].size, dtype=z0.dtype).reshape(ys["y"].shape)
        return last.sum() + jnp.sin(order * ys["y"]).sum(), (last, ys)

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(z0, xs["x"], weight)


@cache
def expected(length=L):
    return run(partial(gradients, jax.lax.scan), Z0, cut(length), WEIGHT)


def cut(length):
    return jax.tree.map(lambda x: x[:length], XS)


def ours(method="newton", adjoint="auto"):
    return partial(gradients, partial(deeppcr.scan, method=method, adjoint=adjoint))


BY = Sharded(mesh(), "chain")
VARIANTS = {
    "newton": (Newton(linear=BY), "auto"),
    "newton, backpropagation": (Newton(linear=BY, initial_guess=Coarse(every=3)), "backprop"),
    "sequential, blocks": ("sequential", BY),
    "scalars, from a trajectory, accelerated": (
        Newton(
            linear=BY,
            linearize=Scalar(jnp.linspace(0.0, 0.3, L)),
            initial_guess=normal(4, L, 3),
            acceleration=Anderson(2),
        ),
        Adjoint(linearize="diagonal"),
    ),
}


@pytest.mark.parametrize("name", list(VARIANTS)[1:])
def test_agrees_with_lax_scan(name):
    found = run(ours(*VARIANTS[name]), Z0, put(XS, "chain"), WEIGHT)
    assert_agree(found, expected())
    (_, (last, ys)), (_, by_inputs, _) = found
    assert lies_along(ys["y"], "chain")
    assert lies_along(ys["n"], "chain")
    assert lies_along(by_inputs, "chain")
    assert last.sharding.is_fully_replicated


def linear_step(z, x):
    z = x["factor"] * z + x["term"]
    return z, z


FACTORS = {"factor": jnp.linspace(-0.9, 0.9, L), "term": normal(5, L)}
LINEAR = jax.lax.scan(linear_step, jnp.array(0.3), FACTORS, reverse=True)[1]
IN_ORDER = {
    "a trajectory": ({"initial_guess": jnp.flip(LINEAR)}, 0),
    "a function": (
        {"initial_guess": lambda z0, xs: jax.lax.scan(linear_step, z0, xs)[1]},
        0,
    ),
    "a coarse chain": (
        {
            "initial_guess": Coarse(
                1, lambda z, xs: linear_step(z, jax.tree.map(lambda x: x[0], xs))[0]
            )
        },
        0,
    ),
    "blocks": ({"linearize": Scalar(jnp.flip(FACTORS["factor"]))}, 1),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_the_user_gives_is_in_the_order_of_the_chain(name):
    """In another order an exact guess would not be exact, and exact blocks would not be either."""
    options, iterations = IN_ORDER[name]
    told = []
    newton = Newton(linear=BY, progress=lambda *news: told.append(news), **options)
    scan = partial(deeppcr.scan, linear_step, reverse=True, method=newton)
    assert_agree(run(scan, jnp.array(0.3), put(FACTORS, "chain"))[1], LINEAR)
    jax.effects_barrier()
    assert max(residual for k, _, residual in told if k == iterations) < 1e-12


def test_an_explicit_mesh_by_the_inputs():
    on, axis = mesh("explicit", chain=4, data=2), ("data", "chain")
    found = run(ours(), put(Z0, on=on), put(XS, axis, on=on), put(WEIGHT, on=on))
    assert_agree(found, expected())
    assert lies_along(found[0][1][1]["y"], axis)


def test_what_the_inputs_say_without_jit():
    on = mesh("explicit")
    with jax.set_mesh(on):  # elsewhere jax has no eager gradients of explicitly sharded arrays
        found = wait(
            ours(Newton(initial_guess=normal(4, L, 3))), Z0, put(XS, "chain", on=on), WEIGHT
        )
    assert_agree(found, expected())
    assert lies_along(found[0][1][1]["y"], "chain")


def test_a_length_that_devices_cannot_share():
    found = run(ours(*VARIANTS["newton"]), Z0, cut(7), WEIGHT)
    assert_agree(found, expected(7))


def test_an_explicit_mesh_on_which_only_the_batch_lies():
    on = mesh("explicit", data=4)
    batch = normal(3, 4, 3)
    xs = normal(4, L, 3)

    def step(weight, z, x):
        z = jnp.tanh(z @ weight + jnp.broadcast_to(x["x"], z.shape))
        return z, {"y": z * z}

    there = put(batch, "data", on=on), {"x": put(xs, on=on)}, put(WEIGHT, on=on)
    scan = partial(deeppcr.scan, method="newton", batch_ndim=1)
    found = run(partial(gradients, scan, step=step), *there)
    assert_agree(found, run(partial(gradients, jax.lax.scan, step=step), batch, {"x": xs}, WEIGHT))
    assert lies_along(found[0][1][1]["y"], None, "data")


def test_a_step_with_a_rule_of_the_users():
    """Its derivatives are jax's own, of all steps on all devices."""

    @jax.custom_vjp
    def clipped(z):
        return z

    clipped.defvjp(lambda z: (z, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    def step(weight, z, x):
        z, y = f(weight, clipped(z), x)
        return z, y

    scan = partial(deeppcr.scan, method=Newton(linear=BY))
    found = run(partial(gradients, scan, step=step), Z0, put(XS, "chain"), WEIGHT)
    assert_agree(found, run(partial(gradients, jax.lax.scan, step=step), Z0, XS, WEIGHT))


def test_inside_of_jit_and_vmap_and_again():
    """The gradient of a gradient, for several initial states, in programs within programs."""

    def slope(scan, z0, xs):
        def loss(x):
            ys = jax.jit(lambda z0, x: scan(partial(f, WEIGHT), z0, x, reverse=True)[1]["y"])
            return (ys(z0, {**xs, "x": x}) ** 2).sum()

        return jax.grad(lambda x: jnp.sin(jax.grad(loss)(x)).sum())(xs["x"])

    def several(scan):
        return lambda z0, xs: jax.vmap(partial(slope, scan), in_axes=(0, None))(z0, xs)

    many = jnp.stack([Z0, -2 * Z0])
    found = run(several(partial(deeppcr.scan, method=Newton(linear=BY))), many, put(XS, "chain"))
    assert_agree(found, run(several(jax.lax.scan), many, XS))


def sent(reverse, length):
    """The messages of a compiled program: last state, outputs and all gradients."""
    method, adjoint = VARIANTS["newton"]

    def loss(z0, xs, weight):
        def step(z, x):
            z = jnp.tanh(weight @ z + x)
            return z, z * x

        last, ys = deeppcr.scan(step, z0, xs, reverse=reverse, method=method, adjoint=adjoint)
        return last.sum() + (ys**2).sum(), ys

    along, whole = (NamedSharding(mesh(), spec) for spec in (P("chain"), P()))
    program = compiled(
        jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True),
        in_shardings=(whole, along, whole),
        out_shardings=((whole, along), (whole, along, whole)),
    )
    shapes = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((3,), (length, 3), (3, 3)))
    return messages(program.lower(*shapes).compile())


def test_it_sends_what_a_chain_forwards_sends_and_no_input():
    length = 32 * DEVICES
    backwards = sent(True, length)
    assert backwards == sent(False, length)
    assert max(size for _, size in backwards) < length // DEVICES * 3 * 8  # a shard of the inputs


def test_messages_of_inputs_that_move_are_found():
    """What flipping the inputs as a whole sends: the shards themselves."""
    along = NamedSharding(mesh(), P("chain"))
    flip = compiled(lambda x: jnp.flip(x, 0), in_shardings=along, out_shardings=along)
    shape = jax.ShapeDtypeStruct((64 * DEVICES, 3), jnp.float64)
    found = messages(flip.lower(shape).compile())
    assert max(size for _, size in found) >= 64 * 3 * 8


def test_the_converged_prefix_is_counted_from_the_first_step():
    """Which lies on the last device. Each Jacobi iteration adds a step at least."""

    def prefixes(xs, **options):
        told = []
        newton = Newton(linearize="zero", progress=lambda *news: told.append(news[:2]), **options)
        run(partial(deeppcr.scan, linear_step, reverse=True, method=newton), jnp.array(0.3), xs)
        jax.effects_barrier()
        return sorted(set(told))

    assert prefixes(put(FACTORS, "chain"), linear=BY) == prefixes(FACTORS)
