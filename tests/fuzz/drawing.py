"""Random programs for `scan` and `solve`: what they are drawn from, and how."""

import dataclasses
import random
from typing import Any

from tests.fuzz.operations import CHAINS, EFFECTS, MEETING, QUIET, RULED
from tests.fuzz.scans import FORWARD, KINDS, NAMED, PLAIN, REVERSE, Leaf, Node, Scan, valid

SHAPES = (), (1,), (2,), (3,), (2, 2)
SCALES = 1.0, 1.0, 1.0, 1e-6, 1e-3, 1e3, 1e4, 1e6
LENGTHS = 1, 2, 3, 5, 8, 13, 13, 40, 64

METHODS = [
    '"auto"',
    '"sequential"',
    '"newton"',
    '"newton"',
    '"pcr"',
    *(
        f"deeppcr.Newton({options})"
        for options in (
            'linear="cyclic_reduction"',
            'linear="prefix_scan"',
            'linear="sequential"',
            'linearize="dense"',
            'linearize="diagonal"',
            'linearize="zero"',
            'linearize="identity"',
            "linearize=deeppcr.Scalar(0.5)",
            "window=4",
            'window=3, linearize="diagonal"',
            "window=5, linear='pcr'",
            "memory=200",
            "damping=deeppcr.TrustRegion()",
            "damping=deeppcr.TrustRegion(), window=4",
            'acceleration=deeppcr.Anderson(), linearize="identity"',
            'acceleration=deeppcr.Anderson(), linearize="zero", window=8',
            'initial_guess="constant"',
            "initial_guess=deeppcr.Coarse(every=3)",
            "initial_guess=guess",
            "initial_guess=spoiled",
            "max_iterations=2",
            "record=True",
        )
    ),
]
ADJOINTS = [
    *('"auto"', '"backprop"', '"sequential"', '"autodiff"'),
    *('"pcr"', '"cyclic_reduction"', '"prefix_scan"'),
    "deeppcr.Recurrence()",
    'deeppcr.Adjoint(linearize="diagonal")',
    'deeppcr.Adjoint(linearize="zero")',
    "deeppcr.Adjoint(memory=200)",
    "deeppcr.Adjoint(linearize='diagonal', max_iterations=1)",
    "deeppcr.adjoint.Autodiff(checkpoint=3)",
]
OF_LOOPS = '"backprop"', '"backprop"', '"auto"', "deeppcr.adjoint.Autodiff(checkpoint=3)"
CHECKS = [*["value"] * 3, "value, eager", "vmapped", "on a mesh", "nested", "jvp"]
CHECKS += [*["gradient"] * 3, *REVERSE]


@dataclasses.dataclass(frozen=True)
class Theme:
    """What programs are drawn from: some from few choices, whose faults come together."""

    kinds: tuple[str, ...] = (*(x for x in KINDS if x != "overflowing"), "contracting", "clock")
    scales: tuple[float, ...] = SCALES
    lengths: tuple[int, ...] = LENGTHS
    methods: tuple[str, ...] = tuple(METHODS)
    adjoints: tuple[str, ...] = tuple(ADJOINTS)
    checks: tuple[str, ...] = tuple(CHECKS)
    certain: tuple[str, ...] = ()


DERIVATIVES = tuple(check for check in CHECKS if check in REVERSE or check == FORWARD)
THEMES = [
    *[Theme()] * 4,
    Theme(methods=PLAIN, adjoints=OF_LOOPS, checks=DERIVATIVES),
    Theme(
        certain=("own derivative", "cond", "loop", "inner scan", "jitted", "checkpoint"),
        methods=PLAIN,
        adjoints=OF_LOOPS,
        checks=DERIVATIVES,
    ),
    Theme(
        kinds=("clock", "contracting", "slow", "sum", "neutral"),
        methods=tuple(METHODS[2:]),
        checks=("value", FORWARD),
    ),
    Theme(
        kinds=("zeros that would grow", "zero that would grow", "growing", "contracting"),
        lengths=(13, 40, 64),
        adjoints=tuple(ADJOINTS[4:]),
        checks=DERIVATIVES,
    ),
    Theme(
        certain=tuple(RULED),
        lengths=(1, 2, 5, 13),
        adjoints=tuple(ADJOINTS[:5]),
        checks=DERIVATIVES,
    ),
    Theme(certain=tuple(CHAINS), lengths=(1, 2, 5, 13)),
    Theme(certain=tuple(EFFECTS), lengths=(1, 2, 5, 13), methods=PLAIN),
    Theme(certain=tuple(MEETING), lengths=(1, 2, 5, 13), checks=NAMED),
    Theme(
        certain=("nonnormal",),
        kinds=("forgetting", "contracting", "slow"),
        lengths=(13, 40, 64),
        adjoints=tuple(ADJOINTS[4:]),
        checks=DERIVATIVES,
    ),
]


def draw(seed: int) -> Scan:
    """The program of a seed."""
    rng = random.Random(seed)
    theme = rng.choice(THEMES)
    n = rng.choice([2, 2, 3])
    names = "abc"[: rng.choice([1, 2, 2, 3])]
    vectors = [*names, "u"]
    operations = [rng.choice(QUIET) for _ in range(rng.choice([0, 1, 2, 3, 4, 5]))]
    if theme.certain or rng.random() < 0.05:
        operations.insert(rng.randrange(len(operations) + 1), rng.choice(theme.certain or EFFECTS))
    nodes: list[Node] = []
    for number, operation in enumerate(operations):
        recent = vectors if rng.random() < 0.4 else vectors[-3:]
        nodes.append(Node(f"v{number}", operation, rng.choice(recent), rng.choice(vectors)))
        vectors.append(f"v{number}")
    late = [*vectors, *vectors[-2:], *vectors[-2:]]
    leaves = tuple(
        Leaf(
            name,
            rng.choice(theme.kinds),
            rng.choice([*SHAPES, (n,), (n,)]),
            rng.choice(theme.scales),
            rng.choice(late) if rng.random() < 0.9 else "",
            rng.choice(["jnp.tanh", "jnp.tanh", "jnp.sin", ""]),
        )
        for name in names
    )
    choices = [
        *(f"new {name}" for name in names),
        *(f"old {name}" for name in names),
        *vectors[-2:],
        "one",
        "i",
    ]
    outputs = tuple(dict.fromkeys(rng.choice(choices) for _ in range(rng.choice([0, 1, 1, 2, 3]))))
    through = "scan"
    if rng.random() < 0.1:
        through, outputs = "solve", tuple(f"new {name}" for name in names)
    terms = [
        *(f"last {name}" for name in names),
        *(f"ys {i}" for i, output in enumerate(outputs) if output != "i"),
    ]
    arguments = ["w", "init", "u"]
    program = valid(
        Scan(
            leaves,
            tuple(nodes),
            outputs,
            n,
            rng.choice(theme.lengths),
            rng.choice(["float32"] * 5 + ["float64"] * 4 + ["bfloat16"]),
            rng.random() < 0.15 and through == "scan",
            rng.choice([0, 0, 0, 0, 0, 2]),
            rng.choice(["", "", "", "", "jit", "checkpoint"]),
            through,
            rng.choice(theme.methods),
            rng.choice(theme.adjoints),
            rng.choice([check for check in theme.checks if possible(check, nodes)] or ["value"]),
            tuple(sorted(rng.sample(terms, rng.randint(1, len(terms))))),
            tuple(sorted(rng.sample(arguments, rng.randint(1, 3)), key=arguments.index)),
            rng.randrange(1000),
        )
    )
    return valid(dataclasses.replace(program, **drawn_last(rng, program)))


def drawn_last(rng: random.Random, program: Scan) -> dict[str, Any]:
    """Fields that are seldom other than in most programs."""
    found: dict[str, Any] = {}
    leaves = list(program.leaves)
    if rng.random() < 0.08:
        found["dtype"] = "float16"
        leaves = [dataclasses.replace(leaf, scale=min(leaf.scale, 1e3)) for leaf in leaves]
    if rng.random() < 0.08:
        found["infinite"] = rng.choice(["u", "init"])
    if rng.random() < 0.08:
        index = rng.randrange(len(leaves))
        leaves[index] = dataclasses.replace(leaves[index], kind="overflowing")
    if program.length <= 3 and "on a mesh" not in program.check:
        found["disabled"] = rng.random() < 0.2
    return {**found, "leaves": tuple(leaves)}


def possible(check: str, nodes: list[Node]) -> bool:
    """Whether jax can do that to such a step."""
    if any(node.does.meets for node in nodes) and check not in NAMED:
        return False
    if check.startswith("value"):
        return True
    if not all(node.does.smooth for node in nodes):
        return False
    if check == FORWARD:
        return all(node.does.forward for node in nodes)
    return check not in REVERSE or all(node.does.reverse for node in nodes)
