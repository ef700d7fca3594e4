"""`find_structure`: what it says, what it keeps, and that it is never at a loss."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from deeppcr.arrays import StateLayout
from deeppcr.chain.trace import trace
from deeppcr.structure import find, find_structure
from tests.structure.dependence import assert_sound, differentiated, structure_of, traced

Z = jnp.zeros(6)
SQUARE = jnp.ones((6, 6))


def line_of(function):
    """Where the body of a function of two lines is."""
    return f"test_find.py:{function.__code__.co_firstlineno + 1}"


def dense(z):
    return jnp.tanh(SQUARE @ z)


def in_pairs(z):
    return jnp.tile(z.reshape(3, 2).sum(1, keepdims=True), 2).reshape(-1)


def swapped(z):
    return jnp.concatenate([z[1:2], z[:1], z[2:]])


# -- what it says ----------------------------------------------------------------------------------


def test_it_says_what_joins_entries_and_where():
    assert str(structure_of(jnp.sin, Z)) == "elementwise: no entry of the state reaches another"
    found = f"dense: all 6 entries are one group, by dot_general ({line_of(dense)})"
    assert str(structure_of(dense, Z)) == found
    found = f"block-diagonal: 3 groups of 2 entries, by reduce_sum ({line_of(in_pairs)})"
    assert str(structure_of(in_pairs, Z)) == found
    assert structure_of(swapped, Z).mixed_by == "moving to other places"
    assert str(structure_of(jax.jit(dense), Z)) == str(structure_of(dense, Z))


# -- what it keeps ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("_nothing_older")
def test_it_is_found_once_and_keeps_nothing_alive():
    def find():
        step, layout = traced(lambda z: jnp.sin(z) * 2, Z)
        found = find_structure(step, layout)
        assert find_structure(step, layout) is found
        assert find_structure(step, StateLayout((), (jnp.float64,), (6,))) is not found
        return weakref.ref(step)

    step = find()
    gc.collect()
    assert step() is None


def test_what_does_not_depend_on_the_state_costs_nothing():
    """Labels of these inputs would take 64 GB."""
    inputs = jax.ShapeDtypeStruct((1 << 17, 1 << 17), jnp.float64)
    traced, _ = trace(lambda z, x: (z * (x @ jnp.sin(x).T).sum(), None), Z, inputs)
    assert find_structure(traced, StateLayout.of([Z], 0)).kind == "elementwise"


def test_what_is_too_large_to_follow_is_joined():
    def step(z):
        return jnp.sin(jnp.broadcast_to(z[:, None], (6, 1 << 40))).sum(1)

    assert structure_of(step, Z).kind == "dense"


# -- what it does not know -------------------------------------------------------------------------


def test_a_rule_that_fails_is_as_good_as_none(monkeypatch):
    def broken(visit):
        raise KeyError("a parameter with another name")

    monkeypatch.setitem(find.KNOWN, "sin", broken)
    assert structure_of(jnp.sin, Z).kind == "dense"
    monkeypatch.setitem(find.KNOWN, "sin", lambda visit: [visit.operands[0][:1]])
    assert structure_of(jnp.sin, Z).kind == "dense"


def test_what_is_handed_to_python_may_come_back_anywhere():
    held = []

    def step(z):
        jax.experimental.io_callback(held.append, None, z, ordered=True)
        return jax.experimental.io_callback(lambda: held.pop(), z, ordered=True)

    found = structure_of(step, jnp.zeros((2, 3)), 1)
    assert found.kind == "dense"
    assert not found.separate


def test_other_devices_are_examples_of_their_own():
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    found = []

    def local(z):
        step, layout = traced(lambda z: jax.nn.relu(z) * lax.axis_index("i").astype(z.dtype), z, 1)
        found.append(find_structure(step, layout))
        step, layout = traced(lambda z: z - lax.pmean(z, "i"), z, 1)
        found.append(find_structure(step, layout))
        assert not find_structure(step, layout).separate
        return z

    jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))
    ).lower(jnp.zeros((1, 3)))
    alone, together = found
    assert (alone.kind, alone.separate) == ("elementwise", True)
    assert not together.separate


@jax.custom_jvp
def lagging(z):
    return jnp.sin(z)


@lagging.defjvp
def _(primals, tangents):
    (z,), (t,) = primals, tangents
    return jnp.sin(z), jnp.cos(z) * jnp.tile(t.reshape(3, 2).sum(1, keepdims=True), 2).reshape(-1)


@jax.custom_jvp
def looking(z, other):
    return z + jnp.sin(other)


def look(primals, tangents):
    t, other = tangents
    return looking(*primals), t if isinstance(other, jax.custom_derivatives.SymbolicZero) else t[
        ::-1
    ]


looking.defjvp(look, symbolic_zeros=True)


def with_backward(rule):
    @jax.custom_vjp
    def function(z):
        return 2 * z

    function.defvjp(lambda z: (2 * z, z), rule)
    return function


normalised = with_backward(lambda z, g: (g / (1 + jnp.abs(g).sum()),))
PAIRS = [[0, 1], [2, 3], [4, 5]]


@jax.custom_vjp
def straight_through(z):
    """Zero, with the derivative of the mean."""
    return jnp.zeros_like(z)


straight_through.defvjp(
    lambda z: (jnp.zeros_like(z), None), lambda _, g: (jnp.broadcast_to(g.mean(), g.shape),)
)


def solved_roughly(z):
    """The rough solution z / 2 depends on z alone, its derivative on the matrix, too."""
    return lax.custom_linear_solve(lambda v: (2 + z[::-1]) * v, z, lambda matrix, b: b / 2)


OWN = {
    "own jvp, pairs": (lagging, PAIRS),
    "own jvp that looks": (lambda z: looking(z, jnp.ones(6)), [[0, 1, 2, 3, 4, 5]]),
    "a linear solve": (solved_roughly, [[0, 5], [1, 4], [2, 3]]),
    "normalised": (normalised, [[0, 1, 2, 3, 4, 5]]),
    "straight through": (straight_through, [[0, 1, 2, 3, 4, 5]]),
}


# -- derivatives of their own ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_derivatives_of_their_own(name):
    step, groups = OWN[name]
    found = structure_of(step, Z)
    assert found.groups.tolist() == groups
    jacobian = jax.jacrev if traced(step, Z)[0].has_custom_vjp else jax.jacfwd
    (depends,) = differentiated([step], 6, jacobian)
    assert_sound(step, (6,), depends)
    assert_sound(step, (3, 2), depends, batch_ndim=1)


# -- examples of a batch ---------------------------------------------------------------------------


def test_two_batch_axes_are_told_apart():
    def centred(z):
        return z - jnp.broadcast_to(z.mean(1, keepdims=True), z.shape)

    z = jnp.zeros((3, 3, 2))
    assert structure_of(jnp.sin, z, 2).separate
    assert structure_of(centred, z, 1).separate
    assert not structure_of(centred, z, 2).separate
    assert not structure_of(lambda z: z.transpose(1, 0, 2), z, 2).separate
