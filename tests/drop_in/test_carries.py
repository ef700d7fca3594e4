"""Carries of every kind: `deeppcr.scan` takes what `jax.lax.scan` takes, and returns the same."""

import dataclasses
from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.drop_in.kinds import (
    INIT,
    LENGTH,
    METHODS,
    SCANS,
    WEIGHT,
    XS,
    assert_same,
    by_lax,
    floats,
    pairs,
    together,
)
from tests.problems import normal

Pair = namedtuple("Pair", ["state", "count"])


@partial(jax.tree_util.register_dataclass, data_fields=["state", "count"], meta_fields=["name"])
@dataclasses.dataclass(frozen=True)
class Named:
    state: object
    count: object
    name: str = "a carry"


def split(key):
    """The next key, and two numbers from -1 to 1 that depend on it, of few operations."""
    key = jax.random.fold_in(key, 1)
    return key, jax.random.key_data(key).astype(float) / 2**31 - 1


def toggle(flag, _):
    return ~flag, flag


DISCRETE = {
    "a counter": (lambda n, x: (n + 1, n), jnp.int32(3)),
    "a flag": (toggle, jnp.array([True, False])),
    "a Python flag": (toggle, True),
    "a new key": (lambda k, x: split(k), jax.random.key(0)),
    "no dtype": (lambda c, x: (c, x), np.zeros((), jax.dtypes.float0)),
    "None": (lambda c, x: (c, x), None),
    "an empty structure": (lambda c, x: (c, {"x": x}), {"a": (), "b": [None]}),
}


def discrete(scan, names=tuple(DISCRETE)):
    return {name: scan(*DISCRETE[name], XS, reverse=True) for name in names}


def test_no_floats():
    assert_same(together(discrete, deeppcr.scan), by_lax(discrete))


def everything(w, c, x):
    """A step whose carry has a leaf of every kind; the floats see each of the others."""
    old, old_draw = split(c["old"])
    new, new_draw = split(c["new"])
    z = jnp.tanh(w @ c["z"] + x + 0.1 * old_draw)
    z = jnp.where(new_draw > 0, 0.5 * z, z)  # a dropout
    z = jnp.where(c["flag"], z, c["z"])  # a mask that toggles
    z = z * jnp.array([1.0, 0.5, 0.25])[c["count"] % 3]  # a table
    after = {
        "z": z,
        "count": c["count"] + 1,
        "small": c["small"] * jnp.uint8(3),
        "flag": ~c["flag"],
        "old": old,
        "new": new,
        "empty": c["empty"],
        "nothing": c["nothing"],
        "none": None,
        # No derivative: sums of bfloat16 cotangents depend on their order.
        "half": c["half"] * 0.5 + jax.lax.stop_gradient(z[0]).astype(jnp.bfloat16),
        "complex": c["complex"] * jnp.complex128(0.5 + 0.5j) + z[0].astype(complex),
    }
    return after, (z * c["count"].astype(z.dtype), c["flag"], new, c["complex"])


EVERYTHING = {
    "z": INIT,
    "count": jnp.int32(0),
    "small": jnp.uint8(1),
    "flag": jnp.array([True, False]),
    "old": jax.random.PRNGKey(1),
    "new": jax.random.key(2),
    "empty": jnp.zeros((0, 3)),
    "nothing": np.zeros((2,), jax.dtypes.float0),
    "none": None,
    "half": jnp.ones((), jnp.bfloat16),
    "complex": jnp.array(1.0 + 2.0j),
}


def gradients(scan, step, init, reverse=False):
    """The results of a scan, and the derivatives of the sum of their squares."""

    def value(w, z, c, xs):
        results = scan(partial(step, w), init | {"z": z} | c, xs, reverse=reverse)
        return floats(results), results

    rest = {name: init[name] for name in ("complex",) if name in init}
    results, found = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3), has_aux=True))(
        WEIGHT, init["z"], rest, XS
    )
    # Whether jax returns a gradient weakly typed depends on its rules, not on what is differentiated.
    return results, jax.tree.map(lambda g: jax.lax.convert_element_type(g, g.dtype), found)


def with_everything(scan):
    return gradients(scan, everything, EVERYTHING, reverse=True)


def test_every_kind_beside_floats():
    found = with_everything(partial(deeppcr.scan, method="newton", adjoint="sequential"))
    assert_same(found, with_everything(jax.lax.scan), 1e-5)


DEPENDENT = {
    "a mode": (lambda c, x: jnp.where(jnp.sum(c["z"]) > 0, 1, c["mode"]), jnp.array(0)),
    "a flag": (lambda c, x: (c["z"] + x > 0) ^ c["mode"], jnp.array([True, False])),
    "a key": (
        lambda c, x: jax.random.fold_in(c["mode"], (c["z"][0] > 0).astype(jnp.uint32)),
        jax.random.key(0),
    ),
    "a branch": (
        lambda c, x: jax.lax.cond(c["z"][0] > 0, lambda n: n + 1, lambda n: n - 1, c["mode"]),
        jnp.array(0),
    ),
}


def dependent(name):
    change, init = DEPENDENT[name]

    def step(c, x):
        mode = change(c, x)
        number = jax.random.bits(mode) if name == "a key" else mode
        up = number.astype(jnp.int64) % 2 == 0
        z = jnp.where(up, jnp.sin(c["z"] + x), 0.5 * c["z"])
        return {"count": c["count"] + 1, "mode": mode, "z": z}, (z, mode)

    return step, {"count": jnp.array(0), "mode": init, "z": INIT}


def all_dependent(scan):
    """The results of all of them, and the gradient of their squares."""

    def value(z):
        cases = {name: dependent(name) for name in DEPENDENT}
        results = {name: scan(f, init | {"z": z}, XS) for name, (f, init) in cases.items()}
        return floats(results), results

    return jax.jit(jax.value_and_grad(value, has_aux=True))(INIT)


def test_a_mode_that_depends_on_the_floats_runs_as_lax_scan():
    assert_same(all_dependent(deeppcr.scan), all_dependent(jax.lax.scan))


@pairs(DEPENDENT, ["a mode"], ("newton", "newton, pcr", "newton, autodiff"))
def test_newton_refuses_a_mode_that_depends_on_the_floats(case, scan):
    step, init = dependent(case)
    with pytest.raises(TypeError, match=r"'mode'\].*depends on the float") as raised:
        scan(step, init, XS)
    assert "'count'" not in str(raised.value)


COMPLEX = jax.lax.complex(normal(3, 2, 2, scale=0.4), normal(4, 2, 2, scale=0.4))


def holomorphic(w, z, x):
    return (new := jnp.sin(w @ z) + x), new * z


COMPLEX_STEPS = {
    "holomorphic": holomorphic,
    "of its parts": lambda w, z, x: (
        (new := jax.lax.complex(jnp.tanh((w @ z).real), jnp.sin(z.imag) * z.real) + x),
        new.real,
    ),
}
COMPLEX_XS = XS.astype(complex)


def of_complex_carries(scan, names):
    """By every part of its arguments; tangents and holomorphic gradients of the first."""
    first, *_ = steps = [COMPLEX_STEPS[name] for name in names]

    def value(w, z, xs):
        results = [scan(partial(step, w), z, xs) for step in steps]
        return floats(results), results

    def last(z):
        return scan(partial(first, COMPLEX), z, COMPLEX_XS)[0]

    return (
        jax.value_and_grad(value, (0, 1, 2), has_aux=True)(COMPLEX, COMPLEX[0], COMPLEX_XS),
        jax.jacrev(last, holomorphic=True)(COMPLEX[0]) if first is holomorphic else None,
        jax.jvp(last, (COMPLEX[0],), (COMPLEX[1],)),
    )


@pytest.mark.parametrize(
    ("mode", "names"), [("auto", list(COMPLEX_STEPS)[:2]), ("newton, pcr", ["of its parts"])]
)
def test_complex_carries(mode, names):
    found, expected = (
        together(of_complex_carries, each, names) for each in (SCANS[mode], jax.lax.scan)
    )
    assert_same(found, expected)


def narrow(dtype):
    return jax.device_put(np.arange(LENGTH).astype(dtype))


def adds(c, x):
    return c + x, c


WEAK = {
    "0 and floats": (adds, 0, narrow(jnp.float32)),
    "0. and bfloat16": (adds, 0.0, narrow(jnp.bfloat16)),
    "0 and int8": (adds, 0, narrow(jnp.int8)),
    "a numpy array": (adds, np.array(0.0), narrow(jnp.float64)),
    "it stays weak": (lambda c, x: (c * 2.0, c), 0.5, narrow(jnp.float32)),
    "a number is returned": (lambda c, x: (1.0, c), 0.0, narrow(jnp.float32)),
    "one leaf of two": (lambda c, x: ((c[0] + x, c[1] + 1), c[0]), (0, 0), narrow(jnp.float32)),
    "beside a strong one": (
        lambda c, x: ((c[0] + x, c[1] * c[0]), c[1]),
        (0.0, jnp.ones((), jnp.bfloat16)),
        narrow(jnp.bfloat16),
    ),
}


def weakly(scan, names=tuple(WEAK)):
    return {name: scan(*WEAK[name]) for name in names}


def test_weakly_typed_first_carries():
    assert_same(together(weakly, deeppcr.scan), together(weakly, jax.lax.scan), 1e-6)


def test_weakly_typed_first_carries_by_newton():
    scan = partial(deeppcr.scan, method="newton")
    names = "0. and bfloat16", "beside a strong one"
    assert_same(together(weakly, scan, names), together(weakly, jax.lax.scan, names), 1e-6)


def test_the_gradient_by_a_weakly_typed_first_carry():
    def gradient(scan):
        def value(z, x):
            return scan(lambda c, x: (jnp.sin(c) + x, c), z, x)[0].sum()

        return jax.grad(value, argnums=(0, 1))(0.5, narrow(jnp.float32))

    scan = partial(deeppcr.scan, method="newton", adjoint="sequential")
    assert_same(together(gradient, scan), together(gradient, jax.lax.scan), 1e-5)


def structured(scan):
    def step(c, x):
        state, count = jax.tree.leaves(c)[:: -1 if type(c) is dict else 1]
        after = {"state": jnp.tanh(WEIGHT @ state + x), "count": count + 1}
        y = (None, {"c": c, "x": [x]})
        return (after if type(c) is dict else type(c)(**after)), y

    return [
        scan(step, init, XS)
        for init in (Pair(INIT, 0), Named(INIT, 0), {"state": INIT, "count": 0})
    ]


@METHODS
def test_structures_are_kept(scan):
    assert_same(together(structured, scan), by_lax(structured))


def of_every_kind(scan):
    def step(z, x):
        z = jnp.where(x["flag"], jnp.tanh(z + x["x"]), z) + x["n"].astype(z.dtype)
        return z + 0.1 * jax.random.normal(x["key"], (2,)), x["empty"]

    xs = {
        "x": XS,
        "n": jnp.arange(LENGTH),
        "flag": jnp.arange(LENGTH) % 2 == 0,
        "key": jax.random.split(jax.random.key(0), LENGTH),
        "empty": jnp.zeros((LENGTH, 0)),
        "none": None,
        "float0": np.zeros((LENGTH,), jax.dtypes.float0),
    }
    return scan(step, INIT, xs, reverse=True)


@METHODS
def test_inputs_of_every_kind(scan):
    assert_same(together(of_every_kind, scan), by_lax(of_every_kind))
