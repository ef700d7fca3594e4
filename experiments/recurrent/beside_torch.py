"""The same networks by torch, where it is installed: `torch.nn.LSTM` and `torch.nn.GRU`.

By all cores and by one thread, which often is faster: torch's threads wait for each other in every
step, and the more so where anything else runs.
"""

import importlib
import importlib.util
from functools import cache
from typing import Any

import jax
import numpy as np

from experiments.bench.engine import Variant

NAME, ALONE = "torch", "torch, one thread"
MODULES: dict[str, tuple[str, dict[str, Any]]] = {  # kind -> class and its options
    "LSTM": ("LSTM", {}),
    "GRU": ("GRU", {}),
    "LSTM, bidirectional": ("LSTM", {"bidirectional": True}),
    "LSTM, two layers": ("LSTM", {"num_layers": 2}),
}


@cache
def threads() -> dict[str, int]:
    """How many threads each program has; nothing without torch, or on an accelerator."""
    if jax.default_backend() != "cpu" or not importlib.util.find_spec(NAME):
        return {}
    return {NAME: importlib.import_module(NAME).get_num_threads(), ALONE: 1}


def programs(kind: str) -> dict[str, Variant]:
    """The value and gradient by all programs of torch."""
    return {name: _program(kind, count) for name, count in threads().items() if kind in MODULES}


def _program(kind: str, count: int) -> Variant:
    torch = importlib.import_module(NAME)
    name, options = MODULES[kind]

    def prepare(weights: Any, xs: Any) -> tuple[Any, Any]:
        module = getattr(torch.nn, name)(xs.shape[-1], xs.shape[-1], **options)
        mine = [array for layer in _layers(weights) for array in _arrays(layer)]
        for parameter, array in zip(module.parameters(), mine, strict=True):
            parameter.data = torch.tensor(np.asarray(array))
        return module, torch.tensor(np.asarray(xs))

    def run(module: Any, xs: Any) -> Any:
        torch.set_num_threads(count)
        value = module(xs)[0].square().mean()
        return value, torch.autograd.grad(value, [*module.parameters()])

    def comparable(result: Any) -> Any:
        """In the order of the leaves of our weights: U, W, b, and c of a GRU."""
        value, found = result[0].item(), [array.numpy() for array in result[1]]
        layers = [found[k : k + 4] for k in range(0, len(found), 4)]
        return value, [(U.T, W.T, b, c)[: 3 + (name == "GRU")] for W, U, b, c in layers]

    return Variant(run, prepare=prepare, comparable=comparable, is_jax=False)


def _layers(weights: Any) -> tuple[Any, ...]:
    return weights if isinstance(weights, tuple) else (weights,)


def _arrays(layer: Any) -> tuple[Any, ...]:
    """As torch has them; an LSTM has a second bias there."""
    second = layer.get("c", np.zeros_like(layer["b"]))
    return np.transpose(layer["W"]), np.transpose(layer["U"]), layer["b"], second
