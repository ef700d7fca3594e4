"""A recurrence in one kernel gives the states of `jax.lax.scan`."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import depth
from deeppcr.lower.gpu.fused import CannotFuse, FusedStep, fused_scan
from depth.jaxprs import Program
from tests.fused.emulator import emulated
from tests.problems import on_a_cpu, rounding

L = 13


@pytest.fixture(autouse=True)
def as_users_write_it():
    """Ranks are promoted, as in most programs; and what is interpreted runs on a CPU."""
    with jax.numpy_rank_promotion("allow"), on_a_cpu():
        yield


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def gru(n, features=2):
    w, u, b = (numbers(*shape) for shape in ((features, 3 * n), (n, 3 * n), (3 * n,)))

    def step(h, x):
        a, r = x @ w + b, h @ u
        forget = jax.nn.sigmoid(a[..., :n] + r[..., :n])
        reset = jax.nn.sigmoid(a[..., n : 2 * n] + r[..., n : 2 * n])
        new = jnp.tanh(a[..., 2 * n :] + reset * r[..., 2 * n :])
        return (1 - forget) * new + forget * h

    return step


def fused(step, z, xs, batch_ndim=0):
    """The step, and its arrays: state, inputs, captured."""
    leaves, tree = jax.tree.flatten(z)
    inputs, of_inputs = jax.tree.flatten(xs)

    def flat(*arrays):
        state = jax.tree.unflatten(tree, arrays[: len(leaves)])
        after = jax.tree.leaves(step(state, jax.tree.unflatten(of_inputs, arrays[len(leaves) :])))
        return after

    closed = jax.make_jaxpr(flat)(*leaves, *(x[0] for x in inputs))
    batch = jnp.shape(leaves[0])[:batch_ndim]
    found = FusedStep.of(Program.of(closed), len(leaves), batch)
    return found, (leaves, inputs, list(getattr(closed, "consts", ())))


def agree(cases, operations=None, reverse=False):
    """All cases in one program; ``operations`` that round, one after another: None counts them."""
    prepared = [fused(*case) for case in cases]

    @jax.jit
    def both(arrays):
        ours = [
            fused_scan(step, *each, reverse, L)[1]
            for (step, _), each in zip(prepared, arrays, strict=True)
        ]
        return ours, [jax.tree.leaves(states(*case)) for case in cases]

    def states(f, z, xs, batch_ndim=0):
        return lax.scan(lambda z, x: (f(z, x),) * 2, z, xs, L, reverse=reverse)[1]

    with emulated():
        ours, theirs = both([arrays for _, arrays in prepared])
    for case, *leaves in zip(cases, ours, theirs, strict=True):
        count = (
            depth.compute_depth(jax.make_jaxpr(partial(states, *case))())
            if operations is None
            else operations
        )
        for found, expected in zip(*leaves, strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            close = rounding(found.dtype, count)
            found, expected = (np.asarray(x, np.float64) for x in (found, expected))
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)


def masked(z, x):
    after = {"a": z["a"] * x["keep"] + x["u"], "b": jnp.float32(0.5) * z["b"] + z["a"].sum(-1)}
    go = x["go"].reshape(x["go"].shape + (1,) * (z["a"].ndim - x["go"].ndim))
    return {"a": jnp.where(go, after["a"], z["a"]), "b": after["b"]}


MASKED = {
    "keep": numbers(L, 3),
    "u": numbers(L, 2, 1, 3),
    "go": np.arange(2 * L).reshape(L, 2) % 3 > 0,
}
MLP = {"w": numbers(L, 4, 4) / 2, "b": numbers(L, 4)}


def layer(z, x):
    return jnp.tanh(z @ x["w"] + x["b"])


def para_gru(n, features=2):
    """Recurrent weights are diagonal: each unit is a chain of its own."""
    w, a = numbers(features, 3 * n), numbers(3, n)

    def step(h, x):
        x_z, x_r, x_n = jnp.split(x @ w, 3, -1)
        update, reset = jax.nn.sigmoid(x_z + a[0] * h), jax.nn.sigmoid(x_r + a[1] * h)
        return (1 - update) * h + update * jnp.tanh(x_n + a[2] * reset * h)

    return step


def noisy(z, key):
    return jnp.tanh(z[::-1] + jax.random.normal(key, z.shape, z.dtype))


def clamped(z, x):
    """Slices that would begin beyond the end, and before the start."""
    ends = [lax.dynamic_slice(z, (np.int32(k),), (2,)) for k in (7, -9)]
    return jnp.tanh(jnp.concatenate(ends)[:3] + x)


def per_example(z, x):
    return jnp.cos(z + x[:, None] * OFFSETS)


OFFSETS = numbers(2, 3)


def counted(z, x):
    """Integers, one of which overflows, and an input that is not read."""
    k = jnp.maximum(jnp.abs(x["k"] - 7) % 5, jnp.where(x["k"] > 30, x["k"] * 3 + 1, -x["k"])) & 7
    k = jnp.right_shift(k, 1) | jnp.left_shift(k, 2) ^ (x["k"] * np.int32(2**30 + 1) >> 28)
    z = lax.switch(k[0] % 3, [lambda: z, lambda: z / 2, lambda: 1 - z])
    return (z + k.astype(z.dtype)) / 8


W_LSTM, W_GATED = numbers(18, 64) / 2, numbers(50, 50) / 4


def lstm(z, x):
    i, f, g, o = jnp.split(jnp.concatenate([x, z["h"]], -1) @ W_LSTM, 4, -1)
    c = jax.nn.sigmoid(f) * z["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return {"c": c, "h": jax.nn.sigmoid(o) * jnp.tanh(c)}


def gated(z, x):
    """A product with what lanes have computed, of a mean that all of them need."""
    z = z - z.mean(-1, keepdims=True)
    return jnp.tanh((jax.nn.sigmoid(z @ W_GATED + x) * z) @ W_GATED.T)


def uneven(z, x):
    """Lanes that compute different functions, and take entries from each other."""
    a, b = z["a"], jnp.concatenate([z["b"], x])
    ends = [jnp.sin(a[7:]), jnp.zeros(1, a.dtype), a[3:0:-1] * b[:3], jnp.cumsum(b[1:])]
    return {"a": jnp.concatenate(ends), "b": a[::5][:2] * z["t"], "t": jnp.cos(z["t"] + a[10])}


CASES = {
    "one example": [(gru(1), numbers(1), numbers(L, 2)), (gru(3), numbers(3), numbers(L, 2))],
    "a block for each example": [
        (gru(3), numbers(2, 3), numbers(L, 2, 2), 1),
        (gru(3), numbers(2, 3), numbers(L, 2), 1),  # of which all have the same inputs
        (gru(2), numbers(2, 2), numbers(L, 2, 2), 1),  # whose axes are all of one size
    ],
    "a thread for each example": [(gru(2), numbers(40, 2), numbers(L, 40, 2), 1)],
    "several batch axes": [
        (gru(2), numbers(2, 1, 3, 2), numbers(L, 2, 1, 3, 2), 3),
        (gru(2), numbers(2, 3, 2), numbers(L, 3, 2), 2),
    ],
    "pytrees and masks": [(masked, {"a": numbers(2, 1, 3), "b": numbers(2, 1)}, MASKED, 1)],
    "integers": [
        (
            counted,
            numbers(3),
            {"a": numbers(L, 2), "k": np.arange(3 * L, dtype=np.int32).reshape(L, 3)},
        )
    ],
    "weights of each step": [(layer, numbers(4), MLP), (layer, numbers(2, 4), MLP, 1)],
    "slices beyond the ends": [(clamped, numbers(3), numbers(L, 3))],
    "lanes": [
        (layer, numbers(24), {"w": numbers(L, 24, 24) / 8, "b": numbers(L, 24)}),
        (gru(8), numbers(8), numbers(L, 2)),
        (lstm, {"c": numbers(3, 16), "h": numbers(3, 16)}, numbers(L, 3, 2), 1),
    ],
    "some entries a lane": [(gated, numbers(50), numbers(L, 50))],
    "more weights than registers hold": [(gru(64), numbers(64), numbers(L, 2))],
    "lanes of several kinds": [
        (uneven, {"a": numbers(11), "b": numbers(2), "t": numbers(1)}, numbers(L, 2))
    ],
    "a chain for each entry": [
        (para_gru(100), numbers(2, 100), numbers(L, 2, 2), 1),
        (lambda z, x: [z[1] * x, jnp.tanh(z[0])], [numbers(3)] * 2, numbers(L, 3)),
    ],
    "what only inputs decide": [
        (gru(16, 16), numbers(16), numbers(L, 16)),
        (noisy, numbers(3), jax.random.split(jax.random.key(0), L)),
    ],
    "captured, of each example": [(per_example, numbers(2, 3), numbers(L, 2), 1)],
}


@pytest.mark.parametrize("name", CASES)
def test_states_are_those_of_the_sequential_program(name):
    agree(CASES[name])


UNARY = [
    jnp.tanh, jnp.exp, jnp.sin, jax.nn.softplus, jax.nn.silu, jax.nn.relu, jax.nn.elu, jnp.abs,
    jnp.expm1, lambda a: jnp.sqrt(jnp.abs(a)), lambda a: jnp.log1p(jnp.abs(a)), jnp.sign,
    lambda a: a**3, lambda a: jnp.flip(a, -1), lambda a: jnp.roll(a, 1, -1), jax.nn.softmax,
    lambda a: jnp.cumsum(a, -1), lambda a: a - a.mean(-1, keepdims=True), jax.nn.gelu,
    lambda a: a * lax.rsqrt((a * a).mean(-1, keepdims=True) + jnp.float32(0.1)),
    lambda a: jnp.max(a, -1, keepdims=True) * jnp.ones_like(a),
    lambda a: jnp.concatenate([a[..., 1:], a[..., :1]], -1),
    lambda a: jnp.arctan2(a, jnp.float32(0.7)), lambda a: jnp.pad(a[..., 1:], [(0, 0)] * (a.ndim - 1) + [(1, 0)]),
    lambda a: a[..., None].swapaxes(-1, -2).reshape(a.shape),
    lambda a: jnp.ravel(jnp.stack([a, -a]), order="F")[: a.size].reshape(a.shape), lax.erf, jnp.cosh, jnp.arctan,
    lambda a: lax.integer_pow(a + jnp.float32(3), -5), jnp.floor, lambda a: (3 * a).astype(jnp.int32).astype(a.dtype) * a,
]  # fmt: skip
BINARY = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum, jnp.arctan2,
    lambda a, b: jnp.where(a > b, a, b * b),
    lambda a, b: a / (jnp.float32(1.5) + jnp.abs(b)),
    lambda a, b: lax.cond(True, lambda: a, lambda: b) + jnp.einsum("...i,...i->...", a, b)[..., None],
    lambda a, b: jnp.clip(a, -jnp.abs(b), jnp.float32(0.8)), lambda a, b: jnp.abs(a) ** b,
]  # fmt: skip


def random_step(seed, n=3):
    """A step of random operations on vectors."""
    choose = np.random.default_rng(seed)
    plan = [(choose.integers(3), choose.integers(100, size=3)) for _ in range(5)]
    w = numbers(n, n, seed=seed) * np.float32(min(1, 2 * n**-0.5))

    def step(z, x):
        known = [z, x + jnp.zeros_like(z)]
        for kind, (which, i, j) in plan:
            a, b = known[i % len(known)], known[j % len(known)]
            if kind == 0:
                known.append(UNARY[which % len(UNARY)](a))
            else:
                known.append(BINARY[which % len(BINARY)](a, b) if kind == 1 else a @ w)
        return jnp.float32(0.5) * z + jnp.float32(0.4) * jnp.tanh(sum(known))

    return step


@pytest.mark.parametrize("first", [0, 8])
def test_random_steps(first):
    shapes = [(1,), (3,), (2, 3), (5, 1), (2, 3, 2), (33, 2), (4,), (1, 2), (13,), (3, 40)]
    agree(
        [
            (random_step(first + k, n), numbers(*batch, n), numbers(L, *batch, n), len(batch))
            for k, (*batch, n) in enumerate(shapes)
        ],
        reverse=first == 8,
    )


def test_half_precision_is_rounded_after_each_operation():
    f = gru(2)
    z, xs = numbers(2).astype(jnp.bfloat16), numbers(L, 2).astype(jnp.bfloat16)
    agree(
        [(lambda z, x: f(z.astype(jnp.float32), x.astype(jnp.float32)).astype(z.dtype), z, xs)],
        2,  # the last float32 bit may decide how the result is rounded; the cell forgets it
    )
    # As exact as arithmetic of IEEE is. XLA's is not where a CPU has instructions for halves.
    for dtype in (jnp.bfloat16, np.float16):
        step, arrays = fused(lambda z, x: z * x[0] + x[1], z.astype(dtype), xs.astype(dtype))
        with emulated():
            (ours,) = jax.jit(lambda arrays, step=step: fused_scan(step, *arrays, False, L)[1])(
                arrays
            )
        state, expected = np.asarray(z.astype(dtype)), []
        for x in np.asarray(xs.astype(dtype)):
            state = state * x[0] + x[1]
            expected.append(state)
        np.testing.assert_array_equal(np.asarray(ours), np.stack(expected))


ENDS = np.array([0.0, -0.0, np.inf, 1e-30, 1e-8, 0.3, 20.0, 3e38, np.nan], np.float32)


AT_THE_ENDS = [
    jnp.sqrt, jnp.log1p, jnp.expm1, jnp.sign, jnp.exp, jnp.tanh, jax.nn.sigmoid,
    lambda x: jnp.isfinite(x).astype(jnp.float32),
    lambda x: jnp.maximum(x, jnp.float32(0)), lambda x: jnp.minimum(x, jnp.float32(0)),
    lambda x: lax.rem(x, jnp.float32(0.25)), lambda x: lax.clamp(jnp.float32(-1), x, jnp.float32(2)),
]  # fmt: skip


def test_operations_at_the_ends_of_their_range():
    def step(z, x):
        return [f(y) for f in AT_THE_ENDS for y in (x, -x)]

    for ends in np.split(np.broadcast_to(ENDS, (L, 9)), 3, axis=-1):
        start = [np.zeros(3, np.float32)] * 2 * len(AT_THE_ENDS)
        agree([(step, start, ends)], 8)  # operations that compose one


TABLE = jnp.ones((100, 200), jnp.float32)
REFUSED = {
    "sort": (jnp.sort, numbers(3), 0, "sort has no counterpart"),
    "mean over the batch": (lambda z: z - z.mean(0, keepdims=True), numbers(2, 3), 1, "reduce_sum combines"),
    "product of examples": (lambda z: (z @ z.T) @ z, numbers(2, 3), 1, "dot_general combines|examples"),
    "one example for all": (lambda z: z + z[:1], numbers(2, 3), 1, "slice combines"),
    "examples in another order": (lambda z: z + z[::-1], numbers(2, 3), 1, "rev combines"),
    "wide": (jnp.cumsum, numbers(65), 0, "65 entries"),
    "long": (lambda z: lax.fori_loop(0, 3, lambda _, z: z * z, z), numbers(3), 0, "no counterpart"),
    "many": (lambda z: reduce(lambda z, _: jnp.tanh(z), range(150), z), numbers(2), 0, "than 4096 instructions"),
    "many lanes": (lambda z: reduce(lambda z, _: jnp.tanh(z), range(150), z), numbers(32), 0, "than 65536 instructions"),
    "embedding": (lambda z: z + (z[0] * TABLE).sum(), numbers(3), 0, "more than 16384 entries"),
    "random": (
        lambda z: z + jax.random.normal(jax.random.key(z[0].astype(int)), z.shape, z.dtype),
        numbers(3),
        0,
        "random_bits|no counterpart",
    ),
    "round": (lax.round, numbers(3), 0, "round has no counterpart"),
    "bits": (lambda z: lax.bitcast_convert_type(z, np.int32).astype(z.dtype), numbers(3), 0, "no counterpart"),
    "set bits": (lambda z: lax.population_count(z.astype(np.int32)).astype(z.dtype), numbers(3), 0, "no counterpart"),
    "next number": (lambda z: lax.nextafter(z, 2 * z), numbers(3), 0, "nextafter has no counterpart"),
    "fewer bits": (lambda z: lax.reduce_precision(z, 5, 10), numbers(3), 0, "no counterpart"),
    "index": (lambda z: z - jnp.argmax(z).astype(z.dtype), numbers(3), 0, "argmax has no counterpart"),
    "4 bits": (lambda z: z.astype(jnp.int4).astype(z.dtype), numbers(3), 0, "int4"),
    "8 bits": (lambda z: z.astype(jnp.float8_e4m3fn).astype(z.dtype), numbers(3), 0, "float8"),
    "float64": (jnp.tanh, numbers(3).astype(np.float64), 0, "float64"),
    "empty": (jnp.tanh, numbers(0), 0, "no entries"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    f, z, batch_ndim, reason = REFUSED[name]
    with pytest.raises(CannotFuse, match=reason):
        fused(lambda z, x: f(z), z, numbers(L), batch_ndim)


def test_its_time_is_predicted_for_gpus():
    step, arrays = fused(gru(2), numbers(40, 2), numbers(L, 40, 2), 1)
    wide, _ = fused(gru(16), numbers(40, 16), numbers(L, 40, 2), 1)
    assert (step.threads, step.waits < wide.waits) == (96, True)
    from deeppcr.lower.gpu.fused import fused_scan

    cost = depth.analyze(partial(fused_scan, step, reverse=False, length=L), *arrays)
    loop = depth.analyze(
        lambda z, xs: lax.scan(lambda z, x: (gru(2)(z, x),) * 2, z, xs)[1],
        arrays[0][0],
        arrays[1][0],
    )
    assert cost.depth == loop.depth
    assert cost.seconds("H200") < loop.seconds("H200") / 4
    without = depth.devices["H200"].replace(operation_latency=None)
    assert cost.seconds(without) > cost.seconds("H200")
