"""The rules of the house: who may import whom, and how long a file may get."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import deeppcr

ROOT = Path(__file__).parent.parent
LONGEST = 600

# Which packages each package may import, from the top of the house to the bottom.
PACKAGES = {"experiments": {"deeppcr", "depth"}, "deeppcr": {"depth"}, "depth": set()}

# Modules whose classes derive from those of an extra: they are imported inside functions only.
WHEN_CALLED = {
    f"deeppcr.nn{name}": {"flax"}
    for name in ("", ".rnn", ".linen", ".over_time", ".cells", ".lru", ".slstm")
}

# What the floor that knows devices stands on; its face is all that is seen of it from above.
DEVICES = "lower"
BELOW_DEVICES = {"arrays", "checks", "programs"}

# Rooms that somebody outside could have written: of the others they see the public names and
# `deeppcr.extend`, and each what is beside it here.
BEHIND_DOORS: dict[str, set[str]] = {
    "_stack": {"layers"},
    "diffusion": set(),
    "jacobi": set(),
    "layers": set(),
    "nn": set(),
    "recipes": set(),
}
DOORS = {"deeppcr", "deeppcr.extend"}

# Rooms that stand behind one file each: of them the others see that file alone.
FACES = (DEVICES, "sharding")

# Statements, docstrings aside: of the core, which is all of deeppcr but the rooms behind doors and
# those that stand behind one file each, and of deeppcr. A change that needs more says why.
BESIDE_THE_CORE = {*BEHIND_DOORS, "__main__", "planning", "sharding"}
BESIDE_THE_CORE |= {"lower/cpu", "lower/gpu"}
MOST_STATEMENTS = {"core": 6650, "deeppcr": 11600}

# Those that deeppcr adds to jax: a program is one equation to jax, and each platform lowers it.
PRIMITIVES = {"kernel_call", "linear_map", "pieces", "solve_chain", "steps"}

# Who asks for which platforms a program is traced: what lowers it, the rule, and the tools that
# compare devices.
ASKS = {"target", "platform", "platforms", "compiled_for"}
MAY_ASK = {"lower", "choose", "planning", "__main__"}

FILES = sorted(
    path
    for folder in (*PACKAGES, "tests")
    if (ROOT / folder).is_dir()
    for path in (ROOT / folder).rglob("*.py")
)
SHIPPED = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("deeppcr", "depth")]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    """deeppcr/linear/pcr.py -> deeppcr.linear.pcr; a package's __init__.py -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = frozenset(map(module, FILES))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, nodes: Iterator[ast.AST] | None = None) -> set[str]:
    """The modules that a file imports; `from a.b import c` is a.b.c where that is a module."""
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
                names.add(full if full in MODULES else base)
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


def test_no_file_is_too_long() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    too_long = {name: lines for name, lines in lengths.items() if lines > LONGEST}
    assert not too_long, "a file that no longer fits one sentence is two files"


def test_nothing_private_to_jax_is_used() -> None:
    private = {
        named(path)
        for path in FILES
        if any(name.startswith("jax._") for name in imported(path))
        or (
            "_src" in path.read_text(encoding="utf-8")
            and any(
                isinstance(node, ast.Attribute) and node.attr == "_src"
                for node in ast.walk(tree(path))
            )
        )
    }
    assert not private


def test_only_jax_and_numpy_are_imported_at_once() -> None:
    usual = {"jax", "numpy", "deeppcr", "depth"} | sys.stdlib_module_names
    for path in SHIPPED:
        names = imported(path, on_import(tree(path)))
        others = {name.partition(".")[0] for name in names} - usual
        assert others <= WHEN_CALLED.get(module(path), set()), named(path)
        assert module(path) in WHEN_CALLED or not names & WHEN_CALLED.keys(), named(path)


def test_packages_import_downwards() -> None:
    for path in FILES:
        package = path.relative_to(ROOT).parts[0]
        known = set(PACKAGES) | {"tests"}
        others = {name.partition(".")[0] for name in imported(path)} & known - {package}
        assert others <= PACKAGES.get(package, set(PACKAGES)), named(path)


def test_rooms_do_not_import_in_a_circle() -> None:
    """Neither do modules, nor the rooms of deeppcr: the folders and files right below it.

    Rooms behind doors import deeppcr itself, as somebody outside does.
    """
    modules = {module(path): imported(path) - {module(path), "deeppcr"} for path in SHIPPED}
    rooms: dict[str, set[str]] = {}
    for name, others in modules.items():
        if name.startswith("deeppcr."):
            below = {room(other) for other in others if other.startswith("deeppcr.")}
            rooms.setdefault(room(name), set()).update(below - {room(name)})
    for graph in (modules, rooms):
        graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_the_floor_that_knows_devices_imports_nothing_above_it() -> None:
    for path in SHIPPED:
        if room(module(path)) == DEVICES:
            names = {name for name in imported(path) if name.startswith("deeppcr.")}
            assert set(map(room, names)) <= {DEVICES, *BELOW_DEVICES}, named(path)


def test_only_their_face_is_seen_of_some_rooms() -> None:
    for path in SHIPPED:
        inside = tuple(f"deeppcr.{face}." for face in FACES if face != room(module(path)))
        assert not {name for name in imported(path) if name.startswith(inside)}, named(path)


def test_rooms_behind_doors_see_what_is_public() -> None:
    public = {"deeppcr": set(deeppcr.__all__), "deeppcr.extend": set(deeppcr.extend.__all__)}
    for path in SHIPPED:
        own = room(module(path))
        if own not in BEHIND_DOORS:
            continue
        neighbours = {own, *BEHIND_DOORS[own]}
        names = {name for name in imported(path) if name.partition(".")[0] == "deeppcr"}
        inside = {name for name in names - DOORS if room(name) not in neighbours}
        assert not inside, f"{named(path)}: {inside}"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module in public:
                taken = {alias.name for alias in node.names}
                assert taken <= public[node.module], named(path)


def test_what_is_behind_doors_is_not_needed_to_read_the_core() -> None:
    for path in SHIPPED:
        own = room(module(path))
        if module(path) != "deeppcr" and own not in BESIDE_THE_CORE:
            names = {name for name in imported(path) if name.startswith("deeppcr.")}
            assert not set(map(room, names)) & BEHIND_DOORS.keys(), named(path)


def statements(path: Path) -> int:
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.stmt)]
    return sum(1 for node in nodes if not is_docstring(node))


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def test_rooms_do_not_grow() -> None:
    found = {"core": 0, "deeppcr": 0}
    for path in SHIPPED:
        name = module(path)
        if not name.startswith("deeppcr"):
            continue
        count = statements(path)
        found["deeppcr"] += count
        is_beside = {room(name), "/".join(name.split(".")[1:3])} & BESIDE_THE_CORE
        found["core"] += 0 if is_beside else count
    for part, most in MOST_STATEMENTS.items():
        assert 0.97 * most < found[part] <= most, f"{part} has {found[part]} statements"


def test_primitives_are_few() -> None:
    program = """
import importlib, pkgutil, sys
import jax.extend, deeppcr
for module in pkgutil.walk_packages(deeppcr.__path__, "deeppcr."):
    if "__main__" not in module.name:
        importlib.import_module(module.name)
kind = jax.extend.core.Primitive
ours = [vars(module) for name, module in sys.modules.items() if name.startswith("deeppcr")]
values = [value for names in ours for value in names.values() if isinstance(value, kind)]
print(*sorted({x.name for x in values if type(x).__module__.startswith("deeppcr")}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == PRIMITIVES, done.stderr


def test_only_what_lowers_a_program_asks_for_its_platform() -> None:
    for path in SHIPPED:
        name = module(path)
        if name.startswith("deeppcr.") and room(name) not in MAY_ASK:
            taken = {
                alias.name
                for node in ast.walk(tree(path))
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
                if node.module.startswith(("deeppcr.lower", "depth.platforms"))
            }
            assert not taken & ASKS, named(path)


def test_what_a_newcomer_reads_is_as_long_as_it_says() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## What a newcomer reads\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    ours = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")][1:]
    for name, said in re.findall(r"`([\w/]+\.py)` (\d+)", " ".join(ours)):
        lines = len((ROOT / "deeppcr" / name).read_text(encoding="utf-8").splitlines())
        assert abs(lines - int(said)) <= 0.1 * lines, f"{name} has {lines} lines"


def test_what_these_rules_name_exists() -> None:
    """A rule about a room that is gone guards nothing."""
    rooms = {room(name) for name in MODULES if name.startswith("deeppcr.")}
    assert {DEVICES, *BELOW_DEVICES, *BEHIND_DOORS} <= rooms
    assert WHEN_CALLED.keys() <= MODULES
    assert all((ROOT / package / "__init__.py").is_file() for package in PACKAGES)


def room(name: str) -> str:
    """deeppcr.linear.pcr -> linear; empty for a package."""
    return name.partition(".")[2].partition(".")[0]


def test_importing_changes_no_configuration_and_starts_no_device() -> None:
    """And most experiments need no more than jax and numpy."""
    others = ("matplotlib", "optax", "flax", "equinox", "sklearn")
    program = f"""
import sys
import jax
before = dict(jax.config.values)
sys.modules |= dict.fromkeys({others}, None)
import deeppcr, depth
import experiments.mlp, experiments.gradients.run
import experiments.suite, experiments.report
after = jax.config.values
changed = {{key for key in before if key in after and after[key] != before[key]}}
assert not changed, changed
"""
    # A platform that does not exist: the first array, or a look at the devices, would raise.
    surroundings = os.environ | {"JAX_PLATFORMS": "no-such-platform"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
