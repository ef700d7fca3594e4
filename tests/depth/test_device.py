"""Device models: the table, figures that are not given, what is refused, and generic ones."""

import dataclasses
import math

import pytest

import depth
from depth.models import find_device, generic_cpu

NAMES = ["V100", "A100", "H100", "H200", "B200", "L40S", "RTX 4090", "MI300X"]
NAMES += ["TPU v4", "TPU v5e", "TPU v5p", "TPU v6e"]
FIGURES = [
    field.name
    for field in dataclasses.fields(depth.Device)
    if field.name not in ("name", "source", "platform")
]
PLAIN = depth.Device(
    "plain",
    kernel_latency=4.0,
    loop_latency=2.0,
    trip_latency=8.0,
    rates={"float32": 100.0},
    bandwidth=1000.0,
    memory=1e6,
)
FULL = PLAIN.replace(
    source="made up",
    call_latency=16.0,
    piece_latency=0.25,
    vector_rates={"arithmetic": 20.0, "transcendental": 5.0},
    cache_bandwidth=5000.0,
    cache=64.0,
)


# -- the table -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_device_has_a_source_and_sensible_figures(name):
    device = depth.devices[name]
    assert "." in device.source.split(";")[0], "the source of the rates is an address"
    assert "latencies" in device.source
    for figure in ("loop_latency", "trip_latency", "call_latency"):
        assert getattr(device, figure) > 0, figure
    for rates in (device.rates, device.vector_rates):
        assert rates
        assert all(rate > 0 and math.isfinite(rate) for rate in rates.values())
    assert 1e-7 < device.kernel_latency < 1e-5 < device.call_latency < 1e-3
    assert device.loop_latency < device.trip_latency
    assert 10e9 < device.memory < 200e9
    assert 0.5e12 < device.bandwidth < 10e12
    assert max(device.rate("bfloat16"), device.rate("float16")) > device.rate("float32")


# -- figures that are not given --------------------------------------------------------------------


def test_the_rate_of_a_dtype_is_its_own_or_the_nearest():
    device = PLAIN.replace(rates={"float64": 1.0, "float32": 2.0, "float16": 4.0})
    wide, other = ("float64", "complex128", "int64", "uint64"), ("float32", "bfloat16", "int8", "")
    assert {device.rate(dtype) for dtype in wide} == {1.0}
    assert {device.rate(dtype) for dtype in other} == {2.0}
    assert device.rate("float16") == 4.0
    assert PLAIN.rate("float64") == 100.0  # no float64 of its own
    assert PLAIN.replace(rates={"bfloat16": 7.0, "int8": 9.0}).rate("float32") == 9.0  # the largest


def test_vector_rates_halve_on_64_bits():
    for dtype in ("float64", "int64", "uint64", "complex128"):
        assert FULL.vector_rate("arithmetic", dtype) == 10.0
        assert FULL.vector_rate("transcendental", dtype) == 2.5
    for dtype in ("float32", "float16", "bfloat16", "int32", "bool"):
        assert FULL.vector_rate("arithmetic", dtype) == 20.0
        assert FULL.vector_rate("transcendental", dtype) == 5.0


def test_vector_rates_that_are_not_given():
    assert FULL.vector_rate("reduction", "float32") == 20.0  # as arithmetic
    assert PLAIN.vector_rate("move", "float32") == 100.0  # as products
    assert PLAIN.vector_rate("transcendental", "float64") == 5.0  # a tenth of arithmetic, half


POSITIVE = {"rates": {"float32": 0}, "vector_rates": {"move": 0.0}, "bandwidth": 0}
BAD = {
    **{f"{figure} negative": (figure, -1.0) for figure in FIGURES if "rates" not in figure},
    **{
        f"{figure} of one negative": (figure, {"float32": 1.0, "x": -2})
        for figure in ("rates", "vector_rates")
    },
    **{f"{figure} zero": (figure, value) for figure, value in POSITIVE.items()},
    "no rates": ("rates", {}),
    "bandwidth not a number": ("bandwidth", math.nan),
    "kernel_latency not a number": ("kernel_latency", math.nan),
    "one rate not a number": ("rates", {"float32": math.nan}),
    "bandwidth by dtype": ("bandwidth", {"float32": 1.0}),
}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("figure", "value"), BAD.values(), ids=BAD)
def test_a_bad_figure_is_named_with_its_value(figure, value):
    with pytest.raises(ValueError, match=rf"{figure} of plain") as error:
        PLAIN.replace(**{figure: value})
    assert str(value) in str(error.value) or "empty" in str(error.value)


def test_replace_changes_the_copy_only():
    changed = FULL.replace(name="other", bandwidth=7.0)
    assert (changed.name, changed.bandwidth) == ("other", 7.0)
    assert (FULL.name, FULL.bandwidth) == ("plain", 1000.0)
    assert changed.replace(name="plain", bandwidth=1000.0) == FULL
    assert changed != FULL
    with pytest.raises(TypeError, match="nothing"):
        FULL.replace(nothing=3)
    rates = {"float32": 1.0}
    changed = FULL.replace(rates=rates)
    rates["float32"] = 2.0
    assert changed.rate("float32") == 1.0


def test_finding_a_device():
    assert find_device(FULL) is FULL
    assert find_device("TPU v4") is depth.devices["TPU v4"]
    assert find_device("h200") is depth.devices["h200"] is depth.devices["H200"]
    assert "h200" in depth.devices
    assert next(iter(depth.devices)) == "V100"


@pytest.mark.parametrize("device", ["b100", "", "here", None, 3, {"name": "H100"}], ids=repr)
def test_an_unknown_device_is_named_beside_those_there_are(device):
    with pytest.raises(ValueError, match="'V100', 'A100'") as error:
        find_device(device)
    assert repr(device) in str(error.value)


def test_a_generic_cpu_has_more_memory_and_threads_with_more_cores():
    two = generic_cpu(2)
    assert two.name == "generic CPU, 2 cores"
    assert "fitted" in two.source
    for cores, threads in {1: 1, 3: 3, 8: 8, 9: 8, 256: 8}.items():
        changed = {"memory": cores * two.memory / 2, "threads": threads}
        assert generic_cpu(cores) == two.replace(name=f"generic CPU, {cores} cores", **changed)


@pytest.mark.parametrize("cores", [0, -1, 2.0, None, True], ids=repr)
def test_a_cpu_without_cores_is_refused(cores):
    with pytest.raises(
        ValueError, match=rf"cores must be a whole number >= 1, but it is {cores!r}"
    ):
        generic_cpu(cores)
