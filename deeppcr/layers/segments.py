"""Segments of a list of layers: chains of equal layers, and single layers between them."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax

from deeppcr.checks import folded
from deeppcr.layers.parts import Code, take_apart
from deeppcr.layers.pure import InTurn
from deeppcr.layers.reading import Layer, Trial, call, listed, read, shape_of, types_of
from deeppcr.layers.repeated import Repeated, stack_layers
from depth.report import table

LONGEST_PERIOD = 64
ALONE = "no equal neighbour"
# The equations up to which a CPU program of single layers compiles faster than a chain of them: 180
# to 420 with gradients, by the kind of layer (jax 0.10.2, 2 cores).
SHORT = 256


class Segment(NamedTuple):
    """Consecutive layers.

    Attributes:
        layers: the layers.
        start: the index of the first in the list.
        period: the number of layers in a step.
        length: the number of steps.
        reason: why they are called one by one; "" for a chain.
    """

    layers: Sequence[Layer]
    start: int
    period: int
    length: int
    reason: str

    @property
    def is_short(self) -> bool:
        """Whether its layers compile faster one by one."""
        return sum(layer.trial.size for layer in self.layers) <= SHORT

    def stacked(self) -> Repeated:
        """The chain."""
        return stack_layers([(layer.code, layer.arrays) for layer in self.layers], self.period)

    def one_by_one(self, x: Any) -> Any:
        """Call the layers; an error names the index of its layer."""
        for number, layer in enumerate(self.layers, self.start):
            x = call(layer.given, x, number)
        return x


@dataclasses.dataclass(frozen=True)
class Description:
    """The segments of a list of layers; printed, a table."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        rows = []
        for layers, start, period, length, reason in self.segments:
            last = start + len(layers) - 1
            takes, returns = shapes(layers[0].trial.takes), shapes(layers[-1].trial.returns)
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

    A chain is solved as the arguments of `deeppcr.forward` say. Without any, a CPU may call its
    layers one by one, too, because that compiles faster: see there.

    Args:
        layers: as in `deeppcr.forward`.
        x: the input of the first layer: arrays, or `jax.ShapeDtypeStruct`.

    Returns:
        a description that prints as a table: indices of the layers, steps of the chain, layers in
        a step, type of the state, and the reason why layers run in order.

    Raises:
        ValueError: a layer has to be called to know what it returns.
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
    known = list[Layer]()
    try:
        for layer in read(found, x, {}):
            known.append(layer)
    except Exception as reason:
        raise ValueError(
            f"layers[{len(known)}] cannot be called on shapes alone: {reason}. "
            "deeppcr.forward calls it directly, and inspects later layers after that."
        ) from reason
    return Description(tuple(segments(known)))


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
    known, same = list[tuple[Code, list[Any]]](), list[list[Any]]()
    for number, layer in enumerate(listed(layers)):
        holders: list[Any] = []
        try:
            known.append(take_apart(layer, holders=holders))
        except InTurn as error:
            raise TypeError(
                f"layers[{number}] cannot be taken apart into code and arrays: {error}; "
                "deeppcr.forward(layers, x) takes any."
            ) from error
        same.append([(layer, *held) for held in holders])
    if not known:
        raise ValueError("layers is empty, expected at least one layer.")
    period, length = _longest_run([(code, types_of(arrays)) for code, arrays in known])
    if (odd := period * length) == len(known):
        run, odd = stack_layers(known, period, same), 0
        if x is None or shapes(run.check(x)) == shapes(x):
            return run
    raise ValueError(
        f"layers[{odd}] is not like the layers before it (other code, shapes or dtypes), or "
        "changes the shape of the state; expected equal layers, or layers with a period, that "
        "return what they take. deeppcr.forward(layers, x) takes any."
    )


def apply_layers(layers: Any, x: Any, solve: Callable[[Segment, Any], Any]) -> Any:
    """Apply a list of layers to ``x``: chains by ``solve(segment, x)``, all others one by one.

    Layers are inspected in order, up to one that has to be called in its turn. Later ones are
    inspected after the call: they may read what it changed.
    """
    given, start, trials = listed(layers), 0, dict[Any, Trial]()
    while start < len(given):
        found = list[Layer]()
        # The first layer may distinguish a numpy array from a traced one: it is called directly.
        if all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
            with suppress(Exception):  # the call may raise it, too
                for layer in read(given[start:], x, trials):
                    if layer.trial.acts:
                        break
                    found.append(layer)
        for segment in segments(found, start):
            x = segment.one_by_one(x) if segment.reason else solve(segment, x)
        start += len(found)
        if start < len(given):
            x, start = call(given[start], x, start), start + 1
        # The call may have changed what the others read.
        trials = {kind: trial for kind, trial in trials.items() if trial.acts}
    return x


def segments(layers: Sequence[Layer], offset: int = 0) -> list[Segment]:
    """Divide ``layers`` into chains, with the shortest periods, and single layers.

    ``offset``: the index of the first in the list.
    """
    found, start = list[Segment](), 0
    kinds = [object() if layer.trial.alone else layer.trial for layer in layers]
    while start < len(layers):
        period, length = _longest_run(kinds[start:])
        trial = layers[start].trial
        reason = "" if length > 1 else trial.alone or ALONE
        if reason == ALONE and types_of(trial.takes) != types_of(trial.returns):
            reason = "it changes shape or dtype"
        own = layers[start : start + period * length]
        found.append(Segment(own, offset + start, period, length, reason))
        start += period * length
    return found


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
