"""Segments of a list of layers: chains of equal layers, and single layers between them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.layers.parts import as_callable
from deeppcr.layers.reading import Layer, Reader, listed, locate, name_of_layer
from deeppcr.layers.repeated import Repeated, stack_layers
from deeppcr.layers.trial import types_of

LONGEST_PERIOD = 64
# The equations up to which a CPU program of single layers compiles faster than a chain of them: 180
# to 420 with gradients, by the kind of layer (jax 0.10.2, 2 cores).
SHORT = 256


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive layers.

    Attributes:
        layers: the layers.
        start: the index of the first in the list.
        period: the number of layers in a step.
        reason: why they are called one by one; "" for a chain.
    """

    layers: Sequence[Layer]
    start: int
    period: int = 1
    reason: str = ""

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.layers) // self.period

    @property
    def is_short(self) -> bool:
        """Whether its layers compile faster one by one."""
        return sum(layer.trial.size for layer in self.layers) <= SHORT

    def stacked(self) -> Repeated:
        """The chain."""
        return stack_layers(self.layers, self.period)

    def one_by_one(self, x: Any) -> Any:
        """Call the layers; an error names the index of its layer."""
        for number, layer in enumerate(self.layers, self.start):
            x = _call(layer.given, x, number)
        return x


@dataclasses.dataclass(frozen=True)
class Description:
    """The segments of a list of layers; printed, a table."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        rows = [("layers", "steps", "layers per step", "state", ""), *map(_row, self.segments)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def describe(layers: Any, x: Any) -> Description:
    """Show how `deeppcr.forward` runs ``layers``: as chains, or one by one and why.

    A chain is solved as the arguments of `deeppcr.forward` say. Without any, a CPU may call its
    layers one by one, too, because that compiles faster: see there.

    Args:
        layers: as in `deeppcr.forward`.
        x: the input of the first layer: arrays, or `jax.ShapeDtypeStruct`.

    Returns:
        a description that prints as a table: indices of the layers, steps of the chain, layers in
        a step, type of the state, and the reason why layers run in order.

    Raises:
        ValueError: a layer depends on values, not only on shapes.
        TypeError: ``layers`` is not a list of layers.

    Example:
        >>> scale = lambda c: jax.tree_util.Partial(jnp.multiply, jnp.float32(c))
        >>> layers = [jnp.sin, *[scale(c) for c in range(100)]]
        >>> print(deeppcr.layers.describe(layers, jnp.ones(3)))
        layers  steps  layers per step  state
        0       1      1                float32[3]  sequential: no equal neighbour
        1..100  100    1                float32[3]  a chain
    """
    found = layers.layers() if isinstance(layers, Repeated) else listed(layers)
    reader = Reader()
    layers_read = reader.read(found, x, past_changes=True)
    if reader.stopped:
        raise ValueError(
            f"layers[{len(layers_read)}] cannot be called on shapes alone: {reader.stopped}. "
            "deeppcr.forward calls it directly, and inspects later layers after that."
        ) from reader.stopped
    return Description(tuple(segments(layers_read)))


def apply_layers(layers: Any, x: Any, solve: Callable[[Segment, Any], Any]) -> Any:
    """Apply a list of layers to ``x``: chains by ``solve(segment, x)``, all others one by one.

    Layers are inspected in order, up to one that changes something when it is called, or that
    cannot be inspected. That one is called, and later layers are inspected after the call: they may
    read what it changed.
    """
    given, reader, start = listed(layers), Reader(), 0
    while start < len(given):
        # The first layer may distinguish a numpy array from a traced one: it is called directly.
        is_of_jax = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))
        found = reader.read(given[start:], x) if is_of_jax else []
        for segment in segments(found, start):
            x = segment.one_by_one(x) if segment.reason else solve(segment, x)
        start += len(found)
        if start < len(given) and not (found and found[-1].trial.acts):
            x, start = _call(given[start], x, start), start + 1
        reader.forget()
    return x


def _call(layer: Any, x: Any, number: int) -> Any:
    """``layer(x)``; an error names the ``number`` of the layer."""
    try:
        return as_callable(layer)(x)
    except Exception as error:
        locate(error, f"layers[{number}] ({name_of_layer(layer)})", x)
        raise


def segments(layers: Sequence[Layer], offset: int = 0) -> list[Segment]:
    """Divide ``layers`` into chains, with the shortest periods, and single layers.

    ``offset``: the index of the first in the list.
    """
    found: list[Segment] = []
    start = 0
    while start < len(layers):
        reason = why_alone(layers[start])
        period, length = (1, 1) if reason else longest_run(layers, start)
        if length == 1 and not reason:
            keeps_type = layers[start].takes == layers[start].trial.types
            reason = "no equal neighbour" if keeps_type else "it changes shape or dtype"
        own = layers[start : start + period * length]
        found.append(Segment(own, offset + start, period, reason))
        start += period * length
    return found


def why_alone(layer: Layer) -> str:
    """Why a layer cannot be part of a chain; "" if it can."""
    if layer.trial.acts:
        return layer.trial.acts
    if layer.trial.needs_weak:
        return "its arrays are weakly typed, which a stack of them cannot be"
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(layer.returns)):
        return "it returns non-floating arrays"
    return ""


def longest_run(layers: Sequence[Layer], start: int) -> tuple[int, int]:
    """The period and number of steps of the longest chain from ``start`` on; (1, 1) for none."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(layers) - start) // 2) + 1):
        if layers[start].takes == layers[start + period].takes:  # so a step returns what it takes
            length = _repeats(layers, start, period)
            if length > 1 and period * length > best[0] * best[1]:
                best = (period, length)
        if best[0] * best[1] == len(layers) - start or why_alone(layers[start + period]):
            break
    return best


def _repeats(layers: Sequence[Layer], start: int, period: int) -> int:
    """The number of consecutive repetitions of the ``period`` layers from ``start`` on."""
    end = start + period
    while (
        end < len(layers)
        and layers[end].kind == layers[end - period].kind
        and layers[end].takes == layers[end - period].takes
    ):
        end += 1
    return (end - start) // period


def _row(segment: Segment) -> tuple[str, ...]:
    first, last = segment.start, segment.start + len(segment.layers) - 1
    state = _shapes(segment.layers[0].takes)
    returned = _shapes(types_of(segment.layers[-1].returns))
    return (
        str(first) if first == last else f"{first}..{last}",
        str(segment.length),
        str(segment.period),
        state if state == returned else f"{state} -> {returned}",
        f"sequential: {segment.reason}" if segment.reason else "a chain",
    )


def _shapes(types: Sequence[Any]) -> str:
    _, *arrays = types
    return ", ".join(
        f"{np.dtype(dtype).name if hasattr(dtype, 'str') else dtype}{list(shape)}"
        for shape, dtype, _ in arrays
    )
