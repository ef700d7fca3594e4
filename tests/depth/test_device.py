"""Device models: the table, the figures that are not given, what is refused; and the calibration, what it keeps and where."""

import dataclasses
import json
import math
import os
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depth
from depth import calibration
from depth.device import find_device
from depth.report import device_table

NAMES = ["V100", "A100", "H100", "H200", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e"]
FIGURES = [field.name for field in dataclasses.fields(depth.Device) if field.name not in ("name", "source")]
PLAIN = depth.Device(
    "plain", kernel_latency=4.0, loop_latency=2.0, turn_latency=8.0, rates={"float32": 100.0}, bandwidth=1000.0, memory=1e6
)
FULL = PLAIN.replace(
    source="made up",
    call_latency=16.0,
    step_latencies={"elementwise": 0.5, "product": 1.5},
    piece_latency=0.25,
    vector_rates={"arithmetic": 20.0, "transcendental": 5.0},
    cache_bandwidth=5000.0,
    cache=64.0,
)


# -- the table ------------------------------------------------------------------------------------------------------------------


def test_the_table_has_the_devices_of_the_issue():
    assert list(depth.devices) == NAMES
    assert all(device.name == name for name, device in depth.devices.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_device_has_a_source_and_sensible_figures(name):
    device = depth.devices[name]
    assert "." in device.source.split(";")[0], "the source of the rates is an address"
    assert "latencies" in device.source
    for figure in ("kernel_latency", "loop_latency", "turn_latency", "call_latency", "bandwidth", "memory"):
        assert getattr(device, figure) > 0, figure
    for rates in (device.rates, device.vector_rates):
        assert rates
        assert all(rate > 0 and math.isfinite(rate) for rate in rates.values())
    assert 1e-7 < device.kernel_latency < 1e-5 < device.call_latency < 1e-3
    assert device.loop_latency < device.turn_latency
    assert 10e9 < device.memory < 200e9
    assert 0.5e12 < device.bandwidth < 10e12
    assert device.rate("bfloat16" if "bfloat16" in device.rates else "float16") > device.rate("float32")


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("bandwidth", ["V100", "A100", "H100", "H200"]),
        ("bandwidth", ["TPU v5e", "TPU v4", "TPU v5p"]),
        ("bandwidth", ["TPU v5e", "TPU v6e", "TPU v5p"]),
        ("memory", ["TPU v5e", "V100", "A100", "H200"]),
        ("memory", ["H100", "TPU v5p", "H200"]),
    ],
    ids=["bandwidth GPU", "bandwidth TPU", "bandwidth TPU, newer", "memory", "memory, newer"],
)
def test_newer_devices_have_more(figure, names):
    figures = [getattr(depth.devices[name], figure) for name in names]
    assert figures == sorted(set(figures))


def test_newer_devices_multiply_faster():
    for dtype, names in [("float32", ["V100", "A100", "H100"]), ("float16", ["V100", "A100", "H100"])]:
        rates = [depth.devices[name].rate(dtype) for name in names]
        assert rates == sorted(set(rates))
    rates = [depth.devices[name].rate("bfloat16") for name in ("TPU v5e", "TPU v4", "TPU v5p", "TPU v6e")]
    assert rates == sorted(set(rates))
    assert depth.devices["H200"].rates == depth.devices["H100"].rates  # the same chip, with more memory


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        depth.devices["V100"] = PLAIN
    with pytest.raises(dataclasses.FrozenInstanceError):
        depth.devices["V100"].bandwidth = 1.0


# -- figures that are not given -------------------------------------------------------------------------------------------------


def test_the_rate_of_a_dtype_is_its_own_or_the_nearest():
    device = PLAIN.replace(rates={"float64": 1.0, "float32": 2.0, "float16": 4.0})
    assert [device.rate(dtype) for dtype in ("float64", "float32", "float16")] == [1.0, 2.0, 4.0]
    assert [device.rate(dtype) for dtype in ("complex128", "int64", "uint64")] == [1.0] * 3  # as wide as float64
    assert [device.rate(dtype) for dtype in ("bfloat16", "int8", "bool", "")] == [2.0] * 4  # else float32
    assert PLAIN.rate("float64") == 100.0  # no float64 of its own
    assert PLAIN.replace(rates={"bfloat16": 7.0, "int8": 9.0}).rate("float32") == 9.0  # no float32 either


def test_vector_rates_halve_on_64_bits():
    assert FULL.vector_rate("arithmetic", "float32") == 20.0
    assert FULL.vector_rate("transcendental", "float32") == 5.0
    for dtype in ("float64", "int64", "uint64", "complex128"):
        assert FULL.vector_rate("arithmetic", dtype) == 10.0
        assert FULL.vector_rate("transcendental", dtype) == 2.5
    for dtype in ("float16", "bfloat16", "int32", "bool"):
        assert FULL.vector_rate("arithmetic", dtype) == 20.0


def test_vector_rates_that_are_not_given():
    assert FULL.vector_rate("reduction", "float32") == 20.0  # as arithmetic
    assert PLAIN.vector_rate("move", "float32") == 100.0  # as products
    assert PLAIN.vector_rate("transcendental", "float32") == 10.0  # a tenth of arithmetic
    assert PLAIN.replace(vector_rates={"arithmetic": 50.0}).vector_rate("transcendental", "float64") == 2.5


def test_latencies_by_place():
    steps = {"elementwise": 1.0, "reduction": 2.0, "product": 3.0, "transposed product": 5.0, "beside product": 6.0}
    device = PLAIN.replace(step_latencies=steps)
    kinds = ["elementwise", "reduction", "product", "transposed product", "sort"]
    assert [device.latency(kind, "program") for kind in kinds] == [4.0] * 5
    assert [device.latency(kind, "loop") for kind in kinds] == [1.0, 2.0, 3.0, 5.0, 1.0]  # a sort as elementwise
    assert [device.latency(kind, "loop with product") for kind in kinds] == [6.0, 6.0, 3.0, 5.0, 6.0]
    assert PLAIN.latency("reduction", "loop") == 4.0  # no steps given
    assert PLAIN.replace(step_latencies={"product": 3.0}).latency("sort", "loop") == 4.0


def test_what_fits_the_cache_comes_from_there():
    assert [FULL.memory_rate(amount) for amount in (0, 64, 65)] == [5000.0, 5000.0, 1000.0]
    assert PLAIN.memory_rate(1) == 1000.0


# -- what is refused ------------------------------------------------------------------------------------------------------------

POSITIVE = {"rates": {"float32": 0}, "vector_rates": {"move": 0.0}, "bandwidth": 0}
BAD = {
    **{f"{figure} negative": (figure, -1.0) for figure in FIGURES if "rates" not in figure and figure != "step_latencies"},
    **{
        f"{figure} of one negative": (figure, {"float32": 1.0, "x": -2}) for figure in ("rates", "vector_rates", "step_latencies")
    },
    **{f"{figure} zero": (figure, value) for figure, value in POSITIVE.items()},
    "no rates": ("rates", {}),
    "bandwidth not a number": ("bandwidth", math.nan),
    "kernel_latency not a number": ("kernel_latency", math.nan),
    "one rate not a number": ("rates", {"float32": math.nan}),
    "bandwidth of numpy": ("bandwidth", np.float32(-1)),
    "loop_latency of numpy": ("loop_latency", np.int32(-1)),
}


@pytest.mark.parametrize(("figure", "value"), BAD.values(), ids=BAD)
def test_a_bad_figure_is_named_with_its_value(figure, value):
    with pytest.raises(ValueError, match=rf"{figure} of plain") as error:
        PLAIN.replace(**{figure: value})
    assert str(value) in str(error.value) or "empty" in str(error.value)


@pytest.mark.parametrize(
    ("figure", "value"),
    [("bandwidth", "fast"), ("kernel_latency", None), ("rates", {"float32": "fast"}), ("rates", 3)],
    ids=["text", "none", "text in rates", "number for rates"],
)
def test_what_is_no_number_is_refused_by_name(figure, value):
    with pytest.raises((TypeError, ValueError), match=figure):
        PLAIN.replace(**{figure: value})


def test_latencies_may_be_zero():
    device = PLAIN.replace(kernel_latency=0, loop_latency=0, turn_latency=0.0, call_latency=0, memory=0, cache=0)
    assert device.latency("product", "program") == 0


def test_replace_changes_the_copy_only():
    changed = FULL.replace(name="other", bandwidth=7.0)
    assert (changed.name, changed.bandwidth, FULL.name, FULL.bandwidth) == ("other", 7.0, "plain", 1000.0)
    assert changed.replace(name="plain", bandwidth=1000.0) == FULL
    assert changed != FULL
    with pytest.raises(TypeError, match="nothing"):
        FULL.replace(nothing=3)
    rates = {"float32": 1.0}
    changed = FULL.replace(rates=rates)
    rates["float32"] = 2.0
    assert changed.rate("float32") == 1.0


@pytest.mark.parametrize("device", [PLAIN, FULL, *depth.devices.values()], ids=["plain", "full", *NAMES])
def test_a_device_survives_pickling(device):
    back = pickle.loads(pickle.dumps(device))
    assert (back, back.source) == (device, device.source)
    assert device_table(device).splitlines()[0] == device.name


def test_finding_a_device():
    assert find_device(FULL) is FULL
    assert find_device("TPU v4") is depth.devices["TPU v4"]


@pytest.mark.parametrize("device", ["h100", "", "here", None, 3, {"name": "H100"}], ids=repr)
def test_an_unknown_device_is_named_beside_those_there_are(device):
    with pytest.raises(ValueError, match="'V100', 'A100'") as error:
        find_device(device)
    assert repr(device) in str(error.value)


# -- the calibration ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """How often it was measured; each time another device comes out."""
    calls = []

    def measure():
        calls.append(FULL.replace(call_latency=1.0 / 3.0 + len(calls)))
        return calls[-1]

    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calls


def test_the_cache_file_depends_on_what_is_measured(monkeypatch, tmp_path):
    class Other:
        device_kind = "NVIDIA H200 (rev 2)"

    files = []
    for name in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        files.append(calibration.cache_file())
        assert files[-1].parent == tmp_path / name / "depth"
    assert files[0].name == files[1].name
    monkeypatch.setattr(calibration, "cores", lambda: 12345)
    files.append(calibration.cache_file())
    monkeypatch.setattr(jax, "__version__", "0.99.1")
    files.append(calibration.cache_file())
    with jax.enable_x64(False):
        files.append(calibration.cache_file())
    monkeypatch.setattr(jax, "devices", lambda: [Other()])
    files.append(calibration.cache_file())
    assert "12345" in files[2].name
    assert "0.99.1" in files[3].name
    assert "nvidia-h200-rev-2" in files[5].name
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("unset", [True, False], ids=["unset", "empty"])
def test_without_a_cache_folder_that_of_the_home_is_taken(monkeypatch, tmp_path, unset):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    if unset:
        monkeypatch.delenv("XDG_CACHE_HOME")
    assert calibration.cache_file().parent == tmp_path / ".cache" / "depth"


def test_the_cores_are_those_this_process_may_use():
    assert 1 <= calibration.cores() <= os.cpu_count()


def test_a_measurement_is_kept_and_read_back(measured):
    first = depth.calibrate()
    path = calibration.cache_file()
    assert os.listdir(path.parent) == [path.name]
    assert depth.calibrate() == first == measured[0]
    assert depth.calibrate().source == "made up"
    assert len(measured) == 1
    assert json.loads(path.read_text())["call_latency"] == 1.0 / 3.0


def test_refresh_measures_again_and_keeps_that(measured):
    depth.calibrate()
    second = depth.calibrate(refresh=True)
    assert len(measured) == 2
    assert depth.calibrate() == second == measured[1] != measured[0]
    assert len(os.listdir(calibration.cache_file().parent)) == 1


GOOD = dataclasses.asdict(FULL)
CORRUPT = {
    "empty": "",
    "cut off": json.dumps(GOOD)[:-9],
    "list": "[]",
    "null": "null",
    "no text": b"\xff\xfe\x00",
    "unknown field": json.dumps({**GOOD, "colour": "red"}),
    "missing field": json.dumps({name: value for name, value in GOOD.items() if name != "bandwidth"}),
    "negative": json.dumps({**GOOD, "bandwidth": -1.0}),
    "rates of text": json.dumps({**GOOD, "rates": "fast"}),
    "text for a number": json.dumps({**GOOD, "bandwidth": "fast"}),
    "null for a number": json.dumps({**GOOD, "kernel_latency": None}),
    "not a number": json.dumps({**GOOD, "kernel_latency": math.nan}),
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_what_cannot_be_read_is_measured_again(measured, content):
    path = calibration.cache_file()
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert depth.calibrate() == FULL.replace(call_latency=1.0 / 3.0)
    assert depth.calibrate() == measured[0]
    assert len(measured) == 1


@pytest.mark.parametrize("where", ["a file for the folder", "a folder for the file"])
def test_where_nothing_can_be_kept_the_result_comes_with_a_warning(measured, monkeypatch, tmp_path, capsys, where):
    if where == "a file for the folder":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
        Path(tmp_path, "taken").write_text("")
    else:
        calibration.cache_file().mkdir(parents=True)
    assert depth.calibrate() == measured[0]
    output = capsys.readouterr()
    assert output.out == ""
    assert "depth.calibrate" in output.err
    assert str(calibration.cache_file().parent) in output.err
    assert list(tmp_path.rglob("*.tmp")) == [], "what is not kept leaves nothing behind"


def test_an_interrupted_write_keeps_the_last_measurement(measured, monkeypatch):
    first = depth.calibrate()

    def interrupted(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibration.os, "replace", interrupted)
    depth.calibrate(refresh=True)
    assert depth.calibrate() == first


def test_measuring_this_machine(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", -1.0)  # late from the start: few calls of each
    device = calibration.measure()
    table = device_table(device)
    assert set(device.rates) == {"float32", "float64", "bfloat16", "float16"}
    assert set(device.vector_rates) == {"arithmetic", "transcendental", "reduction", "cumulative", "move"}
    for figure in FIGURES:
        value = getattr(device, figure)
        for amount in value.values() if isinstance(value, dict) else [value]:
            assert math.isfinite(amount), figure
            assert amount > 0 or figure in ("piece_latency", "turn_latency", "kernel_latency"), figure  # differences of times
    assert str(calibration.cores()) in device.name
    assert jax.__version__ in device.source
    assert table.startswith(device.name)
    assert 0 < depth.predict(depth.analyze(jnp.sin, jnp.ones(8)), device) < 1
