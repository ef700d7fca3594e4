"""Eager calls compile once: steps are known again by their programs.

Every call traces its step, for what the function closes over may have changed. If the program is
one that an earlier call had, the step of that call takes its place. So two problems with the same
program, shapes and options are equal, and `jax.jit` finds what it has compiled for the first. It
keeps that as it keeps everything, bounded, until `jax.clear_caches`. A step has no arrays of the
user's in it, and is kept as long as jax keeps a program made of it.
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
    """The step of this program; None if it cannot be known again.

    That is said once.
    """
    program, reason = lasting_signature(step.jaxpr)
    if reason:
        if reason not in _SAID:
            _SAID.add(reason)
            _log.warning(
                "A step is compiled anew at every call outside of jax.jit, since there is %s in "
                "its program. Call it under jax.jit, or hand it in as an argument.",
                reason,
            )
        return None
    trees = step.state_tree, step.input_tree, step.output_tree
    return _STEPS.setdefault((program, step.states, step.inputs, trees, step.weak), step)
