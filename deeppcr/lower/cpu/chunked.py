"""A loop in chunks, so that what is computed for many steps at once stays in the cache.

What a loop reads is computed before it, for many steps at once (`Loop.before`). For all steps of a
long chain that is more than the cache of a CPU holds, and the loop would wait for memory. So it is
computed for a chunk of steps, which run before the next chunk. A loop without chunks runs at once.
"""

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.in_order import Loop, Operands


def run_in_chunks(loop: Loop, operands: Operands) -> tuple[Leaves, Leaves]:
    """The last carry, and the ``y`` of all steps.

    A chunk is compiled once: the last one begins early enough to be as long as the others, and
    computes a few steps again.
    """
    run = loop.run or Loop.scan
    length, size = loop.length, loop.size or loop.length
    if size >= length:
        return run(loop, operands._replace(xs=loop.before(operands.xs)))
    count = -(-length // size)
    again = count * size - length  # steps of the last chunk
    last_chunk = 0 if loop.reverse else count - 1
    program = loop.program
    if again:  # the states after each step are among its results
        program = program._replace(outvars=[*program.outvars, *program.outvars[: loop.states]])
    of_chunk = loop._replace(program=program, length=size)

    def chunk(carry: tuple[Leaves, Leaves], index: Array) -> tuple[tuple[Leaves, Leaves], Leaves]:
        """``carry``: the state after the chunk before, and that from which the last one begins."""
        start, start_of_last = carry
        begin = index * size
        if again:
            is_last = index == last_chunk
            pairs = zip(start_of_last, start, strict=True)
            start = [jnp.where(is_last, early, usual) for early, usual in pairs]
            begin = jnp.clip(begin - again * loop.reverse, 0, length - size)
        xs = [lax.dynamic_slice_in_dim(x, begin, size) for x in operands.xs]
        end, ys = run(of_chunk, Operands(operands.constants, start, loop.before(xs)))
        ys, states = ys[: len(loop.outputs)], ys[len(loop.outputs) :]
        start_of_last = [z[again if loop.reverse else size - 1 - again] for z in states] or end
        return (end, start_of_last), ys

    carry, indices = operands.carry, jnp.arange(count, dtype=jnp.int32)
    (last, _), ys = lax.scan(chunk, (carry, carry), indices, reverse=loop.reverse)

    def without_again(y: Array) -> Array:
        y = y.reshape((count * size, *y.shape[2:]))
        first = size - again if loop.reverse else (count - 1) * size
        return jnp.concatenate([y[:first], y[first + again :]]) if again else y

    return last, list(map(without_again, ys))
