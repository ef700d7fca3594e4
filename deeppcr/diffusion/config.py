"""A scheduler's configuration: its fields, the values that are supported, and their defaults."""

import dataclasses
import inspect
import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from deeppcr.checks import describe, did_you_mean
from deeppcr.diffusion.fields import FIELDS_OF_DIFFUSERS

Config = Mapping[str, Any]


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
    kinds = [(type(value), value) for value in values]
    return Field(
        values[0],
        f"one of {list(values)}",
        lambda value: (type(value), value) in kinds,
        aliases or {},
    )


def flag(default: bool) -> Field:
    """True or False; None is False, as in diffusers."""
    return one_of(default, not default, aliases={None: False})


def count(default: int | None, least: int = 1, most: float = float("inf")) -> Field:
    """An integer within bounds; or None, if that is the default."""
    expected = f"an integer >= {least}" + (f" and <= {most}" if most < float("inf") else "")
    return Field(
        default,
        expected,
        lambda value: (
            (value is None and default is None)
            or (isinstance(value, int) and _is_number(value) and least <= value <= most)
        ),
    )


def number(default: float | None, *, optional: bool = False, share: bool = False) -> Field:
    """A number, from 0 to 1 for a share, or None if that is the default or ``optional``."""
    optional = optional or default is None
    expected = "a number" + " from 0 to 1" * share + ", or None" * optional
    return Field(
        default,
        expected,
        lambda value: (
            (value is None and optional) or (_is_number(value) and (not share or 0 <= value <= 1))
        ),
    )


def numbers(default: tuple[float, ...] | None) -> Field:
    """Several numbers, as a list, or None."""
    return Field(
        default,
        "a list of numbers, or None",
        lambda value: value is None or (isinstance(value, tuple) and all(map(_is_number, value))),
        aliases={None: default},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_config(config: Any) -> dict[str, Any]:
    """A configuration as a dict, from a dict, a path, or a scheduler of diffusers."""
    if isinstance(config, str | os.PathLike):
        found: dict[str, Any] = json.loads(_file(Path(config)).read_text(encoding="utf-8"))
        return found
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(getattr(config, "config", None), Mapping):
        # It may also hold fields of the scheduler it was made from, which its class does not read.
        own = inspect.signature(type(config).__init__).parameters
        return {"_class_name": type(config).__name__} | {
            name: value for name, value in config.config.items() if name in own
        }
    raise TypeError(
        f"config is {type(config).__name__}, expected a dict, a path, or a scheduler of diffusers."
    )


def _file(path: Path) -> Path:
    name = "scheduler_config.json"
    found = next((p for p in (path, path / name, path / "scheduler" / name) if p.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"config is {str(path)!r}, expected a scheduler_config.json or a folder that has one."
        )
    return found


def fill(
    config: Config,
    fields: Mapping[str, Field],
    owner: str,
    others: Collection[str] = FIELDS_OF_DIFFUSERS,
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
