"""diffusers' `UNet2DModel` in flax: `config` says what it is, `model` what it computes, `load` reads it from a folder.

`layers`, `embeddings`, `blocks` and `model` derive from flax's classes; they are imported when `load_unet` is called, and no
sooner.
"""

from deeppcr.diffusion.unet.load import load_unet

__all__ = ["load_unet"]
