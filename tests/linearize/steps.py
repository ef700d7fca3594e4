"""Steps of a state in two leaves, of every structure that a Jacobian can have."""

import jax
import jax.numpy as jnp

from tests.problems import normal

W = 4  # entries of each leaf
MIX = normal(7, 2 * W, 2 * W)


def elementwise(z, x):
    return {"a": jnp.sin(z["a"]) * x, "b": z["b"] ** 2 + x}


def in_pairs(z, x):
    return {"a": z["a"] * jnp.sin(z["b"]), "b": jnp.tanh(z["a"]) + z["b"] * x}


def leaf_by_leaf(z, x):
    return {"a": jnp.tanh(MIX[:W, :W] @ z["a"]) * x, "b": jnp.tanh(MIX[W:, W:] @ z["b"]) + x}


def dense(z, x):
    both = jnp.tanh(MIX @ jnp.concatenate([z["a"], z["b"]])) * jnp.concatenate([x, x])
    return {"a": both[:W], "b": both[W:]}


@jax.custom_vjp
def slanted(z):
    """Of no symmetry, with reverse mode only."""
    return MIX @ jnp.sin(z)


slanted.defvjp(lambda z: (slanted(z), z), lambda z, g: (jnp.cos(z) * (MIX.T @ g),))


def by_rows(z, x):
    both = slanted(jnp.concatenate([z["a"], z["b"]])) * jnp.concatenate([x, x])
    return {"a": both[:W], "b": both[W:]}


@jax.custom_vjp
def crossed(a, b):
    """Pairs of no symmetry, with reverse mode only."""
    return a * jnp.sin(b), jnp.tanh(a) + b


crossed.defvjp(
    lambda a, b: (crossed(a, b), (a, b)),
    lambda r, g: (
        g[0] * jnp.sin(r[1]) + g[1] * (1 - jnp.tanh(r[0]) ** 2),
        g[0] * r[0] * jnp.cos(r[1]) + g[1],
    ),
)


def pairs_by_rows(z, x):
    a, b = crossed(z["a"], z["b"])
    return {"a": a, "b": b * x}
