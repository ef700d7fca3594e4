"""GPUs to compile for, without having one: XLA needs only a description of the GPU."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from deeppcr.platforms import compiled_for
from experiments.kernels.launches import Dump

# Checks of the driver and libraries, which compilation does not need; read when jax starts.
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

PLUGIN = """pip install --no-deps jax-cuda13-plugin=={0} jax-cuda13-pjrt=={0}"""
# Figures of NVIDIA's data sheets and programming guide for compute capability 9.0, as XLA reads
# them; and the versions without which it captures neither loops nor library calls in CUDA graphs.
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
  driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
NAMES = {"H200": H200}
# What XLA dumps: the thunks, after the passes that form graphs if these have changed any.
DUMPED = (
    ("thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt"),
    ("thunk_metadata.txt",),
)


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

    def lower(self, f: Callable[..., Any], *arguments: Any) -> jax.stages.Lowered:
        """The program of ``f`` before it is compiled, for arguments of these shapes and dtypes."""
        mesh = jax.sharding.Mesh(np.array([self.device]), ("device",))
        here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), sharding=here)

        def program(*arguments: Any) -> Any:  # not traced yet, for another platform
            return f(*arguments)

        with self.chosen():
            return jax.jit(program).lower(*jax.tree.map(shape, arguments))

    def compile(self, lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> Dump:
        """The compiled program, with these options of the compiler."""
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {**options, "xla_dump_to": folder}
            try:
                compiled = lowered.compile(compiler_options=given)
            except jax.errors.JaxRuntimeError:
                # Without a device to try it on, XLA may take a Triton kernel that does not fit.
                given["xla_gpu_enable_triton_gemm"] = False
                compiled = lowered.compile(compiler_options=given)
            return Dump(compiled.as_text() or "", *(_dumped(folder, *names) for names in DUMPED))


def _dumped(folder: str, *endings: str) -> str:
    """The newest file of the first of these endings that there is."""
    for ending in endings:
        for file in sorted(Path(folder).glob(f"*{ending}"), reverse=True):
            return file.read_text()
    raise Unavailable(f"XLA dumps no file whose name ends in {' or '.join(endings)}")


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
