"""Eager calls compile once, for all steps of the same program.

Every call traces its step, because the values that it closes over may have changed. `jax.jit` would
compile again for every new step. So here steps are compared by their programs: `jax.jit` finds what
it compiled for an equal one. Its cache is bounded, and is cleared by `jax.clear_caches`. A step
holds no arrays of the user.
"""

import dataclasses
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from deeppcr.chain.step import Step
from deeppcr.lower import is_eager
from deeppcr.programs.signature import signature

_log = logging.getLogger("deeppcr")


def compiled_once(f: Callable[..., Any], static: Any, *arrays: Any) -> Any:
    """``f(static, *arrays)``, compiled once for all static values that differ only in their steps.

    If they cannot be compared, it is compiled at every call. In a larger program it is a part of
    that.

    Args:
        f: a function that is always the same object.
        static: a structure of arrays, a step, or a tuple of such and other values.
    """
    if not is_eager(jax.tree.leaves(arrays)):
        return f(static, *arrays)
    key = program_key(static)
    if key is None:
        return jax.jit(partial(f, static))(*arrays)
    return _run(f, _Static(static, key), arrays)


def program_key(static: Any) -> Any | None:
    """A value that is equal for static values whose steps have the same programs; None if unknown.

    The first reason why a step has none is logged.
    """
    reasons: list[str] = []
    key = _key(static, reasons)
    for reason in reasons:
        _say(reason)
    try:
        hash(key)
    except TypeError:  # an option that holds arrays
        return None
    return None if reasons else key


@cache
def _say(reason: str) -> None:
    """Log why a step is compiled again, once for each reason."""
    _log.warning(
        "A step is recompiled at every call outside jax.jit, because its program contains "
        "%s. Call it under jax.jit, or pass that value as an input.",
        reason,
    )


def _key(static: Any, reasons: list[str]) -> Any:
    if isinstance(static, PyTreeDef):
        static = static.node_data(), *static.children()
    if isinstance(static, tuple | list):  # a list holds the names of a dictionary
        return tuple(_key(each, reasons) for each in static)
    if not isinstance(static, Step):
        return static
    program, reason = signature(static.jaxpr)
    reasons += [reason] if reason else []
    example = _key(static.example, reasons)
    trees = static.state_tree, static.input_tree, static.output_tree
    return program, example, static.states, trees, static.weak


@dataclasses.dataclass(frozen=True)
class _Static:
    """A static value, equal to all others of its key."""

    value: Any = dataclasses.field(compare=False)
    key: Any


@partial(jax.jit, static_argnums=(0, 1))
def _run(f: Callable[..., Any], static: _Static, arrays: tuple[Any, ...]) -> Any:
    return f(static.value, *arrays)
