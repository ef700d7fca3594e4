"""Writes the folder golden: small networks as diffusers saves them, with inputs and its predictions.

python -m tests.networks.make_golden, where diffusers and torch are installed.
"""

import json
import shutil
from pathlib import Path

import diffusers
import numpy as np
import torch

from tests.networks.theirs import given, predicted, theirs

HERE = Path(__file__).parent / "golden"
STEPS, SCALE = 5, 4.0
ONE, FEW = {"in_channels": 1, "out_channels": 1}, {"num_embeds_ada_norm": 7, "sample_size": 4}
CASES = {
    "plain": ("unet", ONE),
    "fourier": ("unet, resampled by residual layers, scale and shift, fourier", ONE),
    "classes": (
        "unet, blocks resampled by residual layers, no attention in the middle, classes",
        ONE,
    ),
    "text": ("text unet, as SDXL", ONE),
    "dit": ("dit, a learned variance", ONE | FEW | {"out_channels": 2, "num_layers": 2}),
    "older dit": ("dit, heads, and norms with weights", FEW | {"num_layers": 1}),
}
# Published files name an older class.
OLDER_CLASS = {
    "_class_name": "Transformer2DModel",
    "cross_attention_dim": None,
    "num_vector_embeds": None,
    "only_cross_attention": False,
    "use_linear_projection": False,
}


def sampled(model, x, labels, scheduler):
    """The latents of a guided DDIM sampler: no class is the label after the last one."""
    scheduler.set_timesteps(STEPS)
    none, x = np.full_like(labels, model.config.num_embeds_ada_norm), torch.as_tensor(x)
    for t in scheduler.timesteps:
        with_it, without = (
            torch.as_tensor(predicted(model, x, t.expand(len(x)), each)[:, : x.shape[1]])
            for each in (labels, none)
        )
        x = scheduler.step(without + SCALE * (with_it - without), t, x).prev_sample
    return x.numpy()


def main() -> None:
    """Write all cases, in place of those that are there."""
    shutil.rmtree(HERE, ignore_errors=True)
    for name, (case, more) in CASES.items():
        model = theirs(case, **more)
        model = model if name in ("plain", "fourier") else model.half()  # for small files
        folder = HERE / name / ("transformer" if "dit" in name else "unet")
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder).float()  # positions are not in the file
        (x, conditions), t = given(model), np.array([1, 500, 999])
        figures = {"x": x, "t": t, "predicted": predicted(model, x, t, *conditions)}
        names = ("text", "pooled", "time_ids") if name == "text" else ("labels",)
        figures |= dict(zip(names, conditions, strict=False))
        if name == "dit":
            scheduler = diffusers.DDIMScheduler(clip_sample=False)
            scheduler.save_pretrained(HERE / name / "scheduler")
            figures["sampled"] = sampled(model, x, *conditions, scheduler)
        if name == "older dit":
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | OLDER_CLASS, indent=2) + "\n")
        np.savez_compressed(HERE / name / "golden.npz", **figures)


if __name__ == "__main__":
    main()
