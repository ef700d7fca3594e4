"""`python -m experiments field`: exact results in small, its reference loop, and its verdicts."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton
from experiments.bench.timing import Effort
from experiments.field import claims, predictability
from experiments.field import run as field
from experiments.field.claims import Claim
from experiments.field.window import sliding_picard
from experiments.models import chains, published
from tests.experiments.conftest import Run

EXACT = {  # problem, options and most iterations, on chains of 64 to 512 steps
    "S5 word problem": (published.word_problem(64), {}, 1),
    "contracting RNN": (published.contracting_rnn(512), {"linearize": "dense"}, 4),
    "contracting RNN, Jacobi": (published.contracting_rnn(512), {"linearize": "zero"}, 17),
    "ParaGRU": (published.para_gru(4, 512), {}, 4),
    "ParaLSTM": (published.para_lstm(4, 512), {}, 4),
}


@pytest.mark.parametrize("name", EXACT)
def test_published_iterations_come_back(name: str) -> None:
    model, options, most = EXACT[name]
    claim = Claim(name, "", "", lambda: model, options, most, error=1e-6)
    (row,) = field.measured(claim, Effort(1, share=0.0))
    assert (row["pass"], row["ended"]) == ("yes", "converged"), row


def test_picard_diverges_and_says_so() -> None:
    model = published.contracting_rnn(512)
    options = {"linearize": "identity", "on_failure": "return", "max_iterations": 32}
    chain = deeppcr.Chain(model.step, model.inputs)
    solution = deeppcr.solve(chain, model.z0, method=Newton(**options))
    assert solution.result == deeppcr.Result.NOT_CONVERGED


def test_gates_of_pararnn_read_their_own_unit_alone() -> None:
    """The Jacobian of its GRU is diagonal, that of its LSTM has blocks of two."""
    for model, couples in ((published.para_gru(3, 1), 1), (published.para_lstm(3, 1), 2)):
        (first,) = jax.tree.leaves(jax.tree.map(lambda x: x[:1], model.inputs))
        jacobian = jax.jit(jax.jacfwd(model.step))(model.z0, first[0])
        leaves = jax.tree.leaves(jacobian)
        assert len(leaves) == couples**2
        for block in leaves:
            np.testing.assert_array_equal(block, jnp.diag(jnp.diag(block)))


def test_the_demo_of_deer_is_the_published_one() -> None:
    states = chains.states(published.deer_demo())
    found = states.min(), states.max()
    np.testing.assert_allclose(found, (-9.216077e-01, 7.263898e-01), rtol=3e-7)


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


@pytest.mark.parametrize(
    ("given", "found", "holds"),
    [
        ({"most": 6}, ("converged", 6, 1e-7), True),
        ({"most": 6}, ("converged", 7, 1e-7), False),
        ({"most": 6}, ("finished sequentially", 6, 0.0), False),
        ({"error": 2.4e-7}, ("converged", 99, 2e-7), True),
        ({"error": 2.4e-7}, ("converged", 1, 3e-7), False),
        ({"most": 6}, ("converged", 6, 1e-2), False),
        ({"converges": False}, ("finished sequentially", 256, 0.0), True),
        ({"converges": False}, ("converged", 2, 0.0), False),
    ],
)
def test_what_passes(given: dict[str, Any], found: tuple[str, int, float], holds: bool) -> None:
    assert Claim("", "", "", lambda: counting(2), **given).holds(*found) is holds


def test_options_in_words() -> None:
    found = Claim("", "", "", lambda: counting(2), {"linearize": "identity", "atol": 1e-6})
    assert (found.said, found.method) == ("Picard, atol 1e-6", Newton("identity", atol=1e-6))
    assert Claim("", "", "", lambda: counting(2)).said == "none"


def rates(iterations: dict[float, tuple[int, int]]) -> list[dict[str, Any]]:
    """Rows of chains of 10 and 100 steps, by growth rate."""
    return [
        {"gain": rate, "growth rate": rate, "L": length, "iterations": count}
        for rate, counts in iterations.items()
        for length, count in zip((10, 100), counts, strict=True)
    ]


def test_the_verdict_on_predictability() -> None:
    right = {-0.5: (4, 5), -0.001: (5, 40), 0.5: (10, 90)}
    assert predictability.verdict(rates(right))["pass"] == "yes"
    for wrong in ({-0.5: (4, 40)}, {0.5: (10, 12)}):
        assert predictability.verdict(rates(right | wrong))["pass"] == "no"
    assert predictability.verdict(rates({-0.5: (4, 5)}))["pass"] == "no"


def test_the_command(monkeypatch: pytest.MonkeyPatch, run_command: Run) -> None:
    def few(quick: bool) -> Iterator[Claim]:
        yield Claim("RNN", "", "1", lambda: published.contracting_rnn(64), most=1)

    monkeypatch.setattr(field, "claims", few)
    monkeypatch.setattr(field, "window_claims", lambda quick: iter(()))
    monkeypatch.setattr(predictability, "QUICK_GAINS", predictability.QUICK_GAINS[::2])
    monkeypatch.setattr(predictability, "QUICK_LENGTHS", (16, 32))
    rows, text = run_command(field, "--quick", "--repeats", "1")
    assert [row["part"] for row in rows] == ["published", *["predictability"] * 4, "published"]
    assert {"ours", "error", "CPU ms", "scan CPU ms", "ended"} < set(rows[0])
    assert rows[0]["pass"] == "no"
    assert "of 2 rows pass" in text
    assert len(list(claims.claims(quick=True))) > 10
