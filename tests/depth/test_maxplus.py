"""Max-plus matrices against triple loops in Python's integers."""

import numpy as np
import pytest

from depth.maxplus import Algebra

algebras = pytest.mark.parametrize(
    "algebra", [Algebra(10**15), Algebra((1 << 60) - 1), Algebra(1 << 70)], ids=lambda a: a.never
)


def random_matrix(rng, shape, density, deepest=20):
    """Entries as Python's integers, None for no path."""
    return [
        [int(rng.integers(deepest)) if rng.random() < density else None for _ in range(shape[1])]
        for _ in range(shape[0])
    ]


def array(algebra, rows, columns):
    entries = [[algebra.never if value is None else value for value in row] for row in rows]
    return np.array(entries, algebra.dtype).reshape(len(rows), columns)


def rows(algebra, matrix):
    """The way back; what is no path must be written in the one way."""
    assert matrix.dtype == algebra.dtype
    assert all(value == algebra.never or value >= 0 for value in matrix.flat)
    return [[None if value == algebra.never else int(value) for value in row] for row in matrix]


def plain_product(a, b, columns):
    def entry(row, j):
        sums = (x + y[j] for x, y in zip(row, b, strict=True) if None not in (x, y[j]))
        return max(sums, default=None)

    return [[entry(row, j) for j in range(columns)] for row in a]


def plain_power(a, exponent):
    result = [[0 if i == j else None for j in range(len(a))] for i in range(len(a))]
    for _ in range(exponent):
        result = plain_product(a, result, len(a))
    return result


@algebras
@pytest.mark.parametrize("density", [0.0, 0.2, 0.5, 1.0])
def test_products_and_powers_are_loops(algebra, density):
    rng = np.random.default_rng(0)
    for shape in [(1, 1, 1), (3, 4, 5), (6, 2, 6), (0, 3, 2), (3, 0, 2), (2, 3, 0)]:
        a, b = random_matrix(rng, shape[:2], density), random_matrix(rng, shape[1:], density)
        got = algebra.product(array(algebra, a, shape[1]), array(algebra, b, shape[2]))
        assert got.shape == (shape[0], shape[2])
        assert rows(algebra, got) == plain_product(a, b, shape[2])
    for exponent in (0, 1, 2, 3, 5, 8, 13, 31, 32, 33):
        a = random_matrix(rng, (4, 4), density)
        got = algebra.power(array(algebra, a, 4), exponent)
        assert rows(algebra, got) == plain_power(a, exponent)


@algebras
def test_columns_that_differ_by_a_number_only(algebra):
    """Products may merge them."""
    rng = np.random.default_rng(3)
    for density in (0.3, 0.7, 1.0):
        shifts = [int(shift) for shift in rng.integers(0, 10**9, 5)]
        a = [
            [None if value is None else value + shift for shift in shifts] + [3]
            for (value,) in random_matrix(rng, (6, 1), density)
        ]
        b = random_matrix(rng, (6, 4), density, deepest=10**9)
        got = algebra.product(array(algebra, a, 6), array(algebra, b, 4))
        assert rows(algebra, got) == plain_product(a, b, 4)


@pytest.mark.parametrize("exponent", [10**6 + 7, 2**40 - 1, 10**18 + 9])
def test_powers_too_large_to_step_through(exponent):
    algebra = Algebra(100 * exponent)
    for seed in range(5):
        matrix = array(algebra, random_matrix(np.random.default_rng(seed), (4, 4), 0.5), 4)
        power, more = (algebra.power(matrix, exponent + k) for k in (0, 1))
        np.testing.assert_array_equal(algebra.product(matrix, power), more)
        np.testing.assert_array_equal(algebra.product(power, matrix), more)


@pytest.mark.parametrize("longest", [0, 1, (1 << 60) - 1, 1 << 60, 1 << 70, 10**40])
def test_an_algebra_holds_what_it_was_made_for(longest):
    """No path never looks like one, and never wraps around."""
    algebra = Algebra(longest)
    assert algebra.dtype is (np.int64 if longest < 1 << 60 else object)
    a, b = array(algebra, [[longest, None]], 2), array(algebra, [[0, None], [longest, longest]], 2)
    assert rows(algebra, algebra.product(a, b)) == [[longest, None]]
    assert algebra.never + longest < algebra.threshold < 0
    nothing = algebra.nothing(1, 1)
    np.testing.assert_array_equal(algebra.tidy(nothing + longest), nothing)
    assert int((2 * nothing)[0, 0]) == 2 * algebra.never
