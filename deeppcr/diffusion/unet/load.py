"""`load_unet`: a UNet from a diffusers folder, whose weights must all match by name."""

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
# Earlier names of the attention layers, which diffusers also reads.
OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
SHOWN = 5  # weights named in an error


def load_unet(folder: Any, dtype: Any = None) -> "UNet":
    """Load a trained `UNet2DModel` of diffusers as a flax module ``unet(x, t)``.

    As in diffusers, ``x`` is floating, ``[batch, channels, height, width]``, and ``t`` is a scalar
    or ``[batch]``. The result has the shape and dtype of ``x``, with the model's number of output
    channels. A model with class embeddings is called as ``unet(x, t, labels)``. The module is for
    sampling: it has no dropout. To convert a folder with a torch ``.bin`` file, run
    ``UNet2DModel.from_pretrained(old).save_pretrained(new)`` in diffusers.

    Args:
        folder: a path with ``config.json`` and ``diffusion_pytorch_model.safetensors``, or with its
            shards and their index; or the folder of a pipeline that has these in ``unet``.
        dtype: a floating dtype, of the parameters and the computation. None for float32, as in
            diffusers, whatever the dtype in the files.

    Returns:
        the module. `flax.nnx.split` returns its parameters under their names in diffusers.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ImportError: flax or safetensors is not installed.
        TypeError: a field of ``config.json`` has a wrong type, or ``dtype`` is not floating.
        ValueError: a field of ``config.json`` is unknown or not supported; a weight is missing,
            unexpected, or has another shape.

    Example:
        >>> unet = deeppcr.diffusion.load_unet("google/ddpm-cifar10-32")  # doctest: +SKIP
        >>> of = deeppcr.diffusion.Schedule.from_config
        >>> schedule = of("google/ddpm-cifar10-32")  # doctest: +SKIP
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
        raise TypeError(f"dtype is {dtype}, expected a floating one.")
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
    for candidate in folder, folder / "unet":
        if (candidate / "config.json").is_file():
            return candidate
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
    """The weights, with the present names of attention layers."""

    def new(name: str) -> str:
        *path, layer, kind = name.split(".")
        return ".".join([*path, OLD_NAMES.get(layer, layer), kind])

    return {new(name) if "." in name else name: weight for name, weight in weights.items()}


def check(weights: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless the weights have these names and shapes."""
    missing, superfluous = (
        sorted(shapes.keys() - weights.keys()),
        sorted(weights.keys() - shapes.keys()),
    )
    if missing or superfluous:
        found = [
            f"{word} {listed(names)}"
            for word, names in (("lacks", missing), ("also has", superfluous))
            if names
        ]
        raise ValueError(
            f"the file of weights {' and '.join(found)}, expected the weights of the model in "
            "config.json."
        )
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ValueError(
                f"{name} has shape {list(weights[name].shape)}, expected {list(shape)} by "
                "config.json."
            )


def listed(names: list[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
