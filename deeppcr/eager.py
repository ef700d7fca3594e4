"""Eager calls compile once: steps are cached by their programs.

Every call traces its step, because the values that it closes over may have changed. If the program
is that of an earlier call, the step of that call replaces it. So two problems with the same
program, shapes and options are equal, and `jax.jit` reuses the program compiled for the first. Its
cache is bounded, and is cleared by `jax.clear_caches`. A step holds no arrays of the user, and is
kept as long as jax keeps a program made from it.
"""

import logging
from typing import Any
from weakref import WeakValueDictionary

from deeppcr.signature import lasting_signature
from deeppcr.step import Step

_STEPS: WeakValueDictionary[Any, Step] = WeakValueDictionary()
_SAID: set[str] = set()
_log = logging.getLogger("deeppcr")


def kept(step: Step) -> Step | None:
    """The cached step of this program; None if it has no signature.

    The first such case is logged.
    """
    program, reason = lasting_signature((step.jaxpr, step.program))
    if reason:
        if reason not in _SAID:
            _SAID.add(reason)
            _log.warning(
                "A step is recompiled at every call outside jax.jit, because its program contains "
                "%s. Call it under jax.jit, or pass that value as an input.",
                reason,
            )
        return None
    steps = step.derivative, step.example
    others = [each and kept(each) for each in steps]
    if any(each and not found for each, found in zip(steps, others, strict=True)):
        return None
    trees = step.state_tree, step.input_tree, step.output_tree
    known = (program, *others, step.states, step.inputs, trees, step.weak)
    return _STEPS.setdefault(known, step)


def is_hashable(x: Any) -> bool:
    """Whether a value can be a key; values with arrays cannot."""
    try:
        hash(x)
    except TypeError:
        return False
    return True
