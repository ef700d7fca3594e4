"""Data sets that need no network; files of other packages are read without importing these."""

import importlib.util
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

VOWELS = ("aeon", "datasets", "data", "JapaneseVowels")  # the package that has it, and where


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


class Series(NamedTuple):
    """Series of several lengths, and the class of each.

    Attributes:
        x: (n, T, features), float32: zeros after the end of a series.
        lengths: (n,), int32: up to T.
        y: (n,), int32: classes.
    """

    x: np.ndarray
    lengths: np.ndarray
    y: np.ndarray


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


def vowels() -> tuple[Series, Series] | None:
    """Nine men who say two vowels, of 7 to 29 frames: to train on, and to test with; from aeon.

    The class is the speaker. A frame has 12 coefficients of its spectrum, of mean 0 and standard
    deviation 1 over the training set.

    Returns:
        270 and 370 series, of one T; None where aeon is not installed.

    References:
        M. Kudo, J. Toyama, M. Shimbo, *Multidimensional curve classification using passing-through
        regions*, Pattern Recognition Letters 20, 1999.
    """
    package = find_package(VOWELS[0])
    if package is None:
        return None
    folder = package.joinpath(*VOWELS[1:])
    files = (folder / f"{VOWELS[-1]}_{part}.ts" for part in ("TRAIN", "TEST"))
    train, test = (_read_ts(file.read_text()) for file in files)
    frames = np.concatenate([series for series, _ in train])
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)
    longest = max(len(series) for series, _ in train + test)

    def standardised(found: list[tuple[np.ndarray, int]]) -> Series:
        x = np.zeros((len(found), longest, len(mean)), np.float32)
        for row, (series, _) in zip(x, found, strict=True):
            row[: len(series)] = (series - mean) / deviation
        lengths = [len(series) for series, _ in found]
        return Series(x, np.array(lengths, np.int32), np.array([y for _, y in found], np.int32))

    return standardised(train), standardised(test)


def _read_ts(text: str) -> list[tuple[np.ndarray, int]]:
    """The series ``[length, features]`` of a .ts file, and their classes, from 0 on.

    The format: features between colons, the numbers of each between commas, at last the class.
    """
    found = []
    for line in text.split("@data")[1].split():
        *features, label = line.split(":")
        series = np.array([feature.split(",") for feature in features], np.float32).T
        found.append((series, int(label) - 1))
    return found


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


def find_package(name: str) -> Path | None:
    """The folder of a package, or None; it is not imported: its requirements may be missing."""
    found = importlib.util.find_spec(name)
    folders = found.submodule_search_locations if found else None
    return Path(folders[0]) if folders else None
