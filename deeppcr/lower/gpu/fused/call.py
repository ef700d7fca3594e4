"""Equations that are one kernel on a GPU; the examples of `jax.vmap` are a batch axis of it."""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import mlir

from deeppcr.arrays import Leaves, abstract
from deeppcr.lower.gpu.fused import nvrtc
from deeppcr.lower.gpu.fused.kernel import FusedScan
from deeppcr.lower.gpu.fused.nvrtc import Launch
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.trial import fault
from deeppcr.programs.calls import Call, is_jit_disabled, with_operands


class KernelCall(Call):
    """See `Call`; the parameter ``kernel`` is a `FusedScan`.

    Its operands are ``first`` constants of the program, then states, inputs of all steps and
    captured arrays. Of its results the first are the states of all steps, on axis 0.
    """

    def __init__(self) -> None:
        super().__init__("kernel_call")
        self.def_impl(self._eagerly)
        mlir.register_lowering(self, mlir.lower_fun(self._on_a_gpu, multiple_results=True), "cuda")

    def _on_a_gpu(self, *operands: Any, **params: Any) -> Leaves:
        if not params["kernel"].length or nvrtc.obstacle() or nvrtc.missing():
            return self.run(*operands, **params)
        device = next(iter(nvrtc.gpus()), None)
        return self.by_kernel(nvrtc.launch, device, *operands, **params)

    def by_kernel(
        self,
        launch: Launch,
        device: Any,
        *operands: Any,
        call_jaxpr: Any,
        kernel: FusedScan,
        first: int,
    ) -> Leaves:
        """The results by a kernel; by XLA, with a warning, if a trial on ``device`` is wrong.

        ``device``: None if there is none, as where jax compiles for another machine. Then nothing
        is tried.
        """
        results = list(map(abstract, call_jaxpr.out_avals))
        of_kernel = operands[first:]
        wrong = device and fault(launch, device, kernel, results)
        if not wrong:
            return kernel.run(launch, results, of_kernel)
        states = ", ".join(f"{x.dtype}{list(x.shape)}" for x in of_kernel[: kernel.step.states])
        warnings.warn(
            f"{kernel.text.name} ({kernel.length} steps, a state of {states}) is not used: in a "
            f"trial on {device.device_kind}, {wrong}. XLA's program runs instead, with the same "
            "results. Please report this, with the step.",
            stacklevel=2,
        )
        return self.run(*operands, call_jaxpr=call_jaxpr)

    def _eagerly(self, *operands: Any, **params: Any) -> Leaves:
        if is_jit_disabled():  # jax would call this again
            return self.run(*operands, **params)
        return jax.jit(partial(self.bind, **params))(*operands)

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        kernel, first, size = params["kernel"], params["first"], names["axis_size"]
        states, of_steps = kernel.step.states, len(kernel.step.whole.invars)
        # The new axis of each array: behind the steps of inputs, in front of others; None for none.
        places = [
            int(states <= k < of_steps) if k < states or axis is not None else None
            for k, axis in enumerate(axes[first:])
        ]
        try:
            step = kernel.step.mapped(size, [place is not None for place in places])
            kernel = dataclasses.replace(kernel, step=step)
        except CannotFuse:
            return super()._map(operands, axes, names, params)
        along = [int(k < states) for k in range(len(params["call_jaxpr"].out_avals))]
        run = partial(self.run, call_jaxpr=params["call_jaxpr"])
        mapped = jax.vmap(run, [*axes[:first], *places], along, **names)
        arrays = list(map(partial(_on_axis, size), operands[first:], axes[first:], places))
        return call(kernel, partial(mapped, *operands[:first]), arrays), along


kernel_call_p = KernelCall()


def call(kernel: FusedScan, program: Callable[..., Leaves], operands: Leaves) -> Leaves:
    """The results of a kernel on a GPU, and of a program elsewhere.

    ``operands``: states, inputs of all steps and captured arrays.
    """
    closed, constants = with_operands(jax.make_jaxpr(program)(*operands))
    params = {"call_jaxpr": closed, "kernel": kernel, "first": len(constants)}
    return kernel_call_p.bind(*constants, *operands, **params)


def _on_axis(size: int, x: Array, axis: int | None, place: Any) -> Array:
    """An array with its examples on another axis; of a state that has none, each is the same."""
    if axis is None:
        return x if place is None else jnp.broadcast_to(x, (size, *jnp.shape(x)))
    return jnp.moveaxis(x, axis, place)
