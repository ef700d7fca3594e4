"""What goes in, what comes out, what is refused, and that nothing is executed."""

import copy
import dataclasses
import pickle
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import depth
from tests.depth.cases import b, f, sines


def affine(params, x):
    return {"y": jnp.tanh(params["w"] @ x + params["b"]), "x": x, "none": None}


def never(*args):
    raise AssertionError("nothing may be executed")


ABSTRACT, W, B = {"w": f(8, 8), "b": f(8)}, np.ones((8, 8), np.float32), np.ones(8, np.float32)
GIVEN = {
    "abstract": (ABSTRACT, f(8)),
    "numpy": ({"w": W, "b": B}, B),
    "jax": ({"w": jnp.ones((8, 8)), "b": jnp.ones(8)}, jnp.ones(8)),
    "mixed": (ABSTRACT | {"b": B}, jnp.asarray(B)),
}


@pytest.mark.parametrize(("params", "x"), GIVEN.values(), ids=GIVEN)
def test_arguments_are_arrays_or_their_shapes(params, x):
    cost = depth.analyze(affine, params, x)
    assert cost.depth == 6  # dot over 8: 1 + 3; add 5, tanh 6
    assert cost.by_output == {"y": 6, "x": 0, "none": None}
    assert depth.serial_depth(affine, params, x) == 6


def test_a_jaxpr_of_either_kind():
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) + np.arange(8.0))(jnp.ones(8))
    assert depth.compute_depth(closed) == 2  # sin 1 + add 1
    assert depth.compute_depth(getattr(closed, "jaxpr", closed)) == 2


@pytest.mark.parametrize("function", [depth.analyze, depth.serial_depth])
@pytest.mark.parametrize("fn", [3, "sin", None, f(3)], ids=repr)
def test_what_is_no_function_is_named(function, fn):
    with pytest.raises(TypeError, match="fn must be a function"):
        function(fn, f(8))


@pytest.mark.parametrize(
    "jaxpr", [3, "jaxpr", None, jnp.sin, f(3)], ids=["number", "text", "none", "function", "shape"]
)
def test_what_is_no_jaxpr_is_named(jaxpr):
    with pytest.raises(TypeError, match="Jaxpr"):
        depth.compute_depth(jaxpr)


X = f(8)
COSTS = [  # work and bytes of a program, and its arguments
    (0, 0, "nothing is done", lambda x: x, X),
    (8, 64, "8 sines; reads and writes 8 of 4 bytes", jnp.sin, X),
    (8, 32, "8 sines; reads and writes 8 of 2 bytes", jnp.sin, f(8, dtype="bfloat16")),
    (8, 128, "8 sines; reads and writes 8 of 8 bytes", jnp.sin, f(8, dtype="float64")),
    (15, 132, "8 products, 7 sums; 96 and 32 + 4 bytes", lambda x, y: jnp.sum(x * y), X, X),
    (0, 64, "a move: no work; 32 bytes in, 32 out", lambda x: x.reshape(2, 4), X),
    (8, 72, "8 comparisons; 32 + 32 + 8 bytes", lambda x, y: x < y, X, X),
    (8, 96, "8 casts; 32 + 64 bytes", lambda x: x.astype("float64"), X),
    (128, 320, "2 for each of 64; 256 + 32 + 32 bytes", jnp.matmul, f(8, 8), X),
    (2160, 2664, "9 times 240; 9 times 296", jax.vmap(jnp.matmul), f(9, 4, 6), f(9, 6, 5)),
    (24, 192, "3 times 8; 3 times 64 bytes", lambda x: sines(x, 3), X),
    (8, 64, "as without the calls", jax.jit(jax.jit(jnp.sin)), X),
    (
        72,
        576,
        "9 times 8; 9 times 64",
        lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, length=9)[0],
        X,
    ),
    (8, 64, "what no output needs is not done", lambda x: (sines(x, 9), jnp.sin(x))[1], X),
    (
        *(25, 197, "cast 1, the branch with more work 24; 1 + 4 and 3 * 64 bytes"),
        *(lambda p, x: lax.cond(p, lambda x: sines(x, 3), jnp.sin, x), b(), X),
    ),
]


@pytest.mark.parametrize("row", COSTS, ids=lambda row: row[2])
def test_work_and_bytes(row):
    work, traffic, why, program, *args = row
    cost = depth.analyze(program, *args)
    assert (cost.work, cost.bytes) == (work, traffic), why


def branched(w, x):
    y = jnp.tanh(w @ x)
    side = jnp.cos(x) * 2.0
    for _ in range(3):
        y = jnp.sin(y)
    return jnp.sum(y * side)


def test_the_critical_path_by_primitive_and_line():
    cost = depth.analyze(branched, f(8, 8), f(8))
    first = branched.__code__.co_firstlineno
    got = {
        (row.primitive, row.location.line - first): (row.count, row.depth, row.work, row.bytes)
        for row in cost.critical_path
    }
    assert got == {
        ("dot_general", 1): (1, 4, 128, 320),  # 1 + 3
        ("tanh", 1): (1, 1, 8, 64),
        ("sin", 4): (3, 3, 24, 192),
        ("mul", 5): (1, 1, 8, 96),
        ("reduce_sum", 5): (1, 3, 7, 36),  # over 8
    }
    assert cost.depth == 12
    assert cost.work == 175 + 8 + 8  # beside the path a cosine and a product by 2
    depths = [row.depth for row in cost.critical_path]
    assert depths == sorted(depths, reverse=True)
    assert {row.location.function for row in cost.critical_path} == {"branched"}
    assert {row.location.file for row in cost.critical_path} == {__file__}


def test_the_table_is_short_and_says_what_counts():
    cost = depth.analyze(branched, f(8, 8), f(8))
    lines = str(cost).splitlines()
    assert len(lines) <= 20
    assert lines[0].split() == ["depth", "12"]
    assert str(cost.work) in lines[1]
    assert max(map(len, lines)) <= 100
    for row in cost.critical_path:
        line = row.location.line
        assert any(row.primitive in text and f"test_interface.py:{line}" in text for text in lines)
    names = (
        "sin cos tan tanh exp log sqrt abs floor ceil sign erf rsqrt lgamma digamma logistic neg"
    )
    functions = [getattr(lax, name) for name in (names + " cbrt atan expm1 log1p square").split()]
    long = depth.analyze(lambda x: reduce(lambda x, function: function(x), functions, x), f(8))
    assert long.depth == sum(row.depth for row in long.critical_path) == len(functions)
    assert len(str(long).splitlines()) <= 20


def test_nothing_is_executed():
    def program(x):
        jax.debug.callback(never, x)
        return jax.pure_callback(never, x, x) + lax.while_loop(
            lambda x: x[0] < 1, lambda x: x * 1, x
        )

    assert depth.analyze(program, f(8), trip_counts=10**9).depth > 10**9


def test_nothing_is_allocated():
    def program(x, w):
        return (
            jnp.sum(jnp.sin(x) + jnp.zeros(10**12, "float32")),
            jnp.sum(w @ w),
            lax.iota("int32", 2**31 - 1),
        )

    cost = depth.analyze(program, f(10**12), f(10**6, 10**6))
    assert cost.by_output == (42, 61, 1)  # sin, add, 40 for 10^12; 1 + 20, 40 for 10^12; iota
    assert cost.work > 2 * 10**18


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_costs_can_be_pickled_and_copied(again):
    def program(x):
        return lax.while_loop(
            lambda x: jnp.sum(x) < 1, lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x), x
        )

    cost = depth.analyze(program, f(8))
    other = again(again(cost))
    assert other == cost
    assert (str(other), repr(other)) == (str(cost), repr(cost))
    assert dataclasses.replace(other).seconds("H200") == cost.seconds("H200")
    compared = depth.compare(program, jnp.sin, f(8), device="H200")
    assert str(again(compared)) == str(compared)
    assert again(depth.devices["H200"]) == depth.devices["H200"]
    assert again(cost.unknown) == cost.unknown
