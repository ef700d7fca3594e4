"""Configurations of diffusers' schedulers, and the model, first sample and noise of all.

Every scheduler that goes by betas has all of `COMMON` that it takes; `OWN` has what is its own.
"""

from typing import Any, NamedTuple

import numpy as np

from deeppcr.diffusion import Schedule

SHAPE = (2, 3, 4)
MATRIX = np.sin(1.7 * np.arange(16)).reshape(4, 4)
FIRST = 1.5 * np.cos(2.3 * np.arange(24)).reshape(SHAPE)
IMAGE = np.cos(0.7 * np.arange(24)).reshape(SHAPE)
MASK = np.array([1.0, 0.0, 1.0, 0.5])  # of an image with a part that is known
NOISE = 1.4 * np.sin(1.1 * np.arange(24 * 24)).reshape(24, *SHAPE)

# What is no field of a configuration: arguments of `Schedule.from_config`, and of a sampler.
OPTIONS = ("eta", "mu", "sigmas", "steps", "start")
GIVEN = ("trained_betas", "sigmas")  # too long to be shown

SCALED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
COSINE = {"beta_schedule": "squaredcos_cap_v2"}
TRAINED = {"trained_betas": [0.001 * 1.07**i for i in range(60)], "num_train_timesteps": 60}
V = {"prediction_type": "v_prediction"}
ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing", **V}
COMMON = [
    *({"timestep_spacing": spacing} for spacing in ("leading", "linspace", "trailing")),
    *({"prediction_type": prediction} for prediction in ("epsilon", "sample")),
    *(V, SCALED, COSINE, TRAINED, ZERO_SNR, {"steps": 1}),
    {"timestep_spacing": "leading", "steps_offset": 1},
]
LEAST = {"final_sigmas_type": "sigma_min"}
KARRAS = {"use_karras_sigmas": True}
RAMPS = [KARRAS, {"use_exponential_sigmas": True}, {"use_beta_sigmas": True}]
BOUNDS = {"sigma_min": 0.05, "sigma_max": 30.0}
THRESHOLD = {"thresholding": True, "sample_max_value": 1.5, "dynamic_thresholding_ratio": 0.9}
CLIP = {"clip_sample": True, "clip_sample_range": 0.8}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
MU = {"mu": 0.8, "use_dynamic_shifting": True}
SIGMAS = {"sigmas": np.linspace(1, 1 / 12, 12).tolist()}
DPM, SDE = {"algorithm_type": "dpmsolver"} | LEAST, {"algorithm_type": "sde-dpmsolver"} | LEAST
SDE_PLUS = {"algorithm_type": "sde-dpmsolver++"}
IMAGES = [{"start": 5, "solver_order": order} for order in (2, 3)]

# By scheduler: what all of its cases have, and what it does not take of `COMMON`.
SCHEDULERS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False}, []),
    "ddpm": ("DDPMScheduler", {"clip_sample": False}, []),
    "euler": ("EulerDiscreteScheduler", {}, []),
    "ancestral": ("EulerAncestralDiscreteScheduler", {}, [{"prediction_type": "sample"}]),
    "dpm": ("DPMSolverMultistepScheduler", {}, []),
    "flow": ("FlowMatchEulerDiscreteScheduler", {}, COMMON),
    "plms": ("PNDMScheduler", {"skip_prk_steps": True}, [{"prediction_type": "sample"}, ZERO_SNR]),
    "pndm": ("PNDMScheduler", {}, [{"prediction_type": "sample"}, ZERO_SNR, {"steps": 1}]),
    "heun": ("HeunDiscreteScheduler", {}, [ZERO_SNR]),
    "lms": ("LMSDiscreteScheduler", {}, [ZERO_SNR]),
    "deis": ("DEISMultistepScheduler", {}, [ZERO_SNR]),
    "unipc": ("UniPCMultistepScheduler", {}, []),
    "lcm": ("LCMScheduler", {"steps": 4}, [COMMON[2], SCALED, COSINE, COMMON[-1], COMMON[-2]]),
}
OWN: dict[str, list[dict[str, Any]]] = {
    "ddim": [
        CLIP,
        {"clip_sample": True, **THRESHOLD},
        {"eta": 0.7},
        {"eta": 1.0, "clip_sample": True, **V},
        {"set_alpha_to_one": False, "steps_offset": 1, **SCALED},
        {"steps": 7, "timestep_spacing": "linspace"},
        {"start": 5, "eta": 0.7, **SCALED},
    ],
    "ddpm": [
        *({"beta_schedule": schedule} for schedule in ("sigmoid", "laplace")),
        *(
            {"variance_type": variance, "steps_offset": 1, "clip_sample": True}
            for variance in ("fixed_small_log", "fixed_large", "learned", "learned_range")
        ),
        CLIP | V,
        {"prediction_type": "sample", "clip_sample": True, **THRESHOLD},
        {"start": 11, "clip_sample": True},
    ],
    "euler": [
        *RAMPS,
        *(ramp | BOUNDS for ramp in RAMPS),
        {"timestep_spacing": "leading", **LEAST, **SCALED},
        {"interpolation_type": "log_linear"},
        {"interpolation_type": "log_linear", **KARRAS},
        {"timestep_type": "continuous", **V, **KARRAS},
        {"start": 5, "timestep_spacing": "leading"},
    ],
    "ancestral": [{"start": 3}],
    "dpm": [
        {"steps": 18, "solver_type": "heun", **LEAST},
        {"steps": 18, "euler_at_final": True, **LEAST},
        {"steps": 18, "lower_order_final": False},
        {"lower_order_final": False, **LEAST},
        LEAST,
        {"solver_order": 1},
        {"solver_type": "heun"},
        THRESHOLD,
        {"lambda_min_clipped": -5.1, **COSINE},
        KARRAS | SCALED,
        KARRAS | COSINE,
        {"use_exponential_sigmas": True},
        {"use_beta_sigmas": True},
        {"use_lu_lambdas": True},
        {"use_lu_lambdas": True, "rescale_betas_zero_snr": True},
        {"algorithm_type": "dpmsolver++", "lower_order_final": False, **KARRAS, **LEAST},
        {"lower_order_final": False, **SDE_PLUS, **KARRAS, **LEAST},
        FLOW,
        SDE_PLUS | LEAST | FLOW,
        {"steps": 15, "use_flow_sigmas": True},
        MU | FLOW,
        {"variance_type": "learned"},
        {"variance_type": "learned_range", **SDE_PLUS},
        *({"steps": steps, "solver_order": 3} for steps in (3, 12, 20)),
        {"solver_order": 3, "lower_order_final": False, **LEAST},
        {"solver_order": 3, **KARRAS, **THRESHOLD},
        {"solver_order": 3, **SDE_PLUS},
        *(
            {"solver_type": solver, **kind}
            for kind in (DPM, SDE)
            for solver in ("midpoint", "heun")
        ),
        *({"prediction_type": "sample", **kind} for kind in (DPM, SDE)),
        *(V | kind for kind in (DPM, SDE)),
        {"solver_order": 3, **DPM},
        DPM | THRESHOLD,
        {"algorithm_type": "deis", "solver_type": "bh2", **LEAST},
        *({"solver_type": solver, **SDE_PLUS} for solver in ("midpoint", "heun")),
        {"solver_order": 1, **SDE_PLUS, **V},
        SDE_PLUS | KARRAS | THRESHOLD,
        *IMAGES,
        {"start": 4, **FLOW},
    ],
    "flow": [
        {},
        {"shift": 3.0},
        {"shift": 3.0, "num_train_timesteps": 500},
        {"shift": 3.0, "shift_terminal": 0.1},
        KARRAS,
        {"use_exponential_sigmas": True, "shift": 2.0},
        {"use_beta_sigmas": True},
        {"invert_sigmas": True},
        {"stochastic_sampling": True, "shift": 2.0},
        {"steps": 1},
        {"shift": 3.0, **MU},
        {"time_shift_type": "linear", "shift_terminal": 0.1, **MU},
        MU | SIGMAS,
        {"stochastic_sampling": True, **MU, **SIGMAS},
        {"start": 4, "shift": 3.0},
    ],
    "plms": [
        {"set_alpha_to_one": True, **SCALED},
        *({"steps": steps} for steps in (2, 3, 7)),
        *({"start": start} for start in (1, 5, 11)),
    ],
    "pndm": [{"set_alpha_to_one": True, **SCALED}, {"steps": 4}],
    "heun": [
        *(ramp | SCALED for ramp in RAMPS),
        CLIP,
        {"beta_start": 0.0001, "beta_end": 0.02},
        {"beta_schedule": "exp"},
        {"start": 5},
    ],
    "lms": [
        *(ramp | SCALED for ramp in RAMPS),
        *({"steps": steps} for steps in (2, 3, 4)),
        {"start": 5},
    ],
    "deis": [
        *(ramp | SCALED for ramp in RAMPS),
        *({"solver_order": order} for order in (1, 3)),
        {"steps": 18, "solver_order": 3},
        {"solver_order": 3, "lower_order_final": False},
        THRESHOLD,
        FLOW,
        MU | FLOW,
        {"algorithm_type": "dpmsolver++", "solver_type": "midpoint"},
        *IMAGES,
    ],
    "unipc": [
        *(ramp | SCALED for ramp in RAMPS),
        KARRAS | BOUNDS,
        *({"solver_order": order} for order in (1, 3, 4)),
        {"solver_order": 3, "prediction_type": "sample"},
        {"steps": 18, "solver_order": 3, "lower_order_final": False, **LEAST},
        *(
            {"solver_type": solver, "prediction_type": prediction, "predict_x0": False, **LEAST}
            for solver in ("bh1", "bh2")
            for prediction in ("epsilon", "sample", "v_prediction")
        ),
        {"solver_type": "bh1", **LEAST},
        {"disable_corrector": [0, 1, 5]},
        THRESHOLD,
        THRESHOLD | {"predict_x0": False} | LEAST,
        LEAST | KARRAS,
        {"solver_type": "midpoint"},
        FLOW,
        KARRAS | FLOW,
        {"shift_terminal": 0.1, **LEAST, **FLOW},
        MU | FLOW,
        SIGMAS | FLOW,
        *IMAGES,
    ],
    "lcm": [
        *({"steps": steps} for steps in (1, 8)),
        CLIP,
        THRESHOLD,
        {"steps": 7, "timestep_scaling": 0.01, "original_inference_steps": 40, **COSINE},
        {"beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02},
        {"start": 1},
    ],
}


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


def cases(named: dict[str, list[dict[str, Any]]]) -> dict[str, Case]:
    """By names, which say what is set."""
    found = {}
    for short, configs in named.items():
        scheduler, always, _ = SCHEDULERS[short]
        for config in configs:
            shown = [f"{k}={'given' if k in GIVEN else v}" for k, v in config.items()]
            name, every = (
                f"{short} {', '.join(shown)}",
                {"steps": 12, "start": 0, **always, **config},
            )
            assert name not in found
            options = {option: every.pop(option) for option in OPTIONS if option in every}
            steps, start = options.pop("steps"), options.pop("start")
            found[name] = Case({"_class_name": scheduler, **every}, steps, options, start)
    return found


COMMON_CASES = cases(
    {
        short: [config for config in COMMON if config not in others]
        for short, (_, _, others) in SCHEDULERS.items()
    }
)
OWN_CASES = cases(OWN)
CASES = COMMON_CASES | OWN_CASES
# The same, for the classes of which only one is in the golden figures.
PARALLEL = {
    f"{name}, in parallel": case._replace(config=case.config | {"_class_name": other})
    for name, case in CASES.items()
    for own, other in (
        ("DDIMScheduler", "DDIMParallelScheduler"),
        ("DDPMScheduler", "DDPMParallelScheduler"),
    )
    if case.config["_class_name"] == own
}


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
