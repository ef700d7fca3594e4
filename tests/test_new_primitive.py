"""A primitive that the table lacks: every reader expects the worst.

With one line in the table, every reader knows it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import deeppcr
import depth
from deeppcr.linearize.jacobian import columns
from deeppcr.lower.cpu.products import write_out
from deeppcr.programs.cut_first import evaluate
from depth import primitives
from depth.jaxprs import Program, equations, without_constants
from tests.problems import assert_agree, normal
from tests.structure.dependence import structure_of

WIDTH = 6
SQUARE = normal(0, WIDTH, WIDTH)

thrice_p = Primitive("tests.thrice")


def thrice(x):
    """Three times x, by a primitive of its own."""
    return thrice_p.bind(x)


thrice_p.def_impl(lambda x: 3 * x)
thrice_p.def_abstract_eval(lambda x: x)
ad.deflinear2(thrice_p, lambda cotangent, x: [thrice(cotangent)])
batching.primitive_batchers[thrice_p] = lambda operands, axes: (thrice(*operands), axes[0])
mlir.register_lowering(thrice_p, mlir.lower_fun(lambda x: 3 * x, multiple_results=False))


@pytest.fixture(params=[True, False], ids=["entered", "not entered"])
def entered(request, monkeypatch):
    monkeypatch.setattr(primitives, "PRIMITIVES", dict(primitives.PRIMITIVES))
    if request.param:
        primitives.elementwise("tests.thrice")
    return request.param


def shapes(f, *arguments):
    """The shapes that the primitive is applied to."""
    program = without_constants(jax.make_jaxpr(f)(*arguments))
    found = (each for each in equations(program) if each.primitive is thrice_p)
    return [each.invars[0].aval.shape for each in found]


def evaluated(f, replace=None):
    """The same function, by the interpreter."""

    def g(*arguments):
        closed = jax.make_jaxpr(f)(*arguments)
        program, constants = Program.of(closed), getattr(closed, "consts", ())
        known = dict(
            zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True)
        )
        return evaluate(program, known, program.outvars, replace)[0]

    return g


def test_depth(entered):
    cost = depth.analyze(lambda x: jnp.tanh(thrice(x)), jnp.ones(WIDTH))
    assert (cost.depth, cost.work) == (2, 2 * WIDTH)
    assert [each.primitive for each in cost.unknown] == ([] if entered else ["tests.thrice"])
    assert cost.seconds(depth.at_hand("cpu")) > 0


def test_structure(entered):
    found = structure_of(lambda z: jnp.sin(thrice(z)) * z, jnp.zeros(WIDTH))
    assert found.kind == ("elementwise" if entered else "dense")
    found = structure_of(lambda z: thrice(z), jnp.zeros((3, WIDTH)), batch_ndim=1)
    assert found.separate == entered


def test_cut_first(entered):
    def step(x):
        y = thrice(x)
        return y[:2] + y[2:4] + y[4:]

    x = normal(1, WIDTH)
    assert shapes(evaluated(step), x) == ([(2,)] * 3 if entered else [(WIDTH,)])
    assert_agree(evaluated(step)(x), step(x))


def test_columns(entered):
    def linear(v):
        return thrice(v) + thrice(v @ SQUARE)

    assert_agree(columns(linear, jnp.zeros(WIDTH)), jax.vmap(linear)(jnp.eye(WIDTH)))


def test_the_answer_is_right(entered):
    def step(z, x):
        z = jnp.tanh(thrice(0.2 * z) + x)
        return z, thrice(z)

    def value(scan, z, xs):
        return sum(jnp.sum(jnp.asarray(y) ** 2) for y in jax.tree.leaves(scan(step, z, xs)))

    arguments = normal(1, WIDTH), normal(2, 9, WIDTH)
    scans = partial(deeppcr.scan, method="newton", adjoint="sequential"), lax.scan
    both = [jax.value_and_grad(partial(value, scan), argnums=(0, 1)) for scan in scans]
    assert_agree(*jax.jit(lambda *arguments: [each(*arguments) for each in both])(*arguments))


def test_a_call_that_is_not_entered_stays_as_it_is(monkeypatch):
    """Its program may have another meaning: it is bound, not entered."""
    monkeypatch.setattr(primitives, "PRIMITIVES", dict(primitives.PRIMITIVES))
    inner = jax.jit(lambda x: x @ SQUARE)
    x = normal(1, WIDTH)
    for name in ("jit", "pjit"):
        primitives.PRIMITIVES.pop(name)
    assert "dot_general" in str(jax.make_jaxpr(evaluated(inner, write_out))(x))
    assert_agree(evaluated(inner, write_out)(x), inner(x))
    assert depth.analyze(inner, x).unknown
    assert structure_of(jax.jit(jnp.sin), x).kind == "dense"
    assert np.isfinite(columns(inner, x)).all()
