"""The sequential programs that a parallel one has to beat: one loop, run in every way that is known to make it fast.

XLA compiles `jax.lax.scan` to a loop that pays for every turn, on a GPU some microseconds. ``unroll`` puts several steps into a
turn, and a Python loop under `jax.jit` leaves no turns at all, at the price of a program as long as the chain.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

SCAN = "lax.scan"
UNROLLS = (4, 16)
LONGEST = 256  # steps of a Python loop: the time to compile it grows faster than its length

T = TypeVar("T")
Scan = Callable[..., tuple[Any, Any]]
"""``scan(f, init, xs, length=None) -> (carry, ys)``, as `jax.lax.scan`."""


def baselines(program: Callable[[Scan], T], length: int, longest: int = LONGEST) -> dict[str, T]:
    """A sequential program by every way to run its loop, by name; plain `jax.lax.scan` is the first.

    Args:
        program: makes the program, a function of arrays or a `Program`, from the scan that it shall call.
        length: L, the steps of the loop.
        longest: up to how many steps a Python loop is among the ways.

    Returns:
        The programs by name.

    Example:
        >>> def total(scan):
        ...     return lambda xs: scan(lambda sum, x: (sum + x, None), 0.0, xs)[0]
        >>> list(baselines(total, length=1000))
        ['lax.scan', 'lax.scan, unroll 4', 'lax.scan, unroll 16']
    """
    ways: dict[str, Scan] = {SCAN: lax.scan}
    ways |= {
        f"{SCAN}, unroll {unroll}": partial(lax.scan, unroll=unroll)
        for unroll in UNROLLS
        if unroll < length
    }
    if length <= longest:
        ways["unrolled"] = unrolled
    return {name: program(scan) for name, scan in ways.items()}


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
