"""Methods, adjoints and their options as pytrees: what jax transforms takes them as arguments."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Adjoint, Auto, Chain, Coarse, Newton, Scalar, Sequential, Surrogate
from deeppcr.adjoint import Autodiff, Backpropagation
from tests.newton.chain import WEIGHT, XS, Z0
from tests.problems import L, assert_agree, normal

ATOL = np.full(L, 1e-12)
GUESS = normal(4, L, 3)
Partial = jax.tree_util.Partial


def step(z, x):
    z = jnp.tanh(z @ WEIGHT + x)
    return z, z


def run(method, adjoint="auto", xs=XS):
    return deeppcr.scan(step, Z0, xs, method=method, adjoint=adjoint)[1]


def last(method):
    return deeppcr.solve(Chain(lambda z, x: step(z, x)[0], XS), Z0, method=method)


def linear(weight, z, x):
    return jnp.tanh(z @ weight + x), None


EXPECTED = jax.lax.scan(step, Z0, XS)[1]


class OfMine(Newton):
    """A user's own."""


# Each with the names of its leaves.
METHODS = {
    "of mine": (OfMine(atol=ATOL), [".atol"]),
    "sequential": (Sequential(unroll=2), []),
    "auto": (Auto(), []),
    "auto from a trajectory": (Auto(initial_guess=GUESS), [".initial_guess"]),
    "newton": (Newton(linear="pcr", rtol=1e-12, damping=deeppcr.TrustRegion()), []),
    "tolerances": (Newton(atol=ATOL, initial_guess=GUESS), [".atol", ".initial_guess"]),
    "numbers": (Newton(linearize=Scalar(0.3)), []),
    "blocks": (Newton(linearize=deeppcr.BlockDiagonal(3)), []),
    "one number a step": (Newton(linearize=Scalar(ATOL)), [".linearize.coefficient"]),
    "clipped": (
        Newton(linearize=deeppcr.Clipped(Scalar(ATOL))),
        [".linearize.linearize.coefficient"],
    ),
    "functions": (Newton(initial_guess=lambda z, xs: xs, atol=lambda x: 1e-12), []),
    "coarse": (Newton(initial_guess=Coarse(4)), []),
    "surrogate": (Newton(linearize=Surrogate(lambda z, x: linear(WEIGHT, z, x))), []),
    "weights of a surrogate": (
        Newton(linearize=Surrogate(Partial(linear, WEIGHT))),
        [".linearize.step[<flat index 0>][0]"],
    ),
    "a guess with an array": (
        Newton(initial_guess=Partial(lambda guess, z, xs: guess, GUESS)),
        [".initial_guess[<flat index 0>][0]"],
    ),
    "arrays for numbers": (Newton(rtol=jnp.array(1e-12), max_iterations=jnp.array(20)), []),
}


@jax.jit
def jitted(method):
    return run(method)


@pytest.mark.parametrize("name", METHODS)
def test_jit_takes_a_method(name):
    method, names = METHODS[name]
    found = jax.tree_util.tree_leaves_with_path(method)
    assert [jax.tree_util.keystr(path) for path, _ in found] == names
    assert_agree(jitted(method), EXPECTED)
    again = jax.tree.map(lambda leaf: leaf, method)
    assert type(again) is type(method)
    assert jax.tree.structure(again) == jax.tree.structure(method)


ADJOINTS = {
    "blocks": Adjoint(linear="pcr", rtol=1e-12),
    "numbers": Adjoint(linearize=Scalar(0.2)),
    "one number a step": Adjoint(linearize=Scalar(ATOL)),
    "segments": Adjoint(checkpoint=4, linearize="diagonal"),
    "segments and a number": Adjoint(checkpoint=4, linearize=Scalar(jnp.array(0.2))),
    "backprop": Backpropagation(),
    "autodiff": Autodiff(),
}


@pytest.mark.parametrize("name", ADJOINTS)
def test_jit_takes_an_adjoint(name):
    @jax.jit
    def gradient(adjoint, method):
        return jax.grad(lambda xs: run(method, adjoint, xs).sum())(XS)

    expected = jax.grad(lambda xs: jax.lax.scan(step, Z0, xs)[1].sum())(XS)
    assert_agree(gradient(ADJOINTS[name], Newton()), expected)


def test_vmap_maps_the_arrays_of_a_method():
    tolerances, guesses = np.stack([ATOL, 1e3 * ATOL]), jnp.stack([GUESS, 0 * GUESS])
    mapped = jax.vmap(last)(Newton("zero", atol=tolerances, initial_guess=guesses))
    one = [
        last(Newton("zero", atol=a, initial_guess=g))
        for a, g in zip(tolerances, guesses, strict=True)
    ]
    assert mapped.stats.iterations.tolist() == [int(each.stats.iterations) for each in one]
    assert_agree(mapped.trajectory[0], EXPECTED)


def test_vmap_takes_axes_in_the_place_of_arrays():
    method = Newton("zero", atol=np.stack([ATOL, 1e3 * ATOL]), initial_guess=GUESS)
    axes = jax.tree_util.tree_map_with_path(
        lambda path, _: 0 if path[0].name == "atol" else None, method
    )
    assert (axes.atol, axes.initial_guess) == (0, None)
    assert jax.vmap(last, (axes,))(method).value.shape == (2, 3)
    method = Newton(linearize=Scalar(ATOL))
    none = jax.tree.map(lambda _: None, method)
    examples = jax.vmap(lambda method, xs: run(method, xs=xs), (none, 0))(method, XS[None])
    assert_agree(examples[0], EXPECTED)


def test_cond_takes_and_returns_a_method():
    @jax.jit
    def either(strict, method):
        looser = jax.tree.map(lambda atol: 1e3 * atol, method)
        chosen = jax.lax.cond(strict, lambda: method, lambda: looser)
        taken = jax.lax.cond(strict, run, lambda _: jnp.zeros_like(EXPECTED), method)
        return chosen, taken

    chosen, taken = either(True, Newton(atol=ATOL))
    assert_agree(chosen.atol, ATOL, 0)
    assert_agree(taken, EXPECTED)
    assert_agree(either(False, Newton(atol=ATOL))[0].atol, 1e3 * ATOL, 0)


def test_no_derivative_passes_through_a_method():
    gradient = jax.grad(lambda method: run(method).sum())(Newton(atol=ATOL, initial_guess=GUESS))
    assert not gradient.atol.any()
    assert not gradient.initial_guess.any()


def test_equal_options_are_traced_once():
    traced = []

    @jax.jit
    def f(method, adjoint):
        traced.append(method)
        return run(method, adjoint)

    for k in (1, 2):
        f(Newton(atol=k * ATOL, initial_guess=k * GUESS), Adjoint(linearize=Scalar(k * ATOL)))
        f(Newton(rtol=1e-9), Adjoint())
        f(Auto(), Backpropagation())
    assert len(traced) == 3
    f(Newton(rtol=1e-8), Adjoint())
    assert len(traced) == 4


OPTIONS = {
    "tolerances": lambda k: Newton(atol=k * ATOL),
    "a trajectory": lambda k: Newton(initial_guess=k * GUESS),
    "numbers": lambda k: Newton(linearize=Scalar(0.1 * k)),
    "an array for a number": lambda k: Newton(rtol=jnp.array(1e-9)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_arrays_of_options_compile_nothing_again(name, compiled):
    methods = [OPTIONS[name](k) for k in (1, 2)]
    adjoints = [Adjoint(checkpoint=4, linearize=Scalar(k * jnp.array(0.1))) for k in (1, 2)]
    run(methods[0])
    run(Newton(), adjoints[0])
    compiled.clear()
    run(methods[1])
    run(Newton(), adjoints[1])
    assert not compiled


def test_any_object_may_stand_for_an_array():
    method = Newton(linearize=Scalar(ATOL), atol=ATOL, initial_guess=[GUESS])
    leaves, structure = jax.tree.flatten(method)
    for objects in ([object()] * 3, [None] * 3, [0, 1, 2], ["a", "b", "c"]):
        new = jax.tree.unflatten(structure, objects)
        assert (new.atol, new.initial_guess, new.linearize.coefficient) == (
            objects[0],
            [objects[1]],
            objects[2],
        )
        assert jax.tree.leaves(new) == [each for each in objects if each is not None]
    back = pickle.loads(pickle.dumps(jax.tree.unflatten(structure, leaves)))
    assert jax.tree.structure(back) == structure
    assert repr(back) == repr(method)
    assert dataclasses.replace(back, atol=0.0).initial_guess[0] is back.initial_guess[0]


BAD = {
    "a guess": (Newton(initial_guess=GUESS[1:]), ValueError, r"initial_guess has .*\(12, 3\)"),
    "tolerances": (Newton(atol=ATOL[1:]), ValueError, r"atol is an array of shape \(12,\)"),
    "numbers": (Newton(linearize=Scalar(ATOL[1:])), ValueError, r"coefficient is .*\[12\]"),
    "raise": (Newton(on_failure="raise"), ValueError, 'on_failure is "raise"'),
}


@pytest.mark.parametrize("name", BAD)
def test_under_jit_errors_are_those_of_the_call(name):
    method, error, words = BAD[name]
    with pytest.raises(error, match=words):
        jitted(method)


def test_constructors_check_inside_jit():
    with pytest.raises(ValueError, match="max_iterations is 0"):
        jax.jit(lambda xs: run(Newton(max_iterations=0), xs=xs))(XS)
    with pytest.raises(TypeError, match=r"'coeficient'.*did you mean 'coefficient'"):
        Scalar(coeficient=1.0)
