"""Writes golden.npz: the samples of diffusers for every case, for tests without torch.

python -m tests.diffusion.make_golden, where torch and diffusers are installed.
"""

from pathlib import Path

import numpy as np

from tests.diffusion import reference
from tests.diffusion.cases import CASES, kept

GOLDEN = Path(__file__).parent / "golden.npz"


def main() -> None:
    """For all cases: the times, the deviation of the first sample, and some samples."""
    walks = [reference.walk(case) for case in CASES.values()]
    np.savez_compressed(
        GOLDEN,
        names=list(CASES),
        calls=[len(walk.times) for walk in walks],
        times=np.concatenate([walk.times for walk in walks]),
        sigmas=[walk.init_noise_sigma for walk in walks],
        samples=np.stack([kept(walk.samples) for walk in walks]).astype(np.float32),
    )


if __name__ == "__main__":
    main()
