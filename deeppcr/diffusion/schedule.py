"""`Schedule`: the steps of a diffusion sampler, from a configuration of diffusers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array
from jax.typing import ArrayLike

from deeppcr.diffusion.config import Config, fill, read_config
from deeppcr.diffusion.images import as_image, noisy
from deeppcr.diffusion.schedulers import FIELDS_OF_DIFFUSERS, INSTEAD, SCHEDULERS
from deeppcr.diffusion.table import Table
from deeppcr.extend import check_count, describe, did_you_mean

# The flag of a configuration without which an option means nothing.
NEEDS = {
    "mu": "use_dynamic_shifting",
    "image_seq_len": "use_dynamic_shifting",
    "sigmas": "use_flow_sigmas",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule:
    """The steps of a diffusion sampler, as those of the scheduler in diffusers.

    Made by `Schedule.from_config`. Needs neither diffusers nor torch. Immutable and hashable.

    Attributes:
        scheduler: the name of the scheduler's class in diffusers.
        config: all fields of its configuration, as pairs of a name and a value; and the arguments
            of `from_config`, such as ``eta`` and ``mu``, that the scheduler takes.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> deeppcr.diffusion.Schedule.from_config(config, eta=0.5)
        Schedule(DDIMScheduler, clip_sample=False, eta=0.5)
    """

    scheduler: str
    config: tuple[tuple[str, Any], ...]

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        eta: float = 0.0,
        mu: float | None = None,
        image_seq_len: int | None = None,
        sigmas: Sequence[float] | None = None,
    ) -> "Schedule":
        """The schedule with the configuration of a diffusers scheduler.

        Supported are DDPM, DDIM, PNDM, Euler, Euler ancestral, Heun, LMS, DPM-Solver (multistep,
        deterministic or stochastic), DEIS, UniPC, LCM, and Euler for flow matching.

        Args:
            config: a dict, as saved by diffusers (``"_class_name"`` names the scheduler; missing
                fields have the defaults of diffusers); the path of a ``scheduler_config.json``, or
                of the folder of a scheduler or a pipeline; or a diffusers scheduler object. Fields
                that only other schedulers have are dropped, with one warning that lists them.
            eta: float >= 0, the weight of the noise in DDIM steps; 0 for other schedulers.
            mu: float, for ``use_dynamic_shifting`` (flow matching): the logarithm of the shift of
                the sigmas, or the shift itself if ``time_shift_type`` is "linear".
            image_seq_len: integer >= 1, in place of ``mu``: the number of tokens of an image, from
                which ``mu`` is computed. For FLUX, ``(height // 16) * (width // 16)``.
            sigmas: floats, falling, for flow matching: those that the steps go from, in place of
                the scheduler's own, before they are shifted. Some pipelines of diffusers give them
                to their scheduler: that of FLUX takes ``np.linspace(1, 1 / steps, steps)``.

        Returns:
            the schedule.

        Raises:
            ValueError: the scheduler or the value of a field is not supported, or no scheduler has
                such a field; the message names it, and what to take instead.
            TypeError: ``config`` is not a configuration.
            FileNotFoundError: there is no configuration at that path.

        Example:
            >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
            >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
            >>> schedule
            Schedule(DDIMScheduler, clip_sample=False)
            >>> schedule.table(5).time.tolist()
            [800, 600, 400, 200, 0]
        """
        config = read_config(config)
        name = config.get("_class_name")
        if name not in SCHEDULERS:
            instead = did_you_mean(name, SCHEDULERS)
            if name in INSTEAD:
                instead = f"; take {INSTEAD[name]}, for the same models."
            raise ValueError(
                f"_class_name is {describe(name)}, expected one of {list(SCHEDULERS)}{instead}"
            )
        scheduler = SCHEDULERS[name]
        fields = fill(config, scheduler.fields, name, FIELDS_OF_DIFFUSERS)
        check_count("image_seq_len", image_seq_len, "number of tokens of an image", optional=True)
        values = {"eta": eta or None, "mu": mu, "image_seq_len": image_seq_len, "sigmas": sigmas}
        options: Any = {option: value for option, value in values.items() if value is not None}
        _check_options(name, fields, options)
        if image_seq_len is not None:
            options["mu"] = _find_mu(fields, options.pop("image_seq_len"))
        return cls(name, tuple((fields | fill(options, scheduler.options, name)).items()))

    def table(self, steps: int, start: int = 0) -> Table:
        """The coefficients of a sampler with ``steps`` steps.

        Args:
            steps: integer >= 1.
            start: integer >= 0 and < ``steps``, how many steps are left out at the start: those
                before an image to which noise was added, see `Schedule.add_noise`. Multistep
                solvers know no earlier steps there.

        Returns:
            a table of float64 arrays ``[L]``; among them ``time``, and ``linear_part``, the $a$
            of a step $a x + b model(x, t)$. ``L`` is the number of model calls: ``steps``, or more
            for Heun (``2 steps - 1``) and PNDM; those of the steps that are left out are not
            counted.

        Raises:
            ValueError: the scheduler does not support this number of steps, or ``start``.
        """
        check_count("steps", steps, "number of denoising steps")
        check_count("start", start, "number of steps left out", least=0)
        if start >= steps:
            raise ValueError(f"start is {start}, expected an integer < steps = {steps}.")
        scheduler = SCHEDULERS[self.scheduler]
        with np.errstate(all="ignore"):  # checked below
            table = scheduler.table(dict(self.config) | {"start": start}, steps)
        table = table.tail(scheduler.calls * start)
        if not table.is_finite:
            raise ValueError(
                f"{self} has coefficients that are not finite for steps={steps}: some of its times "
                "may be the same; expected fewer steps, another timestep_spacing, or another "
                "final_sigmas_type."
            )
        return table

    def init_noise_sigma(self, steps: int) -> float:
        """The standard deviation of the initial noise ``x_T`` for this number of steps."""
        return self.table(steps).init_noise_sigma

    def add_noise(self, image: ArrayLike, noise: ArrayLike, *, steps: int, start: int = 0) -> Array:
        r"""A noisy image, $\alpha x_0 + \sigma \xi$, as step ``start`` of ``steps`` expects it.

        To sample from it is image-to-image (Meng et al., *SDEdit*, ICLR 2022): `sample` takes it as
        ``x_T``, with the same ``steps`` and ``start``. The ``strength`` of diffusers is the share
        of steps that are left: ``start = steps - int(steps * strength)``, or
        ``int(steps - steps * strength)`` in its pipelines for flow matching.

        Args:
            image: $x_0$, floating.
            noise: $\xi$, standard normal, of the shape of ``image``.
            steps: integer >= 1.
            start: integer >= 0 and < ``steps``.

        Returns:
            an array of the shape and dtype of ``image``.

        Raises:
            TypeError: ``image`` or ``noise`` is not floating.
            ValueError: their shapes differ; as for `Schedule.table`.

        Example:
            >>> config = {"_class_name": "EulerDiscreteScheduler"}
            >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
            >>> image, noise = jnp.ones(3), jnp.array([-1.0, 0.0, 1.0])
            >>> noisy = schedule.add_noise(image, noise, steps=50, start=49)
            >>> [f"{x:.2f}" for x in noisy]
            ['0.99', '1.00', '1.01']
        """
        x_0 = as_image("image", image)
        level = {name: column[0] for name, column in self.table(steps, start).levels.items()}
        return noisy(level, x_0, as_image("noise", noise, x_0.shape))

    def noise_tolerance(self, steps: int, ratio: float, start: int = 0) -> np.ndarray:
        r"""A tolerance for every step, in proportion to its noise: for ``Newton(atol=...)``.

        A state $x_l = \alpha_l x_0 + \sigma_l \xi$ may be wrong by ``ratio`` times the standard
        deviation of the noise that DDPM adds in the next step, whether this sampler adds any or
        not: $\sigma_{l+1} \sqrt{1 - (\alpha_l \sigma_{l+1} / (\alpha_{l+1} \sigma_l))^2}$.

        This is the criterion of ParaDiGMS, but for two differences: here it holds for every entry,
        there for the root mean square of a sample, so the same ratio is stricter here; and the last
        two states, which no such noise follows, have the tolerance of the one before.

        Args:
            steps: integer >= 1, the number of denoising steps.
            ratio: float > 0 (dimensionless). The default of ParaDiGMS is 0.1.
            start: integer >= 0 and < ``steps``, as in `Schedule.table`.

        Returns:
            float64 ``[L]``, in the units of the samples; L is the number of model calls.

        Raises:
            ValueError: ``ratio`` is not a positive number.

        Example:
            >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
            >>> schedule = deeppcr.diffusion.Schedule.from_config(config)
            >>> atol = schedule.noise_tolerance(50, 0.1)
            >>> method = deeppcr.Newton("identity", atol=atol, window=10)
            >>> model = lambda x, t: jnp.tanh(x) * (1 + 0.001 * t)
            >>> x_T = jax.random.normal(jax.random.key(0), (4, 16))
            >>> sample = deeppcr.diffusion.sample
            >>> bool(sample(model, schedule, x_T, steps=50, method=method).converged)
            True

        References:
            A. Shih et al., *Parallel Sampling of Diffusion Models*, NeurIPS 2023, section 3.2.
        """
        is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
        if not (is_number and math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"ratio is {describe(ratio)}, expected a number > 0, such as 0.1.")
        alpha, sigma = self.table(steps, start).levels.values()
        with np.errstate(divide="ignore"):
            level = sigma / alpha  # inf for pure noise
        deviations: list[float] = []
        for index, current in enumerate(level):
            # Some samplers call the model twice at one level: the step leads to a lower one. No
            # lower one is known for the last, which has the deviation of the state before.
            lower = index + 1 + np.flatnonzero(level[index + 1 :] < current)
            if len(lower):
                end = lower[0]
                deviations.append(sigma[end] * np.sqrt(1 - (level[end] / current) ** 2))
            else:
                deviations.append(deviations[-1] if index else 0.0)
        # The state after step l is that before step l + 1.
        return ratio * np.append(deviations[1:], deviations[-1])

    def __repr__(self) -> str:
        scheduler = SCHEDULERS[self.scheduler]
        fields = {**scheduler.fields, **scheduler.options}
        shown = [f"{n}={value!r}" for n, value in self.config if value != fields[n].default]
        return f"Schedule({', '.join([self.scheduler, *shown])})"


def _check_options(name: str, config: Config, options: Config) -> None:
    """Raise unless the scheduler takes these options."""
    for option, value in options.items():
        field = "mu" if option == "image_seq_len" else option
        if field not in SCHEDULERS[name].options:
            schedulers = [key for key, x in SCHEDULERS.items() if field in x.options]
            raise ValueError(
                f"{option} is {describe(value)}, but {name} takes none: expected "
                f"{0 if option == 'eta' else None}, or one of the schedulers {schedulers}."
            )
        if option in NEEDS and not config.get(NEEDS[option], True):
            raise ValueError(
                f"{option} is {describe(value)}, but {NEEDS[option]} is False in the "
                "configuration: expected None, or True there."
            )
    shifts = options.keys() & {"mu", "image_seq_len"}
    if len(shifts) > 1:
        raise ValueError("mu and image_seq_len are given, expected one of them.")
    if config.get("use_dynamic_shifting") and not shifts:
        raise ValueError(
            "use_dynamic_shifting=True: the shift depends on the image; expected image_seq_len, "
            "its number of tokens ((height // 16) * (width // 16) for FLUX), or mu. For the same "
            "shift for all images, take use_dynamic_shifting=False."
        )


def _find_mu(config: Config, image_seq_len: int) -> float:
    """The dynamic shift: linear in the number of tokens, from ``base_shift`` to ``max_shift``."""
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    first, last = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    if first is None or last is None:
        raise ValueError("base_shift or max_shift is None, expected numbers, or mu.")
    return float(first + (last - first) * (image_seq_len - low) / (high - low))
