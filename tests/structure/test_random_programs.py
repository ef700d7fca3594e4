"""Random programs never depend on more than is proven that they may."""

from functools import cache

import pytest

from tests.structure.dependence import assert_sound, differentiated, moved
from tests.structure.programs import WIDTH, random_program

PROGRAMS, TOGETHER = 60, 30


@cache
def dependences(start):
    """What ``TOGETHER`` programs depend on; of every fifth by its Jacobian, too."""
    programs = [random_program(seed) for seed in range(start, start + TOGETHER)]
    found = moved(programs, 2 * WIDTH)
    for i, jacobian in zip(
        range(0, TOGETHER, 5), differentiated(programs[::5], 2 * WIDTH), strict=True
    ):
        found[i] = found[i] | jacobian
    return list(zip(programs, found, strict=True))


@pytest.mark.parametrize("start", range(0, PROGRAMS, TOGETHER))
def test_random_programs(start):
    fine = 0
    for program, depends in dependences(start):
        lowest, _ = assert_sound(program, (2 * WIDTH,), depends)
        assert_sound(program, (2, WIDTH), depends, batch_ndim=1)
        fine += len(set(lowest[:WIDTH])) > 1
    assert fine > TOGETHER / 4  # else nothing much was said
