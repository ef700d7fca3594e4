"""Programs on many devices beside the same on one: compiled, compared, and timed in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.common.collectives import Sent, collectives, written, written_bytes
from experiments.common.timing import Build, Timing, build, interleave
from experiments.common.versus import Row, distance

TOLERANCE = 1e-5  # relative to the largest entry: float32 sums in another order
HIDDEN = (
    "part",
    "w",
    "batch",
    "loss, one device",
    "min ms",
    "max ms",
    "repeats",
    "trace s",
)  # of a printed row


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


@dataclass(frozen=True)
class Measured:
    """A program that was compiled and called.

    Attributes:
        build: what it was compiled to.
        result: of the first call.
        timing: of the others.
    """

    build: Build
    result: Any
    timing: Timing

    def cells(self, turns: int = 1) -> Row:
        """Times of one of the training steps that a call makes, of compiling, and memory."""
        ms = 1e3 / turns
        found: Row = {
            "ms": ms * self.timing.median,
            "min ms": ms * self.timing.minimum,
            "max ms": ms * self.timing.maximum,
        }
        found |= {
            "repeats": self.timing.count,
            "trace s": self.build.lower,
            "compile s": self.build.compile,
        }
        if self.build.temporary_bytes is not None:
            found["temp MB"] = self.build.temporary_bytes / 1e6
        return found

    def sent(self) -> Row:
        """Its collectives, as they are kept."""
        return {
            kind: sent._asdict() for kind, sent in collectives(self.build.call.as_text()).items()
        }  # type: ignore[attr-defined]


def mesh_of(sizes: Sequence[int], names: Sequence[str]) -> Mesh:
    """A mesh of the first devices, on which the compiler decides what is left open."""
    number = int(np.prod(sizes))
    return jax.make_mesh(
        tuple(sizes),
        tuple(names),
        axis_types=(AxisType.Auto,) * len(names),
        devices=jax.devices()[:number],
    )


def put(tree: Any, mesh: Mesh, *spec: Any) -> Any:
    """Arrays on a mesh, each sharded as ``P(*spec)``."""
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


def in_turn(
    programs: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], repeats: int
) -> dict[str, Measured | str]:
    """Compile programs with their arguments, call each once, and then time them in turn.

    Returns:
        What came of each; for one that XLA cannot compile or run, for want of memory for example, what it says.
    """
    begun: dict[str, tuple[Build, Any]] = {}
    found: dict[str, Measured | str] = {}
    for name, (program, arguments) in programs.items():
        try:
            built = build(program, *arguments)
            begun[name] = built, jax.block_until_ready(built.call(*arguments))
        except jax.errors.JaxRuntimeError as error:
            found[name] = f"failed: {str(error).strip().partition(chr(10))[0][:200]}"

    def call(name: str) -> Callable[[], Any]:
        return lambda: begun[name][0].call(*programs[name][1])

    times = interleave(
        {name: call(name) for name in begun}, repeats, warmup=0
    )  # all of them have been called
    return found | {name: Measured(*begun[name], times[name]) for name in begun}


def measure(case: Case, repeats: int) -> Row:
    """The row of a case; where its result is not that of one device, a note says so, and it has no speedup."""
    here = (
        case.here
        if case.here is not None
        else jax.device_put(jax.device_get(case.arguments), jax.devices()[0])
    )
    found = in_turn(
        {"many": (case.program, case.arguments), "one": (case.alone or case.program, here)}, repeats
    )
    many, one = found["many"], found["one"]
    if isinstance(many, str) or isinstance(one, str):
        return {
            "row": case.name,
            "note": many if isinstance(many, str) else f"on one device: {one}",
        }
    compared, loss = case.compared or (lambda result: result), case.loss or mean_square
    losses, error = (
        (loss(many.result), loss(one.result)),
        distance(compared(many.result), compared(one.result)),
    )
    row = {
        "row": case.name,
        "result": _layout(many.result),
        "loss": losses[0],
        "loss, one device": losses[1],
        "difference": abs(losses[0] - losses[1]) / abs(losses[1]),
        "error": error,
        **many.cells(case.turns),
        "ms, one device": one.cells(case.turns)["ms"],
    }
    if error <= case.tolerance:
        row["over one device"] = one.timing.median / many.timing.median
    else:
        row["note"] = wrong(error)
    row["collectives"] = many.sent()
    if case.parameters is not None:
        row["parameter bytes"] = bytes_here(case.arguments[case.parameters])
    return row


def wrong(error: float) -> str:
    """The note of a result that is not what it has to be."""
    return f"wrong: differs from one device by {error:.1e}"


def shown(row: Row) -> Row:
    """A row as it is printed: bytes and what is sent in words."""
    cells: Row = {}
    for key, value in row.items():
        if key in HIDDEN:
            continue
        if key == "collectives":
            cells[key] = written({kind: Sent(**sent) for kind, sent in value.items()})
        elif key.endswith("bytes"):
            cells[key] = written_bytes(value)
        elif key in ("difference", "error"):
            cells[key] = f"{value:.0e}" if value else "0"
        else:
            cells[key] = value
    return cells


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
    spec = (
        str(sharding.spec).replace("PartitionSpec", "P")
        if isinstance(sharding, NamedSharding)
        else "one device"
    )
    return f"{spec}: {len(sharding.device_set)} x {sharding.shard_shape(result.shape)}"
