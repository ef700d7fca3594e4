"""Writes the folder golden: small networks as diffusers saves them, with inputs and its predictions.

python -m tests.networks.make_golden, where diffusers and torch are installed.
"""

import shutil
from pathlib import Path

import numpy as np

from tests.networks.theirs import given, predicted, theirs

HERE = Path(__file__).parent / "golden"
ONE = {"in_channels": 1, "out_channels": 1}
CASES = {
    "plain": ("unet", ONE),
    "fourier": ("unet, resampled by residual layers, scale and shift, fourier", ONE),
    "classes": (
        "unet, blocks resampled by residual layers, no attention in the middle, classes",
        ONE,
    ),
}


def main() -> None:
    """Write all cases, in place of those that are there."""
    shutil.rmtree(HERE, ignore_errors=True)
    for name, (case, more) in CASES.items():
        model = theirs(case, **more)
        model = model if name in ("plain", "fourier") else model.half()  # for small files
        folder = HERE / name / "unet"
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder).float()
        (x, conditions), t = given(model), np.array([1, 500, 999])
        figures = {"x": x, "t": t, "predicted": predicted(model, x, t, *conditions)}
        figures |= dict(zip(["labels"], conditions, strict=False))
        np.savez_compressed(HERE / name / "golden.npz", **figures)


if __name__ == "__main__":
    main()
