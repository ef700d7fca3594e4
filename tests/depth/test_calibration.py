"""The calibration of the device at hand.

What it measures, where it keeps that, and what it does where it cannot.
"""

import dataclasses
import json
import math
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import depth
from depth import calibration
from depth.kernels import CLASSES
from depth.report import device_table

FIGURES = [
    field.name
    for field in dataclasses.fields(depth.Device)
    if field.name not in ("name", "source", "platform")
]
FULL = depth.Device(
    "plain",
    kernel_latency=4.0,
    loop_latency=2.0,
    trip_latency=8.0,
    rates={"float32": 100.0},
    bandwidth=1000.0,
    memory=1e6,
    source="made up",
    call_latency=16.0,
    step_latencies={"elementwise": 0.5, "product": 1.5},
    vector_rates={"arithmetic": 20.0, "transcendental": 5.0},
)


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

    other = calibration.cache_file(Other())
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
    monkeypatch.setattr(jax, "local_devices", lambda backend: [Other()])
    files.append(calibration.cache_file())
    assert "12345" in files[2].name
    assert "0.99.1" in files[3].name
    assert "nvidia-h200-rev-2" in files[5].name
    assert "nvidia-h200-rev-2" in other.name
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("unset", [True, False], ids=["unset", "empty"])
def test_without_a_cache_folder_that_of_the_home_is_taken(monkeypatch, tmp_path, unset):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    if unset:
        monkeypatch.delenv("XDG_CACHE_HOME")
    assert calibration.cache_file().parent == tmp_path / ".cache" / "depth"


def test_a_cache_folder_that_is_no_absolute_path_is_as_if_not_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert calibration.cache_file().parent == tmp_path / ".cache" / "depth"


@pytest.mark.parametrize("chosen", ["a platform", "a device"])
def test_the_default_device_is_the_chosen_one(monkeypatch, chosen):
    class Other:
        device_kind = "other"

    device = jax.local_devices()[0]
    assert calibration.default_device() is device
    monkeypatch.setattr(
        jax, "local_devices", lambda backend: {"cpu": [device], None: [Other()]}[backend]
    )
    assert "other" in calibration.cache_file().name
    with jax.default_device(device if chosen == "a device" else "cpu"):
        assert calibration.default_device() is device
        assert calibration.cache_file() == calibration.cache_file(device)


def test_the_cores_are_those_this_process_may_use():
    assert 1 <= calibration.cores() <= os.cpu_count()


def test_a_measurement_is_kept_and_read_back(measured):
    first = depth.calibrate()
    path = calibration.cache_file()
    assert os.listdir(path.parent) == [path.name]
    assert depth.calibrate() == first == measured[0]
    assert depth.calibrate().source == "made up"
    assert len(measured) == 1
    content = json.loads(path.read_text())
    assert content["device"]["call_latency"] == 1.0 / 3.0
    assert content["conditions"]["jax"] == jax.__version__


def test_refresh_measures_again_and_keeps_that(measured):
    depth.calibrate()
    second = depth.calibrate(refresh=True)
    assert len(measured) == 2
    assert depth.calibrate() == second == measured[1] != measured[0]
    assert len(os.listdir(calibration.cache_file().parent)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe\x00", json.dumps(vars(FULL)).encode()], ids=repr
)
def test_what_cannot_be_read_is_measured_again(measured, content):
    path = calibration.cache_file()
    path.parent.mkdir()
    path.write_bytes(content)
    assert depth.calibrate() == FULL.replace(call_latency=1.0 / 3.0)
    assert depth.calibrate() == measured[0]
    assert len(measured) == 1


@pytest.mark.parametrize("where", ["a file for the folder", "a folder for the file"])
def test_where_nothing_can_be_kept_the_result_comes_with_a_warning(
    measured, monkeypatch, tmp_path, capsys, where
):
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


@pytest.mark.parametrize(
    "home", [None, "/proc", "/dev/null"], ids=["unset", "not writable", "no folder"]
)
def test_without_a_home_nothing_is_kept_and_nothing_written_here(
    measured, monkeypatch, tmp_path, capsys, home
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home:
        monkeypatch.setenv("HOME", home)
    else:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(
            os.path, "expanduser", lambda path: path
        )  # as for a user whom the system does not know
    generic = depth.at_hand()
    assert capsys.readouterr() == ("", "")
    assert depth.calibrate() == measured[0]
    assert "not kept" in capsys.readouterr().err
    assert depth.at_hand() == generic
    assert os.listdir() == []


def test_a_link_to_itself_is_replaced(measured):
    path = calibration.cache_file()
    path.parent.mkdir()
    path.symlink_to(path)
    depth.calibrate()
    assert depth.calibrate() == measured[0]
    assert len(measured) == 1


def test_an_interrupted_write_keeps_the_last_measurement(measured, monkeypatch):
    first = depth.calibrate()

    def interrupted(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibration.os, "replace", interrupted)
    depth.calibrate(refresh=True)
    assert depth.calibrate() == first


def test_while_several_calibrate_at_once_the_file_is_always_whole(measured):
    names = [f"device {number} {'x' * 4000 * number}" for number in range(3)]
    path, bad, done = calibration.cache_file(), [], threading.Event()

    def calibrating(name, times):
        content = {
            "conditions": calibration._conditions(jax.devices()[0]),
            "device": vars(FULL.replace(name=name)),
        }
        for _ in range(times):
            calibration._keep(path, content)

    def reading():
        while not done.is_set():
            if (name := depth.at_hand().name) not in names:
                bad.append(name)

    calibrating(names[0], 1)
    writers = [threading.Thread(target=calibrating, args=(name, 50)) for name in names[1:]]
    reader = threading.Thread(target=reading)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not bad
    assert depth.at_hand().name in names[1:]
    assert os.listdir(path.parent) == [path.name]
    assert not measured


def test_measuring_this_machine(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", -1.0)  # late from the start: few calls of each
    device = calibration.measure()
    table = device_table(device)
    assert set(device.rates) == {"float32", "float64", "bfloat16", "float16"}
    assert set(device.vector_rates) == {*CLASSES} - {"product"}
    of_gpus = {"node_latency", "condition_latency", "operation_latency"}
    assert {getattr(device, figure) for figure in of_gpus} == {None}
    for figure in {*FIGURES} - of_gpus:
        value = getattr(device, figure)
        for amount in value.values() if isinstance(value, dict) else [value]:
            assert math.isfinite(amount), figure
            assert amount > 0 or figure in ("piece_latency", "trip_latency", "kernel_latency"), (
                figure
            )  # differences of times
    assert str(calibration.cores()) in device.name
    assert jax.__version__ in device.source
    assert table.startswith(device.name)
    assert 0 < depth.predict(depth.analyze(jnp.sin, jnp.ones(8)), device) < 1
