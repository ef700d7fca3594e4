"""`load_model`: a network from a folder of diffusers, whose weights must all match by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.diffusion.models import MODELS, Network

if TYPE_CHECKING:
    from deeppcr.diffusion.models.unet.model import UNet

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = WEIGHTS + ".index.json"
FOLDERS = ("unet", "transformer")  # of networks in that of a pipeline
UNET = "UNet2DModel"  # also where config.json names no class
SHOWN = 5  # weights named in an error


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
        the module. `flax.nnx.split` returns its parameters under their names in diffusers; those of
        the blocks of transformers are stacked, with the block as axis 0.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ImportError: flax or safetensors is not installed.
        TypeError: a field of ``config.json`` has a wrong type, or ``dtype`` is not floating.
        ValueError: the network is not supported; a field of ``config.json`` is unknown or not
            supported; a weight is missing, unexpected, or has another shape.

    Example:
        >>> dit = deeppcr.diffusion.load_model("facebook/DiT-XL-2-256")  # doctest: +SKIP
        >>> of = deeppcr.diffusion.Schedule.from_config
        >>> schedule = of("facebook/DiT-XL-2-256")  # doctest: +SKIP
        >>> x = jax.random.normal(jax.random.key(0), (2, 4, 32, 32))
        >>> labels, none = jnp.array([207, 360]), jnp.full(2, 1000)
        >>> latents = deeppcr.diffusion.sample(  # doctest: +SKIP
        ...     deeppcr.diffusion.guided(dit, 4.0), schedule, x, steps=50, args=(labels, none)
        ... ).value
    """
    return _load("load_model", folder, dtype, MODELS)


def load_unet(folder: Any, dtype: Any = None) -> "UNet":
    """Load a trained `UNet2DModel` of diffusers as a flax module ``unet(x, t)``.

    It is `load_model` for this network only: see there.

    Args:
        folder: of the network, or of a pipeline that has it in ``unet``.
        dtype: a floating dtype; None for float32.

    Returns:
        the module.

    Raises:
        ValueError: it is another network, or as in `load_model`.

    Example:
        >>> unet = deeppcr.diffusion.load_unet("google/ddpm-cifar10-32")  # doctest: +SKIP
        >>> of = deeppcr.diffusion.Schedule.from_config
        >>> schedule = of("google/ddpm-cifar10-32")  # doctest: +SKIP
        >>> x = jax.random.normal(jax.random.key(0), (8, 3, 32, 32))
        >>> deeppcr.diffusion.sample(unet, schedule, x, steps=100).value.shape  # doctest: +SKIP
        (8, 3, 32, 32)
    """
    model: UNet = _load("load_unet", folder, dtype, {UNET: MODELS[UNET]})
    return model


def _load(caller: str, folder: Any, dtype: Any, known: Mapping[str, Network]) -> Any:
    """The network in a folder, of a known class."""
    try:
        import safetensors.flax  # noqa: F401
        from flax import nnx
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"{caller} needs {missing.name}: pip install 'deeppcr[diffusion]'."
        ) from missing

    folder = find(Path(folder))
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network = find_network(caller, found.get("_class_name", UNET), known)
    config = network.config.read(found)
    dtype = jnp.dtype(jnp.float32 if dtype is None else dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype is {dtype}, expected a floating one.")
    graph, parameters = nnx.split(nnx.eval_shape(lambda: network.build(config)))
    flat = nnx.to_flat_state(parameters)
    stored = [Stored.of(path, variable.shape, config.STACKED) for path, variable in flat]
    weights = {config.rename(name): weight for name, weight in read(folder).items()}
    check(weights, {name: each.shape for each in stored for name in each.names})
    loaded = [
        (path, variable.replace(each.load(weights, dtype)))
        for (path, variable), each in zip(flat, stored, strict=True)
    ]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


class Stored(NamedTuple):
    """A parameter in a file: one weight, or those of the layers that are stacked.

    Attributes:
        names: of the weights.
        shape: of each of them.
        is_stacked: whether the parameter has them as axis 0.
    """

    names: list[str]
    shape: tuple[int, ...]
    is_stacked: bool

    @classmethod
    def of(cls, path: tuple[Any, ...], shape: tuple[int, ...], stacked: str | None) -> Self:
        """The weights of the parameter with this path and shape."""
        names = [str(name) for name in path]
        if stacked not in names:
            return cls([".".join(names)], shape, False)
        split = names.index(stacked) + 1
        before, after = names[:split], names[split:]
        return cls([".".join([*before, str(i), *after]) for i in range(shape[0])], shape[1:], True)

    def load(self, weights: Mapping[str, Array], dtype: Any) -> Array:
        """The parameter."""
        found = [jnp.asarray(weights[name], dtype) for name in self.names]
        return jnp.stack(found) if self.is_stacked else found[0]


def find_network(caller: str, name: Any, known: Mapping[str, Network]) -> Network:
    """The network with this class in diffusers."""
    if name not in known:
        instead = "load_model reads it" if name in MODELS else "sample takes any JAX function"
        raise ValueError(
            f"_class_name is {name!r}, expected one of {list(known)}: {caller} reads no other "
            f"network; {instead}."
        )
    return known[name]


def find(folder: Path) -> Path:
    """The folder of the network: this one, or one of a pipeline's in it."""
    for candidate in folder, *(folder / name for name in FOLDERS):
        if (candidate / "config.json").is_file():
            return candidate
    raise FileNotFoundError(
        f"folder is {str(folder)!r}, expected a folder with config.json, or with one of "
        f"{[f'{name}/config.json' for name in FOLDERS]}."
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
