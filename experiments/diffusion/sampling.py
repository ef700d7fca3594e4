"""Programs that sample a trained diffusion model, and the quality of their samples."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr import Solution, diffusion
from deeppcr.diffusion.sampler import step_noise
from experiments.bench.engine import Case, Variant
from experiments.bench.programs import Scan, baselines
from experiments.bench.table import Row
from experiments.diffusion.latent import CLASSES, Generator
from experiments.models import denoiser

TRAINED = {  # the noise levels of training, in the fields of diffusers
    "num_train_timesteps": denoiser.NOISE_LEVELS,
    "beta_start": denoiser.BETAS[0],
    "beta_end": denoiser.BETAS[1],
    "beta_schedule": "linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "trailing",
}
LEADING = {"timestep_spacing": "leading"}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDIM": {"_class_name": "DDIMScheduler", "clip_sample": False},
    "DDPM": {"_class_name": "DDPMScheduler", "clip_sample": False},
    "Euler": {"_class_name": "EulerDiscreteScheduler"},
    "Euler-ancestral": {"_class_name": "EulerAncestralDiscreteScheduler"},
    "DPM-Solver++": {"_class_name": (MULTISTEP := "DPMSolverMultistepScheduler")},
    "SDE-DPM-Solver++": {"_class_name": MULTISTEP, "algorithm_type": "sde-dpmsolver++"},
    "UniPC": {"_class_name": "UniPCMultistepScheduler"},
    "DEIS": {"_class_name": "DEISMultistepScheduler"},
    "LMS": {"_class_name": "LMSDiscreteScheduler"},
    "Heun": {"_class_name": "HeunDiscreteScheduler"},
    "PNDM": {"_class_name": "PNDMScheduler", "skip_prk_steps": True, **LEADING},
}
DRAWS = 4  # batches of noise that each program cycles through
ENOUGH = 32  # samples for statistics of a set


def schedule_of(scheduler: str) -> diffusion.Schedule:
    """The schedule of one of `SCHEDULERS` for models that `experiments.diffusion.latent` trains."""
    return diffusion.Schedule.from_config(TRAINED | SCHEDULERS[scheduler])


@dataclasses.dataclass(frozen=True)
class Setup:
    """A sampling problem.

    Attributes:
        generator: the trained models.
        schedule: whose steps are taken.
        steps: number of steps.
        batch: batch size; samples are of the digits 0, 1, ..., 9, 0, ...
    """

    generator: Generator
    schedule: diffusion.Schedule
    steps: int
    batch: int

    @property
    def named(self) -> Row:
        """The cells that say which problem a row is of."""
        size = {"w": self.generator.size, "L": self.steps, "batch": self.batch}
        kind = "latent" if self.generator.coder else "pixels"
        return {"kind": kind, **size, "direction": "forward"}

    @property
    def labels(self) -> np.ndarray:
        """The digits to sample, of all draws: ``[DRAWS batch]``."""
        return np.tile(np.arange(self.batch, dtype=np.int32) % CLASSES, DRAWS)

    def arguments(self, first: int = 0) -> list[tuple[Any, ...]]:
        """Arguments for each draw: weights, noise ``[batch, size]``, digits, a seed."""
        sigma = self.schedule.init_noise_sigma(self.steps)
        digits = jnp.asarray(self.labels[: self.batch])
        shape = (self.batch, self.generator.size)
        seeds = range(first, first + DRAWS)
        noise = [
            sigma * jax.random.normal(jax.random.key(seed), shape, jnp.float32) for seed in seeds
        ]
        return [
            (self.generator.params, x, digits, np.uint32(DRAWS + seed))
            for seed, x in zip(seeds, noise, strict=True)
        ]

    def sequential(self, scan: Scan = jax.lax.scan) -> Callable[..., Array]:
        """The sequential sampler: a function of the arguments that returns ``[batch, size]``."""
        table = self.schedule.table(self.steps)

        def run(params: Any, x: Array, digits: Array, seed: Array) -> Array:
            model = self._model(params, digits)
            inputs = table.inputs(x.dtype)
            if table.is_noisy:
                inputs["noise"] = step_noise(jax.random.key(seed), self.steps, x)
            step = table.step(model)
            return scan(lambda state, at: (step(state, at), None), table.begin(x), inputs)[0]["x"]

        return run

    def variant(self, options: Mapping[str, Any], samples: list[Array] | None = None) -> Variant:
        """The same by `deeppcr.diffusion.sample` with options; solves append to ``samples``."""

        def solve(params: Any, x: Array, digits: Array, seed: Array) -> Solution:
            return diffusion.sample(
                self._model(params, digits),
                self.schedule,
                x,
                steps=self.steps,
                key=jax.random.key(seed),
                **options,
            )

        jitted = jax.jit(solve)

        def keep(*arguments: Any) -> Solution:
            solution = jitted(*arguments)
            if samples is not None:
                samples.append(solution.value)
            return solution

        return Variant(lambda *arguments: solve(*arguments).value, solve=keep)

    def case(
        self,
        samplers: Mapping[str, Mapping[str, Any]],
        longest_loop: int = 0,
        samples: Mapping[str, list[Array]] | None = None,
        **labels: Any,
    ) -> Case:
        """The sequential samplers, and others by their options; see `variant`."""
        kept = samples or {}
        return Case(
            labels | self.named,
            self.arguments(),
            baselines(self.sequential, self.steps, longest_loop),
            {name: self.variant(one, kept.get(name)) for name, one in samplers.items()},
        )

    def noise(self) -> np.ndarray:
        """The noise of all draws, as images ``[DRAWS batch, 64]``."""
        sigma = self.schedule.init_noise_sigma(self.steps)
        return self.images([x / sigma for _, x, _, _ in self.arguments()])

    def images(self, samples: list[Array]) -> np.ndarray:
        """Samples as images ``[n, 64]``, pixels from -1 to 1."""
        nothing = jnp.zeros((0, self.generator.size), jnp.float32)
        return np.asarray(self.generator.decode(jnp.concatenate([nothing, *samples])))

    def _model(self, params: Any, digits: Array) -> Callable[[Array, Array], Array]:
        return dataclasses.replace(self.generator, params=params).model(digits)


@dataclasses.dataclass(frozen=True)
class Reference:
    """What samples are compared with; images are ``[n, 64]``.

    Attributes:
        sequential: sequential samples from the same noise.
        other: as many from other noise.
        labels: ``[n]``, the digits that were asked for.
        judge: the classifier: probabilities ``[n, 10]``.
    """

    sequential: np.ndarray
    other: np.ndarray
    labels: np.ndarray
    judge: Callable[[np.ndarray], np.ndarray]

    def quality(self, images: np.ndarray) -> Row:
        """Cells on the quality of images ``[n, 64]``; none without images, or after overflow."""
        if not len(images) or not np.isfinite(images).all():
            return {}
        classes = self.judge(images).argmax(axis=-1)
        same = classes == self.judge(self.sequential).argmax(axis=-1)
        found = {
            "W1 to sequential": wasserstein(images, self.sequential),
            "same class": float(same.mean()),
        }
        if len(images) < ENOUGH:
            return found
        return found | {
            "W1, other noise": wasserstein(self.other, self.sequential),
            "accuracy": float((classes == self.labels).mean()),
        }


def wasserstein(a: np.ndarray, b: np.ndarray) -> float:
    """The Wasserstein-1 distance of two sets of samples in each dimension, averaged over these.

    In one dimension it is the area between the cumulative distributions F and G of the sets, ``∫
    |F(x) - G(x)| dx``.

    Args:
        a: ``[n, dimensions]``, finite.
        b: ``[m, dimensions]``; n and m may differ.

    Returns:
        The mean distance, in units of the samples.

    Example:
        >>> wasserstein(np.zeros((5, 2)), np.array([[1.0, 3.0]]))
        2.0
    """
    a, b = np.sort(a.astype(np.float64), axis=0), np.sort(b.astype(np.float64), axis=0)
    points = np.sort(np.concatenate([a, b]), axis=0)
    areas = [
        np.abs(_below(a[:, d], x) - _below(b[:, d], x))
        @ np.diff(x, append=x[-1])  # no area beyond the last point
        for d, x in enumerate(points.T)
    ]
    return float(np.mean(areas))


def _below(ordered: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The share of entries that are at most x."""
    return np.searchsorted(ordered, x, side="right") / len(ordered)
