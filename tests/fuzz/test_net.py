"""The net catches what is planted, and says it with a small program."""

import itertools
import time
from functools import partial
from unittest import mock

import jax
import pytest
from jax import lax

from tests.fuzz import net
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


def first_layer_twice(_):
    def forward(layers, x):
        x = layers[0][0](layers[0][1], x) if isinstance(layers[0], tuple) else layers[0](x)
        for layer in layers:
            x = layer[0](layer[1], x) if isinstance(layer, tuple) else layer(x)
        return x

    return forward


def is_short(program):
    """Compiled fast, and not the smallest yet."""
    return len(program.leaves) == 2 and len(program.used) == 1 and program.length <= 3


def is_seen(program):
    return (
        is_short(program)
        and any(node.operation.startswith("debug.callback") for node in program.used)
        and program.check == "value"
    )


PLANTED = {
    "off by little": (
        "scan",
        off_by_little,
        lambda program: is_short(program) and program.check == "value",
        "is wrong",
    ),
    "no derivative": (
        "scan",
        without_derivative,
        lambda program: is_short(program) and program.check == "gradient",
        "is wrong",
    ),
    "no effects": ("scan", without_effects, is_seen, "has other effects"),
    "first layer twice": (
        "forward",
        first_layer_twice,
        lambda program: program.check == "value" and 2 <= len(program.layers) <= 3,
        "is wrong",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name):
    sort, planted, fits, kind = PLANTED[name]
    draw, smaller = net.SORTS[sort]
    fails = partial(net.find_failure, spoil=planted)
    for program in itertools.islice(filter(fits, map(draw, itertools.count(100))), 5):
        failure = fails(program)
        if failure is not None and failure.kind == kind:
            break
    else:
        pytest.fail("not found in 5 programs")
    program, failure = net.shrink(program, failure, smaller, fails, time.monotonic() + 60, tries=16)
    assert failure.kind == kind
    if sort == "scan":
        assert (len(program.leaves), program.length, program.method) == (1, 1, '"auto"')
        assert len(program.used) == (1 if "effects" in name else 0)
    else:
        assert len(program.layers) == 1
    assert "deeppcr" in net.report(program, failure)


@pytest.mark.parametrize("sort", net.SORTS)
def test_the_sequential_program_itself_is_right(sort):
    """No false alarm, of programs that take every way through the net."""
    draw, _ = net.SORTS[sort]
    plain = {"scan": lax.scan, "forward": None}[sort]
    for program in map(draw, range(2)):
        names = net.built(program.text)
        assert net.find_failure(program, lambda _, names=names: plain or names["oracle"]) is None


def test_every_operation_is_drawn():
    drawn = {node.operation for seed in range(2000) for node in net.SORTS["scan"][0](seed).used}
    assert drawn == set(OPERATIONS)
