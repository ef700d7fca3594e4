"""Layers that read what other layers of the list write: `forward` reads it when the loop does."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.layers.kinds import X, check_what_is_left, loop, options, square
from tests.problems import assert_agree

ODD = {}


def odd(make):
    """``make()`` returns layers, and a function of what they leave behind."""
    ODD[make.__name__] = make
    return make


@odd
def a_dict_between():
    table = {"scale": 1.0}

    def read(x):
        return x * table["scale"]

    def write(x):
        table["scale"] = table["scale"] * 2.0
        return x + 1.0

    return [read, read, write, read, read, write, write, read, read], lambda: table


@odd
def a_dict_grows():
    table = {}

    def write(x):
        table[len(table)] = 1.0
        return x

    return [
        write,
        lambda x: x * len(table),
        lambda x: x * len(table),
        write,
        lambda x: x * len(table),
    ], lambda: list(table)


@odd
def a_dict_in_another_order():
    table = {"a": 1.0, "b": 2.0}

    def write(x):
        table["a"] = table.pop("a")
        return x

    def read(x):
        for value in table.values():
            x = jnp.sin(x * value)
        return x

    return [read, read, write, read, read], lambda: list(table.values())


@odd
def a_list_between():
    seen = []

    def append(x):
        seen.append(2.0)
        return x

    def read(x):
        return x * (1.0 + sum(seen))

    return [read, read, append, read, read, append, read, read], lambda: seen


@odd
def a_set_between():
    members = {1}
    add = lambda x: (members.add(2), x)[1]  # noqa: E731
    read = lambda x: x * len(members)  # noqa: E731
    return [read, read, add, read, read], lambda: sorted(members)


@odd
def a_deque_between():
    queue = collections.deque([1.0, 2.0, 3.0])

    def rotate(x):
        queue.rotate()
        return x * queue[0]

    return [rotate] * 4, lambda: list(queue)


SCALE = 1.0
TABLE = {"scale": 1.0}


@odd
def a_global():
    global SCALE
    SCALE = 1.0

    def write(x):
        global SCALE
        SCALE = 2.0 * SCALE
        return x

    def read(x):
        return x * SCALE

    return [read, read, write, read, read, write, read], lambda: SCALE


@odd
def a_global_dict():
    TABLE["scale"] = 1.0

    def write(x):
        TABLE["scale"] = 3.0
        return x

    return [times_table, times_table, write, times_table, times_table], lambda: dict(TABLE)


def times_table(x):
    return x * TABLE["scale"]


@odd
def a_global_deep_in_functions():
    TABLE["scale"] = 1.0

    def inner(x):
        def innermost(x):
            TABLE["scale"] += 1.0
            return x

        return innermost(x)

    return [lambda x: times_table(inner(x))] * 4, lambda: dict(TABLE)


@odd
def a_nonlocal():
    scale = 1.0

    def write(x):
        nonlocal scale
        scale = scale * 2.0
        return x

    def read(x):
        return x * scale

    return [read, read, write, read, read], lambda: scale


@odd
def a_name_of_a_module():
    module = types.ModuleType("settings_of_layers")
    module.scale = 1.0

    def write(x):
        module.scale = 2.0
        return x

    return [lambda x: x * module.scale, write, lambda x: x * module.scale], lambda: module.scale


class Settings:
    scale = 1.0


@odd
def an_attribute_of_a_class():
    Settings.scale = 1.0

    def write(x):
        Settings.scale = 2.0
        return x

    return [
        lambda x: x * Settings.scale,
        write,
        *[lambda x: x * Settings.scale] * 2,
    ], lambda: Settings.scale


class Counts:
    count = 0

    def __call__(self, x):
        Counts.count += 1
        return x * Counts.count


@odd
def a_counter_in_a_class():
    Counts.count = 0
    return [Counts() for _ in range(4)], lambda: Counts.count


class Writes:
    count = 0

    def __call__(self, x):
        Writes.count += 1
        return jnp.sin(x)


@odd
def a_counter_that_nothing_reads():
    Writes.count = 0
    return [Writes() for _ in range(4)], lambda: Writes.count


@odd
def an_attribute_of_an_object():
    settings = types.SimpleNamespace(scale=1.0)

    def write(x):
        settings.scale = 2.0
        return x

    return [
        lambda x: x * settings.scale,
        write,
        *[lambda x: x * settings.scale] * 3,
    ], lambda: settings.scale


@odd
def an_attribute_by_setattr():
    settings = types.SimpleNamespace(scale=1.0)
    name = "scale"

    def write(x):
        setattr(settings, name, getattr(settings, name) + 1.0)
        return x

    return [
        lambda x: x * settings.scale,
        write,
        *[lambda x: x * settings.scale] * 3,
    ], lambda: settings.scale


@odd
def an_attribute_of_a_function():
    def layer(x):
        layer.calls = getattr(layer, "calls", 0) + 1
        return x * layer.calls

    layer.calls = 0

    return [layer] * 4, lambda: layer.calls


@odd
def a_default_that_is_a_list():
    def layer(x, seen=[]):  # noqa: B006
        seen.append(1)
        return x * len(seen)

    return [layer] * 3, lambda: layer.__defaults__[0]


@odd
def a_shared_list_in_defaults():
    shared = []

    def layer(x, seen=shared, also=shared):
        seen.append(1)
        return x * len(also)

    return [layer] * 3, lambda: shared


@odd
def weights_changed_in_place():
    weight = np.eye(3) + 0.1

    def halve(x):
        nonlocal weight
        weight *= 0.5
        return x

    def read(x):
        return jnp.tanh(x @ weight)

    return [read, read, halve, read, read], lambda: weight


@odd
def weights_changed_by_a_view():
    weight = np.eye(3) + 0.1
    view = weight[0]

    def write(x):
        view[:] = 0.25
        return x

    return [lambda x: x @ weight, write, *[lambda x: x @ weight] * 2], lambda: weight


@pytest.mark.parametrize("name", ODD)
def test_results_and_what_is_left(name):
    check_what_is_left(ODD[name], method=options(list(ODD).index(name))["method"])


@pytest.mark.parametrize(
    "name",
    [
        "a_dict_between",
        "a_list_between",
        "a_global",
        "an_attribute_of_a_class",
        "a_counter_in_a_class",
    ],
)
def test_results_while_traced(name):
    def value(run):
        layers, _ = ODD[name]()
        return jax.jit(jax.value_and_grad(lambda x: square(run(layers, x))))(X)

    assert_agree(value(deeppcr.forward), value(loop))


def test_reasons():
    assert "changes" in str(deeppcr.layers.describe(a_list_between()[0], X))


def test_a_list_in_stacks_is_refused():
    with pytest.raises(ValueError, match="layers"):
        deeppcr.stack(a_list_between()[0][2:3] * 2, X)
