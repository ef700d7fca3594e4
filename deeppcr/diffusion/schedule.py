"""`Schedule`: the steps of a diffusion sampler, from a configuration of diffusers."""

import dataclasses
import math
from typing import Any

import numpy as np

from deeppcr.checks import check_count, describe, did_you_mean
from deeppcr.diffusion.config import fill, read_config
from deeppcr.diffusion.schedulers import SCHEDULERS
from deeppcr.diffusion.table import Table


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule:
    """The steps of a diffusion sampler, as those of the scheduler in diffusers.

    Made by `Schedule.from_config`. Needs neither diffusers nor torch. Immutable and hashable.

    Attributes:
        scheduler: the name of the scheduler's class in diffusers.
        config: all fields of its configuration, as pairs of a name and a value.
        eta: float >= 0, the weight of the noise in DDIM steps: 0 for none, 1 for that of DDPM.

    Example:
        >>> config = {"_class_name": "DDIMScheduler", "clip_sample": False}
        >>> deeppcr.diffusion.Schedule.from_config(config, eta=0.5)
        Schedule(DDIMScheduler, clip_sample=False, eta=0.5)
    """

    scheduler: str
    config: tuple[tuple[str, Any], ...]
    eta: float = 0.0

    @classmethod
    def from_config(cls, config: Any, *, eta: float = 0.0) -> "Schedule":
        """The schedule with the configuration of a diffusers scheduler.

        Supported are DDPM, DDIM, Euler, Euler ancestral, DPM-Solver++ (multistep, deterministic or
        stochastic, order 1 and 2), and Euler for flow matching.

        Args:
            config: a dict, as saved by diffusers (``"_class_name"`` names the scheduler; missing
                fields have the defaults of diffusers); the path of a ``scheduler_config.json``, or
                of the folder of a scheduler or a pipeline; or a diffusers scheduler object. Fields
                that only other schedulers have are dropped, with one warning that lists them.
            eta: float >= 0, the weight of the noise in DDIM steps; 0 for other schedulers.

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
        found = read_config(config)
        name = found.get("_class_name")
        if name not in SCHEDULERS:
            raise ValueError(
                f"_class_name is {describe(name)}, expected one of "
                f"{list(SCHEDULERS)}{did_you_mean(name, SCHEDULERS)}"
            )
        scheduler = SCHEDULERS[name]
        if not (isinstance(eta, int | float) and math.isfinite(eta) and eta >= 0):
            raise ValueError(f"eta is {eta!r}, expected a number >= 0.")
        if eta and not scheduler.takes_eta:
            raise ValueError(f"eta is {eta!r}, but only DDIM has one: expected 0 for {name}.")
        return cls(name, tuple(fill(found, scheduler.fields, name).items()), float(eta))

    def table(self, steps: int) -> Table:
        """The coefficients of a sampler with ``steps`` steps.

        Args:
            steps: integer >= 1.

        Returns:
            a table of float64 arrays ``[steps]``; among them ``time``, and ``linear_part``, the $a$
            of a step $a x + b model(x, t)$.

        Raises:
            ValueError: the scheduler does not support this number of steps.
        """
        check_count("steps", steps, "how many denoising steps")
        with np.errstate(all="ignore"):  # checked below
            table = SCHEDULERS[self.scheduler].table(dict(self.config), steps, self.eta)
        if not table.is_finite:
            raise ValueError(f"{self} has coefficients that are not finite for steps={steps}.")
        return table

    def init_noise_sigma(self, steps: int) -> float:
        """The standard deviation of the initial noise ``x_T`` for this number of steps."""
        return self.table(steps).init_noise_sigma

    def __repr__(self) -> str:
        fields = SCHEDULERS[self.scheduler].fields
        shown = [(name, value) for name, value in self.config if value != fields[name].default]
        shown += [("eta", self.eta)] if self.eta else []
        return f"Schedule({', '.join([self.scheduler, *(f'{n}={v!r}' for n, v in shown)])})"
