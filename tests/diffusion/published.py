"""Scheduler configurations of published models, as they are on disk."""

STABLE_DIFFUSION = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
SD2 = STABLE_DIFFUSION | {
    "_class_name": "DDIMScheduler",
    "_diffusers_version": "0.8.0",
    "prediction_type": "v_prediction",
}
SDXL = STABLE_DIFFUSION | {
    "_class_name": "EulerDiscreteScheduler",
    "_diffusers_version": "0.19.0.dev0",
    "interpolation_type": "linear",
    "prediction_type": "epsilon",
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "use_karras_sigmas": False,
}
SD3 = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": "0.29.0.dev0",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}
# By name: the configuration, and the fields that its scheduler does not read.
PUBLISHED = {
    "Stable Diffusion 2": (SD2, {"skip_prk_steps"}),
    "SDXL": (SDXL, {"clip_sample", "sample_max_value", "set_alpha_to_one", "skip_prk_steps"}),
    "Stable Diffusion 3": (SD3, set()),
}
