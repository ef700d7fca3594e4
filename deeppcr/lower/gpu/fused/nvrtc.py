"""CUDA C as a part of a program of jax: compiled to PTX by NVRTC, and called by XLA.

NVRTC is NVIDIA's compiler as a library. It comes with jax for CUDA (``pip install jax[cuda13]``).
XLA's call of PTX is not documented, so it is used with those versions of jax alone that have it.
"""

import ctypes
import hashlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.functions import INSTRUCTIONS
from deeppcr.lower.variants import platform, platforms

TARGET = "__gpu$xla.gpu.ptx"
KNOWN = (0, 10), (0, 13)  # versions of jax: from the first, before the second
# The driver compiles it for the GPU that there is, which may be newer. Quotients and roots are to 2
# units in the last place, as in programs of XLA.
COMPILER_OPTIONS = b"--prec-div=false", b"--prec-sqrt=false"
TURING, HOPPER = 75, 90  # the first with clusters of blocks
# Compiled once, in 20 ms (CUDA 13.0, a CPU core), and run once if there is a GPU.
TRIAL = 'extern "C" __global__ void kernel(const float* x, float* y) { y[0] = 2 * x[0]; }'


class CudaKernel(NamedTuple):
    """A kernel, and how it is started.

    Attributes:
        text: in CUDA C: ``kernel(*operands, *last, *outputs)``, of the operands that a step uses.
        blocks: of threads.
        threads: of a block.
        cluster: the number of blocks that work on one example; 0 where each thread has its own.
        ahead: steps that are read ahead, and between two tests of the loop.
    """

    text: str
    blocks: int
    threads: int
    cluster: int = 0
    ahead: int = 1

    @property
    def name(self) -> str:
        """Of its own, so that a profile tells kernels apart, and nothing takes one for another."""
        kind = "solve" if self.cluster else "scan"
        return f"fused_{kind}_{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


Launch = Callable[[CudaKernel, Sequence[Any], Sequence[Any]], list[Any]]
"""``(kernel, operands, types of the results) -> results``, in a program."""


@cache
def missing() -> str:
    """Why no kernels can be compiled here; empty if they can."""
    first, end = KNOWN
    if not first <= tuple(map(int, jax.__version__.split(".")[:2])) < end:
        return f"it is not known whether jax {jax.__version__} calls kernels"
    if _library() is None:
        return "NVRTC, which compiles kernels, is not installed; pip install jax[cuda13] brings it"
    try:
        ptx(TRIAL, "trial")
    except RuntimeError as error:
        return str(error)
    return ""


def obstacle() -> str:
    """Why the GPUs of this process run no kernels; empty if they do, or if there are no GPUs."""
    if not (devices := gpus()):  # of programs for another machine nothing is known
        return ""
    if min(map(capability, devices)) < TURING:
        return "kernels are for GPUs since Turing"
    return missing() or refused(devices[0])


def gpus() -> list[Any]:
    """Those of this process."""
    try:
        return list(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return []


def is_for_gpus() -> bool:
    """Whether programs may be lowered for a GPU."""
    return "cuda" in platforms()


def kernels_run() -> bool:
    """Whether programs are traced for GPUs that run kernels."""
    return platform() == "cuda" and not obstacle()


def capability(device: Any) -> int:
    """That of 9.0 is 90."""
    return round(10 * float(device.compute_capability))


def largest_cluster() -> int:
    """The most blocks that work on one example; without a GPU one, as any GPU has."""
    return limits.CLUSTER_BLOCKS if min(map(capability, gpus()), default=TURING) >= HOPPER else 1


@cache
def refused(device: Any) -> str:
    """Why a device does not run a kernel that XLA calls; empty if it does, as a trial shows."""
    one = jax.ShapeDtypeStruct((1,), np.float32)
    trial = jax.jit(lambda x: launch(CudaKernel(TRIAL, 1, 1), [x], [one])[0])
    try:
        (result,) = alone(device, lambda: np.asarray(trial(np.ones(1, np.float32))))
    except Exception as error:  # whatever the driver or a later XLA says
        return f"XLA calls no kernel here ({error})"
    return "" if result == 2 else "a kernel that XLA calls returns wrong results here"


def alone(device: Any, trial: Callable[[], Any]) -> Any:
    """The result of a trial on a device while a program is traced or compiled.

    In a thread of its own: there are no mesh, no other trace, and no settings of the caller's, but
    for the width of numbers.
    """
    has_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def run() -> Any:
        plain = jax.debug_nans(False), jax.debug_infs(False), jax.transfer_guard("allow")
        with jax.default_device(device), jax.enable_x64(has_x64), plain[0], plain[1], plain[2]:
            return trial()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def launch(kernel: CudaKernel, operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The results of a kernel, in a program for a GPU: see `Launch`."""
    name = kernel.name
    sizes = {
        "grid_x": kernel.blocks,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": kernel.threads,
        "block_y": 1,
        "block_z": 1,
        "shared_mem_bytes": 0,
    }
    call = jax.ffi.ffi_call(TARGET, list(results), custom_call_api_version=4)
    return list(
        call(
            *operands,
            name=name,
            kernel_type="ptx",
            kernel_data=ptx(kernel.text, name, HOPPER if kernel.cluster > 1 else TURING),
            output_indices=np.arange(len(results), dtype=np.int32) + len(operands),
            **{name: np.int32(size) for name, size in sizes.items()},
        )
    )


@cache
def ptx(text: str, name: str, architecture: int = TURING) -> str:
    """A program of CUDA C, compiled, with ``name`` for its kernel: each once a process."""
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    source = (INSTRUCTIONS + text).encode()
    target = f"--gpu-architecture=compute_{architecture}".encode()
    flags = [*COMPILER_OPTIONS, target, f"--define-macro=kernel={name}".encode()]
    options = (ctypes.c_char_p * len(flags))(*flags)
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), options)
    what = "ProgramLog" if failed else "PTX"
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    output = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, output)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC does not compile a kernel: {output.value.decode()}")
    return readable(output.value.decode(), _driver())


def readable(text: str, newest: tuple[int, int] | None) -> str:
    """PTX for a driver whose newest version of it is this one; None for any.

    NVRTC states its own version, which an older driver refuses, whatever the program uses. A kernel
    uses what the first version of CUDA 11 has, and hints, which are left out.
    """
    (stated,) = re.findall(r"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
    if newest is None or tuple(map(int, stated)) <= newest:
        return text
    text = re.sub(r"^\.version .*", ".version {}.{}".format(*newest), text, flags=re.MULTILINE)
    return re.sub(r"^\s*\.pragma .*\n", "", text, flags=re.MULTILINE)


@cache
def _driver() -> tuple[int, int] | None:
    """The newest version of PTX that the driver of this machine reads, if it has one."""
    try:
        driver, cuda = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return None
    driver.cuDriverGetVersion(ctypes.byref(cuda))
    return cuda.value // 1000 - 4, cuda.value % 1000 // 10  # CUDA 11.0 has PTX 7.0, and so on


@cache
def _library() -> Any:
    """NVRTC as jax for CUDA brings it; None without."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package and package.submodule_search_locations) or ():
        for file in Path(folder).glob("*/lib/libnvrtc.so.*"):
            for part in file.parent.glob("libnvrtc-builtins.so.*"):  # which it finds only if loaded
                ctypes.CDLL(str(part))
            return ctypes.CDLL(str(file))
    return None
