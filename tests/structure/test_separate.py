"""What is proven about a step has to be true: no example of a batch influences another."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.state import StateLayout
from deeppcr.step import trace
from deeppcr.structure import examples_are_separate
from tests.problems import normal

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
    "softmax": lambda z: jax.nn.softmax(z, axis=0),
    "transposed": lambda z: z + z.T,
    "transposed back": lambda z: jnp.sin(z @ SQUARE).T,
    "rolled": lambda z: jnp.roll(z, 1, axis=0),
    "shuffled": lambda z: z[jnp.array([1, 2, 0])],
    "sorted": lambda z: jnp.sort(z, axis=0),
    "from the left": lambda z: SQUARE @ z,
    "gram": lambda z: z @ z.T,
    "one step to the side": lambda z: jnp.concatenate([z[1:], z[:1]]),
    "attention": lambda z: jax.nn.softmax(z @ z.T) @ z,
    "reshaped": lambda z: z.reshape(-1)[1:].reshape(4, 2).sum(0)[:1, None] * z,
    "inside jit": jax.jit(lambda z: z * z.sum(0)[None].repeat(B, 0)),
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
    "silu and gelu": lambda z: jax.nn.silu(z) * jax.nn.gelu(z),
    "layer norm": lambda z: (
        (z - z.mean(1, keepdims=True).repeat(B, 1)) / (1 + z.std(1)[:, None].repeat(B, 1))
    ),
    "softmax": lambda z: jax.nn.softmax(z, axis=-1),
    "gates": lambda z: jnp.concatenate([jax.nn.sigmoid(z[:, :1]), jnp.tanh(z[:, 1:])], axis=1),
    "turned twice": lambda z: (SQUARE @ z.T).T,
    "einsum": lambda z: jnp.einsum("bi,bj,ijk->bk", z, z, normal(1, B, B, B)),
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
