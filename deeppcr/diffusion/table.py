"""`Table`: the coefficients of a sampler's steps. Schedulers differ only in their coefficients.

A sampler goes from noise ``x_T`` to a sample. Its step, with the model's output ``m``:

    m  = model(scale x, time)
    x0 = correct(p x + q m)                       pred_original_sample
    x' = a x + b m + c x0 + s noise + d y + e y_2 + ..
    y' = a linear combination, too

The memory ``y, y_2, ..`` is what a method keeps of earlier steps: a multistep solver its last
outputs, a Runge-Kutta method the start of its step. So each model call is one step of the chain,
and every sampler is a general linear method (Butcher, *Numerical Methods for Ordinary Differential
Equations*, 2016, chapter 5). ``update`` has the coefficients by what is updated and by the term:

    {"x": {"x": a, "m": b, "x0": c, "noise": s, "y": d}, "y": {"x0": 1}}

Without a correction, ``x0`` is folded into the other terms in float64.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from deeppcr.diffusion.config import Config, Field
from deeppcr.diffusion.output import (
    Correction,
    find_correction,
    original_from,
    precise,
    scale_noise,
    split,
)

Column = np.ndarray | float
Terms = Mapping[str, Column]  # of a linear combination: coefficients by name
Columns = dict[str, np.ndarray]
LEVEL = ("alpha", "sigma")


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The coefficients of a sampler's steps, in the order of the steps: see the formula above.

    Attributes:
        time: ``[L]``, int32 or float32: the model's second argument.
        scale: ``[L]``, float64 like all that follow: the model's first argument is ``scale x``.
        levels: ``[L]`` each: ``alpha`` and ``sigma`` of ``x = alpha x_0 + sigma noise``, to which
            the noise of ``x`` corresponds.
        predict: ``[L]`` each: the coefficients ``p`` of ``x`` and ``q`` of ``m`` in ``x0``.
        update: ``[L]`` each: those of the next ``x``, and of the next memory.
        correct: the correction of the predicted original sample, or None.
        span: ``[L]``, of a learned variance: the logarithm of the ratio of the two deviations, or 1
            if there is one only, and 0 where there is no noise.
        learned: the type of the learned variance; None: it is left out.
        init_noise_sigma: the standard deviation of ``x_T``.
    """

    time: np.ndarray
    scale: np.ndarray
    levels: Columns
    predict: Columns
    update: dict[str, Columns]
    span: np.ndarray | None
    correct: Correction | None
    learned: str | None
    init_noise_sigma: float

    @property
    def steps(self) -> int:
        """The number of steps of the chain, which is that of model calls."""
        return len(self.time)

    @property
    def is_noisy(self) -> bool:
        """Whether the steps add noise: ``at["noise"]``, of the shape of ``x``."""
        return "noise" in self.update["x"]

    @property
    def remembers(self) -> bool:
        """Whether the state is a dictionary of ``x`` and the memory; else it is ``x``."""
        return len(self.update) > 1

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        columns = jax.tree.leaves((self.scale, self.predict, self.update, self.span))
        return bool(np.isfinite([self.init_noise_sigma, *np.concatenate(columns)]).all())

    def tail(self, start: int) -> "Table":
        """The steps from the one with this index on."""
        names = ("time", "scale", "levels", "predict", "update", "span")
        columns = {name: getattr(self, name) for name in names}
        return dataclasses.replace(self, **jax.tree.map(lambda column: column[start:], columns))

    @property
    def linear_part(self) -> np.ndarray:
        """``[L]``: the derivative of the next ``x`` by ``x``, for a fixed output, uncorrected."""
        row, zero = self.update["x"], np.zeros(self.steps)
        return row.get("x", zero) + row.get("x0", zero) * self.predict["x"]

    def inputs(self, dtype: DTypeLike) -> dict[str, Any]:
        """The inputs of the steps, each ``[L]``: the time, and the columns that are not all one.

        The columns are of ``dtype``, or of float32 if that has more bits.
        """
        columns: dict[str, Any] = {name: _needed(row) for name, row in self.update.items()}
        if any("x0" in row for row in self.update.values()):
            columns["x0"] = _needed(self.predict)
        columns |= _needed({"scale": self.scale})
        if self.span is not None:
            columns["span"] = self.span
        used = {name: column for name, column in columns.items() if len(column)}
        return {"time": jnp.asarray(self.time)} | jax.tree.map(
            lambda column: jnp.asarray(column, precise(dtype)), used
        )

    def begin(self, x: Any) -> Any:
        """The state before the first step."""
        if not self.remembers:
            return x
        return {name: x if name == "x" else jnp.zeros_like(x) for name in self.update}

    def newest(self, state: Any) -> Any:
        """The sample in a state, or in a trajectory of states."""
        return state["x"] if self.remembers else state

    def evaluate(self, model: Callable[[Any, Any], Any], state: Any, at: dict[str, Any]) -> Any:
        """The model's output for a state."""
        x = self.newest(state)
        if "scale" in at:
            x = (at["scale"] * x.astype(at["scale"].dtype)).astype(x.dtype)
        return model(x, at["time"])

    def advance(self, state: Any, output: Any, at: dict[str, Any]) -> Any:
        """The next state, from this one and the model's output for it."""
        known = dict(state) if self.remembers else {"x": state}
        x = known["x"]
        output, values = split(output, x)
        known["m"] = output.astype(x.dtype)
        if self.is_noisy:
            known["noise"] = at["noise"]
            if self.learned:
                known["noise"] = scale_noise(self.learned, at["noise"], values, at["span"])
        if "x0" in at:
            x_0 = _sum(self.predict, at["x0"], known)
            known["x0"] = self.correct(x_0) if self.correct else x_0
        found = {name: _sum(row, at.get(name, {}), known) for name, row in self.update.items()}
        return found if self.remembers else found["x"]

    def step(self, model: Callable[[Any, Any], Any]) -> Callable[[Any, dict[str, Any]], Any]:
        """The step of the chain: ``(state, inputs) -> state``."""
        return lambda state, at: self.advance(state, self.evaluate(model, state, at), at)


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A kind of sampler.

    Attributes:
        fields: the fields of its configuration, by name.
        table: ``table(config, steps)``, where ``config`` has all fields, and the options.
        options: what it takes besides: names of arguments of `Schedule.from_config`.
        calls: the model calls of each step, but for the last.
    """

    fields: Mapping[str, Field]
    table: Callable[[Config, int], Table]
    options: tuple[str, ...] = ()
    calls: int = 1


def tabulate(
    config: Config,
    time: np.ndarray,
    *,
    levels: tuple[np.ndarray, np.ndarray],
    update: Mapping[str, Terms],
    scale: Column = 1.0,
    learned: str | None = None,
    span: np.ndarray | None = None,
    init_noise_sigma: float = 1.0,
) -> Table:
    """The table of these columns; ``levels`` is ``(alpha, sigma)``.

    The prediction type and the correction are those of the configuration. Coefficients that are all
    zero are left out, and so is memory that nothing reads.
    """

    def wide(terms: Terms) -> Columns:
        return {
            name: np.broadcast_to(np.asarray(column, np.float64), time.shape)
            for name, column in terms.items()
        }

    p, q = original_from(config["prediction_type"], scale * levels[0], scale * levels[1])
    predict, correct = wide({"x": scale * p, "m": q}), find_correction(config)
    rows = {}
    for name, terms in update.items():
        row = wide(terms)
        if correct is None and "x0" in row:
            row = total(row, scaled(row.pop("x0"), predict))
        rows[name] = {term: column for term, column in row.items() if column.any()}
    read = {"x"}
    while more := {term for name in read for term in rows[name] if term in rows} - read:
        read |= more
    return Table(
        time=time,
        scale=wide({"scale": scale})["scale"],
        levels=dict(zip(LEVEL, levels, strict=True)),
        predict=predict,
        update={name: row for name, row in rows.items() if name in read},
        correct=correct,
        learned=learned,
        span=span,
        init_noise_sigma=init_noise_sigma,
    )


def total(*terms: Terms) -> dict[str, Any]:
    """The sum of linear combinations."""
    found: dict[str, Any] = {}
    for each in terms:
        for name, column in each.items():
            found[name] = found[name] + column if name in found else column
    return found


def scaled(factor: Column, terms: Terms) -> dict[str, Any]:
    """A linear combination times a number."""
    return {name: factor * column for name, column in terms.items()}


def by_step(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """The columns of linear combinations that were made one by one, a row for each step."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, 0.0) for row in rows]) for name in names}


def steps_known(config: Config, steps: int) -> np.ndarray:
    """``[L]``: how many steps a multistep method knows, with this one: the first is ``start``."""
    return np.maximum(np.arange(steps) + 1 - config["start"], 1)


def multistep(x: Terms, weights: np.ndarray, remembered: Terms) -> dict[str, Terms]:
    """The update of a linear multistep method: ``x' = .. + w_0 y + w_1 y_1 + ..``.

    Args:
        x: the other terms of the next ``x``.
        weights: ``[L, n]``, those of ``y`` at this step and at the ``n - 1`` before it.
        remembered: ``y``, as a linear combination of this step's terms.
    """
    count = weights.shape[1]
    update: dict[str, Terms] = {
        "x": total(
            x,
            scaled(weights[:, 0], remembered),
            {f"y{i}": weights[:, i] for i in range(1, count)},
        )
    }
    for i in range(1, count):
        update[f"y{i}"] = remembered if i == 1 else {f"y{i - 1}": 1.0}
    return update


def _needed(columns: Columns) -> Columns:
    """The columns that are not all one."""
    return {name: column for name, column in columns.items() if (column != 1).any()}


def _sum(terms: Terms, at: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """The linear combination of what is known, in the dtype of ``x``."""
    dtype = known["x"].dtype
    if not terms:
        return jnp.zeros_like(known["x"])
    if not at and len(terms) == 1:
        return known[next(iter(terms))]
    wide = next(iter(at.values())).dtype if at else dtype
    first, *others = (
        at[name] * known[name].astype(wide) if name in at else known[name].astype(wide)
        for name in terms
    )
    for other in others:
        first = first + other
    return first.astype(dtype)


def coarse_guess(
    table: Table, model: Callable[[Any, Any], Any], every: int
) -> Callable[[Any, Any], Any]:
    """An initial trajectory for ``Newton(initial_guess=)``: one model call for ``every`` steps.

    The steps between two calls reuse the output, and have their own coefficients and noise. For
    DDIM this is the sampler with fewer steps: steps with the same predicted noise add up to one
    large step (Song et al., ICLR 2021, section 4.2).
    """

    evaluate = partial(table.evaluate, model)

    def trajectory(state: Any, inputs: Any) -> Any:
        def step(carry: Any, xs: Any) -> tuple[Any, Any]:
            (state, output), (is_called, at) = carry, xs
            output = lax.cond(is_called, evaluate, lambda *_: output, state, at)
            state = table.advance(state, output, at)
            return (state, output), state

        first = jax.tree.map(lambda x: x[0], inputs)
        unused = jax.eval_shape(evaluate, state, first)
        carry = state, jnp.zeros_like(unused)
        return lax.scan(step, carry, (jnp.arange(table.steps) % every == 0, inputs))[1]

    return trajectory
