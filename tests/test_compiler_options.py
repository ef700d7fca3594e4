"""Options of XLA with which a GPU decides when loops end."""

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Newton
from deeppcr.lower.variants import compiled_for
from experiments.bench.programs import captured
from tests.targets import target_or_skip


def test_other_platforms_have_none():
    gpu = deeppcr.compiler_options("gpu")
    assert gpu == deeppcr.compiler_options("cuda") != {}
    assert {type(value) for value in gpu.values()} <= {bool, int, str}
    assert [deeppcr.compiler_options(name) for name in ("cpu", "tpu", "rocm", None)] == [{}] * 4
    with compiled_for("cuda"):
        assert deeppcr.compiler_options() == gpu
    gpu.clear()  # it is the caller's
    assert deeppcr.compiler_options("gpu")


@pytest.mark.parametrize("name", ["GPU", "metal", 3, ["cpu"]], ids=str)
def test_a_platform_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=r"platform is .*expected one of 'cpu', 'cuda'"):
        deeppcr.compiler_options(name)


def kinds(target, lowered, platform):
    """What the host launches or runs: a graph, or a loop whose condition it waits for."""
    program = target.compile(lowered, deeppcr.compiler_options(platform))
    return [thunk.kind for thunk in program.thunks]


def test_a_gradient_by_newton_is_one_graph_without_waits():
    target = target_or_skip("H200")

    def loss(z0, xs):
        method = Newton(linearize="dense")
        return deeppcr.scan(
            lambda z, x: (jnp.tanh(z + x), None), z0, xs, method=method, adjoint="pcr"
        )[0].sum()

    lowered = target.lower(jax.grad(loss), jnp.zeros(2, "float32"), jnp.ones((64, 2), "float32"))
    assert kinds(target, lowered, "gpu") == ["kCommandBuffer"]
    assert "kWhile" in kinds(target, lowered, "cpu")  # no options: the host runs the loop


def test_a_loop_that_returns_its_states_is_one_graph():
    target = target_or_skip("H200")

    def states(z0, xs):
        return jax.lax.scan(lambda z, x: (z @ x, z @ x), z0, xs)[1]

    shapes = jnp.zeros((16, 3), "float32"), jnp.ones((64, 3, 3), "float32")
    assert kinds(target, target.lower(states, *shapes), "gpu") == ["kCommandBuffer"]


def test_experiments_capture_their_programs_on_a_gpu_only():
    programs = {"lax.scan": jnp.sin, "newton": jnp.cos}
    assert captured(programs) == {}
    with compiled_for("cuda"):
        found = captured(programs, "newton", "unrolled")
        assert list(captured(programs)) == ["lax.scan, captured", "newton, captured"]
    assert list(found) == ["newton, captured"]
    assert (found["newton, captured"].run, found["newton, captured"].options) == (
        jnp.cos,
        deeppcr.compiler_options("gpu"),
    )
