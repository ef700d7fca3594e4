"""What cannot be known makes the answer a lower bound that says so, and never a silent 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.lax.linalg import eigh, schur, svd

import depth
from tests.depth.cases import Case, check, f, key, sines

home_made = Primitive("home_made")
home_made.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
home_made_pair = Primitive("home_made_pair")
home_made_pair.multiple_results = True
home_made_pair.def_abstract_eval(
    lambda x, y: (ShapedArray(x.shape, x.dtype), ShapedArray(y.shape, y.dtype))
)


def never(*args):
    raise AssertionError("nothing may be executed")


def own(x):
    return home_made.bind(x)


def callback(x):
    return jax.pure_callback(never, x, x)


def foreign(x):
    return jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def inside_scan(fn):
    return lambda x: lax.scan(lambda x, _: (fn(x), None), x, length=5)[0]


def inside_cond(fn):
    return lambda x: lax.cond(jnp.sum(x) > 0, fn, jnp.sin, x)


def inside_while(fn):
    return lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, fn(s[1])), (0, x))[1]


def inside_derivative(fn):
    @jax.custom_jvp
    def wrapped(x):
        return fn(x)

    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), *tangents))
    return wrapped


X = f(8)
FLAGGED = [  # primitive, at least so deep because of, program, arguments
    ("pure_callback", 4, "3 and at least 1", lambda x: callback(sines(x, 3)), X),
    ("pure_callback", 2, "at least 1, sin 1", lambda x: jnp.sin(callback(x)), X),
    ("io_callback", 1, "something is done", lambda x: io_callback(never, x, x), X),
    ("io_callback", 1, "in order, too", lambda x: io_callback(never, x, x, ordered=True), X),
    ("ffi_call", 1, "something is done", foreign, X),
    ("home_made", 4, "2, at least 1, sin 1", lambda x: jnp.sin(own(sines(x, 2))), X),
    ("home_made_pair", 3, "2 and 1", lambda x, y: home_made_pair.bind(sines(x, 2), y), X, f(3)),
    ("svd", 4, "a tree over 16 elements", lambda x: svd(x, compute_uv=False), f(4, 4)),
    ("eigh", 6, "a tree over 64", lambda x: eigh(x, symmetrize_input=False), f(8, 8)),
    ("schur", 4, "a tree over 16", lambda x: schur(x), f(4, 4)),
    ("svd", 2, "each of its own 4", lambda x: svd(x, compute_uv=False), f(1000, 2, 2)),
    ("random_gamma", 1, "draws", lambda k: jax.random.gamma(k, jnp.float32(2), (3,)), key()),
    ("home_made", 1, "seen through two calls", jax.jit(jax.jit(own)), X),
    ("home_made", 1, "seen through remat", jax.checkpoint(own), X),
    ("pure_callback", 1, "seen through custom_jvp", inside_derivative(callback), X),
    ("pure_callback", 5, "5 trips of at least 1", inside_scan(callback), X),
    ("home_made", 6, "sum 3, gt 4, cast 5, at least 1", inside_cond(own), X),
    ("home_made", 7, "3 trips of at least 1: predicate 2 * 3 + 1", inside_while(own), X),
    ("pure_callback", 1, "rows side by side", lambda x: lax.map(callback, x), f(4, 8)),
]


@pytest.mark.parametrize("row", FLAGGED, ids=lambda row: f"{row[0]}: {row[2]}")
def test_a_flagged_lower_bound(row):
    primitive, at_least, why, program, *args = row
    cost = depth.analyze(program, *args)
    assert cost.depth >= at_least, why
    assert not cost.exact
    assert [unknown.primitive for unknown in cost.unknown] == [primitive]
    assert cost.unknown[0].reason
    assert cost.unknown[0].location.file.endswith(".py")
    assert primitive in str(cost)
    assert ">=" in str(cost)
    assert sum(row.depth for row in cost.critical_path) == cost.depth


def test_where_it_is_unknown_is_told():
    def program(x):
        return sines(x, 2) + callback(x)

    (unknown,) = depth.analyze(program, f(8)).unknown
    line = callback.__code__.co_firstlineno + 1
    assert (unknown.location.line, unknown.location.function) == (line, "callback")
    assert f"test_unknown.py:{line}" in str(unknown)


def test_dead_unknowns_are_of_no_concern():
    check(
        Case("dead", lambda x: (own(x), jnp.sin(x))[1], (f(8),), 1, "sin 1; the other is not used")
    )


def printing(x):
    jax.debug.print("x is {}", sines(x, 5))
    return jnp.sin(x)


def calling_back(x):
    jax.debug.callback(never, sines(x, 5))
    return jnp.sin(x)


@pytest.mark.parametrize(
    "program", [printing, calling_back, jax.jit(printing)], ids=["print", "callback", "jit"]
)
def test_what_returns_nothing_leaves_the_depth_exact(program):
    check(Case("effect", program, (f(8),), 1, "no output waits for what is printed: sin 1"))


def written_by(write):
    """What is read from a reference that held something late, after ``write(ref, x)``."""

    def program(x):
        ref = jax.new_ref(sines(x, 40))
        return write(ref, x), ref[...]

    return program


def in_a_for_loop(ref, x):
    """Each trip but the first reads what the one before has left."""

    def trip(_, x_):
        held = ref[...]
        ref[...] = jnp.sin(x)
        return held

    return lax.fori_loop(0, 3, trip, x)


def in_a_while_loop(ref, x):
    def trip(state):
        ref[...] = jnp.sin(x)
        return state[0] + 1, ref[...]

    return lax.while_loop(lambda state: state[0] < 3, trip, (0, x))[1]


def in_branches(ref, x):
    def write():
        ref[...] = jnp.sin(x)
        return x

    return lax.cond(x[0] > 0, write, write)


def put(ref, x):
    ref[...] = jnp.sin(x)
    return x


def in_a_shard_map(ref, x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(
        lambda ref, x: put(ref, x),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=spec,
        check_vma=False,
    )(ref, x)


@pytest.mark.parametrize(
    ("write", "deepest", "why"),
    [
        (in_a_for_loop, (1, 1), "the last trip reads the sine of the one before"),
        (in_a_while_loop, (7, 7), "the last predicate: 2 * 3 + 1"),
        (in_branches, (2, 3), "after the index, gt 1, cast 2: sin 3"),
        (in_a_shard_map, (0, 1), "on one device it is a call: sin 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_reference_held_before_is_no_bound_on_what_it_holds(write, deepest, why):
    cost = depth.analyze(written_by(write), f(8))
    if cost.exact:
        assert cost.by_output == deepest, why
    assert all(least <= known for least, known in zip(cost.by_output, deepest, strict=True)), why
    assert sum(row.depth for row in cost.critical_path) == cost.depth


def test_what_an_unknown_operation_may_have_written_is_no_bound():
    writes = Primitive("writes")
    writes.def_abstract_eval(lambda ref, x: ShapedArray(x.shape, x.dtype))
    cost = depth.analyze(written_by(lambda ref, x: writes.bind(ref, x)), f(8))
    assert not cost.exact
    assert cost.by_output[1] <= 1, "it may have written the sine of x"


def halve(x):
    return jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)


@pytest.mark.parametrize(
    "number",
    [
        lambda: depth.serial_depth(halve, f()),
        lambda: depth.compute_depth(jax.make_jaxpr(halve)(1.0)),
    ],
    ids=["serial_depth", "compute_depth"],
)
def test_a_number_that_is_a_lower_bound_comes_with_a_warning(number):
    with pytest.warns(
        depth.LowerBoundWarning, match=r"lower bound, because of while at .*test_unk"
    ) as found:
        number()
    assert found[0].filename == __file__  # where the user's call is
