"""GPUs to compile for, without having one: XLA needs only a description of the GPU."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from deeppcr.platforms import compiled_for

# Checks of the driver and libraries, which compilation does not need; read when jax starts.
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

PLUGIN = """pip install --no-deps jax-cuda13-plugin=={0} jax-cuda13-pjrt=={0}"""
# Figures of NVIDIA's data sheets and programming guide for compute capability 9.0, as XLA reads
# them.
H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 52428800  device_memory_size: 141000000000
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
NAMES = {"H200": H200}


class Unavailable(Exception):
    """jax cannot compile for the target here; the message says what is missing."""


@dataclass(frozen=True)
class Target:
    """A GPU to compile for.

    Attributes:
        name: what `depth.devices` calls it.
        device: what jax compiles for.
    """

    name: str
    device: Any

    def chosen(self) -> AbstractContextManager[None]:
        """Programs that are traced in here are those for this device."""
        return compiled_for("cuda")

    def compile(self, f: Callable[..., Any], *arguments: Any) -> str:
        """The text of the compiled program of ``f``, for arguments of these shapes and dtypes."""
        mesh = jax.sharding.Mesh(np.array([self.device]), ("device",))
        here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), sharding=here)

        def program(*arguments: Any) -> Any:  # not traced yet, for another platform
            return f(*arguments)

        with self.chosen():
            lowered = jax.jit(program).lower(*jax.tree.map(shape, arguments))
            try:
                text = lowered.compile().as_text()
            except jax.errors.JaxRuntimeError:
                # Without a device to try it on, XLA may take a Triton kernel that does not fit.
                options: Any = {"xla_gpu_enable_triton_gemm": False}
                text = lowered.compile(compiler_options=options).as_text()
        if text is None:
            raise Unavailable(f"jax does not show what it has compiled for an {self.name}")
        return text


def target(name: str) -> Target:
    """The target of that name; without a driver, jax's plugin for CUDA is enough.

    Raises:
        Unavailable: there is no such plugin.
    """
    try:
        found = topologies.get_topology_desc(
            "", "cuda", target_config=NAMES[name], topology="1x1x1"
        )
    except NotImplementedError:
        how = PLUGIN.format(jax.__version__)
        raise Unavailable(
            f"jax has no plugin for CUDA here, which compiles for an {name}: {how}"
        ) from None
    return Target(name, found.devices[0])
