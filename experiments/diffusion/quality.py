"""Quality of samples: Wasserstein distances between sets of them, and their classes."""

import numpy as np


def wasserstein(a: np.ndarray, b: np.ndarray) -> float:
    """The Wasserstein-1 distance of two sets of samples in each dimension, averaged over these.

    In one dimension it is the area between the cumulative distributions F and G of the sets, ``∫
    |F(x) - G(x)| dx``.

    Args:
        a: ``[n, dimensions]``, finite.
        b: ``[m, dimensions]``; n and m may differ.

    Returns:
        The mean distance, in units of the samples.

    Example:
        >>> wasserstein(np.zeros((5, 2)), np.array([[1.0, 3.0]]))
        2.0
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise ValueError(
            f"a and b have shapes {a.shape} and {b.shape}, "
            "expected [n, dimensions] and [m, dimensions]."
        )
    a, b = np.sort(a.astype(np.float64), axis=0), np.sort(b.astype(np.float64), axis=0)
    points = np.sort(np.concatenate([a, b]), axis=0)
    areas = [
        np.abs(_below(a[:, d], x) - _below(b[:, d], x))
        @ np.diff(x, append=x[-1])  # no area beyond the last point
        for d, x in enumerate(points.T)
    ]
    return float(np.mean(areas))


def _below(ordered: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The share of entries that are at most x."""
    return np.searchsorted(ordered, x, side="right") / len(ordered)


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The share of samples of the same class by two sets of probabilities, ``[n, classes]``."""
    return float((a.argmax(axis=-1) == b.argmax(axis=-1)).mean())


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The share of samples, ``[n, classes]``, whose likeliest class is the wanted one, ``[n]``."""
    return float((probabilities.argmax(axis=-1) == labels).mean())


def confidence(probabilities: np.ndarray) -> float:
    """The mean probability of the likeliest class."""
    return float(probabilities.max(axis=-1).mean())
