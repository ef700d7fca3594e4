"""Programs as compiled for a GPU, run on a CPU: kernels are interpreted."""

from functools import partial

import jax

import deeppcr
from deeppcr.platforms import compiled_for
from tests.problems import assert_agree


def on_a_gpu(f, *arguments):
    """As compiled for a GPU; kernels are interpreted."""
    with compiled_for("cuda"):
        return jax.jit(lambda *arguments: f(*arguments))(*arguments)


def assert_scans(step, method, start, xs, reverse):
    """A scan by ``method`` is `jax.lax.scan`, on a GPU and on a CPU."""
    expected = jax.jit(partial(jax.lax.scan, step, reverse=reverse))(start, xs)
    ours = partial(deeppcr.scan, step, method=method, reverse=reverse)
    assert_agree(on_a_gpu(ours, start, xs), expected, 1e-6)
    if not reverse:
        assert_agree(ours(start, xs), expected, 1e-6)  # eager, on a CPU


def kernels_of(step, method, start, xs):
    """How many kernels a scan by ``method`` has on a GPU; it has none on a CPU."""

    def program():
        return str(jax.make_jaxpr(partial(deeppcr.scan, step, method=method))(start, xs))

    with compiled_for("cuda"):
        found = program().count("fused_scan[")
    assert "fused_scan" not in program()
    return found
