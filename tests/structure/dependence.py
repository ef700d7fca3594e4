"""What steps truly depend on, measured; and what is proven about them."""

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.arrays import StateLayout
from deeppcr.chain.trace import trace
from deeppcr.structure import find_structure

SCALES = 0.3, 3.0, 100.0
POINTS = 3
# Hundreds of programs run once: what takes is to compile them.
CHEAP = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def traced(step, state, batch_ndim=0):
    """The traced ``step(state) -> state`` and its layout."""
    return trace(lambda z, x: (step(z), None), state, ())[0], StateLayout.of(
        jax.tree.leaves(state), batch_ndim
    )


def structure_of(step, state, batch_ndim=0):
    """What is proven about ``step(state) -> state``."""
    return find_structure(*traced(step, state, batch_ndim))


def evaluate(functions, xs):
    """What each function is of every x, compiled in a hurry as one loop; in numpy."""

    def at_every(xs):
        return jax.lax.map(lambda x: [function(x) for function in functions], xs)

    return jax.tree.map(np.asarray, jax.jit(at_every).lower(xs).compile(compiler_options=CHEAP)(xs))


def moved(steps, width):
    """For each ``step(z: [w])``, [to, from]: which entries change where one is moved."""
    rng = np.random.default_rng(width)
    points = rng.normal(size=(POINTS, width))
    others = np.broadcast_to(points[:, None, None], (POINTS, len(SCALES), width, width)).copy()
    entry = np.arange(width)
    others[..., entry, entry] += rng.normal(size=others.shape[:-1]) * np.array(SCALES)[:, None]
    z = jnp.asarray(np.concatenate([points, others.reshape(-1, width)]))
    found = []
    for values in evaluate(steps, z):
        before, after = values[:POINTS, None, None], values[POINTS:].reshape(others.shape)
        with np.errstate(invalid="ignore"):
            same = (np.abs(after - before) <= 1e-9 * (1 + np.abs(before))) | (after == before)
        same |= np.isnan(after) & np.isnan(before)
        found.append(~same.all((0, 1)).T)
    return found


def differentiated(steps, width, jacobian=jax.jacfwd):
    """For each step which entries of its Jacobian are not zero: bool ``[w, w]``."""
    z = jnp.asarray(np.random.default_rng(width).normal(size=(POINTS, width)))
    return [(np.abs(j) > 1e-9).any(0) for j in evaluate([jacobian(step) for step in steps], z)]


def assert_sound(step, shape, depends, batch_ndim=0):
    """No entries of a state of this ``shape`` that ``depends`` on each other are proven not to.

    Returns:
        for each entry of one example the lowest entry of its group, and whether examples are
        separate.
    """
    reshaped = traced(lambda z: step(z.reshape(-1)).reshape(shape), jnp.zeros(shape), batch_ndim)
    found = find_structure(*reshaped)
    lowest, separate = found.lowest, found.separate
    example, entry = np.divmod(np.arange(len(depends)), len(lowest))
    assert not depends[lowest[entry][:, None] != lowest[entry]].any()
    assert not separate or not depends[example[:, None] != example].any()
    return lowest, separate
