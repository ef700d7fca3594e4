"""Data that needs no network."""

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Examples to train on, and examples held back.

    Attributes:
        train_x: (examples, features), float32; each feature has mean 0 and deviation 1 over these examples.
        train_y: (examples,), int32 class labels.
        test_x: (held back, features), float32, scaled as train_x is.
        test_y: (held back,), int32.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits(held_back: float = 0.2, seed: int = 0) -> Split:
    """scikit-learn's 1797 handwritten digits, 8x8 pixels and ten classes, split and standardised."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=held_back, random_state=seed, stratify=labels)
    mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)
    deviation[deviation == 0] = 1.0  # pixels in the corners are never inked
    scaled = [((x - mean) / deviation).astype(np.float32) for x in (train_x, test_x)]
    return Split(scaled[0], train_y.astype(np.int32), scaled[1], test_y.astype(np.int32))
