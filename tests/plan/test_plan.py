"""`deeppcr.plan`: what it takes, what it expects, what fits; what it names can be passed on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
import depth
from deeppcr._plan import find_adjoint
from deeppcr._plan.choose import choose_adjoint, choose_method
from deeppcr.adjoint import Autodiff
from tests.plan.chains import CHAINS, SLOW_LOOPS, costs_of, elementwise, like, plan_like
from tests.problems import PROBLEMS, assert_agree, backpropagate, normal, oracle, solve, trajectory

H200 = depth.devices["H200"]


def dense(z, x):
    return jnp.tanh(z.sum() * jnp.ones_like(z) + x)


def chain_of(problem):
    """Its states alone."""
    return deeppcr.Chain(
        lambda z, x: problem.step(problem.params, z, x)[0], problem.xs, problem.length
    )


# -- what it takes --------------------------------------------------------------------------------


def test_what_is_planned_gives_the_values_and_gradients_of_the_sequential_program():
    """By arrays or by their shapes."""
    problem = PROBLEMS["relu mlp"]
    options = {"device": SLOW_LOOPS, "iterations": 4, "batch_ndim": problem.batch_ndim}
    shapes = jax.eval_shape(lambda z: z, problem.init)
    found, known = (deeppcr.plan(chain_of(problem), z, **options) for z in (shapes, problem.init))
    assert found.to_json() == known.to_json()
    assert isinstance(found.method, deeppcr.Newton)

    def scan(f, init, xs, length, reverse):
        options = {
            "method": found.method,
            "adjoint": found.adjoint,
            "batch_ndim": problem.batch_ndim,
        }
        return deeppcr.scan(f, init, xs, length, reverse=reverse, **options)

    assert_agree(backpropagate(problem, scan), oracle(problem))


def layer(kind, weight):
    return jax.tree_util.Partial(kind, weight)


def narrow(weight, z):
    return jnp.tanh(z * jnp.broadcast_to(weight, z.shape))


def wide(weight, z):
    return z + jnp.tanh(z @ weight)


def test_a_step_is_planned_as_scan_takes_it():
    def counting(carry, x):
        count, z = carry
        return (count + 1, jnp.tanh(z + count + x)), z

    xs = normal(0, 64, 4)
    found = deeppcr.plan(counting, (0, xs[0]), xs, device=SLOW_LOOPS, iterations=4)
    assert (found.main.length, found.main.width) == (64, 4)
    z, ys = deeppcr.scan(counting, (0, xs[0]), xs, method=found.method, adjoint=found.adjoint)
    assert_agree((z, ys), jax.lax.scan(counting, (0, xs[0]), xs))
    alone = deeppcr.plan(lambda z, _: (jnp.sin(z), None), 0.5, length=12)
    assert alone.main.length == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda z, x: (z, None), 0.5), r"there is no xs and no length: .*plan\(layers, x\)"),
        ((deeppcr.Chain(elementwise, jnp.ones(3)), 0.5, jnp.ones(3)), "program is a Chain"),
        (([jnp.sin, jnp.sin], 0.5, None, 2), "program is a list of layers"),
    ],
    ids=["step", "chain", "layers"],
)
def test_what_is_ambiguous_is_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        deeppcr.plan(*arguments)


def test_layers_make_a_plan_for_every_chain():
    layers = [layer(narrow, normal(i, 3)) for i in range(4)]
    layers += [lambda z: jnp.concatenate([z, z], -1)]
    layers += [layer(wide, normal(i, 6, 6, scale=0.1)) for i in range(7)]
    x = normal(0, 2, 3)
    found = deeppcr.plan(layers, x, device="H200")
    assert [(chain.length, chain.width, chain.batch) for chain in found.chains] == [
        (4, 3, 2),
        (7, 6, 2),
    ]
    assert found.main is found.chains[1]
    assert str(found) == "\n\n".join(map(str, [found.layers, *found.chains]))
    expected = np.asarray(x)
    for each in layers[:4]:
        expected = np.tanh(expected * np.asarray(each.args[0])[None])
    expected = np.concatenate([expected, expected], -1)
    for each in layers[5:]:
        expected = expected + np.tanh(expected @ each.args[0])
    assert_agree(deeppcr.forward(layers, x, method=found.method, adjoint=found.adjoint), expected)
    alone = deeppcr.plan(deeppcr.stack(layers[5:]), normal(0, 2, 6), device="H200")
    assert alone.chains[0].to_json() == found.chains[1].to_json()


def test_the_examples_of_layers_are_counted_as_in_forward():
    layers = [layer(narrow, normal(i, 3)) for i in range(4)]
    sizes = {
        batch: deeppcr.plan(layers, jnp.zeros((2, 3)), batch_ndim=batch).main for batch in (None, 0)
    }
    assert {batch: (chain.batch, chain.width) for batch, chain in sizes.items()} == {
        None: (2, 3),
        0: (1, 6),
    }


@pytest.mark.parametrize(("dtype", "length"), [("bfloat16", 64), ("float32", 1)])
def test_other_dtypes_and_short_chains(dtype, length):
    chain, state = like(4, length, dtype)
    found = deeppcr.plan(chain, state, device="H200")
    z0 = jnp.ones(4, dtype)
    solved = solve(chain, z0, method=found.method, adjoint=found.adjoint)
    assert_agree(solved.trajectory, trajectory(chain, z0), 0.02 if dtype == "bfloat16" else 1e-5)
    if length == 1:
        assert isinstance(found.method, deeppcr.Sequential)


def test_the_initial_state_may_be_traced():
    chain, z0 = CHAINS["elementwise"]
    seen = []

    def f(z, x):
        seen.append(deeppcr.plan(deeppcr.Chain(elementwise, x), z, device="H200"))
        return z

    jax.make_jaxpr(f)(z0, chain.inputs)
    assert seen[0].to_json() == deeppcr.plan(chain, z0, device="H200").to_json()


def test_adjoints_are_public_and_can_be_passed_on():
    chain, z0 = CHAINS["gru"]
    adjoints = {each.adjoint for each in deeppcr.plan(chain, z0).main.gradient}
    assert {type(adjoint) for adjoint in adjoints} == {str, deeppcr.Adjoint}
    for adjoint in {type(adjoint): adjoint for adjoint in adjoints}.values():
        jax.eval_shape(
            jax.grad(
                lambda z, a=adjoint: deeppcr.solve(chain, z, method="sequential", adjoint=a).value[
                    0
                ]
            ),
            z0,
        )


# -- one method alone -----------------------------------------------------------------------------


def test_a_method_of_the_callers_is_compared_with_the_sequential_program():
    chain, z0 = CHAINS["gru"]
    z0 = jax.eval_shape(lambda: z0)
    method = deeppcr.Newton(linearize="diagonal", linear="pcr")
    found = deeppcr.plan(chain, z0, method=method, device=SLOW_LOOPS)
    newton, sequential = found.main.forward
    assert sequential.is_sequential
    assert newton.method == dataclasses.replace(method, max_iterations=newton.method.max_iterations)
    assert found.main.newton is newton
    assert {each.method for each in found.main.gradient} == {newton.method, sequential.method}
    kept = deeppcr.plan(chain, z0, method=deeppcr.Newton(max_iterations=7), device=SLOW_LOOPS)
    assert kept.main.newton.method.max_iterations == 7


@pytest.mark.parametrize("method", ["sequential", deeppcr.Sequential()], ids=str)
def test_the_sequential_program_alone(method):
    chain, z0 = CHAINS["gru"]
    found = deeppcr.plan(chain, z0, method=method, device=SLOW_LOOPS)
    assert found.method == deeppcr.Sequential()
    assert len(found.main.forward) == 1
    assert len(found.main.gradient) > 1  # adjoints of its states
    assert "linearize" not in str(found)


# -- the device -----------------------------------------------------------------------------------


def test_the_device_decides():
    found = plan_like()
    assert found.predicted_speedup > 2
    assert found.gradient_speedup > 2
    assert isinstance(found.method, deeppcr.Newton)
    assert found.method.max_iterations
    here = deeppcr.plan(*like())
    assert here.method == deeppcr.Sequential()
    assert here.predicted_speedup == 1
    assert here.main.device == depth.at_hand()


def test_a_device_by_name_is_the_device():
    assert deeppcr.plan(*like(1, 2), device="h200").main.device is H200


@pytest.mark.parametrize("device", ["H2000", "", "gpu", 3], ids=repr)
def test_an_unknown_device_is_named(device):
    with pytest.raises(ValueError, match="device") as error:
        deeppcr.plan(*like(), device=device)
    assert repr(device) in str(error.value)


def test_what_does_not_fit_is_never_chosen():
    chain, state = like(8, 1024)
    for memory in (1e5, 1e9):
        found = deeppcr.plan(chain, state, device=H200.replace(memory=memory)).main
        for candidate in (found.forward[0], found.gradient[0]):
            assert candidate.is_sequential or candidate.memory <= memory
        # The forward pass is chosen first: gradients with another one come last.
        for chosen in (True, False):
            fits = [
                candidate.memory <= memory or candidate.is_sequential
                for candidate in found.gradient
                if (candidate.method == found.forward[0].method) == chosen
            ]
            assert fits == sorted(fits, reverse=True)
        lines = {line.strip().split("  ")[0]: line for line in found.table().splitlines()}
        for candidate in found.gradient[1:]:
            assert ("do not fit" in lines[candidate.name]) == (
                candidate.memory > memory and not candidate.is_sequential
            )
    assert not found.forward[0].is_sequential
    memory = {candidate.name: candidate.memory for candidate in found.forward}
    blocks = 1024 * 8 * 4  # bytes, of which a parallel solver has four copies
    names = "Newton, diagonal, pcr", "Newton, diagonal, sequential"
    assert memory[names[0]] - memory[names[1]] == 3 * blocks


# Width and length: of both kinds of blocks, short and long, on each kind of device.
SIZES = {
    "H200": [(48, 256, dense)],
    "V100": [(64, 128)],
    "TPU v5e": [(1, 1024)],
    "generic": [(2, 256, dense)],
}


@pytest.mark.parametrize("device", SIZES)
def test_auto_takes_what_is_planned(monkeypatch, memo, device):
    model = depth.devices.get(device) or depth.models.generic_cpu(2)
    monkeypatch.setattr(depth, "at_hand", lambda platform=None: model)
    for width, length, *step in SIZES[device]:
        chain, state = like(width, length, "float32", *step)
        costs = costs_of(chain, state)
        found = deeppcr.plan(chain, state, device=model)
        size = (found.main.length, found.main.width)
        assert (size, choose_method(costs, "cpu")) == (size, found.method)
        best = found.main.gradient[0]  # whose forward pass is the one that is chosen, or jax's own
        adjoint = find_adjoint(found.adjoint)
        if isinstance(adjoint, Autodiff):  # the name does not say of which loop
            adjoint = Autodiff(rewritten=best.rewritten, unroll=best.unroll)
        assert (size, choose_adjoint(costs, None, "cpu")) == (size, adjoint)
        assert best.method == found.method or best.is_sequential, size


# -- how many iterations --------------------------------------------------------------------------


def test_more_iterations_never_promise_more():
    numbers = (np.int64(1), 10**6)
    found = [plan_like(64, 1024, iterations=n) for n in numbers]
    assert [plan.main.iterations for plan in found] == [1, 10**6]
    for name in ("predicted_speedup", "gradient_speedup"):
        speedups = [getattr(plan, name) for plan in found]
        assert speedups == sorted(speedups, reverse=True)
    assert found[0].predicted_speedup > found[-1].predicted_speedup
    assert isinstance(found[-1].method, deeppcr.Sequential)


def sampled(step, inputs, z0, **options):
    """The plan of a chain that is tried before anything is promised."""
    given = {"length": inputs} if isinstance(inputs, int) else {"inputs": inputs}
    chain = deeppcr.Chain(step, **given)
    return chain, deeppcr.plan(chain, z0, device="H200", **options)


def test_a_chain_that_amplifies_differences_gets_no_promise():
    z0 = jnp.linspace(0.1, 0.8, 8)
    chain, found = sampled(lambda z, _: 3.9 * z * (1 - z), 1024, z0, batch_ndim=1)
    assert found.method == deeppcr.Sequential(unroll=16)
    assert found.main.iterations > 500
    assert " of 1024 states converge in " in found.main.expectation
    assert "; small differences grow at a rate of +" in found.main.expectation
    blind = deeppcr.plan(chain, jax.eval_shape(lambda: z0), device="H200", batch_ndim=1)
    assert isinstance(blind.method, deeppcr.Newton)
    first = str(blind).splitlines()[0]
    twice = deeppcr.plan(
        chain, z0, device="H200", batch_ndim=1, iterations=2 * blind.main.iterations
    )
    assert f" {blind.predicted_speedup:.1f}x if the chain forgets its past (" in first
    times = twice.main.sequential.time / twice.main.newton.time
    assert f"({times:.1f}x at twice the iterations)" in first


def test_a_long_chain_that_forgets_is_tried_on_a_part():
    chain, found = sampled(elementwise, normal(0, 30_000, 4), normal(1, 4))
    assert isinstance(found.method, deeppcr.Newton)
    (sample,) = set(found.main.samples.values())
    assert sample.steps < 10_000
    solved = deeppcr.solve(chain, normal(1, 4), method=deeppcr.Newton())
    assert abs(int(solved.stats.iterations) - found.main.iterations) <= 1
    assert "if the chain" not in str(found)


def test_a_chain_whose_parallel_solve_loses_digits_gets_no_promise():
    """A rotation takes one iteration step by step, and parallel products of 2000 turns are off."""
    turn = jnp.array([[0.8, -0.6], [0.6, 0.8]], jnp.float32)
    _, found = sampled(lambda z, x: turn @ z + x, jnp.ones((3000, 2), "float32"), turn[0])
    assert found.method == deeppcr.Sequential(unroll=16)
    assert "loses digits" in found.main.expectation


def test_blocks_that_are_not_exact_are_tried_as_such():
    weight = jnp.array([[0.1, 0.9], [-0.9, 0.1]])
    method = deeppcr.Newton(linearize="diagonal")
    inputs, start = normal(0, 2048, 2), normal(1, 2)
    _, found = sampled(lambda z, x: jnp.tanh(weight @ z + x), inputs, start)
    _, inexact = sampled(lambda z, x: jnp.tanh(weight @ z + x), inputs, start, method=method)
    assert isinstance(found.method, deeppcr.Newton)
    assert inexact.main.newton.iterations > 3 * found.main.newton.iterations


def test_a_sample_needs_arrays():
    with pytest.raises(ValueError, match=r"z0 has shapes .* iterations='sample'"):
        deeppcr.plan(*like(), iterations="sample")


def test_a_bad_number_of_iterations_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(depth, "at_hand", lambda platform=None: pytest.fail("too late"))
    for iterations in (0, -1, 1.5, True, "samples", [3]):
        with pytest.raises((TypeError, ValueError), match="iterations is"):
            deeppcr.plan(*like(), iterations=iterations)
