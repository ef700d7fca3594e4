"""The cells of `deeppcr.nn`: their equations, what is found in them, and their iterations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import deeppcr
from deeppcr.chain.chain import trace_chain
from deeppcr.linearize import choose_linearization
from tests.problems import normal, trips

BATCH, FEATURES, UNITS, HEADS = 2, 3, 4, 2
XS = normal(0, 128, BATCH, FEATURES).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(cell):
    """The parameters by name, the mapped inputs of one time, and a state, in float64."""
    state = {".".join(map(str, path)): np.asarray(v[...], float) for path, v in parameters(cell)}
    x = np.asarray(XS[0], float)
    parts = ()
    if "dense_i.kernel" in state:
        mapped = x @ state["dense_i.kernel"] + state["dense_i.bias"]
        parts = np.split(mapped, cell.parts, axis=-1)
    return state, x, parts


def parameters(cell):
    return nnx.to_flat_state(nnx.state(cell, nnx.Param))


def para_gru(cell, h):
    p, _, (z, r, n) = arrays(cell)
    a = p["recurrent"]
    z, r = sigmoid(z + a[0] * h), sigmoid(r + a[1] * h)
    h = (1 - z) * h + z * np.tanh(n + a[2] * r * h)
    return h, h


def para_lstm(cell, carry):
    (c, h), (p, _, (f, g, o)) = carry, arrays(cell)
    a, q = p["recurrent"], p["peephole"]
    f = sigmoid(f + a[0] * h + q[0] * c)
    c = f * c + (1 - f) * np.tanh(g + a[1] * h)
    h = sigmoid(o + a[2] * h + q[1] * c) * np.tanh(c)
    return (c, h), h


def min_gru(cell, h):
    _, _, (z, n) = arrays(cell)
    h = (1 - sigmoid(z)) * h + sigmoid(z) * n
    return h, h


def min_lstm(cell, h):
    _, _, (f, i, n) = arrays(cell)
    f, i = sigmoid(f), sigmoid(i)
    h = (f * h + i * n) / (f + i)
    return h, h


def lru(cell, s):
    p, x, _ = arrays(cell)
    lam = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    b = np.split(p["B.kernel"], 2, axis=1)
    s = lam * s + np.exp(p["gamma_log"]) * (x @ (b[0] + 1j * b[1]))
    c = np.split(p["C.kernel"], 2)
    return s, (s @ (c[0] - 1j * c[1])).real + x @ p["D.kernel"]


def slstm(cell, carry):
    (c, n, h, m), (p, _, parts) = carry, arrays(cell)
    r, by_head = p["recurrent"], h.reshape(BATCH, HEADS, -1)
    mixed = [
        np.concatenate([by_head[:, k] @ r[part, k] for k in range(HEADS)], axis=1)
        for part in range(4)
    ]
    z, i, f, o = (x + y for x, y in zip(parts, mixed, strict=True))
    after = np.maximum(np.log(sigmoid(f)) + m, i)
    gate, forget = np.exp(i - after), np.exp(np.log(sigmoid(f)) + m - after)
    c, n = forget * c + gate * np.tanh(z), forget * n + gate
    h = sigmoid(o) * c / n
    return (c, n, h, after), h


# cell, its equations, its blocks, the most iterations
CELLS = {
    "ParaGRU": (lambda **kw: deeppcr.nn.ParaGRU(FEATURES, UNITS, **kw), para_gru, "diagonal", 4),
    "ParaLSTM": (
        lambda **kw: deeppcr.nn.ParaLSTM(FEATURES, UNITS, **kw),
        para_lstm,
        "2 x 2 blocks",
        4,
    ),
    "MinGRU": (lambda **kw: deeppcr.nn.MinGRU(FEATURES, UNITS, **kw), min_gru, "diagonal", 1),
    "MinLSTM": (lambda **kw: deeppcr.nn.MinLSTM(FEATURES, UNITS, **kw), min_lstm, "diagonal", 1),
    "LRU": (lambda **kw: deeppcr.nn.LRU(FEATURES, UNITS, 5, **kw), lru, "2 x 2 blocks", 1),
    "SLSTM": (
        lambda **kw: deeppcr.nn.SLSTM(FEATURES, UNITS, HEADS, **kw),
        slstm,
        "8 x 8 blocks",
        60,
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell(name):
    make, equations, blocks, most = CELLS[name]
    cell = make(rngs=nnx.Rngs(0))
    zero = cell.initialize_carry((BATCH, FEATURES))
    leaves, tree = jax.tree.flatten(zero)
    some = tree.unflatten([normal(i, BATCH, UNITS).astype(x.dtype) for i, x in enumerate(leaves)])
    if name == "SLSTM":  # its second part is a sum of positive numbers
        some = (some[0], jnp.abs(some[1]), *some[2:])

    chain = deeppcr.Chain(lambda z, x: cell(z, x)[0], XS)

    @jax.jit
    def run():
        by_scan = jax.lax.scan(lambda z, x: (cell(z, x)[0],) * 2, zero, XS)[1]
        solution = deeppcr.solve(chain, zero, method="newton", batch_ndim=1)
        return cell(some, XS[0]), solution, by_scan

    got, solution, expected = run()
    want = equations(cell, jax.tree.map(np.asarray, some))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert [x.dtype for x in jax.tree.leaves(got[0])] == [x.dtype for x in leaves]

    assert solution.result == deeppcr.Result.CONVERGED
    assert int(solution.stats.iterations) <= trips(most)
    for a, b in zip(jax.tree.leaves(solution.trajectory), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    traced = trace_chain(cell, zero, XS, len(XS), 1, "carry")
    choice = choose_linearization("auto", traced.step, traced.layout, len(XS), None, None)
    assert str(choice.linearization) == blocks
    assert choice.is_exact


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: deeppcr.nn.SLSTM(3, 4, 3, rngs=nnx.Rngs(0)), "heads is 3, expected a divisor"),
        (lambda: deeppcr.nn.LRU(3, 4, max_radius=1.0, rngs=nnx.Rngs(0)), "max_radius is 1.0"),
    ],
    ids=["heads", "radius"],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
