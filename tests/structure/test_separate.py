"""What is proven about a step has to be true: no example of a batch influences another."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.state import StateLayout
from deeppcr.step import trace
from deeppcr.structure import examples_are_separate
from tests.problems import PROBLEMS, Problem, assert_agree, backpropagate, normal, oracle

B = 3
SQUARE = normal(0, B, B)  # as wide as the batch is large: no shape tells one from the other


@jax.custom_jvp
def mixed_derivative(z):
    """The sine, with the derivative of the whole batch's mean.

    The function is separate, what is differentiated is not.
    """
    return jnp.sin(z)


@mixed_derivative.defjvp
def _(primals, tangents):
    (z,), (t,) = primals, tangents
    return jnp.sin(z), jnp.cos(z) * jnp.broadcast_to(t.mean(0), t.shape)


def body(carry, row):
    return carry + row, carry * row


INTERACT = {
    "mean": lambda z: z - jnp.broadcast_to(z.mean(0), z.shape),
    "max": lambda z: z / jnp.broadcast_to(z.max(0), z.shape),
    "softmax": lambda z: jax.nn.softmax(z, axis=0),
    "flattened": lambda z: jnp.sin(SQUARE.reshape(-1) * z.reshape(-1)).sum() * z,
    "transposed": lambda z: z + z.T,
    "transposed back": lambda z: jnp.sin(z @ SQUARE).T,
    "rolled": lambda z: jnp.roll(z, 1, axis=0),
    "reversed": lambda z: z[::-1],
    "shuffled": lambda z: z[jnp.array([1, 2, 0])],
    "sorted": lambda z: jnp.sort(z, axis=0),
    "cumulated": lambda z: jnp.cumsum(z, axis=0),
    "from the left": lambda z: SQUARE @ z,
    "gram": lambda z: z @ z.T,
    "gram of batches": lambda z: jnp.einsum("bi,ci->bc", jnp.sin(z), z),
    "first to all": lambda z: jnp.broadcast_to(z[:1], z.shape) + z,
    "one step to the side": lambda z: jnp.concatenate([z[1:], z[:1]]),
    "padded": lambda z: jnp.pad(z[1:], ((0, 1), (0, 0))),
    "attention": lambda z: jax.nn.softmax(z @ z.T) @ z,
    "reshaped": lambda z: z.reshape(-1)[1:].reshape(4, 2).sum(0)[:1, None] * z,
    "reshaped and turned": lambda z: z.reshape(B, 1, B).transpose(2, 1, 0).reshape(B, B),
    "inside jit": jax.jit(lambda z: z * z.sum(0)[None].repeat(B, 0)),
    "inside checkpoint": jax.checkpoint(lambda z: jnp.sin(z) + z[::-1]),
    "inside cond": lambda z: jax.lax.cond(z.sum() > 0, jnp.sin, jnp.cos, z[::-1]),
    "branch chosen by all": lambda z: jnp.where(z.sum(0) > 0, z.sum(0), 1.0)[None].repeat(B, 0),
    "inside scan": lambda z: jax.lax.scan(body, jnp.zeros(B), z)[1],
    "inside while": lambda z: jax.lax.fori_loop(0, 2, lambda i, z: z[::-1] * 0.5 + z, z),
    "convolved": lambda z: (
        jax.lax.conv_general_dilated(
            z.T[None, :, :],
            SQUARE[:, :, None],
            (1,),
            "SAME",
            dimension_numbers=("NCH", "OIH", "NCH"),
        )[0].T
        + jax.lax.conv_general_dilated(
            z[None], SQUARE[:, :, None], (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH")
        )[0]
    ),
    "written into": lambda z: z.at[0].add(z[1]),
    "by a custom derivative": mixed_derivative,
}
SEPARATE = {
    "tanh": lambda z: jnp.tanh(z @ SQUARE + jnp.broadcast_to(SQUARE[0], z.shape)),
    "relu": lambda z: jax.nn.relu(z @ SQUARE) + z,
    "silu and gelu": lambda z: jax.nn.silu(z) * jax.nn.gelu(z),
    "softplus": jax.nn.softplus,
    "layer norm": lambda z: (
        (z - z.mean(1, keepdims=True).repeat(B, 1)) / (1 + z.std(1)[:, None].repeat(B, 1))
    ),
    "softmax": lambda z: jax.nn.softmax(z, axis=-1),
    "gates": lambda z: jnp.concatenate([jax.nn.sigmoid(z[:, :1]), jnp.tanh(z[:, 1:])], axis=1),
    "turned twice": lambda z: (SQUARE @ z.T).T,
    "einsum": lambda z: jnp.einsum("bi,bj,ijk->bk", z, z, normal(1, B, B, B)),
    "reshaped": lambda z: jnp.sin(z.reshape(B, 1, B)[:, 0]),
    "rolled within": lambda z: jnp.roll(z, 1, axis=1),
    "cumulated within": lambda z: jnp.cumsum(z, axis=1),
}


def proven(step, state, batch_ndim):
    leaves = jax.tree.leaves(state)
    traced, _ = trace(lambda z, x: (step(z), None), state, ())
    return examples_are_separate(traced, StateLayout.of(leaves, batch_ndim))


Z = normal(1, B, B)


@cache
def jacobians():
    """Of all of these steps, by one program."""
    steps = [*INTERACT.values(), *SEPARATE.values()]
    return dict(
        zip(steps, jax.jit(lambda z: [jax.jacrev(step)(z) for step in steps])(Z), strict=True)
    )


def truly_separate(step):
    """By the whole Jacobian, one example after another."""
    jacobian = np.abs(jacobians()[step]).sum((1, 3))
    return not jacobian[~np.eye(B, dtype=bool)].any()


@pytest.mark.parametrize("name", INTERACT)
def test_examples_that_interact_are_never_proven_separate(name):
    assert not truly_separate(INTERACT[name])  # the case tests what it says
    assert not proven(INTERACT[name], Z, 1)


@pytest.mark.parametrize("name", SEPARATE)
def test_what_common_layers_do_is_proven(name):
    assert truly_separate(SEPARATE[name])
    assert proven(SEPARATE[name], Z, 1)


@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.batch_ndim])
def test_the_chains_of_these_tests(name):
    problem = PROBLEMS[name]
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), problem.xs)
    traced, _ = trace(partial(problem.step, problem.params), problem.init, inputs)
    layout = StateLayout.of(jax.tree.leaves(problem.init), problem.batch_ndim)
    assert examples_are_separate(traced, layout) == (name != "batch norm")


def test_two_batch_axes_are_told_apart():
    z = normal(1, B, B, 2)
    assert proven(jnp.sin, z, 2)
    assert proven(lambda z: z - jnp.broadcast_to(z.mean(0), z.shape), z, 0) is True  # one example
    assert not proven(lambda z: z - jnp.broadcast_to(z.mean(1, keepdims=True), z.shape), z, 2)
    assert proven(lambda z: z - jnp.broadcast_to(z.mean(1, keepdims=True), z.shape), z, 1)
    assert not proven(lambda z: z.transpose(1, 0, 2), z, 2)


def test_an_interaction_by_way_of_another_leaf():
    state = {"a": normal(0, B, 2), "b": normal(1, B)}
    assert proven(
        lambda s: {"a": s["a"] * s["b"][:, None].repeat(2, 1), "b": s["a"].sum(1)}, state, 1
    )
    assert not proven(lambda s: {"a": s["a"] * s["b"].sum(), "b": s["b"]}, state, 1)


def test_gradients_of_interacting_examples():
    def step(weight, z, x):
        z = jnp.tanh(0.3 * mixed_derivative(z) @ weight + x)
        return z, z

    problem = Problem(step, SQUARE, normal(1, B, B), normal(2, 7, B, B), batch_ndim=1)
    scan = partial(deeppcr.scan, adjoint="pcr", batch_ndim=1)
    assert_agree(backpropagate(problem, scan), oracle(problem))


@jax.custom_vjp
def clipped(z):
    """The identity; what comes back is cut off, which is no linear function."""
    return z


clipped.defvjp(lambda z: (z, None), lambda _, g: (jnp.clip(g, -0.3, 0.3),))


@pytest.mark.parametrize(("method", "adjoint"), [("sequential", "auto"), ("newton", "pcr")])
def test_clipped_gradients(method, adjoint):
    def step(weight, z, x):
        new = jnp.tanh(clipped(z) @ weight + clipped(x))
        return clipped(new), new

    problem = Problem(step, SQUARE, normal(1, B), normal(2, 7, B))
    scan = partial(deeppcr.scan, method=method, adjoint=adjoint)
    assert_agree(backpropagate(problem, scan), oracle(problem))
