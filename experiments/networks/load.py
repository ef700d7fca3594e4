"""`load_model`: a network from a folder of diffusers, whose weights must all match by name."""

import json
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from deeppcr.diffusion.config import Field, fill
from experiments.networks import dit, text_unet, unet
from experiments.networks.layers import STACKED

# By the name of the class in diffusers: the fields of its configuration, and the module.
NETWORKS: dict[str, tuple[Mapping[str, Field], Callable[[Any], nnx.Module]]] = {
    "DiTTransformer2DModel": (dit.FIELDS, dit.DiT),
    "Transformer2DModel": (dit.OLDER_FIELDS, dit.DiT),
    "UNet2DConditionModel": (text_unet.FIELDS, text_unet.TextUNet),
    "UNet2DModel": (unet.FIELDS, unet.UNet),
}
WEIGHTS = "diffusion_pytorch_model.safetensors"
FOLDERS = ("", "unet", "transformer")  # where that of a pipeline has its network

# Flax keeps kernels as [.., inputs, outputs]; torch keeps weights as [outputs, inputs, ..].
NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
TORCH_AXES = {2: (1, 0), 4: (3, 2, 0, 1)}
# Earlier names of attention layers in UNets, which diffusers also reads.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def load_model(folder: Any, dtype: Any = None) -> Any:
    """Load a trained network of diffusers as a flax module, whose calls are those of diffusers.

    ``"_class_name"`` in its ``config.json`` says which network it is:

    - `UNet2DModel`: ``model(x, t)``, or ``model(x, t, labels)`` with class embeddings;
    - `UNet2DConditionModel`: ``model(x, t, text)`` with the embeddings of a text, [batch, tokens,
      channels]; for SDXL ``model(x, t, text, pooled, time_ids)``;
    - `DiTTransformer2DModel`, in older files `Transformer2DModel`: ``model(x, t, labels)``, where
      the label ``model.null_label`` is that of no class.

    Images of the last two are latents. The autoencoder that decodes them, and what encodes a text,
    are not loaded.

    ``x`` is floating, ``[batch, channels, height, width]``, and ``t`` and ``labels`` are scalars or
    ``[batch]``. The result has the shape and dtype of ``x``, with the model's number of output
    channels; twice those of ``x`` for a learned variance. The module is for sampling: it has no
    dropout. To convert a folder with a torch ``.bin`` file, run
    ``UNet2DModel.from_pretrained(old).save_pretrained(new)`` in diffusers, with the class of the
    network.

    Args:
        folder: a path with ``config.json`` and ``diffusion_pytorch_model.safetensors``, or with its
            shards and their index; or the folder of a pipeline that has these in ``unet`` or
            ``transformer``.
        dtype: a floating dtype, of the parameters and the computation. None for float32, as in
            diffusers, whatever the dtype in the files.

    Returns:
        the module.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ValueError: the network is not supported; a field of ``config.json`` is unknown or not
            supported; a weight is missing, unexpected, or has another shape.

    Example:
        >>> dit = load_model("facebook/DiT-XL-2-256")  # doctest: +SKIP
        >>> of = deeppcr.diffusion.Schedule.from_config
        >>> schedule = of("facebook/DiT-XL-2-256")  # doctest: +SKIP
        >>> x = jax.random.normal(jax.random.key(0), (2, 4, 32, 32))
        >>> labels, none = jnp.array([207, 360]), jnp.full(2, 1000)
        >>> latents = deeppcr.diffusion.sample(  # doctest: +SKIP
        ...     deeppcr.diffusion.guided(dit, 4.0), schedule, x, steps=50, args=(labels, none)
        ... ).value
    """
    places = [Path(folder) / name for name in FOLDERS]
    place = next((each for each in places if (each / "config.json").is_file()), None)
    if place is None:
        raise FileNotFoundError(
            f"folder is {str(folder)!r}, expected one with config.json, or with one of "
            f"{[f'{name}/config.json' for name in FOLDERS[1:]]}."
        )
    graph, parameters = nnx.split(build(json.loads((place / "config.json").read_text())))
    flat = nnx.to_flat_state(parameters)
    weights = dict(_read(place))
    _check(weights, {name: shape for leaf in flat for name, shape in stored(*leaf)})
    loaded = []
    for path, variable in flat:
        each = [weights[name] for name, _ in stored(path, variable)]
        if path[-1] == "kernel":
            each = [weight.transpose(np.argsort(TORCH_AXES[weight.ndim])) for weight in each]
        value = np.stack(each) if STACKED in path else each[0]
        value = value.astype(jnp.dtype(dtype or jnp.float32))
        loaded.append((path, variable.replace(jax.device_put(value))))
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def build(config: Mapping[str, Any]) -> Any:
    """The network of a configuration, with shapes in place of its weights."""
    name = config.get("_class_name", "UNet2DModel")
    if name not in NETWORKS:
        raise ValueError(
            f"_class_name is {name!r}, expected one of {list(NETWORKS)}; sample takes any JAX "
            "function."
        )
    fields, module = NETWORKS[name]
    filled = fill(config, fields, name, others=())
    hashable = namedtuple("Config", filled)(**filled)
    return nnx.eval_shape(lambda: module(hashable))


def stored(path: tuple[Any, ...], parameter: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights of a parameter in a file."""
    names = [*map(str, path[:-1]), NAMES.get(path[-1], path[-1])]
    shape = parameter.shape[1:] if STACKED in path else parameter.shape
    if path[-1] == "kernel":
        shape = tuple(shape[axis] for axis in TORCH_AXES[len(shape)])
    if STACKED not in path:
        yield ".".join(names), shape
        return
    split = names.index(STACKED) + 1
    for layer in range(parameter.shape[0]):
        yield ".".join([*names[:split], str(layer), *names[split:]]), shape


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
