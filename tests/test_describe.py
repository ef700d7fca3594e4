"""`describe` says what Newton would do, and `solve` does it."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import BlockDiagonal, Chain, Frozen, Newton, describe
from tests.problems import normal

XS = jnp.zeros((100, 8), jnp.float32)
Z0 = jnp.zeros(8, jnp.float32)
WEIGHT = normal(0, 8, 8).astype(jnp.float32)
ELEMENTWISE = Chain(lambda z, x: 0.5 * jnp.tanh(z) + x, XS)
DENSE = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + jnp.broadcast_to(x, z.shape)), XS)
PAIRS = Chain(lambda z, x: (jnp.sin(z[0] * z[1]) + x, z[0] + z[1]), XS)


def rows(chain, x, **options):
    """Of the one chain that is found."""
    text = str(describe(chain, x, **options))
    return dict(
        line.split("  ", 1) if line[:9].strip() else ("", line) for line in text.splitlines()
    )


def row(chain, x, name, **options):
    return {key.strip(): value.strip() for key, value in rows(chain, x, **options).items()}[name]


def test_an_elementwise_chain():
    assert row(ELEMENTWISE, Z0, "chain") == "100 steps, a state of 8 entries"
    assert row(ELEMENTWISE, Z0, "structure").startswith("elementwise")
    assert row(ELEMENTWISE, Z0, "linearize") == "diagonal (exact: Newton's method)"
    assert row(ELEMENTWISE, Z0, "blocks") == "3,200 bytes; full Jacobians of all steps: 25,600"
    assert row(ELEMENTWISE, Z0, "window") == "all steps at once"


def test_a_dense_chain_says_what_makes_it_dense():
    assert row(DENSE, Z0, "structure").startswith("dense: dot_general")
    assert "test_describe.py" in row(DENSE, Z0, "structure")
    assert row(DENSE, Z0, "linearize") == "dense (exact: Newton's method)"


def test_a_chain_of_pairs():
    (found,) = describe(PAIRS, (Z0, Z0)).chains
    assert found.choice.linearization == BlockDiagonal(2)
    assert found.choice.is_exact
    assert found.structure.groups.shape == (8, 2)
    assert found.nbytes == 100 * 8 * 4 * 4
    assert "block-diagonal" in str(found)


def test_what_the_method_asks_for():
    assert "not exact: a quasi-Newton method" in row(
        DENSE, Z0, "linearize", method=Newton(linearize="diagonal")
    )
    assert "kept for 3 iterations" in row(
        DENSE, Z0, "linearize", method=Newton(linearize=Frozen(3))
    )
    assert row(DENSE, Z0, "window", method=Newton(window=10)) == "10 steps at once"
    assert row(DENSE, Z0, "window", method=Newton(window=1000)) == "all steps at once"
    assert "exact" in row(DENSE, Z0, "linearize", method="pcr")


def test_the_reason_for_a_window_and_for_a_diagonal():
    one = 4 * 8 * 8 * 4  # bytes: four copies of a float32 block
    assert "70 at once" in row(DENSE, Z0, "because", method=Newton(memory=70 * one))
    assert row(DENSE, Z0, "window", method=Newton(memory=70 * one)) == "70 steps at once"
    assert "diagonal only" in row(DENSE, Z0, "because", method=Newton(memory=40 * one))
    assert "because" not in str(describe(DENSE, Z0))


def test_a_batch():
    z0 = jnp.zeros((5, 8), jnp.float32)
    assert row(DENSE, z0, "chain", batch_ndim=1) == "100 steps, a state of 8 entries, 5 examples"
    assert row(DENSE, z0, "chain") == "100 steps, a state of 40 entries"
    mixed = Chain(lambda z, x: z - jnp.broadcast_to(z.mean(0) + x, z.shape), XS)
    assert "examples of a batch may influence each other" in row(
        mixed, z0, "structure", batch_ndim=1
    )
    assert "not exact" in row(mixed, z0, "linearize", batch_ndim=1)


def test_shapes_alone():
    struct = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert str(describe(DENSE, struct)) == str(describe(DENSE, Z0))
    assert str(describe(Chain(PAIRS.step, XS), (struct, struct))) == str(describe(PAIRS, (Z0, Z0)))
    assert "12 steps" in str(describe(Chain(lambda z, _: jnp.sin(z), length=12), 0.5))
    narrow = Chain(lambda z, x: jnp.tanh(z) + x, XS.astype(jnp.bfloat16))
    assert "elementwise" in str(describe(narrow, jax.ShapeDtypeStruct((8,), jnp.bfloat16)))


def times(weight, x):
    return x @ weight


def test_layers():
    weights = [jax.tree_util.Partial(times, normal(i, 8, 8)) for i in range(6)]
    scales = [jax.tree_util.Partial(jnp.multiply, jnp.float64(c)) for c in range(4)]
    layers = [*weights, jnp.sin, *scales]
    x = jnp.ones((3, 8))
    found = describe(layers, x)
    assert [chain.length for chain in found.chains] == [6, 4]
    assert [str(chain.choice.linearization) for chain in found.chains] == ["dense", "diagonal"]
    assert all(chain.layout.batch_shape == (3,) for chain in found.chains)
    assert describe(layers, x, batch_ndim=0).chains[1].layout.width == 24
    text = str(found)
    assert "no neighbour is like it" in text
    assert text.count("linearize") == 2
    assert str(describe(layers, jax.ShapeDtypeStruct((3, 8), jnp.float64))) == text


def test_layers_without_a_chain():
    found = describe([jnp.sin, lambda x: x[:2]], jnp.ones(3))
    assert found.chains == ()
    assert "linearize" not in str(found)


def test_what_is_described_is_what_is_done():
    """The window that it names takes as many iterations as the same window by name."""
    newton = Newton(linearize="dense", memory=4 * 4 * 64 * 13)
    (found,) = describe(DENSE, Z0, method=newton).chains
    assert found.choice.window == 13
    by_memory, by_window = (
        deeppcr.solve(
            Chain(DENSE.step, normal(1, 100, 8).astype(jnp.float32)), Z0, method=method
        ).stats.iterations
        for method in (newton, Newton(linearize="dense", window=13))
    )
    assert by_memory == by_window


@pytest.mark.parametrize("method", ["sequential", "auto", deeppcr.Sequential()], ids=str)
def test_a_method_that_does_not_linearise(method):
    with pytest.raises(
        ValueError, match=r"method is .*equential|method is 'auto'.*expected Newton"
    ):
        describe(DENSE, Z0, method=method)
    with pytest.raises(ValueError, match=r"method is .*expected Newton"):
        describe([], Z0, method=method)


def test_bad_input():
    with pytest.raises(ValueError, match=r"method is 'newtown', expected"):
        describe(DENSE, Z0, method="newtown")
    with pytest.raises(TypeError, match=r"x.*int32.*expected a floating"):
        describe(Chain(lambda z, x: z, XS), jnp.zeros(8, jnp.int32))
    with pytest.raises(ValueError, match=r"x has shape \[8\].*batch_ndim = 2"):
        describe(DENSE, Z0, batch_ndim=2)
    with pytest.raises(TypeError, match=r"state.*\[8\].*\[4\].*expected"):
        describe(Chain(lambda z, x: z[:4], XS), Z0)
