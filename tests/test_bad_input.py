"""Bad input: an error that names argument, value and what was expected, before compilation."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton, forward, scan, solve, solve_bidiagonal
from tests.bad_options import OPTIONS

X = jnp.ones(3)
XS = jnp.ones((5, 3))
NONE = XS[:0]  # cut here: a cut that compiles is not the call's fault


def keep(z, x):
    return z, None


def same(z, x):
    return z


def counted(z, x):
    x, n = z[0] * 2, z[1]
    return (x, jnp.where(x > 3, n + 1, n)), None


def double(x):
    return 2 * x


def identity(x):
    return x


# What is called, with which arguments (arrays first); the error; and what its message has to say.
CASES = {
    # A state that changes from step to step.
    "shape": (
        lambda z: scan(lambda z, x: (z[:2], None), z, XS),
        (X,),
        TypeError,
        r"state.*float64\[3\].*float64\[2\].*expected",
    ),
    "structure in solve": (
        lambda z: solve(Chain(lambda z, x: [z], XS), z),
        (X,),
        TypeError,
        "structure.*state.*expected",
    ),
    "shape in solve": (
        lambda z: solve(Chain(lambda z, x: z[None], XS), z, method="newton"),
        (X,),
        TypeError,
        r"state.*\[3\].*\[1, 3\].*expected",
    ),
    "dtype with autodiff": (
        lambda z: scan(lambda z, x: (z.astype(jnp.float32), None), z, XS, adjoint="autodiff"),
        (X,),
        TypeError,
        "carry",  # jax.lax.scan's own message
    ),
    # Lengths.
    "lengths in a chain": (
        lambda a, b: Chain(same, (a, b)),
        (np.ones(5), np.ones((4, 2))),
        ValueError,
        r"inputs\[0\]: 5.*inputs\[1\]: 4.*expected",
    ),
    "length and inputs": (lambda x: Chain(same, x, 4), (XS,), ValueError, "length is 4.*inputs.*5"),
    "length and no steps": (
        lambda x: scan(keep, X, x, 4),
        (NONE,),
        ValueError,
        "length is 4.*xs.*0",
    ),
    "no length in a chain": (lambda z: solve(Chain(same), z), (X,), ValueError, "inputs.*length"),
    "negative length": (
        lambda z: scan(keep, z, length=-1),
        (X,),
        ValueError,
        "length is -1.*expected",
    ),
    # What depends on the state, and has no derivatives.
    "integers": (
        lambda z: scan(counted, (X, z), XS, method="newton"),
        (np.arange(3),),
        TypeError,
        r"method.*init\[1\] \(int64\).*depends.*expected.*auto",
    ),
    "booleans": (
        lambda z: scan(lambda z, x: ((z[0] * 2, z[0] > 1), None), (X, z), XS, adjoint="pcr"),
        (X > 0,),
        TypeError,
        r"adjoint.*init\[1\] \(bool\).*depends.*expected.*autodiff",
    ),
    "an integer leaf": (
        lambda n: solve(
            Chain(lambda z, x: dict(zip("xn", counted((z["x"], z["n"]), x)[0], strict=True)), XS),
            {"x": X, "n": n},
            method="newton",
        ),
        (np.arange(3),),
        TypeError,
        r"z0\['n'\] \(int64\).*depends.*expected",
    ),
    "a key": (
        lambda z: scan(
            lambda z, x: (
                (z[0] * 2, jax.random.fold_in(z[1], z[0].sum().astype(jnp.int32))),
                None,
            ),
            (X, z),
            XS,
            method="newton",
        ),
        (jax.random.key(0),),
        TypeError,
        r"init\[1\] \(key.*depends.*expected",
    ),
    # What was meant.
    "a method misspelt": (
        lambda: scan(keep, X, XS, method="newtn"),
        (),
        ValueError,
        "method is 'newtn'.*did you mean 'newton'",
    ),
    "a solver in capitals": (
        lambda: Newton(linear="PCR"),
        (),
        ValueError,
        "^linear is 'PCR'.*did you mean 'pcr'",
    ),
    "an argument misspelt": (
        lambda z: forward([identity], z, batchndim=1),
        (X,),
        TypeError,
        r"forward\(\).*'batchndim', expected one of.*did you mean 'batch_ndim'",
    ),
    "an option misspelt": (
        lambda: Newton(initial_gues="apply"),
        (),
        TypeError,
        r"Newton\(\).*'initial_gues'.*did you mean 'initial_guess'",
    ),
    "axes that x of forward lacks": (
        lambda x: forward([jnp.sin, jnp.sin], x, batch_ndim=2),
        (X,),
        ValueError,
        r"^x has shape \[3\], expected.*batch_ndim = 2",
    ),
    "layers for a stack": (
        lambda: deeppcr.unstack([identity]),
        (),
        TypeError,
        r"stacked is list, expected.*deeppcr.stack\(layers\)",
    ),
    "a step for a chain": (
        lambda z, x: solve(same, z, x),
        (X, XS),
        TypeError,
        r"chain is .*solve\(Chain\(step, xs\), z0\)",
    ),
    "a third argument": (
        lambda z, x: solve(Chain(same, x), z, x),
        (X, XS),
        TypeError,
        r"float64\[5, 3\].*solve\(Chain\(step, xs\), z0\)",
    ),
    "a layer of another width": (
        lambda x: forward([partial(jnp.matmul, np.ones((2, 4))), double], x),
        (X,),
        TypeError,
        r"layers\[0\].*was given float64\[3\].*contracting",
    ),
    # Names.
    "method": (
        lambda z: scan(keep, z, XS, method="newtown"),
        (X,),
        ValueError,
        "method.*'newtown'.*expected.*'newton'",
    ),
    "method in solve": (
        lambda z: solve(Chain(same, XS), z, method="?"),
        (X,),
        ValueError,
        "method.*'?'.*expected.*sequential",
    ),
    "method in forward": (
        lambda z: forward([identity], z, method="?"),
        (X,),
        ValueError,
        "method.*'?'.*expected.*sequential",
    ),
    "method of another type": (
        lambda z: scan(keep, z, XS, method=3),
        (X,),
        TypeError,
        "method is 3.*expected.*'newton'",
    ),
    "a class as method": (
        lambda z: scan(keep, z, XS, method=Newton),
        (X,),
        TypeError,
        "method.*Newton.*expected",
    ),
    "adjoint": (
        lambda z: scan(keep, z, XS, adjoint="crp"),
        (X,),
        ValueError,
        "adjoint.*'crp'.*expected.*'pcr'",
    ),
    "adjoint without steps": (
        lambda z: scan(keep, z, NONE, adjoint="crp"),
        (X,),
        ValueError,
        "adjoint.*'crp'",
    ),
    "adjoint in forward": (
        lambda z: forward([identity], z, adjoint="crp"),
        (X,),
        ValueError,
        "adjoint.*'crp'.*expected.*'pcr'",
    ),
    "adjoint of another type": (
        lambda z: scan(keep, z, XS, adjoint=0),
        (X,),
        TypeError,
        "adjoint is 0.*expected",
    ),
    "linear solver": (lambda: Newton(linear="?"), (), ValueError, "(linear|solver) is '.'.*pcr"),
    "linear solver of another type": (
        lambda: Newton(linear=1),
        (),
        TypeError,
        "(linear|solver) is 1.*expected",
    ),
    # Options of Newton.
    "rtol": (lambda: Newton(rtol=-1e-3), (), ValueError, "rtol is -0.001.*expected"),
    "rtol is nan": (lambda: Newton(rtol=float("nan")), (), ValueError, "rtol is nan.*expected"),
    "atol": (lambda: Newton(atol=-1.0), (), ValueError, "atol is -1.0.*expected"),
    "max_iterations": (
        lambda: Newton(max_iterations=0),
        (),
        ValueError,
        "max_iterations is 0.*expected",
    ),
    "on_failure": (
        lambda: Newton(on_failure="panic"),
        (),
        ValueError,
        "on_failure is 'panic'.*expected.*raise",
    ),
    "initial_guess": (
        lambda: Newton(initial_guess="zero"),
        (),
        ValueError,
        "initial_guess is 'zero'.*expected.*apply",
    ),
    "shape of the guess": (
        lambda z: solve(Chain(same, XS), z, method=Newton(initial_guess=lambda z, xs: z)),
        (X,),
        ValueError,
        r"initial_guess.*\(3,\).*expected.*\(5, 3\)",
    ),
    "structure of the guess": (
        lambda z: solve(Chain(same, XS), z, method=Newton(initial_guess=lambda z, xs: [xs])),
        (X,),
        ValueError,
        "initial_guess.*expected",
    ),
    # Batch axes.
    "batch_ndim": (
        lambda z: scan(keep, z, XS, batch_ndim=2),
        (X,),
        ValueError,
        r"init.*\[3\].*batch_ndim = 2",
    ),
    "negative batch_ndim": (
        lambda z: scan(keep, z, XS, batch_ndim=-1),
        (X,),
        ValueError,
        "batch_ndim is -1.*expected",
    ),
    "batch_ndim of another type": (
        lambda z: scan(keep, z, XS, batch_ndim=None),
        (X,),
        ValueError,
        "batch_ndim is None.*expected",
    ),
    "batches differ": (
        lambda a, b: scan(keep, {"a": a, "b": b}, XS, batch_ndim=1),
        (np.ones((2, 3)), np.ones((4, 3))),
        ValueError,
        r"init.*init\['a'\]: \[2\].*init\['b'\]: \[4\]",
    ),
    # Layers and chains.
    "no chain": (lambda z: solve([identity], z), (X,), TypeError, "chain is list.*expected.*Chain"),
    "no layer": (
        lambda z: forward([identity, 3], z),
        (X,),
        TypeError,
        r"layers\[1\] is 3.*expected a callable",
    ),
    "from no layers": (
        lambda z: Chain.from_layers([], z),
        (X,),
        ValueError,
        "layers is empty.*expected",
    ),
    "from layers unlike": (
        lambda z: Chain.from_layers([identity, identity, double], z),
        (X,),
        ValueError,
        r"layers\[2\].*layers\[1\].*expected.*forward",
    ),
    "from layers that change the shape": (
        lambda z: Chain.from_layers([lambda x: x[:1], lambda x: x[:1]], z),
        (X,),
        ValueError,
        r"layers\[1\].*layers\[0\].*shape",
    ),
    # Linear recurrences.
    "A and b": (
        solve_bidiagonal,
        (np.ones((5, 2, 2)), XS),
        ValueError,
        r"A.*\[5, 2\].*b.*\[5, 3\]",
    ),
    "lengths of A and b": (
        solve_bidiagonal,
        (np.ones((4, 3, 3)), XS),
        ValueError,
        r"A.*\[4, 3.*b.*\[5, 3\]",
    ),
    "batches of A and b": (
        solve_bidiagonal,
        (np.ones((5, 2, 3, 3)), np.ones((5, 1, 3))),
        ValueError,
        r"A.*b.*\[5, 1, 3\]",
    ),
    "dtypes of A and b": (
        solve_bidiagonal,
        (XS, XS.astype(np.float32)),
        TypeError,
        "b.*float32.*A.*float64",
    ),
    "integers in A": (
        solve_bidiagonal,
        (np.ones((5, 3), int), np.ones((5, 3), int)),
        TypeError,
        "A.*int64.*expected",
    ),
    "the initial state": (
        lambda A, b, y: solve_bidiagonal(A, b, initial=y),
        (XS, XS, np.ones(2)),
        ValueError,
        r"initial.*\[2\].*expected.*\[3\]",
    ),
    "solver": (partial(solve_bidiagonal, solver="?"), (XS, XS), ValueError, "solver is '.'.*pcr"),
    **OPTIONS,
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name, compiled):
    call, arrays, error, message = CASES[name]
    arrays = [jnp.asarray(array) for array in arrays]
    compiled.clear()
    with pytest.raises(error) as raised:
        call(*arrays)
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)
    assert not compiled
    if arrays:
        with pytest.raises(error, match="(?s)" + message):
            jax.eval_shape(call, *arrays)


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
