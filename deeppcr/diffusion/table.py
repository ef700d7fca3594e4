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

A scheduler writes it as its formulas are written, as linear combinations (`Terms`) of what a step
knows, with numbers, or arrays ``[L]`` of one for each step:

    update = {"x": keep * X + gain * X0, "y": X0}

Without a correction, ``x0`` is folded into the other terms in float64.
"""

import dataclasses
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.output import (
    Correction,
    find_correction,
    precise,
    scale_noise,
    split,
)

Column = np.ndarray | float


class Terms(dict[str, Any]):
    """A linear combination: its coefficients by the names of the terms."""

    __array_ufunc__ = None  # a product with an array of numpy is that of `__rmul__`

    def __add__(self, other: "Terms") -> "Terms":
        return Terms({name: self.get(name, 0.0) + other.get(name, 0.0) for name in self | other})

    def __sub__(self, other: "Terms") -> "Terms":
        return self + -1.0 * other

    def __rmul__(self, factor: Column) -> "Terms":
        return Terms({name: factor * column for name, column in self.items()})


def term(name: str) -> Terms:
    """One term of this name: of a memory, for example."""
    return Terms({name: 1.0})


# The sample, the model's output, the sample that it predicts, and fresh noise.
X, OUTPUT, X0, NOISE = map(term, ("x", "m", "x0", "noise"))


def original_from(prediction: str, y: Terms, alpha: np.ndarray, sigma: np.ndarray) -> Terms:
    """The predicted ``x_0``, from the output and its input, ``y = alpha x_0 + sigma noise``."""
    if prediction == "sample":
        return 0.0 * y + OUTPUT
    if prediction == "v_prediction":
        # output = alpha noise - sigma x_0 (Salimans and Ho, ICLR 2022, appendix D)
        return alpha * y - sigma * OUTPUT
    if prediction == "flow_prediction":
        # output = noise - x_0, and alpha = 1 - sigma (Lipman et al., ICLR 2023)
        return y - sigma * OUTPUT
    if not alpha.all():
        raise ValueError(
            "prediction_type='epsilon' with rescale_betas_zero_snr=True: at the last time there is "
            "only noise, which does not determine the sample. Expected 'sample' or 'v_prediction', "
            "or a timestep_spacing that leaves out the last time."
        )
    return 1 / alpha * y - sigma / alpha * OUTPUT


def by_step(rows: list[Terms]) -> Terms:
    """One combination for all steps, from those of single steps."""
    columns = Terms()
    for name in sum(rows, Terms()):
        columns[name] = np.array([row.get(name, 0.0) for row in rows])
    return columns


Columns = dict[str, np.ndarray]
Model = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The coefficients of a sampler's steps, in the order of the steps: see the formula above.

    The state of the chain is a dictionary of the sample ``x`` and the memory.

    Attributes:
        time: ``[L]``, int32 or float32: the model's second argument.
        scale: ``[L]``, float64 like all that follow: the model's first argument is ``scale x``.
        levels: ``[L]`` each: ``alpha`` and ``sigma`` of ``x = alpha x_0 + sigma noise``, to which
            the noise of ``x`` corresponds.
        predict: ``[L]`` each: the coefficients ``p`` of ``x`` and ``q`` of ``m`` in ``x0``.
        update: ``[L]`` each: those of the next ``x``, and of the next memory.
        correct: the correction of the predicted original sample, or None.
        learned: the type of the learned variance; None: it is left out.
        span: ``[L]``, of a learned variance: the logarithm of the ratio of the two deviations, or 1
            if there is one only, and 0 where there is no noise.
        init_noise_sigma: the standard deviation of ``x_T``.
    """

    time: np.ndarray
    scale: np.ndarray
    levels: Columns
    predict: Columns
    update: dict[str, Columns]
    correct: Correction | None
    learned: str | None = None
    span: np.ndarray | None = None
    init_noise_sigma: float = 1.0

    @property
    def steps(self) -> int:
        """The number of steps of the chain, which is that of model calls."""
        return len(self.time)

    @property
    def is_noisy(self) -> bool:
        """Whether the steps add noise: ``at["noise"]``, of the shape of ``x``."""
        return "noise" in self.update["x"]

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        numbers = self.init_noise_sigma, self.scale, self.predict, self.update, self.span
        return all(np.isfinite(column).all() for column in jax.tree.leaves(numbers))

    def tail(self, start: int) -> "Table":
        """The steps from the one with this index on."""
        names = ("time", "scale", "levels", "predict", "update", "span")
        columns = {name: getattr(self, name) for name in names}
        return dataclasses.replace(self, **jax.tree.map(lambda column: column[start:], columns))

    @property
    def linear_part(self) -> np.ndarray:
        """``[L]``: the derivative of the next ``x`` by ``x``, for a fixed output, uncorrected."""
        row = self.update["x"]
        return np.zeros(self.steps) + row.get("x", 0.0) + row.get("x0", 0.0) * self.predict["x"]

    def inputs(self, dtype: DTypeLike) -> dict[str, Any]:
        """The inputs of the steps, each ``[L]``: the time and the coefficients.

        Coefficients are of ``dtype``, or of float32 if that has more bits.
        """
        columns: dict[str, Any] = {"scale": self.scale, **self.update}
        if any("x0" in row for row in self.update.values()):
            columns["x0"] = self.predict
        if self.span is not None:
            columns["span"] = self.span
        return {"time": jnp.asarray(self.time)} | jax.tree.map(
            lambda column: jnp.asarray(column, precise(dtype)), columns
        )

    def begin(self, x: Any) -> dict[str, Any]:
        """The state before the first step."""
        return {name: x if name == "x" else jnp.zeros_like(x) for name in self.update}

    def evaluate(self, model: Model, state: Any, at: dict[str, Any]) -> Any:
        """The model's output for a state."""
        return model(_combined({"x": at["scale"]}, state), at["time"])

    def advance(self, state: Any, output: Any, at: dict[str, Any]) -> dict[str, Any]:
        """The next state, from this one and the model's output for it."""
        x = state["x"]
        output, values = split(output, x)
        terms = state | {"m": output.astype(x.dtype)}
        if self.is_noisy:
            terms["noise"] = at["noise"]
            if self.learned:
                terms["noise"] = scale_noise(self.learned, at["noise"], values, at["span"])
        if "x0" in at:
            x_0 = _combined(at["x0"], terms)
            terms["x0"] = self.correct(x_0) if self.correct else x_0
        return {name: _combined(at[name], terms) for name in self.update}

    def step(self, model: Model) -> Callable[[Any, dict[str, Any]], Any]:
        """The step of the chain: ``(state, inputs) -> state``."""
        return lambda state, at: self.advance(state, self.evaluate(model, state, at), at)


def _combined(coefficients: Mapping[str, Any], terms: Mapping[str, Any]) -> Any:
    """The linear combination of these terms, in the dtype of ``x``."""
    x = terms["x"]
    products = [column * terms[name].astype(column.dtype) for name, column in coefficients.items()]
    return sum(products[1:], start=products[0]).astype(x.dtype) if products else jnp.zeros_like(x)


def tabulate(
    config: Config,
    time: np.ndarray,
    alpha: np.ndarray,
    sigma: np.ndarray,
    update: Mapping[str, Terms],
    *,
    scale: Column = 1.0,
    **attributes: Any,
) -> Table:
    """The table of these columns, and of further ``attributes`` of `Table`.

    The prediction type and the correction are those of the configuration. Coefficients that are all
    zero are left out, and so is memory that nothing reads.
    """

    def wide(terms: Terms) -> Columns:
        return {
            name: np.broadcast_to(np.asarray(column, np.float64), time.shape)
            for name, column in terms.items()
        }

    correct = find_correction(config)
    kind = config["prediction_type"]
    predict = original_from(kind, scale * X, scale * alpha, scale * sigma)
    rows = {}
    for name, terms in update.items():
        row = Terms(terms)
        if correct is None:
            row = row.pop("x0", 0.0) * predict + row
        rows[name] = {term: column for term, column in wide(row).items() if column.any()}
    needed = {"x"}
    while more := set(chain(*(rows[name] for name in needed))) & (rows.keys() - needed):
        needed |= more
    return Table(
        time=time,
        scale=wide(scale * X)["x"],
        levels={"alpha": alpha, "sigma": sigma},
        predict=wide(predict),
        update={name: row for name, row in rows.items() if name in needed},
        correct=correct,
        **attributes,
    )
