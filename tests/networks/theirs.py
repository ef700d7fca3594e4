"""Small networks of diffusers with random weights, what they are called with, and what they return."""

import diffusers
import numpy as np
import torch

BATCH, SIDE, TOKENS, WIDTH, CLASSES = 3, 8, 5, 12, 1000
UNET = {
    "sample_size": SIDE,
    "block_out_channels": (4, 8),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "attention_head_dim": 4,
}
TEXT = UNET | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 2,
    "cross_attention_dim": WIDTH,
}
DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "sample_size": SIDE,
    "num_embeds_ada_norm": CLASSES,
}
SMALL = {"UNet2DModel": UNET, "UNet2DConditionModel": TEXT, "DiTTransformer2DModel": DIT}
SDXL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 34,
    "transformer_layers_per_block": (1, 3),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
}
# Each value of each option once: to compile a network takes a second or two.
CASES = {
    "unet, deep, as trained on cifar": {
        "block_out_channels": (8, 8, 16),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 2,
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "unet, attention above, one head, centred": {
        "down_block_types": ("AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D"),
        "attention_head_dim": None,
        "center_input_sample": True,
        "in_channels": 1,
        "out_channels": 2,
    },
    "unet, heads that do not fill the channels": {"attention_head_dim": 3, "act_fn": "gelu"},
    "unet, resampled by residual layers, scale and shift, fourier": {
        "down_block_types": ("AttnDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D"),
        "downsample_type": "resnet",
        "upsample_type": "resnet",
        "resnet_time_scale_shift": "scale_shift",
        "time_embedding_type": "fourier",
        "act_fn": "mish",
    },
    "unet, blocks resampled by residual layers, no attention in the middle, classes": {
        "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("ResnetUpsampleBlock2D", "AttnUpBlock2D"),
        "add_attention": False,
        "mid_block_scale_factor": 1.5,
        "num_class_embeds": 10,
    },
    "unet, scale and shift, norm in the middle, another size of the embedding": {
        "resnet_time_scale_shift": "scale_shift",
        "attn_norm_num_groups": 8,
        "time_embedding_dim": 24,
    },
    "unet, nothing in the middle, odd channels": {
        "mid_block_type": None,
        "block_out_channels": (9, 18),
        "norm_num_groups": 3,
        "act_fn": "relu",
        "dropout": 0.5,
    },
    "text unet, as Stable Diffusion 1, other times": {
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "time_embedding_dim": 24,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1.5,
        "act_fn": "gelu",
    },
    "text unet, as Stable Diffusion 2, scale and shift, centred": {
        "attention_head_dim": (2, 4),
        "use_linear_projection": True,
        "upcast_attention": True,
        "resnet_time_scale_shift": "scale_shift",
        "center_input_sample": True,
        "downsample_padding": 0,
        "norm_eps": 1e-6,
    },
    "text unet, as SDXL": SDXL,
    "text unet, nothing in the middle, heads that do not fill the channels": {
        "mid_block_type": None,
        "in_channels": 3,
        "out_channels": 2,
        "attention_head_dim": 3,
    },
    "dit": {},
    "dit, a learned variance": {"out_channels": 8, "num_layers": 3, "activation_fn": "gelu"},
    "dit, other numbers of channels": {
        "in_channels": 1,
        "out_channels": 3,
        "num_layers": 1,
        "activation_fn": "geglu",
    },
    "dit, heads, and norms with weights": {
        "num_attention_heads": 3,
        "attention_head_dim": 4,
        "norm_num_groups": 7,
        "norm_elementwise_affine": True,
        "norm_eps": 1e-2,
    },
    "dit, patches of one pixel, no bias": {
        "patch_size": 1,
        "sample_size": 5,
        "attention_bias": False,
        "dropout": 0.5,
    },
    "dit, patches of four pixels, attention in float32": {
        "patch_size": 4,
        "sample_size": 16,
        "upcast_attention": True,
    },
}


def theirs(name, options=None, **more):
    """A network of diffusers with random weights, also of norms and biases."""
    kinds = {"unet": 0, "text unet": 1, "dit": 2}
    kind = list(SMALL)[kinds[name.partition(",")[0]]]
    torch.manual_seed(0)
    options = SMALL[kind] | (CASES.get(name, {}) if options is None else options) | more
    model = getattr(diffusers, kind)(**options).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim == 1 and weight_name != "time_proj.weight":
                weight += 0.2 * torch.randn(weight.shape)
    return model


def given(model, side=None, seed=1):
    """Images, and what the network reads besides the time."""
    random, config = np.random.default_rng(seed), model.config
    side = side or config.sample_size
    x = random.standard_normal((BATCH, config.in_channels, side, side), np.float32)
    if isinstance(model, diffusers.UNet2DConditionModel):
        text = random.standard_normal((BATCH, TOKENS, WIDTH), np.float32)
        if config.addition_embed_type is None:
            return x, (text,)
        pooled = random.standard_normal((BATCH, 34 - 6 * 4), np.float32)
        return x, (text, pooled, np.tile([1024, 512, 0, 3, 1024, 1024], (BATCH, 1)))
    if isinstance(model, diffusers.DiTTransformer2DModel):
        return x, (np.array([0, 7, config.num_embeds_ada_norm]),)
    return x, (() if config.num_class_embeds is None else (np.arange(BATCH),))


def predicted(model, x, t, *conditions):
    if isinstance(model, diffusers.UNet2DConditionModel):
        names = ("encoder_hidden_states", "text_embeds", "time_ids")
        kwargs = dict(zip(names, map(torch.as_tensor, conditions), strict=False))
        text = {"encoder_hidden_states": kwargs.pop("encoder_hidden_states")}
        kwargs = text | {"added_cond_kwargs": kwargs or None}
    else:
        kwargs = dict(zip(["class_labels"], map(torch.as_tensor, conditions), strict=False))
    with torch.no_grad():
        return model(torch.as_tensor(x), torch.as_tensor(t), **kwargs).sample.numpy()
