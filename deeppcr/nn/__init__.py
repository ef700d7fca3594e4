"""Recurrent layers for flax: `RNN` in the place of `flax.nnx.RNN`, and `linen.RNN` of `linen.RNN`.

`deeppcr.nn` derives from flax's classes, so it is imported when it is first used.
"""

try:
    from deeppcr.nn import linen
    from deeppcr.nn.rnn import RNN
except ModuleNotFoundError as missing:
    raise ImportError(f"deeppcr.nn needs {missing.name}: pip install 'deeppcr[nn]'.") from missing

__all__ = ["RNN", "linen"]
