"""Equations that are one kernel on a GPU; the examples of `jax.vmap` are a batch axis of it."""

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters import mlir

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused import nvrtc
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.programs.calls import Call, is_jit_disabled


class Recurring(Protocol):
    """A kernel that repeats a step."""

    @property
    def step(self) -> FusedStep:
        """The step."""

    @property
    def length(self) -> int:
        """The number of steps."""

    def of_step(self, step: FusedStep) -> Self:
        """The same of another step.

        Raises:
            CannotFuse: there is no kernel.
        """

    def have_steps(self, count: int) -> list[bool]:
        """Which of ``count`` results have an axis of steps."""


class KernelCall(Call):
    """See `Call`; the parameter ``kernel`` is `Recurring`.

    Its operands are ``first`` constants of the program, then states, inputs of all steps and
    captured arrays. Of its results those with steps have them on axis 0.
    """

    def run_by(self, by_kernel: Callable[..., list[Any]]) -> None:
        """What runs on a GPU with kernels, of `nvrtc.launch`, operands and parameters."""

        def on_a_gpu(*operands: Any, **params: Any) -> list[Any]:
            if not params["kernel"].length or nvrtc.obstacle() or nvrtc.missing():
                return self.run(*operands, **params)
            return by_kernel(nvrtc.launch, *operands, **params)

        def eagerly(*operands: Any, **params: Any) -> list[Any]:
            if is_jit_disabled():  # jax would call this again
                return self.run(*operands, **params)
            found: list[Any] = jax.jit(partial(self.bind, **params))(*operands)
            return found

        self.def_impl(eagerly)
        mlir.register_lowering(self, mlir.lower_fun(on_a_gpu, multiple_results=True), "cuda")

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        kernel, first, size = params["kernel"], params["first"], names["axis_size"]
        states, of_steps = kernel.step.states, len(kernel.step.whole.invars)
        moves = [k < states or axis is not None for k, axis in enumerate(axes[first:])]
        try:
            step, constants = kernel.step.mapped(size, moves)
            kernel = kernel.of_step(step)
        except CannotFuse:
            return super()._map(operands, axes, names, params)
        places = [
            (int(states <= k < of_steps) if moving else None) for k, moving in enumerate(moves)
        ]
        given = zip(operands[first:], axes[first:], places, strict=True)
        arrays = [*operands[:first], *starmap(partial(_moved, size), given)]
        count = len(params["call_jaxpr"].out_avals)
        along = [int(has_steps) for has_steps in kernel.have_steps(count)]
        run = partial(self.run, call_jaxpr=params["call_jaxpr"])
        mapped = jax.vmap(run, [*axes[:first], *places], along, **names)

        def program(*given: Any) -> Leaves:  # a kernel may take more
            found: Leaves = mapped(*given[: len(operands)])
            return found

        arrays += constants
        closed = jax.make_jaxpr(program)(*arrays)
        return self.bind(*arrays, call_jaxpr=closed, kernel=kernel, first=first), along


def _moved(size: int, x: Array, axis: int | None, place: int | None) -> Array:
    """An array with its examples on another axis; of a state that has none, each is the same."""
    if axis is None:
        return x if place is None else jnp.broadcast_to(x, (size, *jnp.shape(x)))
    assert place is not None
    return jnp.moveaxis(x, axis, place)
