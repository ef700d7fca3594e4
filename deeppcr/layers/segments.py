"""Finding chains in a list of layers: runs of layers alike, with or without a period, and single layers between them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from deeppcr.layers.reading import Layer

LONGEST_PERIOD = 64


@dataclasses.dataclass(frozen=True)
class Segment:
    """Neighbouring layers.

    Attributes:
        layers: the layers.
        start: the place of the first in the list.
        period: how many layers make a step; those so far apart are alike.
        reason: why they run in order, one after another; "" for a chain.
    """

    layers: Sequence[Layer]
    start: int
    period: int = 1
    reason: str = ""

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.layers) // self.period


def segments(layers: Sequence[Layer]) -> list[Segment]:
    """Divide ``layers``, from the first on, into chains and single layers; of two ways, the one of the shorter period."""
    found: list[Segment] = []
    at = 0
    while at < len(layers):
        reason = why_alone(layers[at])
        period, length = (1, 1) if reason else longest_run(layers, at)
        if length == 1:
            reason = reason or _why_no_run(layers, at)
        found.append(Segment(layers[at : at + period * length], at, period, reason))
        at += period * length
    return found


def why_alone(layer: Layer) -> str:
    """Why a layer cannot be part of a chain; "" if it can."""
    if layer.changes:
        return f"calling it changes {', '.join(layer.changes)}"
    if layer.effects:
        return layer.effects
    if layer.needs_weak:
        return "its arrays are weakly typed, which a stack of them cannot be"
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(layer.returns)):
        return "it returns what is not floating"
    return ""


def _why_no_run(layers: Sequence[Layer], at: int) -> str:
    return (
        "no neighbour is like it" if layers[at].keeps_type else "it changes the type of the state"
    )


def longest_run(layers: Sequence[Layer], at: int) -> tuple[int, int]:
    """The period and the number of steps of the chain that takes most layers from ``at`` on; (1, 1) if there is none."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(layers) - at) // 2) + 1):
        if layers[at].takes == layers[at + period].takes:  # so a step returns what it takes
            length = _repeats(layers, at, period)
            if length > 1 and period * length > best[0] * best[1]:
                best = (period, length)
        if best[0] * best[1] == len(layers) - at or why_alone(layers[at + period]):
            break
    return best


def _repeats(layers: Sequence[Layer], at: int, period: int) -> int:
    """How often the ``period`` layers from ``at`` on occur one behind the other."""
    end = at + period
    while (
        end < len(layers)
        and layers[end].kind == layers[end - period].kind
        and layers[end].takes == layers[end - period].takes
    ):
        end += 1
    return (end - at) // period
