"""Arrays of one shape and dtype are one array in a loop, and themselves after it."""

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.lower.cpu.limits import MAX_STACKED
from deeppcr.lower.cpu.pieces import from_split, stack_equal

LEAVES = [
    np.arange(6.0).reshape(2, 3),
    np.float32(1),
    np.arange(6.0).reshape(2, 3) + 1,
    np.ones(MAX_STACKED + 1),
    np.zeros(MAX_STACKED + 1),
    np.arange(6.0, dtype=np.float32).reshape(2, 3),
    np.float32(2),
]


def test_all_come_back_in_order():
    def body(carry, stacked):
        return carry, from_split(stacked, LEAVES)

    stacked = stack_equal([jnp.stack([leaf] * 3) for leaf in LEAVES], LEAVES)
    assert len(stacked) == 5
    found = jax.lax.scan(body, 0, stacked)[1]
    for ours, leaf in zip(found, LEAVES, strict=True):
        np.testing.assert_array_equal(ours, np.stack([leaf] * 3), strict=True)
