"""Networks of diffusers in flax, loaded from their folders: models for `deeppcr.diffusion.sample`.

    from experiments.networks import load_model

A new network is a file here, with its fields and its module, and a line in `load.NETWORKS`.
"""

from experiments.networks.load import load_model

__all__ = ["load_model"]
