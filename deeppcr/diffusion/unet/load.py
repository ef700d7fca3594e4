"""`load_unet`: a UNet from a folder that diffusers wrote. Weights are found by name, and every one of them has to fit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from deeppcr.diffusion.unet.config import Config

if TYPE_CHECKING:
    from deeppcr.diffusion.unet.model import UNet

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = WEIGHTS + ".index.json"
# What the layers of attention were called once; diffusers reads such files, too.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
SHOWN = 5  # names of weights in an error


def load_unet(folder: Any, dtype: Any = None) -> "UNet":
    """A trained `UNet2DModel` of diffusers, as a flax module: ``unet(x, t)``.

    ``x`` is [batch, channels, height, width] and ``t`` a number or [batch], as in diffusers; the result has the dtype of ``x``. A
    model with class embeddings is called as ``unet(x, t, labels)``. The module is for sampling: it has no dropout. A folder with
    torch's own ``.bin`` becomes one of safetensors in diffusers: ``UNet2DModel.from_pretrained(old).save_pretrained(new)``.

    Args:
        folder: with ``config.json`` and ``diffusion_pytorch_model.safetensors``, or its shards and their index; or the folder of
            a pipeline, in which it is ``unet``.
        dtype: of the parameters and of what is computed. None: float32, whatever the files hold, as in diffusers.

    Returns:
        The module. `flax.nnx.split` takes its parameters out, under the names that they have in diffusers.

    Raises:
        FileNotFoundError: there is no such folder, or a file is missing in it.
        ImportError: flax or safetensors is not installed.
        TypeError: a field of ``config.json`` is of another type.
        ValueError: a field of ``config.json`` is unknown or not supported; a weight is missing, superfluous, or of another shape.

    Example:
        >>> unet = deeppcr.diffusion.load_unet("google/ddpm-cifar10-32")  # doctest: +SKIP
        >>> schedule = deeppcr.diffusion.Schedule.from_config("google/ddpm-cifar10-32")  # doctest: +SKIP
        >>> x = jax.random.normal(jax.random.key(0), (8, 3, 32, 32))
        >>> deeppcr.diffusion.sample(unet, schedule, x, steps=100).value.shape  # doctest: +SKIP
        (8, 3, 32, 32)
    """
    try:
        import safetensors.flax  # noqa: F401
        from flax import nnx

        from deeppcr.diffusion.unet.model import UNet
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"load_unet needs {missing.name}: pip install 'deeppcr[diffusion]'."
        ) from missing

    folder = find(Path(folder))
    config = Config.read(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    dtype = jnp.dtype(jnp.float32 if dtype is None else dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype is {dtype}, expected a float.")
    graph, parameters = nnx.split(nnx.eval_shape(lambda: UNet(config)))
    variables = {
        ".".join(map(str, path)): (path, variable)
        for path, variable in nnx.to_flat_state(parameters)
    }
    weights = with_new_names(read(folder))
    check(weights, {name: variable.shape for name, (_, variable) in variables.items()})
    loaded = [
        (path, variable.replace(jnp.asarray(weights[name], dtype)))
        for name, (path, variable) in variables.items()
    ]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def find(folder: Path) -> Path:
    """The folder of the model: this one, or ``unet`` in it."""
    for place in folder, folder / "unet":
        if (place / "config.json").is_file():
            return place
    raise FileNotFoundError(
        f"folder is {str(folder)!r}, expected a folder with config.json, or with unet/config.json."
    )


def read(folder: Path) -> dict[str, Array]:
    """All weights by name, from one file or from shards."""
    from safetensors import SafetensorError
    from safetensors.flax import load_file

    if (folder / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif (folder / INDEX).is_file():
        names = sorted(
            set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        )
    else:
        there = sorted(path.name for path in folder.iterdir())
        raise FileNotFoundError(
            f"folder is {str(folder)!r}, expected {WEIGHTS} or {INDEX} in it, found {there}."
        )
    weights: dict[str, Array] = {}
    for name in names:
        try:
            weights |= load_file(folder / name)
        except SafetensorError as error:
            raise ValueError(f"{folder / name} is no file of safetensors: {error}.") from error
    return weights


def with_new_names(weights: Mapping[str, Array]) -> dict[str, Array]:
    """The weights of attention layers under the names that they have today."""

    def new(name: str) -> str:
        *path, layer, kind = name.split(".")
        return ".".join([*path, OLD_NAMES.get(layer, layer), kind])

    return {new(name) if "." in name else name: weight for name, weight in weights.items()}


def check(weights: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless there is a weight of each shape, and no other."""
    missing, superfluous = (
        sorted(shapes.keys() - weights.keys()),
        sorted(weights.keys() - shapes.keys()),
    )
    if missing or superfluous:
        said = [
            f"{word} {listed(names)}"
            for word, names in (("lacks", missing), ("also has", superfluous))
            if names
        ]
        raise ValueError(
            f"the file of weights {' and '.join(said)}, expected the weights of the model in config.json."
        )
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ValueError(
                f"{name} has shape {list(weights[name].shape)}, expected {list(shape)} by config.json."
            )


def listed(names: list[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
