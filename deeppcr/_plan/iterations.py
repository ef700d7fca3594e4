"""The program of Newton's method for a plan: the code that runs, traced with shapes."""

import dataclasses
from typing import Any

import jax

from deeppcr.chain import TracedChain
from deeppcr.newton import Newton
from deeppcr.newton.iterate import Iterate
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.state import Leaves


def program_of(method: Newton, chain: TracedChain) -> tuple[Any, int]:
    """The jaxpr of a solve, without a fallback and reports to the user; its expected iterations.

    ``chain``: of shapes.
    """
    guess = method.initial_guess if isinstance(method.initial_guess, str) else "constant"
    plain = dataclasses.replace(
        method, initial_guess=guess, atol=0.0, record=False, progress=None, on_failure="return"
    )
    expected = 0

    def solve(z: Leaves, x: Leaves, c: Leaves) -> Any:
        nonlocal expected
        here = dataclasses.replace(chain, initial=z, inputs=x, captured=c)
        bound = plain.bind(here, here)
        expected = min(bound.expected, bound.budget)
        fields = {field.name: getattr(bound, field.name) for field in dataclasses.fields(bound)}
        run = _TracedOnce(**fields).solve(here)
        return run.trajectory, run.outputs

    jaxpr = jax.make_jaxpr(solve)(chain.initial, chain.inputs, chain.captured)
    return jaxpr, expected


class _TracedOnce(NewtonSolver):
    """A solver whose iteration is traced once, where accelerators have two loops of it."""

    def _loop(self, chain: TracedChain, start: Iterate) -> tuple[Any, ...]:
        name, goes_on, trip, *rest = super()._loop(chain, start)
        return name, goes_on, jax.jit(trip), *rest
