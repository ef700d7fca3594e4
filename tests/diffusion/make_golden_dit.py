"""Writes ``golden_dit/``: tiny diffusion transformers as diffusers saves them, and its predictions.

Run with diffusers, torch and numpy: ``python tests/diffusion/make_golden_dit.py``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

FOLDER = Path(__file__).parent / "golden_dit"
BATCH, SIDE, STEPS, SCALE = 2, 4, 5, 4.0
TINY: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 4,
    "in_channels": 1,
    "num_layers": 2,
    "sample_size": SIDE,
    "num_embeds_ada_norm": 5,
}
CASES: dict[str, dict[str, Any]] = {
    "learned": {"out_channels": 2},
    "older": {
        "attention_bias": False,
        "activation_fn": "geglu",
        "norm_elementwise_affine": True,
        "num_layers": 1,
    },
}
# Published files name an older class.
OLDER = {
    "_class_name": "Transformer2DModel",
    "cross_attention_dim": None,
    "num_vector_embeds": None,
    "only_cross_attention": False,
    "use_linear_projection": False,
}


def network(options: dict[str, Any]) -> Any:
    """A network with random weights: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(**(TINY | options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.2 * torch.randn(weight.shape)
    return model.half()  # for small files


def sampled(model: Any, x: Any, labels: Any) -> Any:
    """The latents of a guided DDIM sampler: no class is the label after the last one."""
    scheduler = diffusers.DDIMScheduler(clip_sample=False)
    scheduler.save_pretrained(FOLDER / "learned" / "scheduler")
    scheduler.set_timesteps(STEPS)
    for t in scheduler.timesteps:
        both = torch.cat([labels, torch.full_like(labels, TINY["num_embeds_ada_norm"])])
        output = model(torch.cat([x, x]), t.expand(2 * BATCH), both).sample[:, : x.shape[1]]
        with_it, without = output.chunk(2)
        x = scheduler.step(without + SCALE * (with_it - without), t, x).prev_sample
    return x


def main() -> None:
    """Write all cases, in place of those that are there."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, options in CASES.items():
        model = network(options)
        folder = FOLDER / name / "transformer"
        model.save_pretrained(folder)
        model = diffusers.DiTTransformer2DModel.from_pretrained(folder).float()
        x, t = torch.randn(BATCH, 1, SIDE, SIDE), torch.tensor([20, 700])
        labels = torch.tensor([2, 5])
        figures = {"x": x, "t": t, "labels": labels}
        with torch.no_grad():
            figures["predicted"] = model(x, t, labels).sample
            if name == "learned":
                figures["sampled"] = sampled(model, x, labels)
        if name == "older":
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | OLDER, indent=2) + "\n")
        np.savez_compressed(
            FOLDER / name / "golden.npz",
            **{key: figure.numpy() for key, figure in figures.items()},
        )


if __name__ == "__main__":
    main()
