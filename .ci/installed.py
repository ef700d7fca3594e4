"""What `make package` asks of an installed distribution: is all there, and does it work?"""

import subprocess
import sys
from functools import partial
from importlib.metadata import distribution
from importlib.resources import files

import jax
import jax.numpy as jnp

import deeppcr
import depth

installed = distribution("deeppcr")
said = installed.metadata
assert installed.version == deeppcr.__version__, installed.version
assert said["License-Expression"] == "Apache-2.0", said["License-Expression"]
assert said["Description-Content-Type"] == "text/markdown", said["Description-Content-Type"]
assert said.get_payload().startswith("# deeppcr"), "the README is missing"
assert any(file.match("licenses/LICENSE") for file in installed.files), "the licence is missing"
for package in (deeppcr, depth):
    assert files(package).is_relative_to(sys.prefix), f"{files(package)} is not in {sys.prefix}"
    assert files(package).joinpath("py.typed").is_file(), f"{package.__name__} has no py.typed"
others = {file.parts[0] for file in installed.files} - {"deeppcr", "depth"}
assert all(name.endswith(".dist-info") for name in others), others


def loss(scan, scale):
    """The square of the last state of a chain of 100 steps."""

    def step(z, x):
        return jnp.tanh(scale * z + x), None

    return jnp.square(scan(step, jnp.zeros(2), jnp.ones((100, 2)))[0]).sum()


newton = partial(deeppcr.scan, method="newton")
expected, found = (jax.grad(loss, argnums=1)(scan, 0.5) for scan in (jax.lax.scan, newton))
assert jnp.allclose(found, expected, rtol=1e-4), (found, expected)
assert depth.serial_depth(jnp.sum, jnp.zeros(8)) == 3

print(f"{sys.argv[1]}, installed:")
print(
    subprocess.run(
        [sys.executable, "-I", "-W", "error", "-m", "deeppcr", "--version"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout,
    end="",
)
