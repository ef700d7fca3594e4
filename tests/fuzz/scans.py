"""Programs for `scan` and `solve`: data, from which Python text is made, and smaller programs.

A step reads its leaves and its input as vectors of ``n`` numbers of size 1 (``a`` is the first
leaf's), combines them by `tests.fuzz.operations` (``v0``, ``v1``, ...), and feeds the results to
its leaves, each of its own kind and size.
"""

import dataclasses
import math
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.operations import OPERATIONS, Operation

# {z} is the leaf, {v} what it is fed, of its shape and size, {m} which entries grow, {s} its size.
KINDS = {
    "contracting": "0.5 * {z} + {v}",
    "slow": "0.97 * {z} + {v}",
    "alternating": "-0.8 * {z} + {v}",
    "neutral": "{z} + 0.1 * {v}",
    "sum": "{z} + {v}",
    "growing": "1.1 * {z} + {v}",
    "forgetting": "{v}",
    "held": "{z}",
    "gated": "{z} * jax.nn.sigmoid({v} / {s})",
    "reset": 'jnp.where(x["flag"], {z}, {v})',
    "clock": "{z} + 1.0",
    "slow clock": "{z} + 0.1",
    "overflowing": "1e4 * {z} + {v}",
    "zero that would grow": "30.0 * {z}",
    "zeros that would grow": "jnp.where({m}, 30.0, 0.5) * {z} + jnp.where({m}, 0.0, {v})",
}
CLOCKS = "clock", "slow clock"

PLAIN = '"auto"', '"sequential"'
STEP_BY_STEP = '"auto"', '"backprop"', '"autodiff"'  # adjoints: "sequential" solves a recurrence
FORWARD, REVERSE = (
    "jvp",
    (
        *("gradient", "vmapped gradient", "remat", "gradient of gradient", "jvp of gradient"),
        *("pullback", "gradient on a mesh"),
    ),
)
NAMED = "vmapped", "on a mesh", "vmapped gradient", "gradient on a mesh"  # with an axis of examples


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of the state: what it does by itself, and the vector that it is fed."""

    name: str
    kind: str
    shape: tuple[int, ...]
    scale: float
    feed: str
    bound: str

    @property
    def reads(self) -> str:
        """The vector that it really is fed, if any."""
        return self.feed if "{v}" in KINDS[self.kind] else ""

    @property
    def ends(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    def initial(self, salt: int) -> str:
        """Its literal."""
        if self.kind in CLOCKS:
            return f"jnp.full({self.shape}, {0.0 if self.scale == 1 else self.scale}, F)"
        if self.kind == "zero that would grow":
            return f"jnp.zeros({self.shape}, F)"
        digits = random.Random(f"{salt} {self.name}")
        numbers = [round(digits.uniform(-1, 1), 1) or 0.5 for _ in range(self.ends)]
        if self.kind == "zeros that would grow":
            numbers = [number * (i % 2) for i, number in enumerate(numbers)]
        array = f"jnp.array({nested(numbers, self.shape)}, F)"
        return array if self.scale == 1 else f"{self.scale} * {array}"

    def vector(self, n: int) -> str:
        """As a vector of ``n`` numbers of size 1."""
        size = max(self.scale, 10.0) if self.kind in CLOCKS else self.scale
        text = f'z["{self.name}"]' if self.shape == (n,) else f'jnp.resize(z["{self.name}"], {n})'
        return text if size == 1 else f"{text} / {size}"

    def update(self, n: int) -> str:
        """Its next value."""
        fed = "0.3"
        if self.feed:
            fed = (
                self.feed
                if self.shape == (n,)
                else f"{self.feed}[0]"
                if not self.shape
                else f"jnp.resize({self.feed}, {self.shape})"
            )
            fed = f"{self.bound}({fed})" if self.bound else fed
        elif self.kind == "forgetting":
            fed = f"jnp.full({self.shape}, 0.3, F)"
        fed = fed if self.scale == 1 else f"{self.scale} * {fed}"
        grow = f"jnp.arange({self.ends}).reshape({self.shape}) % 2 == 0"
        return KINDS[self.kind].format(z=f'z["{self.name}"]', v=fed, m=grow, s=self.scale)


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation in a step: ``name = operation(a, b)``."""

    name: str
    operation: str
    a: str
    b: str

    @property
    def does(self) -> Operation:
        return OPERATIONS[self.operation]


@dataclasses.dataclass(frozen=True)
class Scan:
    """A program: its text is `text`.

    ``outputs`` are "new a", "old a", the name of a vector, "one" or "i"; ``loss`` takes "last a"
    and "ys 0"; ``wrt`` is of w, init and u; ``salt`` makes all numbers. ``infinite`` is the argument
    that has an infinite number, "u" or "init"; ``disabled``: whether ours runs without jit.
    """

    leaves: tuple[Leaf, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    n: int
    length: int
    dtype: str
    reverse: bool
    batch: int
    wrapped: str
    through: str
    method: str
    adjoint: str
    check: str
    loss: tuple[str, ...]
    wrt: tuple[str, ...]
    salt: int
    infinite: str = ""
    disabled: bool = False

    @property
    def used(self) -> list[Node]:
        """The nodes that anything depends on."""
        needed = {leaf.reads for leaf in self.leaves} | set(self.outputs)
        found = []
        for node in reversed(self.nodes):
            if node.does.has_effect or node.name in needed:
                found.append(node)
                needed |= {node.a, node.b} if node.does.reads_two else {node.a}
        return found[::-1]

    @property
    def vectors(self) -> set[str]:
        """What the nodes, leaves and outputs read."""
        read = {leaf.reads for leaf in self.leaves} | set(self.outputs)
        for node in self.used:
            read |= {node.a, node.b} if node.does.reads_two else {node.a}
        return read

    @property
    def does(self) -> list[Operation]:
        return [node.does for node in self.used]

    @property
    def has_effects(self) -> bool:
        return any(each.has_effect for each in self.does)

    @property
    def meets(self) -> bool:
        return any(each.meets for each in self.does)

    @property
    def is_checked(self) -> bool:
        """Whether errors are part of what it returns."""
        return any(node.operation == "checkify" for node in self.used)

    def refuses(self, words: str) -> bool:
        """Whether an error in words is an answer: of effects, of no blocks, of meeting others."""
        does = self.does
        neither = not all(each.reverse for each in does) and not all(each.forward for each in does)
        explicit = self.method not in PLAIN or self.adjoint not in STEP_BY_STEP
        return explicit and (
            (self.has_effects and "effect" in words)
            or (neither and "no derivative" in words)
            or (self.meets and "communicates" in words)
        )

    def in_float64(self, source: str) -> str | None:
        """The same text in float64, if it is in another dtype."""
        return (
            source.replace(f"F = jnp.{self.dtype}\n", "F = jnp.float64\n")
            if self.dtype != "float64"
            else None
        )

    @property
    def sort(self) -> Any:
        """What it shares with programs that fail for the same reason."""
        explicit = self.method not in PLAIN, self.adjoint not in PLAIN
        return (
            {node.operation for node in self.used},
            {leaf.kind for leaf in self.leaves},
            self.check,
            explicit,
        )

    @property
    def is_ambiguous(self) -> bool:
        """Whether jax has two answers: `lax.scan` loses a user's own rule in second derivatives."""
        return "of gradient" in self.check and any(node.does.rule for node in self.used)

    @property
    def text(self) -> str:
        from tests.fuzz.text import text

        return text(self)

    @property
    def jitted(self) -> bool:
        return self.check != "value, eager" and not self.disabled

    @property
    def floating(self) -> list[int]:
        """Which outputs are floating."""
        return [i for i, output in enumerate(self.outputs) if output != "i"]


def nested(numbers: list[float], shape: tuple[int, ...]) -> str:
    """A literal of that shape."""
    if not shape:
        return repr(numbers[0])
    size = len(numbers) // shape[0]
    rows = (numbers[i * size : (i + 1) * size] for i in range(shape[0]))
    return f"[{', '.join(nested(row, shape[1:]) for row in rows)}]"


def valid(program: Scan) -> Scan:
    """The same, without what is not there: read as the first leaf, or left out of the results."""
    leaves, first = [leaf.name for leaf in program.leaves], program.leaves[0].name
    known, nodes = {*leaves, "u"}, []
    for node in program.nodes:
        a, b = (name if name in known else first for name in (node.a, node.b))
        nodes.append(dataclasses.replace(node, a=a, b=b))
        known.add(node.name)
    fed = [
        leaf if leaf.feed in (*known, "") else dataclasses.replace(leaf, feed=first)
        for leaf in program.leaves
    ]
    returned = {*known, "one", "i"} | {f"{age} {name}" for name in leaves for age in ("new", "old")}
    outputs = tuple(output for output in program.outputs if output in returned)
    if program.through == "solve":
        outputs = tuple(f"new {name}" for name in leaves)
    program = dataclasses.replace(program, leaves=tuple(fed), nodes=tuple(nodes), outputs=outputs)
    names = {f"last {name}" for name in leaves} | {f"ys {i}" for i in program.floating}
    weighs = any("{w}" in node.does.text or "{c}" in node.does.text for node in program.used)
    there = {"init", *["w"] * weighs, *program.vectors & {"u"}}
    loss = tuple(term for term in program.loss if term in names) or (f"last {first}",)
    wrt = tuple(name for name in program.wrt if name in there) or ("init",)
    return dataclasses.replace(program, wrt=wrt, loss=loss)


# By field, what is simpler, the simplest first.
SIMPLER: dict[str, tuple[Any, ...]] = {
    "reverse": (False,),
    "batch": (0,),
    "wrapped": ("",),
    "through": ("scan",),
    "dtype": ("float32",),
    "adjoint": ('"auto"',),
    "method": ('"auto"', '"newton"'),
    "check": ("value", "gradient"),
    "salt": (0,),
    "disabled": (False,),
    "infinite": ("",),
    "n": (2,),
    "length": (1, 2, 3, 5),
    # of a leaf
    "scale": (1.0,),
    "bound": ("",),
    "feed": ("",),
    "kind": ("contracting",),
    "shape": ((),),
}
PARTS = "leaves", "nodes", "outputs", "loss", "wrt"


def smaller(program: Scan) -> Iterator[Scan]:
    """Simpler programs, the greatest steps first."""
    simple = {name: values[0] for name, values in SIMPLER.items()}
    effects = tuple(node for node in program.nodes if node.does.has_effect)
    plain = {name: simple[name] for name in ("reverse", "batch", "wrapped", "dtype", "adjoint")}
    bare = dataclasses.replace(program, nodes=effects)
    leaves = tuple(_replaced(leaf, **simple) for leaf in program.leaves)
    found = [_replaced(bare, leaves=leaves, length=1, n=2, **plain), _replaced(bare, leaves=leaves)]
    found += [bare, _replaced(program, **plain)]
    for name in PARTS:
        parts = getattr(program, name)
        rest = [parts[:i] + parts[i + 1 :] for i in range(len(parts))]
        found += [_replaced(program, **{name: each}) for each in rest if each or name != "leaves"]
    found += _simpler(program)
    for i, leaf in enumerate(program.leaves):
        before, after = program.leaves[:i], program.leaves[i + 1 :]
        found += [_replaced(program, leaves=(*before, one, *after)) for one in _simpler(leaf)]
    return (candidate for candidate in map(valid, found) if candidate != program)


def _replaced(part: Any, **fields: Any) -> Any:
    """With those of the fields that it has."""
    own = {field.name for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: x for name, x in fields.items() if name in own})


def _simpler(part: Any) -> Iterator[Any]:
    """With one field simpler."""
    for name, values in SIMPLER.items():
        value = getattr(part, name, None)
        for simpler in values[: values.index(value)] if value in values else values:
            if value is not None and not (name == "length" and simpler >= value):
                yield _replaced(part, **{name: simpler})
