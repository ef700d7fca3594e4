"""What is compiled for an accelerator is another program with the same answers."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import Adjoint, Chain, Newton, Result
from deeppcr.loops import FALLBACK, steps_from
from deeppcr.lower import ahead
from deeppcr.lower.variants import compiled_for, platform, platforms
from tests.problems import L, assert_agree, normal, rounding, trajectory

WIDTH = 12  # wider than what is unrolled on a CPU
WEIGHTS = normal(1, L, WIDTH, WIDTH) / (2 * WIDTH) ** 0.5
BIASES, START = normal(2, L, WIDTH), normal(3, WIDTH)
INPUTS = {"w": WEIGHTS, "b": BIASES}


def step(z, x):
    return jnp.tanh(z @ x["w"] + x["b"])


def states(method, adjoint="autodiff"):
    def run(start, inputs):
        return deeppcr.solve(Chain(step, inputs), start, method=method, adjoint=adjoint)

    return run


def loss(method, adjoint):
    return lambda *arguments: jnp.square(states(method, adjoint)(*arguments).trajectory).sum()


@cache
def expected():
    return jax.jit(states("sequential"))(START, INPUTS).trajectory


def test_the_platform_is_that_which_is_asked_for():
    here = platforms()
    with compiled_for("cuda"):
        assert (platform(), platforms()) == ("cuda", ("cuda",))
        with compiled_for("tpu"):
            assert platform() == "tpu"
        assert platform() == "cuda"
    assert platforms() == here
    with pytest.raises(RuntimeError, match="inside"), compiled_for("cuda"):
        raise RuntimeError("inside")
    assert platforms() == here


NEWTONS = {
    "damped in windows, watched": Newton(
        linearize="dense", damping=deeppcr.TrustRegion(), window=5, record=True
    ),
    "accelerated": Newton(linearize="identity", acceleration=deeppcr.Anderson()),
}


@pytest.mark.parametrize("method", NEWTONS.values(), ids=NEWTONS)
def test_states_are_those_of_the_sequential_program(method):
    with compiled_for("cuda"):
        solution = jax.jit(states(method))(START, INPUTS)
    assert int(solution.result) == Result.CONVERGED
    assert int(solution.stats.iterations) >= 3
    assert_agree(solution.trajectory, expected(), rounding(jnp.float64, 4 * L * WIDTH))
    if method.record:
        assert np.isfinite(solution.stats.residuals[: int(solution.stats.iterations) + 1]).all()


def test_the_first_iterations_are_part_of_the_budget():
    method = Newton(linearize="diagonal", max_iterations=1)
    with compiled_for("cuda"):
        there = jax.jit(states(method))(START, INPUTS)
        assert [ahead(budget) for budget in (1, 4)] == [1, 3]
    assert int(there.stats.iterations) == 1
    assert int(there.result) == Result.FINISHED_SEQUENTIALLY
    assert_agree(there.trajectory, expected(), rounding(jnp.float64, 4 * L * WIDTH))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_rest_of_a_chain_runs_step_by_step_from_anywhere(platform):
    """On a GPU in loops of known length, for whose conditions the host does not wait."""
    length = 35  # which these loops do not divide
    weights, start = normal(4, length, 3, 3), normal(5, 3)
    right = trajectory(Chain(lambda z, w: jnp.tanh(w @ z), weights), start)

    def rest(begin):
        def one(index, state):
            state = jnp.tanh(lax.dynamic_index_in_dim(weights, index, keepdims=False) @ state[0])
            return [state], [state]

        known = jnp.where(jnp.arange(length, dtype=jnp.int32)[:, None] < begin, right, jnp.nan)
        before = jnp.where(begin == 0, start, right[begin - 1])
        return steps_from(begin, one, [before], [known])[1][0]

    with compiled_for(platform):
        program = jax.jit(rest).lower(jnp.int32(0))
        assert program.as_text().count("stablehlo.while") == (2 if platform == "cuda" else 1)
        found = jax.jit(jax.vmap(rest))(jnp.arange(length + 1, dtype=jnp.int32))
    for begin in range(length + 1):
        assert_agree(found[begin], right, rounding(jnp.float64, 8 * length))
        assert_agree(program.compile()(jnp.int32(begin)), right, rounding(jnp.float64, 8 * length))


def test_the_host_of_a_gpu_does_not_wait_for_each_step_of_a_fallback():
    """The loop whose end depends on data has a loop of known length in a trip."""
    solved = states(Newton(linearize="diagonal", max_iterations=1))
    inputs = jax.tree.map(lambda x: jnp.concatenate([x, x]), INPUTS)
    for name, inside in (("cpu", False), ("cuda", True)):
        with compiled_for(name):
            program = jax.jit(lambda *given: solved(*given)).trace(START, inputs)
            text = program.lower(lowering_platforms=(name,)).as_text(debug_info=True)
        assert f"{FALLBACK}/while" in text
        assert (f"{FALLBACK}/while/body/while" in text) is inside


@pytest.mark.parametrize("adjoint", ["autodiff", "pcr"])
def test_the_steps_of_an_unrolled_loop_are_written_apart(adjoint):
    """On a GPU, whose compiler would compute each again for each entry that reads it."""
    barriers = []
    for unroll in (1, 4):
        gradient = jax.grad(loss(deeppcr.Sequential(unroll=unroll), adjoint), (0, 1))
        with compiled_for("cuda"):
            program = jax.jit(gradient).lower(START, INPUTS)
        lines = program.as_text().splitlines()
        # Those of loops of one function are a CPU's.
        barriers.append(sum("optimization_barrier %" in line for line in lines))
        assert_agree(program.compile()(START, INPUTS), expected_gradients(), 1e-12)
    assert barriers[0] < barriers[1]


@cache
def expected_gradients():
    return jax.jit(jax.grad(loss("sequential", "autodiff"), (0, 1)))(START, INPUTS)


@pytest.mark.parametrize(
    ("method", "linear"),
    [(Newton(linearize="dense"), "auto"), ("sequential", "pcr")],
    ids=lambda x: x if isinstance(x, str) else "newton",
)
def test_gradients_are_those_of_the_sequential_program(method, linear):
    with compiled_for("cuda"):
        found = jax.jit(jax.grad(loss(method, Adjoint(linearize="dense", linear=linear)), (0, 1)))(
            START, INPUTS
        )
    assert_agree(found, expected_gradients(), 1e-12)
