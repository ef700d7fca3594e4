"""What `deeppcr.scan` says of wrong arguments: at least what `jax.lax.scan` says."""

import re
from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.drop_in.kinds import METHODS

Pair = namedtuple("Pair", ["first", "second"])
SHORT = jnp.zeros(5, jnp.float32)
ZERO = jnp.zeros((), jnp.float32)


class Cell:
    """A step with parameters; the class itself is none."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, c, x):
        return c * self.weight + x, x


WRONG = {
    # f
    "f is a number": (lambda scan: scan(3, 0.0, SHORT), TypeError, ["f", "3", "callable|function"]),
    "f is a class": (
        lambda scan: scan(Cell, 0.0, SHORT),
        TypeError,
        [r"f is the class Cell \(did you mean Cell\(...\)\?\), expected a function"],
    ),
    # what f returns
    "an array": (
        lambda scan: scan(lambda c, x: jnp.zeros(3, jnp.float32), ZERO, SHORT),
        TypeError,
        ["pair", r"got float32\[3\]"],
    ),
    "three": (
        lambda scan: scan(lambda c, x: (c, x, x), ZERO, SHORT),
        TypeError,
        ["pair", r"got .*(3|float32\[\].*float32\[\].*float32\[\])"],
    ),
    "None": (lambda scan: scan(lambda c, x: None, ZERO, SHORT), TypeError, ["pair", "got None"]),
    # the structure of the carry
    "one more leaf": (
        lambda scan: scan(lambda c, x: ((*c, x), x), (ZERO, ZERO), SHORT),
        TypeError,
        ["structure", r"\[2\]|length 2.*length 3"],
    ),
    "one less leaf": (
        lambda scan: scan(lambda c, x: ({"a": c["a"]}, x), {"a": ZERO, "lost": 0}, SHORT),
        TypeError,
        ["structure", "'lost'"],
    ),
    "another key": (
        lambda scan: scan(
            lambda c, x: ((c[0], {"new": c[1]["old"]}), x), (ZERO, {"old": 0}), SHORT
        ),
        TypeError,
        ["structure", r"\[1\]", "'new'", "'old'"],
    ),
    "a list for a tuple": (
        lambda scan: scan(lambda c, x: ([c[0], c[1]], x), (ZERO, ZERO), SHORT),
        TypeError,
        ["structure", "tuple", "list"],
    ),
    # dtypes and shapes
    "the dtype": (
        lambda scan: scan(lambda c, x: ((c[0], c[1].astype("float16")), x), (ZERO, ZERO), SHORT),
        TypeError,
        [r"\[1\]", "float32", "float16"],
    ),
    "the shape": (
        lambda scan: scan(lambda c, x: ({"a": c["a"][None]}, x), {"a": ZERO}, SHORT),
        TypeError,
        [r"\['a'\]", r"float32\[\]", r"float32\[1\]"],
    ),
    "two leaves": (
        lambda scan: scan(
            lambda c, x: ((c[0].astype("float16"), c[1][None], c[2]), x), (ZERO,) * 3, SHORT
        ),
        TypeError,
        [r"\[0\]", "float16"],
    ),
    # lengths
    "length and xs": (
        lambda scan: scan(lambda c, x: (c, None), 0, SHORT, length=4),
        ValueError,
        ["length", "4", "5"],
    ),
    "neither": (lambda scan: scan(lambda c, x: (c, None), 0), ValueError, ["length", "xs"]),
    "xs is a scalar": (
        lambda scan: scan(lambda c, x: (c, None), 0, [SHORT, 3]),
        ValueError,
        [r"\[1\]", "scalar|no leading axis"],
    ),
    "a length that is traced": (
        lambda scan: jax.jit(lambda n: scan(lambda c, _: (c, None), 0, None, n))(3),
        TypeError,
        ["length", "integer|concrete"],
    ),
    # leaves that are no arrays
    "text in the carry": (
        lambda scan: scan(lambda c, x: (c, x), {"a": ZERO, "b": "text"}, SHORT),
        TypeError,
        ["text|str"],
    ),
    "text in xs": (
        lambda scan: scan(lambda c, x: (c, x), ZERO, ["a", "b"]),
        TypeError,
        [r"xs\[0\] is the string 'a', expected an array"],
    ),
    "an array of text": (
        lambda scan: scan(lambda c, x: (c, x), ZERO, {"t": np.array(["a", "b"])}),
        TypeError,
        [r"xs\['t'\] is strings\[2\], expected an array of numbers"],
    ),
    "a list of numbers": (
        lambda scan: scan(lambda c, x: (c, x), ZERO, [1.0, 2.0]),
        ValueError,
        [r"xs\[0\] is a scalar.*jnp.asarray\(xs\) is one"],
    ),
}


@METHODS
@pytest.mark.parametrize("name", WRONG)
def test_messages(name, scan):
    call, error, said = WRONG[name]
    with pytest.raises(error) as raised:
        call(scan)
    message = str(raised.value)
    for pattern in said:
        assert re.search(pattern, message, re.DOTALL), (pattern, message)


def by_numpy(c, x):
    return np.sin(c) + x, None


def by_float(c, x):
    return c * float(x), None


def by_branch(c, x):
    return (c if c > 0 else x), None


def by_index(c, x):
    return c * [1.0, 2.0][x.astype(int)], None


def by_shape(c, x):
    return c + jnp.ones(x.astype(int)).sum(), None


CONCRETE = [by_numpy, by_float, by_branch, by_index, by_shape]
PLACE = r"tracing the function {} at " + re.escape(__file__)


@METHODS
@pytest.mark.parametrize("step", CONCRETE)
def test_what_jax_says_of_a_step_is_said_alone(step, scan):
    """The function and the line are the user's."""
    with pytest.raises(TypeError) as theirs:
        jax.lax.scan(step, ZERO, SHORT)
    with pytest.raises(type(theirs.value)) as ours:
        scan(step, ZERO, SHORT)
    assert str(ours.value) == str(theirs.value)
    assert re.search(PLACE.format(step.__name__), str(ours.value))


def chained(step):
    def of_chain(z, x):
        return step(z, x)[0]

    return of_chain


def counted(step):
    """With a counter in its carry, it is traced once more."""

    def of_counter(c, x):
        return (c[0] + 1, step(c[1], x)[0]), None

    return of_counter


CALLS = {
    "of_chain": lambda step: deeppcr.solve(deeppcr.Chain(chained(step), SHORT), ZERO),
    "step": lambda step: deeppcr.plan(step, ZERO, SHORT),
    "of_counter": lambda step: deeppcr.plan(counted(step), (0, ZERO), SHORT),
    "model": lambda step: deeppcr.diffusion.sample(
        lambda x, t: step(x, x)[0], SCHEDULE, SHORT, steps=3
    ),
}
SCHEDULE = deeppcr.diffusion.Schedule.from_config({"_class_name": "DDIMScheduler"})


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_name_the_users_function(name):
    def step(c, x):
        return by_numpy(c, x)

    said = PLACE.format({"model": "<lambda>"}.get(name, name))
    with pytest.raises(jax.errors.TracerArrayConversionError, match=said):
        CALLS[name](step)


@pytest.mark.parametrize("name", [*CALLS, "scan"])
def test_a_leaked_tracer_names_the_users_function(name):
    kept = []

    def step(c, x):
        kept.append(c)
        return jnp.tanh(c + x), None

    CALLS.get(name, lambda step: deeppcr.scan(step, ZERO, SHORT, method="newton"))(step)
    said = {"model": "<lambda>", "scan": "step"}.get(name, name)
    with pytest.raises(jax.errors.UnexpectedTracerError) as raised:
        kept[-1] + 1
    assert f"was {said} at {__file__}" in str(raised.value)


def test_a_step_that_is_an_object_is_named_and_not_printed():
    class Module:
        def __call__(self, z, x):
            return np.sin(z)

        def __repr__(self):
            raise AssertionError("a printed module may copy all its arrays from the device")

    for step in (Module(), partial(Module()), jax.tree_util.Partial(Module())):
        with pytest.raises(jax.errors.JAXTypeError, match=PLACE.format("__call__")):
            deeppcr.solve(deeppcr.Chain(step, SHORT), ZERO)
