"""Writes ``golden_unet/``: tiny networks as diffusers saves them, inputs, and its predictions.

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


def network(options: dict[str, Any]) -> Any:
    """A network with random weights: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(**(TINY | options)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name != "time_proj.weight":
                weight += 0.2 * torch.randn(weight.shape)
    return model


def main() -> None:
    """Write all cases, in place of those that are there."""
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
