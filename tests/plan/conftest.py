"""Choices that are forgotten, and a device on which Newton's method pays off."""

import pytest

import depth
from deeppcr._plan.choose import _CHOICES
from tests.plan.chains import SLOW_LOOPS


@pytest.fixture
def memo():
    """The choices that are kept: none, before and after."""
    _CHOICES.clear()
    yield _CHOICES
    _CHOICES.clear()


@pytest.fixture
def parallel(monkeypatch, memo):
    """Choices are made as for a device on which Newton's method pays off, whatever the platform."""
    monkeypatch.setattr(depth, "at_hand", lambda platform=None: SLOW_LOOPS)
    return SLOW_LOOPS
