"""What `deeppcr.scan` says of wrong arguments: at least what `jax.lax.scan` says."""

import re
from collections import namedtuple

import jax
import jax.numpy as jnp
import pytest

from tests.drop_in.kinds import METHODS

Pair = namedtuple("Pair", ["first", "second"])
SHORT = jnp.zeros(5, jnp.float32)
ZERO = jnp.zeros((), jnp.float32)
WRONG = {
    # f
    "f is a number": (lambda scan: scan(3, 0.0, SHORT), TypeError, ["f", "3", "callable|function"]),
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
