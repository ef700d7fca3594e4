"""Configurations of diffusers' schedulers, and the model, first sample and noise of all."""

from typing import Any, NamedTuple

import numpy as np

SHAPE = (2, 3, 4)
MATRIX = np.sin(1.7 * np.arange(16)).reshape(4, 4)
FIRST = 1.5 * np.cos(2.3 * np.arange(24)).reshape(SHAPE)
NOISE = 1.4 * np.sin(1.1 * np.arange(20 * 24)).reshape(20, *SHAPE)

SPACINGS = ("leading", "linspace", "trailing")
PREDICTIONS = ("epsilon", "sample", "v_prediction")
BETAS = {
    "scaled": {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    "trained": {"trained_betas": [0.001 * 1.07**i for i in range(60)], "num_train_timesteps": 60},
    "zero_snr": {
        "rescale_betas_zero_snr": True,
        "timestep_spacing": "trailing",
        "prediction_type": "v_prediction",
    },
}
THRESHOLD = {"thresholding": True, "sample_max_value": 1.5, "dynamic_thresholding_ratio": 0.9}


class Case(NamedTuple):
    """A configuration, how many steps, and DDIM's eta."""

    config: dict[str, Any]
    steps: int
    eta: float = 0.0


def model(y: Any, t: Any, xp: Any, matrix: Any) -> Any:
    """A model in torch or jax, by the name of the module."""
    return xp.tanh(xp.matmul(y, matrix)) + 0.2 * xp.sin(0.01 * t)


def kept(samples: np.ndarray) -> np.ndarray:
    """``[3, ...]``: of the samples after each step, those that the golden figures have."""
    return samples[[0, len(samples) // 2, -1]]


def cases() -> dict[str, Case]:
    """The configurations by name."""
    found = {}

    def add(name: str, scheduler: str, steps: int = 12, eta: float = 0.0, **config: Any) -> None:
        assert name not in found
        found[name] = Case({"_class_name": scheduler, **config}, steps, eta)

    def add_common(short: str, scheduler: str, **config: Any) -> None:
        """What all schedulers have that go by betas."""
        for spacing in SPACINGS:
            add(f"{short} {spacing}", scheduler, timestep_spacing=spacing, **config)
        for prediction in PREDICTIONS[2 * (short == "ancestral") :]:
            add(f"{short} {prediction}", scheduler, prediction_type=prediction, **config)
        for betas, fields in BETAS.items():
            add(f"{short} {betas}", scheduler, **(config | fields))
        add(f"{short} offset", scheduler, timestep_spacing="leading", steps_offset=1, **config)
        add(f"{short} one step", scheduler, steps=1, **config)

    ddim, ddpm, dpm = "DDIMScheduler", "DDPMScheduler", "DPMSolverMultistepScheduler"
    euler, ancestral, flow = (
        "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler",
        "FlowMatchEulerDiscreteScheduler",
    )

    add_common("ddim", ddim, clip_sample=False)
    add("ddim clipped", ddim, clip_sample_range=0.8)
    add("ddim threshold", ddim, **THRESHOLD)
    add("ddim eta", ddim, eta=0.7, clip_sample=False)
    add("ddim eta 1 clipped v", ddim, eta=1.0, prediction_type="v_prediction")
    add(
        "ddim last alpha",
        ddim,
        set_alpha_to_one=False,
        steps_offset=1,
        clip_sample=False,
        **BETAS["scaled"],
    )
    add("ddim parallel", "DDIMParallelScheduler", timestep_spacing="trailing")
    add("ddim by 7", ddim, steps=7, timestep_spacing="linspace")

    add_common("ddpm", ddpm, clip_sample=False)
    for variance in ("fixed_small_log", "fixed_large"):
        add(f"ddpm {variance}", ddpm, variance_type=variance, steps_offset=1)
    add("ddpm clipped", ddpm, clip_sample_range=0.8, prediction_type="v_prediction")
    add("ddpm threshold", ddpm, prediction_type="sample", **THRESHOLD)
    add("ddpm parallel", "DDPMParallelScheduler")

    add_common("euler", euler)
    for ramp in ("karras", "exponential"):
        add(f"euler {ramp}", euler, **{f"use_{ramp}_sigmas": True})
        add(
            f"euler {ramp} bounds",
            euler,
            sigma_min=0.05,
            sigma_max=30.0,
            **{f"use_{ramp}_sigmas": True},
        )
    add(
        "euler sigma_min",
        euler,
        final_sigmas_type="sigma_min",
        timestep_spacing="leading",
        **BETAS["scaled"],
    )
    add("euler log_linear", euler, interpolation_type="log_linear")
    add("euler log_linear karras", euler, interpolation_type="log_linear", use_karras_sigmas=True)
    add(
        "euler continuous",
        euler,
        timestep_type="continuous",
        prediction_type="v_prediction",
        use_karras_sigmas=True,
    )

    add_common("ancestral", ancestral)

    add_common("dpm", dpm)
    add("dpm 18 steps", dpm, steps=18, final_sigmas_type="sigma_min", solver_type="heun")
    add("dpm 18 steps, euler", dpm, steps=18, final_sigmas_type="sigma_min", euler_at_final=True)
    add("dpm 18 steps, zero", dpm, steps=18, lower_order_final=False)
    add("dpm higher order at the end", dpm, final_sigmas_type="sigma_min", lower_order_final=False)
    add("dpm lower order at the end", dpm, final_sigmas_type="sigma_min")
    add("dpm order 1", dpm, solver_order=1)
    add("dpm heun", dpm, solver_type="heun")
    add("dpm threshold", dpm, **THRESHOLD)
    add("dpm clipped lambda", dpm, lambda_min_clipped=-5.1, beta_schedule="squaredcos_cap_v2")
    add("dpm karras", dpm, use_karras_sigmas=True, **BETAS["scaled"])
    add("dpm karras cosine", dpm, use_karras_sigmas=True, beta_schedule="squaredcos_cap_v2")
    add("dpm exponential", dpm, use_exponential_sigmas=True)
    add("dpm lu", dpm, use_lu_lambdas=True)
    for solver in ("midpoint", "heun"):
        add(f"sde {solver}", dpm, algorithm_type="sde-dpmsolver++", solver_type=solver)
    add(
        "sde order 1",
        dpm,
        algorithm_type="sde-dpmsolver++",
        solver_order=1,
        prediction_type="v_prediction",
    )
    add(
        "sde threshold karras",
        dpm,
        algorithm_type="sde-dpmsolver++",
        use_karras_sigmas=True,
        **THRESHOLD,
    )

    add("flow", flow)
    add("flow shift", flow, shift=3.0)
    add("flow terminal", flow, shift=3.0, shift_terminal=0.1)
    add("flow karras", flow, use_karras_sigmas=True)
    add("flow exponential", flow, use_exponential_sigmas=True, shift=2.0)
    add("flow inverted", flow, invert_sigmas=True)
    add("flow stochastic", flow, stochastic_sampling=True, shift=2.0)
    add("flow one step", flow, steps=1)
    return found


CASES = cases()
