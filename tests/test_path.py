"""The path of a call: the deepest stack of our own functions while jax traces a solve."""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.problems import normal

HOUSE = Path(deeppcr.__file__).parent.parent
OURS = tuple(str(HOUSE / package) for package in ("deeppcr", "depth"))
WEIGHT = normal(0, 8, 8)  # of a chain whose gradient is not left to jax
XS = normal(1, 64, 8)


def watched(call, look):
    """Run ``call``; ``look(frame)`` sees every call of a function of ours."""

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            look(frame)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)


def deepest(call):
    """The names of the functions of ours on the deepest stack."""
    found = []

    def look(frame):
        nonlocal found
        stack = []
        while frame:
            if frame.f_code.co_filename.startswith(OURS):
                stack.append(frame.f_code.co_qualname)
            frame = frame.f_back
        found = max(found, stack[::-1], key=len)

    watched(call, look)
    return found


def loss(xs, **options):
    def step(z, x):
        z = jnp.tanh(WEIGHT @ z + x)
        return z, z

    return deeppcr.scan(step, jnp.zeros(8), xs, **options)[1].sum()


def calls(call):
    """The number of calls of functions of ours."""
    found = []
    watched(call, lambda frame: found.append(None))
    return len(found)


@pytest.mark.parametrize("wrt", [jax.grad, lambda f: f], ids=["gradient", "forward"])
def test_a_default_call_is_at_most_14_functions_deep_and_decides_at_once(wrt):
    def lower(**options):
        return jax.jit(wrt(partial(loss, **options))).lower(XS)

    lower()  # what later calls find
    path = deepest(lower)
    assert len(path) <= 14, "\n".join(path)
    named = partial(lower, method="sequential", adjoint="backprop")
    assert calls(lower) <= 1.2 * calls(named)


def test_a_solve_is_at_most_16_functions_deep():
    newton = deeppcr.Newton(linear="pcr")

    def solve(xs):
        chain = deeppcr.Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), xs)
        return deeppcr.solve(chain, jnp.zeros(8), method=newton).value

    path = deepest(lambda: jax.jit(solve).lower(XS))
    assert len(path) <= 16, "\n".join(path)


@pytest.mark.parametrize(("adjoint", "most"), [("sequential", 18), ("pcr", 21)])
def test_its_gradient_is_at_most_so_many_functions_deep(adjoint, most):
    """A parallel solution is judged, and corrected."""
    path = deepest(
        lambda: jax.jit(jax.grad(partial(loss, method="newton", adjoint=adjoint))).lower(XS)
    )
    assert len(path) <= most, "\n".join(path)
