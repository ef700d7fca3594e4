"""Programs for `scan` and `solve`: data, from which Python text is made, and smaller programs.

A step reads its leaves and its input as vectors of ``n`` numbers of size 1 (``a`` is the first
leaf's), combines them by `tests.fuzz.operations` (``v0``, ``v1``, ...), and feeds the results to
its leaves, each of its own kind and size.
"""

import dataclasses
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
SIMPLEST_METHODS, SIMPLEST_CHECKS = ('"auto"', '"newton"'), ("value", "gradient")


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
        count = 1
        for size in self.shape:
            count *= size
        return count

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
    and "ys 0"; ``wrt`` is of w, init and u; ``salt`` makes all numbers.
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
    def has_effects(self) -> bool:
        return any(node.does.has_effect for node in self.used)

    @property
    def meets(self) -> bool:
        return any(node.does.meets for node in self.used)

    @property
    def is_checked(self) -> bool:
        """Whether errors are part of what it returns."""
        return any(node.operation == "checkify" for node in self.used)

    def refuses(self, words: str) -> bool:
        """Whether an error in words is an answer: of effects, of no blocks, of meeting others."""
        does = [node.does for node in self.used]
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
        return self.check != "value, eager"

    @property
    def floating(self) -> list[int]:
        """Which outputs are floating."""
        return [i for i, output in enumerate(self.outputs) if output != "i"]


def nested(numbers: list[float], shape: tuple[int, ...]) -> str:
    """A literal of that shape."""
    if not shape:
        return repr(numbers[0])
    rows = len(numbers) // shape[0]
    return (
        "["
        + ", ".join(nested(numbers[i * rows : (i + 1) * rows], shape[1:]) for i in range(shape[0]))
        + "]"
    )


def valid(program: Scan) -> Scan:
    """The same, differentiated by nothing that it does not read."""
    there = ["w"] * any(
        "{w}" in node.does.text or "{c}" in node.does.text for node in program.used
    ) + ["init"]
    there += ["u"] * ("u" in program.vectors)
    wrt = tuple(name for name in program.wrt if name in there) or ("init",)
    names = {f"last {leaf.name}" for leaf in program.leaves} | {f"ys {i}" for i in program.floating}
    loss = tuple(term for term in program.loss if term in names) or (
        f"last {program.leaves[0].name}",
    )
    return dataclasses.replace(program, wrt=wrt, loss=loss)


def smaller(program: Scan) -> Iterator[Scan]:
    """Simpler programs, the greatest steps first."""
    for candidate in _smaller(program):
        candidate = valid(candidate)
        if candidate != program:
            yield candidate


def _smaller(program: Scan) -> Iterator[Scan]:
    def replaced(**fields: object) -> Scan:
        return dataclasses.replace(program, **fields)  # type: ignore[arg-type]

    plain = {
        "reverse": False,
        "batch": 0,
        "wrapped": "",
        "through": "scan",
        "dtype": "float32",
        "adjoint": '"auto"',
    }
    effects = tuple(node for node in program.used if node.does.has_effect)
    bare = replaced(nodes=effects)
    for node in program.nodes:
        bare = bare if node in effects else renamed(bare, node.name, node.a)
    simple = dataclasses.replace(bare, leaves=tuple(map(_simple, bare.leaves)))
    yield dataclasses.replace(simple, length=1, n=2, **plain)  # type: ignore[arg-type]
    yield simple
    yield bare
    yield replaced(**plain)
    yield replaced(salt=0)
    for leaf in program.leaves[1:] if len(program.leaves) > 1 else ():
        yield _without_leaf(program, leaf.name)
    if len(program.leaves) > 1:
        yield _without_leaf(program, program.leaves[0].name)
    yield replaced(nodes=tuple(program.used))
    for node in program.nodes:
        yield renamed(
            replaced(nodes=tuple(other for other in program.nodes if other != node)),
            node.name,
            node.a,
        )
    for name, value in plain.items():
        yield replaced(**{name: value})
    for method in SIMPLEST_METHODS[: _index(program.method, SIMPLEST_METHODS)]:
        yield replaced(method=method)
    for check in SIMPLEST_CHECKS[: _index(program.check, SIMPLEST_CHECKS)]:
        yield replaced(check=check)
    for length in (1, 2, 3, 5, program.length // 2, program.length - 1):
        if 0 < length < program.length:
            yield replaced(length=length)
    if program.n > 2:
        yield replaced(n=2)
    for fields in ("outputs", "loss", "wrt"):
        have = getattr(program, fields)
        if fields == "outputs" and program.through == "solve":
            continue
        for one in have:
            rest = tuple(other for other in have if other != one)
            if rest or fields == "outputs":
                loss = () if fields == "outputs" else program.loss
                yield replaced(**{"loss": loss, fields: rest})
    for i, leaf in enumerate(program.leaves):
        simpler = [
            ("shape", ()),
            ("shape", (program.n,)),
            ("scale", 1.0),
            ("bound", ""),
            ("feed", ""),
            ("kind", "contracting"),
        ]
        for name, value in simpler:
            if name == "shape" and (
                leaf.shape == () or (value == () and leaf.kind == "zeros that would grow")
            ):
                continue
            changed = dataclasses.replace(leaf, **{name: value})  # type: ignore[arg-type]
            yield replaced(leaves=(*program.leaves[:i], changed, *program.leaves[i + 1 :]))


def _simple(leaf: Leaf) -> Leaf:
    return dataclasses.replace(leaf, kind="contracting", shape=(), scale=1.0, feed="", bound="")


def _index(value: str, simplest: tuple[str, ...]) -> int:
    return simplest.index(value) if value in simplest else len(simplest)


def _without_leaf(program: Scan, name: str) -> Scan:
    rest = tuple(leaf for leaf in program.leaves if leaf.name != name)
    outputs = tuple(
        output for output in program.outputs if output not in (f"new {name}", f"old {name}")
    )
    return renamed(dataclasses.replace(program, leaves=rest, outputs=outputs), name, rest[0].name)


def renamed(program: Scan, old: str, new: str) -> Scan:
    """Who reads the vector ``old`` reads ``new``."""

    def name(given: str) -> str:
        return new if given == old else given

    return dataclasses.replace(
        program,
        leaves=tuple(dataclasses.replace(leaf, feed=name(leaf.feed)) for leaf in program.leaves),
        nodes=tuple(
            dataclasses.replace(node, a=name(node.a), b=name(node.b)) for node in program.nodes
        ),
        outputs=tuple(dict.fromkeys(map(name, program.outputs))),
    )
