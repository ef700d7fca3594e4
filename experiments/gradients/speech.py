"""The LSTM of a trained speech detector, `silero`: its time and its output."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array

from deeppcr import Newton, TrustRegion
from experiments.bench.engine import Case, Variant
from experiments.bench.programs import SCAN, Setting, baselines
from experiments.bench.table import Row
from experiments.gradients import silero
from experiments.gradients.network import Network

# Its gates mix all units, so that diagonal blocks gain a frame or two an iteration. It amplifies
# differences a little, so that Newton's updates need bounds.
VARIANTS: dict[str, Setting] = {
    "auto": Setting(),
    "newton, trust region": Setting(Newton(linearize="dense", damping=TrustRegion())),
}
KEPT = 640  # frames whose probabilities a row keeps: 20 seconds


@dataclass(frozen=True)
class Detector:
    """The network, and the length of the sound.

    Attributes:
        arrays: its weights: `silero.read_weights`.
        seconds: length of the synthetic speech.
    """

    arrays: silero.Arrays
    seconds: float

    @property
    def network(self) -> Network:
        """The LSTM alone."""
        return Network("lstm", len(self.arrays["lstm_cell.weight_hh"][0]))

    @cached_property
    def arguments(self) -> list[tuple[Any, Any, Array]]:
        """Weights, initial state and inputs of the LSTM, for two sounds."""
        weights = silero.lstm_weights(self.arrays)
        sounds = [
            silero.features(self.arrays, silero.make_sound(self.seconds, seed)) for seed in range(2)
        ]
        return [(weights, self.network.start(1), read[:, None]) for read in sounds]

    @cached_property
    def solves(self) -> dict[str, Any]:
        """Solves of the chain, by variant."""
        return {name: self.network.solve(setting.method) for name, setting in VARIANTS.items()}

    def labels(self, part: str) -> Row:
        """The first cells of its rows."""
        return {"part": part, "kind": "silero-vad lstm", "L": len(self.arguments[0][2])}

    def case(self) -> Case:
        """The LSTM over all frames."""
        labels = self.labels("speech") | {"w": self.network.n, "batch": 1, "direction": "forward"}
        return Case(
            labels,
            arguments=self.arguments,
            baselines=baselines(self.network.states, labels["L"]),
            variants={
                name: Variant(self.network.states(setting.scan), solve=self.solves[name])
                for name, setting in VARIANTS.items()
            },
        )

    def listen(self) -> Iterator[Row]:
        """A row for each variant: the share of speech, and how far it is from lax.scan's output."""
        given = self.arguments[0]
        outputs = {SCAN: jax.jit(self.network.states(jax.lax.scan))(*given)}
        outputs |= {name: solve(*given).trajectory[0] for name, solve in self.solves.items()}
        expected: np.ndarray | None = None
        for name, h in outputs.items():
            found = np.asarray(silero.probabilities(self.arrays, h[:, 0]))
            expected = found if expected is None else expected
            yield self.labels("heard") | {
                "program": name,
                "seconds": self.seconds,
                "share of speech": float(np.mean(found > 0.5)),
                "probabilities differ": float(np.abs(found - expected).max()),
                "probabilities": [round(float(p), 5) for p in found[:KEPT]],
            }
