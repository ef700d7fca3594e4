"""The error after k iterations: of the states, and of a classifier that reads them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr import Diagonal, Newton, Result, Scalar
from experiments.bench.programs import by_loop, solver
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.iterations.forms import Problem
from experiments.models import chains as models
from experiments.models import data

Counts = Mapping[str, Sequence[int]]  # of iterations, by form

IMAGES = 128
ENDS = {
    Result.CONVERGED: "converged",
    Result.FINISHED_SEQUENTIALLY: "sequential",
    Result.NOT_CONVERGED: "not yet",
    Result.PLATEAU: "plateau",
}


def by_count(problem: Problem, counts: Counts) -> Iterator[Row]:
    """The error of several linearisations after k iterations, until they converge."""
    if problem.kind == "residual":
        batch = models.residual_chain(problem.length, batch=(IMAGES,))
        yield from after(problem, batch, counts, right(problem.length))
    else:
        yield from after(problem, problem.model, counts, lambda states: {})


def after(
    problem: Problem, model: models.Model, counts: Counts, more: Callable[[Any], Row]
) -> Iterator[Row]:
    """The rows of a chain; ``more(states)`` returns further cells."""
    expected = jax.jit(by_loop(model.step, lax.scan))(model.z0, model.inputs)
    scalar = Scalar(of_input=lambda x: x["a"]) if problem.kind == "diffusion" else Scalar()
    methods = {"dense": Newton(linearize="dense"), "diagonal": Newton(linearize=Diagonal(probes=0))}
    methods |= {"scalar": Newton(linearize=scalar)}
    labels, batch_ndim = problem.labels("accuracy"), jax.tree.leaves(model.z0)[0].ndim - 1
    for name, form in methods.items():
        if name == "diagonal" and problem.width == 1:  # it is dense
            continue
        states = guessed(model)
        row: Row = {**labels, "form": name, "k": 0, "ended": "not yet"}
        yield row | finite("error", error(states, expected)) | more(states)
        for count in counts[name]:
            PROGRESS.say(f"solving by {name}, {count} iterations")
            method = dataclasses.replace(form, max_iterations=count, on_failure="return")
            solution = jax.jit(solver(model.step, method, batch_ndim))(model.z0, model.inputs)
            states, ended = solution.trajectory, ENDS[Result(int(solution.result))]
            row = {**labels, "form": name, "k": int(solution.stats.iterations), "ended": ended}
            row |= finite("error", error(states, expected))
            yield row | finite("residual", float(solution.stats.residual)) | more(states)
            if ended == "converged":
                break


def guessed(model: models.Model) -> Any:
    """The states after no iteration: the steps applied to the initial guess."""
    apply = jax.vmap(model.step)
    shapes = jax.eval_shape(by_loop(model.step, lax.scan), model.z0, model.inputs)
    constant = jax.tree.map(lambda z, x: jnp.broadcast_to(z, x.shape), model.z0, shapes)
    guess = apply(constant, model.inputs)
    moved = jax.tree.map(lambda z, after: jnp.concatenate([z[None], after[:-1]]), model.z0, guess)
    return apply(moved, model.inputs)


def right(blocks: int) -> Callable[[Any], Row]:
    """The share of digits that the trained residual network classifies correctly."""
    decode = np.asarray(models.residual_params(blocks)["decode"])
    labels = data.digits().test_y[:IMAGES]

    def share(states: Any) -> Row:
        with np.errstate(all="ignore"):
            scores = np.asarray(states)[-1] @ decode
        return {"digits right": float((scores.argmax(axis=-1) == labels).mean())}

    return share


def error(states: Any, expected: Any) -> float:
    """The largest difference, relative to the largest state; infinite or NaN after an overflow."""
    found, wanted = (
        [np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (states, expected)
    )
    largest = max(float(np.abs(b).max()) for b in wanted)
    with np.errstate(all="ignore"):
        apart = [float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True)]
    return max(apart) / largest


def finite(name: str, value: float) -> Row:
    """The cell of a row; none after an overflow, for which JSON has no number."""
    return {name: value} if np.isfinite(value) else {}
