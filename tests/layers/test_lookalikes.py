"""Arrays of numpy and static fields: no foreign ``==`` and no tracer makes layers alike."""

import collections
import dataclasses
import enum
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.layers.kinds import Plain, closure, is_one_chain, options, same_as_loop
from tests.problems import normal, pairs

WEIGHTS = list(normal(0, 4, 3, 3, scale=0.5))
ARRAYS = list(map(np.asarray, WEIGHTS))


def asks(question):
    return lambda array: lambda x: jnp.sin(x * (2.0 if question(array) else 3.0))


ASKED = {
    "isinstance": lambda w: isinstance(w, np.ndarray),
    "type": lambda w: type(w) is np.ndarray,
    "flags": lambda w: getattr(w, "flags", None) is not None,
    "list": lambda w: hasattr(w, "tolist") and w.tolist()[0][0] > 0,
    "value": lambda w: isinstance(w, np.ndarray) and w[0, 0] > 0,
    "float": lambda w: float(w[0, 0]) > 0,
    "eqx": lambda w: eqx.is_array(w),
    "strides": lambda w: w.strides[0] == 8,
    "dtype": lambda w: w.dtype == np.float64,
    "sum": lambda w: np.sum(w) > 0,
}


# Only strides and flags say that an array is transposed; and arrays of jax have no strides.
SORTS = {"numpy": ARRAYS, "transposed": [w.T for w in ARRAYS], "jax": WEIGHTS}
ASKING = [(name, sort) for name in ASKED for sort in SORTS]
ASKING = [
    (name, sort)
    for name, sort in ASKING
    if (sort != "transposed" or name in ("flags", "strides")) and (name, sort) != ("strides", "jax")
]


@pytest.mark.parametrize(("name", "sort"), ASKING)
def test_layers_that_ask_what_their_arrays_are(name, sort):
    arrays = SORTS[sort]

    def partials():
        return [jax.tree_util.Partial(lambda w, x: asks(ASKED[name])(w)(x), w) for w in arrays]

    chosen = options(list(ASKED).index(name))
    same_as_loop(lambda: [asks(ASKED[name])(w) for w in arrays], **chosen)
    same_as_loop(
        lambda: [lambda x, w=w: jnp.tanh(x @ w) if ASKED[name](w) else x for w in arrays], **chosen
    )
    same_as_loop(partials, **chosen)


def test_layers_over_numpy_that_cannot_tell_are_chains():
    assert is_one_chain([closure(w) for w in ARRAYS])
    assert is_one_chain(
        [lambda x, w=w: jnp.sin(x @ w.T) if isinstance(w, np.ndarray) else x for w in ARRAYS]
    )


class Liar:
    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Partly(Liar):
    def __init__(self, scale, name="a"):
        self.scale, self.name = scale, name

    def __eq__(self, other):
        return self.name == other.name

    __hash__ = Liar.__hash__


@dataclasses.dataclass(frozen=True)
class Uncompared:
    scale: float = dataclasses.field(compare=False)
    name: str = "a"


@dataclasses.dataclass(eq=False)
class Unequal:
    scale: float


class Mode(enum.Enum):
    LOW = 0.5
    HIGH = 2.0

    @property
    def scale(self):
        return self.value


class Number(float):
    def __eq__(self, other):
        return True

    __hash__ = None

    @property
    def scale(self):
        return float(self) * 1.0


class Text(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    @property
    def scale(self):
        return len(self) * 1.0


Pair = collections.namedtuple("Pair", "scale other")


@partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["field"])
@dataclasses.dataclass(frozen=True)
class Static:
    weight: jax.Array
    field: object

    def __call__(self, x):
        return jnp.sin(x @ self.weight) * self.field.scale


class Module(eqx.Module):
    weight: jax.Array
    field: object = eqx.field(static=True)

    def __call__(self, x):
        return jnp.sin(x @ self.weight) * self.field.scale


class Nnx(nnx.Module):
    def __init__(self, weight, field):
        self.weight, self.field = nnx.Param(weight), field

    def __call__(self, x):
        return jnp.sin(x @ self.weight[...]) * self.field.scale


FIELDS = {
    "always equal": [Liar(0.5), Liar(2.0)],
    "partly equal": [Partly(0.5), Partly(2.0)],
    "fields that are not compared": [Uncompared(0.5), Uncompared(2.0)],
    "never equal": [Unequal(0.5), Unequal(0.5), Unequal(2.0)],
    "members": list(Mode),
    "numbers": [Number(0.5), Number(2.0)],
    "texts": [Text("a"), Text("ab")],
    "named tuples": [Pair(0.5, 1), Pair(0.5, True), Pair(2.0, 1)],
    "tuples that hold liars": [Pair(0.5, Liar(1)), Pair(2.0, Liar(2))],
    "signs": [Pair(0.0, 1), Pair(-0.0, 1)],
    "nan": [Pair(float("nan"), 1), Pair(1.0, 1)],
}
HOLDERS = {
    "closures": lambda field: lambda x: jnp.sin(x) * field.scale,
    "pytrees": lambda field: Static(WEIGHTS[0], field),
    "equinox": lambda field: Module(WEIGHTS[0], field),
    "nnx": lambda field: Nnx(WEIGHTS[0], nnx.static(field)),
    "objects": lambda field: Plain(lambda x: jnp.sin(x + field.scale)),
    "partials": lambda field: partial(lambda field, x: x * field.scale, field),
}


@pytest.mark.parametrize(
    ("holder", "fields"),
    [(holder, "always equal") for holder in HOLDERS]
    + [("pytrees", fields) for fields in FIELDS if fields != "always equal"]
    + pairs(list(HOLDERS), [fields for fields in FIELDS if fields != "always equal"]),
)
def test_fields_that_only_look_equal(fields, holder):
    layers = [HOLDERS[holder](field) for field in FIELDS[fields] for _ in range(2)]
    same_as_loop(lambda: layers, method="sequential")


def test_values_that_are_the_same_are_alike():
    assert is_one_chain([Static(w, Uncompared(0.5)) for w in WEIGHTS])
    assert is_one_chain([Static(w, Pair(0.5, "a")) for w in WEIGHTS])
    assert is_one_chain([Static(w, Partly(0.5)) for w in WEIGHTS])
