"""Data sets that need no network."""

import math
from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """A training set and a test set.

    Attributes:
        train_x: (n, features), float32: mean 0 and standard deviation 1, of each
            feature or of all together.
        train_y: (n,), int32: classes.
        test_x: (test, features), float32, with the scale of train_x.
        test_y: (test,), int32.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits(held_back: float = 0.2, seed: int = 0) -> Split:
    """scikit-learn's 1797 handwritten digits, 8x8 pixels, ten classes, split and standardised."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=held_back, random_state=seed, stratify=labels
    )
    mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)
    deviation[deviation == 0] = 1.0  # pixels in the corners are always 0
    scaled = [((x - mean) / deviation).astype(np.float32) for x in (train_x, test_x)]
    return Split(scaled[0], train_y.astype(np.int32), scaled[1], test_y.astype(np.int32))


def batches(count: int, steps: int, batch: int, seed: int) -> np.ndarray:
    """Indices, of ``count``, that each training step sees.

    ``[steps, batch]``, each epoch in a new order.
    """
    random, needed = np.random.default_rng(seed), steps * batch
    epochs = [random.permutation(count) for _ in range(math.ceil(needed / count))]
    return np.concatenate(epochs)[:needed].reshape(steps, batch)


def pixels() -> tuple[np.ndarray, np.ndarray]:
    """All digits of scikit-learn, for generative models.

    ``[1797, 64]``, float32 from -1 to 1, and their classes, int32.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 8 - 1).astype(np.float32), labels.astype(np.int32)
