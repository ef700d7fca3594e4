"""diffusers' `DiTTransformer2DModel` in flax: its `config` and its `model`."""
