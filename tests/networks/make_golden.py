"""Writes the golden folders: tiny networks as diffusers saves them, with inputs and its predictions.

python -m tests.networks.make_golden, where diffusers and torch are installed.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

HERE = Path(__file__).parent
BATCH, SIDE, DIT_SIDE, STEPS, SCALE = 2, 8, 4, 5, 4.0
UNET: dict[str, Any] = {
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
FOURIER: dict[str, Any] = UNET | {
    "time_embedding_type": "fourier",
    "resnet_time_scale_shift": "scale_shift",
    "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "ResnetUpsampleBlock2D"),
    "upsample_type": "resnet",
    "act_fn": "mish",
    "num_class_embeds": 3,
}
HALF: dict[str, Any] = UNET | {
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "downsample_padding": 0,
    "attention_head_dim": None,
    "center_input_sample": True,
    "mid_block_scale_factor": 1.5,
    "act_fn": "gelu",
}
TEXT: dict[str, Any] = UNET | {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 2,
    "cross_attention_dim": 6,
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 29,
}
DIT: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 4,
    "in_channels": 1,
    "num_layers": 2,
    "sample_size": DIT_SIDE,
    "num_embeds_ada_norm": 5,
}
OLDER: dict[str, Any] = DIT | {
    "attention_bias": False,
    "activation_fn": "geglu",
    "norm_elementwise_affine": True,
    "num_layers": 1,
}
# Published files name an older class.
OLDER_CLASS = {
    "_class_name": "Transformer2DModel",
    "cross_attention_dim": None,
    "num_vector_embeds": None,
    "only_cross_attention": False,
    "use_linear_projection": False,
}


def randomized(kind: Any, options: dict[str, Any]) -> Any:
    """A network with random weights: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(0)
    model = kind(**options).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name != "time_proj.weight":
                weight += 0.2 * torch.randn(weight.shape)
    return model


def write(folder: str, model: Any, side: int, **given: Any) -> dict[str, Any]:
    """The network, and its predictions for what is given."""
    shutil.rmtree(HERE / folder.partition("/transformer")[0], ignore_errors=True)
    model.save_pretrained(HERE / folder)
    x, t = torch.randn(BATCH, 1, side, side), torch.tensor([20, 700])
    with torch.no_grad():
        predicted = model.float()(x, t, **given).sample
    added = given.pop("added_cond_kwargs", {})
    names = {"class_labels": "labels", "encoder_hidden_states": "text", "text_embeds": "pooled"}
    figures = {names.get(name, name): value for name, value in (given | added).items()}
    return figures | {"x": x, "t": t, "predicted": predicted}


def save(folder: str, figures: dict[str, Any]) -> None:
    """Beside the network."""
    arrays = {name: figure.numpy() for name, figure in figures.items()}
    np.savez_compressed(HERE / folder / "golden.npz", **arrays)


def sampled(model: Any, x: Any, labels: Any, scheduler: Any) -> Any:
    """The latents of a guided DDIM sampler: no class is the label after the last one."""
    scheduler.set_timesteps(STEPS)
    for t in scheduler.timesteps:
        both = torch.cat([labels, torch.full_like(labels, DIT["num_embeds_ada_norm"])])
        with torch.no_grad():
            output = model(torch.cat([x, x]), t.expand(2 * BATCH), both).sample[:, : x.shape[1]]
        with_it, without = output.chunk(2)
        x = scheduler.step(without + SCALE * (with_it - without), t, x).prev_sample
    return x


def main() -> None:
    """Write all cases, in place of those that are there."""
    for name, options in {"plain": UNET, "fourier": FOURIER, "half": HALF}.items():
        model = randomized(diffusers.UNet2DModel, options)
        given = {"class_labels": torch.tensor([2, 0])} if name == "fourier" else {}
        model = model.half() if name == "half" else model
        save(f"golden_unet/{name}", write(f"golden_unet/{name}", model, SIDE, **given))
    text = {
        "encoder_hidden_states": torch.randn(BATCH, 3, 6),
        "added_cond_kwargs": {
            "text_embeds": torch.randn(BATCH, 5),
            "time_ids": torch.tensor([[1024, 512, 0, 3, 1024, 1024]] * BATCH),
        },
    }
    model = randomized(diffusers.UNet2DConditionModel, TEXT).half()
    save("golden_text_unet", write("golden_text_unet/unet", model, SIDE, **text))
    for name, options in {"learned": DIT | {"out_channels": 2}, "older": OLDER}.items():
        folder, labels = f"golden_dit/{name}", torch.tensor([2, 5])
        model = randomized(diffusers.DiTTransformer2DModel, options).half()
        figures = write(f"{folder}/transformer", model, DIT_SIDE, class_labels=labels)
        if name == "learned":
            scheduler = diffusers.DDIMScheduler(clip_sample=False)
            scheduler.save_pretrained(HERE / folder / "scheduler")
            figures["sampled"] = sampled(model, figures["x"], labels, scheduler)
        else:
            path = HERE / folder / "transformer" / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | OLDER_CLASS, indent=2) + "\n")
        save(folder, figures)


if __name__ == "__main__":
    main()
