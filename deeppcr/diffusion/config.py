"""A scheduler's configuration: its fields, the values that are supported, and their defaults."""

import dataclasses
import inspect
import json
import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deeppcr.extend import describe, did_you_mean

Config = Mapping[str, Any]
FILE_NAME = "scheduler_config.json"


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: its value where the configuration has none, as in diffusers.
        expected: the supported values, as text.
        supports: whether a value is supported.
        aliases: values that diffusers reads as another one, and that one.
    """

    default: Any
    expected: str
    supports: Callable[[Any], bool]
    aliases: Mapping[Any, Any] = dataclasses.field(default_factory=dict)

    def read(self, value: Any) -> Any:
        """A value as it is kept: a list as a tuple, an alias as what it stands for."""
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, list):
            return tuple(value)
        return self.aliases.get(value, value) if isinstance(value, str | None) else value


def one_of(*values: Any, aliases: Mapping[Any, Any] | None = None) -> Field:
    """One of some values; the first is the default, and ``aliases`` stand for others of them."""
    kinds = [*dict.fromkeys(zip(map(type, values), values, strict=True))]
    return Field(
        values[0],
        f"one of {[value for _, value in kinds]}",
        lambda value: (type(value), value) in kinds,
        aliases or {},
    )


def flag(default: bool) -> Field:
    """True or False; None is False, as in diffusers."""
    return one_of(default, not default, aliases={None: False})


def number(
    default: float | None,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    kind: Any = int | float,
    optional: bool = False,
) -> Field:
    """A number within bounds, or None if that is the default or ``optional``."""
    optional = optional or default is None
    bounds = [f">= {least}"] * (least > -math.inf) + [f"<= {most}"] * (most < math.inf)
    words = ["an integer" if kind is int else "a number", " and ".join(bounds)]

    def supports(value: Any) -> bool:
        if value is None or not isinstance(value, kind) or isinstance(value, bool):
            return value is None and optional
        return least <= value <= most

    return Field(default, " ".join(filter(None, words)) + ", or None" * optional, supports)


count = partial(number, least=1, kind=int)


def numbers(default: tuple[float, ...] | None) -> Field:
    """Several numbers, as a list, or None."""
    return Field(
        default,
        "a list of numbers, or None",
        lambda value: (
            value is None or (isinstance(value, tuple) and all(map(number(0.0).supports, value)))
        ),
        aliases={None: default},
    )


# How a field follows from its default, by the type of that.
FIELDS: Mapping[type, Callable[[Any], Field]] = {
    bool: flag,
    int: count,
    float: number,
    type(None): number,
    tuple: lambda values: one_of(*values),
    Field: lambda field: field,
}


def fields_of(**defaults: Any) -> dict[str, Field]:
    """Fields by their defaults: a flag, an integer >= 1, a number, one of several; or a field."""
    return {name: FIELDS[type(default)](default) for name, default in defaults.items()}


def read_config(config: Any) -> dict[str, Any]:
    """A configuration as a dict, from a dict, a path, or a scheduler of diffusers."""
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        files = filter(Path.is_file, [path, path / FILE_NAME, path / "scheduler" / FILE_NAME])
        if (file := next(files, None)) is None:
            raise FileNotFoundError(
                f"config is {str(path)!r}, expected a {FILE_NAME} or a folder that has one."
            )
        return dict(json.loads(file.read_text(encoding="utf-8")))
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(getattr(config, "config", None), Mapping):
        # It may also hold fields of the scheduler it was made from, which its class does not read.
        names = inspect.signature(type(config).__init__).parameters
        return {"_class_name": type(config).__name__} | {
            name: value for name, value in config.config.items() if name in names
        }
    raise TypeError(
        f"config is {type(config).__name__}, expected a dict, a path, or a scheduler of diffusers."
    )


def fill(
    config: Config, fields: Mapping[str, Field], owner: str, others: Collection[str] = ()
) -> dict[str, Any]:
    """All fields of a scheduler: those of the configuration, checked, and defaults for the rest.

    Fields of ``others``, which are other schedulers, are dropped with one warning: diffusers saves
    them, since they pass from scheduler to scheduler, but does not read them.
    """
    filled = {name: field.default for name, field in fields.items()}
    dropped = []
    for name, value in config.items():
        if name.startswith("_"):  # written by diffusers for itself, such as its version
            continue
        if name in fields:
            filled[name] = fields[name].read(value)
            if not fields[name].supports(filled[name]):
                raise ValueError(
                    f"{name}={value!r} is not supported for {owner}, "
                    f"expected {fields[name].expected}."
                )
        elif name in others:
            dropped.append(f"{name}={describe(value)}")
        else:
            raise ValueError(
                f"{name}={describe(value)} is not a field of {owner}, expected one of "
                f"{sorted(fields)}{did_you_mean(name, fields)}"
            )
    if dropped:
        warnings.warn(
            f"{owner} does not read {', '.join(dropped)}: dropped, as in diffusers. "
            "These are fields of other schedulers.",
            stacklevel=3,
        )
    return filled
