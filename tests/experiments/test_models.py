"""Models and data of the experiments: cells, chains, tasks, a speech detector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench.engine import distance
from experiments.bench.timing import Effort
from experiments.field import run as field
from experiments.field.claims import Claim
from experiments.field.window import sliding_picard
from experiments.models import by_hand, cells, chains, published
from experiments.recurrent import networks


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_a_gru_is_its_formula() -> None:
    weights = cells.gru_weights(2, 3)
    h, x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    h = h[:, :2]
    W, U, b, c = (np.asarray(weights[name], np.float64) for name in "WUbc")
    rx, ux, nx = np.split(x @ W + b, 3, axis=-1)
    rh, uh, nh = np.split(h @ U + c, 3, axis=-1)
    update = sigmoid(ux + uh)
    expected = (1 - update) * np.tanh(nx + sigmoid(rx + rh) * nh) + update * h
    np.testing.assert_allclose(
        cells.gru(weights, jnp.asarray(h), jnp.asarray(x)), expected, rtol=1e-5
    )


def test_an_lstm_is_its_formula() -> None:
    weights = cells.lstm_weights(2, 3)
    h, c, x = np.random.default_rng(0).standard_normal((3, 5, 3)).astype(np.float32)
    h, c = h[:, :2], c[:, :2]
    W, U, b = (np.asarray(weights[name], np.float64) for name in "WUb")
    i, f, g, o = np.split(x @ W + h @ U + b, 4, axis=-1)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    found = cells.lstm(weights, (jnp.asarray(h), jnp.asarray(c)), jnp.asarray(x))
    np.testing.assert_allclose(found[1], cell, rtol=1e-5)
    np.testing.assert_allclose(found[0], sigmoid(o) * np.tanh(cell), rtol=1e-5)


def test_an_lstm_by_hand_has_the_gradient_of_jax() -> None:
    weights = cells.lstm_weights(2, 3)
    xs = jnp.asarray(np.random.default_rng(0).standard_normal((5, 4, 3)), jnp.float32)

    found, expected = (
        jax.jit(jax.value_and_grad(lambda *given, f=f: jnp.sum(f(*given) ** 3), (0, 1)))(
            weights, xs
        )
        for f in (by_hand.lstm, networks.KINDS["LSTM"].by(jax.lax.scan))
    )
    assert distance(found, expected) < 1e-5


EXACT = {  # problem, options and most iterations, on chains of 64 to 512 steps
    "S5 word problem": (lambda: published.word_problem(64), {}, 1),
    "contracting RNN": (lambda: published.contracting_rnn(512), {"linearize": "dense"}, 4),
    "contracting RNN, Jacobi": (lambda: published.contracting_rnn(512), {"linearize": "zero"}, 17),
    "ParaGRU": (lambda: published.para_rnn("ParaGRU", 4, 512), {}, 4),
    "ParaLSTM": (lambda: published.para_rnn("ParaLSTM", 4, 512), {}, 4),
}


@pytest.mark.parametrize("name", EXACT)
def test_published_iterations_come_back(name: str) -> None:
    make, options, most = EXACT[name]
    claim = Claim(name, "", "", make, options, most, error=1e-6)
    (row,) = field.measured(claim, Effort(1, share=0.0))
    assert (row["pass"], row["ended"]) == ("yes", "converged"), row


def counting(length: int) -> chains.Model:
    """``z + x``: a Picard iteration makes all states of a window right at once."""
    inputs = jnp.arange(length, dtype=jnp.float32)[:, None]
    return chains.Model(lambda z, x: z + x, inputs, jnp.zeros(1, jnp.float32))


def test_the_loop_of_paradigms() -> None:
    model = counting(10)
    expected = np.cumsum(np.arange(10.0))[:, None]
    # One iteration makes a window right, one more finds that nothing moves.
    for window, iterations in ((10, 2), (4, 6), (1, 10)):
        states, count = sliding_picard(model, window, 1e-6)
        np.testing.assert_array_equal(states, expected)
        assert count <= iterations, window
    hard = published.contracting_rnn(30)
    states, count = sliding_picard(hard, 8, 0.0)
    np.testing.assert_allclose(states, chains.states(hard), atol=1e-6)
    assert count >= 30 // 8
