"""The reference numbers, and models as people write them, each derived by hand.

``c(n)`` is ceil(log2 n).
"""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from tests.depth.cases import Case, check, f, i, sines, table


@pytest.fixture(scope="module")
def nn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flax.linen")


def mlp(nn, hidden, bias, shape):
    model = nn.Sequential(
        [
            nn.Dense(hidden, use_bias=bias),
            nn.relu,
            nn.Dense(hidden, use_bias=bias),
            nn.relu,
            nn.Dense(1, use_bias=bias),
        ]
    )
    x = f(*shape)
    return model.apply, (jax.eval_shape(model.init, jax.random.key(0), x), x)


@pytest.mark.parametrize(
    ("shape", "hidden", "bias", "expected", "why"),
    [
        ((1,), 8, False, 11, "dot over 1: 1, relu 1; dot over 8: 1 + 3, relu 1; dot over 8: 1 + 3"),
        ((1,), 8, True, 14, "11, and three biases"),
        ((1,), 32, False, 15, "1 + 1; 1 + 5 + 1; 1 + 5"),
        ((1,), 32, True, 18, "15, and three biases"),
        ((1,), 100, False, 19, "1 + 1; 1 + 7 + 1; 1 + 7"),
        ((1,), 100, True, 22, "19, and three biases"),
        ((32,), 8, False, 16, "11, the first dot over 32: + 5"),
        ((32,), 100, True, 27, "22, the first dot over 32: + 5"),
        ((4, 784), 8, True, 24, "14, the first dot over 784: + 10, rows side by side"),
        ((4, 784), 32, False, 25, "15, the first dot over 784: + 10"),
        ((4, 784), 100, False, 29, "19, the first dot over 784: + 10"),
    ],
)
def test_flax_mlp(nn, shape, hidden, bias, expected, why):
    fn, args = mlp(nn, hidden, bias, shape)
    check(Case("mlp", fn, args, expected, why))


def test_flax_layer_norm(nn):
    model, x = nn.LayerNorm(), f(4, 8)
    args = jax.eval_shape(model.init, jax.random.key(0), x), x
    why = "square 1, sum 4, div 5, less mean^2 6, max with 0: 7, eps 8, rsqrt 9, scale 10, times (x - mean) 11, bias 12"
    check(Case("layer norm", model.apply, args, 12, why))


def layer_norm(x, scale, shift):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(lax.square(x - mean), -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def attention(**options):
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def cross_entropy(logits, labels):
    return -jnp.mean(
        jnp.sum(jax.nn.one_hot(labels, 8, dtype="float32") * jax.nn.log_softmax(logits), -1)
    )


@table(
    ("softmax", jax.nn.softmax, (f(8),), 10, "max 3, max with -inf 4, sub 5, exp 6, sum 9, div 10"),
    ("softmax-1", jax.nn.softmax, (f(1),), 4, "no reduction: max with -inf 1, sub 2, exp 3, div 4"),
    (
        "log-softmax",
        jax.nn.log_softmax,
        (f(8),),
        11,
        "max 3, max with -inf 4, sub 5, exp 6, sum 9, log 10, sub 11",
    ),
    (
        "logsumexp",
        jax.nn.logsumexp,
        (f(8),),
        14,
        "max 3, max with -inf 4, is_finite 5, select 6, sub 7, exp 8, sum 11, abs 12, log 13, add 14",
    ),
    ("gelu", jax.nn.gelu, (f(8),), 8, "pow 1, mul 2, add 3, mul 4, tanh 5, add 6, mul 7, mul 8"),
    (
        "gelu-exact",
        lambda x: jax.nn.gelu(x, approximate=False),
        (f(8),),
        4,
        "neg 1, mul 2, erfc 3, mul 4",
    ),
    ("var", jnp.var, (f(8),), 11, "sum 3, div 4, sub 5, square 6, sum 9, div 10, select 11"),
    ("std", jnp.std, (f(8),), 12, "var 11, sqrt 12"),
    ("one-hot", lambda n: jax.nn.one_hot(n, 8, dtype="float32"), (i(),), 3, "iota 1, eq 2, cast 3"),
    (
        "layer-norm",
        layer_norm,
        (f(4, 8), f(1, 8), f(1, 8)),
        15,
        "sum 3, div 4, sub 5, square 6, sum 9, div 10, eps 11, rsqrt 12, mul 13, scale 14, shift 15",
    ),
    (
        "cross-entropy",
        cross_entropy,
        (f(4, 8), i(4)),
        19,
        "log_softmax 11, mul 12, sum 15, mean over 4: 17, 18, neg 19",
    ),
    (
        "attention",
        attention(),
        (f(1, 16, 1, 8),) * 3,
        22,
        "q k over 8: 4, scale 5, max over 16: 9, max with -inf 10, sub 11, exp 12, sum 16, div 17, times v over 16: 22",
    ),
    (
        "attention-short",
        attention(),
        (f(2, 4, 3, 16),) * 3,
        17,
        "q k over 16: 5, scale 6, max over 4: 8, max with -inf 9, sub 10, exp 11, sum 13, div 14, times v over 4: 17",
    ),
    (
        "attention-causal",
        attention(is_causal=True),
        (f(1, 16, 1, 8),) * 3,
        23,
        "as attention, and a select after the scale (its mask, of iotas and a comparison, is ready before): 23",
    ),
    (
        "attention-scale-1",
        attention(scale=1.0),
        (f(1, 16, 1, 1),) * 3,
        19,
        "q k over 1: 1, scale 2, max 6, max with -inf 7, sub 8, exp 9, sum 13, div 14, times v 19",
    ),
)
def test_layers(case):
    check(case)


def residual(x, w1, w2):
    def conv(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return jax.nn.relu(x + conv(jax.nn.relu(conv(x, w1)), w2))


def descent(w, x, y):
    def loss(w):
        return jnp.mean(lax.square(x @ w - y))

    return w - 0.1 * jax.grad(loss)(w)


def runge_kutta(y):
    k1 = jnp.sin(y)
    k2 = jnp.sin(y + 0.05 * k1)
    k3 = jnp.sin(y + 0.05 * k2)
    k4 = jnp.sin(y + 0.1 * k3)
    return y + (k1 + 2 * k2 + 2 * k3 + k4) * 0.1


def repeat(step, count):
    return lambda y: lax.scan(lambda y, _: (step(y), None), y, length=count)[0]


@table(
    (
        "residual-block",
        residual,
        (f(2, 8, 8, 16), f(3, 3, 16, 16), f(3, 3, 16, 16)),
        21,
        "c(144) = 8: conv 9, relu 10, conv 19, 20, 21",
    ),
    (
        "gradient-step",
        descent,
        (f(8), f(16, 8), f(16)),
        14,
        "x w over 8: 4, sub 5, 2 r 6, times 1/16: 7, x^T r over 16: 12, rate 13, sub 14",
    ),
    (
        "euler",
        repeat(lambda y: y + 0.1 * jnp.sin(y), 100),
        (f(),),
        300,
        "sin 1 + mul 1 + add 1, 100 times",
    ),
    (
        "runge-kutta",
        repeat(runge_kutta, 10),
        (f(),),
        130,
        "k1 1, k2 = 1 + mul, add, sin 4, k3 7, k4 10, sum 11, mul 12, add 13; 10 times",
    ),
    (
        "associative-scan-2",
        lambda x: lax.associative_scan(jnp.add, x),
        (f(2),),
        3,
        "up 1, an addition of no element 2, merge 3",
    ),
    (
        "associative-scan-16",
        lambda x: lax.associative_scan(jnp.add, x),
        (f(16),),
        12,
        "up 4, of no element 5, merge 6, down 3 * 2",
    ),
    (
        "associative-scan-1024",
        lambda x: lax.associative_scan(jnp.add, x),
        (f(1024),),
        30,
        "up 10, of no element 11, merge 12, down 9 * 2",
    ),
    ("associative-scan-1", lambda x: lax.associative_scan(jnp.add, x), (f(1),), 0, "one element"),
)
def test_programs(case):
    check(case)


def recurrent(w, h, xs):
    def step(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h

    return lax.scan(step, h, xs)


def unrolled(w, h, xs):
    ys = []
    for x in xs:
        h = jnp.tanh(w @ h + x)
        ys.append(h)
    return h, jnp.stack(ys)


def after_a_network(rnn):
    return lambda w, h, xs: rnn(w, h, sines(xs, 20))


def lstm(w, state, xs):
    def step(state, x):
        h, c = state
        i_, f_, g_, o_ = jnp.split(w @ h + x, 4)
        c = jax.nn.sigmoid(f_) * c + jax.nn.sigmoid(i_) * jnp.tanh(g_)
        h = jax.nn.sigmoid(o_) * jnp.tanh(c)
        return (h, c), None

    return lax.scan(step, state, xs)[0]


RNN = f(4, 4), f(4), f(128, 4)


@table(
    ("rnn", recurrent, RNN, (640, 640), "dot over 4: 3, add 4, tanh 5; 128 times"),
    (
        "rnn-after-a-network",
        after_a_network(recurrent),
        RNN,
        (657, 657),
        "inputs at 20: first state 22, then 127 * 5",
    ),
    (
        "unrolled",
        after_a_network(unrolled),
        RNN,
        (657, 657),
        "inputs at 20: first state 22, then 127 * 5",
    ),
    (
        "rnn-batch",
        jax.vmap(recurrent, (None, 0, 0)),
        (f(4, 4), f(9, 4), f(9, 128, 4)),
        (640, 640),
        "rows side by side: 128 * 5",
    ),
    (
        "lstm",
        lstm,
        (f(16, 4), (f(4), f(4)), f(10, 4 * 4)),
        (90, 88),
        "w h 3, add 4, gates 5, mul 6, c 7, tanh 8, h 9: h_n = 9 n, c_n = 9 (n - 1) + 7",
    ),
)
def test_recurrent(case):
    check(case)


@pytest.mark.parametrize(
    "argument", [0, 1]
)  # through xs the unrolled program adds slices up, one by one
def test_the_gradient_of_a_recurrent_network_is_that_of_the_unrolled_one(argument):
    args = f(1, 1), f(1), f(10, 1)
    rolled, plain = (
        jax.grad(lambda *args, rnn=rnn: jnp.sum(rnn(*args)[0]), argument)
        for rnn in (recurrent, unrolled)
    )
    assert depth.serial_depth(rolled, *args) == depth.serial_depth(plain, *args)
