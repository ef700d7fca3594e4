"""A rule that takes Newton's method everywhere."""

import importlib

import pytest

import deeppcr
from deeppcr.choose import Choice

PROBLEM = importlib.import_module("deeppcr.solving.problem")


@pytest.fixture
def parallel(monkeypatch):
    """ "auto" takes Newton's method and Jacobian blocks, whatever the platform."""
    newton = deeppcr.Newton()
    monkeypatch.setattr(PROBLEM, "choose_method", lambda *_: Choice(newton, {}))
    monkeypatch.setattr(PROBLEM, "choose_adjoint", lambda *_: Choice(deeppcr.Adjoint(), {}))
