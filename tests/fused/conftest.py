"""Emulated kernels do nothing that C leaves undefined, which the emulator says."""

import pytest


@pytest.fixture(autouse=True)
def is_defined(capfd):
    yield
    assert "runtime error" not in capfd.readouterr().err
