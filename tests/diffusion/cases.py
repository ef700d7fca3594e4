"""Configurations of diffusers' schedulers, and the model, first sample and noise of all."""

from typing import Any, NamedTuple

import numpy as np

from deeppcr.diffusion import Schedule

SHAPE = (2, 3, 4)
MATRIX = np.sin(1.7 * np.arange(16)).reshape(4, 4)
FIRST = 1.5 * np.cos(2.3 * np.arange(24)).reshape(SHAPE)
IMAGE = np.cos(0.7 * np.arange(24)).reshape(SHAPE)
MASK = np.array([1.0, 0.0, 1.0, 0.5])  # of an image with a part that is known
NOISE = 1.4 * np.sin(1.1 * np.arange(24 * 24)).reshape(24, *SHAPE)

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
RAMP = {
    "karras": {"use_karras_sigmas": True},
    "exponential": {"use_exponential_sigmas": True},
    "beta": {"use_beta_sigmas": True},
    "lu": {"use_lu_lambdas": True},
}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
OPTIONS = ("eta", "mu", "sigmas")
THRESHOLD = {"thresholding": True, "sample_max_value": 1.5, "dynamic_thresholding_ratio": 0.9}


class Case(NamedTuple):
    """A configuration, how many steps, and options of `Schedule.from_config`.

    Where steps are left out at the start, samples start from an image and keep a part of it.
    """

    config: dict[str, Any]
    steps: int
    options: dict[str, Any]
    start: int = 0

    def schedule(self) -> Schedule:
        """Ours."""
        return Schedule.from_config(self.config, **self.options)

    @property
    def eta(self) -> float:
        """That of DDIM."""
        return self.options.get("eta", 0.0)

    @property
    def given(self) -> dict[str, float]:
        """What `set_timesteps` of diffusers takes."""
        return {"mu": self.options["mu"]} if "mu" in self.options else {}

    @property
    def is_wide(self) -> bool:
        """Whether rounding in diffusers' float32 exceeds the tolerance: for DEIS, near pure noise.

        There it subtracts numbers of the size of ``1 / (1 - sigma)``.
        """
        return "DEIS" in self.config["_class_name"] and "use_flow_sigmas" in self.config

    @property
    def is_learned(self) -> bool:
        """Whether the model also returns a variance."""
        return str(self.config.get("variance_type")).startswith("learned")


def doubled(model: Any) -> Any:
    """The model, and a learned variance: channels are axis 1."""

    def both(y: Any, t: Any, xp: Any, matrix: Any) -> Any:
        output = model(y, t, xp, matrix)
        return xp.concatenate([output, output**2 / 2 + 0.1], axis=1)

    return both


def model(y: Any, t: Any, xp: Any, matrix: Any) -> Any:
    """A model in torch or jax, by the name of the module."""
    return xp.tanh(xp.matmul(y, matrix)) + 0.2 * xp.sin(0.01 * t)


def kept(samples: np.ndarray) -> np.ndarray:
    """``[3, ...]``: of the samples after each step, those that the golden figures have."""
    return samples[[0, len(samples) // 2, -1]]


def cases() -> dict[str, Case]:
    """The configurations by name."""
    found = {}

    def add(name: str, scheduler: str, steps: int = 12, start: int = 0, **config: Any) -> None:
        assert name not in found
        options = {option: config.pop(option) for option in OPTIONS if option in config}
        found[name] = Case({"_class_name": scheduler, **config}, steps, options, start)

    def add_common(short: str, scheduler: str, **config: Any) -> None:
        """What all schedulers have that go by betas."""
        for spacing in SPACINGS:
            add(f"{short} {spacing}", scheduler, timestep_spacing=spacing, **config)
        for prediction in PREDICTIONS[2 * (short in ("ancestral", "pndm", "plms")) :]:
            add(f"{short} {prediction}", scheduler, prediction_type=prediction, **config)
        for betas, fields in BETAS.items():
            if betas != "zero_snr" or short not in ("pndm", "plms", "heun", "lms", "deis"):
                add(f"{short} {betas}", scheduler, **(config | fields))
        add(f"{short} offset", scheduler, timestep_spacing="leading", steps_offset=1, **config)
        if short != "pndm":
            add(f"{short} one step", scheduler, steps=1, **config)

    def add_ramps(short: str, scheduler: str, *others: str, **config: Any) -> None:
        """What all schedulers have that take another curve of sigmas."""
        for ramp in ("karras", "exponential", "beta", *others):
            add(f"{short} {ramp}", scheduler, **config, **BETAS["scaled"], **RAMP[ramp])

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
    add("ddim by 7", ddim, steps=7, timestep_spacing="linspace")

    add_common("ddpm", ddpm, clip_sample=False)
    for schedule in ("sigmoid", "laplace"):
        add(f"ddpm {schedule}", ddpm, beta_schedule=schedule)
    for variance in ("fixed_small_log", "fixed_large", "learned", "learned_range"):
        add(f"ddpm {variance}", ddpm, variance_type=variance, steps_offset=1)
    add("ddpm clipped", ddpm, clip_sample_range=0.8, prediction_type="v_prediction")
    add("ddpm threshold", ddpm, prediction_type="sample", **THRESHOLD)

    add_common("euler", euler)
    for ramp in ("karras", "exponential", "beta"):
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
    for solver in ("dpmsolver++", "sde-dpmsolver++"):
        add(
            f"{solver} karras sigma_min",
            dpm,
            use_karras_sigmas=True,
            algorithm_type=solver,
            final_sigmas_type="sigma_min",
            lower_order_final=False,
        )
    add("dpm beta", dpm, use_beta_sigmas=True)
    add("dpm flow", dpm, **FLOW)
    add(
        "dpm flow sigma_min sde",
        dpm,
        algorithm_type="sde-dpmsolver++",
        final_sigmas_type="sigma_min",
        **FLOW,
    )
    add("dpm lu zero_snr", dpm, use_lu_lambdas=True, rescale_betas_zero_snr=True)
    add("dpm flow, 15 steps", dpm, steps=15, use_flow_sigmas=True)
    add("dpm flow dynamic", dpm, mu=0.8, use_dynamic_shifting=True, **FLOW)
    add("dpm learned", dpm, variance_type="learned")
    add("dpm learned_range", dpm, variance_type="learned_range", algorithm_type="sde-dpmsolver++")
    for steps in (3, 12, 20):
        add(f"dpm order 3, {steps} steps", dpm, steps=steps, solver_order=3)
    add(
        "dpm order 3, final",
        dpm,
        solver_order=3,
        lower_order_final=False,
        final_sigmas_type="sigma_min",
    )
    add("dpm order 3 threshold karras", dpm, solver_order=3, use_karras_sigmas=True, **THRESHOLD)
    add("sde order 3", dpm, solver_order=3, algorithm_type="sde-dpmsolver++")
    for kind in ("dpmsolver", "sde-dpmsolver"):
        for solver in ("midpoint", "heun"):
            add(
                f"{kind} {solver}",
                dpm,
                algorithm_type=kind,
                solver_type=solver,
                final_sigmas_type="sigma_min",
            )
        for prediction in PREDICTIONS[1:]:
            add(
                f"{kind} {prediction}",
                dpm,
                algorithm_type=kind,
                prediction_type=prediction,
                final_sigmas_type="sigma_min",
            )
    add(
        "dpmsolver order 3",
        dpm,
        solver_order=3,
        algorithm_type="dpmsolver",
        final_sigmas_type="sigma_min",
    )
    add(
        "dpmsolver threshold",
        dpm,
        algorithm_type="dpmsolver",
        final_sigmas_type="sigma_min",
        **THRESHOLD,
    )
    add(
        "dpm aliases",
        dpm,
        algorithm_type="deis",
        solver_type="bh2",
        final_sigmas_type="sigma_min",
    )
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
    add("flow shift of 500", flow, shift=3.0, num_train_timesteps=500)
    add("flow terminal", flow, shift=3.0, shift_terminal=0.1)
    add("flow karras", flow, use_karras_sigmas=True)
    add("flow exponential", flow, use_exponential_sigmas=True, shift=2.0)
    add("flow inverted", flow, invert_sigmas=True)
    add("flow stochastic", flow, stochastic_sampling=True, shift=2.0)
    add("flow one step", flow, steps=1)
    add("flow beta", flow, use_beta_sigmas=True)
    add("flow dynamic", flow, mu=0.9, use_dynamic_shifting=True, shift=3.0)
    add(
        "flow dynamic linear",
        flow,
        mu=0.9,
        use_dynamic_shifting=True,
        time_shift_type="linear",
        shift_terminal=0.1,
    )
    add(
        "flow dynamic sigmas",
        flow,
        mu=1.1,
        use_dynamic_shifting=True,
        sigmas=np.linspace(1, 1 / 12, 12).tolist(),
    )
    add(
        "flow dynamic sigmas stochastic",
        flow,
        mu=1.1,
        use_dynamic_shifting=True,
        sigmas=np.linspace(1, 1 / 12, 12).tolist(),
        stochastic_sampling=True,
    )

    pndm = "PNDMScheduler"
    add_common("plms", pndm, skip_prk_steps=True)
    add("plms last alpha", pndm, skip_prk_steps=True, set_alpha_to_one=True, **BETAS["scaled"])
    for steps in (2, 3, 7):
        add(f"plms {steps} steps", pndm, steps=steps, skip_prk_steps=True)
    add_common("pndm", pndm)
    add("pndm last alpha", pndm, set_alpha_to_one=True, **BETAS["scaled"])
    add("pndm 4 steps", pndm, steps=4)

    heun = "HeunDiscreteScheduler"
    add_common("heun", heun)
    add_ramps("heun", heun)
    add("heun clipped", heun, clip_sample=True, clip_sample_range=0.8)
    add("heun linear", heun, beta_start=0.0001, beta_end=0.02)
    add("heun exp", heun, beta_schedule="exp")

    lms = "LMSDiscreteScheduler"
    add_common("lms", lms)
    add_ramps("lms", lms)
    for steps in (2, 3, 4):
        add(f"lms {steps} steps", lms, steps=steps)

    deis = "DEISMultistepScheduler"
    add_common("deis", deis)
    add_ramps("deis", deis)
    for order in (1, 3):
        add(f"deis order {order}", deis, solver_order=order)
    add("deis 18 steps, order 3", deis, steps=18, solver_order=3)
    add("deis final", deis, solver_order=3, lower_order_final=False)
    add("deis threshold", deis, **THRESHOLD)
    add("deis flow", deis, **FLOW)
    add("deis flow dynamic", deis, mu=0.8, use_dynamic_shifting=True, **FLOW)
    add("deis aliases", deis, algorithm_type="dpmsolver++", solver_type="midpoint")

    unipc = "UniPCMultistepScheduler"
    add_common("unipc", unipc)
    add_ramps("unipc", unipc)
    add("unipc karras bounds", unipc, sigma_min=0.05, sigma_max=30.0, use_karras_sigmas=True)
    for order in (1, 3, 4):
        add(f"unipc order {order}", unipc, solver_order=order)
    add("unipc order 3, sample", unipc, solver_order=3, prediction_type="sample")
    add(
        "unipc 18 steps, order 3, final",
        unipc,
        steps=18,
        solver_order=3,
        lower_order_final=False,
        final_sigmas_type="sigma_min",
    )
    for solver in ("bh1", "bh2"):
        for prediction in PREDICTIONS:
            add(
                f"unipc {solver} {prediction} noise",
                unipc,
                solver_type=solver,
                prediction_type=prediction,
                predict_x0=False,
                final_sigmas_type="sigma_min",
            )
    add("unipc bh1", unipc, solver_type="bh1", final_sigmas_type="sigma_min")
    add("unipc no corrector", unipc, disable_corrector=[0, 1, 5])
    add("unipc threshold", unipc, **THRESHOLD)
    add("unipc sigma_min karras", unipc, final_sigmas_type="sigma_min", use_karras_sigmas=True)
    add("unipc aliases", unipc, solver_type="midpoint")
    add("unipc flow", unipc, **FLOW)
    add("unipc flow karras", unipc, use_karras_sigmas=True, **FLOW)
    add("unipc flow sigma_min", unipc, final_sigmas_type="sigma_min", shift_terminal=0.1, **FLOW)
    add("unipc flow dynamic", unipc, mu=0.8, use_dynamic_shifting=True, **FLOW)
    add("unipc flow sigmas", unipc, sigmas=np.linspace(1, 1 / 12, 12).tolist(), **FLOW)

    lcm = "LCMScheduler"
    for steps in (1, 4, 8):
        add(f"lcm {steps} steps", lcm, steps=steps)
    for prediction in PREDICTIONS[1:]:
        add(f"lcm {prediction}", lcm, steps=4, prediction_type=prediction)
    add("lcm clipped", lcm, steps=4, clip_sample=True, clip_sample_range=0.8)
    add("lcm threshold", lcm, steps=4, **THRESHOLD)
    add(
        "lcm scaling",
        lcm,
        steps=7,
        timestep_scaling=0.01,
        original_inference_steps=40,
        **BETAS["cosine"],
    )
    add("lcm trained", lcm, steps=4, **BETAS["trained"])
    add("lcm linear", lcm, steps=4, beta_schedule="linear", beta_start=0.0001, beta_end=0.02)
    add("lcm zero_snr", lcm, steps=4, **BETAS["zero_snr"])

    # From a noisy image, of which a part is kept.
    add("ddim image", ddim, start=5, eta=0.7, **BETAS["scaled"])
    add("ddpm image", ddpm, start=11)
    add("euler image", euler, start=5, timestep_spacing="leading")
    add("ancestral image", ancestral, start=3)
    for order in (2, 3):
        add(f"dpm order {order} image", dpm, start=5, solver_order=order)
        add(f"deis order {order} image", deis, start=5, solver_order=order)
        add(f"unipc order {order} image", unipc, start=5, solver_order=order)
    add("dpm flow image", dpm, start=4, **FLOW)
    add("flow image", flow, start=4, shift=3.0)
    for start in (1, 5, 11):
        add(f"plms image from {start}", pndm, start=start, skip_prk_steps=True)
    add("heun image", heun, start=5)
    add("lms image", lms, start=5)
    add("lcm image", lcm, steps=4, start=1)
    return found


CASES = cases()
# The same, for the classes of which only one is in the golden figures.
PARALLEL = {
    f"{name}, {other}": case._replace(config=case.config | {"_class_name": other})
    for name, case in CASES.items()
    for own, other in (
        ("DDIMScheduler", "DDIMParallelScheduler"),
        ("DDPMScheduler", "DDPMParallelScheduler"),
    )
    if case.config["_class_name"] == own
}
