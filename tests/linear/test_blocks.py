"""The kinds of blocks: products, shapes, groups, and which groups are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.linear.groups import Groups
from tests.linear.loop import KINDS, compiled, full, problem

kinds = pytest.mark.parametrize("kind", KINDS)
batches = pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)


@kinds
@batches
def test_products_are_those_of_the_full_matrices(kind, batch):
    blocks, y = problem(kind, 5, batch, 4)
    other, _ = problem(kind, 5, batch, 4, seed=1)
    A, B = np.asarray(full(blocks)), np.asarray(full(other))
    expected = np.einsum("...ij,...j->...i", A, y)
    assert blocks.vector_shape == y.shape

    def operations(blocks, other, y):
        one = jax.tree.map(lambda leaf: leaf[2], blocks)
        return blocks.apply(y), one.apply(y[2], "step"), blocks.compose(other), blocks.transpose()

    applied, step, composed, transposed = compiled(operations)(blocks, other, y)
    np.testing.assert_allclose(applied, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(step, expected[2], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(full(composed), A @ B, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(full(transposed), np.swapaxes(A, -1, -2))


@pytest.mark.parametrize(
    ("kind", "numbers", "block_size"),
    [
        ("matrices", 16, 4),
        ("pairs", 8, 2),
        ("ragged", 12, 2),
        ("diagonals", 4, 1),
        ("scalars", 1 / 3, 1),
        ("zeros", 0, 0),
    ],
)
def test_what_blocks_cost(kind, numbers, block_size):
    blocks, _ = problem(kind, 5, (3,), 4)
    assert blocks.block_size == block_size
    assert blocks.nbytes == 5 * 3 * numbers * 8
    assert jax.eval_shape(lambda: blocks.astype(jnp.float32)).nbytes == blocks.nbytes / 2


GROUPS = {
    "neighbours": [[0, 1, 2], [3, 4, 5]],
    "neighbours, the last one short": [[0, 1], [2, 3], [4, -1]],
    "pairs": [[0, 3], [1, 4], [2, 5]],
    "triples": [[0, 2, 4], [1, 3, 5]],
    "out of order": [[5, 0], [2, 4], [1, 3]],
    "short ones": [[-1, 3, -1], [0, -1, 2], [-1, -1, -1], [1, -1, -1]],
    "one group": [[2, 0, 1]],
}


@pytest.mark.parametrize("name", GROUPS)
def test_vectors_are_split_into_groups_and_merged(name):
    groups = Groups.of(GROUPS[name])
    y = jnp.arange(1.0, 2 * groups.width + 1).reshape(2, -1)
    split, merged, mapped = compiled(
        lambda y: (groups.split(y), groups.merge(groups.split(y)), jax.vmap(groups.split)(y))
    )(y)
    expected = np.where(np.array(GROUPS[name]) >= 0, np.asarray(y)[:, np.array(GROUPS[name])], 0)
    np.testing.assert_array_equal(split, expected)
    np.testing.assert_array_equal(merged, y)
    np.testing.assert_array_equal(mapped, split)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("neighbours", False), ("pairs", False), ("triples", False), ("out of order", True)],
)
def test_only_groups_out_of_order_need_a_gather_and_none_a_scatter(name, expected):
    groups = Groups.of(GROUPS[name])

    def program(y):
        return jax.vjp(lambda y: groups.merge(2 * groups.split(y)), y)[1](y)

    text = jax.jit(program).lower(jnp.ones((7, 6))).as_text()
    assert ("gather" in text) == expected
    assert "scatter" not in text


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.array([0, 1]), r"shape \[2\] and dtype int64, expected integers \[m, k\]"),
        (np.array([[0.0, 1.0]]), r"shape \[1, 2\] and dtype float64"),
        ([[0, 1], [1, -1]], r"entries 0, 1, 1, expected each of 0 .. w-1 once"),
        ([[0, 3], [1, -1]], r"entries 0, 1, 3, expected"),
        ([[0, -2]], r"entries -2, 0, expected"),
        (np.arange(1, 21)[:, None], r"1, 2, 3, 4, 5, 6, 7, 8, .. \(20 of them\)"),
    ],
    ids=["vector", "floats", "twice", "missing", "negative", "many"],
)
def test_groups_that_are_no_partition_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        Groups.of(groups)
