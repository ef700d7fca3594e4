"""Writes ``golden_unet/`` and ``golden_text_unet/``: tiny networks as diffusers saves them.

With inputs, and its predictions.

Run with diffusers, torch and numpy: ``python tests/diffusion/make_golden_unet.py``.
"""

import shutil
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

FOLDER = Path(__file__).parent / "golden_unet"
BATCH, SIDE = 2, 8
TINY: dict[str, Any] = {
    "sample_size": SIDE,
    "in_channels": 1,
    "out_channels": 1,
    "block_out_channels": (4, 8),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "layers_per_block": 1,
    "norm_num_groups": 2,
    "attention_head_dim": 4,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fourier": {
        "time_embedding_type": "fourier",
        "resnet_time_scale_shift": "scale_shift",
        "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "ResnetUpsampleBlock2D"),
        "upsample_type": "resnet",
        "act_fn": "mish",
        "num_class_embeds": 3,
    },
    "half": {
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "downsample_padding": 0,
        "attention_head_dim": None,
        "center_input_sample": True,
        "mid_block_scale_factor": 1.5,
        "act_fn": "gelu",
    },
}
TEXT_FOLDER = FOLDER.with_name("golden_text_unet")
TINY_TEXT: dict[str, Any] = {
    "sample_size": SIDE,
    "in_channels": 1,
    "out_channels": 1,
    "block_out_channels": (4, 8),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "layers_per_block": 1,
    "norm_num_groups": 2,
    "attention_head_dim": 2,
    "cross_attention_dim": 6,
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 29,
}


def network(options: dict[str, Any]) -> Any:
    """A network with random weights: norms and biases too, which start as ones and zeros."""
    return randomized(diffusers.UNet2DModel, TINY | options)


def randomized(kind: Any, options: dict[str, Any]) -> Any:
    """A network with random weights."""
    torch.manual_seed(0)
    model = kind(**options).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name != "time_proj.weight":
                weight += 0.2 * torch.randn(weight.shape)
    return model


def write_text() -> None:
    """The text-conditional network, in half precision, as SDXL has it."""
    shutil.rmtree(TEXT_FOLDER, ignore_errors=True)
    model = randomized(diffusers.UNet2DConditionModel, TINY_TEXT).half()
    model.save_pretrained(TEXT_FOLDER / "unet")
    x, t = torch.randn(BATCH, 1, SIDE, SIDE), torch.tensor([20, 700])
    text, pooled = torch.randn(BATCH, 3, 6), torch.randn(BATCH, 5)
    time_ids = torch.tensor([[1024, 512, 0, 3, 1024, 1024]] * BATCH)
    added = {"text_embeds": pooled, "time_ids": time_ids}
    with torch.no_grad():
        predicted = model.float()(x, t, text, added_cond_kwargs=added).sample
    figures = {"x": x, "t": t, "text": text, "pooled": pooled, "time_ids": time_ids}
    np.savez_compressed(
        TEXT_FOLDER / "golden.npz",
        predicted=predicted.numpy(),
        **{key: figure.numpy() for key, figure in figures.items()},
    )


def main() -> None:
    """Write all cases, in place of those that are there."""
    write_text()
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, options in CASES.items():
        model = network(options)
        if name == "half":
            model = model.half()
        model.save_pretrained(FOLDER / name)
        x, t = torch.randn(BATCH, 1, SIDE, SIDE), torch.tensor([20, 700])
        given = {"class_labels": torch.tensor([2, 0])} if "num_class_embeds" in options else {}
        with torch.no_grad():
            predicted = model.float()(x, t, **given).sample
        labels = {"labels": given["class_labels"].numpy()} if given else {}
        np.savez_compressed(
            FOLDER / name / "golden.npz",
            x=x.numpy(),
            t=t.numpy(),
            predicted=predicted.numpy(),
            **labels,
        )


if __name__ == "__main__":
    main()
