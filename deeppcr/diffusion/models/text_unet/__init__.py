"""diffusers' `UNet2DConditionModel` in flax: its `config` and its `model`."""
