"""The configuration of a network of diffusers: the checked fields of its ``config.json``.

Names, defaults and meanings are those of diffusers 0.42. An unknown field or an unsupported value
is an error: a network without one of its settings computes something else.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from deeppcr.checks import check_count, describe, did_you_mean


class ModelConfig:
    """The fields of a network, as a frozen dataclass; a kind of network is one subclass.

    Attributes:
        NAME: of the class of diffusers.
        STACKED: the name of lists of layers that the module has as one, with the layers as axis 0.
        IGNORED: fields of other or older classes that may be in the file, and the values with which
            they change nothing.
        COUNTS: fields that are integers >= 1.
        OPTIONAL_COUNTS: fields that are integers >= 1, or None.
        CHOICES: the supported values of fields that have few.
    """

    NAME: ClassVar[str]
    STACKED: ClassVar[str | None] = None
    IGNORED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    COUNTS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL_COUNTS: ClassVar[tuple[str, ...]] = ()
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """The config that ``config.json`` holds.

        Args:
            found: its fields by name; names with a leading underscore are ignored.

        Raises:
            TypeError: a field is of another type.
            ValueError: a field is unknown, or its value unsupported.
        """
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
            if not name.startswith("_")
        }
        for name in sorted(given.keys() - known):
            value = given.pop(name)
            if name not in cls.IGNORED:
                raise ValueError(
                    f"{name} is {describe(value)}, expected no such field: diffusers' {cls.NAME} "
                    f"has none of this name{did_you_mean(name, known)}"
                )
            check_choice(name, value, cls.IGNORED[name])
        return cls(**given)

    def __post_init__(self) -> None:
        for name in self.COUNTS:
            check_count(name, getattr(self, name), "a number")
        for name in self.OPTIONAL_COUNTS:
            check_count(name, getattr(self, name), "a number", optional=True)
        for name, choices in self.CHOICES.items():
            check_choice(name, getattr(self, name), choices)

    def rename(self, weight: str) -> str:
        """The present name of a weight that earlier versions of diffusers have saved."""
        return weight


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless ``value`` is one of the supported ones."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        expected = repr(choices[0]) if len(choices) == 1 else f"one of {list(choices)}"
        raise ValueError(f"{name} is {value!r}, expected {expected}.")


def check_number(name: str, value: Any, above: float | None = None) -> None:
    """Raise unless ``value`` is a number, and greater than ``above``."""
    expected = "expected a number" + ("." if above is None else f" > {above}.")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, {expected}")
    if above is not None and not value > above:
        raise ValueError(f"{name} is {value!r}, {expected}")
