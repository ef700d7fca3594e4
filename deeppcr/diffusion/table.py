"""`Table`: the coefficients of a sampler's steps. Schedulers differ only in their coefficients.

A sampler goes from noise ``x_T`` to a sample. Its step, with the model's output ``m``:

    m  = model(scale x, time)
    x0 = correct(p x + q m)                       pred_original_sample
    x' = a x + b m + c x0 + d x0_before + s noise

``x0_before`` is the prediction of the step before. Multistep solvers use it: their state is the
pair ``(x, x0)``. Without a correction, ``c`` is folded into ``a`` and ``b`` in float64. The step
then computes ``x0`` only if the next step needs it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from deeppcr.diffusion.config import Config, Field
from deeppcr.diffusion.prediction import Correction


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The coefficients of a sampler's steps, in the order of the steps: see the formula above.

    Attributes:
        time: ``[L]``, int32 or float32: the model's second argument.
        scale: ``[L]``, float64 like all that follow: the model's first argument is ``scale x``.
        p, q: ``[L]``: the predicted original sample is ``p x + q m``.
        a, b, c, d, s: ``[L]``: the coefficients of the next ``x``.
        correct: the correction of the predicted original sample, or None.
        init_noise_sigma: the standard deviation of ``x_T``.
    """

    time: np.ndarray
    scale: np.ndarray
    p: np.ndarray
    q: np.ndarray
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray
    s: np.ndarray
    correct: Correction | None
    init_noise_sigma: float

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.time)

    @property
    def is_noisy(self) -> bool:
        """Whether the steps add noise: ``at["noise"]``, of the shape of ``x``."""
        return bool(self.s.any())

    @property
    def remembers(self) -> bool:
        """Whether the state also holds the last predicted original sample."""
        return bool(self.d.any())

    @property
    def predicts_sample(self) -> bool:
        """Whether the steps compute the predicted original sample, to correct or to remember it."""
        return self.remembers or self.correct is not None

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        columns = (self.scale, self.p, self.q, self.a, self.b, self.c, self.d, self.s)
        return math.isfinite(self.init_noise_sigma) and all(
            bool(np.isfinite(column).all()) for column in columns
        )

    @property
    def linear_part(self) -> np.ndarray:
        """``[L]``: the derivative of the next ``x`` by ``x``, for a fixed output, uncorrected."""
        return self.a + self.c * self.p

    def inputs(self, dtype: DTypeLike) -> dict[str, Array]:
        """The inputs of the steps, each ``[L]``: the time, and the columns that are not all zero.

        The columns are of ``dtype``, or of float32 if that has more bits.
        """
        if jnp.dtype(dtype).itemsize < 4:
            dtype = jnp.float32  # in bfloat16 most coefficients of a long sampler are 1
        columns = {"a": self.a, "b": self.b, "c": self.c, "d": self.d, "s": self.s}
        if self.predicts_sample:
            columns |= {"p": self.p, "q": self.q}
        used = {name: column for name, column in columns.items() if column.any()}
        if (self.scale != 1).any():
            used["scale"] = self.scale
        return {"time": jnp.asarray(self.time)} | {
            name: jnp.asarray(column, dtype) for name, column in used.items()
        }

    def begin(self, x: Any) -> Any:
        """The state before the first step."""
        return (x, jnp.zeros_like(x)) if self.remembers else x

    def newest(self, state: Any) -> Any:
        """The sample in a state, or in a trajectory of states."""
        return state[0] if self.remembers else state

    def evaluate(self, model: Callable[[Any, Any], Any], state: Any, at: dict[str, Any]) -> Any:
        """The model's output for a state."""
        x = self.newest(state)
        return model(_sum(at, {"scale": x}) if "scale" in at else x, at["time"])

    def advance(self, state: Any, output: Any, at: dict[str, Any]) -> Any:
        """The next state, from this one and the model's output for it."""
        x = self.newest(state)
        output = output.astype(x.dtype)
        terms = {"a": x, "b": output}
        if self.is_noisy:
            terms["s"] = at["noise"]
        if not self.predicts_sample:
            return _sum(at, terms)
        x_0 = _sum(at, {"p": x, "q": output})
        terms["c"] = x_0 = self.correct(x_0) if self.correct else x_0
        if not self.remembers:
            return _sum(at, terms)
        return _sum(at, terms | {"d": state[1]}), x_0

    def step(self, model: Callable[[Any, Any], Any]) -> Callable[[Any, dict[str, Any]], Any]:
        """The step of the chain: ``(state, inputs) -> state``."""
        return lambda state, at: self.advance(state, self.evaluate(model, state, at), at)


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A kind of sampler.

    Attributes:
        fields: the fields of its configuration, by name.
        table: ``table(config, steps, eta)``, where ``config`` has all fields.
        takes_eta: whether ``eta``, the weight of the noise that the steps add, may differ from 0.
    """

    fields: Mapping[str, Field]
    table: Callable[[Config, int, float], Table]
    takes_eta: bool = False


def tabulate(
    time: np.ndarray,
    *,
    predicts: tuple[np.ndarray, np.ndarray],
    a: np.ndarray | float = 0.0,
    b: np.ndarray | float = 0.0,
    c: np.ndarray | float = 0.0,
    d: np.ndarray | float = 0.0,
    s: np.ndarray | float = 0.0,
    scale: np.ndarray | float = 1.0,
    correct: Correction | None = None,
    init_noise_sigma: float = 1.0,
) -> Table:
    """The table of these columns; ``predicts`` is ``(p, q)``."""
    p, q = predicts
    if correct is None:
        a, b, c = a + c * p, b + c * q, 0.0
    columns = {"scale": scale, "p": p, "q": q, "a": a, "b": b, "c": c, "d": d, "s": s}
    wide = {
        name: np.broadcast_to(np.asarray(column, np.float64), time.shape)
        for name, column in columns.items()
    }
    return Table(time=time, correct=correct, init_noise_sigma=float(init_noise_sigma), **wide)


def _sum(at: dict[str, Any], terms: dict[str, Any]) -> Any:
    """The sum of the terms times their coefficients, in the dtype of the first term.

    Terms without a coefficient are left out.
    """
    dtype = next(iter(terms.values())).dtype
    first, *others = [
        at[name] * term.astype(at[name].dtype) for name, term in terms.items() if name in at
    ]
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

    def chunk(state: Any, inputs: Any) -> tuple[Any, Any]:
        """Several steps with one call of the model, at the first."""
        output = table.evaluate(model, state, jax.tree.map(lambda x: x[0], inputs))

        def step(state: Any, at: Any) -> tuple[Any, Any]:
            state = table.advance(state, output, at)
            return state, state

        return lax.scan(step, state, inputs)

    def trajectory(state: Any, inputs: Any) -> Any:
        count, rest = divmod(table.steps, every)
        whole, parts = table.steps - rest, []
        if count:
            chunks = jax.tree.map(lambda x: x[:whole].reshape((count, every, *x.shape[1:])), inputs)
            state, states = lax.scan(chunk, state, chunks)
            parts.append(jax.tree.map(lambda x: x.reshape((whole, *x.shape[2:])), states))
        if rest:
            parts.append(chunk(state, jax.tree.map(lambda x: x[whole:], inputs))[1])
        return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

    return trajectory
