"""Segments of a list of layers: chains of equal layers, and single layers between them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from deeppcr.extend import abstract, folded
from deeppcr.layers.reading import Layer, listed, read, shape_of, types_of
from deeppcr.layers.stack import Stack, stack_layers
from depth.report import table

LONGEST_PERIOD = 64
NO_NEIGHBOUR = "no equal neighbour"
# The equations up to which a CPU program of single layers compiles faster than a chain of them. The
# gradient of 128 MLPs compiles in 1.1 s for 2.2, of 256 in 2.2 for 3.1 (some 1,600 equations); of
# 64 modules with 24 equations each in 2.2 for 1.8 (jax 0.10.2; 0.12 agrees; 2 cores).
SHORT = 1536


class Segment(NamedTuple):
    """Consecutive layers.

    Attributes:
        start: the index of the first in the list.
        length: the number of steps.
        period: the number of layers in a step.
        reason: why they run one by one; "" for a chain.
        state: the types of the first input, and of the last output if it differs, as text.
    """

    start: int
    length: int
    period: int
    reason: str
    state: str

    @property
    def stop(self) -> int:
        """The index after the last."""
        return self.start + self.length * self.period

    def stack(self, every: Sequence[Layer]) -> Stack:
        """The chain, of ``every`` layer of the list."""
        layers = every[self.start : self.stop]
        parts = [(layer.code, layer.arrays) for layer in layers]
        return stack_layers(parts, self.period, [arrays for _, arrays in parts])


def is_short(layers: Sequence[Layer], count: int | None = None) -> bool:
    """Whether layers compile faster one by one: these, or ``count`` layers such as these."""
    equations = sum(layer.size for layer in layers)
    return equations * (count or len(layers)) <= SHORT * len(layers)


@dataclasses.dataclass(frozen=True)
class Description:
    """The segments of a list of layers; printed, a table."""

    segments: Sequence[Segment]

    def __str__(self) -> str:
        rows = []
        for each in self.segments:
            last = each.stop - 1
            rows.append(
                (
                    str(last) if each.start == last else f"{each.start}..{last}",
                    str(each.length),
                    str(each.period),
                    each.state,
                    f"sequential: {each.reason}" if each.reason else "a chain",
                )
            )
        head = "layers", "steps", "layers per step", "state", ""
        return folded(table(head, rows, "<<<<<"), 2)


def describe(layers: Any, x: Any) -> Description:
    """Show how `deeppcr.forward` runs ``layers``: as chains, or one by one and why.

    The code of each layer runs once, on shapes, as in `jax.eval_shape`, and on a copy: modules stay
    as they are, while what a function writes into other objects of Python stays there.

    A chain is solved as the arguments of `deeppcr.forward` say. Without any, a CPU may call its
    layers one by one, too, because that compiles faster: see there.

    Args:
        layers: as in `deeppcr.forward`.
        x: the input of the first layer: arrays, or `jax.ShapeDtypeStruct`.

    Returns:
        a description that prints as a table: indices of the layers, steps of the chain, layers in
        a step, type of the state, and the reason why layers run in order.

    Raises:
        ValueError: a layer cannot be traced alone; the message names it.
        TypeError: ``layers`` is not a list of layers.

    Example:
        >>> scale = lambda c: jax.tree_util.Partial(jnp.multiply, jnp.float32(c))
        >>> layers = [jnp.sin, *[scale(c) for c in range(100)]]
        >>> print(deeppcr.layers.describe(layers, jnp.ones(3)))
        layers  steps  layers per step  state
        0       1      1                float32[3]  sequential: no equal neighbour
        1..100  100    1                float32[3]  a chain
    """
    return Description(divide(programs_of(layers, x)))


def programs_of(layers: Any, x: Any) -> list[Layer]:
    """The programs of all layers; the arguments and errors of `describe`."""
    every = layers.layers() if isinstance(layers, Stack) else listed(layers)
    x, programs = jax.tree.map(abstract, x), list[Layer]()
    try:
        for program in read(every, x):
            programs.append(program)
    except Exception as reason:
        raise ValueError(
            f"layers[{len(programs)}] cannot be traced alone: {reason}. deeppcr.forward calls it "
            "directly, and traces later layers after that."
        ) from reason
    return programs


def divide(layers: Sequence[Layer]) -> list[Segment]:
    """Divide ``layers`` into chains, with the shortest periods, and single layers."""
    divided = list[Segment]()
    start = 0
    kinds = [object() if layer.alone else layer.code for layer in layers]
    while start < len(layers):
        period, length = longest_run(kinds[start:])
        first, last = layers[start], layers[start + period * length - 1]
        reason = "" if length > 1 else first.alone or NO_NEIGHBOUR
        if reason == NO_NEIGHBOUR and types_of(first.takes) != types_of(first.returns):
            reason = "it changes shape or dtype"
        takes, returns = shapes(first.takes), shapes(last.returns)
        state = takes if takes == returns else f"{takes} -> {returns}"
        divided.append(Segment(start, length, period, reason, state))
        start += period * length
    return divided


def longest_run(kinds: Sequence[Any]) -> tuple[int, int]:
    """The period and the steps of the longest chain from the first on; (1, 1) for none."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, len(kinds) // 2) + 1):
        pairs = enumerate(zip(kinds, kinds[period:], strict=False))
        same = next((i for i, (kind, other) in pairs if kind != other), len(kinds) - period)
        length = same // period + 1
        if length > 1 and period * length > best[0] * best[1]:
            best = (period, length)
    return best


def shapes(tree: Any) -> str:
    """float32[3], for each array."""
    leaves = map(shape_of, jax.tree.leaves(tree))
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
