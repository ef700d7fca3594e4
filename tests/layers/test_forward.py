"""`forward` of lists, of chains already stacked, and of lists that compile quickly."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Chain
from tests.layers.kinds import BATCH, N, X, dense, denses, gradients, loop
from tests.problems import assert_agree, normal

WEIGHTS = normal(0, N, 3, 3, scale=0.5)


def test_no_layers():
    assert_agree(deeppcr.forward([], X), X)


def test_a_chain_of_layers_already_stacked():
    layers = denses(N)
    chain = Chain.from_layers(layers, X)
    assert chain.length == N
    # The inputs of the chain are the stacked parameters of all layers, and so are their gradients.
    gradient, value = jax.jit(
        jax.grad(
            lambda chain: (deeppcr.forward(chain, X).sum(), deeppcr.forward(chain, X)), has_aux=True
        )
    )(chain)
    assert_agree(value, loop(layers, X))
    wanted = jax.jit(jax.grad(lambda layers: loop(layers, X).sum()))(layers)
    assert_agree(
        jax.tree.leaves(gradient), jax.tree.leaves(jax.tree.map(lambda *g: jnp.stack(g), *wanted))
    )


def test_the_gradient_of_the_last_state_is_not_padded_to_all_states():
    """Such a pad, fused with the gradient of the loss, takes XLA long to compile."""
    chain = Chain(lambda z, w: jnp.tanh(z @ w), WEIGHTS)
    loss = jax.grad(lambda chain: deeppcr.forward(chain, BATCH, method="sequential").sum())
    text = jax.jit(loss).lower(chain).as_text()
    one, all_states = (f"tensor<{n}x{len(BATCH)}x3xf64>" for n in (1, N))
    assert all_states in text
    pads = [line for line in text.splitlines() if "stablehlo.pad" in line]
    assert not [line for line in pads if f"({one}" in line and line.endswith(all_states)]


def test_a_chain_written_by_hand_takes_batches():
    chain = Chain(lambda z, w: jnp.tanh(z @ w), WEIGHTS)
    expected = loop([lambda z, w=w: jnp.tanh(z @ w) for w in WEIGHTS], BATCH)
    options = [{}, {"batch_ndim": 1}, {"batch_ndim": 0}]
    found = jax.jit(lambda x: [deeppcr.forward(chain, x, method="newton", **o) for o in options])
    assert_agree(found(BATCH), [expected] * 3)


def test_batches_by_shape():
    """A Jacobian block is one example's: w x w, whatever the batch."""
    layers = denses(N)
    for x, width in ((X, 3), (BATCH, 3), (normal(1, 2, 5, 3), 15)):
        program = str(
            jax.make_jaxpr(
                partial(deeppcr.forward, layers, method=deeppcr.Newton(linearize="dense"))
            )(x)
        )
        batch = x.shape[:1] if x.ndim > 1 else ()
        shape = ",".join(map(str, (N, *batch, width, width)))
        assert f"f64[{shape}]" in program


@pytest.fixture
def low_limit(monkeypatch):
    """Lists of 100 small layers are long."""
    monkeypatch.setattr("deeppcr.layers.segments.SHORT", 256)


def test_a_list_that_jit_traces_compiles_quickly(low_limit):
    """A short one as its loop, a long one as a scan; with options, or stacked, as a chain."""

    def loops(count, layers=None, **options):
        layers = layers or [dense(i) for i in range(count)]
        run = partial(deeppcr.forward, **options)
        found = [str(equation.primitive) for equation in jax.make_jaxpr(run)(layers, X).eqns]
        return {name: found.count(name) for name in ("tanh", "scan", "solve_chain")}

    chain = {"tanh": 0, "scan": 0, "solve_chain": 1}
    small = [jax.tree_util.Partial(jax.lax.tanh)] * 100
    assert loops(4) == {"tanh": 4, "scan": 0, "solve_chain": 0}
    assert loops(100, small) == {"tanh": 100, "scan": 0, "solve_chain": 0}
    assert loops(100) == {"tanh": 0, "scan": 1, "solve_chain": 0}
    assert loops(4, method="sequential") == loops(100, adjoint="backprop") == chain
    assert loops(4, deeppcr.stack([dense(i) for i in range(4)])) == chain


def test_a_long_list_that_compiles_quickly(low_limit):
    layers = denses(100)
    actual, expected = (
        jax.jit(lambda layers, x, run=run: gradients(run, list, layers, x))(layers, BATCH)
        for run in (deeppcr.forward, loop)
    )
    assert_agree(actual, expected)


def test_a_list_without_options_names_what_is_wrong():
    layers = [dense(i) for i in range(4)]
    with pytest.raises(ValueError, match="at least batch_ndim = 3 axes"):
        deeppcr.forward(layers, X, batch_ndim=3)
    with pytest.raises(ValueError, match="at least batch_ndim = 3 axes"):
        deeppcr.forward(layers[:1], X, batch_ndim=3, method="newton")
    with pytest.raises(TypeError, match=r"layers\[2\] \(Dense\) was given float64\[3\]"):
        deeppcr.forward([*layers[:2], dense(2, 5), layers[3]], X)
