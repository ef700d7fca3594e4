"""`Gaussian`: the derivatives that a sampler would have if its data were normally distributed."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from deeppcr import Linearization
from deeppcr.diffusion.output import precise
from deeppcr.diffusion.table import Table
from deeppcr.extend import describe

GAIN = "gain"  # an input of the steps


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Gaussian(Linearization):
    r"""A linearisation for `sample`: the best possible model of normally distributed data.

    For $x = \alpha x_0 + \sigma \xi$ and entries of $x_0$ with standard deviation $s$ the best
    prediction of $x_0$ is affine in $x$, with the slope $\alpha / (\alpha^2 + \sigma^2 / s^2)$
    in each entry. The model's output is taken to have the derivative that belongs to it, and the
    step of the sampler is differentiated exactly, with all that a multistep solver remembers. So
    the model itself is not differentiated, and an iteration costs as much as one of Picard's. There
    are fewer of them: by far for multistep solvers, least so for DDIM. The blocks are those of
    single entries: numbers, or $k \times k$ for a state of k samples.

    Attributes:
        std: s > 0, in units of the samples. Entries of images depend on each other, so a model
            removes more noise than it could if they did not: about half of the standard deviation
            of the data suits best.

    Raises:
        ValueError: ``std`` is not a positive number.

    Example:
        >>> config = {"_class_name": "DPMSolverMultistepScheduler"}
        >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
        >>> model = lambda x, t: 0.9 * jnp.tanh(x)
        >>> x_T = jax.random.normal(jax.random.key(0), (4, 16))
        >>> method = deeppcr.Newton(deeppcr.diffusion.Gaussian(), rtol=1e-3)
        >>> solution = deeppcr.diffusion.sample(model, schedule, x_T, steps=50, method=method)
        >>> bool(solution.converged), int(solution.stats.iterations) < 25
        (True, True)

    References:
        The slope: T. Karras et al., *Elucidating the Design Space of Diffusion-Based Generative
        Models*, NeurIPS 2022, appendix B.6. Why it resembles that of trained models: B. Wang and
        J. Vastola, *The Unreasonable Effectiveness of Gaussian Score Approximation for Diffusion
        Models and its Applications*, TMLR 2024.
    """

    std: float = 0.25

    def __post_init__(self) -> None:
        if isinstance(self.std, bool) or not isinstance(self.std, int | float) or not self.std > 0:
            raise ValueError(f"std is {describe(self.std)}, expected a positive number.")

    def gain(self, table: Table, dtype: DTypeLike) -> jax.Array:
        """``[L]``: the derivative of the model's output with respect to the sample."""
        alpha, sigma = table.levels["alpha"], table.levels["sigma"]
        slope = alpha / (alpha**2 + (sigma / self.std) ** 2)
        of_x, of_output = table.predict["x"], table.predict["m"]
        is_read = of_output != 0
        gain = np.where(is_read, (slope - of_x) / np.where(is_read, of_output, 1.0), 0.0)
        return jnp.asarray(gain, precise(dtype))

    def step(self, table: Table) -> Callable[[Any, Any], Any]:
        """The step whose inputs have the gain: its model is linear, its prediction uncorrected."""
        plain = dataclasses.replace(table, correct=None, learned=None, span=None)

        def step(state: Any, at: Any) -> Any:
            x = state["x"]
            output = (at[GAIN] * x.astype(at[GAIN].dtype)).astype(x.dtype)
            return plain.advance(state, output, at)

        return step

    def _only_in_sample(self, *_: Any) -> Any:
        raise ValueError(
            f"linearize is {describe(self)}, which needs the coefficients of a diffusion sampler: "
            f"expected Newton(linearize={describe(self)}) as a method of deeppcr.diffusion.sample."
        )

    traced = blocks = bytes_per_step = cast(Any, _only_in_sample)
