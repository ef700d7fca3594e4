"""Steps that jax cannot differentiate in their state, and gradients that states do not depend on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

Z0 = jnp.zeros(2)
XS = normal(0, 7, 2)


def half(z, vmap_method="broadcast_all"):
    """Half of it, by the host: jax has no derivative of it."""
    like = jax.ShapeDtypeStruct(z.shape, z.dtype)
    return jax.pure_callback(lambda z: 0.5 * np.asarray(z), like, z, vmap_method=vmap_method)


def read(weight, halve):
    """A step whose output alone depends on ``weight``."""

    def step(z, x):
        z = jnp.tanh(halve(z)) + x
        return z, weight @ z

    return step


def of_weight(scan, xs, halve=half):
    def loss(weight):
        return (scan(read(weight, halve), Z0, xs)[1] ** 2).sum()

    return jax.value_and_grad(loss)(jnp.array([2.0, -3.0]))


def primitives(f):
    return {each.primitive.name for each in equations(jax.make_jaxpr(f)())}


def test_auto_runs_them_and_differentiates_what_jax_does():
    assert_agree(of_weight(deeppcr.scan, XS), of_weight(jax.lax.scan, XS))


@pytest.mark.parametrize("halved", [jax.lax.stop_gradient, lambda z: XS[0]], ids=["state", "array"])
def test_a_loop_over_what_has_no_tangent(halved):
    """It has a derivative only where nothing moves; an output of a step is such a loop."""

    def step(z, x):
        return jnp.tanh(z + x), jax.lax.map(half, halved(z))

    def loss(scan, z):
        return sum(map(jnp.sum, scan(step, z, XS)))

    assert_agree(*(jax.grad(partial(loss, scan))(Z0) for scan in (deeppcr.scan, jax.lax.scan)))


def test_their_plan_has_the_sequential_program_and_says_why():
    plan = deeppcr.plan(read(Z0, half), Z0, XS)
    assert all(isinstance(one.method, deeppcr.Sequential | None) for one in plan.forward)
    assert plan.adjoint == deeppcr.adjoint.Autodiff()
    assert "no derivative with respect to the state: Pure callbacks" in str(plan)


def test_newton_says_what_to_do():
    @jax.custom_vjp
    def double(z):
        return 2 * z

    def halve_in_loop(z):  # a custom_vjp has no forward mode, the loop has no reverse mode
        return jax.lax.while_loop(lambda z: z @ z > 1, lambda z: 0.5 * z, double(z))

    double.defvjp(lambda z: (2 * z, None), lambda _, g: (2 * g,))
    for halve, reason in (half, "Pure callbacks"), (halve_in_loop, "Reverse-mode"):
        for linearize in "dense", "diagonal":
            newton = deeppcr.Newton(linearize=linearize)
            with pytest.raises(ValueError, match=f"no derivative .* needs: {reason}.* Expected"):
                deeppcr.scan(read(Z0, halve), Z0, normal(0, 7, 2), method=newton)
        xs = normal(0, 7, 2)
        found = deeppcr.scan(read(Z0, halve), Z0, xs)
        assert_agree(found, jax.lax.scan(read(Z0, halve), Z0, xs))


@pytest.mark.parametrize("adjoint", ["backprop", "pcr", "autodiff"])
@pytest.mark.parametrize("halve", [half, lambda z: 0.5 * z])
def test_gradients_of_a_readout_need_no_adjoint_states(adjoint, halve):
    xs = normal(1, 7, 2)

    def scan(*arguments):
        return deeppcr.scan(*arguments, method="sequential", adjoint=adjoint)

    assert_agree(of_weight(scan, xs, halve), of_weight(jax.lax.scan, xs, halve))
    assert "custom_linear_solve" not in primitives(lambda: of_weight(scan, xs, halve))


@pytest.mark.parametrize("adjoint", ["backprop", "auto"])
def test_what_jax_cannot_map_runs_step_by_step(adjoint):
    def step(z, x):
        return jnp.tanh(z) + half(x, None), jnp.sin(z)

    def loss(scan, z0):
        return (scan(step, z0, normal(1, 7, 2))[1] ** 2).sum()

    ours = partial(deeppcr.scan, adjoint=adjoint)
    assert_agree(*(jax.grad(partial(loss, scan))(Z0) for scan in (ours, jax.lax.scan)))
    with pytest.raises(ValueError, match="a pure_callback with vmap_method=None"):
        loss(partial(deeppcr.scan, method="newton"), Z0)


@jax.custom_batching.custom_vmap
def sine(x):
    return jnp.sin(x)


@sine.def_vmap
def _(size, batched, x):
    return jnp.sin(x), batched[0]


def of_state(z, x):
    z = 0.5 * sine(z) + x
    return z, z


def of_input(z, x):
    z = 0.5 * jnp.tanh(z) + sine(x)
    return z, z


@pytest.mark.parametrize("adjoint", ["auto", "backprop", "pcr"])
def test_a_custom_vmap_has_forward_mode_only(adjoint):
    xs, z0 = normal(0, 5, 2), normal(1, 2)
    ours = partial(deeppcr.scan, adjoint=adjoint)

    def loss(scan, step, z):
        return scan(step, z, xs)[1].sum()

    def forwards(scan, step):
        many = jax.vmap(partial(loss, scan, step))
        return jax.jvp(many, (jnp.stack([z0, 2 * z0]),), (jnp.stack([z0, z0]),))

    assert_agree(forwards(ours, of_input), forwards(jax.lax.scan, of_input))
    assert_agree(*(jax.grad(partial(loss, scan, of_input))(z0) for scan in (ours, jax.lax.scan)))
    with pytest.raises(ValueError, match=r"does not support reverse-mode|forward mode only"):
        jax.grad(partial(loss, partial(deeppcr.scan, adjoint="auto"), of_state))(z0)
    assert_agree(ours(of_state, z0, xs), jax.lax.scan(of_state, z0, xs))
    if adjoint != "pcr":
        assert_agree(forwards(ours, of_state), forwards(jax.lax.scan, of_state))
    reason = "a jax.custom_batching.custom_vmap has forward mode only"
    with pytest.raises(ValueError, match=f"no derivative .*needs: {reason}. Expected"):
        deeppcr.scan(of_state, z0, xs, method="newton")
    assert reason in " ".join(str(deeppcr.plan(of_state, z0, xs)).split())
