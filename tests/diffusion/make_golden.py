"""Writes golden.npz: the samples of diffusers for every case, for tests without torch.

And parity.jsonl: how far ours are from them, over every case. The tables of the documentation are
made of it.

python -m tests.diffusion.make_golden, where torch and diffusers are installed.
"""

import json
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import torch

from tests.diffusion import ours, reference
from tests.diffusion.cases import CASES, GIVEN, PARALLEL, kept

HERE = Path(__file__).parent


def main() -> None:
    """For all cases: the times, the deviation of the first sample, and some samples."""
    walks = {name: reference.walk(case) for name, case in (CASES | PARALLEL).items()}
    golden = [walks[name] for name in CASES]
    np.savez_compressed(
        HERE / "golden.npz",
        names=list(CASES),
        calls=[len(walk.times) for walk in golden],
        times=np.concatenate([walk.times for walk in golden]),
        sigmas=[walk.init_noise_sigma for walk in golden],
        samples=np.stack([kept(walk.samples) for walk in golden]).astype(np.float32),
    )
    rows = [{"diffusers": diffusers.__version__, "torch": torch.__version__}]
    rows += [compared(name, walk) for name, walk in walks.items()]
    lines = [json.dumps(row) + "\n" for row in rows]
    (HERE / "parity.jsonl").write_text("".join(lines), encoding="utf-8")


def compared(name: str, walk: reference.Walk) -> dict[str, Any]:
    """A case: the fields that it sets, and the largest difference, relative to each sample."""
    case = (CASES | PARALLEL)[name]
    scale = np.abs(walk.samples).max(axis=(1, 2, 3), keepdims=True)
    difference = np.abs((ours.walk(case) - walk.samples) / scale).max()
    fields = {field: value for field, value in case.config.items() if field[0] != "_"}
    fields |= case.options
    fields |= dict.fromkeys(fields.keys() & set(GIVEN), "given")
    if case.start:
        fields |= {"start": case.start, "inpaint": "given"}
    return {
        "case": name,
        "scheduler": case.config["_class_name"],
        "steps": case.steps,
        "fields": fields,
        "difference": float(f"{difference:.1e}"),
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
