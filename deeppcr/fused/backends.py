"""Compilers of a kernel, all of Pallas, for the same function.

Mosaic GPU compiles for GPUs of compute capability 9 and later. Triton compiles for older ones,
which lack instructions that Mosaic takes for granted. Pallas interprets it on a CPU, for tests.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HOPPER = 9.0  # the first compute capability that Mosaic GPU compiles for
Aliases = Mapping[int, int]
Launch = Callable[[Callable[..., None], int, Sequence[Any], Aliases], Callable[..., Any]]
"""``(kernel, blocks, results, aliases) -> function of arrays``.

``kernel(block, *references)``, of arrays and results. ``aliases`` has the array whose memory a
result may take, by their numbers: ``{array: result}``.
"""


def mosaic(
    kernel: Callable[..., None], blocks: int, out: Sequence[Any], aliases: Aliases
) -> Callable[..., Any]:
    """The kernel, compiled by Mosaic GPU."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    own = [k for k in range(len(out)) if k not in aliases.values()]

    def whole(*refs: Any) -> None:
        arrays, results = refs[: len(refs) - len(own)], refs[len(refs) - len(own) :]
        found = dict(zip(own, results, strict=True))
        found |= {result: arrays[array] for array, result in aliases.items()}
        kernel(lax.axis_index("block"), *arrays, *(found[k] for k in range(len(out))))

    run = pl.kernel(
        whole,
        out_type=[out[k] for k in own],
        mesh=plgpu.Mesh(grid=(blocks,), grid_names=("block",)),
        # Threads share nothing: no barrier has to keep reads and writes apart.
        compiler_params=plgpu.CompilerParams(
            unsafe_no_auto_barriers=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
    )

    def call(*arrays: Any) -> list[Any]:
        def inside(state: tuple[dict[int, Any], list[Any]]) -> None:
            taken, results = state
            found = run(*(taken.get(k, x) for k, x in enumerate(arrays)))
            for ref, result in zip(results, found, strict=True):
                ref[...] = result

        # The memory of a reference that a kernel takes is what it writes to.
        taken = {array: arrays[array] for array in aliases}
        unwritten = [jnp.zeros(out[k].shape, out[k].dtype) for k in own]
        taken, results = pl.run_state(inside)((taken, unwritten))
        found = dict(zip(own, results, strict=True))
        found |= {result: taken[array] for array, result in aliases.items()}
        return [found[k] for k in range(len(out))]

    return call


def triton(
    kernel: Callable[..., None], blocks: int, out: Sequence[Any], aliases: Aliases
) -> Callable[..., Any]:
    """The kernel, compiled by Triton."""
    from jax.experimental.pallas import triton as pltriton

    params = pltriton.CompilerParams(num_warps=4, num_stages=1)
    return _called(kernel, blocks, out, aliases, compiler_params=params)


def interpreted(
    kernel: Callable[..., None], blocks: int, out: Sequence[Any], aliases: Aliases
) -> Callable[..., Any]:
    """The kernel, interpreted by XLA on any platform: slow, with the same arithmetic."""
    return _called(kernel, blocks, out, aliases, interpret=True)


def _called(
    kernel: Callable[..., None], blocks: int, out: Sequence[Any], aliases: Aliases, **options: Any
) -> Callable[..., Any]:
    from jax.experimental import pallas as pl

    def whole(*refs: Any) -> None:
        kernel(pl.program_id(0), *refs)

    return pl.pallas_call(
        whole, out_shape=list(out), grid=(blocks,), input_output_aliases=dict(aliases), **options
    )


def native() -> Callable[..., Any]:
    """The backend for the GPUs of this process; without any, that for the newest."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return mosaic
    oldest = min(float(device.compute_capability) for device in devices)
    return mosaic if oldest >= HOPPER else triton
