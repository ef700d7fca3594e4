"""From a function to its `Cost`: trace it, and read the jaxpr as a graph."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import jax

from depth.cost import Cost, EstimateWarning, first_of, warn_of_bound
from depth.inner import reader
from depth.jaxprs import without_constants
from depth.loops import WhileLoop
from depth.paths import Paths
from depth.reader import TripCounts


def analyze(fn: Callable[..., Any], *args: Any, trip_counts: TripCounts = None) -> Cost:
    """The cost of ``fn(*args)``, from its jaxpr. Nothing is executed or allocated.

    A `jax.lax.scan` has the cost of its unrolled program, and a `jax.lax.cond` that of its deepest
    branch. A `jax.lax.while_loop` has the number of trips that is proven from its program, else the
    one that ``trip_counts`` has for it, else the one that the library that made it expects
    (`depth.Expected`), else the one that ``trip_counts`` has for all loops.

    Args:
        fn: A function that jax can trace.
        *args: Its arguments: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
        trip_counts: The number of trips of while loops where it is not proven: a dict from names or
            source lines of loops to integers >= 0, as ``{"newton iteration": 9, "sampler.py:12":
            40}``; or one integer for all loops of which nothing is expected, either. The name of a
            loop is the `jax.named_scope` around it.

    Returns:
        The `Cost`.

    Raises:
        TypeError: If ``fn`` is not callable, or ``trip_counts`` neither an integer nor a mapping.
        ValueError: If a number of trips is negative, or ``trip_counts`` names a loop that is not
            there, or whose number of trips is proven.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((8,), "float32")
        >>> depth.analyze(lambda x: jnp.sum(x * x), x).depth  # one product, then a tree over 8
        4

    References:
        The rules are those of google-deepmind/serial_depth, with exact loops and branches.
    """
    (cost,) = analyze_all((fn,), args, trip_counts)
    return cost


def analyze_all(
    fns: Sequence[Callable[..., Any]], args: Sequence[Any], trip_counts: TripCounts = None
) -> list[Cost]:
    """`analyze` for several functions of the same arguments.

    Each loop in ``trip_counts`` must belong to one of them.
    """
    costs = []
    loops = set[WhileLoop]()
    for fn in fns:
        if not callable(fn):
            raise TypeError(f"fn must be a function, but it is {type(fn).__name__}: {fn!r}")
        jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        cost, found = analyze_loops(jaxpr, trip_counts, jax.tree.structure(shapes))
        costs.append(cost)
        loops |= found
    _check_loops(trip_counts, loops)
    return costs


def analyze_jaxpr(jaxpr: Any, *, trip_counts: TripCounts = None) -> Cost:
    """`analyze` for a Jaxpr or ClosedJaxpr; ``by_output`` is a tuple."""
    if not hasattr(without_constants(jaxpr), "eqns"):
        raise TypeError(
            "jaxpr must be a Jaxpr or ClosedJaxpr, as jax.make_jaxpr returns, "
            f"but it is {type(jaxpr).__name__}"
        )
    cost, loops = analyze_loops(jaxpr, trip_counts)
    _check_loops(trip_counts, loops)
    return cost


def analyze_loops(
    jaxpr: Any, trip_counts: TripCounts = None, structure: Any = None
) -> tuple[Cost, set[WhileLoop]]:
    """The cost of a jaxpr, and the while loops whose number of trips is not proven."""
    _check_trip_counts(trip_counts)
    read = reader(trip_counts)
    block = read.block(jaxpr)
    listed = (tuple(read.unknown), tuple(read.expected))
    paths = Paths(block, structure)
    arrays = block.inputs + len(block.outputs)
    return Cost(*block.totals, *listed, ((paths, 1),), block, arrays), set(read.loops)


def compute_depth(jaxpr: Any) -> int:
    """The serial depth of a jaxpr. See `analyze`.

    Args:
        jaxpr: A Jaxpr or ClosedJaxpr, as `jax.make_jaxpr` returns it.

    Returns:
        The depth, in operations.

    Raises:
        TypeError: If ``jaxpr`` is neither.

    Warns:
        LowerBoundWarning: If a part of the program is unknown, so that the depth may be larger.
        EstimateWarning: If the number of trips of a loop is expected, not proven.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> depth.compute_depth(jax.make_jaxpr(jnp.sum)(jnp.ones(8)))
        3
    """
    return _exactly(analyze_jaxpr(jaxpr)).depth


def serial_depth(fn: Callable[..., Any], *args: Any, trip_counts: TripCounts = None) -> int:
    """The serial depth (span) of ``fn(*args)``: the longest chain of dependent operations.

    See `analyze`.

    Args:
        fn: As in `analyze`.
        *args: As in `analyze`.
        trip_counts: As in `analyze`.

    Returns:
        The depth, in operations.

    Raises:
        TypeError: As in `analyze`.
        ValueError: As in `analyze`.

    Warns:
        LowerBoundWarning: If a part of the program is unknown, so that the depth may be larger.
        EstimateWarning: If the number of trips of a loop is expected, not proven.

    Example:
        >>> import depth, jax, jax.numpy as jnp
        >>> w = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> x = jax.ShapeDtypeStruct((8,), "float32")
        >>> depth.serial_depth(lambda w, x: jnp.tanh(w @ x), w, x)  # products, a tree over 8, tanh
        5

    References:
        google-deepmind/serial_depth. R. P. Brent, *The Parallel Evaluation of General Arithmetic
        Expressions*, Journal of the ACM 21, 1974.
    """
    return _exactly(analyze(fn, *args, trip_counts=trip_counts)).depth


def _exactly(cost: Cost) -> Cost:
    """``cost``, after a warning if it is not exact: a number cannot say so itself."""
    warn_of_bound(cost, "depth", stacklevel=4)
    if cost.expected and not cost.unknown:
        warnings.warn(
            f"the depth is an estimate: {first_of(cost.expected)}. "
            "Give trip_counts={name: trips} for another number.",
            EstimateWarning,
            stacklevel=3,
        )
    return cost


def _check_trip_counts(trip_counts: Any) -> None:
    given = trip_counts if isinstance(trip_counts, Mapping) else {"trip_counts": trip_counts}
    if isinstance(trip_counts, bool) or not isinstance(trip_counts, int | Mapping | None):
        raise TypeError(
            "trip_counts must be a number of trips, or a mapping from names or source lines, "
            f"but it is {trip_counts!r}"
        )
    for key, trips in given.items():
        whole = isinstance(trips, int | None) and not isinstance(trips, bool)
        if not whole or (trips is not None and trips < 0):
            raise ValueError(
                f"a number of trips must be a whole number >= 0, but for {key!r} it is {trips!r}"
            )


def _check_loops(trip_counts: Any, loops: set[WhileLoop]) -> None:
    for key in trip_counts if isinstance(trip_counts, Mapping) else ():
        if not any(loop.has(key) for loop in loops):
            names = {loop.name for loop in loops if loop.path}
            near = get_close_matches(key, names, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            those = ", ".join(sorted(map(str, loops))) or "none"
            raise ValueError(
                f"trip_counts names {key!r}, where no while loop needs it{meant}; "
                f"those that do: {those}"
            )
