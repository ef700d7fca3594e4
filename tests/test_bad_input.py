"""Bad input: an error that names argument, value and what was expected, before compilation."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import (
    Adjoint,
    BlockDiagonal,
    Chain,
    Clipped,
    Coarse,
    Diagonal,
    Newton,
    Scalar,
    Surrogate,
    forward,
    scan,
    solve,
    solve_bidiagonal,
)

X, XS = jnp.ones(3), jnp.ones((5, 3))
SHAPE = jax.ShapeDtypeStruct((5, 3), "float32")
NONE = XS[:0]  # cut here: a cut that compiles is not the call's fault


def keep(z, x):
    return z, None


def same(z, x):
    return z


def counted(z, x):
    x, n = z[0] * 2, z[1]
    return (x, jnp.where(x > 3, n + 1, n)), None


def drawn(z, x):
    return (z[0] * 2, jax.random.fold_in(z[1], z[0].sum().astype(jnp.int32))), None


def double(x):
    return 2 * x


def solved(step=same, **options):
    """A call that solves a chain of five steps by Newton's method with these options."""
    return lambda z: solve(Chain(step, XS), z, method=Newton(**options))


def scanned(step=keep, xs=XS, length=None, **options):
    return lambda z: scan(step, z, xs, length, **options)


# Wrong options: a call without arguments, the error, and what its message has to say.
OPTIONS = [
    (lambda: Newton(linear="PCR"), ValueError, "^linear is 'PCR'.*did you mean 'pcr'"),
    (lambda: Newton(initial_gues="apply"), TypeError, "'initial_gues'.*did you mean 'initial_gue"),
    (lambda: Newton(initial_guess="zero"), ValueError, "initial_guess is 'zero'.*expected.*apply"),
    (lambda: Newton(rtol=-1e-3), ValueError, "rtol is -0.001.*expected"),
    (lambda: Newton(max_iterations=0), ValueError, "max_iterations is 0.*expected"),
    (lambda: Newton(on_failure="panic"), ValueError, "on_failure is 'panic'.*expected.*raise"),
    (lambda: Newton(linearize="densee"), ValueError, "linearize is 'densee'.*expected.*'dense'"),
    (lambda: Newton(window=0), ValueError, "window is 0.*expected"),
    (lambda: Newton(window=2.5), TypeError, "window is 2.5.*expected"),
    (
        lambda: Newton(memory="1 GB"),
        TypeError,
        "memory is '1 GB'.*expected None or an integer >= 1 .number of bytes",
    ),
    (lambda: Surrogate(3), TypeError, "step is 3.*expected a function"),
    (lambda: Surrogate(same, "densee"), ValueError, "linearize is 'densee'.*expected.*'dense'"),
    (lambda: Clipped("diagonal", 0.0), ValueError, "limit is 0.0.*expected"),
    (lambda: BlockDiagonal(0), ValueError, "size is 0.*expected"),
    (lambda: Diagonal(-1), ValueError, "probes is -1.*expected"),
    (lambda: Coarse(every=0), ValueError, "every is 0.*expected"),
    (lambda: Coarse(every=2, step=3), (TypeError, ValueError), "step is 3.*expected"),
    (lambda: Adjoint(linearize="?"), ValueError, "linearize is '.'.*expected.*'dense'"),
    (lambda: Adjoint(linear="?"), ValueError, "(linear|solver) is '.'.*pcr"),
    (lambda: Adjoint(max_iterations=None), TypeError, "max_iterations is None.*expected"),
    (lambda: Adjoint(checkpoint=0), ValueError, "checkpoint is 0.*expected None or an integer"),
    (lambda: deeppcr.unstack([double]), TypeError, r"stacked is list.*deeppcr.stack\(layers\)"),
]
# An option, and values that it does not take.
VALUES = [
    (deeppcr.TrustRegion, "radius", [0, -1.0, float("nan")]),
    (deeppcr.Anderson, "history", [0, -1, 9, 2.0, True, None]),
    (deeppcr.Anderson, "regularization", [0.0, -1.0, float("nan"), float("inf")]),
    *((method, "progress", [3]) for method in (Newton, deeppcr.Auto, deeppcr.Sequential)),
]
# A class where an instance belongs, as these options of these calls.
CLASSES = [
    (Newton, "linearize linear rtol max_iterations initial_guess damping acceleration record"),
    (deeppcr.Auto, "initial_guess damping window"),
    (deeppcr.Sequential, "unroll fused"),
    (Adjoint, "linearize linear rtol max_iterations checkpoint"),
    (partial(scan, keep, X, XS), "method adjoint"),
    (partial(forward, [double] * 2, X), "method adjoint"),
    (partial(deeppcr.plan, Chain(same, XS), X), "method"),
    (partial(solve, z0=X), "chain"),
    (partial(solve, Chain(same, XS), X), "method adjoint"),
    (partial(solve_bidiagonal, XS, XS), "solver"),
    (Coarse, "every"),
    (Clipped, "linearize limit"),
    (deeppcr.TrustRegion, "radius"),
    (deeppcr.Anderson, "history"),
]
KINDS = [each for each in map(vars(deeppcr).get, deeppcr.__all__) if isinstance(each, type)]
# Wrong calls, on X or on the arrays that come last.
WRONG = (TypeError, ValueError)
CALLS = [
    # A state that changes from step to step.
    (scanned(lambda z, x: (z[:2], None)), TypeError, r"state.*float64\[3\].*float64\[2\].*expect"),
    (lambda z: solve(Chain(lambda z, x: [z], XS), z), TypeError, "structure.*state.*expected"),
    (solved(lambda z, x: z[None]), TypeError, r"state.*\[3\].*\[1, 3\].*expected"),
    (scanned(lambda z, x: (z.astype("float32"), None), adjoint="autodiff"), TypeError, "carry"),
    # Lengths.
    (
        lambda x: Chain(same, (x, np.ones((4, 2)))),
        ValueError,
        r"s\[0\]: 5.*s\[1\]: 4.*expected",
        XS,
    ),
    (lambda x: Chain(same, x, 4), ValueError, "length is 4.*inputs.*5", XS),
    (scanned(xs=NONE, length=4), ValueError, "length is 4.*xs.*0"),
    (lambda z: solve(Chain(same), z), ValueError, "inputs.*length"),
    (scanned(xs=None, length=-1), ValueError, "length is -1.*expected"),
    (scanned(unroll=2.5), TypeError, "unroll is 2.5.*expected an integer.*True for all"),
    # What depends on the state, and has no derivatives.
    (
        lambda n: scan(counted, (X, n), XS, method="newton"),
        TypeError,
        r"method.*init\[1\] \(int64\).*depends.*expected.*auto",
        np.arange(3),
    ),
    (
        lambda z: scan(lambda z, x: ((z[0] * 2, z[0] > 1), None), (X, z), XS, adjoint="pcr"),
        TypeError,
        r"adjoint.*init\[1\] \(bool\).*depends.*expected.*autodiff",
        X > 0,
    ),
    (
        lambda n: solve(Chain(lambda z, x: counted(z, x)[0], XS), (X, n), method="newton"),
        TypeError,
        r"z0\[1\] \(int64\).*depends.*expected",
        np.arange(3),
    ),
    (
        lambda k: scan(drawn, (X, k), XS, method="newton"),
        TypeError,
        r"init\[1\] \(key.*depends.*expected",
        jax.random.key(0),
    ),
    # Methods and adjoints.
    (scanned(method="newtn"), ValueError, "method is 'newtn'.*did you mean 'newton'"),
    (scanned(method=Adjoint()), TypeError, "method is Adjoint.*expected"),
    (scanned(method=Diagonal()), TypeError, "method is .*expected"),
    (scanned(adjoint="crp"), ValueError, "adjoint.*'crp'.*expected.*'pcr'"),
    (scanned(xs=NONE, adjoint="crp"), ValueError, "adjoint.*'crp'"),
    (scanned(adjoint=Newton()), TypeError, "adjoint is Newton.*expected"),
    # No arrays.
    (lambda z: scan(keep, {"a": "b"}, XS), TypeError, r"init\['a'\] is the string 'b', expected"),
    (scanned(xs=SHAPE), TypeError, r"xs is the shape float32\[5, 3\], expected an array"),
    (lambda z: scan(keep, SHAPE, XS), TypeError, r"init is the shape float32\[5, 3\], expected"),
    (lambda z: solve(Chain(same, SHAPE), z), TypeError, "inputs is the shape float32.*expected"),
    (lambda b: solve_bidiagonal("A", b), TypeError, "A is the string 'A', expected an array", XS),
    (lambda A: solve_bidiagonal(A, SHAPE), TypeError, "b is the shape float32.*expected", XS),
    (
        lambda b: solve_bidiagonal(b, b, initial="zero"),
        TypeError,
        "initial is the string 'zero', expected",
        XS,
    ),
    # Blocks of the chain.
    (
        solved(linearize=Surrogate(lambda z, x: z[:2])),
        TypeError,
        r"linearize is Surrogate.*\[3\].*\[2\].*expected",
    ),
    (
        scanned(method=Newton(linearize=Clipped(Surrogate(same)))),
        TypeError,
        "linearize is Surrogate.*same.*expected a pair",
    ),
    (solved(linearize=Scalar(np.ones(4))), ValueError, r"coefficient.*\[4\].*expected.*5 steps"),
    (
        scanned(adjoint=Adjoint(linearize=Scalar(np.ones(4)))),
        ValueError,
        r"coefficient.*\[4\].*expected.*5 steps",
    ),
    (lambda z: solved(linearize=Scalar("1.0"))(z), WRONG, "coefficient.*'1.0'.*expected"),
    (lambda z: solved(linearize=Scalar(of_input=3))(z), WRONG, "of_input.*3.*expected"),
    (solved(linearize=Scalar(of_input=double)), ValueError, r"of_input.*\[3\].*expected a number"),
    # Guesses.
    (
        solved(initial_guess=lambda z, xs: z),
        ValueError,
        r"initial_guess.*\(3,\).*expected.*\(5, 3\)",
    ),
    (solved(initial_guess=lambda z, xs: [xs]), ValueError, "initial_guess.*expected"),
    (lambda z: solved(initial_guess=0.0)(z), ValueError, r"initial_guess.*expected.*\(5, 3\)"),
    (lambda z: solved(initial_guess=None)(z), ValueError, r"initial_guess.*expected.*\(5, 3\)"),
    (solved(initial_guess=Coarse(2, lambda z, x: z[:1])), WRONG, r"Coarse.*1.*expected.*3"),
    (solved(initial_guess=Coarse(2, lambda z, x: (z,))), WRONG, "Coarse.*expected"),
    # Batch axes.
    (scanned(batch_ndim=2), ValueError, r"init.*\[3\].*batch_ndim = 2"),
    (scanned(batch_ndim=-1), ValueError, "batch_ndim is -1.*expected"),
    (scanned(batch_ndim=None), ValueError, "batch_ndim is None.*expected"),
    (
        lambda a, b: scan(keep, {"a": a, "b": b}, XS, batch_ndim=1),
        ValueError,
        r"init.*init\['a'\]: \[5\].*init\['b'\]: \[4\]",
        XS,
        np.ones((4, 3)),
    ),
    (lambda x: forward([jnp.sin] * 2, x, batch_ndim=2), ValueError, r"x has shape \[3\], expected"),
    (
        lambda z: forward([double], z, batchndim=1),
        TypeError,
        r"forward\(\).*did you mean 'batch_nd",
    ),
    # Layers and chains.
    (lambda z: solve([double], z), TypeError, "chain is list.*expected.*Chain"),
    (lambda z: solve(same, z, XS), TypeError, r"chain is .*solve\(Chain\(step, xs\), z0\)"),
    (
        lambda z: solve(Chain(same, XS), z, XS),
        TypeError,
        r"float64\[5, 3\].*solve\(Chain\(step, xs\), z0\)",
    ),
    (lambda z: forward([double, 3], z), TypeError, r"layers\[1\] is 3.*expected a callable"),
    (
        lambda x: forward([partial(jnp.matmul, np.ones((2, 4))), double], x),
        TypeError,
        r"layers\[0\].*was given float64\[3\].*contracting",
    ),
    (lambda z: Chain.from_layers([], z), ValueError, "layers is empty.*expected"),
    (
        lambda z: Chain.from_layers([jnp.sin, jnp.sin, double], z),
        ValueError,
        r"layers\[2\].*not like.*expected equal layers.*forward",
    ),
    (
        lambda z: Chain.from_layers([lambda x: x[:1], lambda x: x[:1]], z),
        ValueError,
        r"layers\[1\].*changes the shape",
    ),
    # Linear recurrences.
    (solve_bidiagonal, ValueError, r"A.*\[5, 2\].*b.*\[5, 3\]", np.ones((5, 2, 2)), XS),
    (solve_bidiagonal, ValueError, r"A.*\[4, 3.*b.*\[5, 3\]", np.ones((4, 3, 3)), XS),
    (solve_bidiagonal, TypeError, "b.*float32.*A.*float64", XS, np.ones((5, 3), "float32")),
    (solve_bidiagonal, TypeError, "A.*int64.*expected", *[np.ones((5, 3), int)] * 2),
    (
        lambda b, y: solve_bidiagonal(b, b, initial=y),
        ValueError,
        r"initial.*\[2\].*expected.*\[3\]",
        XS,
        np.ones(2),
    ),
    (lambda b: solve_bidiagonal(b, b, solver="?"), ValueError, "solver is '.'.*pcr", XS),
]


@pytest.mark.parametrize(("call", "error", "message"), OPTIONS, ids=[row[2] for row in OPTIONS])
def test_bad_options(call, error, message):
    with pytest.raises(error, match="(?s)" + message):
        call()


@pytest.mark.parametrize(("kind", "option", "values"), VALUES)
def test_bad_values(kind, option, values):
    for value in values:
        with pytest.raises((TypeError, ValueError), match=f"{option} is {value}, expected"):
            kind(**{option: value})


@pytest.mark.parametrize(("call", "options"), CLASSES)
def test_a_class_is_no_instance(call, options):
    for option in options.split():
        for kind in KINDS:
            said = (
                rf"{option} is the class {kind.__name__} \(did you mean {kind.__name__}\(.*expected"
            )
            with pytest.raises((TypeError, ValueError), match=said):
                call(**{option: kind})


@pytest.mark.parametrize("row", CALLS, ids=[row[2] for row in CALLS])
def test_bad_calls(row, compiled):
    call, error, message, *arrays = row
    arrays = list(map(jnp.asarray, arrays or [X]))
    with pytest.raises(error, match="(?s)" + message):  # under jit, before anything is compiled
        jax.eval_shape(call, *arrays)
    compiled.clear()
    with pytest.raises(error) as raised:
        call(*arrays)
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)
    assert not compiled


def test_errors_of_the_step_come_through_as_they_are():
    class Own(Exception):
        pass

    def step(z, x):
        raise Own

    for method in ("sequential", "newton"):
        with pytest.raises(Own):
            scan(step, X, XS, method=method)
        with pytest.raises(Own):
            solve(Chain(step, XS), X, method=method)
