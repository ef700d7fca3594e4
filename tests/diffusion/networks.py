"""What tests of networks share."""

from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import numpy as np

# To compile, not to run.
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def assert_close(ours: Any, theirs: Any, close: float = 1e-5) -> None:
    """Raise unless they differ by at most ``close`` times the largest entry, or 1."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= close * max(1, np.abs(theirs).max())


def with_random_vectors(model: Any, but: Collection[str] = ()) -> Any:
    """A network of torch, whose norms and biases are no longer ones and zeros."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name not in but:
                weight += 0.2 * torch.randn(weight.shape)
    return model
