"""Random programs: a loop is its unrolled program, in depth, critical path, work and traffic."""

import operator
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from depth.analysis import analyze_jaxpr
from tests.depth.programs import (
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
    """The costs, on which the oracle agrees; the critical path is one of the longest."""
    costs = [analyze_jaxpr(jaxpr, trip_counts=trips) for jaxpr in jaxprs]
    late = [evaluate(jaxpr, trips=trips or 0) for jaxpr in jaxprs]
    expected = tuple(value.depth for value in late[0])
    for cost, values in zip(costs, late, strict=True):
        assert tuple(value.depth for value in values) == expected
        assert cost.by_output == expected
        assert cost.exact
        assert cost.depth == max(expected, default=0)
        assert cost.depth == sum(row.depth for row in cost.critical_path)
        assert sum(row.work for row in cost.critical_path) <= cost.work
        count, share = Counter(), Counter()
        for row in cost.critical_path:
            count[row.primitive] += row.count
            share[row.primitive] += row.depth
        paths = join(values).paths if values else {()}
        path = tuple((name, count[name], share[name]) for name in sorted(count))
        assert paths is None or path in paths
    return costs


SCANS = {"short": (0, {}), "long": (1000, {"longest": 40}), "nested": (2000, {"nesting": 2})}


# -- scans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("kind", SCANS)
def test_a_scan_is_its_unrolled_program(kind, seed):
    first, options = SCANS[kind]
    program = random_program(first + seed, **options)
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


# -- while loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_while_loop_is_one_branch_after_another(seed):
    jaxprs, trips = random_while(seed)
    check(*jaxprs, trips=trips)


OPPOSITE = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


@pytest.mark.parametrize("name", OPPOSITE)
@pytest.mark.parametrize("mirrored", [False, True])
def test_counters_prove_how_often_a_loop_turns(name, mirrored):
    """The counter, and a value that is one operation deeper each trip: both wait for every test."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        start, bound, step = (int(n) for n in rng.integers((-9, -9, 1), (10, 10, 4)))
        step = -step if name in ("gt", "ge") else step
        bound = start + step * abs(bound) if name == "ne" else bound
        trips, counter = 0, start
        while getattr(operator, name)(counter, bound):
            trips, counter = trips + 1, counter + step

        def more(state, bound=bound):
            bound = np.int32(bound)
            if mirrored:
                return getattr(lax, OPPOSITE[name])(bound, state[0])
            return getattr(lax, name)(state[0], bound)

        def trip(state, step=step):
            return state[0] + np.int32(step), lax.sin(state[1])

        late = int(rng.integers(0, 8))
        count, value = 0, late
        for _ in range(trips):  # test, add; the sine after the test
            count, value = count + 2, max(count + 1, value) + 1
        jaxpr = jax.make_jaxpr(
            lambda x, s=start, k=late: lax.while_loop(more, trip, (np.int32(s), deeper(x, k)))
        )(SCALAR)
        cost = analyze_jaxpr(jaxpr)
        assert cost.by_output == (count + 1, max(count + 1, value))
        assert sum(row.depth for row in cost.critical_path) == cost.depth


def check_bound(jaxpr, seed):
    """Without numbers of trips it is a lower bound.

    For all numbers, and if they differ each time that a loop is met.
    """
    bound, rng = analyze_jaxpr(jaxpr), np.random.default_rng(seed)
    assert sum(row.depth for row in bound.critical_path) == bound.depth == max(bound.by_output)

    def is_below(depths):
        return all(least <= depth for least, depth in zip(bound.by_output, depths, strict=True))

    for trips in (0, 1, 2, 3, 7):
        full = analyze_jaxpr(jaxpr, trip_counts=trips)
        assert full.exact
        assert full.by_output == tuple(value.depth for value in evaluate(jaxpr, trips=trips))
        assert is_below(full.by_output), trips
        assert (bound.work, bound.bytes) <= (full.work, full.bytes)
    for _ in range(3):
        values = evaluate(jaxpr, trips=lambda: int(rng.integers(4)))
        assert is_below(value.depth for value in values)
    return bound


@pytest.mark.parametrize("seed", range(6))
def test_without_a_number_of_turns_it_is_a_lower_bound(seed):
    (jaxpr, _), _ = random_while(seed)
    assert not check_bound(jaxpr, seed).exact


@pytest.mark.parametrize("seed", range(10))
def test_loops_in_loops_in_branches_without_numbers_of_turns_are_a_lower_bound(seed):
    program = random_program(7000 + seed, nesting=2, untold=True)
    check_bound(program.traced(), seed)


def on_arguments_at_once(seed, **options):
    program = random_program(seed, kept=True, **options)
    return replace(program, depths=[0] * len(program.depths))


# -- work and traffic ------------------------------------------------------------------------------


@pytest.mark.parametrize("nesting", [0, 2])
def test_slices_and_stacks_are_no_work(nesting):
    for seed in range(15):
        program = on_arguments_at_once(6000 + seed, nesting=nesting)
        loop = program.loop
        rolled, plain = (analyze_jaxpr(program.traced(unroll)) for unroll in (False, True))
        inputs = [
            jax.ShapeDtypeStruct(s.shape[i >= loop.consts + loop.carry :], s.dtype)
            for i, s in enumerate(program.args)
        ]
        body = analyze_jaxpr(jax.make_jaxpr(lambda *v, body=loop.body: body(*v))(*inputs))
        assert (rolled.work, rolled.bytes) == (loop.length * body.work, loop.length * body.bytes)
        assert nesting or plain.work == rolled.work


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
    works = [analyze_jaxpr(loop, trip_counts=trips).work for trips in (0, 1, 5)]
    assert works == [4, 4 + 7, 4 + 5 * 7]
