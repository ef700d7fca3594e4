"""Values that are computed once are the same, and stay so in what XLA compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.lower.cpu.products import materialised, unknown_one


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="CPUs alone take it")
def test_xla_keeps_it_and_it_changes_nothing():
    x = jnp.array([np.nan, -np.inf, -0.0, 5e-324, 1 / 3, 1e300])
    compiled = jax.jit(lambda x: materialised(2 * x, unknown_one())).lower(x).compile()
    np.testing.assert_array_equal(compiled(x).view(np.int64), np.asarray(2 * x).view(np.int64))
    assert " divide(" in compiled.as_text()
