"""Programs as compiled for a GPU, run on a CPU: kernels are emulated."""

from functools import partial

import jax
import jax.numpy as jnp

import deeppcr
import depth
from deeppcr.lower.variants import compiled_for
from tests.fused.emulator import emulated
from tests.problems import assert_agree, rounding


def on_a_gpu(f, *arguments):
    """As compiled for a GPU; kernels are emulated."""
    return program_on_a_gpu(f, *arguments)[1]


def program_on_a_gpu(f, *arguments):
    """The program, and its results."""
    with compiled_for("cuda"), emulated():
        traced = jax.jit(lambda *arguments: f(*arguments)).trace(*arguments)
        return str(traced.jaxpr), traced.lower().compile()(*arguments)


def assert_scans(step, method, start, xs, reverse):
    """A scan by ``method`` is `jax.lax.scan`, on a GPU and on a CPU."""
    oracle = partial(jax.lax.scan, step, reverse=reverse)
    expected = jax.jit(oracle)(start, xs)
    close = rounding(jnp.float32, depth.compute_depth(jax.make_jaxpr(oracle)(start, xs)))
    ours = partial(deeppcr.scan, step, method=method, reverse=reverse)
    assert_agree(on_a_gpu(ours, start, xs), expected, close)
    if not reverse:
        assert_agree(ours(start, xs), expected, close)  # eager, on a CPU


def kernels_of(step, method, start, xs):
    """How many kernels a scan by ``method`` has on a GPU; it has none on a CPU."""

    def program():
        return str(jax.make_jaxpr(partial(deeppcr.scan, step, method=method))(start, xs))

    with compiled_for("cuda"):
        found = program().count("kernel=fused_scan")
    with compiled_for("cpu"):
        assert "kernel_call[" not in program()
    return found
