"""Pytrees to flat arrays and back."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.optim import Packing
from tests.parameters import assert_same, everything, mixed, tree


@jax.tree_util.register_pytree_node_class
class Custom:
    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten(self):
        return self.parts, len(self.parts)

    @classmethod
    def tree_unflatten(cls, length, parts):
        assert len(parts) == length
        return cls(*parts)


TREES = {
    "mixed": lambda: mixed(0),
    "everything": everything,
    "scalar": lambda: jnp.float32(1.0),
    "custom": lambda: Custom(jnp.ones((2, 1)), [Custom(jnp.zeros((0, 3))), None, ()], jnp.int8(3)),
    "empty": lambda: {"a": ()},
    "complex": lambda: [jnp.array(1 + 2j), jnp.ones(2)],
}


@pytest.mark.parametrize("name", TREES)
def test_packing_round_trips_to_the_bit(name):
    given = TREES[name]()
    packing = Packing.of(given)
    assert packing == Packing.of(jax.eval_shape(TREES[name]))
    assert hash(packing) == hash(Packing.of(given))
    packed = jax.jit(packing.pack)(given)
    assert len(jax.tree.leaves(packed)) == len({leaf.dtype for leaf in jax.tree.leaves(given)})
    assert all(array.ndim == 1 for array in packed.arrays.values())
    for found in jax.jit(lambda packed: (packing.unpack(packed), packed.unpack()))(packed):
        assert_same(found, given)


def test_gradients_through_the_unpacking_are_right_too():
    params = tree(0)
    packing = Packing.of(params)

    @jax.jit
    def both(params):
        found = jax.grad(
            lambda packed: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(packed.unpack()))
        )(packing.pack(params))
        return packing.unpack(found), jax.tree.map(jnp.cos, params)

    assert_same(*both(params))
    shapes = jax.eval_shape(packing.pack, params)
    assert "pad" not in str(jax.make_jaxpr(jax.grad(lambda p: packing.unpack(p)["s"]))(shapes))


def test_bad_arguments_are_named():
    params = tree(0)
    packing = Packing.of(params)
    with pytest.raises(TypeError, match=r"packed is dict, expected the result of Packing\.pack"):
        packing.unpack(params)
    with pytest.raises(ValueError, match="packed by another packing"):
        packing.unpack(Packing.of(1.0).pack(1.0))
    with pytest.raises(ValueError, match="tree has the structure"):
        packing.pack([1.0])
