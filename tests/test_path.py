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
README = (HOUSE / "README.md").read_text(encoding="utf-8")
COMPREHENSIONS = "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"
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
    """The names of the functions of ours on the deepest stack.

    A function that calls itself, for a program in a program or a module in a module, counts once:
    the user's program decides how often it does. Comprehensions are a part of their function; from
    Python 3.12 on, most have no frame.
    """
    found = {}

    def look(frame):
        nonlocal found
        stack = {}
        while frame:
            code = frame.f_code
            if code.co_filename.startswith(OURS) and code.co_name not in COMPREHENSIONS:
                stack[code] = f"{code.co_qualname} ({Path(code.co_filename).name})"
            frame = frame.f_back
        found = max(found, stack, key=len)

    watched(call, look)
    return [*found.values()][::-1]


def loss(xs, **options):
    def step(z, x):
        z = jnp.tanh(WEIGHT @ z + x)
        return z, z

    return deeppcr.scan(step, jnp.zeros(8), xs, **options)[1].sum()


def readme():
    """The recurrent network of the README, as it is there."""
    code, names = README.partition("```python\n")[2].partition("value, gradient =")[0], {}
    exec(code, names)
    return names["loss"], [names[name] for name in ("w", "h", "xs")]


def stack():
    """Residual layers, stacked once."""
    layers = [
        jax.tree_util.Partial(lambda w, x: x + jnp.tanh(x @ w), w) for w in normal(2, 6, 8, 8)
    ]
    return lambda stacked, x: deeppcr.forward(stacked, x).sum(), [deeppcr.stack(layers), XS]


def kalman():
    """The log-likelihood of a Kalman filter."""
    move, see = 0.9 * jnp.eye(2), jnp.ones((1, 2))

    def step(belief, y):
        mean, covariance = move @ belief[0], move @ belief[1] @ move.T + jnp.eye(2)
        seen = see @ covariance @ see.T + jnp.eye(1)
        gain, error = jnp.linalg.solve(seen, see @ covariance).T, y - see @ mean
        fits = error @ jnp.linalg.solve(seen, error) + jnp.linalg.slogdet(seen)[1]
        return (mean + gain @ error, covariance - gain @ see @ covariance), -0.5 * fits

    def likelihood(covariance, ys):
        return deeppcr.scan(step, (jnp.zeros(2), covariance), ys)[1].sum()

    return likelihood, [jnp.eye(2), XS[:, :1]]


PROGRAMS = {"readme": readme, "stack": stack, "kalman": kalman}


def calls(call):
    """The number of calls of functions of ours."""
    found = []
    watched(call, lambda frame: found.append(None))
    return len(found)


WRT = pytest.mark.parametrize("wrt", [jax.value_and_grad, lambda f: f], ids=["gradient", "forward"])


@WRT
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_default_call_is_at_most_14_functions_deep(wrt, name):
    function, arguments = PROGRAMS[name]()

    def lower():
        return jax.jit(wrt(lambda *arguments: function(*arguments))).lower(*arguments)

    lower()  # what later calls find
    path = deepest(lower)
    assert len(path) <= 14, "\n".join(path)


# Calls of our functions in which a gradient is traced and lowered again: a tenth above what it takes
# with Python 3.11. From 3.12 on, comprehensions are no calls.
MOST_CALLS = {"readme": 2540, "stack": 1780, "kalman": 9950}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_default_gradient_takes_few_calls(name):
    function, arguments = PROGRAMS[name]()

    def lower():
        gradient = jax.value_and_grad(lambda *arguments: function(*arguments))
        return jax.jit(gradient).lower(*arguments)

    lower()  # what later calls find
    assert calls(lower) <= MOST_CALLS[name]


@WRT
def test_a_default_call_decides_at_once(wrt):
    def lower(**options):
        return jax.jit(wrt(partial(loss, **options))).lower(XS)

    lower()
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


@pytest.mark.parametrize(("adjoint", "most"), [("sequential", 18), ("pcr", 20)])
def test_its_gradient_is_at_most_so_many_functions_deep(adjoint, most):
    """A parallel solution is judged, and corrected."""
    path = deepest(
        lambda: jax.jit(jax.grad(partial(loss, method="newton", adjoint=adjoint))).lower(XS)
    )
    assert len(path) <= most, "\n".join(path)
