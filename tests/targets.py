"""Targets that programs are compiled for, if jax has what it takes."""

from typing import Any

import pytest

from experiments.kernels.targets import Unavailable, target


def target_or_skip(name: str) -> Any:
    """The target; without what jax needs to compile for it, the test is skipped, saying what."""
    try:
        return target(name)
    except Unavailable as error:
        pytest.skip(str(error))
