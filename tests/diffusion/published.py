"""Configurations of schedulers of published models, as they are on disk."""

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
SD15 = STABLE_DIFFUSION | {"_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0"}
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
FLUX = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": "0.30.0.dev0",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
OTHERS_OF_SDXL = {"clip_sample", "sample_max_value", "set_alpha_to_one", "skip_prk_steps"}
# By name: the configuration, the fields that its scheduler does not read, and what it takes besides.
PUBLISHED = {
    "Stable Diffusion 1.5": (SD15, {"clip_sample"}, {}),
    "Stable Diffusion 2": (SD2, {"skip_prk_steps"}, {}),
    "SDXL": (SDXL, OTHERS_OF_SDXL, {}),
    "Stable Diffusion 3": (SD3, set(), {}),
    "FLUX": (FLUX, set(), {"image_seq_len": 4096}),
}
