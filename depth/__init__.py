"""The serial depth, work, traffic and expected time of any JAX program, from its jaxpr.

The package is part of the distribution deeppcr. The distribution called ``depth`` on PyPI is
unrelated; its folder has the same name where file systems ignore case, so do not install both.
"""

from depth.analysis import analyze, compute_depth, serial_depth
from depth.comparison import Comparison, compare
from depth.cost import Cost, EstimateWarning, LowerBoundWarning, predict
from depth.device import Device
from depth.loops import Expected
from depth.models import at_hand, devices
from depth.paths import Operations
from depth.reader import Unknown

__all__ = [
    "Comparison",
    "Cost",
    "Device",
    "EstimateWarning",
    "Expected",
    "LowerBoundWarning",
    "Operations",
    "Unknown",
    "analyze",
    "at_hand",
    "compare",
    "compute_depth",
    "devices",
    "predict",
    "serial_depth",
]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
