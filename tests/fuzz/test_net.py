"""The net catches what is planted, and says it with a small program."""

import itertools
import time
from functools import partial
from unittest import mock

import jax
import pytest
from jax import lax

from tests.fuzz import net
from tests.fuzz.drawing import draw
from tests.fuzz.operations import OPERATIONS


def off_by_little(_):
    """The first entry of one leaf, wrong by a thousandth of itself."""

    def scan(*args, **options):
        last, ys = lax.scan(*args, **options)
        leaf, *rest = jax.tree.leaves(last)
        leaf = leaf.reshape(-1).at[0].mul(1.001).reshape(leaf.shape)
        return jax.tree.unflatten(jax.tree.structure(last), [leaf, *rest]), ys

    return scan


def without_derivative(_):
    """What the last state does not pass on."""

    def scan(*args, **options):
        last, ys = lax.scan(*args, **options)
        return jax.tree.map(lax.stop_gradient, last), ys

    return scan


def without_effects(_):
    def scan(*args, **options):
        with mock.patch("jax.debug.callback", return_value=None):
            return lax.scan(*args, **options)

    return scan


def fits(program, check, seen=""):
    """Compiled fast, and not the smallest yet."""
    short = len(program.leaves) == 2 and len(program.used) == 1 and program.length <= 3
    return short and program.check == check and program.used[0].operation.startswith(seen)


PLANTED = {
    "off by little": (off_by_little, ("value",), "is wrong"),
    "no derivative": (without_derivative, ("gradient",), "is wrong"),
    "no effects": (without_effects, ("value", "debug.callback"), "has other effects"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name):
    planted, looks, kind = PLANTED[name]
    fails = partial(net.find_failure, spoil=planted)
    fitting = (program for program in map(draw, itertools.count(100)) if fits(program, *looks))
    for program in itertools.islice(fitting, 5):
        failure = fails(program)
        if failure is not None and failure.kind == kind:
            break
    else:
        pytest.fail("not found in 5 programs")
    program, failure = net.shrink(program, failure, fails, time.monotonic() + 60, tries=16)
    assert failure.kind == kind
    assert (len(program.leaves), program.length, program.method) == (1, 1, '"auto"')
    assert len(program.used) == (1 if "effects" in name else 0)
    assert "deeppcr" in net.report(program, failure)


def test_the_sequential_program_itself_is_right():
    """No false alarm, of programs that take every way through the net."""
    for program in map(draw, range(2)):
        assert net.find_failure(program, lambda _: lax.scan) is None


def test_every_operation_is_drawn():
    drawn = {node.operation for seed in range(2000) for node in draw(seed).used}
    assert drawn == set(OPERATIONS)


def test_infinities_short_dtypes_and_calls_without_jit_are_drawn():
    drawn = [draw(seed) for seed in range(200)]
    assert {program.infinite for program in drawn} == {"", "u", "init"}
    assert {program.dtype for program in drawn} >= {"bfloat16", "float16"}
    assert {program.disabled for program in drawn} == {False, True}
    assert any(leaf.kind == "overflowing" for program in drawn for leaf in program.leaves)
