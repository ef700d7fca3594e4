"""Configurations of published models, as they are on disk: schedulers, and networks."""

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

# Those of their networks, but for fields that change nothing.
CROSS_DOWN, CROSS_UP = ["CrossAttnDownBlock2D"] * 3, ["CrossAttnUpBlock2D"] * 3
SD15_UNET = {
    "_class_name": "UNet2DConditionModel",
    "_diffusers_version": "0.6.0",
    "act_fn": "silu",
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "center_input_sample": False,
    "cross_attention_dim": 768,
    "down_block_types": [*CROSS_DOWN, "DownBlock2D"],
    "downsample_padding": 1,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": 4,
    "layers_per_block": 2,
    "mid_block_scale_factor": 1,
    "norm_eps": 1e-05,
    "norm_num_groups": 32,
    "out_channels": 4,
    "sample_size": 64,
    "up_block_types": ["UpBlock2D", *CROSS_UP],
}
SD2_UNET = SD15_UNET | {
    "attention_head_dim": [5, 10, 20, 20],
    "cross_attention_dim": 1024,
    "dual_cross_attention": False,
    "num_class_embeds": None,
    "only_cross_attention": False,
    "sample_size": 96,
    "upcast_attention": True,
    "use_linear_projection": True,
}
SDXL_UNET = SD15_UNET | {
    "addition_embed_type": "text_time",
    "addition_embed_type_num_heads": 64,
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "class_embeddings_concat": False,
    "cross_attention_dim": 2048,
    "down_block_types": ["DownBlock2D", *CROSS_DOWN[:2]],
    "mid_block_only_cross_attention": None,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "projection_class_embeddings_input_dim": 2816,
    "resnet_out_scale_factor": 1.0,
    "sample_size": 128,
    "transformer_layers_per_block": [1, 2, 10],
    "up_block_types": [*CROSS_UP[:2], "UpBlock2D"],
    "upcast_attention": None,
    "use_linear_projection": True,
}
DIT = {
    "_class_name": "Transformer2DModel",
    "_diffusers_version": "0.12.0.dev0",
    "activation_fn": "gelu-approximate",
    "attention_bias": True,
    "attention_head_dim": 72,
    "cross_attention_dim": None,
    "dropout": 0.0,
    "in_channels": 4,
    "norm_elementwise_affine": False,
    "norm_num_groups": 32,
    "norm_type": "ada_norm_zero",
    "num_attention_heads": 16,
    "num_embeds_ada_norm": 1000,
    "num_layers": 28,
    "num_vector_embeds": None,
    "only_cross_attention": False,
    "out_channels": 8,
    "patch_size": 2,
    "sample_size": 32,
    "upcast_attention": False,
    "use_linear_projection": False,
}
NETWORKS = {
    "Stable Diffusion 1.5": SD15_UNET,
    "Stable Diffusion 2": SD2_UNET,
    "SDXL": SDXL_UNET,
    "DiT-XL/2": DIT,
}
