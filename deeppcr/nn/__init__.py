"""Recurrent layers for flax: `RNN` for `flax.nnx.RNN`, `linen.RNN` for `flax.linen.RNN`, and cells.

`deeppcr.nn` derives from flax's classes, so it is imported when it is first used.
"""

try:
    from deeppcr.nn import linen
    from deeppcr.nn.cells import MinGRU, MinLSTM, ParaGRU, ParaLSTM
    from deeppcr.nn.lru import LRU
    from deeppcr.nn.rnn import RNN
    from deeppcr.nn.slstm import SLSTM
except ModuleNotFoundError as missing:
    raise ImportError(f"deeppcr.nn needs {missing.name}: pip install 'deeppcr[nn]'.") from missing

__all__ = ["LRU", "RNN", "SLSTM", "MinGRU", "MinLSTM", "ParaGRU", "ParaLSTM", "linen"]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
