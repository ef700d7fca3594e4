"""What was found in a list of layers, in words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from deeppcr.layers.reading import Reader, listed
from deeppcr.layers.repeated import Repeated
from deeppcr.layers.segments import Segment, segments
from deeppcr.layers.trial import types_of


@dataclasses.dataclass(frozen=True)
class Description:
    """The segments of a list of layers; printed, a table."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        rows = [("layers", "steps", "layers a step", "state", "")]
        for segment in self.segments:
            first, last = segment.start, segment.start + len(segment.layers) - 1
            state = _shapes(segment.layers[0].takes[1:])
            returned = _shapes(types_of(segment.layers[-1].returns)[1:])
            rows.append(
                (
                    str(first) if first == last else f"{first}..{last}",
                    str(segment.length),
                    str(segment.period),
                    state if state == returned else f"{state} -> {returned}",
                    f"in order: {segment.reason}" if segment.reason else "a chain",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]
            )
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def _shapes(types: Sequence[tuple[Any, Any, bool]]) -> str:
    return ", ".join(
        f"{np.dtype(dtype).name if hasattr(dtype, 'str') else dtype}{list(shape)}"
        for shape, dtype, _ in types
    )


def describe(layers: Any, x: Any) -> Description:
    """What `deeppcr.forward` finds in ``layers``: chains, with their length and period, and why the rest runs in order.

    Args:
        layers: as in `deeppcr.forward`.
        x: what the first layer takes: arrays, or `jax.ShapeDtypeStruct`.

    Returns:
        A `Description`, which prints as a table.

    Example:
        >>> layers = [jnp.sin, *[jax.tree_util.Partial(jnp.multiply, jnp.float32(c)) for c in range(100)]]
        >>> print(deeppcr.layers.describe(layers, jnp.ones(3)))
        layers  steps  layers a step  state
        0       1      1              float32[3]  in order: no neighbour is like it
        1..100  100    1              float32[3]  a chain
    """
    found = layers.layers() if isinstance(layers, Repeated) else listed(layers)
    reader = Reader()
    layers_read = reader.read(found, x, past_changes=True)
    if len(layers_read) < len(found):
        number = len(layers_read)
        raise ValueError(
            f"layers[{number}] cannot be called on shapes alone: {reader.stopped}. deeppcr.forward calls it in order, and looks "
            "at the rest after it."
        ) from reader.stopped
    return Description(tuple(segments(layers_read)))
