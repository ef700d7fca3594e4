"""What `depth.calibrate` has kept decides at once; what it measured elsewhere does not."""

import json
import os

import jax
import pytest

import deeppcr
import depth
from deeppcr._plan.choose import choose_adjoint, choose_method
from depth import calibration
from tests.plan.chains import CHAINS, SLOW_LOOPS, costs_of

CHAIN, Z0 = CHAINS["elementwise"]


@pytest.fixture
def costs(memo, monkeypatch):
    monkeypatch.setattr(calibration, "measure", lambda: SLOW_LOOPS)
    return costs_of(CHAIN, Z0)


def test_a_calibration_decides_from_then_on(costs):
    assert choose_method(costs, "cpu") == deeppcr.Sequential()
    depth.calibrate()
    assert isinstance(choose_method(costs, "cpu"), deeppcr.Newton)
    assert isinstance(choose_adjoint(costs, None, "cpu"), deeppcr.Adjoint)
    assert isinstance(deeppcr.plan(CHAIN, Z0).method, deeppcr.Newton)
    os.unlink(calibration.cache_file())
    assert choose_method(costs, "cpu") == deeppcr.Sequential()


def test_a_new_calibration_decides_anew(costs, monkeypatch):
    depth.calibrate()
    assert isinstance(choose_method(costs, "cpu"), deeppcr.Newton)
    monkeypatch.setattr(
        calibration, "measure", lambda: SLOW_LOOPS.replace(loop_latency=0.0, kernel_latency=0.0)
    )
    depth.calibrate(refresh=True)
    assert choose_method(costs, "cpu") == deeppcr.Sequential()


def test_a_calibration_changes_what_is_traced(costs):
    def program():
        return str(jax.make_jaxpr(lambda z: deeppcr.solve(CHAIN, z).value)(Z0))

    before = program()
    depth.calibrate()
    assert ("while[" in before, "while[" in program()) == (False, True)


def test_a_stale_calibration_does_not_decide(costs):
    depth.calibrate()
    path = calibration.cache_file()
    text = path.read_text()
    for condition in ("device", "cores", "jax", "bits", "version"):
        content = json.loads(text)
        content["conditions"][condition] = "another"
        path.write_text(json.dumps(content))
        assert choose_method(costs, "cpu") == deeppcr.Sequential(), condition


def test_a_calibration_that_is_cut_off_does_not_decide(costs):
    depth.calibrate()
    path = calibration.cache_file()
    path.write_text(path.read_text()[:-20])
    assert choose_method(costs, "cpu") == deeppcr.Sequential()
