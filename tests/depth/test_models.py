"""The reference numbers, and models as people write them, each derived by hand.

``c(n)`` is ceil(log2 n).
"""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import depth
from tests.depth.cases import Case, check, f


@pytest.fixture(scope="module")
def nn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flax.linen")


def mlp(nn, hidden, bias, shape):
    first, second, last = (nn.Dense(width, use_bias=bias) for width in (hidden, hidden, 1))
    model = nn.Sequential([first, nn.relu, second, nn.relu, last])
    x = f(*shape)
    return model.apply, (jax.eval_shape(model.init, jax.random.key(0), x), x)


@pytest.mark.parametrize(
    ("shape", "hidden", "bias", "expected", "why"),
    [
        ((1,), 8, False, 11, "dot over 1: 1, relu 1; dot over 8: 1 + 3, relu 1; dot over 8: 1 + 3"),
        ((1,), 8, True, 14, "11, and three biases"),
        ((1,), 100, False, 19, "1 + 1; 1 + 7 + 1; 1 + 7"),
        ((32,), 100, True, 27, "22, the first dot over 32: + 5"),
        ((4, 784), 32, False, 25, "15, the first dot over 784: + 10, rows side by side"),
    ],
)
def test_flax_mlp(nn, shape, hidden, bias, expected, why):
    fn, args = mlp(nn, hidden, bias, shape)
    check(Case("mlp", fn, args, expected, why))


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


# Through xs the unrolled program adds slices up, one by one.
@pytest.mark.parametrize("argument", [0, 1])
def test_the_gradient_of_a_recurrent_network_is_that_of_the_unrolled_one(argument):
    args = f(1, 1), f(1), f(10, 1)
    rolled, plain = (
        jax.grad(lambda *args, rnn=rnn: jnp.sum(rnn(*args)[0]), argument)
        for rnn in (recurrent, unrolled)
    )
    assert depth.serial_depth(rolled, *args) == depth.serial_depth(plain, *args)
