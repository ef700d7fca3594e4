"""One row: a program on many devices beside the same on one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.common.collectives import Sent, collectives, written, written_bytes
from experiments.common.timing import build, interleave

Row = dict[str, Any]
TOLERANCE = 1e-5  # relative to the largest entry: float32 sums in another order


@dataclass(frozen=True)
class Case:
    """A program and its arguments, which say on which devices it runs.

    Attributes:
        name: what the row shows.
        program: what is measured; its result is that of ``alone``.
        arguments: arrays on the devices of the mesh.
        alone: the same program for one device; None for ``program`` itself.
        here: arguments of ``alone``; None for the same numbers.
        loss: of the result; None for the mean of its squares, where nothing is trained.
        parameters: which argument is to be learned, if one is.
        turns: how many training steps a call makes.
        compared: what of the result has to be that of one device; None for all of it.
        tolerance: for that, relative to its largest entry.
    """

    name: str
    program: Callable[..., Any]
    arguments: tuple[Any, ...]
    alone: Callable[..., Any] | None = None
    here: tuple[Any, ...] | None = None
    loss: Callable[[Any], float] | None = None
    parameters: int | None = None
    turns: int = 1
    compared: Callable[[Any], Any] | None = None
    tolerance: float = TOLERANCE


def mesh_of(sizes: Sequence[int], names: Sequence[str]) -> Mesh:
    """A mesh of the first devices, on which the compiler decides what is left open."""
    number = int(np.prod(sizes))
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=(AxisType.Auto,) * len(names), devices=jax.devices()[:number])


def put(tree: Any, mesh: Mesh, *spec: Any) -> Any:
    """Arrays on a mesh, each sharded as ``P(*spec)``."""
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


def measure(case: Case, repeats: int) -> Row:
    """The row of a case; its result is checked before it is timed.

    Raises:
        AssertionError: the result is not that of one device.
    """
    here = case.here if case.here is not None else jax.device_put(jax.device_get(case.arguments), jax.devices()[0])
    many, one = build(case.program, *case.arguments), build(case.alone or case.program, *here)
    result, expected = jax.block_until_ready(many.call(*case.arguments)), jax.block_until_ready(one.call(*here))
    compared = case.compared or (lambda result: result)
    check_equal(case.name, compared(result), compared(expected), case.tolerance)
    loss = case.loss or mean_square
    losses = loss(result), loss(expected)
    times = interleave({"many": lambda: many.call(*case.arguments), "one": lambda: one.call(*here)}, repeats)
    return {
        "row": case.name,
        "result": _layout(result),
        "loss": losses[0],
        "loss, one device": losses[1],
        "difference": abs(losses[0] - losses[1]) / abs(losses[1]),
        "ms": 1e3 * times["many"].median / case.turns,
        "ms, one device": 1e3 * times["one"].median / case.turns,
        "collectives": {kind: sent._asdict() for kind, sent in collectives(many.call.as_text()).items()},  # type: ignore[attr-defined]
        "parameter bytes": None if case.parameters is None else bytes_here(case.arguments[case.parameters]),
        "temporary bytes": many.temporary_bytes,
    }


def shown(row: Row) -> Row:
    """A row as it is printed: bytes and what is sent in words, blanks for what there is not."""
    cells: Row = {}
    for key, value in row.items():
        if key == "part":
            continue
        if value is None:
            cells[key] = ""
        elif key == "collectives":
            cells[key] = written({kind: Sent(**sent) for kind, sent in value.items()})
        elif key.endswith("bytes"):
            cells[key] = written_bytes(value)
        elif key == "difference":
            cells[key] = f"{value:.0e}" if value else "0"
        else:
            cells[key] = value
    return cells


def check_equal(name: str, result: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """All entries of a result are what they are expected to be.

    Raises:
        AssertionError: they are not.
    """
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        got, wanted = np.asarray(a, np.float64), np.asarray(b, np.float64)
        error = np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30)
        if not error <= tolerance:
            raise AssertionError(f"{name}: differs from one device by {error:.1e}, relative to the largest entry")


def bytes_here(tree: Any) -> int:
    """The bytes of arrays on the first of their devices."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def mean_square(result: Any) -> float:
    """The mean of the squares of an array, summed in float64 by the host."""
    return float(np.square(np.asarray(result, np.float64)).mean())


def _layout(result: Any) -> str:
    """How a result lies, if it is one array: "P('a', 'b'): 8 x (4, 8)"."""
    if not isinstance(result, jax.Array):
        return ""
    sharding = result.sharding
    spec = str(sharding.spec).replace("PartitionSpec", "P") if isinstance(sharding, NamedSharding) else "one device"
    return f"{spec}: {len(sharding.device_set)} x {sharding.shard_shape(result.shape)}"
