"""`deeppcr.nn.RNN` beside `flax.nnx.RNN`, and the same of linen: values, carries, gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import deeppcr
from tests.problems import normal

BATCH, TIME, FEATURES, UNITS = 2, 5, 3, 4
XS = normal(0, BATCH, TIME, FEATURES).astype("float32")
LENGTHS = jnp.array([3, 5])


def same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def cell_of(name, seed=0):
    return getattr(nnx, name)(FEATURES, UNITS, rngs=nnx.Rngs(seed))


class Dropped(nnx.Module):
    """A GRU cell with layer norm, whose inputs are dropped by a mask of each step."""

    def __init__(self, rngs):
        self.cell, self.norm = cell_of("GRUCell"), nnx.LayerNorm(FEATURES, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    num_feature_axes = 1

    def initialize_carry(self, shape, rngs=None):
        return self.cell.initialize_carry(shape, rngs)

    def __call__(self, carry, x):
        return self.cell(carry, self.dropout(self.norm(x)))


class Counted(nnx.Module):
    """A cell that keeps a running mean of its carry over the batch, and reads it."""

    def __init__(self):
        self.cell, self.mean = cell_of("SimpleCell"), nnx.BatchStat(jnp.zeros(UNITS, "float32"))

    num_feature_axes = 1

    def initialize_carry(self, shape, rngs=None):
        return self.cell.initialize_carry(shape, rngs)

    def __call__(self, carry, x):
        carry, y = self.cell(carry, x)
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * carry.mean(0)
        return carry, y - self.mean[...][None]


@pytest.mark.parametrize(
    ("cell", "method"), [("SimpleCell", "newton"), ("OptimizedLSTMCell", "auto")]
)
def test_values_and_gradients(cell, method):
    def loss(layer, xs):
        carry, ys = layer(xs, return_carry=True, seq_lengths=LENGTHS)
        total = (ys**2).sum() + sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(carry))
        return total, (carry, ys)

    @nnx.jit
    def differentiated(layers, xs):
        found = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        return [found(layer, xs) for layer in layers]

    layers = nnx.RNN(cell_of(cell)), deeppcr.nn.RNN(cell_of(cell), method=method)
    (want, of_flax), (got, of_ours) = differentiated(layers, XS)
    same(got, want)
    same(jax.tree.leaves(of_ours), jax.tree.leaves(of_flax))


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, LENGTHS),
        ({"reverse": True}, None),
        ({"reverse": True, "keep_order": True, "return_carry": True}, LENGTHS),
        ({"time_major": True, "reverse": True, "return_carry": True}, LENGTHS),
    ],
    ids=lambda options: " ".join(options) if isinstance(options, dict) else "",
)
def test_options_of_the_layer_and_of_the_call(options, lengths):
    xs = jnp.moveaxis(XS, 1, 0) if options.get("time_major") else XS
    cell = cell_of("LSTMCell")
    calls = [
        lambda cell: nnx.RNN(cell, **options)(xs, seq_lengths=lengths),
        lambda cell: deeppcr.nn.RNN(cell, **options)(xs, seq_lengths=lengths),
        lambda cell: deeppcr.nn.RNN(cell)(xs, seq_lengths=lengths, **options),
    ]
    want, *found = nnx.jit(lambda cell: [call(cell) for call in calls])(cell)
    for got in found:
        same(got, want)


def test_a_sequence_of_length_0_keeps_its_carry():
    carry = jnp.ones((BATCH, UNITS), "float32")
    layer = deeppcr.nn.RNN(cell_of("GRUCell"), return_carry=True)
    last, _ = layer(XS, initial_carry=carry, seq_lengths=jnp.array([0, 5]))
    same(last[0], carry[0])


@pytest.mark.parametrize("same_mask", [False, True])
def test_random_keys_of_the_cell(same_mask):
    options = {"broadcast_rngs": "dropout"} if same_mask else {}
    method = "sequential" if same_mask else "newton"
    ours, theirs = partial(deeppcr.nn.RNN, method=method), nnx.RNN
    cells = [Dropped(nnx.Rngs(0, dropout=1)) for _ in range(2)]
    for _ in range(2):  # the second call draws other masks
        want, got = (
            layer(cell, **options)(XS) for layer, cell in zip((theirs, ours), cells, strict=True)
        )
        same(got, want)
    counts = [cell.dropout.rngs.count[...] for cell in cells]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("method", ["auto", "newton"])
def test_a_cell_with_statistics_of_the_batch(method):
    cells = Counted(), Counted()
    same(deeppcr.nn.RNN(cells[0], method=method)(XS), nnx.RNN(cells[1])(XS))
    same(cells[0].mean[...], cells[1].mean[...])


class Wrapped(nnx.Module):
    """A cell inside another, whose parameters a call hands on; embedded, what it takes is wider."""

    num_feature_axes, in_features = 1, 7

    def __init__(self, transform):
        self.cell, self.transform = cell_of("GRUCell"), transform

    def initialize_carry(self, shape, rngs=None):
        return self.cell.initialize_carry(shape, rngs)

    def __call__(self, carry, x):
        return self.transform(lambda cell, carry, x: cell(carry, x))(self.cell, carry, x)


@pytest.mark.parametrize("transform", [nnx.remat, nnx.jit])
def test_a_cell_that_calls_another_under_a_transformation(transform):
    same(deeppcr.nn.RNN(Wrapped(transform), method="newton")(XS), nnx.RNN(cell_of("GRUCell"))(XS))


def test_options_may_hold_arrays():
    """A module with a method whose tolerances are an array, and an adjoint with a number for one."""
    method = deeppcr.Newton(atol=jnp.full(TIME, 1e-6))
    adjoint = deeppcr.Adjoint(linearize=deeppcr.Scalar(jnp.full(TIME, 0.2)))
    layer = deeppcr.nn.RNN(cell_of("GRUCell"), method=method, adjoint=adjoint)
    want = nnx.RNN(cell_of("GRUCell"))(XS)
    same(nnx.jit(lambda layer: layer(XS))(layer), want)
    same(nnx.merge(*nnx.split(layer))(XS), want)


def test_the_blocks_are_those_of_one_sequence(monkeypatch):
    seen = []

    def scan(f, init, xs, **options):
        seen.append(options["batch_ndim"])
        return jax.lax.scan(f, init, xs)

    monkeypatch.setattr("deeppcr.nn.over_time.scan", scan)
    deeppcr.nn.RNN(cell_of("LSTMCell"))(XS)
    deeppcr.nn.RNN(Counted())(XS)
    assert seen == [1, 0]


def test_linen():
    cell = linen.GRUCell
    theirs = linen.Bidirectional(linen.RNN(cell(UNITS)), linen.RNN(cell(UNITS)))
    rnn = partial(deeppcr.nn.linen.RNN, method="newton")
    ours = linen.Bidirectional(rnn(cell(UNITS)), deeppcr.nn.linen.RNN(cell(UNITS)))
    variables = jax.jit(theirs.init)(jax.random.key(0), XS)
    shapes = jax.eval_shape(ours.init, jax.random.key(0), XS)
    assert shapes == jax.eval_shape(lambda: variables)

    def loss(model, variables):
        carry, ys = model.apply(variables, XS, seq_lengths=LENGTHS, return_carry=True)
        return (ys**2).sum() + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(carry))

    @jax.jit
    def differentiated(variables):
        return [jax.value_and_grad(partial(loss, model))(variables) for model in (theirs, ours)]

    want, got = differentiated(variables)
    same(got, want)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda layer: layer(XS[0, 0]), r"inputs has shape \[3\], expected an axis of time"),
        (lambda layer: layer(XS, seq_lengths=jnp.ones(3, int)), r"seq_lengths .*batch, \[2\]"),
        (lambda layer: layer(XS, seq_lengths=jnp.ones(2)), "seq_lengths .* expected integers"),
        (lambda layer: deeppcr.nn.RNN(layer.cell, method="newtn"), "did you mean 'newton'"),
        (lambda layer: deeppcr.nn.RNN(layer.cell, state_axes={}), "state_axes"),
        (lambda layer: deeppcr.nn.RNN(nnx.GRUCell), "cell is the class GRUCell "),
        (lambda layer: deeppcr.nn.RNN(nnx.Linear(3, 4, rngs=nnx.Rngs(0))), "cell is Linear, "),
        (lambda layer: layer(jnp.ones((2, 5, 7))), r"shape \[2, 5, 7\], expected 3 features"),
        (lambda layer: deeppcr.nn.RNN(linen.GRUCell(3)), "deeppcr.nn.linen.RNN"),
    ],
    ids=range(9),
)
def test_bad_input(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(deeppcr.nn.RNN(cell_of("GRUCell")))
