"""Every primitive of the installed jax is entered; a new one is named here first."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from depth.inner import ENTERED
from depth.primitives import PRIMITIVES, enter

# In a process of its own: which primitives exist depends on what was imported, and other tests make
# some of their own. Instructions of one kind of device, which only its kernels know, are left out:
# inside `pallas_call` they are flagged.
COLLECT = """
import gc, importlib, json, pkgutil, sys
import jax
from jax.extend.core import Primitive

DEVICES = ("mosaic", "triton", "tpu", "pallas.fuser", "einshape", "thunky")

def private(name):
    return any(part.startswith("_") for part in name.split("."))

def of_devices(name):
    return any(word in name for word in DEVICES)

for module in pkgutil.walk_packages(jax.__path__, "jax.", onerror=lambda name: None):
    if not private(module.name) and not of_devices(module.name) and not module.name.startswith("jax.tools"):
        try:
            importlib.import_module(module.name)
        except ImportError:  # it needs what is not installed
            pass
homes = {}
for name, module in list(sys.modules.items()):
    for thing in list(vars(module).values()) if name.startswith("jax") else ():
        if isinstance(thing, Primitive):
            homes.setdefault(id(thing), []).append(name)
primitives = [thing for thing in gc.get_objects() if isinstance(thing, Primitive)]
kept = [thing for thing in primitives if not homes.get(id(thing)) or not all(map(of_devices, homes[id(thing)]))]
print(json.dumps(sorted({thing.name for thing in kept})))
"""


@cache
def found() -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", COLLECT]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_primitive_has_a_class():
    assert len(found()) >= 286, "the search is broken: jax 0.10.2 has more primitives than this"
    missing = [name for name in found() if name not in PRIMITIVES]
    assert not missing, f"not in depth.primitives: {', '.join(missing)}"


def test_what_is_read_by_a_function_of_its_own_is_entered():
    kinds = {known.kind for known in PRIMITIVES.values()}
    assert ENTERED.keys() <= PRIMITIVES.keys() | kinds


@pytest.mark.parametrize("name", ["sin", "cumsum", "psum"])
def test_a_second_class_is_refused(name):
    with pytest.raises(ValueError, match=name):
        enter(name, "move")


OPAQUE = "pure_callback io_callback ffi_call svd eigh eig random_gamma dot_product_attention_fwd"


@pytest.mark.parametrize("name", OPAQUE.split())
def test_what_cannot_be_looked_into_is_a_lower_bound(name):
    assert PRIMITIVES[name].bound
