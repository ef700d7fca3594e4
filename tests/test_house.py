"""The rules of the house: who may import whom, how long a file may get, and what an import may not do."""

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 600

# Which packages each package may import, from the top of the house to the bottom.
HOUSES = {"experiments": {"deeppcr", "depth"}, "deeppcr": {"depth"}, "depth": set()}

# The rooms of deeppcr by floor. A room may import from its own floor and from those below it.
FLOORS = {
    "__init__": 5,
    "diffusion": 5,
    "stack": 5,
    "describe": 5,
    "planner": 5,
    "api": 4,
    "plan": 3,
    "newton": 2,
    "sequential": 2,
    "adjoint": 2,
    "sharding": 3,
    "linearize": 1,
    "linear": 1,
    "structure": 1,
    "optim": 1,
    "solution": 1,
    "lyapunov": 1,
    "convergence": 1,
    "acceleration": 1,
    "damping": 1,
    "checks": 0,
    "platforms": 0,
    "loops": 0,
    "fallback": 0,
    "signature": 0,
    "across": 0,
    "retype": 1,
    "chain": 0,
    "step": 0,
    "state": 0,
    "layers": 0,
    "delay": 0,
    "jaxprs": 0,
    "rewrites": 0,
}

# Modules whose classes derive from those of an extra: what they need besides. They are imported inside functions only.
WHEN_CALLED = {
    f"deeppcr.diffusion.unet.{name}": {"flax"}
    for name in ("layers", "embeddings", "blocks", "model")
}

FILES = sorted(
    path
    for folder in (*HOUSES, "tests")
    if (ROOT / folder).is_dir()
    for path in (ROOT / folder).rglob("*.py")
)
OF_DEEPPCR = [path for path in FILES if path.is_relative_to(ROOT / "deeppcr")]
SHIPPED = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("deeppcr", "depth")]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    """deeppcr/linear/pcr.py -> deeppcr.linear.pcr; a package's __init__.py -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, nodes: Iterator[ast.AST] | None = None) -> set[str]:
    """The modules a file imports: absolute names; `from a.b import c` is a.b.c where that is a module."""
    ours = {module(file) for file in FILES}
    names = set()
    for node in ast.walk(tree(path)) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module(path).split(".") + (
                    ["__init__"] if path.name == "__init__.py" else []
                )
                base = ".".join([*package[: -node.level], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                names.add(full if full in ours else base)
    return names


def on_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but functions and type-checking blocks."""
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if deferred or (
            isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        ):
            continue
        yield child
        yield from on_import(child)


def floor(name: str) -> int:
    """The floor of a module of deeppcr."""
    room = [*name.split("."), "__init__"][1]
    assert room in FLOORS, (
        f"deeppcr.{room} is a new room: give it a floor in {named(Path(__file__))}"
    )
    return FLOORS[room]


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_file_is_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{lines} lines: a file that no longer fits one sentence is two files"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_private_to_jax_is_used(path: Path) -> None:
    private = [name for name in imported(path) if name.startswith("jax._")]
    reached = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "_src"
    ]
    assert not private
    assert not reached


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_only_jax_and_numpy_are_imported_at_once(path: Path) -> None:
    allowed = (
        {"jax", "numpy", "deeppcr", "depth"}
        | sys.stdlib_module_names
        | WHEN_CALLED.get(module(path), set())
    )
    names = imported(path, on_import(tree(path)))
    assert {name.partition(".")[0] for name in names} <= allowed, (
        "other packages: inside the function that needs them"
    )
    assert module(path) in WHEN_CALLED or not names & WHEN_CALLED.keys(), (
        "inside the function that needs it"
    )


@pytest.mark.parametrize("path", FILES, ids=named)
def test_packages_import_downwards(path: Path) -> None:
    house = path.relative_to(ROOT).parts[0]
    others = {name.partition(".")[0] for name in imported(path)} & (set(HOUSES) | {"tests"}) - {
        house
    }
    assert others <= HOUSES.get(house, set(HOUSES))


@pytest.mark.parametrize("path", OF_DEEPPCR, ids=named)
def test_rooms_import_downwards(path: Path) -> None:
    own = floor(module(path))
    rooms = {name for name in imported(path) if name.partition(".")[0] == "deeppcr"}
    assert not {name for name in rooms if floor(name) > own}


def test_rooms_of_one_floor_do_not_import_in_a_circle() -> None:
    graph = {module(path): imported(path) - {module(path)} for path in SHIPPED}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_importing_changes_no_configuration_and_starts_no_device() -> None:
    program = """
import jax
before = dict(jax.config.values)
import deeppcr, depth
changed = {key for key, value in jax.config.values.items() if key in before and value != before[key]}
assert not changed, changed
"""
    # A platform that does not exist: the first array, or the first look at the devices, would raise.
    surroundings = os.environ | {"JAX_PLATFORMS": "no-such-platform"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
