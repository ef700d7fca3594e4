"""diffusers' `UNet2DConditionModel`."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.checks import describe
from deeppcr.diffusion.models.embeddings import Positional, TwoLayers
from deeppcr.diffusion.models.inputs import as_batch, check_images
from deeppcr.diffusion.models.text_unet.config import TextUNetConfig
from deeppcr.diffusion.models.text_unet.transformer import Transformer
from deeppcr.diffusion.models.unet.trunk import Trunk

SIZES = 6  # numbers of SDXL: the sizes of the image in training, its corner, and the wanted sizes


class TextUNet(Trunk):
    """A network that predicts the noise in the latent image of a text, or another target.

    Made by `load_model`. It has no state but its parameters, and no call changes it. `jax.vmap`
    over images, times and texts makes one larger batch.
    """

    def __init__(self, config: TextUNetConfig) -> None:
        layers = config.by_level("transformer_layers_per_block")

        def attend(level: int) -> Transformer:
            return Transformer(
                config.block_out_channels[level],
                config.heads[level],
                layers[level],
                config.cross_attention_dim,
                config.norm_num_groups,
                linear=config.use_linear_projection,
            )

        super().__init__(config, attend, lambda: attend(config.levels - 1))
        self.config = config
        waves = partial(Positional, shift=config.freq_shift, flip=config.flip_sin_to_cos)
        self.time_proj = waves(config.block_out_channels[0])
        self.add_time_proj = waves(config.addition_time_embed_dim or 0)
        self.add_embedding = (
            TwoLayers(config.projection_class_embeddings_input_dim or 0, config.time_channels)
            if config.addition_embed_type is not None
            else None
        )

    def __call__(
        self, x: Array, t: Any, text: Any, pooled: Any = None, time_ids: Any = None
    ) -> Array:
        """The prediction for the latent images ``x`` of a text at the times ``t``.

        Args:
            x: [batch, channels, height, width] of any float dtype; all is computed in the dtype of
                the parameters.
            t: the time of the scheduler: a number, or numbers [batch].
            text: the embeddings of the tokens of a text, [batch, tokens, channels]; diffusers calls
                them ``encoder_hidden_states``.
            pooled: for SDXL: the embedding of the text, [batch, channels]; in diffusers
                ``text_embeds``.
            time_ids: for SDXL: sizes and corner, [batch, 6].

        Returns:
            [batch, out channels, height, width], in the dtype of ``x``.

        Raises:
            TypeError: a dtype is wrong, or an argument is missing, or given to a model without it.
            ValueError: a shape is wrong.
        """
        config = self.config
        check_images(x, config.in_channels, 2 ** (config.levels - 1))
        text = _checked("text", text, x, (None, config.cross_attention_dim))
        time = self.time_embedding(self.time_proj(as_batch("t", t, x)))
        if self.add_embedding is not None:
            pooled = _checked("pooled", pooled, x, (config.pooled_channels,))
            time_ids = _checked("time_ids", time_ids, x, (SIZES,))
            sizes = self.add_time_proj(time_ids.reshape(-1)).reshape(len(x), -1)
            added = jnp.concatenate([pooled.astype(sizes.dtype), sizes], axis=1)
            time = time + self.add_embedding(added)
        elif pooled is not None or time_ids is not None:
            raise TypeError(
                "pooled or time_ids are given, expected None: the model has no addition_embed_type."
            )
        y = self.predict(
            2 * x - 1 if config.center_input_sample else x, time, text.astype(self.dtype)
        )
        return y.astype(x.dtype)


def _checked(name: str, given: Any, x: Array, shape: tuple[int | None, ...]) -> Array:
    """An array [batch, *shape], where None is any size."""
    expected = f"[{', '.join(str(size or 'any') for size in (len(x), *shape))}]"
    if given is None:
        raise TypeError(f"{name} is None, expected an array {expected}.")
    array = jnp.asarray(given)
    fits = array.ndim == len(shape) + 1 and all(
        size in (None, found) for size, found in zip((len(x), *shape), array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} is {describe(array)}, expected {expected}.")
    return array
