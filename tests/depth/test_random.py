"""Random programs.

A loop is its unrolled program, for every output and along the critical path, work and traffic too.
"""

import operator
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import depth
from depth.analysis import analyze_jaxpr
from tests.depth.programs import (
    LITERALS,
    SHAPES,
    deeper,
    evaluate,
    index,
    join,
    kinds,
    moved,
    random_body,
    random_program,
)


def check(*jaxprs, trips=None):
    """The package and the oracle agree on all, the critical path is one of the longest.

    The costs.
    """
    costs = [analyze_jaxpr(jaxpr, trip_counts=trips) for jaxpr in jaxprs]
    late = [evaluate(jaxpr, trips=trips or 0) for jaxpr in jaxprs]
    expected = tuple(value.depth for value in late[0])
    for cost, values in zip(costs, late, strict=True):
        assert tuple(value.depth for value in values) == expected
        assert cost.by_output == expected
        assert cost.exact
        assert (
            cost.depth == max(expected, default=0) == sum(row.depth for row in cost.critical_path)
        )
        assert cost.critical_work <= cost.work
        count, share = Counter(), Counter()
        for row in cost.critical_path:
            count[row.primitive] += row.count
            share[row.primitive] += row.depth
        paths = join(values).paths if values else {()}
        assert (
            paths is None
            or tuple((name, count[name], share[name]) for name in sorted(count)) in paths
        )
    return costs


# -- scans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_scan_is_its_unrolled_program(seed):
    program = random_program(seed)
    check(program.traced(), program.traced(unroll=True))


@pytest.mark.parametrize("seed", range(6))
def test_a_long_scan_is_its_unrolled_program(seed):
    program = random_program(1000 + seed, longest=40)
    check(program.traced(), program.traced(unroll=True))


@pytest.mark.parametrize("seed", range(6))
def test_scans_branches_calls_and_loops_in_a_scan(seed):
    program = random_program(2000 + seed, nesting=2)
    check(program.traced(), program.traced(unroll=True))


def in_a_branch(function):
    def run(*values):
        shapes = jax.eval_shape(function, *values)
        other = [
            lambda *v: [jnp.zeros(s.shape) for s in shapes],
            lambda *v: list(map(moved, function(*v))),
        ]
        return lax.switch(index(lax.sin(jnp.sum(values[0]))), other, *values)

    return run


def in_a_scan(function):
    """Three times, one after another: what is like an argument takes its place."""

    def run(*values):
        def step(values, _):
            results = function(*values)
            left, after = list(results), []
            for value in values:
                same = next((i for i, r in enumerate(left) if r.shape == value.shape), None)
                after.append(value if same is None else left.pop(same))
            return tuple(after), list(map(moved, results))

        return jax.tree.leaves(lax.scan(step, values, length=3))

    return run


SCALAR = jax.ShapeDtypeStruct((), np.float64)
AROUND = {
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "cond": in_a_branch,
    "scan": in_a_scan,
    "twice": lambda f: jax.jit(jax.jit(f)),
}


@pytest.mark.parametrize("around", AROUND)
def test_a_scan_inside_other_code_is_its_unrolled_program(around):
    for seed in range(10):
        program = random_program(3000 + seed)
        if program.args:
            check(*(program.traced(unroll, AROUND[around]) for unroll in (False, True)))


def gradient(function):
    def run(*values):
        return jax.grad(
            lambda *v: sum((lax.sin(r).sum() for r in function(*v)), start=0.0),
            tuple(range(len(values))),
        )(*values)

    return run


def batched(function):
    def run(*values):
        return jax.vmap(function)(*[jnp.stack([value, lax.sin(value)]) for value in values])

    return run


@pytest.mark.parametrize("around", [gradient, batched])
def test_transformed_scans_agree_with_the_oracle(around):
    for seed in range(20):
        program = random_program(4000 + seed)
        if program.args:
            check(program.traced(around=around))


def test_the_public_function_says_the_same():
    for seed in range(5):
        program = random_program(5000 + seed)
        assert depth.by_output(program.function(), *program.args) == [
            value.depth for value in evaluate(program.traced())
        ]


# -- while loops ----------------------------------------------------------------------------------


def random_while(seed):
    """A loop whose number of trips nothing says: its function, unrolled or not, and arguments."""
    rng = np.random.default_rng(seed)
    consts, carry, trips = kinds(rng, 0, 2, "sv"), kinds(rng, 1, 4), int(rng.integers(0, 7))
    body = random_body(rng, consts + carry, carry, int(rng.integers(1, 8)), nesting=1)
    test = random_body(rng, consts + carry, "s", int(rng.integers(1, 5)))
    depths, bound = rng.integers(0, 12, len(consts + carry)), jnp.int32(3)

    def run(unroll, *values):
        values = list(map(deeper, values, depths))
        consts_, state = values[: len(consts)], tuple(values[len(consts) :])

        def tested(state):
            return index(test(*consts_, *state)[0])

        def trip(state):
            return tuple(map(moved, body(*consts_, *state, unroll=unroll)))

        if not unroll:
            return lax.while_loop(lambda state: lax.lt(tested(state), bound), trip, state)
        for _ in range(trips):
            state = lax.switch(
                tested(state), [trip, trip], state
            )  # which clamps its index where the loop compares
        return lax.switch(tested(state), [lambda state: tuple(map(moved, state))] * 2, state)

    shapes = [jax.ShapeDtypeStruct(SHAPES[kind], np.float64) for kind in consts + carry]
    return [
        jax.make_jaxpr(lambda *v, unroll=unroll: run(unroll, *v))(*shapes)
        for unroll in (False, True)
    ], trips


@pytest.mark.parametrize("seed", range(6))
def test_a_while_loop_is_one_branch_after_another(seed):
    jaxprs, trips = random_while(seed)
    check(*jaxprs, trips=trips)


COUNTERS = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "ne": operator.ne,
}


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("mirrored", [False, True])
def test_counters_prove_how_often_a_loop_turns(name, mirrored):
    """The counter, and a value that is one operation deeper each trip: both wait for every test."""
    opposite = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}[name]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        start, bound, step = (int(n) for n in rng.integers((-9, -9, 1), (10, 10, 4)))
        step = -step if name in ("gt", "ge") else step
        bound = start + step * abs(bound) if name == "ne" else bound
        trips, counter = 0, start
        while COUNTERS[name](counter, bound):
            trips, counter = trips + 1, counter + step

        def more(state, bound=bound):
            bound = np.int32(bound)
            return (
                getattr(lax, opposite)(bound, state[0])
                if mirrored
                else getattr(lax, name)(state[0], bound)
            )

        def trip(state, step=step):
            return state[0] + np.int32(step), lax.sin(state[1])

        late = int(rng.integers(0, 8))
        count, value = 0, late
        for _ in range(trips):
            count, value = (
                count + 2,
                max(count + 1, value) + 1,
            )  # test, add; the sine after the test
        agree(
            lambda x, s=start: lax.while_loop(more, trip, (np.int32(s), x)),
            [late],
            [SCALAR],
            [count + 1, max(count + 1, value)],
        )


def check_bound(jaxpr, seed):
    """Without numbers of trips it is a lower bound.

    For all numbers, and if they differ each time that a loop is met.
    """
    bound, rng = analyze_jaxpr(jaxpr), np.random.default_rng(seed)
    assert (
        sum(row.depth for row in bound.critical_path)
        == bound.depth
        == max(bound.by_output, default=0)
    )
    for trips in (0, 1, 2, 3, 7):
        full = analyze_jaxpr(jaxpr, trip_counts=trips)
        assert full.exact
        assert full.by_output == tuple(value.depth for value in evaluate(jaxpr, trips=trips))
        assert all(
            least <= depth for least, depth in zip(bound.by_output, full.by_output, strict=True)
        ), trips
        assert (bound.work, bound.bytes) <= (full.work, full.bytes)
    for _ in range(3):
        values = evaluate(jaxpr, trips=lambda: int(rng.integers(4)))
        assert all(
            least <= value.depth for least, value in zip(bound.by_output, values, strict=True)
        )
    return bound


@pytest.mark.parametrize("seed", range(6))
def test_without_a_number_of_turns_it_is_a_lower_bound(seed):
    (jaxpr, _), _ = random_while(seed)
    assert not check_bound(jaxpr, seed).exact


@pytest.mark.parametrize("seed", range(10))
def test_loops_in_loops_in_branches_without_numbers_of_turns_are_a_lower_bound(seed):
    program = random_program(7000 + seed, nesting=2, untold=True)
    check_bound(program.traced(), seed)


# -- loops and branches made from their matrices --------------------------------------------------

NEVER = -np.inf


def random_matrix(rng, rows, columns, deepest=5):
    """Paths to each of ``rows`` results from START and from each of ``columns`` inputs.

    Every result has one.
    """
    matrix = np.where(
        rng.random((rows, 1 + columns)) < 0.5, rng.integers(0, deepest, (rows, 1 + columns)), NEVER
    )
    matrix[(matrix == NEVER).all(axis=1), 0] = 0
    return matrix


def results(matrix, inputs):
    """Code of which ``matrix`` says all paths."""
    outputs = []
    for row in matrix:
        terms = zip(row, [LITERALS["v"], *inputs], strict=True)
        found = [deeper(value, int(weight)) for weight, value in terms if weight > NEVER]
        outputs.append(lax.rev(lax.slice(lax.concatenate(found, 0), (0,), (3,)), (0,)))
    return outputs


def times(matrix, vector):
    return (matrix + np.asarray(vector, float)).max(axis=1, initial=NEVER)


def power(matrix, exponent):
    """By repeated squaring, all at once; exact below 2^53."""
    value = np.where(np.eye(len(matrix)), 0, NEVER)
    for bit in f"{exponent:b}":
        value = (value[:, :, None] + value).max(axis=1)
        if bit == "1":
            value = (value[:, :, None] + matrix).max(axis=1)
    return value


def arguments(rng, count, *shape):
    depths = [int(k) for k in rng.integers(0, 15, count)]
    return depths, [jax.ShapeDtypeStruct((*shape, 3), np.float64)] * count


def agree(function, depths, shapes, expected, trips=None):
    jaxpr = jax.make_jaxpr(lambda *v: function(*map(deeper, v, depths)))(*shapes)
    cost = analyze_jaxpr(jaxpr, trip_counts=trips)
    assert list(cost.by_output) == [int(value) for value in expected]
    assert sum(row.depth for row in cost.critical_path) == cost.depth


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 40, 129, 10**6 + 1, 10**9])
def test_scans_of_known_matrices(length):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        consts, carry, xs, ys = (int(n) for n in rng.integers(0, (3, 6, 3, 4)))
        matrix = random_matrix(rng, carry + ys, consts + carry + xs)
        before, given = arguments(rng, consts + carry)
        of_xs, slices = arguments(rng, xs, length)

        def run(*values, matrix=matrix, consts=consts, carry=carry, xs=xs):
            def step(state, x):
                out = results(matrix, [*values[:consts], *state, *x])
                return tuple(out[:carry]), tuple(out[carry:])

            last = consts + carry
            return jax.tree.leaves(
                lax.scan(step, tuple(values[consts:last]), tuple(values[last : last + xs]), length)
            )

        # On (START, consts, carry, xs, the latest ys): all but carry and ys stay.
        first, size = 1 + consts, 1 + consts + carry + xs + ys
        trip = np.where(np.eye(size), 0, NEVER)
        trip[first : first + carry] = NEVER
        changed = [*range(first, first + carry), *range(size - ys, size)]
        trip[changed, : size - ys] = matrix
        ready = times(power(trip, length), [0, *before, *of_xs, *[NEVER if length else 0] * ys])
        agree(run, before + of_xs, given + slices, ready[changed])


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7, 40, 129, 10**6 + 1, 10**9])
def test_while_loops_of_known_matrices(trips):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        of_test, of_body, state = (int(n) for n in rng.integers((0, 0, 1), (3, 3, 6)))
        test, body = (
            random_matrix(rng, 1, of_test + state),
            random_matrix(rng, state, of_body + state),
        )
        depths, shapes = arguments(rng, of_test + of_body + state)

        def run(*values, test=test, body=body, of_test=of_test, first=of_test + of_body):
            def more(now):
                return lax.lt(results(test, [*values[:of_test], *now])[0][0], 0.5)

            return lax.while_loop(
                more,
                lambda now: tuple(results(body, [*values[of_test:first], *now])),
                tuple(values[first:]),
            )

        # On (START, the test's constants, the body's, the state): START is the last test, once
        # there was one.
        size, first = 1 + len(depths), 1 + of_test + of_body
        known = np.full(size, NEVER)
        known[[0, *range(1, 1 + of_test), *range(first, size)]] = test[0] + 1
        paths = np.full((state, size), NEVER)
        paths[:, [0, *range(1 + of_test, size)]] = body
        trip = np.where(np.eye(size), 0, NEVER)
        trip[first:] = np.maximum(paths, paths.max(axis=1, keepdims=True) + known)
        ready = times(power(trip, trips), [0, *depths])
        agree(run, depths, shapes, np.maximum(ready[first:], (known + ready).max()), trips)


@pytest.mark.parametrize("branches", [2, 3])
def test_branches_of_known_matrices(branches):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        inputs, outputs = (int(n) for n in rng.integers(0, (5, 5)))
        depths, shapes = arguments(rng, inputs)
        matrices, late = (
            [random_matrix(rng, outputs, inputs) for _ in range(branches)],
            int(rng.integers(0, 15)),
        )

        def run(*values, matrices=matrices, late=late):
            first = lax.index_in_dim(deeper(values[0], late), 0, keepdims=False)
            return lax.switch(
                index(first), [lambda *v, m=m: results(m, v) for m in matrices], *values[1:]
            )

        started = late + 2  # the cast, and the clamp of `lax.switch`
        expected = np.max([times(m, np.maximum([0, *depths], started)) for m in matrices], axis=0)
        agree(run, [0, *depths], [jax.ShapeDtypeStruct((3,), np.float64), *shapes], expected)


# -- work and traffic -----------------------------------------------------------------------------


def on_arguments_at_once(seed, **options):
    program = random_program(seed, kept=True, **options)
    return replace(program, depths=[0] * len(program.depths))


@pytest.mark.parametrize("nesting", [0, 2])
def test_slices_and_stacks_are_no_work(nesting):
    for seed in range(15):
        program = on_arguments_at_once(6000 + seed, nesting=nesting)
        loop, around = (
            program.loop,
            [analyze_jaxpr(program.traced(unroll)) for unroll in (False, True)],
        )
        inputs = [
            jax.ShapeDtypeStruct(s.shape[i >= loop.consts + loop.carry :], s.dtype)
            for i, s in enumerate(program.args)
        ]
        body = analyze_jaxpr(jax.make_jaxpr(lambda *v, body=loop.body: body(*v))(*inputs))
        assert (around[0].work, around[0].bytes) == (
            loop.length * body.work,
            loop.length * body.bytes,
        )
        assert nesting or around[1].work == around[0].work


def test_every_turn_and_the_test_that_ends_the_loop_are_work():
    for seed in range(10):
        (jaxpr, _), _ = random_while(seed)
        none, one, many = (analyze_jaxpr(jaxpr, trip_counts=trips) for trips in (0, 1, 6))
        assert many.work - none.work == 6 * (one.work - none.work)
        assert many.bytes - none.bytes == 6 * (one.bytes - none.bytes)
    # Two operations of the test, one of the trip, on 3 elements and 1.
    loop = jax.make_jaxpr(
        lambda x: lax.while_loop(lambda x: lax.lt(lax.sin(x)[0], 0.5), lax.cos, x)
    )(np.ones(3))
    assert [analyze_jaxpr(loop, trip_counts=trips).work for trips in (0, 1, 5)] == [
        4,
        4 + 7,
        4 + 5 * 7,
    ]


def test_loops_in_loops_pass_64_bits():
    def grown(x, levels):
        return lax.scan(
            lambda c, _: (grown(c, levels - 1) if levels else lax.sin(c), None), x, length=10**9
        )[0]

    cost = analyze_jaxpr(jax.make_jaxpr(lambda x: grown(x, 3))(SCALAR))
    assert cost.depth == cost.work == cost.critical_work == 10**36
    assert [(row.primitive, row.count, row.depth) for row in cost.critical_path] == [
        ("sin", 10**36, 10**36)
    ]


def test_while_loops_in_while_loops_pass_64_bits():
    def grown(x, levels):
        return lax.while_loop(
            lambda c: lax.lt(c, 0.5), lambda c: grown(c, levels - 1) if levels else lax.sin(c), x
        )

    expected, trips = 1, 10**9
    for _ in range(4):  # each trip is the test and what is inside; then the last test
        expected = trips * (1 + expected) + 1
    cost = analyze_jaxpr(jax.make_jaxpr(lambda x: grown(x, 3))(SCALAR), trip_counts=trips)
    assert cost.depth == cost.work == cost.critical_work == expected > 10**36
