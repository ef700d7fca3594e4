"""Calls inside `jax.shard_map`, collectives in a step, meshes with `Explicit` axes: as `jax.lax.scan`."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Newton
from tests.problems import assert_agree, normal
from tests.sharding.meshes import P, mesh, put, run

LENGTH, WIDTH = 12, 3
STATES, INPUTS = normal(0, 2, WIDTH), normal(1, 2, LENGTH, WIDTH)  # of two devices
WEIGHT = normal(2, WIDTH, WIDTH, scale=0.4)

METHODS = {
    "auto": "auto",
    "newton": "newton",
    "window": Newton(window=5),
    "trust region": Newton(damping=deeppcr.TrustRegion()),
    "anderson": Newton(acceleration=deeppcr.Anderson()),
    "finished sequentially": Newton(max_iterations=1),
}
ADJOINTS = ("backprop", "pcr", "autodiff", "sequential")


def loss(step, scan, z, xs, weight, **options):
    """Of a chain whose step closes over the weights, and its results."""
    last, ys = scan(step(weight), z, xs, **options)
    return jnp.sin(last).sum() + sum((y**2).sum() for y in jax.tree.leaves(ys)), (last, ys)


def transformed(how, f, z, xs, weight):
    """What a transformation of ``f(z, xs, weight)`` returns."""
    if how == "grad":
        return jax.grad(f, (0, 1, 2), has_aux=True)(z, xs, weight)
    if how == "jvp":
        return jax.jvp(f, (z, xs, weight), (z, xs, weight))
    if how == "vmap":
        return jax.vmap(lambda z: f(z, xs, weight))(jnp.stack([z, 2 * z]))
    return f(z, xs, weight)


def varies(x, axis="x"):
    return (
        lax.pcast(x, (axis,), to="varying")
        if axis not in jax.typeof(x).manual_axis_type.varying
        else x
    )


def inside(scan, step, how, replicated=False, check=True, **options):
    """The results on two devices, whose weights are the same; or on which all is the same."""

    def on_device(z, xs, weight):
        z, xs = (z, xs) if replicated else (z[0], xs[0])
        found = transformed(how, partial(loss, step, scan, **options), z, xs, weight)
        if replicated:
            return found  # `jax.shard_map` checks that it is the same on all devices
        return jax.tree.map(lambda x: (varies(x) if check else x)[None], found)

    along, arrays = (P(), (STATES[0], INPUTS[0])) if replicated else (P("x"), (STATES, INPUTS))
    specs = (along, along, P())
    mapped = jax.shard_map(
        on_device, mesh=mesh(x=2), in_specs=specs, out_specs=along, check_vma=check
    )
    return run(mapped, *arrays, WEIGHT)


def plain(weight):
    def step(z, x):
        z = jnp.tanh(z @ weight + x)
        return z, z.sum()

    return step


@cache
def expected(how, replicated=False, check=True):
    return inside(lax.scan, plain, how, replicated, check)


@pytest.mark.parametrize(
    ("method", "adjoint", "how"),
    [
        *((method, "auto", "forward") for method in list(METHODS)[2:]),
        *(("newton", adjoint, "grad") for adjoint in ADJOINTS),
        ("newton", "pcr", "jvp"),
        ("auto", "auto", "grad"),
        ("newton", "auto", "vmap"),
    ],
)
def test_every_method_and_transformation(method, adjoint, how):
    options = {"method": METHODS[method], "adjoint": adjoint}
    assert_agree(inside(deeppcr.scan, plain, how, **options), expected(how))


@pytest.mark.parametrize(("replicated", "check"), [(True, True), (False, False)])
def test_arrays_that_do_not_vary_and_without_checks(replicated, check):
    options = {"method": "newton", "adjoint": "sequential"}
    found = inside(deeppcr.scan, plain, "grad", replicated, check, **options)
    assert_agree(found, expected("grad", replicated, check))


@jax.custom_vjp
def rule(x):
    return jnp.tanh(x)


rule.defvjp(lambda x: (rule(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))


def looped(weight):
    """What does not vary, in a loop of the step."""
    row = lax.fori_loop(0, 3, lambda _, row: 0.5 * row + weight[1], jnp.zeros(WIDTH))
    return jnp.where(weight[0, 0] > 0, row, lax.cond(row[0] > 0, lambda: row, lambda: weight[0]))


def index():
    return 0.1 * lax.axis_index("x").astype(float)


STEPS = {
    "custom_vjp, constant output": lambda w: lambda z, x: (rule(z @ w + x), (z, 2.0)),
    "relu, axis_index": lambda w: lambda z, x: (jax.nn.relu(z @ w + x) + index(), z),
    "loop and branch": lambda w: lambda z, x: (jnp.tanh(0.3 * z + x + looped(w)), z),
    "checkpoint": lambda w: lambda z, x: (jax.checkpoint(lambda z: jnp.tanh(z @ w + x))(z), z),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps(step):
    found = inside(deeppcr.scan, STEPS[step], "grad", method="newton", adjoint="sequential")
    assert_agree(found, inside(lax.scan, STEPS[step], "grad"))


AS_SCAN = "cannot be solved in parallel"
PARALLEL = {  # over examples of a `jax.vmap`
    "psum": lambda z, axis: lax.psum(z, axis),
    "pmean": lambda z, axis: lax.pmean(z, axis),
    "all_gather": lambda z, axis: lax.all_gather(z, axis).sum(0),
    "ppermute": lambda z, axis: lax.ppermute(z, axis, [(0, 1), (1, 0)]),
    "axis_index": lambda z, axis: z * (1 + lax.axis_index(axis)).astype(z.dtype),
}
SEQUENTIAL = {
    "psum_scatter": lambda z, axis: lax.psum_scatter(jnp.stack([z, 2 * z]), axis),
    "all_to_all": lambda z, axis: lax.all_to_all(jnp.stack([z, 2 * z]), axis, 0, 0).sum(0),
}


def every(among):
    """What all of these collectives say of a state, each of another function of it."""
    return lambda z, axis: sum(f(jnp.sin(k + z), axis) for k, f in enumerate(among.values())) / 7


def meeting(collective):
    return lambda w: lambda z, x: (jnp.tanh(0.5 * z @ w + x + 0.2 * collective(z, "x")), z)


def mapped(scan, collective, how, **options):
    """The same with the devices as examples of a `jax.vmap`."""

    def f(z, xs, weight):
        one = partial(loss, meeting(collective), scan, **options)
        values, found = jax.vmap(one, (0, 0, None), axis_name="x")(z, xs, weight)
        return values.sum(), found

    return run(partial(transformed, how, f), STATES, INPUTS, WEIGHT)


# -- collectives -----------------------------------------------------------------------------------


def test_collectives_under_vmap():
    want = mapped(lax.scan, every(PARALLEL), "grad")
    assert_agree(mapped(deeppcr.scan, every(PARALLEL), "grad", method="newton"), want)
    both = every(PARALLEL | SEQUENTIAL)
    assert_agree(mapped(deeppcr.scan, both, "grad"), mapped(lax.scan, both, "grad"))
    for collective in SEQUENTIAL.values():
        with pytest.raises(ValueError, match=AS_SCAN):
            mapped(deeppcr.scan, collective, "grad", method="newton")


@pytest.mark.parametrize("check", [True, False])
def test_collectives_between_chains_of_devices(check):
    step = meeting(every(PARALLEL | SEQUENTIAL) if check else PARALLEL["psum"])
    want = inside(lax.scan, step, "grad", check=check)
    assert_agree(inside(deeppcr.scan, step, "grad", check=check), want)
    for collective in (PARALLEL | SEQUENTIAL).values():
        if collective is not PARALLEL["axis_index"]:
            with pytest.raises(ValueError, match=f"{AS_SCAN}: it communicates over axes of jax.sh"):
                inside(deeppcr.scan, meeting(collective), "grad", check=check, method="newton")


def test_a_state_that_does_not_vary_is_named():
    def call(scan):
        def on_device(xs):
            return scan(lambda c, x: ({"h": c["h"] + x}, None), {"h": jnp.zeros(WIDTH)}, xs)[0]["h"]

        specs = {"in_specs": P("x"), "out_specs": P("x")}
        return jax.shard_map(on_device, mesh=mesh(x=2), **specs)(INPUTS[0])

    with pytest.raises(TypeError):
        call(lax.scan)
    message = r"state\['h'\].*none before.*'x' after.*jax\.lax\.pcast\(.*'x'.*to='varying'\)"
    with pytest.raises(TypeError, match=f"(?s){message}"):
        call(deeppcr.scan)


WIDE = normal(4, 4), normal(5, 8, 4), normal(6, 4, 4, scale=0.4)


def naming(name, on, weight):
    """A step that names shardings by `PartitionSpec`, or over the mesh ``on``."""

    def spec(*axes):
        return NamedSharding(on, P(*axes)) if on else P(*axes)

    steps = {
        "none": lambda z, x: jnp.tanh(z @ weight + x),
        "reshard": lambda z, x: jax.sharding.reshard(jnp.tanh(jax.sharding.reshard(z, spec("y"))), spec(None)) + x,
        "dot": lambda z, x: jnp.tanh(jnp.dot(z, weight, out_sharding=spec(None)) + x),
        "constraint": lambda z, x: jnp.tanh(lax.with_sharding_constraint(z @ weight + x, spec(None))),
    }  # fmt: skip
    return lambda z, x: (steps[name](z, x), z)


# -- meshes with `Explicit` axes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "by_mesh", "name"),
    [
        *(("explicit", True, name) for name in ("none", "reshard", "dot", "constraint")),
        *(("auto", True, name) for name in ("dot", "constraint")),
        ("explicit", False, "constraint"),
    ],
)
def test_steps_that_name_shardings(kind, by_mesh, name):
    on = mesh(kind, x=2, y=2)

    def solved(scan, **options):
        def step(weight):
            return naming(name, on if by_mesh else None, weight)

        f = partial(loss, step, scan, **options)
        return run(partial(transformed, "grad", f), *put(WIDE, on=on))

    with jax.set_mesh(on):
        want = solved(lax.scan)
        assert_agree(solved(deeppcr.scan), want)
        is_named = name == "reshard" or (kind, name) == ("auto", "dot")
        # Of a PartitionSpec over Explicit axes jax checks the type, and constrains nothing.
        if not (is_named or (kind, name, by_mesh) == ("explicit", "constraint", True)):
            assert_agree(solved(deeppcr.scan, method="newton"), want)
            return
        with pytest.raises(ValueError, match=f"{AS_SCAN}: it names shardings over a mesh"):
            solved(deeppcr.scan, method="newton")
