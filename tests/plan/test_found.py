"""A plan begins with what was found, and what Newton's method makes of it; `solve` does it."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import BlockDiagonal, Chain, Newton
from tests.problems import doubled_backwards, normal

XS = jnp.zeros((100, 8), jnp.float32)
Z0 = jnp.zeros(8, jnp.float32)
WEIGHT = normal(0, 8, 8).astype(jnp.float32)
ELEMENTWISE = Chain(lambda z, x: 0.5 * jnp.tanh(z) + x, XS)
DENSE = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + jnp.broadcast_to(x, z.shape)), XS)
PAIRS = Chain(lambda z, x: (jnp.sin(z[0] * z[1]) + x, z[0] + z[1]), XS)


def head(found):
    """The first lines of a plan: what was found."""
    return str(found).partition("\n\n")[0]


def rows(chain, x, **options):
    """Of the one chain that is found."""
    lines = head(deeppcr.plan(chain, x, **options)).splitlines()
    return {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}


def row(chain, x, name, **options):
    return rows(chain, x, **options)[name]


def test_an_elementwise_chain():
    assert row(ELEMENTWISE, Z0, "chain") == "100 steps, a state of 8 entries"
    assert row(ELEMENTWISE, Z0, "structure").startswith("elementwise")
    assert row(ELEMENTWISE, Z0, "linearize") == "diagonal (exact: Newton's method)"
    assert row(ELEMENTWISE, Z0, "blocks") == "3,200 bytes; full Jacobians of all steps: 25,600"
    assert row(ELEMENTWISE, Z0, "window") == "all steps at once"


def test_a_dense_chain_says_what_makes_it_dense():
    assert row(DENSE, Z0, "structure").startswith("dense: dot_general")
    assert "test_found.py" in row(DENSE, Z0, "structure")
    assert row(DENSE, Z0, "linearize") == "dense (exact: Newton's method)"


def test_a_chain_of_pairs():
    (found,) = deeppcr.plan(PAIRS, (Z0, Z0)).chains
    assert found.choice.linearization == BlockDiagonal(2)
    assert found.choice.is_exact
    assert found.structure.groups.shape == (8, 2)
    assert found.nbytes == 100 * 8 * 4 * 4
    assert "block-diagonal" in str(found)


def test_what_the_method_asks_for():
    assert "not exact: a quasi-Newton method" in row(
        DENSE, Z0, "linearize", method=Newton(linearize="diagonal")
    )
    assert "kept for 3 iterations" in row(DENSE, Z0, "linearize", method=Newton(jacobian_every=3))
    assert row(DENSE, Z0, "window", method=Newton(window=10)) == "10 steps at once"
    assert row(DENSE, Z0, "window", method=Newton(window=1000)) == "all steps at once"
    assert "exact" in row(DENSE, Z0, "linearize", method="pcr")


def test_the_reason_for_a_window_and_for_a_diagonal():
    one = 4 * 8 * 8 * 4  # bytes: four copies of a float32 block
    assert "70 at once" in row(DENSE, Z0, "because", method=Newton(memory=70 * one))
    assert row(DENSE, Z0, "window", method=Newton(memory=70 * one)) == "70 steps at once"
    assert "only the diagonal" in row(DENSE, Z0, "because", method=Newton(memory=40 * one))
    assert "because" not in rows(DENSE, Z0)


def test_a_batch():
    z0 = jnp.zeros((5, 8), jnp.float32)
    assert row(DENSE, z0, "chain", batch_ndim=1) == "100 steps, a state of 8 entries, a batch of 5"
    assert row(DENSE, z0, "chain") == "100 steps, a state of 40 entries"
    mixed = Chain(lambda z, x: z - jnp.broadcast_to(z.mean(0) + x, z.shape), XS)
    assert "examples of a batch may influence each other" in row(
        mixed, z0, "structure", batch_ndim=1
    )
    assert "not exact" in row(mixed, z0, "linearize", batch_ndim=1)


def test_shapes_alone():
    struct = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert rows(DENSE, struct) == rows(DENSE, Z0)
    assert rows(Chain(PAIRS.step, XS), (struct, struct)) == rows(PAIRS, (Z0, Z0))
    assert "12 steps" in str(deeppcr.plan(Chain(lambda z, _: jnp.sin(z), length=12), 0.5))
    narrow = Chain(lambda z, x: jnp.tanh(z) + x, XS.astype(jnp.bfloat16))
    assert "elementwise" in str(deeppcr.plan(narrow, jax.ShapeDtypeStruct((8,), jnp.bfloat16)))


def times(weight, x):
    return x @ weight


def test_layers():
    weights = [jax.tree_util.Partial(times, normal(i, 8, 8)) for i in range(6)]
    scales = [jax.tree_util.Partial(jnp.multiply, jnp.float64(c)) for c in range(4)]
    layers = [*weights, jnp.sin, *scales]
    x = jnp.ones((3, 8))
    found = deeppcr.plan(layers, x)
    assert [chain.length for chain in found.chains] == [6, 4]
    assert [str(chain.choice.linearization) for chain in found.chains] == ["dense", "diagonal"]
    assert all(chain.layout.batch_shape == (3,) for chain in found.chains)
    assert deeppcr.plan(layers, x, batch_ndim=0).chains[1].layout.width == 24
    text = str(found)
    assert text.startswith(str(deeppcr.layers.describe(layers, x)))
    assert "no equal neighbour" in text
    assert text.count("linearize") == 2
    assert str(deeppcr.plan(layers, jax.ShapeDtypeStruct((3, 8), jnp.float64))) == text


def test_layers_without_a_chain():
    layers, x = [jnp.sin, lambda x: x[:2]], jnp.ones(3)
    with pytest.raises(ValueError, match="no chain to plan") as error:
        deeppcr.plan(layers, x)
    assert str(deeppcr.layers.describe(layers, x)) in str(error.value)
    assert "linearize" not in str(error.value)


def test_the_solver_and_the_iterations():
    found = deeppcr.plan(DENSE, Z0, iterations=7)
    assert row(DENSE, Z0, "iterations", iterations=7) == "7 (as given)"
    assert row(DENSE, Z0, "solver", method="pcr") == "pcr"
    assert found.main.newton.method.linear == deeppcr.Recurrence()
    assert "solver      sequential" in head(found)


def test_what_is_left_to_jax():
    def shows(z, x):
        jax.debug.print("{}", x[0])
        return z + x

    clipped = jax.custom_vjp(lambda z: z)
    clipped.defvjp(lambda z: (z, None), lambda _, g: (jnp.clip(g, -1, 1),))
    said = rows(Chain(shows, XS), Z0)
    assert said["note"].startswith("runs as jax.lax.scan, since the step has side effects")
    assert "linearize" not in said
    assert "jax.custom_vjp" in row(Chain(lambda z, x: clipped(z) + x, XS), Z0, "note")
    assert "note" not in rows(Chain(lambda z, x: doubled_backwards(z) + x, XS), Z0)
    assert "note" not in rows(DENSE, Z0)


def test_what_is_described_is_what_is_done():
    """The window that it names takes as many iterations as the same window by name."""
    newton = Newton(linearize="dense", memory=4 * 4 * 64 * 13)
    (found,) = deeppcr.plan(DENSE, Z0, method=newton).chains
    assert found.choice.window == 13
    by_memory, by_window = (
        deeppcr.solve(
            Chain(DENSE.step, normal(1, 100, 8).astype(jnp.float32)), Z0, method=method
        ).stats.iterations
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
