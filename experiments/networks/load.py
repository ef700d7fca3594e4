"""`load_model`: a UNet from a folder of diffusers, whose weights must all match by name."""

import json
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from deeppcr.diffusion.config import fill
from experiments.networks.unet import FIELDS, UNet

NAME = "UNet2DModel"  # of the class in diffusers
WEIGHTS = "diffusion_pytorch_model.safetensors"
FOLDERS = ("", "unet")  # where that of a pipeline has its network

# Flax keeps kernels as [.., inputs, outputs]; torch keeps weights as [outputs, inputs, ..].
NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
TORCH_AXES = {2: (1, 0), 4: (3, 2, 0, 1)}
# Earlier names of attention layers in UNets, which diffusers also reads.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def load_model(folder: Any, dtype: Any = None) -> Any:
    """Load a trained `UNet2DModel` of diffusers as a flax module: ``model(x, t)``.

    With class embeddings it is ``model(x, t, labels)``. ``x`` is floating, ``[batch, channels,
    height, width]``, and ``t`` and ``labels`` are scalars or ``[batch]``. The result has the shape
    and dtype of ``x``, with the model's number of output channels. The module is for sampling: it
    has no dropout. To convert a folder with a torch ``.bin`` file, run
    ``UNet2DModel.from_pretrained(old).save_pretrained(new)`` in diffusers.

    Args:
        folder: a path with ``config.json`` and ``diffusion_pytorch_model.safetensors``, or with its
            shards and their index; or the folder of a pipeline that has these in ``unet``.
        dtype: a floating dtype, of the parameters and the computation. None for float32, as in
            diffusers, whatever the dtype in the files.

    Returns:
        the module.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ValueError: the network is not supported; a field of ``config.json`` is unknown or not
            supported; a weight is missing, unexpected, or has another shape.

    Example:
        >>> unet = load_model("ddpm-cifar10-32")  # doctest: +SKIP
        >>> of = deeppcr.diffusion.Schedule.from_config
        >>> schedule = of("ddpm-cifar10-32")  # doctest: +SKIP
        >>> x = jax.random.normal(jax.random.key(0), (2, 3, 32, 32))
        >>> images = deeppcr.diffusion.sample(unet, schedule, x, steps=50)  # doctest: +SKIP
    """
    places = [Path(folder) / name for name in FOLDERS]
    place = next((each for each in places if (each / "config.json").is_file()), None)
    if place is None:
        raise FileNotFoundError(
            f"folder is {str(folder)!r}, expected one with config.json, or with unet/config.json."
        )
    graph, parameters = nnx.split(build(json.loads((place / "config.json").read_text())))
    flat = nnx.to_flat_state(parameters)
    weights = dict(_read(place))
    _check(weights, dict(stored(*leaf) for leaf in flat))
    loaded = []
    for path, variable in flat:
        value = weights[stored(path, variable)[0]]
        if path[-1] == "kernel":
            value = value.transpose(np.argsort(TORCH_AXES[value.ndim]))
        value = value.astype(jnp.dtype(dtype or jnp.float32))
        loaded.append((path, variable.replace(jax.device_put(value))))
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def build(config: Mapping[str, Any]) -> Any:
    """The network of a configuration, with shapes in place of its weights."""
    name = config.get("_class_name", NAME)
    if name != NAME:
        raise ValueError(
            f"_class_name is {name!r}, expected {NAME!r}; sample takes any JAX function."
        )
    filled = fill(config, FIELDS, NAME, others=())
    hashable = namedtuple("Config", filled)(**filled)
    return nnx.eval_shape(lambda: UNet(hashable))


def stored(path: tuple[Any, ...], parameter: Any) -> tuple[str, tuple[int, ...]]:
    """The name and the shape of the weight of a parameter in a file."""
    shape = parameter.shape
    if path[-1] == "kernel":
        shape = tuple(shape[axis] for axis in TORCH_AXES[len(shape)])
    return ".".join([*map(str, path[:-1]), NAMES.get(path[-1], path[-1])]), shape


def _read(folder: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """All weights by name, from one file or from shards."""
    from safetensors.numpy import load_file

    index = folder / f"{WEIGHTS}.index.json"
    names = {WEIGHTS}
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        if not (folder / name).is_file():
            there = sorted(path.name for path in folder.iterdir())
            raise FileNotFoundError(
                f"folder is {str(folder)!r}, expected {name} in it, found {there}."
            )
        for weight, value in load_file(folder / name).items():
            *path, layer, kind = ["", *weight.split(".")]
            yield ".".join([*path, OLD_NAMES.get(layer, layer), kind]).removeprefix("."), value


def _check(weights: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless the weights have these names and shapes."""
    lacking, superfluous = shapes.keys() - weights.keys(), weights.keys() - shapes.keys()
    if lacking or superfluous:
        raise ValueError(
            f"the file of weights lacks {sorted(lacking)[:5]} ({len(lacking)} in all), and also "
            f"has {sorted(superfluous)[:5]} ({len(superfluous)}), expected the weights of the "
            "model in config.json."
        )
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ValueError(
                f"{name} has shape {list(weights[name].shape)}, expected {list(shape)} by "
                "config.json."
            )
