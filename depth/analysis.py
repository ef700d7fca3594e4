"""From a function to its `Cost`: trace it, and read the jaxpr as a graph."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from depth.cost import Cost
from depth.jaxprs import Location, without_constants
from depth.kernels import Kernels
from depth.reader import Reader, TripCounts, matches


def analyze(fn: Callable[..., Any], *args: Any, trip_counts: TripCounts = None) -> Cost:
    """The cost of ``fn(*args)``, from its jaxpr. Nothing is executed, and nothing is allocated.

    A `jax.lax.scan` counts as its unrolled program, a branch as the deepest of its branches, a
    `jax.lax.while_loop` as often as it provably turns, or as ``trip_counts`` says.

    Args:
        fn: A function that jax can trace.
        *args: Its arguments: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
        trip_counts: How often while loops turn that do not say it themselves: one number for all,
            or a number for each source line, as ``{"sampler.py:12": 40}``.

    Returns:
        The `Cost`.

    Raises:
        TypeError: If ``fn`` is no function, or ``trip_counts`` no number and no mapping.
        ValueError: If a number of turns is negative, or a line in ``trip_counts`` has no such loop.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((8,), "float32")
        >>> depth.analyze(lambda x: jnp.sum(x * x), x).depth  # one product, then a tree over 8
        4

    References:
        The rules are those of google-deepmind/serial_depth; loops and branches are exact here.
    """
    (cost,) = analyze_all((fn,), args, trip_counts)
    return cost


def analyze_all(
    fns: Sequence[Callable[..., Any]], args: Sequence[Any], trip_counts: TripCounts = None
) -> list[Cost]:
    """As `analyze`, of several functions of the same arguments.

    Each line in ``trip_counts`` has to be of one of them.
    """
    costs, loops = [], set[Location]()
    for fn in fns:
        if not callable(fn):
            raise TypeError(f"fn must be a function, but it is {type(fn).__name__}: {fn!r}")
        jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        cost, found = _analyze(without_constants(jaxpr), trip_counts, jax.tree.structure(shapes))
        costs.append(cost)
        loops |= found
    _check_lines(trip_counts, loops)
    return costs


def analyze_jaxpr(jaxpr: Any, *, trip_counts: TripCounts = None) -> Cost:
    """As `analyze`, of a Jaxpr or ClosedJaxpr; ``by_output`` is a tuple."""
    proper = without_constants(jaxpr)
    if not hasattr(proper, "eqns"):
        raise TypeError(
            "jaxpr must be a Jaxpr or ClosedJaxpr, as of jax.make_jaxpr, "
            f"but it is {type(jaxpr).__name__}"
        )
    cost, loops = _analyze(proper, trip_counts)
    _check_lines(trip_counts, loops)
    return cost


def analyze_body(jaxpr: Any, consts: int, kept: Sequence[int]) -> Cost:
    """As `analyze_jaxpr`, of the body of a loop, to be repeated.

    Args:
        jaxpr: What every iteration does.
        consts: How many of its first inputs are the same in every iteration; what follows from them
            alone is done once.
        kept: Bytes of each array that is kept of every iteration.
    """
    block = Reader().block(without_constants(jaxpr))
    return Cost.of(block, program=Kernels().step(block, consts, tuple(kept)))


def _analyze(
    jaxpr: Any, trip_counts: TripCounts, structure: Any = None
) -> tuple[Cost, set[Location]]:
    """The cost, and the lines of while loops whose number of iterations is not proven."""
    _check_trip_counts(trip_counts)
    reader = Reader(trip_counts)
    block = reader.block(jaxpr)
    return Cost.of(block, tuple(reader.unknown), structure), set(reader.loops)


def compute_depth(jaxpr: Any) -> int:
    """The serial depth of a Jaxpr or ClosedJaxpr, as `jax.make_jaxpr` returns it; see `analyze`."""
    return analyze_jaxpr(jaxpr).depth


def serial_depth(fn: Callable[..., Any], *args: Any, trip_counts: TripCounts = None) -> int:
    """The serial depth of ``fn(*args)``: the longest chain of operations that wait for one another.

    See `analyze`.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> w = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> x = jax.ShapeDtypeStruct((8,), "float32")
        >>> depth.serial_depth(lambda w, x: jnp.tanh(w @ x), w, x)  # products, a tree over 8, tanh
        5
    """
    return analyze(fn, *args, trip_counts=trip_counts).depth


def by_output(fn: Callable[..., Any], *args: Any, trip_counts: TripCounts = None) -> Any:
    """The serial depth of every output of ``fn(*args)``, in a pytree like its result."""
    return analyze(fn, *args, trip_counts=trip_counts).by_output


def _check_trip_counts(trip_counts: Any) -> None:
    if trip_counts is not None and (
        isinstance(trip_counts, bool) or not isinstance(trip_counts, int | Mapping)
    ):
        raise TypeError(
            "trip_counts must be a number of turns or a mapping from source lines, "
            f"but it is {trip_counts!r}"
        )
    items = (
        trip_counts.items() if isinstance(trip_counts, Mapping) else [("trip_counts", trip_counts)]
    )
    for key, turns in items:
        if turns is not None and (
            isinstance(turns, bool) or not isinstance(turns, int) or turns < 0
        ):
            raise ValueError(
                f"a number of turns must be a whole number >= 0, but for {key!r} it is {turns!r}"
            )


def _check_lines(trip_counts: Any, loops: set[Location]) -> None:
    for key in trip_counts if isinstance(trip_counts, Mapping) else ():
        if not any(matches(key, where) for where in loops):
            lines = (
                ", ".join(sorted(f"{os.path.basename(where.file)}:{where.line}" for where in loops))
                or "none"
            )
            raise ValueError(
                f"trip_counts names {key!r}, where no while loop needs it; those that do: {lines}"
            )
