"""The sequential baselines of a chain, and the same chain by deeppcr.

XLA compiles `jax.lax.scan` to a loop that pays for every trip, on a GPU some microseconds.
``unroll`` puts several steps into a trip, and a Python loop under `jax.jit` leaves no trips at all,
at the price of a program as long as the chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax

import deeppcr
from deeppcr.lower.gpu.fused import CannotFuse
from deeppcr.lower.variants import platform
from experiments.bench.engine import Variant

SCAN = "lax.scan"
BACKPROP = "backprop"  # the adjoint that is backpropagation
UNROLLS = (4, 16)
LONGEST = 256  # steps of a Python loop: the time to compile it grows faster than its length

T = TypeVar("T")
Step = Callable[[Any, Any], Any]
Scan = Callable[..., tuple[Any, Any]]
"""``scan(f, init, xs, length=None) -> (carry, ys)``, as `jax.lax.scan`."""


def baselines(program: Callable[[Scan], T], length: int, longest: int = LONGEST) -> dict[str, T]:
    """A sequential program with every form of its loop, by name.

    Plain `jax.lax.scan` is the first.

    Args:
        program: makes the program, a function of arrays or a `Variant`, from the scan that it
            calls.
        length: L, the steps of the loop.
        longest: up to how many steps a Python loop is among the programs.

    Example:
        >>> def total(scan):
        ...     return lambda xs: scan(lambda sum, x: (sum + x, None), 0.0, xs)[0]
        >>> list(baselines(total, length=1000))
        ['lax.scan', 'lax.scan, unroll 4', 'lax.scan, unroll 16']
    """
    scans: dict[str, Scan] = {SCAN: lax.scan}
    for unroll in UNROLLS:
        if unroll < length:
            scans[f"{SCAN}, unroll {unroll}"] = partial(lax.scan, unroll=unroll)
    if length <= longest:
        scans["unrolled"] = unrolled
    return {name: program(scan) for name, scan in scans.items()}


def fused(program: Callable[[Scan], T], arguments: Any, batch_ndim: int = 0) -> dict[str, T]:
    """A sequential program whose loop is one kernel, and so is that of its gradient.

    Args:
        program: makes the program from the scan that it calls.
        arguments: of the program.
        batch_ndim: batch axes of the state, in which threads differ.

    Returns:
        The program by name; nothing if the program is not for an NVIDIA GPU, or its step has no
        such kernel.
    """
    if platform() != "cuda":
        return {}
    method = deeppcr.Sequential(fused=True)
    loop = partial(deeppcr.scan, method=method, adjoint="backprop", batch_ndim=batch_ndim)
    found = program(loop)
    variant = found if isinstance(found, Variant) else Variant(cast(Any, found))
    try:
        if variant.prepare:
            arguments = jax.eval_shape(variant.prepare, *arguments)
        jax.eval_shape(variant.run, *arguments)
    except CannotFuse:
        return {}
    return {"fused": found}


def unrolled(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None
) -> tuple[Any, Any]:
    """`jax.lax.scan` as a Python loop: every step is traced and compiled on its own."""
    steps = len(jax.tree.leaves(xs)[0]) if length is None else length
    carry, ys = init, []
    for step in range(steps):
        carry, y = f(carry, jax.tree.map(lambda x, step=step: x[step], xs))
        ys.append(y)
    return carry, jax.tree.map(lambda *rows: jnp.stack(rows), *ys)


def by_loop(step: Step, scan: Scan) -> Callable[[Any, Any], Any]:
    """All states of a chain by a loop: a function of the initial state and the inputs."""

    def body(z: Any, x: Any) -> tuple[Any, Any]:
        z = step(z, x)
        return z, z

    return lambda z0, inputs: scan(body, z0, inputs)[1]


def solver(step: Step, method: Any, batch_ndim: int = 0) -> Callable[[Any, Any], deeppcr.Solution]:
    """A solve by a method of deeppcr, of the same arguments."""
    return lambda z0, inputs: deeppcr.solve(
        deeppcr.Chain(step, inputs), z0, method=method, batch_ndim=batch_ndim
    )


def by_method(step: Step, method: Any, batch_ndim: int = 0) -> Variant:
    """All states of a chain by a method of deeppcr: a variant beside `by_loop`."""
    solve = solver(step, method, batch_ndim)
    return Variant(lambda z0, inputs: solve(z0, inputs).trajectory, solve=jax.jit(solve))


@dataclass(frozen=True)
class Setting:
    """What `deeppcr` is asked to run a chain by."""

    method: Any = "auto"
    adjoint: Any = "auto"

    @property
    def scan(self) -> Scan:
        """`deeppcr.scan`, set so."""
        return partial(deeppcr.scan, method=self.method, adjoint=self.adjoint, batch_ndim=1)
