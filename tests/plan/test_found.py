"""A plan begins with what was found, and what Newton's method makes of it; `solve` does it."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import BlockDiagonal, Chain, Newton
from tests.problems import normal

XS = jnp.zeros((100, 8), jnp.float32)
Z0 = jnp.zeros(8, jnp.float32)
SHAPE = jax.ShapeDtypeStruct((8,), jnp.float32)
WEIGHT = normal(0, 8, 8).astype(jnp.float32)
DENSE = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + jnp.broadcast_to(x, z.shape)), XS)
PAIRS = Chain(lambda z, x: (jnp.sin(z[0] * z[1]) + x, z[0] + z[1]), XS)


def head(found):
    """The first lines of a plan: what was found."""
    return str(found).partition("\n\n")[0]


def rows(chain, x=SHAPE, **options):
    """Of the one chain that is found."""
    lines = head(deeppcr.plan(chain, x, **options)).splitlines()
    return {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}


@cache
def dense(method="auto", iterations=None):
    """Of the dense chain."""
    return rows(DENSE, Z0, method=method, iterations=iterations)


def test_an_elementwise_chain():
    found = rows(Chain(lambda z, x: 0.5 * jnp.tanh(z) + x, XS))
    assert found["chain"] == "100 steps, a state of 8 entries"
    assert found["structure"].startswith("elementwise")
    assert found["linearize"] == "diagonal (exact: Newton's method)"
    assert found["blocks"] == "3,200 bytes; full Jacobians of all steps: 25,600"
    assert found["window"] == "all steps at once"


def test_a_dense_chain_says_what_makes_it_dense():
    assert dense()["structure"].startswith("dense: dot_general")
    assert "test_found.py" in dense()["structure"]
    assert dense()["linearize"] == "dense (exact: Newton's method)"
    assert dense()["solver"] == "sequential"
    assert not {"because", "note"} & set(dense())


def test_a_chain_of_pairs():
    (found,) = deeppcr.plan(PAIRS, (SHAPE, SHAPE)).chains
    assert found.choice.linearization == BlockDiagonal(2)
    assert found.choice.is_exact
    assert found.structure.groups.shape == (8, 2)
    assert found.nbytes == 100 * 8 * 4 * 4
    assert "block-diagonal" in str(found)


def test_what_the_method_asks_for():
    diagonal = dense(Newton(linearize="diagonal", window=1000))
    assert "not exact: a quasi-Newton method" in diagonal["linearize"]
    assert diagonal["window"] == "all steps at once"
    assert dense(Newton(window=10))["window"] == "10 steps at once"
    pcr = dense("pcr", iterations=7)
    assert "exact" in pcr["linearize"]
    assert (pcr["solver"], pcr["iterations"]) == ("pcr", "7 (as given)")


def test_the_reason_for_a_window_and_for_a_diagonal():
    one = 4 * 8 * 8 * 4  # bytes: four copies of a float32 block
    window = dense(Newton(memory=70 * one))
    assert "70 at once" in window["because"]
    assert window["window"] == "70 steps at once"
    assert "only the diagonal" in dense(Newton(memory=40 * one))["because"]


def test_a_batch():
    batch = jnp.zeros((2, 8), jnp.float32)
    assert rows(DENSE, batch, batch_ndim=1)["chain"].endswith("of 8 entries, a batch of 2")
    mixed = Chain(lambda z, x: z - jnp.broadcast_to(z.mean(0) + x, z.shape), XS)
    found = rows(mixed, batch, batch_ndim=1)
    assert "examples of a batch may influence each other" in found["structure"]
    assert "not exact" in found["linearize"]


def test_shapes_alone():
    assert rows(DENSE) == dense()


def times(weight, x):
    return x @ weight


def test_layers():
    weights = [jax.tree_util.Partial(times, normal(i, 4, 4)) for i in range(6)]
    scales = [jax.tree_util.Partial(jnp.multiply, jnp.float64(c)) for c in range(4)]
    layers = [*weights, jnp.sin, *scales]
    x = jax.ShapeDtypeStruct((3, 4), jnp.float64)
    found = deeppcr.plan(layers, x)
    assert [chain.length for chain in found.chains] == [6, 4]
    assert [str(chain.choice.linearization) for chain in found.chains] == ["dense", "diagonal"]
    assert all(chain.layout.batch_shape == (3,) for chain in found.chains)
    text = str(found)
    assert text.startswith(str(deeppcr.layers.describe(layers, x)))
    assert "no equal neighbour" in text
    assert text.count("linearize") == 2


def test_layers_without_a_chain():
    layers, x = [jnp.sin, lambda x: x[:2]], jnp.ones(3)
    with pytest.raises(ValueError, match="no chain to plan") as error:
        deeppcr.plan(layers, x)
    assert str(deeppcr.layers.describe(layers, x)) in str(error.value)
    assert "linearize" not in str(error.value)


def test_what_is_left_to_jax():
    def shows(z, x):
        jax.debug.print("{}", x[0])
        return z + x

    clipped = jax.custom_vjp(lambda z: z)
    clipped.defvjp(lambda z: (z, None), lambda _, g: (jnp.clip(g, -1, 1),))
    said = rows(Chain(shows, XS))
    assert said["note"].startswith("runs as jax.lax.scan, since the step has side effects")
    assert "linearize" not in said
    found = deeppcr.plan(Chain(lambda z, x: clipped(z) + x, XS), SHAPE, device="H200")
    assert "jax.custom_vjp" in head(found)
    assert [one.name for one in found.main.gradient] == ["sequential / autodiff"]


def test_what_is_described_is_what_is_done():
    """The window that it names takes as many iterations as the same window by name."""
    newton = Newton(linearize="dense", memory=4 * 4 * 64 * 13)
    (found,) = deeppcr.plan(DENSE, SHAPE, method=newton).chains
    assert found.choice.window == 13
    chain = Chain(DENSE.step, normal(1, 100, 8).astype(jnp.float32))
    by_memory, by_window = (
        deeppcr.solve(chain, Z0, method=method).stats.iterations
        for method in (newton, Newton(linearize="dense", window=13))
    )
    assert by_memory == by_window


def test_bad_input():
    with pytest.raises(ValueError, match=r"method is 'newtown', expected"):
        deeppcr.plan(DENSE, Z0, method="newtown")
    with pytest.raises(TypeError, match=r"z0.*int32.*expected a floating"):
        deeppcr.plan(Chain(lambda z, x: z, XS), jnp.zeros(8, jnp.int32))
    with pytest.raises(ValueError, match=r"z0 has shape \[8\].*batch_ndim = 2"):
        deeppcr.plan(DENSE, Z0, batch_ndim=2)
    with pytest.raises(TypeError, match=r"state.*\[8\].*\[4\].*expected"):
        deeppcr.plan(Chain(lambda z, x: z[:4], XS), Z0)


@pytest.mark.parametrize(
    ("program", "more", "message"),
    [
        (lambda z, x: (jnp.tanh(z + x), None), (jnp.zeros((0, 3)),), "the chain has 0 steps"),
        (lambda z, x: (z, None), (object(),), "xs is object, expected an array"),
        ([], (), "program is an empty list, expected two layers or more"),
    ],
)
def test_there_is_nothing_to_plan(program, more, message):
    with pytest.raises(ValueError, match=message):
        deeppcr.plan(program, jnp.zeros(3), *more)
