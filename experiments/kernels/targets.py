"""Devices to compile for, without having one.

For a GPU, XLA needs only a description of it. For a TPU, the library of TPUs has all of them.
"""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jax.experimental import topologies

import depth
from deeppcr.lower.variants import compiled_for
from experiments.kernels import cycles, launches

# Checks of the driver and libraries, which compilation does not need; read when jax starts.
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
# What a TPU's library asks the machine that has the TPU, for four chips. Several processes may load
# it, since none of them uses a TPU.
ON_NO_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

PLUGIN = """pip install --no-deps jax-cuda13-plugin=={0} jax-cuda13-pjrt=={0}"""
TPU_LIBRARY = "pip install --no-deps libtpu, and set JAX_PLATFORMS=cpu"
# Figures of NVIDIA's data sheets and programming guide for compute capability 9.0, as XLA reads
# them; and the versions without which it captures neither loops nor library calls in CUDA graphs.
HOPPER = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: BANDWIDTH  l2_cache_size: 52428800  device_memory_size: MEMORY
  driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA NAME"
"""
GPUS = ("H200", "H100")
TPUS = {"TPU v5e": "v5e:2x2"}
CLOCKS = {"TPU v5e": 1.5e9}  # cycles a second
NAMES = (*GPUS, *TPUS)
# What XLA dumps: the thunks, after the passes that form graphs if these have changed any.
DUMPED = (
    ("thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt"),
    ("thunk_metadata.txt",),
)


class Unavailable(Exception):
    """jax cannot compile for the target here; the message says what is missing."""


@dataclass(frozen=True)
class Target:
    """A device to compile for.

    Attributes:
        name: what `depth.devices` calls it.
        devices: what jax compiles for: the first of them, or a mesh of several.
        platform: what jax calls its kind.
        counts: what is counted in its programs.
    """

    name: str
    devices: Any
    platform: ClassVar[str]
    counts: ClassVar[str]

    def chosen(self) -> AbstractContextManager[None]:
        """Programs that are traced in here are those for this device."""
        return compiled_for(self.platform)

    def compile(self, lowered: jax.stages.Lowered, options: Mapping[str, Any] = {}) -> Any:
        """The compiled program, whose ``total`` and ``trip`` count; with options of XLA."""
        raise NotImplementedError

    def seconds(self, program: Any, trips: Callable[[str], int]) -> float:
        """Of a call of a compiled program, as its compiler estimates; inf where it does not."""
        raise NotImplementedError

    def lower(self, f: Callable[..., Any], *arguments: Any) -> jax.stages.Lowered:
        """The program of ``f`` before it is compiled, for arguments of these shapes and dtypes."""
        mesh = jax.sharding.Mesh(np.array(self.devices[:1]), ("device",))
        here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), sharding=here)

        def program(*arguments: Any) -> Any:  # not traced yet, for another platform
            return f(*arguments)

        with self.chosen():
            return jax.jit(program).lower(*jax.tree.map(shape, arguments))


class Gpu(Target):
    """A GPU, of which nodes are counted."""

    platform, counts = "cuda", "nodes"

    def compile(
        self, lowered: jax.stages.Lowered, options: Mapping[str, Any] = {}
    ) -> launches.Program:
        """See `Target`."""
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {**options, **launches.ESTIMATES, "xla_dump_to": folder}
            try:
                compiled = lowered.compile(compiler_options=given)
            except jax.errors.JaxRuntimeError:
                # Without a device to try it on, XLA may take a Triton kernel that does not fit.
                given["xla_gpu_enable_triton_gemm"] = False
                compiled = lowered.compile(compiler_options=given)
            text = compiled.as_text() or ""
            return launches.read(text, *(_dumped(folder, *names) for names in DUMPED))

    def seconds(self, program: launches.Program, trips: Callable[[str], int]) -> float:
        """See `Target`."""
        return program.seconds(trips)


class Tpu(Target):
    """A TPU, of which cycles are counted as the compiler estimates them."""

    platform, counts = "tpu", "cycles"

    def compile(
        self, lowered: jax.stages.Lowered, options: Mapping[str, Any] = {}
    ) -> cycles.Program:
        """See `Target`."""
        return cycles.read(lowered.compile(compiler_options=dict(options)).as_text() or "")

    def seconds(self, program: cycles.Program, trips: Callable[[str], int]) -> float:
        """See `Target`."""
        return program.total(trips) / CLOCKS[self.name]


def _dumped(folder: str, *endings: str) -> str:
    """The newest file of the first of these endings that there is."""
    for ending in endings:
        for file in sorted(Path(folder).glob(f"*{ending}"), reverse=True):
            return file.read_text()
    raise Unavailable(f"XLA dumps no file whose name ends in {' or '.join(endings)}")


def target(name: str) -> Target:
    """The target of that name, one of `NAMES`.

    Without a driver, jax's plugin for CUDA is enough; without a TPU, the library of TPUs is.

    Raises:
        Unavailable: there is no such plugin or library.
    """
    if name in TPUS:
        if jax.default_backend() != "tpu":
            for variable, value in ON_NO_TPU.items():
                os.environ.setdefault(variable, value)
        try:
            return Tpu(name, topologies.get_topology_desc(TPUS[name], "tpu").devices)
        except RuntimeError as error:  # jax's own say what is wrong with the library
            raise Unavailable(
                f"jax has no library of TPUs here, which compiles for a {name}: {TPU_LIBRARY}. "
                f"jax says: {error}"
            ) from None
    model = depth.devices[name]
    words = {"BANDWIDTH": f"{model.bandwidth:.0f}", "MEMORY": f"{model.memory:.0f}", "NAME": name}
    config = re.sub("|".join(words), lambda word: words[word[0]], HOPPER)
    try:
        found = topologies.get_topology_desc("", "cuda", target_config=config, topology="1x1x1")
    except NotImplementedError:
        how = PLUGIN.format(jax.__version__)
        raise Unavailable(
            f"jax has no plugin for CUDA here, which compiles for an {name}: {how}"
        ) from None
    return Gpu(name, found.devices)
