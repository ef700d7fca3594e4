"""`deeppcr.plan`: the choice and why, what was found, what is predicted; it can be passed on."""

import dataclasses
import math
import re
import sys
from functools import cache, partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
import depth
from deeppcr import BlockDiagonal, Chain, Newton, Sequential
from deeppcr.checks import COLUMNS
from deeppcr.lower.variants import compiled_for
from deeppcr.planning import compiling
from deeppcr.planning.candidates import ADJOINT_NAMES, Candidate, baseline, instance_of
from deeppcr.planning.plan import SLOW
from depth.kernels import Kernel, KernelChoice, KernelLoop, KernelProgram, OneKernelLoop
from tests.planning.chains import CHAINS, L, elementwise, gated, like
from tests.problems import PROBLEMS, assert_agree, backpropagate, normal, oracle, solve, trajectory

XS = jnp.zeros((100, 8), jnp.float32)
Z0 = jnp.zeros(8, jnp.float32)
SHAPE = jax.ShapeDtypeStruct((8,), jnp.float32)
SCHEDULE = deeppcr.diffusion.Schedule.from_config({"_class_name": "DDIMScheduler"})
WEIGHT = normal(0, 8, 8).astype(jnp.float32)
DENSE = Chain(lambda z, x: jnp.tanh(z @ WEIGHT + jnp.broadcast_to(x, z.shape)), XS)
PAIRS = Chain(lambda z, x: (jnp.sin(z[0] * z[1]) + x, z[0] + z[1]), XS)
# A device on which each trip of a loop takes long: the predictions say so, whatever is chosen.
SLOW_LOOPS = depth.devices["TPU v5e"].replace(name="slow loops", loop_latency=1e-3)


@cache
def plan_like(*shape, device="H200", **options):
    """The plan of a chain of shapes, made once."""
    return deeppcr.plan(*like(*shape), device=device, **options)


def found_by(*arguments, **options):
    """The lines above the table of a plan, by their names."""
    return deeppcr.plan(*arguments, **options).found


# -- what was found --------------------------------------------------------------------------------


def test_structures():
    found = found_by(Chain(lambda z, x: 0.5 * jnp.tanh(z) + x, XS), SHAPE, method="newton")
    assert found["chain"] == "100 steps, a state of 8 entries"
    assert found["structure"].startswith("elementwise")
    assert found["linearize"] == "diagonal (exact: Newton's method)"
    assert (found["blocks"], found["window"]) == ("3,200 bytes", "all steps at once")
    assert found["adjoint"] == "on a CPU the fastest for most chains; deeppcr.tune measures"
    pairs = deeppcr.plan(PAIRS, (SHAPE, SHAPE))
    assert pairs.choice.linearization == BlockDiagonal(2)
    assert pairs.structure.groups.shape == (8, 2)


def test_what_the_method_asks_for():
    def dense(method, iterations=4):
        return found_by(DENSE, SHAPE, method=method, iterations=iterations)

    pcr = dense("pcr", iterations=7)
    assert pcr["iterations"] == "7 (as given)"
    assert pcr["structure"].startswith("dense: all 8 entries are one group, by dot_general")
    assert "test_plan.py" in pcr["structure"]
    assert pcr["linearize"] == "dense (exact: Newton's method)"
    diagonal = dense(Newton(linearize="diagonal", window=10))
    assert "not exact: a quasi-Newton method" in diagonal["linearize"]
    assert diagonal["window"] == "10 steps at once"
    assert diagonal["because"] == "the method that is asked for"
    one = 4 * 8 * 8 * 4  # bytes: four copies of a float32 block
    assert dense(Newton(memory=70 * one))["window"].startswith("70 steps at once: all 100 steps")


def test_a_batch_whose_examples_mix():
    batch = jnp.zeros((2, 8), jnp.float32)
    mixed = Chain(lambda z, x: z - jnp.broadcast_to(z.mean(0) + x, z.shape), XS)
    options = {"method": "newton", "batch_ndim": 1}
    by_blocks = partial(deeppcr.solve, mixed, adjoint="pcr", batch_ndim=1)
    calls = (
        partial(deeppcr.solve, mixed, **options),
        partial(deeppcr.scan, lambda z, x: (mixed.step(z, x), None), xs=XS, **options),
        partial(deeppcr.forward, mixed, **options),
        jax.grad(lambda z: by_blocks(z).value.sum()),
    )
    for size, call in enumerate(calls, 3):  # another shape, so that each is traced
        with pytest.warns(UserWarning, match="batch may influence each other.* batch_ndim=0"):
            jax.eval_shape(call, jnp.zeros((size, 8)).astype("float32"))
    with pytest.warns(UserWarning, match="batch_ndim=0"):
        found = found_by(mixed, batch, iterations=4, **options)
    assert found["chain"].endswith("of 8 entries, a batch of 2")
    assert "examples of a batch may influence each other" in found["structure"]
    assert "not exact" in found["linearize"]


def test_a_sequential_plan_says_no_more_of_newtons_method_than_that_it_is_not_tried():
    plan = str(deeppcr.plan(DENSE, SHAPE))
    (line,) = (line for line in plan.splitlines() if "newton" in line.lower())
    assert line.endswith("not tried: cannot win here")
    assert deeppcr.plan(DENSE, SHAPE, iterations=3).newton.iterations == 3


# -- what it takes ---------------------------------------------------------------------------------


def test_what_is_planned_gives_the_values_and_gradients_of_the_sequential_program():
    problem = PROBLEMS["relu mlp"]
    chain = Chain(lambda z, x: problem.step(problem.params, z, x)[0], problem.xs, problem.length)
    options = {"batch_ndim": problem.batch_ndim}
    found = deeppcr.plan(chain, problem.init, method="newton", **options)
    scan = partial(deeppcr.scan, method=found.method, adjoint=found.adjoint, **options)
    assert_agree(backpropagate(problem, scan), oracle(problem))


def test_a_step_is_planned_as_scan_takes_it():
    def counting(carry, x):
        count, z = carry
        return (count + 1, jnp.tanh(z + count.astype(z.dtype) + x)), z

    xs = normal(0, 64, 4)
    found = deeppcr.plan(counting, (jnp.int32(0), xs[0]), xs, method="newton")
    assert found.found["chain"] == "64 steps, a state of 4 entries"
    ours = partial(deeppcr.scan, method=found.method, adjoint=found.adjoint)
    both = jax.jit(lambda: [scan(counting, (0, xs[0]), xs) for scan in (ours, jax.lax.scan)])
    assert_agree(*both())
    alone = found_by(lambda z, _: (jnp.sin(z), None), 0.5, length=12)
    assert alone["chain"].startswith("12 steps")


def test_a_chain_with_an_obstacle_is_planned_as_the_loop_that_it_is():
    def counts_signs(carry, x):
        z, count = carry
        return (jnp.sin(z) + x, jnp.where(z.sum() > 0, count, count + 1)), z

    found = deeppcr.plan(counts_signs, (Z0, jnp.int32(0)), XS, device="H200")
    assert found.method == Sequential()
    assert "adjoint" not in found.found  # for the same reason
    assert found.found["because"].startswith("runs as jax.lax.scan, since init[1] (int32) depends")


def layer(kind, weight):
    return jax.tree_util.Partial(kind, weight)


def narrow(weight, z):
    return jnp.tanh(z * jnp.broadcast_to(weight, z.shape))


def wide(weight, z):
    return z + jnp.tanh(z @ weight)


def test_layers_are_planned_as_their_longest_chain():
    layers = [layer(narrow, normal(i, 3)) for i in range(4)]
    layers += [lambda z: jnp.concatenate([z, z], -1)]
    layers += [layer(wide, normal(i, 6, 6, scale=0.1)) for i in range(7)]
    x = normal(0, 2, 3)
    found = deeppcr.plan(layers, x, device="TPU v5e")
    assert found.found["chain"] == "7 steps, a state of 6 entries, a batch of 2"
    ours = partial(deeppcr.forward, layers, method=found.method, adjoint=found.adjoint)
    loop = partial(reduce, lambda z, each: each(z), layers)
    assert_agree(*jax.jit(lambda x: [ours(x), loop(x)])(x))
    flat = found_by(layers[:4], jnp.zeros((2, 3)), batch_ndim=0)
    assert flat["chain"] == "4 steps, a state of 6 entries"


# -- what it predicts ------------------------------------------------------------------------------


def test_the_device_decides():
    found = plan_like(device="TPU v5e")
    assert isinstance(found.method, Newton)
    assert found.predicted_speedup > 2 < found.gradient_speedup
    assert plan_like().method == Sequential(fused=True)  # 64 chains in one kernel
    here = deeppcr.plan(*like())
    assert here.method == Sequential()
    assert here.predicted_speedup >= 1  # over `jax.lax.scan`
    assert here.device == depth.at_hand()
    assert deeppcr.plan(*like(1, 2), device="h200").device is depth.devices["H200"]
    for device in ("H2000", "", "gpu", 3):
        with pytest.raises(ValueError, match="device") as error:
            deeppcr.plan(*like(), device=device)
        assert repr(device) in str(error.value)


@cache
def slowly():
    chain, z0 = CHAINS["gru"]
    return deeppcr.plan(chain, jax.eval_shape(lambda: z0), device=SLOW_LOOPS, method="pcr")


def mean_square(xs, z, scan=jax.lax.scan, is_gradient=True, **options):
    """Of all states of "gru": its gradient, or these states."""

    def states(z, xs):
        return scan(lambda z, x: 2 * (gated(z, x),), z, xs, **options)[1]

    gradient = jax.grad(lambda *moving: jnp.mean(states(*moving) ** 2), (0, 1))
    return gradient(z, xs) if is_gradient else states(z, xs)


@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_the_costs_are_those_of_the_programs(direction):
    """As `depth.compare` finds them."""
    (chain, z0), found = CHAINS["gru"], getattr(slowly(), direction)
    loop = partial(mean_square, is_gradient=direction == "gradient")
    newton = Newton(linear="pcr", on_failure="return")
    parallel = partial(loop, scan=deeppcr.scan, method=newton, adjoint=deeppcr.Adjoint())
    with compiled_for("tpu"):
        cost = depth.analyze(parallel, chain.inputs, z0)
    ours = next(one for one in found if isinstance(one.method, Newton))
    assert ours.cost.depth == pytest.approx(cost.depth, rel=0.1)
    cost = depth.analyze(loop, chain.inputs, z0)
    assert baseline(found).cost.depth == pytest.approx(cost.depth, rel=0.1)


def test_the_programs_are_those_of_the_arrays_that_they_are_given():
    (chain, z0), others = CHAINS["gru"], normal(5, L, 2)
    instance = instance_of(chain, z0, None, None, False, None)
    autodiff = deeppcr.adjoint.Autodiff()
    pairs = (None, autodiff), (Sequential(), autodiff), (Newton(), deeppcr.Adjoint())
    run = jax.jit(lambda *arrays: [instance.program(Candidate(*pair))(*arrays) for pair in pairs])
    plain, *found = run(z0, others, instance.weights)
    assert_agree(plain[:2], jax.jit(mean_square)(others, z0), 1e-6)  # whose loss is float32
    assert plain[2], "the step closes over weights"
    assert all(jnp.abs(each).max() > 0 for each in plain[2])
    for each in found:
        assert_agree(each, plain, 1e-6)
    backwards = instance_of(lambda *given: (gated(*given), None), z0, others, None, True, None)
    assert_agree(backwards.chain.inputs, others[::-1])


def test_a_plan_for_a_tpu_says_how_long_it_compiles():
    """XLA writes out the matrices of each batched product: `experiments kernels` has times."""

    def planned(width, device="TPU v5e", **options):
        def step(z, x):
            return jnp.tanh(z @ jnp.ones((width, width), "float32") + x)

        found = deeppcr.plan(*like(width, step=step), device=device, **options).found
        return found["compiles"], found.get("note")

    compiles, note = planned(32, method="newton")
    assert re.fullmatch(r".* kernels of a gradient; jax.lax.scan .*", compiles)
    times = re.findall(r"\(some ([\d.]+) s\)", compiles)
    assert float(times[0]) > compiling.LONG
    assert note == SLOW
    assert planned(4, method="newton")[1] is planned(32, method="sequential")[1] is None
    assert "some" not in planned(4, device=None)[0]


def test_what_compiling_takes_grows_with_kernels_and_matrices():
    def kernel(kind, pieces):
        return Kernel(kind, "float32", (), 0, pieces)

    inner = KernelProgram(((kernel("product", 100), 2), (kernel("elementwise", 100), 3)), ())
    most = KernelProgram(
        ((kernel("transposed product", 10**6), 1), (kernel("vector product", 9), 1)), ()
    )
    loop = KernelLoop(1000, inner, most)
    parts = (
        (loop, 1),
        (KernelChoice((inner, most)), 1),
        (OneKernelLoop(5, kernel("own", 1), inner), 2),
    )
    one, two = 203, compiling.MOST_MATRICES + 1
    expected = compiling.SECONDS * (one + two + one + two + 2 * one)
    assert compiling.tpu_seconds(KernelProgram((), parts)) == pytest.approx(expected)


def test_what_is_printed():
    for found in (plan_like(), deeppcr.plan(*CHAINS["gru"], device="TPU v5e")):
        text = str(found)
        assert all(line == line.rstrip() and len(line) <= COLUMNS for line in text.splitlines())
        assert text.count("chosen") == 3  # above the table, and a row of each kind
        for kind in ("forward", "gradient"):
            candidates = getattr(found, kind)
            names = [each.name for each in candidates]
            assert len(set(names)) == len(names)
            assert all(f"  {name}  " in text for name in names)
            assert all(math.isfinite(each.seconds) for each in candidates)


# -- how many iterations ---------------------------------------------------------------------------


def test_more_iterations_never_promise_more():
    found = [plan_like(64, 1024, iterations=n, device="TPU v5e") for n in (np.int64(1), 10**6)]
    assert [plan.newton.iterations for plan in found] == [1, 10**6]
    assert isinstance(found[0].method, Newton)
    assert isinstance(found[1].method, Sequential)
    few, many = (plan.newton.seconds for plan in found)
    assert many > 1e4 * few


def test_a_chain_that_amplifies_differences_gets_no_promise():
    z0, options = jnp.linspace(0.1, 0.8, 8), {"device": "TPU v5e", "batch_ndim": 1}
    chain = Chain(lambda z, _: 3.9 * z * (1 - z), length=1024)
    found = deeppcr.plan(chain, z0, **options)
    assert isinstance(found.method, Sequential)
    assert found.newton.iterations > 500
    assert " of 1024 states converge in " in found.found["iterations"]
    blind = deeppcr.plan(chain, jax.eval_shape(lambda: z0), **options)
    assert isinstance(blind.method, Newton)
    assert "x if the chain forgets its past" in str(blind).splitlines()[0]
    solution = deeppcr.solve(chain, z0, method=blind.method, batch_ndim=1)
    assert solution.result == deeppcr.Result.FINISHED_SEQUENTIALLY
    assert_agree(solution.trajectory, trajectory(chain, z0))


@pytest.mark.parametrize("devices", [1, 3])
def test_a_long_chain_that_forgets_is_tried_on_a_part(devices):
    mesh = jax.make_mesh((devices,), ("l",), devices=jax.devices()[:devices])  # of explicit axes
    xs = jax.device_put(normal(0, 30_000, 4), jax.NamedSharding(mesh, jax.P("l")))
    found = deeppcr.plan(Chain(elementwise, xs), normal(1, 4), device="TPU v5e")
    assert isinstance(found.method, Newton)
    assert f"its first {-(-1024 // devices) * devices} steps" in found.found["iterations"]
    assert ("devices" in found.found) == (devices > 1)
    chain = Chain(elementwise, normal(0, 30_000, 4))
    iterations = solve(chain, normal(1, 4), method="newton").stats.iterations
    assert abs(int(iterations) - found.newton.iterations) <= 2
    assert "if the chain" not in str(found)


def test_a_chain_whose_iteration_is_no_loop():
    same = Chain(lambda z, x: z, XS)
    assert deeppcr.plan(same, Z0, method="newton", device="H100").newton.iterations == 1


def test_a_kernel_of_a_chain_that_amplifies_differences_is_predicted_to_take_its_loop_and_more():
    logistic = Chain(lambda z, x: 3.9 * z * (1 - z), length=4096)
    options = {"method": Newton(fused=True), "device": "H100"}
    forgets, slow, chaotic = (
        deeppcr.plan(logistic, jnp.float32(0.3), iterations=n, **options).newton.seconds
        for n in (4, 40, 4096)
    )
    loop = deeppcr.plan(logistic, jnp.float32(0.3), device="H100").forward[0]
    assert forgets < slow < chaotic
    assert loop.method.fused
    assert chaotic > 2 * loop.seconds


def test_a_solve_in_one_kernel_is_planned_only_if_it_is_asked_for():
    chain, start = Chain(lambda z, x: jnp.tanh(z + x), XS), Z0
    options = {"device": "H100", "iterations": 5}
    for method in ("auto", "newton"):
        found = deeppcr.plan(chain, start, method=method, **options)
        assert "fused Newton" not in str(found)
    asked = deeppcr.plan(chain, start, method=Newton(fused=True), **options)
    assert "fused Newton / blocks" in str(asked)
    assert asked.method == Newton(fused=True)
    assert asked.newton.seconds < found.newton.seconds  # which is that of many kernels


def test_blocks_that_are_not_exact_are_tried_as_such():
    weight = jnp.array([[0.1, 0.9], [-0.9, 0.1]])
    chain, start = Chain(lambda z, x: jnp.tanh(weight @ z + x), normal(0, 1024, 2)), normal(1, 2)
    exact, diagonal = (
        deeppcr.plan(chain, start, method=Newton(linearize=name)).newton.iterations
        for name in ("dense", "diagonal")
    )
    assert diagonal > 3 * exact


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((DENSE, Z0), {"method": "newtown"}, r"method is 'newtown', expected"),
        (
            (Chain(lambda z, x: z, XS), jnp.zeros(8, jnp.int32)),
            {},
            r"z0.*int32.*expected a floating",
        ),
        ((DENSE, Z0), {"batch_ndim": 2}, r"z0 has shape \[8\].*batch_ndim = 2"),
        ((Chain(lambda z, x: z[:4], XS), Z0), {}, r"state.*\[8\].*\[4\].*expected"),
        ((lambda z, x: (jnp.tanh(z + x), None), Z0, XS[:0]), {}, "the chain has 0 steps"),
        (([], Z0), {}, "there is no chain"),
        ((lambda z, x: (z, x), (), XS), {}, "init has no leaves, expected a floating one"),
        ((lambda z, x: (z, x), "zero", XS), {}, "init is the string 'zero', expected an array"),
        ((lambda z, x: (z, x), Z0, [XS, None, "x"]), {}, r"xs\[2\] is the string 'x', expected"),
        ((lambda z, x: (z, x), SCHEDULE, Z0), {}, r"init is Schedule\(.*diffusion.plan\(model"),
        ((dict, Z0, XS), {}, r"program is the class dict .*expected a function: f\(carry, x\)"),
        (([jnp.sin, lambda x: x[:2]], Z0), {}, "there is no chain"),
        ((lambda z, x: (z, None), 0.5), {}, r"there is no xs and no length: .*plan\(layers, x\)"),
        ((DENSE, Z0, jnp.ones(3)), {}, "program is a Chain"),
        ((DENSE, Z0), {"reverse": True}, "reverse was given, but program is a Chain"),
        (([jnp.sin, jnp.sin], 0.5, None, 2), {}, "program is a list of layers"),
        *((like(), {"iterations": n}, "iterations is") for n in (0, -1, 1.5, True, "sample", [3])),
    ],
)
def test_bad_input(arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        deeppcr.plan(*arguments, **options)


# -- tune ------------------------------------------------------------------------------------------


def test_tune_times_what_is_sensible_and_returns_a_pair(capsys):
    chain, z0 = CHAINS["gru"]
    method, adjoint = deeppcr.tune(chain, z0)
    printed = capsys.readouterr().out
    assert printed.split()[:6] == ["forward", "a", "call", "speedup", "to", "compile"]
    for part in printed.split("gradient"):  # the fastest first
        speedups = list(map(float, re.findall(r"([\d.]+)x", part)))
        assert 1 in speedups == sorted(speedups, reverse=True)
    assert {"sequential / autodiff", "Newton / blocks"} <= set(
        re.findall(r"  (\w+ / \w+)", printed)
    )

    def loss(z, **options):
        return deeppcr.solve(chain, z, **options).trajectory.sum()

    ways = {"method": method, "adjoint": adjoint}, {"method": "sequential", "adjoint": "autodiff"}
    assert_agree(*jax.jit(lambda z: [jax.grad(partial(loss, **way))(z) for way in ways])(z0))


def traced(call, z, xs):
    """Calls under transformations, of arrays and of steps that read such."""
    step = lambda z, x: (jnp.tanh(z + x), None)  # noqa: E731
    jax.jit(lambda z: (call(step, z, xs), z)[1])(z)
    jax.jit(lambda w: (call(lambda z, x: (jnp.tanh(w * z), x), z, xs), w)[1])(z)
    jax.jit(lambda w: (call(step, z, xs), w)[1])(z)
    jax.grad(lambda z: (call(step, z, xs), z.sum())[1])(z)
    jax.grad(lambda w: (call(lambda z, x: (jnp.tanh(w * z), x), z, xs), w.sum())[1])(z)
    jax.vmap(lambda z: (call(step, z, xs), z)[1])(z[None])


def test_a_plan_can_be_made_where_jax_traces_and_a_measurement_says_that_it_cannot():
    found = []

    def plan(*arguments):
        found.append(deeppcr.plan(*arguments, method="newton").found["iterations"])

    traced(plan, Z0, XS[:9])
    assert len(found) == 6
    assert all("usual" in each for each in found)

    def tune(*arguments):
        with pytest.raises(ValueError, match=r"tune runs the chain, but jax traces it.*expected"):
            deeppcr.tune(*arguments)

    traced(tune, Z0, XS[:9])
    with pytest.raises(ValueError, match=r"there are shapes.*expected arrays.*deeppcr.plan takes"):
        deeppcr.tune(DENSE, SHAPE)


def test_a_step_without_a_derivative_has_no_gradient_to_choose():
    def rounds(z, x):
        return jax.pure_callback(np.round, z, z, vmap_method="sequential") + x, None

    assert deeppcr.tune(rounds, Z0, XS[:3]) == (Sequential(), deeppcr.adjoint.Autodiff())
    assert "gradient" not in deeppcr.plan(rounds, Z0, XS, device="H100").found["chosen"]


def test_no_choice_is_predicted_surely_slower_than_another_loop(monkeypatch):
    def chosen(**times):
        def predicted(instance, one, device, number):
            return dataclasses.replace(
                one, seconds=times.get(ADJOINT_NAMES.get(type(one.adjoint)), 1.0)
            )

        monkeypatch.setattr(module, "_predicted", predicted)
        return deeppcr.plan(Chain(DENSE.step, jnp.zeros((1000, 16, 8), jnp.float32)), z0)

    z0 = jnp.zeros((16, 8), jnp.float32)
    module = sys.modules["deeppcr.planning.plan"]
    taken = chosen(autodiff=0.9, blocks=0.8)
    assert taken.gradient[0].name == "sequential / backprop"
    assert "predicted" not in taken.found["adjoint"]
    sure = chosen(autodiff=0.9, blocks=0.1)
    assert sure.gradient[0].name == "sequential / blocks"
    assert sure.adjoint == deeppcr.Adjoint()
    assert sure.found["adjoint"] == (
        'predicted 10x as fast as "auto", which takes sequential / backprop'
    )
    assert str(sure).splitlines()[0].endswith("gradient 9x by blocks")
