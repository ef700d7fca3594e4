"""Loops whose end depends on data, and what that costs on an accelerator."""

from collections.abc import Callable
from typing import TypeVar

from jax import Array, lax

from deeppcr.platforms import platform

FINISHING = "finish"  # the scope, in profiles and compiled programs, of a loop that does step by step what is left
AHEAD = 3  # turns, which all iterations take that do not start from their solution

T = TypeVar("T")


def iterate(goes_on: Callable[[T], Array], turn: Callable[[T], T], start: T, budget: int) -> T:
    """``turn`` after ``turn`` while ``goes_on`` says so, which it does not once a budget of turns is spent.

    On an accelerator the first few are taken unasked: a turn more is harmless.
    """
    now = start
    if turns := ahead(budget):
        now = lax.fori_loop(0, turns, lambda _, now: turn(now), now)
    end: T = lax.while_loop(goes_on, turn, now)
    return end


def ahead(budget: int) -> int:
    """How many turns of a budget are taken before it is first asked whether there is another one.

    A GPU works ahead of its host. In each turn of a loop whose end depends on data the host has to wait for it, about as long as
    six kernels take; in a loop of known length it does not.
    """
    return 0 if platform() == "cpu" else min(AHEAD, budget)
