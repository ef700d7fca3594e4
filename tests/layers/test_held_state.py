"""State inside of layers: generators, iterators, counters, caches. No trial draws from them."""

import dataclasses
import functools
import itertools
import random
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.layers.kinds import X, check_what_is_left, loop, options, square
from tests.problems import assert_agree, normal

WEIGHTS = list(normal(0, 4, 3, 3, scale=0.5))
ARRAYS = list(map(np.asarray, WEIGHTS))

ODD = {}


def odd(make):
    """``make()`` returns layers, and a function of what they leave behind."""
    ODD[make.__name__] = make
    return make


class Holds:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def draw(self):
        return next(self.iterator)

    def __call__(self, x):
        return jnp.sin(x + self.draw())


class Slotted:
    __slots__ = ("__weakref__", "count", "scale")

    def __init__(self):
        self.count, self.scale = 0, 0.5

    def __call__(self, x):
        self.count += 1
        return x * self.count * self.scale


class Nested(Holds):
    def draw(self):
        self.inner.count = self.inner.count + 1
        return self.inner.count


class Normal(Holds):
    def draw(self):
        return self.generator.normal()


class Property(Holds):
    @property
    def scale(self):
        self.count += 1
        return self.count

    def draw(self):
        return self.scale


class Cached(Holds):
    @functools.cached_property
    def scale(self):
        return 0.5

    def draw(self):
        return self.scale


class Weak(Holds):
    def draw(self):
        self.reference().count += 1
        return self.reference().count


class Descriptor:
    def __get__(self, owner, kind=None):
        owner.count += 1
        return owner.count


class Described(Holds):
    scale = Descriptor()

    def draw(self):
        return self.scale


class Dynamic(Holds):
    def __getattr__(self, name):
        self.count += 1
        return self.count

    def draw(self):
        return self.whatever


@odd
def generators_of_numpy_shared():
    generator = np.random.default_rng(0)
    return [Normal(generator=generator) for _ in range(4)], lambda: generator.normal()


@odd
def generators_of_numpy_each():
    generators = [np.random.default_rng(i) for i in range(4)]
    return [Normal(generator=g) for g in generators], lambda: [g.normal() for g in generators]


@odd
def a_generator_in_a_closure():
    generator = np.random.RandomState(0)
    return [lambda x: x + generator.randn(3)] * 4, lambda: generator.randn()


@odd
def a_method_of_a_generator():
    draw = np.random.default_rng(0).normal
    return [lambda x: x + draw()] * 4, draw


@odd
def a_generator_behind_vmap():
    generator = np.random.default_rng(0)
    return [lambda x: jax.vmap(lambda x: x + generator.normal())(x)] * 4, generator.normal


@odd
def the_generator_of_numpy():
    np.random.seed(0)  # noqa: NPY002
    return [lambda x: x + np.random.normal(size=3)] * 4, lambda: np.random.normal()  # noqa: NPY002


@odd
def the_generator_of_numpy_by_name():
    np.random.seed(0)  # noqa: NPY002
    return [lambda x: x + np.random.normal()] * 4, lambda: np.random.normal()  # noqa: NPY002


@odd
def a_generator_of_python():
    generator = random.Random(0)
    return [lambda x: x + generator.random()] * 4, generator.random


@odd
def the_generator_of_python():
    random.seed(0)
    return [lambda x: x + random.random()] * 4, random.random


@odd
def a_local_import_of_a_generator():
    random.seed(0)

    def layer(x):
        from random import random as draw

        return x + draw()

    return [layer] * 4, random.random


@odd
def iterators():
    iterator = itertools.count(1)
    return [Holds(iterator=iterator) for _ in range(4)], lambda: next(iterator)


@odd
def an_iterator_of_a_list():
    iterator = iter([0.1, 0.2, 0.3, *np.linspace(0.4, 0.9, 9)])
    return [lambda x: x + next(iterator)] * 4, lambda: list(iterator)


@odd
def a_python_generator():
    iterator = (0.1 * i for i in range(9))
    return [lambda x: x + next(iterator)] * 4, lambda: list(iterator)


@odd
def slots():
    layers = [Slotted()] * 3 + [Slotted()]
    return layers, lambda: [layer.count for layer in layers]


@odd
def nested_objects():
    inner = Holds(count=0)
    return [Nested(inner=inner) for _ in range(4)], lambda: inner.count


@odd
def properties_that_count():
    layers = [Property(count=i) for i in range(4)]
    return layers, lambda: [layer.count for layer in layers]


@odd
def cached_properties():
    layers = [Cached(count=i) for i in range(4)]
    return layers, lambda: [len(vars(layer)) for layer in layers]


@odd
def descriptors():
    layers = [Described(count=i) for i in range(3)] * 2
    return layers, lambda: [layer.count for layer in layers]


@odd
def attributes_that_are_made_up():
    layers = [Dynamic(count=i) for i in range(3)] * 2
    return layers, lambda: [layer.count for layer in layers]


@odd
def weak_references():
    inner = Holds(count=0)
    return [Weak(reference=weakref.ref(inner)) for _ in range(4)], lambda: inner.count


@odd
def a_list_that_grows():
    class Grows:
        def __init__(self):
            self.seen = []

        def __call__(self, x):
            self.seen.append(jnp.sum(x))
            return x * len(self.seen)

    layers = [Grows()] * 2 + [Grows()] * 2
    return layers, lambda: [layer.seen for layer in layers]


@odd
def bound_methods_of_objects_that_count():
    layers = [Nested(inner=Holds(count=i)) for i in range(3)]
    return [layer.__call__ for layer in layers] * 2, lambda: [layer.inner.count for layer in layers]


@odd
def partials_over_a_counter():
    counter = itertools.count()
    return [partial(lambda draw, x: x + draw(), partial(next, counter))] * 4, lambda: next(counter)


@odd
def a_pytree_that_hides_a_counter():
    @jax.tree_util.register_pytree_node_class
    class Hidden:
        def __init__(self, weight):
            self.weight, self.count = weight, 0

        def tree_flatten(self):
            return (self.weight,), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

        def __call__(self, x):
            self.count += 1
            return jnp.tanh(x @ self.weight) * self.count

    layers = [Hidden(w) for w in WEIGHTS]
    return layers, lambda: [layer.count for layer in layers]


@odd
def a_subclass_of_a_dict():
    class Table(dict):
        pass

    table = Table(scale=1.0)

    def write(x):
        table["scale"] *= 2.0
        return x

    return [lambda x: x * table["scale"], write, *[lambda x: x * table["scale"]] * 2], lambda: dict(
        table
    )


@odd
def a_cache():
    calls = []

    @functools.lru_cache
    def scale(n):
        calls.append(n)
        return 1.0 + len(calls)

    return [lambda x, n=n: x * scale(n) for n in (1, 2, 1, 3)], lambda: calls


@odd
def a_cache_of_arrays():
    @functools.lru_cache
    def weight():
        return jnp.ones(3)

    return [lambda x: x * weight()] * 4, lambda: weight()


@odd
def exceptions_that_are_caught():
    seen = []

    def layer(x):
        try:  # noqa: SIM105
            seen.append(float(x.sum()))
        except Exception:
            pass
        return x * (1 + len(seen))

    return [layer] * 3, lambda: seen


@odd
def code_that_asks_for_tracers():
    seen = []

    def layer(x):
        if not isinstance(x, jax.core.Tracer):
            seen.append(1)
        return jnp.sin(x)

    return [layer] * 3, lambda: seen


@odd
def states_changed_in_place():
    def layer(state):
        state["a"] = jnp.sin(state["a"])
        return state

    given = {"a": X}
    return [lambda x: given, layer, layer], lambda: given


@odd
def code_that_runs_code():
    space = {"count": 0}
    return [lambda x: (exec("count += 1", space), x * space["count"])[1]] * 3, lambda: space[
        "count"
    ]


@odd
def what_is_done_in_the_end():
    seen = []

    def layer(x):
        try:
            return jnp.sin(x)
        finally:
            seen.append(1)

    return [layer] * 3, lambda: seen


@odd
def objects_made_by_type_and_by_replace():
    made = []

    @dataclasses.dataclass(frozen=True)
    class Makes:
        scale: float = 0.5

        def __post_init__(self):
            made.append(1)

        def __call__(self, x):
            return x * type(self)(0.5).scale * dataclasses.replace(self, scale=0.7).scale

    return [Makes()] * 3, lambda: len(made)


@odd
def containers_with_more_than_entries():
    class Listed(list):
        __slots__ = ("count",)

    class Named(dict):
        asked = 0

        def __getattr__(self, name):
            Named.asked += 1
            raise AttributeError(name)

    counts, table = Listed([0.5]), Named(scale=0.5)
    counts.count = 0

    def layer(x):
        counts.count += 1
        return x * counts.count * counts[0] * table["scale"]

    return [layer] * 3, lambda: (counts.count, Named.asked)


@pytest.mark.parametrize("name", ODD)
def test_results_and_what_is_left(name):
    check_what_is_left(ODD[name], method=options(list(ODD).index(name))["method"])


@pytest.mark.parametrize("name", ["generators_of_numpy_each", "slots", "nested_objects"])
def test_gradients_of_layers_with_state(name):
    def value(run):
        layers, _ = ODD[name]()
        return jax.value_and_grad(lambda x: square(run(layers, x)))(X)

    assert_agree(value(deeppcr.forward), value(loop))
