"""Segments of a list of layers: chains of equal layers, and single layers between them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from deeppcr.extend import abstract, folded
from deeppcr.layers.parts import LayerCode, NotApart, take_apart
from deeppcr.layers.reading import Layer, listed, read, shape_of, types_of
from deeppcr.layers.repeated import Repeated, stack_layers
from depth.report import table

LONGEST_PERIOD = 64
ALONE = "no equal neighbour"
# The equations up to which a CPU program of single layers compiles faster than a chain of them. The
# gradient of 128 MLPs compiles in 1.1 s for 2.2, of 256 in 2.2 for 3.1 (some 1,600 equations); of
# 64 modules with 24 equations each in 2.2 for 1.8 (jax 0.10.2; 0.12 agrees; 2 cores).
SHORT = 1536


class Segment(NamedTuple):
    """Consecutive layers.

    Attributes:
        layers: the programs of the layers.
        start: the index of the first in the list.
        period: the number of layers in a step.
        length: the number of steps.
        reason: why they run one by one; "" for a chain.
    """

    layers: Sequence[Layer]
    start: int
    period: int
    length: int
    reason: str

    def stacked(self) -> Repeated:
        """The chain."""
        return stack_layers([(layer.code, layer.arrays) for layer in self.layers], self.period)

    def one_by_one(self, x: Any) -> Any:
        """Run the programs of the layers."""
        for layer in self.layers:
            x = layer(x)
        return x


def is_short(layers: Sequence[Layer], count: int | None = None) -> bool:
    """Whether layers compile faster one by one: these, or ``count`` layers such as these."""
    equations = sum(layer.size for layer in layers)
    return equations * (count or len(layers)) <= SHORT * len(layers)


class Described(NamedTuple):
    """A `Segment` without its programs: the number of its ``layers``, and its states as text."""

    layers: int
    start: int
    period: int
    length: int
    reason: str
    takes: str
    returns: str


@dataclasses.dataclass(frozen=True)
class Description:
    """The segments of a list of layers; printed, a table."""

    segments: tuple[Described, ...]

    def __str__(self) -> str:
        rows = []
        for count, start, period, length, reason, takes, returns in self.segments:
            last = start + count - 1
            rows.append(
                (
                    str(start) if start == last else f"{start}..{last}",
                    str(length),
                    str(period),
                    takes if takes == returns else f"{takes} -> {returns}",
                    f"sequential: {reason}" if reason else "a chain",
                )
            )
        head = "layers", "steps", "layers per step", "state", ""
        return folded(table(head, rows, "<<<<<"), 2)


def describe(layers: Any, x: Any) -> Description:
    """Show how `deeppcr.forward` runs ``layers``: as chains, or one by one and why.

    The code of each layer runs once, on shapes, as in `jax.eval_shape`: what it writes into objects
    of Python stays there.

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
    return describe_segments(segments_of(layers, x))


def describe_segments(every: Sequence[Segment]) -> Description:
    """What is known of segments, without their programs."""
    rows = list[Described]()
    for each in every:
        takes, returns = shapes(each.layers[0].takes), shapes(each.layers[-1].returns)
        rows.append(Described(len(each.layers), *each[1:], takes, returns))
    return Description(tuple(rows))


def segments_of(layers: Any, x: Any) -> list[Segment]:
    """See `describe`."""
    every = layers.layers() if isinstance(layers, Repeated) else listed(layers)
    x, programs = jax.tree.map(abstract, x), list[Layer]()
    try:
        for program in read(every, x):
            programs.append(program)
    except Exception as reason:
        raise ValueError(
            f"layers[{len(programs)}] cannot be traced alone: {reason}. deeppcr.forward calls it "
            "directly, and traces later layers after that."
        ) from reason
    return segments(programs)


def repeated(layers: Any, x: Any = None) -> Repeated:
    """The one chain that all ``layers`` form, trusted to do nothing but compute.

    Args:
        layers: as in `deeppcr.forward`.
        x: the input of the first layer. Without it, there is no trial.

    Raises:
        ValueError: there are no layers, or they do not form one chain; the message names the first
            layer that differs. Or a trial shows that a layer has effects.
        TypeError: a layer cannot be taken apart.
    """
    if isinstance(layers, Repeated):
        return layers
    parts = list[tuple[LayerCode, list[Any]]]()
    same = list[list[Any]]()
    for number, layer in enumerate(listed(layers)):
        holders: list[Any] = []
        try:
            parts.append(take_apart(layer, holders=holders))
        except NotApart as error:
            raise TypeError(
                f"layers[{number}] cannot be taken apart into code and arrays: {error}; "
                "deeppcr.forward(layers, x) takes any."
            ) from error
        same.append([(layer, *held) for held in holders])
    if not parts:
        raise ValueError("layers is empty, expected at least one layer.")
    period, length = _longest_run([(code, types_of(arrays)) for code, arrays in parts])
    unlike = period * length
    if unlike == len(parts):
        unlike = 0
        run = stack_layers(parts, period, same)
        if x is None or shapes(run.check(x)) == shapes(x):
            return run
    raise ValueError(
        f"layers[{unlike}] is not like the layers before it (other code, shapes or dtypes), or "
        "changes the shape of the state; expected equal layers, or layers with a period, that "
        "return what they take. deeppcr.forward(layers, x) takes any."
    )


def segments(layers: Sequence[Layer], offset: int = 0) -> list[Segment]:
    """Divide ``layers`` into chains, with the shortest periods, and single layers.

    ``offset``: the index of the first in the list.
    """
    divided = list[Segment]()
    start = 0
    kinds = [object() if layer.alone else layer.code for layer in layers]
    while start < len(layers):
        period, length = _longest_run(kinds[start:])
        layer = layers[start]
        reason = "" if length > 1 else layer.alone or ALONE
        if reason == ALONE and types_of(layer.takes) != types_of(layer.returns):
            reason = "it changes shape or dtype"
        part = layers[start : start + period * length]
        divided.append(Segment(part, offset + start, period, length, reason))
        start += period * length
    return divided


def _longest_run(kinds: Sequence[Any]) -> tuple[int, int]:
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
