"""The error after k iterations: of the states, and of what a classifier makes of them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr import Diagonal, Newton, Result, Scalar
from experiments.common import data, models
from experiments.common.forms import Problem
from experiments.common.solves import by_loop, solver
from experiments.common.versus import Row

Counts = Mapping[str, Sequence[int]]  # of iterations, by form

IMAGES = 128
ENDS = {
    Result.CONVERGED: "converged",
    Result.FINISHED_SEQUENTIALLY: "sequential",
    Result.NOT_CONVERGED: "not yet",
}


def by_count(problem: Problem, counts: Counts) -> Iterator[Row]:
    """The error after k iterations of several forms, until each has converged."""
    if problem.kind == "residual":
        batch = models.residual_chain(problem.length, batch=(IMAGES,))
        yield from after(problem, batch, counts, right(problem.length))
    else:
        yield from after(problem, problem.model, counts, lambda states: {})


def after(
    problem: Problem, model: models.Model, counts: Counts, more: Callable[[Any], Row]
) -> Iterator[Row]:
    """Rows of a chain; ``more(states)`` says more of states than their error."""
    expected = jax.jit(by_loop(model.step, lax.scan))(model.z0, model.inputs)
    scalar = Scalar(of_input=lambda x: x["a"]) if problem.kind == "diffusion" else Scalar()
    methods = {"dense": Newton(linearize="dense"), "diagonal": Newton(linearize=Diagonal(probes=0))}
    methods |= {"scalar": Newton(linearize=scalar)}
    labels = {"part": "accuracy", "chain": problem.kind, "w": problem.width, "L": problem.length}
    examples = jax.tree.leaves(model.z0)[0].ndim - 1
    for name, form in methods.items():
        if name == "diagonal" and problem.width == 1:  # it is dense
            continue
        states = guessed(model)
        found = finite("error", error(states, expected)) | more(states)
        yield {**labels, "form": name, "k": 0, "ended": "not yet", **found}
        for count in counts[name]:
            method = dataclasses.replace(form, max_iterations=count, on_failure="return")
            solution = jax.jit(solver(model.step, method, examples))(model.z0, model.inputs)
            states, ended = solution.trajectory, ENDS[Result(int(solution.result))]
            found = (
                finite("error", error(states, expected))
                | finite("residual", float(solution.stats.residual))
                | more(states)
            )
            yield {
                **labels,
                "form": name,
                "k": int(solution.stats.iterations),
                "ended": ended,
                **found,
            }
            if ended == "converged":
                break


def guessed(model: models.Model) -> Any:
    """What is returned after no iteration: the steps applied to the guess, which is the steps applied to the initial state."""
    apply = jax.vmap(model.step)
    shapes = jax.eval_shape(by_loop(model.step, lax.scan), model.z0, model.inputs)
    constant = jax.tree.map(lambda z, x: jnp.broadcast_to(z, x.shape), model.z0, shapes)
    guess = apply(constant, model.inputs)
    moved = jax.tree.map(lambda z, after: jnp.concatenate([z[None], after[:-1]]), model.z0, guess)
    return apply(moved, model.inputs)


def right(blocks: int) -> Callable[[Any], Row]:
    """How many of the digits the trained residual network tells, from its last state."""
    decode, labels = (
        np.asarray(models.residual_params(blocks)["decode"]),
        data.digits().test_y[:IMAGES],
    )

    def share(states: Any) -> Row:
        with np.errstate(all="ignore"):
            scores = np.asarray(states)[-1] @ decode
        return {"digits right": float((scores.argmax(axis=-1) == labels).mean())}

    return share


def error(states: Any, expected: Any) -> float:
    """The largest difference, relative to the largest state; infinite or NaN after an overflow."""
    pairs = list(
        zip(
            map(np.asarray, jax.tree.leaves(states)),
            map(np.asarray, jax.tree.leaves(expected)),
            strict=True,
        )
    )
    largest = max(float(np.abs(b).max()) for _, b in pairs)
    with np.errstate(all="ignore"):
        return max(float(np.abs(a - b).max()) for a, b in pairs) / largest


def finite(name: str, value: float) -> Row:
    """The entry of a row; none after an overflow, which JSON has no number for."""
    return {name: value} if np.isfinite(value) else {}
