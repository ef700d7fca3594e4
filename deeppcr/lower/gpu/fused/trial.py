"""A solve that is tried on a GPU, once: whether its kernel is right there."""

from functools import cache
from typing import Any

import jax
import numpy as np

from deeppcr.lower.gpu.fused.nvrtc import HOPPER, capability, launch
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.lower.gpu.fused.windows import SolvedBelow, kernel_of
from depth.jaxprs import Program

CLUSTER = 8  # blocks that read each other's shared memory, on any GPU that has clusters
LENGTH = 5000  # of a chain that takes so many


def largest_cluster() -> int:
    """The most blocks that work on one example, on the GPUs there are; 0 if none solves rightly."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:  # of programs for another machine nothing is known
        return 1
    has_clusters = min(map(capability, devices)) >= HOPPER
    sizes = (CLUSTER, 1) if has_clusters else (1,)
    return next((size for size in sizes if is_right(devices[0], size)), 0)


@cache
def is_right(device: Any, cluster: int) -> bool:
    """Whether a kernel of clusters of this size solves a chain on a device."""
    step, one = lambda z, x: [np.float32(0.9) * jax.numpy.tanh(z + x)] * 2, np.zeros(1, np.float32)
    fused = FusedStep.of(Program.of(jax.make_jaxpr(step)(one, one)), 1, 1, ())
    kernel = kernel_of(fused, LENGTH, False, SolvedBelow(iterations=20), cluster)
    kinds = ((LENGTH, 1), np.float32), ((1,), np.int32), ((1,), np.int32), ((1,), np.float32)
    results = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    x = np.sin(np.arange(LENGTH, dtype=np.float32))[:, None]
    try:
        with jax.ensure_compile_time_eval(), jax.default_device(device):
            found = np.asarray(jax.jit(lambda z, x: launch(kernel, [z, x], results)[0])(one, x))
    except Exception:  # whatever the driver or a later XLA says
        return False
    before = np.concatenate([one[None], found[:-1]])
    return bool(np.allclose(found, 0.9 * np.tanh(before + x), atol=1e-5))
