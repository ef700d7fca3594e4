"""Max-plus matrices against triple loops in Python's integers.

Products, powers, and the paths that a power is made of.
"""

from collections import Counter

import numpy as np
import pytest

from depth.maxplus import Algebra, Power

SMALL, LARGE = Algebra.up_to(10**15), Algebra.up_to(1 << 70)
algebras = pytest.mark.parametrize(
    "algebra", [SMALL, LARGE, Algebra.up_to((1 << 60) - 1)], ids=["int64", "object", "widest"]
)
densities = pytest.mark.parametrize("density", [0.0, 0.2, 0.5, 1.0])


def random_matrix(rng, shape, density, deepest=20):
    """Entries as Python's integers, None for no path."""
    return [
        [int(rng.integers(deepest)) if rng.random() < density else None for _ in range(shape[1])]
        for _ in range(shape[0])
    ]


def exists(algebra, value):
    return bool(value > algebra.threshold)


def array(algebra, rows, columns):
    result = algebra.nothing(len(rows), columns)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if value is not None:
                result[i, j] = value
    return result


def rows(algebra, matrix):
    """The way back; what is no path must be written in the one way."""
    assert matrix.dtype == algebra.dtype
    assert all(value == algebra.never or value >= 0 for value in matrix.flat)
    return [[int(value) if exists(algebra, value) else None for value in row] for row in matrix]


def plain_product(a, b, columns):
    def entry(row, j):
        return max(
            (x + y[j] for x, y in zip(row, b, strict=True) if x is not None and y[j] is not None),
            default=None,
        )

    return [[entry(row, j) for j in range(columns)] for row in a]


def plain_power(a, exponent):
    result = [[0 if i == j else None for j in range(len(a))] for i in range(len(a))]
    for _ in range(exponent):
        result = plain_product(a, result, len(a))
    return result


def check_entries(power, matrix, exponent):
    """The entries of every path, alone and all together with multiplicity.

    They exist, sum up, and are connected.
    """
    n, algebra = len(matrix), power.algebra
    wanted = Counter(
        {
            (i, j): 1 + i + 2 * j
            for i in range(n)
            for j in range(n)
            if exists(algebra, power.value[i, j])
        }
    )
    for (i, j), times in wanted.items():
        counts = power.entries(Counter({(i, j): times}))
        assert all(count > 0 and exists(algebra, matrix[pair]) for pair, count in counts.items())
        assert sum(counts.values()) == times * exponent
        assert sum(int(matrix[pair]) * count for pair, count in counts.items()) == times * int(
            power.value[i, j]
        )
        ends = Counter()  # a path leaves every state as often as it comes to it, but for its ends
        for (to, start), count in counts.items():
            ends[to] += count
            ends[start] -= count
        assert {k: v for k, v in ends.items() if v} == (
            {i: times, j: -times} if i != j and exponent else {}
        )
    counts = power.entries(wanted)
    assert sum(counts.values()) == exponent * wanted.total()
    assert sum(int(matrix[pair]) * count for pair, count in counts.items()) == sum(
        times * int(power.value[pair]) for pair, times in wanted.items()
    )


@algebras
@densities
def test_a_product_is_the_triple_loop(algebra, density):
    rng = np.random.default_rng(0)
    for shape in [(1, 1, 1), (3, 4, 5), (6, 2, 6), (0, 3, 2), (3, 0, 2), (2, 3, 0)]:
        a, b = random_matrix(rng, shape[:2], density), random_matrix(rng, shape[1:], density)
        got = algebra.product(array(algebra, a, shape[1]), array(algebra, b, shape[2]))
        assert got.shape == (shape[0], shape[2])
        assert rows(algebra, got) == plain_product(a, b, shape[2])


@algebras
def test_columns_that_differ_by_a_number_only(algebra):
    """Products may merge them."""
    rng = np.random.default_rng(3)
    for density in (0.3, 0.7, 1.0):
        column = random_matrix(rng, (6, 1), density)
        shifts = [int(shift) for shift in rng.integers(0, 10**9, 5)]
        a = [
            [None if value is None else value + shift for shift in shifts] + [3]
            for (value,) in column
        ]
        b = random_matrix(rng, (6, 4), density, deepest=10**9)
        assert rows(
            algebra, algebra.product(array(algebra, a, 6), array(algebra, b, 4))
        ) == plain_product(a, b, 4)


@algebras
def test_the_identity_changes_nothing(algebra):
    a = array(algebra, random_matrix(np.random.default_rng(1), (4, 4), 0.5), 4)
    for product in (
        algebra.product(a, algebra.identity(4)),
        algebra.product(algebra.identity(4), a),
    ):
        np.testing.assert_array_equal(product, a)


@algebras
def test_products_are_associative(algebra):
    rng = np.random.default_rng(2)
    a, b, c = (array(algebra, random_matrix(rng, (5, 5), 0.3), 5) for _ in range(3))
    left, right = (
        algebra.product(algebra.product(a, b), c),
        algebra.product(a, algebra.product(b, c)),
    )
    np.testing.assert_array_equal(left, right)


@algebras
@densities
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, 8, 13, 31, 32, 33])
def test_a_power_is_as_many_products_and_its_entries_are_its_paths(algebra, density, exponent):
    rng = np.random.default_rng(exponent)
    for n in (1, 2, 5):
        a = random_matrix(rng, (n, n), density)
        matrix = array(algebra, a, n)
        power = Power(algebra, matrix, exponent)
        assert rows(algebra, power.value) == plain_power(a, exponent)
        check_entries(power, matrix, exponent)


@pytest.mark.parametrize("exponent", [10**6 + 7, 2**40 - 1, 10**18 + 9])
def test_paths_of_powers_too_long_to_follow(exponent):
    algebra = Algebra.up_to(100 * exponent)
    for seed in range(5):
        matrix = array(algebra, random_matrix(np.random.default_rng(seed), (4, 4), 0.5), 4)
        power = Power(algebra, matrix, exponent)
        more = Power(algebra, matrix, exponent + 1)
        np.testing.assert_array_equal(algebra.product(matrix, power.value), more.value)
        np.testing.assert_array_equal(algebra.product(power.value, matrix), more.value)
        check_entries(power, matrix, exponent)


@algebras
def test_no_path_stays_no_path(algebra):
    deepest = 10**12
    a = array(algebra, [[deepest, None, None], [1, None, None], [None, None, None]], 3)
    power = Power(algebra, a, 1000)
    assert rows(algebra, power.value) == [
        [1000 * deepest, None, None],
        [999 * deepest + 1, None, None],
        [None] * 3,
    ]
    assert not power.entries(Counter())
    nothing = algebra.nothing(3, 3)
    np.testing.assert_array_equal(algebra.product(nothing, a), nothing)
    np.testing.assert_array_equal(algebra.product(a, nothing), nothing)
    np.testing.assert_array_equal(algebra.tidy(nothing + deepest), nothing)


@pytest.mark.parametrize("longest", [0, 1, (1 << 60) - 1, 1 << 60, 1 << 70, 10**40])
def test_an_algebra_holds_what_it_was_made_for(longest):
    algebra = Algebra.up_to(longest)
    assert algebra.dtype is (np.int64 if longest < 1 << 60 else object)
    # Two paths are added, and a path to none, in either order: no path never looks like one, and
    # never wraps around.
    a = array(algebra, [[longest, None]], 2)
    b = array(algebra, [[0, None], [longest, longest]], 2)
    assert rows(algebra, algebra.product(a, b)) == [[longest, None]]
    assert int(algebra.nothing(1)[0]) + longest < algebra.threshold < 0
    assert int(2 * algebra.nothing(1)[0]) == 2 * algebra.never
    assert not exists(algebra, algebra.never + longest)
    assert exists(algebra, 0)
    assert exists(algebra, longest)
