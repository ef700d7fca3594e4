"""Random programs never depend on more than is proven that they may."""

from functools import cache

import pytest

from tests.structure.dependence import assert_sound, differentiated, moved
from tests.structure.programs import OPERATIONS, WIDTH, alone, random_program

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


WITH_RULES = ["relu", "softplus", "reaching"]  # of differentiation


@cache
def of_operations():
    programs = {name: alone(operation) for name, operation in OPERATIONS.items()}
    found = dict(zip(programs, moved(list(programs.values()), 3 * WIDTH), strict=True))
    rules = [programs[name] for name in WITH_RULES]
    for name, jacobian in zip(WITH_RULES, differentiated(rules, 3 * WIDTH), strict=True):
        found[name] = found[name] | jacobian
    return {name: (programs[name], found[name]) for name in programs}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_alone(name):
    program, depends = of_operations()[name]
    assert_sound(program, (3 * WIDTH,), depends)
    assert_sound(program, (9, 2), depends, batch_ndim=1)
