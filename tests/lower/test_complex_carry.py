"""A complex number of a state is two leaves; a loop carries it as one, and returns both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from depth.jaxprs import equations, scan_parts
from tests.problems import assert_agree, normal, rounding

L, N = 6, 3
XS = normal(0, L, N)


def turned(x):
    return jax.lax.complex(jnp.cos(x), jnp.sin(x))


def rotated(z, x):
    z = turned(XS[0]) * z + turned(x)
    return z, z


def beside_others(carry, x):
    count, a, z, b = carry
    z = turned(x) * z + jax.lax.complex(a, b)
    return (count + 1, jnp.tanh(a + z.real.sum()), z, b * x), (z * turned(b), a)


def in_float32(z, x):
    z = jnp.tanh(z) * turned(x.astype(np.float32))
    return z, z.imag


def of_unlike_parts(carry, x):
    """A real and an imaginary part that follow one another, of no common number."""
    a, b = carry
    return (jnp.real(turned(a)), jnp.imag(turned(b))), x


ZERO = jnp.zeros(N, complex)
CASES = {
    "alone": (rotated, ZERO),
    "beside others": (beside_others, (0, jnp.ones(N), ZERO, jnp.ones(N))),
    "in float32": (in_float32, jnp.ones(N, np.complex64)),
    "unlike parts": (of_unlike_parts, (jnp.ones(2), jnp.ones(4))),
}


def carried(scan, step, init):
    """The complex leaves that loops carry with a complex number in a step."""
    program = jax.make_jaxpr(lambda init, xs: scan(step, init, xs))(init, XS).jaxpr
    loops = [each for each in equations(program) if each.primitive.name == "scan"]
    consts, count, _ = scan_parts(loops[-1])
    atoms = loops[-1].invars[consts : consts + count]
    return sum(jnp.issubdtype(atom.aval.dtype, jnp.complexfloating) for atom in atoms)


@pytest.mark.parametrize("case", CASES)
def test_a_loop_carries_what_that_of_jax_does(case):
    step, init = CASES[case]
    assert carried(deeppcr.scan, step, init) == carried(jax.lax.scan, step, init)


@pytest.mark.parametrize("adjoint", ["auto", "backprop", "sequential"])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_jax(case, adjoint):
    step, init = CASES[case]

    def loss(scan, xs):
        leaves = jax.tree.leaves(scan(step, init, xs))
        return sum(jnp.sum(jnp.abs(y)) for y in leaves if y.dtype != int)

    def both(scan):
        return jax.jit(lambda xs: (scan(step, init, xs), jax.grad(lambda x: loss(scan, x))(xs)))(XS)

    ours = both(lambda *arguments: deeppcr.scan(*arguments, adjoint=adjoint))
    tolerance = rounding(np.float32, 4 * L) if case == "in float32" else 1e-10
    assert_agree(ours, both(jax.lax.scan), tolerance)
