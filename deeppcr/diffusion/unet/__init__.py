"""diffusers' `UNet2DModel` in flax: its `config`, the `model`, and how to `load` it from a folder.

`layers`, `embeddings`, `blocks` and `model` derive from flax's classes. They are imported when
`load_unet` is called.
"""

from deeppcr.diffusion.unet.load import load_unet

__all__ = ["load_unet"]
