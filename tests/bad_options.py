"""Wrong options of methods and adjoints: a table for `test_bad_input`, which makes the calls.

A call, its arrays, the error and what its message has to say.
"""

import jax.numpy as jnp
import numpy as np

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
    plan,
    scan,
    solve,
)
from deeppcr.newton.acceleration import Anderson

X = jnp.ones(3)
XS = jnp.ones((5, 3))


def keep(z, x):
    return z, None


def same(z, x):
    return z


def shorter(z, x):
    return z[:2]


def identity(x):
    return x


OPTIONS = {
    # Where blocks come from.
    "linearize": (
        lambda: Newton(linearize="densee"),
        (),
        ValueError,
        "linearize is 'densee'.*expected.*'dense'",
    ),
    "linearize of another type": (
        lambda: Newton(linearize=3),
        (),
        TypeError,
        "linearize is 3.*expected.*'dense'",
    ),
    "a class as linearize": (
        lambda: Newton(linearize=Diagonal),
        (),
        TypeError,
        "linearize is .*Diagonal.*expected",
    ),
    "a surrogate that is no function": (
        lambda: Surrogate(3),
        (),
        TypeError,
        "step is 3.*expected a function",
    ),
    "form of a surrogate": (
        lambda: Surrogate(same, "densee"),
        (),
        ValueError,
        "linearize is 'densee'.*expected.*'dense'",
    ),
    "shape of a surrogate": (
        lambda z: solve(Chain(same, XS), z, method=Newton(linearize=Surrogate(shorter))),
        (X,),
        TypeError,
        r"linearize is Surrogate.*shorter.*\[3\].*\[2\].*expected",
    ),
    "a surrogate without outputs": (
        lambda z: scan(keep, z, XS, method=Newton(linearize=Clipped(Surrogate(same)))),
        (X,),
        TypeError,
        "linearize is Surrogate.*same.*expected a pair",
    ),
    "a surrogate in a plan": (
        lambda z: plan(Chain(same, XS), z, method=Newton(linearize=Surrogate(same))),
        (X,),
        ValueError,
        "linearize is Surrogate.*same.*expected.*plan",
    ),
    "limit": (lambda: Clipped("diagonal", 0.0), (), ValueError, "limit is 0.0.*expected"),
    "limit of another type": (lambda: Clipped(limit="1"), (), TypeError, "limit is '1'.*expected"),
    "size": (lambda: BlockDiagonal(0), (), ValueError, "size is 0.*expected"),
    "size of another type": (lambda: BlockDiagonal(2.0), (), TypeError, "size is 2.0.*expected"),
    "probes": (lambda: Diagonal(-1), (), ValueError, "probes is -1.*expected"),
    "probes of another type": (lambda: Diagonal(2.5), (), TypeError, "probes is 2.5.*expected"),
    "coefficients": (
        lambda z: solve(Chain(same, XS), z, method=Newton(linearize=Scalar(np.ones(4)))),
        (X,),
        ValueError,
        r"coefficient.*\[4\].*expected.*5 steps",
    ),
    "a coefficient of another type": (
        lambda z: solve(Chain(same, XS), z, method=Newton(linearize=Scalar("1.0"))),
        (X,),
        (TypeError, ValueError),
        "coefficient.*'1.0'.*expected",
    ),
    "no function of the input": (
        lambda z: solve(Chain(same, XS), z, method=Newton(linearize=Scalar(of_input=3))),
        (X,),
        (TypeError, ValueError),
        "of_input.*3.*expected",
    ),
    "coefficients of the input": (
        lambda z: solve(Chain(same, XS), z, method=Newton(linearize=Scalar(of_input=identity))),
        (X,),
        ValueError,
        r"of_input.*\[3\].*expected a number",
    ),
    # Windows, memory, acceleration.
    "window": (lambda: Newton(window=0), (), ValueError, "window is 0.*expected"),
    "window of another type": (
        lambda: Newton(window=2.5),
        (),
        TypeError,
        "window is 2.5.*expected",
    ),
    "a bool as window": (
        lambda: Newton(window=True),
        (),
        (TypeError, ValueError),
        "window is True.*expected",
    ),
    "memory": (lambda: Newton(memory=0), (), ValueError, "memory is 0.*expected"),
    "memory in words": (
        lambda: Newton(memory="1 GB"),
        (),
        TypeError,
        "memory is '1 GB'.*expected how many bytes",
    ),
    "max_iterations of another type": (
        lambda: Newton(max_iterations=2.5),
        (),
        TypeError,
        "max_iterations is 2.5.*expected",
    ),
    "acceleration": (
        lambda: Newton(acceleration="anderson"),
        (),
        TypeError,
        "acceleration is 'anderson'.*expected.*Anderson",
    ),
    "a class as acceleration": (
        lambda: Newton(acceleration=Anderson),
        (),
        TypeError,
        "acceleration is .*Anderson.*expected",
    ),
    # Guesses.
    "length of the guess": (
        lambda z: solve(Chain(same, XS), z, method=Newton(initial_guess=np.ones((4, 3)))),
        (X,),
        ValueError,
        r"initial_guess.*\(4, 3\).*expected.*\(5, 3\)",
    ),
    "a number as guess": (
        lambda z: solve(Chain(same, XS), z, method=Newton(initial_guess=0.0)),
        (X,),
        ValueError,
        r"initial_guess.*expected.*\(5, 3\)",
    ),
    "no guess": (
        lambda z: solve(Chain(same, XS), z, method=Newton(initial_guess=None)),
        (X,),
        ValueError,
        r"initial_guess.*expected.*\(5, 3\)",
    ),
    "every of Coarse": (lambda: Coarse(every=0), (), ValueError, "every is 0.*expected"),
    "every of another type": (lambda: Coarse(every=2.0), (), TypeError, "every is 2.0.*expected"),
    "step of Coarse": (
        lambda: Coarse(every=2, step=3),
        (),
        (TypeError, ValueError),
        "step is 3.*expected",
    ),
    "shape of a coarse step": (
        lambda z: solve(
            Chain(same, XS), z, method=Newton(initial_guess=Coarse(2, lambda z, x: z[:1]))
        ),
        (X,),
        (TypeError, ValueError),
        r"Coarse.*\[1\].*expected.*\[3\]|Coarse.*\(1,\).*expected.*\(3,\)",
    ),
    "structure of a coarse step": (
        lambda z: solve(
            Chain(same, XS), z, method=Newton(initial_guess=Coarse(2, lambda z, x: (z,)))
        ),
        (X,),
        (TypeError, ValueError),
        "Coarse.*expected",
    ),
    # Options of Adjoint.
    "linearize of Adjoint": (
        lambda: Adjoint(linearize="?"),
        (),
        ValueError,
        "linearize is '.'.*expected.*'dense'",
    ),
    "linear solver of Adjoint": (
        lambda: Adjoint(linear="?"),
        (),
        ValueError,
        "(linear|solver) is '.'.*pcr",
    ),
    "rtol of Adjoint": (lambda: Adjoint(rtol=-1.0), (), ValueError, "rtol is -1.0.*expected"),
    "max_iterations of Adjoint": (
        lambda: Adjoint(max_iterations=0),
        (),
        ValueError,
        "max_iterations is 0.*expected",
    ),
    "no max_iterations of Adjoint": (
        lambda: Adjoint(max_iterations=None),
        (),
        TypeError,
        "max_iterations is None.*expected",
    ),
    "memory of Adjoint": (lambda: Adjoint(memory=0), (), ValueError, "memory is 0.*expected"),
    "coefficients of Adjoint": (
        lambda z: scan(keep, z, XS, adjoint=Adjoint(linearize=Scalar(np.ones(4)))),
        (X,),
        ValueError,
        r"coefficient.*\[4\].*expected.*5 steps",
    ),
    "a class as adjoint": (
        lambda z: scan(keep, z, XS, adjoint=Adjoint),
        (X,),
        TypeError,
        "adjoint is .*Adjoint.*expected",
    ),
    "a method as adjoint": (
        lambda z: scan(keep, z, XS, adjoint=Newton()),
        (X,),
        TypeError,
        "adjoint is Newton.*expected",
    ),
    "an adjoint as method": (
        lambda z: scan(keep, z, XS, method=Adjoint()),
        (X,),
        TypeError,
        "method is Adjoint.*expected",
    ),
    "a linearization as method": (
        lambda z: scan(keep, z, XS, method=Diagonal()),
        (X,),
        TypeError,
        "method is .*expected",
    ),
}
