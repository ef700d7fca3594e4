"""`Scheduler`: the fields of a scheduler's configuration, and the table that it makes of them."""

import dataclasses
from collections.abc import Callable, Mapping

from deeppcr.diffusion.config import Config, Field
from deeppcr.diffusion.table import Table


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A kind of sampler.

    Attributes:
        fields: those of its configuration, by name.
        table: ``table(config, steps, eta)``, where ``config`` has all fields.
        takes_eta: whether ``eta``, the weight of the noise that the steps add, may be other than 0.
    """

    fields: Mapping[str, Field]
    table: Callable[[Config, int, float], Table]
    takes_eta: bool = False
