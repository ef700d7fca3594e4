"""A dense tanh chain, which Newton's method solves from any guess and in any window."""

import jax.numpy as jnp

from deeppcr import Chain
from tests.problems import L, normal

WEIGHT = normal(0, 3, 3, scale=0.5)
XS = normal(1, L, 3)
Z0 = normal(2, 3)
CHAIN = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + jnp.broadcast_to(x, z.shape)), XS)
