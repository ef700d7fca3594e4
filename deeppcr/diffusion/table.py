"""`Table`: the numbers of a sampler's steps. Every scheduler is the same step with other numbers.

A sampler goes from noise ``x_T`` to a sample, one step after another. Its step, with the model's output ``m``:

    m  = model(scale x, time)
    x0 = correct(p x + q m)                       the clean sample that the output predicts
    x' = a x + b m + c x0 + d x0_before + s noise

``x0_before`` is the prediction of the step before, which multistep solvers remember: their state is the pair ``(x, x0)``. Where
nothing corrects ``x0`` (``c`` is folded into ``a`` and ``b``, in float64) and nobody remembers it, it is never formed.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from deeppcr.diffusion.correction import Correction


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The numbers of a sampler's steps, first step first: see the formula above.

    Attributes:
        time: ``[L]``, int32 or float32: what the model is told.
        scale: ``[L]``, float64 like all that follow: the model sees ``scale * x``.
        p, q: ``[L]``: the clean sample that the model's output predicts is ``p x + q m``.
        a, b, c, d, s: ``[L]``: the coefficients of the next ``x``.
        correct: what is done to the predicted clean sample, or None.
        init_noise_sigma: pure noise times this is ``x_T``.
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
        """How many steps."""
        return len(self.time)

    @property
    def is_noisy(self) -> bool:
        """Whether the steps add noise: ``at["noise"]``, of the shape of ``x``."""
        return bool(self.s.any())

    @property
    def remembers(self) -> bool:
        """Whether the state holds the last predicted clean sample as well."""
        return bool(self.d.any())

    @property
    def forms_clean(self) -> bool:
        """Whether the steps form the predicted clean sample: somebody corrects or remembers it."""
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
        """``[L]``: the coefficient of ``x`` in the next ``x``, with the model's output held, and nothing corrected."""
        return self.a + self.c * self.p

    def inputs(self, dtype: DTypeLike) -> dict[str, Array]:
        """What the steps take, each ``[L]``: the time, and the columns in use, in ``dtype`` or float32 if it is less."""
        if jnp.dtype(dtype).itemsize < 4:
            dtype = jnp.float32  # in bfloat16 most coefficients of a long sampler are 1
        columns = {"a": self.a, "b": self.b, "c": self.c, "d": self.d, "s": self.s}
        if self.forms_clean:
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
        """The next state, from the model's output for this one."""
        x = self.newest(state)
        output = output.astype(x.dtype)
        terms = {"a": x, "b": output}
        if self.is_noisy:
            terms["s"] = at["noise"]
        if not self.forms_clean:
            return _sum(at, terms)
        clean = _sum(at, {"p": x, "q": output})
        terms["c"] = clean = self.correct(clean) if self.correct else clean
        if not self.remembers:
            return _sum(at, terms)
        return _sum(at, terms | {"d": state[1]}), clean

    def step(self, model: Callable[[Any, Any], Any]) -> Callable[[Any, dict[str, Any]], Any]:
        """The step of the chain: ``(state, inputs) -> state``."""
        return lambda state, at: self.advance(state, self.evaluate(model, state, at), at)


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
    """The table of these columns, where ``predicts`` is ``(p, q)``; without a correction ``c`` is folded into ``a`` and ``b``."""
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
    """The terms, each times its coefficient, in the dtype of the first; those without a coefficient are nought."""
    dtype = next(iter(terms.values())).dtype
    first, *others = [
        at[name] * term.astype(at[name].dtype) for name, term in terms.items() if name in at
    ]
    for other in others:
        first = first + other
    return first.astype(dtype)
