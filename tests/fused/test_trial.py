"""A kernel is compared with XLA's program once, before it is used; a wrong one is not used."""

import threading
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.lower.gpu.fused import nvrtc, trial
from deeppcr.lower.variants import compiled_for
from tests.fused.emulator import emulated, in_program
from tests.fused.test_kernel import as_users_write_it, gru, noisy, numbers  # noqa: F401
from tests.problems import assert_agree

L = 100
CPU = jax.local_devices(backend="cpu")[0]
LOOP, SOLVE = deeppcr.Sequential(fused=True), deeppcr.Newton(fused=True)
CELL, H, X = gru(3), numbers(3), numbers(L, 2)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(trial, "_FAULTS", {})


class Counted:
    """Runs kernels, those of ``kind`` wrongly, and keeps the names of those that were compiled."""

    def __init__(self, change=None, kind="fused_"):
        self.change, self.kind, self.names = change, kind, []

    def __call__(self, kernel, operands, results):
        self.names.append(kernel.name)
        found = in_program(kernel, operands, results)
        return self.change(found) if self.change and kernel.name.startswith(self.kind) else found


def run(launch, f, *arrays):
    """The results, and the warnings."""
    with compiled_for("cuda"), emulated(launch, CPU), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = jax.jit(lambda *arrays: f(*arrays))(*arrays)
    return found, [str(each.message) for each in said]


def states(method, f=CELL, **options):
    def scan(z, xs):
        return deeppcr.scan(lambda z, x: (f(z, x),) * 2, z, xs, method=method, **options)[1]

    return scan


def plain(f, z, xs, reverse=False):
    return jax.jit(lambda z, xs: jax.lax.scan(lambda z, x: (f(z, x),) * 2, z, xs, reverse=reverse))(
        z, xs
    )[1]


def at_step(k, change):
    """A change of all leaves of `Counted` that have steps: of the states after one step."""
    return lambda results: [x.at[k].set(change(x[k])) if x.ndim > 1 else x for x in results]


WRONG = {
    "one entry by 1e-3": at_step(-1, lambda z: z.at[0].add(1e-3)),
    "one step": at_step(20, lambda z: z[::-1] + 1),
    "not a number": at_step(3, lambda z: z.at[1].set(jnp.nan)),
    "nothing written": lambda results: [
        x + np.nan if x.dtype == np.float32 else x for x in results
    ],
}


KINDS = [(LOOP, "fused_scan_"), (SOLVE, "fused_solve_")]


@pytest.mark.parametrize(("method", "kind"), KINDS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_not_used(name, method, kind):
    found, said = run(Counted(WRONG[name], kind), states(method), H, X)
    assert_agree(found, plain(CELL, H, X), 1e-5)
    (words,) = said
    assert words.startswith(kind)
    assert "100 steps, a state of float32[3]" in words
    assert "of state leaf 0 differ, such as" in words
    assert ("nan for" in words) == (name in ("not a number", "nothing written"))
    assert "cpu" in words


def test_a_kernel_with_a_fault_in_its_text_is_not_used():
    """Inputs are read ahead, for the step before."""

    def launch(kernel, operands, results):
        text = kernel.text.replace("? l + k + 13 :", "? l + k + 12 :")
        assert text != kernel.text
        return in_program(kernel._replace(text=text), operands, results)

    found, said = run(launch, states(LOOP), H, X)
    assert_agree(found, plain(CELL, H, X), 1e-6)
    assert "after step 14 of 35" in said[0]


def test_a_kernel_that_does_not_run_is_not_used():
    def broken(*_):
        raise RuntimeError("out of registers")

    found, said = run(broken, states(LOOP), H, X)
    assert_agree(found, plain(CELL, H, X), 1e-6)
    assert "it does not run (out of registers)" in said[0]


@pytest.mark.parametrize("method", [LOOP, SOLVE])
def test_a_right_kernel_is_used_and_compared_once(method):
    launch = Counted()
    found, said = run(launch, states(method), H, X)
    assert_agree(found, plain(CELL, H, X), 1e-5)
    assert said == []
    *tried, used = launch.names
    assert len(tried) == 1
    assert (tried == [used]) == (method is SOLVE)  # a loop is tried on fewer steps
    run(launch, states(method), H, X)
    assert launch.names == [*tried, used, used]
    run(launch, states(method), H, numbers(L, 2, seed=1))  # the same program
    run(launch, states(method, gru(2)), numbers(2), X)  # another
    assert len(launch.names) == 6


@pytest.mark.parametrize(("method", "kind"), KINDS)
def test_a_wrong_kernel_is_compared_once(method, kind):
    launch = Counted(WRONG["one step"], kind)
    said = [run(launch, states(method), H, X)[1] for _ in range(2)]
    assert len([name for name in launch.names if name.startswith(kind)]) == 1
    assert list(map(len, said)) == [1, 1]


@pytest.mark.parametrize("is_right", [True, False])
def test_what_auto_takes_is_tried(is_right):
    launch, xs = Counted(None if is_right else WRONG["one step"]), numbers(500, 2)
    found, said = run(launch, states("auto"), H, xs)
    assert_agree(found, plain(CELL, H, xs), 1e-5)
    assert (len(launch.names), len(said)) == ((2, 0) if is_right else (1, 1))


@pytest.mark.parametrize("is_right", [True, False])
def test_a_program_for_a_gpu_has_the_kernel_if_it_is_right_there(is_right, monkeypatch):
    """A CPU stands for the GPU of a trial, which has a thread of its own."""
    emulate, compile_it = Counted(None if is_right else WRONG["one step"]), nvrtc.launch

    def launch(*given):
        is_trial = threading.current_thread() is not threading.main_thread()
        return emulate(*given) if is_trial else compile_it(*given)

    stand_in = {"launch": launch, "gpus": lambda: [CPU], "obstacle": str, "missing": str}
    stand_in["ptx"] = lambda text, *_: text
    for name, own in stand_in.items():
        monkeypatch.setattr(nvrtc, name, own)
    with compiled_for("cuda"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traced = jax.jit(states(LOOP)).trace(H, X)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert ("while" in text, nvrtc.TARGET in text) == (not is_right, is_right)
    assert len(said) == (not is_right)


@pytest.mark.parametrize("is_right", [True, False])
def test_inside_transformations(is_right):
    """Lowered once, a kernel is compared once; and that of a batch is another."""
    launch = Counted() if is_right else Counted(WRONG["nothing written"])

    def loss(scan, z, xs):
        return jnp.square(scan(z, xs)).sum()

    def around(scan):
        def repeated(z, xs):
            gradients = jax.vmap(jax.grad(partial(loss, scan), (0, 1)))
            return jax.lax.scan(lambda z, _: (z + gradients(z, xs)[0], None), z, None, 3)[0]

        return repeated

    arrays = numbers(2, 3), numbers(2, L, 2)
    found, said = run(launch, around(states(LOOP, adjoint="backprop")), *arrays)
    expected = jax.jit(around(partial(plain, CELL)))(*arrays)
    assert_agree(found, expected, 1e-5)
    assert len(said) == (0 if is_right else 2)
    assert len(launch.names) == (4 if is_right else 2)  # of the states, and of the adjoint


def test_where_there_is_no_gpu_nothing_is_compared():
    launch = Counted()
    with compiled_for("cuda"), emulated(launch, None):
        jax.jit(states(LOOP)).lower(H, X)
    assert len(launch.names) == 1
    assert nvrtc.gpus() == []


def grows(z, x):
    """Differences grow by 3 in each step: states of two programs are unlike after 20."""
    return jnp.cos(3 * z[::-1] + x)


def jumps(z, x):
    return jnp.where(z > 0.25, z - 0.5, z * 0.9) + jnp.floor(4 * x) * z[::-1] / 8


def of_positive(z, x):
    return jnp.log(jnp.abs(z) + x**2) * jnp.sqrt(x) / (z + x)


def explodes(z, x):
    return 2 * z * z + x


HALF = jnp.bfloat16
RIGHT = {
    "differences grow": (grows, H, numbers(L, 3)),
    "jumps": (jumps, H, numbers(L, 3)),
    "roots": (of_positive, H, np.abs(numbers(L, 3))),
    "overflows": (explodes, H, numbers(L, 3)),
    "integers": (lambda z, k: jnp.where(k % 3 > 0, jnp.tanh(z + k.astype(z.dtype)), z), H, np.arange(L, dtype=np.int32)),
    "booleans": (lambda z, go: jnp.where(go, jnp.sin(z), z), H, np.arange(L) % 3 > 0),
    "keys": (noisy, H, jax.random.split(jax.random.key(0), L)),
    "short numbers": (jumps, H.astype(HALF), numbers(L, 3).astype(HALF)),
    "rounded inside": (lambda z, x: jnp.tanh((z.astype(HALF) * x.astype(HALF)).astype(np.float32)) + z / 2, H, numbers(L, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("reverse", [False, True])
def test_rounding_is_not_wrong(name, reverse):
    f, z, xs = RIGHT[name]
    launch = Counted()
    found, said = run(launch, states(LOOP, f, reverse=reverse), z, xs)
    assert said == []
    assert len(launch.names) == 2
    assert found.shape == (L, 3)


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_a_trial_is_of_one_device(axes):
    """Whatever mesh and settings the program has, and whatever its step varies over."""
    devices = jax.devices()[:2]
    mesh = jax.make_mesh((2,), ("b",), devices=devices)
    if axes == "auto":
        mesh = jax.sharding.Mesh(devices, ("b",))
    specs = {"mesh": mesh, "in_specs": (jax.P("b"),) * 2, "out_specs": jax.P("b")}
    ours = jax.shard_map(jax.vmap(states(LOOP)), **specs)
    arrays = jax.device_put((numbers(4, 3), numbers(4, L, 2)), jax.NamedSharding(mesh, jax.P("b")))
    launch = Counted()
    with jax.set_mesh(mesh), jax.debug_nans(True), jax.transfer_guard("disallow"):
        found, said = run(launch, ours, *arrays)
    assert said == []
    assert len(launch.names) == 2
    expected = jax.vmap(partial(plain, CELL))(*jax.device_get(arrays))
    assert_agree(jax.device_get(found), jax.device_get(expected), 1e-5)
