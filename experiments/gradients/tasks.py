"""What a recurrent network learns here: digits read bit by bit, the parity of many bits.

rows    handwritten digits of scikit-learn, a row of 8 pixels at a time
pixels  the same digits, one pixel at a time: the first of 64 still matters at the end
parity  of 64 random bits: every bit counts, and none may be forgotten. The horizon grows while the
        network learns, from the parity of the first few bits to that of all
"""

from typing import NamedTuple

import numpy as np

from experiments.models.data import digits

BITS = 64
NEAR = 4  # bits of the first horizon
GROWTH = 1.5  # the horizon reaches the end after 1 / GROWTH of the training


class Task(NamedTuple):
    """Series to train on and to test with, and a class at each time.

    Attributes:
        name: of the task.
        units: of the network that learns it.
        steps: of its training on a CPU.
        train_x: ``[n, T, features]``, float32.
        train_y: ``[n, T]``, int32: classes from 0 on.
        test_x: ``[test, T, features]``.
        test_y: ``[test, T]``.
        grows: whether the horizon grows; else only the class at the end counts.
    """

    name: str
    units: int
    steps: int
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    grows: bool

    @property
    def length(self) -> int:
        """T."""
        return self.train_x.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_y.max()) + 1

    def weights(self, done: float) -> np.ndarray:
        """The weight of each time in the loss, ``[T]``, when a share of the training is done."""
        times = np.arange(self.length)
        horizon = max(NEAR, int(self.length * min(1.0, GROWTH * done)))
        counted = times < horizon if self.grows else times == self.length - 1
        return (counted / counted.sum()).astype(np.float32)


def tasks() -> dict[str, Task]:
    """All tasks, by name."""
    found = _digits("rows", 8, 32, 400), _digits("pixels", 64, 32, 400), parity()
    return {task.name: task for task in found}


def parity(count: int = 4000, bits: int = BITS, seed: int = 0) -> Task:
    """The parity of the bits so far."""
    ones = np.random.default_rng(seed).integers(0, 2, (count, bits))
    x, y = (2.0 * ones[..., None] - 1).astype(np.float32), ones.cumsum(1) % 2
    test = count // 8
    y = y.astype(np.int32)
    return Task("parity", 16, 1500, x[test:], y[test:], x[:test], y[:test], grows=True)


def _digits(name: str, length: int, units: int, steps: int) -> Task:
    split = digits()

    def cut(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x.reshape(len(x), length, -1), np.repeat(y[:, None], length, axis=1)

    train, test = cut(split.train_x, split.train_y), cut(split.test_x, split.test_y)
    return Task(name, units, steps, *train, *test, grows=False)
