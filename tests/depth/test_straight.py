"""Elementwise operations, moves, random bits, and the edges of a program."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.depth.cases import b, check, f, i, key, sines, table

CONSTANT = np.arange(8, dtype=np.float32)


@table(
    ("literal-only", lambda x: x + jnp.sin(1.0), (f(),), 3),
    ("integer-pow", lambda x: lax.integer_pow(x, 5), (f(8),), 1, "one primitive: 1"),
    ("pow", lax.pow, (f(8), f(8)), 1, "pow 1"),
    ("clamp", lambda x, low, high: lax.clamp(low, x, high), (f(8), f(), f()), 1, "clamp 1"),
    ("complex", lambda x: lax.real(lax.complex(x, x)), (f(8),), 2, "complex 1 + real 1"),
    ("conj", lambda z: lax.conj(z) * z, (f(8, dtype="complex64"),), 2, "conj 1 + mul 1"),
    ("atan2", lambda x, y: lax.neg(lax.atan2(x, y)), (f(8), f(8)), 2, "atan2 1 + neg 1"),
    ("reduce-precision", lambda x: lax.reduce_precision(x, 5, 7), (f(8),), 1, "elementwise: 1"),
    ("is-finite", lambda x: ~lax.is_finite(x), (f(8),), 2, "is_finite 1 + not 1"),
    ("integers", lambda n: lax.population_count(n | 3), (i(8),), 2, "or 1 + population_count 1"),
    ("shift", lambda n: lax.rem(lax.shift_left(n, n), n), (i(8, dtype="uint8"),), 2),
    ("booleans", lambda p, q: (p & q) ^ p, (b(8), b(8)), 2, "and 1 + xor 1"),
    ("cast", lambda x: x.astype("float64"), (f(8),), 1, "a cast counts 1"),
    ("cast-to-bool", lambda x: x.astype(bool), (i(8),), 1, "to bool: ne 1 or a cast 1"),
    ("bitcast", lambda x: lax.bitcast_convert_type(x, "int32"), (f(8),), 0),
    ("iota", lambda: lax.iota("float32", 8), (), 1, "iota counts 1"),
    ("select-3", lambda which, x: lax.select_n(which, x, x, x), (i(8), f(8)), 2, "ceil(log2 3)"),
    ("select-waits", lambda x: lax.select_n(x > 0, x, sines(x, 4)), (f(8),), 5),
    ("where", lambda x: jnp.where(x > 0, x, -x), (f(8),), 2, "gt and neg side by side 1, select 1"),
    ("identity", lambda x: x, (f(8),), 0, "nothing to do"),
    ("reshape", lambda x: x.reshape(2, 4).T, (f(8),), 0, "moves 0"),
    ("squeeze", lambda x: lax.squeeze(lax.expand_dims(x, (1,)), (1,)), (f(8),), 0, "moves 0"),
    ("concatenate", lambda x: lax.concatenate([x, jnp.sin(x)], 0), (f(8),), 1),
    ("pad", lambda x, v: lax.pad(x, jnp.sin(v), ((1, 1, 0),)), (f(8), f()), 1),
    ("split", lambda x: lax.split(jnp.sin(x), (3, 5)), (f(8),), (1, 1), "sin 1, moves 0"),
    ("stack", lambda x: jnp.stack([x, jnp.sin(x)]), (f(8),), 1, "sin 1, moves 0"),
    ("stop-gradient", lambda x: lax.stop_gradient(jnp.sin(x)), (f(8),), 1, "sin 1, a move 0"),
    ("barrier", lambda x: lax.optimization_barrier((sines(x, 2), x)), (f(8),), (2, 2)),
    ("device-put", lambda x: jax.device_put(jnp.sin(x)), (f(8),), 1),
    (
        "dynamic-slice",
        lambda x, n: lax.dynamic_slice(x, (n * n + n,), (2,)),
        (f(8), i(dtype="uint32")),
        2,
        "the index mul 1 + add 1, the move 0 (an unsigned index needs no check)",
    ),
    (
        "dynamic-update",
        lambda x, y, n: lax.dynamic_update_slice(x, sines(y, 3), (n,)),
        (f(8), f(2), i(dtype="uint32")),
        3,
        "the latest of array 0, update 3, index 0; the move 0",
    ),
    ("seed", lambda: jax.random.key(0), (), 1, "the generator is one operation on a literal"),
    ("bits", lambda k: jax.random.bits(k, (8,)), (key(),), 1, "the generator 1"),
    ("split-keys", lambda k: jax.random.bits(jax.random.split(k)[0], (8,)), (key(),), 2),
    ("fold-in", jax.random.fold_in, (key(), i(dtype="uint32")), 1, "the generator 1"),
    ("key-data", jax.random.key_data, (key(),), 0, "the same bits: a move 0"),
    ("wrap", jax.random.wrap_key_data, (i(2, dtype="uint32"),), 0, "the same bits: a move 0"),
    ("uniform", lambda k: jax.random.uniform(k, (8,), "float32"), (key(),), 7),
    ("normal", lambda k: jax.random.normal(k, (8,), "float32"), (key(),), 9),
    ("bernoulli", lambda k: jax.random.bernoulli(k, jnp.float32(0.5), (8,)), (key(),), 8),
    ("inputs", lambda x, y: (y, x, jnp.sin(x), y), (f(8), f(3)), (0, 0, 1, 0), "inputs 0, sin 1"),
    ("literal-out", lambda x: (1.0, jnp.sin(x)), (f(8),), (0, 1), "literal 0, sin 1"),
    ("no-outputs", lambda x: None, (f(8),), (), "nothing to wait for"),
    ("captured-sin", lambda x: x + jnp.sin(CONSTANT), (f(8),), 2, "constant 0, sin 1, add 1"),
    ("captured-out", lambda x: (jnp.asarray(CONSTANT), x), (f(8),), (0, 0), "constant 0, input 0"),
    (
        "pytrees",
        lambda t: {"a": sines(t["x"][0], 2), "b": t["y"]},
        ({"x": [f(8)], "y": f(3)},),
        (2, 0),
        "2 sines; input",
    ),
)
def test_straight_programs(case):
    check(case)
