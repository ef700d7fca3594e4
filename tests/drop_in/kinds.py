"""What the tests of the drop-in share: all modes of `deeppcr.scan`, and one strict comparison."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import assert_agree, normal

LENGTH = 5
MODES = {
    "auto": {},
    "auto, pcr": {"adjoint": "pcr"},
    "auto, autodiff": {"adjoint": "autodiff"},
    "sequential": {"method": "sequential"},
    "sequential, backprop": {"method": "sequential", "adjoint": "backprop"},
    "newton": {"method": "newton"},
    "newton, backprop": {"method": "newton", "adjoint": "backprop"},
    "newton, pcr": {"method": "newton", "adjoint": "pcr"},
    "newton, autodiff": {"method": "newton", "adjoint": "autodiff"},
}
SCANS = {name: partial(deeppcr.scan, **options) for name, options in MODES.items()}


def over(*names):
    """One test for each of these modes; for all of them without names."""
    names = names or tuple(SCANS)
    return pytest.mark.parametrize("scan", [SCANS[name] for name in names], ids=names)


def pairs(cases, brief=(), modes=("auto", "newton, pcr")):
    """Every case in the first mode, those of ``brief`` in the others, too."""
    cells = [(case, modes[0]) for case in cases] + [(c, mode) for mode in modes[1:] for c in brief]
    names = [f"{getattr(case, '__name__', case)}-{mode}" for case, mode in cells]
    return pytest.mark.parametrize(
        ("case", "scan"), [(case, SCANS[mode]) for case, mode in cells], ids=names
    )


def together(f, *args):
    """``f(*args)`` as one program: operation by operation each of them is compiled alone."""
    return jax.jit(lambda: f(*args))()


@cache
def by_lax(f, *args):
    """``f(jax.lax.scan, *args)`` as one program, once for all modes."""
    return together(f, jax.lax.scan, *args)


METHODS = over("auto", "newton")

WEIGHT = normal(0, 2, 2, scale=0.5)
INIT, XS = normal(1, 2), normal(2, LENGTH, 2)


def assert_same(actual, expected, tolerance=1e-10):
    """Same structure, shapes, dtypes, weak types; values to ``tolerance`` of the largest entry."""
    assert jax.tree.map(kind, actual) == jax.tree.map(kind, expected)
    assert_agree(*(jax.tree.map(plain, tree) for tree in (actual, expected)), tolerance)


def plain(x):
    """An array that numpy can compare."""
    if x.dtype == jax.dtypes.float0:
        return np.zeros(x.shape)
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def kind(x):
    """What an array is, beside its values."""
    return x.shape, x.dtype, getattr(x, "weak_type", False)


def floats(tree):
    """The sum of squares of all real and complex entries."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(jnp.sum(jnp.abs(x.astype(jnp.complex128)) ** 2) for x in leaves)
