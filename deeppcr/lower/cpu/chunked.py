"""A loop in chunks, so that what is computed for many steps at once stays in the cache."""

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.in_order import Loop, Operands


def run_in_chunks(loop: Loop, operands: Operands) -> tuple[Leaves, Leaves]:
    """The last carry, and the ``y`` of all steps.

    A chunk is compiled once: the last one begins early enough to be as long as the others, and
    computes a few steps again.
    """
    constants, start, xs = operands
    length, states, run = loop.length, loop.states, loop.run or Loop.scan
    size = loop.size or length
    if size >= length:
        return run(loop, operands._replace(xs=loop.before(xs)))
    count = -(-length // size)
    repeated = count * size - length
    last_one, place = (0, repeated) if loop.reverse else (count - 1, size - 1 - repeated)
    program = loop.program
    if repeated:  # the states after each step are among its results
        program = program._replace(outvars=[*program.outvars, *program.outvars[:states]])
    results, one = len(loop.outputs), loop._replace(program=program, length=size)

    def chunk(carry: tuple[Leaves, Leaves], index: Array) -> tuple[tuple[Leaves, Leaves], Leaves]:
        enter, early = carry
        begin = index * size
        if repeated:
            is_last = index == last_one
            enter = [jnp.where(is_last, a, b) for a, b in zip(early, enter, strict=True)]
            begin = jnp.clip(begin - repeated * loop.reverse, 0, length - size)
        here = [lax.dynamic_slice_in_dim(x, begin, size) for x in xs]
        leave, ys = run(one, Operands(constants, enter, loop.before(here)))
        # The state from which the last chunk begins, if it begins early.
        early = [z[place] for z in ys[results:]] if repeated else leave
        return (leave, early), ys[:results]

    indices = jnp.arange(count, dtype=jnp.int32)
    (last, _), ys = lax.scan(chunk, (start, start), indices, reverse=loop.reverse)

    def whole(y: Array) -> Array:
        y = y.reshape((count * size, *y.shape[2:]))
        if not repeated:
            return y
        end = size - repeated if loop.reverse else (count - 1) * size
        return jnp.concatenate([y[:end], y[end + repeated :]])

    return last, list(map(whole, ys))
