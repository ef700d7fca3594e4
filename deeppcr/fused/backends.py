"""Compilers of a kernel, all of Pallas, for the same function.

Mosaic GPU compiles for GPUs of compute capability 9 and later. Triton compiles for older ones,
which lack instructions that Mosaic takes for granted. Pallas interprets it on a CPU, for tests.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

HOPPER = 9.0  # the first compute capability that Mosaic GPU compiles for
Launch = Callable[[Callable[..., None], int, Sequence[Any]], Callable[..., Any]]
"""``(kernel, blocks, results) -> function of arrays``, with ``kernel(block, *references)``."""


def mosaic(kernel: Callable[..., None], blocks: int, out: Sequence[Any]) -> Callable[..., Any]:
    """The kernel, compiled by Mosaic GPU."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    run: Callable[..., Any] = pl.kernel(
        lambda *refs: kernel(lax.axis_index("block"), *refs),
        out_type=list(out),
        mesh=plgpu.Mesh(grid=(blocks,), grid_names=("block",)),
        # Threads share nothing: no barrier has to keep reads and writes apart.
        compiler_params=plgpu.CompilerParams(
            unsafe_no_auto_barriers=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
    )
    return run


def triton(kernel: Callable[..., None], blocks: int, out: Sequence[Any]) -> Callable[..., Any]:
    """The kernel, compiled by Triton."""
    from jax.experimental.pallas import triton as pltriton

    params = pltriton.CompilerParams(num_warps=4, num_stages=1)
    return interpreted(kernel, blocks, out, interpret=False, compiler_params=params)


def interpreted(
    kernel: Callable[..., None],
    blocks: int,
    out: Sequence[Any],
    interpret: bool = True,
    **options: Any,
) -> Callable[..., Any]:
    """The kernel, interpreted by XLA on any platform: slow, with the same arithmetic."""
    from jax.experimental import pallas as pl

    options |= {"out_shape": list(out), "grid": (blocks,), "interpret": interpret}
    run: Callable[..., Any] = pl.pallas_call(
        lambda *refs: kernel(pl.program_id(0), *refs), **options
    )
    return run


def native() -> Callable[..., Any]:
    """The backend for the GPUs of this process; without any, that for the newest."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return mosaic
    oldest = min(float(device.compute_capability) for device in devices)
    return mosaic if oldest >= HOPPER else triton
