"""Small UNets of diffusers with random weights, what they are called with, and what they return."""

import diffusers
import numpy as np
import torch

BATCH, SIDE = 3, 8
UNET = {
    "sample_size": SIDE,
    "block_out_channels": (4, 8),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "attention_head_dim": 4,
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
}


def theirs(name, options=None, **more):
    """A UNet of diffusers with random weights, also of norms and biases."""
    torch.manual_seed(0)
    options = UNET | (CASES.get(name, {}) if options is None else options) | more
    model = diffusers.UNet2DModel(**options).eval()
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
    return x, (() if config.num_class_embeds is None else (np.arange(BATCH),))


def predicted(model, x, t, *conditions):
    kwargs = dict(zip(["class_labels"], map(torch.as_tensor, conditions), strict=False))
    with torch.no_grad():
        return model(torch.as_tensor(x), torch.as_tensor(t), **kwargs).sample.numpy()
