"""Why a chain cannot be solved in parallel: a table of what is looked for in its step."""

from typing import Any, NamedTuple

from jax import export

from deeppcr.arrays.avals import avals_of, varying_axes
from deeppcr.arrays.state import Leaves
from deeppcr.chain.carry import Carry
from deeppcr.chain.step import Step
from deeppcr.programs.dependence import results_of
from deeppcr.programs.effects import (
    couples_devices,
    drawn_alone,
    named_shardings,
    without_steps,
    without_vmap,
)


class Obstacle(NamedTuple):
    """Why a chain has to run as `jax.lax.scan`, and what a parallel method expects."""

    reason: str
    expected: str
    error: type[Exception] = ValueError


def find_obstacle(step: Step, carry: Carry, arrays: Leaves) -> Obstacle | None:
    """The first in the table that is found."""
    for find, reason, *expected in OBSTACLES:
        if words := find(step, carry, arrays):
            return Obstacle(reason.format(words), *expected)
    return None


def _symbolic(step: Step, carry: Carry, arrays: Leaves) -> bool:
    of_step = avals_of(results_of(step.jaxpr.eqns))
    shapes = [getattr(array, "shape", ()) for array in (*arrays, *of_step)]
    return any(map(export.is_symbolic_dim, set[Any]().union(*shapes)))


def _uneven(step: Step, carry: Carry, arrays: Leaves) -> str:
    varied = [varying_axes(z) for z in carry.state]
    if len(set(varied)) <= 1:
        return ""
    pairs = zip(carry.state_names, varied, strict=True)
    return ", ".join(f"{name} over {sorted(axes) or 'none'}" for name, axes in pairs)


# A function that finds it in a step, the reason with what is found, what is expected instead.
OBSTACLES: tuple[tuple[Any, ...], ...] = (
    (
        lambda step, *_: ", ".join(step.effects),
        "the step has side effects ({}), and steps side by side have no order",
        "a step without any",
    ),
    (
        _symbolic,
        "it has symbolic dimensions (jax.export.symbolic_shape)",
        "numbers, which Jacobian blocks need",
    ),
    (
        _uneven,
        "the leaves of its state vary over different axes of jax.shard_map ({})",
        "leaves that vary over the same, by jax.lax.pcast",
    ),
    (
        lambda step, carry, _: couples_devices(step.evaluated, varying_axes(carry.state)),
        "it communicates over axes of jax.shard_map over which its state varies ({}), so that the "
        "chains of all devices are one",
        "a state that is the same on all devices, with check_vma=True",
    ),
    (
        lambda step, *_: without_vmap(step.evaluated),
        "jax.vmap refuses it, since it contains a {} with vmap_method=None",
        'another one, as vmap_method="sequential"',
    ),
    (
        lambda step, *_: named_shardings(step.evaluated),
        "it names shardings over a mesh ({}), and all steps at once have another axis",
        "none, or jax.lax.with_sharding_constraint over axes of the type Auto",
    ),
    (
        lambda step, *_: without_steps(step.evaluated),
        "jax.vmap of all steps does not map what it communicates ({})",
        "psum, pmean, all_gather or ppermute",
    ),
    (
        lambda step, *_: drawn_alone(step.evaluated),
        "it draws random bits with keys of dtype {}, and all steps at once draw others",
        'keys of jax.random.key(seed, impl="threefry2x32"), or numbers drawn before',
    ),
    (
        lambda _, carry, __: ", ".join(carry.coupled),
        "{} depends on the floating part of the carry, and has no derivative with respect to it",
        "integers, flags and keys that depend on inputs and on each other alone",
        TypeError,
    ),
)
